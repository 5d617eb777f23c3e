"""Numbers that a refactoring must not change: small evaluations of the five tasks and of tables.

    python tools/baseline.py make     # from commit 52d0f02, in a temporary worktree
    python tools/baseline.py check    # this tree's code against tools/baseline.csv

Each task draws a few inputs, trains one small network and compares all methods on it, through the
command line, in about four CPU-minutes for all of them. The baseline holds the mean error, the
number of instances and the verdict of each level, method and batch size; no cost and no time.
Everything runs on one thread with the instructions of AVX2, so that a machine repeats itself.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
BASELINE = ROOT / "tools" / "baseline.csv"
COMMIT = "52d0f02"
TOLERANCE = 1e-6  # relative
PACKAGES = ("core", "tabular", "vision", "aero")

# What each task runs in a folder of its own, where `draw` has put `data`. {cars} is the packed
# sample of solved cars in the tree. The records are the *.jsonl files in `evaluation`.
COMMANDS = {
    "wings": """
        it3_aero wings generate data --n 160 --solver neuralfoil --workers 1 --quiet
        it3_aero wings train data --out run --epochs 30 --vanilla --quiet
        it3_aero wings evaluate run --batch-sizes 1,4,16 --most 16 --out evaluation --quiet
    """,
    "cars": """
        it3_aero cars train {cars} --out run --epochs 4 --vanilla --quiet
        it3_aero cars evaluate run --batch-sizes 1,4,16 --most 16 --out evaluation --quiet
    """,
    "classify": """
        it3_vision classify train data/train --out run --size tiny --pixels 16 --epochs 6
            --batch-size 32 --lr 0.05 --no-bfloat16 --vanilla --quiet
        it3_vision classify evaluate run --data data/test --corruptions gaussian_noise,contrast
            --batch-sizes 1,16 --out evaluation --quiet
    """,
    "age": """
        it3_vision age train data --out run --size tiny --pixels 16 --epochs 25 --batch-size 32
            --no-bfloat16 --vanilla --quiet
        it3_vision age evaluate run --data data --batch-sizes 4,16 --most 16 --out evaluation
            --quiet
    """,
    "roads": """
        it3_vision roads train data --split train --resolution 1 --out run --size tiny --steps 2
            --crop 32 --epochs 8 --lr 0.02 --no-bfloat16 --vanilla --quiet
        it3_vision roads evaluate run --data data --split test --resolution 1 --batch-sizes 1,4
            --tile 48 --out evaluation --quiet
    """,
    "tabular": """
        it3_tabular evaluate --data data --sets drawn --splits 1 --epochs 40 --out evaluation
            --quiet
    """,
}

# Levels that have other names now.
RENAMED = {
    ("roads", "held out"): "validation crops",
    ("wings", "all beyond"): "out of distribution",
    ("cars", "all beyond"): "out of distribution",
    ("age", "all beyond"): "out of distribution",
}

# Rows that later steps change on purpose, by task, method and batch size, and why.
_SMALLER = "settings tuned for larger batches are no longer used on smaller ones"
ON_PURPOSE = {
    **{(task, "IT³ auto", size): _SMALLER for task in ("wings", "cars") for size in ("1", "4")},
    ("roads", "IT³ auto", "1"): _SMALLER,
}

# Changes to the old code that are meant: wings and cars draw their validation split as images do,
# and run both passes of ZigZag stacked; strided 1×1 convolutions, which can kill a process, take
# every other pixel first.
PATCHES = {
    "packages/it3-aero/src/it3_aero/learning/network.py": {
        "    if not (isinstance(model, Conditioned) and isinstance(model.model, GraphNet)):": (
            "    return zigzag_loss(model, adapter, x, y, weight=weight, together=True)\n"
            "    if not (isinstance(model, Conditioned) and isinstance(model.model, GraphNet)):"
        ),
    },
    "packages/it3-aero/src/it3_aero/learning/fitting.py": {
        "\nimport torch\n": "\nimport numpy as np\nimport torch\n",
        "torch.randperm(len(shapes), generator=torch.Generator().manual_seed(seed + 1000))": (
            "torch.from_numpy(np.random.default_rng(seed + 1000).permutation(len(shapes)))"
        ),
    },
    "packages/it3-vision/src/it3_vision/networks/layers.py": {
        "    return nn.Conv2d(inputs, outputs, size, stride, padding": (
            "    if size == 1 and stride > 1 and inputs < 16:\n"
            "        return Strided(inputs, outputs, 1, stride, bias=False)\n"
            "    return nn.Conv2d(inputs, outputs, size, stride, padding"
        ),
        "\n\ndef convolution(": (
            "\n\nclass Strided(nn.Conv2d):\n"
            "    def forward(self, x):\n"
            "        rows, columns = self.stride\n"
            "        return nn.functional.conv2d(x[..., ::rows, ::columns], self.weight)\n"
            "\n\ndef convolution("
        ),
    },
}

ENVIRONMENT = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
ENVIRONMENT |= {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "AVX2"}
ENVIRONMENT |= {"PYTHONHASHSEED": "0", "PYTHONWARNINGS": "ignore", "PYTHONDONTWRITEBYTECODE": "1"}


class Row(NamedTuple):
    """A line of the baseline; `verdict` is empty where the tables have none."""

    task: str
    level: str
    method: str
    batch_size: str
    n: str
    error: str
    verdict: str


def write_image(path: Path, pixels: NDArray[np.float64]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path)


def stripes(rng: np.random.Generator, angle: float, waves: float) -> NDArray[np.float64]:
    """A noisy image of 16 × 16 pixels of a wave with this direction and frequency."""
    y, x = np.mgrid[:16, :16] / 16
    wave = np.sin(2 * np.pi * waves * (x * np.cos(angle) + y * np.sin(angle)) + rng.uniform(0, 6))
    colours, contrast = rng.uniform(90, 160, 3), rng.uniform(20, 60, 3)
    return np.asarray(colours + wave[..., None] * contrast + rng.normal(0, 20, (16, 16, 3)))


def draw(task: str, data: Path) -> None:
    """Writes a task's inputs; wings generate theirs, and cars come with the package."""
    rng = np.random.default_rng(0)
    if task == "classify":  # the class is the direction
        for i in range(496):
            pixels = stripes(rng, np.pi * (i % 8) / 8 + rng.normal(0, 0.1), rng.uniform(1.5, 3))
            part = "train" if i < 400 else "test"
            write_image(data / part / f"class{i % 8}" / f"{i}.png", pixels)
    elif task == "age":  # the age is the frequency
        for i, age in enumerate(rng.integers(1, 91, 400)):
            write_image(data / f"{age}_0_0_{i}.png", stripes(rng, 0.25, 1 + age / 20))
    elif task == "roads":
        y, x = np.mgrid[:64, :64]
        for i in range(29):
            part, ground = ("train", (90, 105, 85)) if i < 24 else ("test", (120, 110, 80))
            road = np.zeros((64, 64), bool)
            for angle, x0, y0, width in rng.uniform((0, 8, 8, 1.5), (3.1, 56, 56, 4), (3, 4)):
                road |= abs((x - x0) * np.cos(angle) + (y - y0) * np.sin(angle)) < width
            pixels = np.where(road[..., None], 125.0, ground) + rng.normal(0, 30, (64, 64, 3))
            write_image(data / part / "images" / f"{i}.png", pixels)
            write_image(data / part / "masks" / f"{i}.png", 255.0 * road)
    elif task == "tabular":
        x = rng.normal(size=(240, 6))
        x[:, 3:5] += x[:, :2]  # a lost value can be guessed
        y = 3 * x[:, 0] + 2 * np.sin(2 * x[:, 1]) + x[:, 2] * x[:, 3]
        (data / "drawn").mkdir(parents=True)
        np.savetxt(data / "drawn" / "data.txt", np.column_stack([x, y]))
        indices = {"features": (0, 6), "target": (6, 7), "train_0": (0, 200), "test_0": (200, 240)}
        for name, (start, end) in indices.items():
            np.savetxt(data / "drawn" / f"index_{name}.txt", np.arange(start, end), fmt="%d")


def measure(tree: Path, task: str, *, old: bool = False) -> list[Row]:
    """Runs a task with the code of `tree`, by today's commands or by those of the old commit."""
    commands = COMMANDS[task]
    if old and task in ("wings", "cars"):  # they always trained one
        commands = commands.replace(" --vanilla", "")
    began = time.monotonic()
    sources = [str(tree / "packages" / f"it3-{name}" / "src") for name in PACKAGES]
    environment = os.environ | ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(sources)}
    cars = next(tree.glob("packages/it3-aero/src/**/cars.safetensors"))
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        run = partial(subprocess.run, cwd=work, env=environment, text=True, capture_output=True)
        where = run([sys.executable, "-c", "import it3_core; print(it3_core.__file__)"]).stdout
        if not where.startswith(sources[0]):
            raise SystemExit(f"it3_core would be imported from {where or 'nowhere'}, not {tree}")
        draw(task, work / "data")
        for command in commands.format(cars=cars).split(" it3_")[1:]:
            done = run([sys.executable, "-m", *shlex.split(f"it3_{command}")])
            if done.returncode:
                raise SystemExit(f"it3_{command.strip()}\n{done.stderr}")
        rows = list(digest(task, work / "evaluation"))
    print(f"{task}: {len(rows)} rows in {time.monotonic() - began:.0f} s", file=sys.stderr)
    return rows


def digest(task: str, evaluation: Path) -> Iterator[Row]:
    """The rows of an evaluation's records, and of its table with a column `verdict`."""
    verdicts = dict(read_verdicts(evaluation))
    parts: dict[str, dict[str, list[int]]] = {}  # of a level, rows that have a line of their own
    if (about := evaluation / "evaluation.json").is_file():
        for name, levels, _, rows in json.loads(about.read_text("utf-8"))["groups"]:
            if rows:
                parts.setdefault(levels[0], {})[name] = rows
    for path in evaluation.glob("*.jsonl"):
        for record in map(json.loads, filter(str.strip, path.read_text("utf-8").splitlines())):
            if "method" not in record:
                continue  # tabular's records of uncertainty scores
            batch_size = "" if record["batch_size"] is None else str(record["batch_size"])
            key = (record["level"], record["method"], batch_size)
            error = "" if record["error"] is None else f"{record['error']:.12g}"
            yield Row(task, *key, str(record["n"]), error, verdicts.pop(key, ""))
            for name, rows in parts.get(record["level"], {}).items():
                errors = [record["errors"][row] for row in rows]
                mean = f"{sum(errors) / len(errors):.12g}"
                key = (name, *key[1:])
                yield Row(task, *key, str(len(rows)), mean, verdicts.pop(key, ""))
    for key, verdict in verdicts.items():  # of several levels joined
        yield Row(task, *key, "", "", verdict)


def read_verdicts(evaluation: Path) -> Iterator[tuple[tuple[str, str, str], str]]:
    header: list[str] = []
    for path in evaluation.glob("*.md"):
        for line in path.read_text("utf-8").splitlines():
            cells = [cell.strip() for cell in line.split("|")[1:-1]]
            if {"level", "method", "batch", "verdict"} <= set(cells):
                header = cells
            elif len(cells) != len(header):
                header = []
            elif header and not cells[0].startswith("---"):
                row = dict(zip(header, cells, strict=True))
                yield (row["level"], row["method"], row["batch"]), row["verdict"]


def measure_all(tree: Path, tasks: Iterable[str], jobs: int, *, old: bool = False) -> list[Row]:
    with ThreadPoolExecutor(jobs) as pool:
        return sorted(chain.from_iterable(pool.map(partial(measure, tree, old=old), tasks)))


@contextmanager
def old_tree() -> Iterator[Path]:
    """A worktree of the old commit with the patch, removed afterwards."""
    with tempfile.TemporaryDirectory() as name:
        git = partial(subprocess.run, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        tree = Path(name).resolve() / "tree"
        git(["git", "worktree", "add", "--quiet", "--detach", str(tree), COMMIT])
        try:
            for path, patch in PATCHES.items():
                text = (tree / path).read_text("utf-8")
                for old, new in patch.items():
                    if text.count(old) != 1:
                        raise SystemExit(f"{path} of {COMMIT} does not hold, once: {old}")
                    text = text.replace(old, new)
                (tree / path).write_text(text, "utf-8")
            yield tree
        finally:
            git(["git", "worktree", "remove", "--force", str(tree)])


def difference(old: Row, new: Row) -> float:
    """The relative difference of two errors; infinite where one is missing, or n differs."""
    if old.n != new.n or bool(old.error) != bool(new.error):
        return math.inf
    if not old.error:
        return 0.0
    a, b = float(old.error), float(new.error)
    return abs(a - b) / (max(abs(a), abs(b)) or 1.0)


def compare(task: str, old: Iterable[Row], new: Iterable[Row]) -> bool:
    """Prints what changed in a task; whether all of it is within the tolerance."""
    before, after = ({row[:4]: row for row in rows if row.task == task} for rows in (old, new))
    both = {key: difference(before[key], after[key]) for key in before if key in after}
    verdicts = {key: (before[key].verdict, after[key].verdict) for key in both}
    other = {key for key, (a, b) in verdicts.items() if a and b and a != b}
    moved = {key: value for key, value in both.items() if value > TOLERANCE or key in other}
    on_purpose = {key for key in moved if (task, *key[2:]) in ON_PURPOSE}
    missing, extra = before.keys() - after.keys(), after.keys() - before.keys()
    print(
        f"{task}: {len(both)} rows compared, largest relative difference "
        f"{max(both.values(), default=0.0):.2g} (tolerance {TOLERANCE:g}), {len(other)} other "
        f"verdicts, {len(moved)} moved, {len(on_purpose)} of them on purpose, "
        f"{len(missing)} missing, {len(extra)} new"
    )
    for key in sorted(missing):
        print(f"  missing: {' / '.join(key)}")
    for key, value in moved.items():
        why = f": {ON_PURPOSE[task, key[2], key[3]]}" if key in on_purpose else ""
        values = " → ".join(" ".join(filter(None, one[key][4:])) for one in (before, after))
        print(f"  {' / '.join(filter(None, key[1:]))}: {values} ({value:.2g}){why}")
    return not missing and on_purpose == moved.keys()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("verb", choices=["make", "check"])
    parser.add_argument("--jobs", type=int, default=2, help="tasks at a time, one thread each")
    parser.add_argument("--task", action="append", choices=COMMANDS, help="only this; repeatable")
    given = parser.parse_args()
    tasks = given.task or list(COMMANDS)
    with BASELINE.open(encoding="utf-8", newline="") as file:
        stored = [Row(*line) for line in list(csv.reader(file))[1:]]
    if given.verb == "make":
        with old_tree() as tree:
            rows = measure_all(tree, tasks, given.jobs, old=True)
        rows = sorted([*rows, *(row for row in stored if row.task not in tasks)])
        with BASELINE.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([Row._fields, *rows])
        return 0
    levels = (row._replace(level=RENAMED.get(row[:2], row.level)) for row in stored)
    old = [row._replace(method=row.method.replace("told: ", "gaps known: ")) for row in levels]
    new = measure_all(ROOT, tasks, given.jobs)
    same = [compare(task, old, new) for task in tasks]  # prints all of them
    return 0 if all(same) else 1


if __name__ == "__main__":
    sys.exit(main())
