"""The commands of `it3-tabular`; each imports what it needs when it runs."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from it3_core.errors import IT3Error
from it3_core.experiment.verbs import Overwrite, Positive, Quiet, Seed, application
from it3_tabular import __version__

app = application(
    "it3-tabular",
    """IT³ (idempotent test-time training) for tables: rows of numbers, with gaps.

A small network learns to predict a column and how unusual a row is. It adapts to the rows that it
predicts if that helped on validation rows.

Example: it3-tabular demo""",
    f"it3-tabular {__version__}",
)

MODEL = "model.safetensors"
Adapt = Literal["auto", "instance", "batch", "online", "none"]


@app.command
def demo(*, seed: Seed = 0) -> None:
    """Train on the Energy set in the package, damage its test rows, and predict them.

    Takes a few seconds and needs no files. The table shows the mean absolute error (heating load
    in kWh/m²) without adaptation and with what `auto` chose, and how many rows are flagged.

    Example: it3-tabular demo --seed 1
    """
    import numpy as np

    from it3_tabular.estimators import IT3Regressor
    from it3_tabular.uci import load_energy

    _use_one_thread()
    x, y = load_energy()
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(y))
    train, test = order[:614], order[614:]
    print("Training on 614 of the 768 buildings of the UCI Energy Efficiency set …")
    model = IT3Regressor(random_state=seed, verbose=True).fit(x[train], y[train])
    lost = generator.random(x[test].shape) < 0.2
    noise = generator.normal(size=x[test].shape) * 0.3 * x[train].std(0)
    damages = {
        "none": x[test],
        "20 % of the values missing (NaN)": np.where(lost, np.nan, x[test]),
        "20 % of the values replaced by the mean": np.where(lost, x[train].mean(0), x[test]),
        "noise of 0.3 standard deviations": x[test] + noise,
        "wrong unit: heights in feet": x[test] * np.where(np.arange(8) == 4, 3.28, 1.0),
    }
    print(f"{'damage of the 154 test rows':41}{'error':>8}{'with auto':>11}{'flagged':>9}")
    for damage, rows in damages.items():
        found = model.predict_full(rows)
        initial, auto = (
            np.abs(part - y[test]).mean() for part in (found.initial, found.prediction)
        )
        print(f"{damage:41}{initial:8.2f}{auto:11.2f}{100 * found.flagged.mean():7.0f} %")
    print(f"auto: {model.tuning_}")
    print("About 5 % of undamaged rows are flagged by design. Missing values are imputed.")


@app.command
def train(
    file: Path,
    /,
    *,
    target: str,
    out: Path,
    task: Literal["auto", "regression", "classification"] = "auto",
    adapt: Adapt = "auto",
    hidden: str = "30,20,10",
    epochs: Positive = 200,
    seed: Seed = 0,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Train on a table; all columns but the target are features.

    Every feature must be a number. Missing values are allowed: an empty cell, NA, NaN, null or ?.
    Writes OUT/model.safetensors.

    Example: it3-tabular train houses.csv --target price --out experiment

    Args:
        file: CSV or Parquet; the first line names the columns.
        target: Name of the column to predict.
        out: Folder for the model; made if it does not exist.
        task: auto: classification if the target is text.
        adapt: How predictions adapt. auto: as did best on validation rows, or not at all. instance:
            to each row alone. batch: to 8 rows at once. online: the same without a reset between
            batches. none: not at all.
        hidden: Widths of the hidden layers.
        epochs: Epochs at most; training stops early.
    """
    import numpy as np

    from it3_core.io.output import open_output
    from it3_tabular.estimators import IT3Classifier, IT3Regressor
    from it3_tabular.tables import read_table

    _use_one_thread()
    if not re.fullmatch(r"[1-9]\d{0,3}(,[1-9]\d{0,3})*", hidden, re.ASCII):
        raise IT3Error(f"--hidden must be widths from 1 to 9999 such as 30,20,10, not {hidden!r}")
    widths = tuple(map(int, hidden.split(",")))
    names, x, y, classes = read_table(file, target, task)
    settings = {"task": task, "adapt": adapt, "hidden": widths, "epochs": epochs, "seed": seed}
    folder = open_output(
        out,
        "tabular train",
        {"target": target, **settings, "columns": names},
        files=[MODEL],
        inputs=[file],
        overwrite=overwrite,
    )
    model = (IT3Classifier if classes else IT3Regressor)(
        widths,
        adapt=None if adapt == "none" else adapt,
        max_iter=epochs,
        random_state=seed,
        verbose=not quiet,
    ).fit(x, y)
    model.feature_names_in_ = np.array(names, dtype=object)
    with folder.writing(MODEL) as path:
        model.save(path)
    kind = "classes" if classes else "a number"
    print(f"{len(y):,} rows, {len(names)} features, predicting {kind}: {target}")
    if (error := model.validation_error_) is None:
        print("fewer than 40 rows: none is left for validation, and the error is not known")
    else:
        shown = f"{100 * error:.1f} % wrong" if classes else f"mean absolute error {error:.4g}"
        print(f"validation rows: {shown}, after {model.n_iter_} epochs")
    print(*filter(None, [model.tuning_, f"wrote {out / MODEL}"]), sep="\n")


@app.command
def predict(
    experiment: Path,
    file: Path,
    /,
    *,
    out: Path,
    adapt: Adapt | None = None,
    coverage: Annotated[float, Parameter(validator=Number(gt=0, lt=1))] = 0.9,
    keep: bool = False,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Predict the rows of a file, which may be larger than memory.

    Writes a CSV with a line for each row, in the same order: `prediction`; `initial`, without
    adaptation; `lower` and `upper` of numbers, `prediction_set` and `probability` of classes;
    `percentile`, more doubtful than this percentage of calibration rows; `flagged`, 1 above the
    95th; `adapted`, 1 where the gate opened. Columns are found by name, in any order; those that
    the model does not use are ignored.

    Example: it3-tabular predict experiment new.csv --out predicted.csv

    Args:
        experiment: Folder that train made, or a model file.
        file: CSV or Parquet with the training columns.
        out: CSV to write.
        adapt: Instead of what the model was trained with.
        coverage: Of the intervals, or sets.
        keep: Copy the columns of the file, too.
    """
    import numpy as np
    import pandas as pd

    from it3_core.io.files import csv_bytes, writing
    from it3_core.io.output import MARKER, inside, output_file
    from it3_core.io.progress import Progress
    from it3_core.io.typed import printable
    from it3_tabular import tables
    from it3_tabular.estimators import Full
    from it3_tabular.storage import load

    _use_one_thread()
    path = inside(experiment, MODEL) if experiment.is_dir() else experiment
    if not path.exists():
        raise IT3Error(f"there is no model {path}: name a folder that train made")
    home = Path(os.path.realpath(path)).parent
    whole = home if (home / MARKER).exists() else None
    output_file(out, overwrite=overwrite, inputs=[file, path], experiment=whole)
    model = load(path)
    if adapt is not None:
        model.set_params(adapt=None if adapt == "none" else adapt)
    present = tables.column_names(file)
    wanted = tables.model_columns(model, file, present)
    copied = present if keep else []
    if clash := [name for name in copied if name in Full._fields]:
        raise IT3Error(f"{file} has a column {clash[0]!r} of its own: leave out --keep")
    method, size = model.method(), model.batch_size_adapt
    rows = flagged = 0
    bar = Progress(1000, "predict", shown=not quiet)
    with writing(out) as stream:
        for chunk in tables.read_chunks(file, size * max(1, tables.CHUNK // size)):
            found = model.full(tables.numbers(chunk, wanted, file), method, coverage)
            columns = {name: chunk.cells.column(name).to_pylist() for name in copied}
            for name, values in found._asdict().items():
                if values is None:
                    continue
                if name == "prediction_set":  # as the classes' names
                    values = np.array(["|".join(map(str, model.classes_[row])) for row in values])
                values = values.astype(int) if values.dtype.kind == "b" else values
                columns[name] = np.char.mod("%.9g", values) if values.dtype.kind == "f" else values
            frame = pd.DataFrame(columns, dtype=object)
            stream.write(csv_bytes(frame, header=not rows))
            rows += len(frame)
            flagged += int(found.flagged.sum())
            bar.show(round(1000 * chunk.position), f"{rows:,} rows")
        if not rows:
            raise IT3Error(f"{file} has a header but no rows")
    bar.close()
    flags = f"{100 * flagged / rows:.1f} % flagged (of rows like the training rows about 5 %)"
    print(f"{rows:,} rows, {flags}")
    used = set(wanted)
    if unused := [name for name in present if name not in used]:
        print(f"columns not used: {printable(', '.join(unused))}")
    print(f"wrote {out}")


@app.command
def evaluate(
    *,
    out: Path,
    data: Path | None = None,
    sets: str = "bostonHousing,energy,concrete,wine-quality-red",
    splits: Positive = 20,
    epochs: Positive = 200,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Measure all methods as the paper does: features zeroed with p = 5, 10, 15, 20 %.

    Each data set is a folder with `data.txt`, `index_features.txt`, `index_target.txt` and
    `index_train_K.txt`, `index_test_K.txt` of split K. An interrupted evaluation continues.

    Example: it3-tabular evaluate --data uci --out results

    Args:
        out: Folder for records, table.md and PNGs.
        data: Folder with a folder for each data set; $IT3_DATA/uci by default.
        sets: Names of data sets, separated by commas.
        splits: How many of the standard splits.
        epochs: Epochs at most, for each network.
    """
    from it3_core.io.output import open_output
    from it3_core.io.progress import Progress
    from it3_tabular.protocol import evaluate_split, write_report
    from it3_tabular.uci import load_uci

    _use_one_thread()
    if data is None and "IT3_DATA" not in os.environ:
        raise IT3Error("name the folder of the data sets with --data, or set IT3_DATA")
    root = data or Path(os.environ["IT3_DATA"], "uci")
    folders = [root / name.strip() for name in dict.fromkeys(sets.split(","))]
    found = [load_uci(folder) for folder in folders]
    names = [each.name for each in found]
    pictures = [f"{name}-{kind}.png" for name in names for kind in ("boxes", "differences")]
    stores = [f"{name}{end}.jsonl" for name in names for end in ("", "-trust")]
    if len(set(stores)) < len(stores):
        raise IT3Error(f"two data sets would share an output ({', '.join(names)}): rename one")
    folder = open_output(
        out,
        "tabular evaluate",
        {"epochs": epochs},
        files=["table.md", *pictures],
        inputs=folders,
        overwrite=overwrite,
    )
    work = [(each, number) for each in found for number in range(min(splits, len(each.splits)))]
    bar = Progress(len(work), "evaluate", shown=not quiet)
    for done, (each, number) in enumerate(work):
        bar.show(done, f"{each.name}, split {number}")
        folder.reserve(f"{each.name}.jsonl")
        folder.reserve(f"{each.name}-trust.jsonl")
        folder.reserve(f"{each.name}-paper.jsonl")
        evaluate_split(each, number, out, max_iter=epochs)
    bar.close()
    command = f"it3-tabular evaluate --sets {','.join(names)} --splits {splits} --out {out.name}"
    print(write_report(folder, names, command))


def _use_one_thread() -> None:
    """With networks as small as these, threads wait more than they work."""
    import torch
    from threadpoolctl import threadpool_limits

    threadpool_limits(1)
    torch.set_num_threads(1)
