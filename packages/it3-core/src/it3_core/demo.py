"""A toy problem that shows it all in half a minute: a stream that leaves the training range.

The truth is a smooth function of two inputs; training data has the first one between 0 and 1, and
the stream goes on to 2, where labels leave the range of training.
"""

from __future__ import annotations

import math
import statistics
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from it3_core.evaluation.evaluate import evaluate
from it3_core.evaluation.records import Record
from it3_core.io.output import OutputFolder, open_output
from it3_core.io.tensors import save
from it3_core.methods.answer_step import AnswerStep
from it3_core.methods.paper import choose_step, paper_it3, paper_online_it3
from it3_core.methods.source import Source
from it3_core.model.adapters import Regression
from it3_core.model.conditioning import Conditioned, condition
from it3_core.model.losses import zigzag_loss
from it3_core.training.fit import fit
from it3_core.trust.calibration import Trust

ONLINE = "online IT3 (paper)"
LEVELS = {"seen (0 to 1)": (0.0, 1.0), "near (1 to 1.3)": (1.0, 1.3), "far (1.3 to 2)": (1.3, 2.0)}


def run_demo(seed: int = 0, out: Path | None = None, progress: bool = True) -> str:
    """Trains on the toy problem, and compares methods on its stream; returns the results as text.

    `out` is a folder for the trained network and, where matplotlib is there, a picture.
    """
    names = ["demo.safetensors", "demo.png"]
    folder = None  # checked now, and not after the training
    if out is not None:
        folder = open_output(out, "it3-core demo", {"seed": seed}, files=names)
    draw = torch.Generator().manual_seed(seed)
    x, y = _data(600, 0.0, 1.0, draw)
    validation = (x[450:], y[450:])
    x, y = x[:450], y[:450]
    model, adapter = _trained(x, y, validation, seed, progress)
    trust = Trust.fit(model, adapter, validation)
    noise = 0.05 * torch.randn(validation[0].shape, generator=draw)
    step = choose_step(model, adapter, [validation[0] + noise])
    levels = {name: _data(400, *bounds, draw) for name, bounds in LEVELS.items()}
    records = evaluate(
        {
            "source": Source(model, adapter),
            "second pass": AnswerStep(model, adapter),
            "IT3 (paper)": paper_it3(model, adapter, steps=step.steps, lr=step.lr),
            ONLINE: paper_online_it3(model, adapter, steps=step.steps, lr=step.lr),
        },
        levels,
        adapter.error,
        batch_sizes=(16,),
        seed=seed,
        in_distribution=next(iter(levels)),
        streams=[ONLINE],
        progress=progress,
    )
    errors = {
        name: Source(model, adapter)(inputs).error_before for name, (inputs, _) in levels.items()
    }
    text = _text(trust, records, errors)
    if folder is not None:
        with folder.writing("demo.safetensors") as path:
            save(path, model, adapter=adapter, trust=trust, settings={"demo": True, "seed": seed})
        text += f"\n\nSaved the network; look into it with: it3-core inspect {path}"
        text += _picture(records, folder)
    return text


def _data(rows: int, low: float, high: float, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    first = low + (high - low) * torch.rand(rows, generator=draw)
    second = 2 * torch.rand(rows, generator=draw) - 1
    truth = 3 * first + 0.5 * first**2 + torch.sin(2 * second)
    return torch.stack([first, second], 1), truth + 0.05 * torch.randn(rows, generator=draw)


def _trained(
    x: Tensor, y: Tensor, validation: tuple[Tensor, Tensor], seed: int, progress: bool
) -> tuple[Conditioned, Regression]:
    adapter = Regression.fit(y)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = nn.Sequential(
            nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1),
            adapter.rescale(),
        )  # fmt: skip
        model = condition(net, adapter, layer="0")
    loss = partial(zigzag_loss, second_signal="noisy", noise=0.3)
    fit(model, adapter, (x, y), validation=validation, epochs=80, batch_size=32, lr=3e-3,
        schedule="cosine", loss=loss, seed=seed, progress=progress)  # fmt: skip
    return model, adapter


def _text(trust: Trust, records: list[Record], errors: dict[str, Tensor]) -> str:
    flagged = {name: float(trust.flag(found).double().mean()) for name, found in errors.items()}
    return "\n".join([
        "Mean absolute error, by where the first input lies; trained on 0 to 1, batches of 16.",
        "Changes are against source, those in brackets may be chance; cost in passes of source.",
        "IT3's steps and rate were chosen without labels. The stream goes on to the right.",
        "",
        _table(records, flagged),
        "",
        f"What to do: {_advice(flagged, records)}",
    ])  # fmt: skip


def _advice(flagged: dict[str, float], records: list[Record]) -> str:
    """Where to ask for labels, and what the stream gains until they come."""
    found = {one["level"]: _change(one) for one in records if one["method"] == ONLINE}
    seen, *rest = found
    unusual = [level for level in rest if flagged[level] > 0.2]
    if not unusual:
        return "nothing: hardly an input is flagged."
    gains = ", ".join(f"{found[level]} {level}" for level in unusual)
    return (
        f"collect labels from {unusual[0]} on, where {flagged[unusual[0]]:.0%} of the inputs are "
        f"flagged ({flagged[seen]:.0%} of the usual ones).\nUntil they come, online IT3's "
        f"error is {gains}; and {found[seen]} on what was {seen}."
    )


def _table(records: list[Record], flagged: dict[str, float]) -> str:
    """The mean error by method and level, and its change; in brackets where it may be chance."""
    levels = list(dict.fromkeys(record["level"] for record in records))
    lines = [["method", *levels, "cost"]]
    for method in dict.fromkeys(record["method"] for record in records):
        own = [record for record in records if record["method"] == method]
        cost = statistics.median(record["cost"] for record in own)
        lines.append([method, *map(_change, own), f"{cost:.1f}"])
    lines.append(["flagged as unusual", *(f"{flagged[level]:.0%}" for level in levels), ""])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join([*map(str.ljust, line[:-1], widths), line[-1].rjust(widths[-1])])
        for line in lines
    )


def _change(record: Record) -> str:
    error, difference = record["error"], record["difference"]
    if record["method"] == record["reference"]:
        return f"{error:.3f}"
    change = f"{difference / (error - difference):+z.1%}"
    spread = statistics.stdev(record["differences"]) / math.sqrt(record["n"])
    return f"{error:.3f} {change}" if abs(difference) > 1.96 * spread else f"{error:.3f} ({change})"


def _picture(records: list[Record], folder: OutputFolder) -> str:
    try:
        from it3_core.experiment.figures import box_by_level
    except ImportError:
        return '\nNo picture: pip install "it3-core[experiment]" brings matplotlib.'
    folder.write_figure("demo.png", box_by_level(records), dpi=200)
    return f"\nSaved a picture of these errors:\n  {folder.path / 'demo.png'}"
