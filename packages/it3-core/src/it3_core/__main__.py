"""The command line: `it3-core demo`, `it3-core inspect FILE`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from it3_core.errors import IT3Error

if TYPE_CHECKING:
    from torch import Tensor

    from it3_core.io.tensors import Checkpoint


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code: 0, or 2 for what the user can mend."""
    parser = argparse.ArgumentParser(
        prog="it3-core",
        description="IT³, idempotent test-time training: see it work, or look into a checkpoint.",
        epilog="The library is used from Python: see the README's example.",
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    demo = commands.add_parser(
        "demo",
        help="train and adapt on a toy problem, in about half a minute",
        description="Trains a small network on a toy problem, and compares the methods on a stream "
        "that leaves the training range.",
    )
    demo.add_argument("--seed", type=int, default=0, help="of data and training (default 0)")
    demo.add_argument("--out", type=Path, help="folder for the trained network and a picture")
    demo.add_argument("--quiet", action="store_true", help="no progress bars")
    inspect = commands.add_parser(
        "inspect",
        help="say what a checkpoint holds",
        description="Prints what is in a checkpoint: versions, adapter, trust, what was tuned.",
    )
    inspect.add_argument("file", type=Path, help="a .safetensors file written by an it3 package")
    options = parser.parse_args(arguments)
    if options.version:
        from it3_core import __version__

        print(f"it3-core {__version__}")
        return 0
    if options.command is None:
        parser.print_help()
        return 2
    try:
        # Imported here, so that --help does not wait for torch.
        if options.command == "demo":
            import torch

            from it3_core.demo import run_demo

            torch.set_num_threads(1)  # the network is small: threads would wait for each other
            print(run_demo(options.seed, options.out, progress=not options.quiet))
        else:
            from it3_core.io.tensors import load

            print(_summary(load(options.file)))
    except (IT3Error, OSError) as problem:
        print(f"it3-core: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("it3-core: interrupted", file=sys.stderr)
        return 130
    return 0


def _tuned(name: str, one: Mapping[str, Any]) -> list[str]:
    """What was chosen for rows, or for batches of a size, and by which scores."""
    gate = one.get("gate") or {}
    of = "single rows" if name == "row" else f"batches of {name}"
    bound = {"alpha": gate.get("false_positive_rate"), "cap": one.get("cap"), "n": gate.get("n")}
    lines = [f"{of}: {one.get('reason')}"]
    lines += [
        f"  gate: {gate.get('score')} above {gate.get('threshold')}, {json.dumps(bound)}"
    ] * bool(gate)
    doubt = one.get("doubt") or {}
    return [*lines, f"  doubt: {doubt['kind']}"] if "kind" in doubt else lines


def _summary(found: Checkpoint) -> str:
    """What a checkpoint holds, in a few lines; of many batch sizes, a line for each tuning."""
    from it3_core.io.typed import printable

    def amount(tensors: Mapping[str, Tensor]) -> str:
        unique = {id(tensor): tensor for tensor in tensors.values()}.values()
        numbers = sum(tensor.numel() for tensor in unique)
        megabytes = sum(tensor.nbytes for tensor in unique) / 1e6
        return f"{numbers} numbers in {len(unique)} tensors ({megabytes:.3g} MB)"

    def short(part: Mapping[str, Any]) -> str:
        return printable(json.dumps(part, ensure_ascii=False))

    trust = {k: v for k, v in (found.trust or {}).items() if not isinstance(v, list)}
    tuned = found.tuning or {"reason": "not run"}
    if tuned and all(isinstance(one, dict) for one in tuned.values()):
        reasons = [text for name, one in tuned.items() for text in _tuned(name, one)]
        trust = {name: len(found.tensors.get(f"predictor.{name}.misses", ())) for name in trust}
        trust = {"calibration rows": trust}
    else:
        reasons = [str(tuned.get("reason", short(tuned)))]
    lines = {"network": amount(found.weights)}
    if found.tensors:
        lines["tensors"] = f"{amount(found.tensors)}: {printable(', '.join(found.tensors), 80)}"
    lines |= {
        "adapter": short(found.adapter_description),
        "settings": short(found.settings),
        "trust": short(trust) if trust else "not fitted",
        "tuning": "\n          ".join(printable(reason, 500) for reason in reasons),
    }
    written = printable(", ".join(f"{name} {v}" for name, v in found.versions.items()))
    rows = [f"{name:8}  {words}" for name, words in lines.items()]
    return "\n".join([f"IT³ checkpoint, written with {written}", *rows])


if __name__ == "__main__":
    sys.exit(main())
