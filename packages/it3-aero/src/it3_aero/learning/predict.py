"""Answers for shapes in files: before and after adaptation, and how unusual each shape is."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from it3_aero.learning.runs import Run
from it3_aero.learning.task import Ask, Task
from it3_aero.names import shown
from it3_core import IT3, IT3Error, Method, Source
from it3_core.files import write_figure

__all__ = ["Adapt", "Prediction", "answer", "draw", "method_for", "predict", "verify"]

Adapt = Literal["auto", "instance", "batch", "none"]
"""What tuning chose; IT³ on each shape alone; IT³ on all shapes together; nothing."""

BATCH = 32
"""Shapes that are answered together."""


@dataclass
class Prediction:
    """What is said about one shape: numbers, or a problem.

    Attributes:
        task: what kind of shape.
        name: the shape's, or the file's where it could not be read.
        before: the answer as the network says at first.
        after: the answer after adaptation.
        error: idempotence error before adaptation, in standard deviations of the training labels.
        percentile: the share of the training shapes, in percent, whose error is smaller.
        flagged: whether that is more than the RUN's trust allows.
        problem: why there is no answer.
        truth: what a solver says, where it was asked.
        solver: which one.
        shape: what was read, for drawing.

    Example:
        >>> from it3_aero.wings.task import WINGS
        >>> Prediction(WINGS, "wing.dat", problem="wing.dat: no such file").as_json()
        {'name': 'wing.dat', 'problem': 'wing.dat: no such file'}
        >>> print(Prediction(WINGS, "a", 41.26, 42.1, 0.31, 98.7, flagged=True))
        a: L/D 41.3 before, 42.1 after; more unusual than 98.7 % of the training shapes (!)
    """

    task: Task
    name: str
    before: float | None = None
    after: float | None = None
    error: float | None = None
    percentile: float | None = None
    flagged: bool = False
    problem: str | None = None
    truth: float | None = None
    solver: str | None = None
    shape: Any = None

    def as_json(self) -> dict[str, Any]:
        """As `--json` prints it."""
        if self.before is None:
            return {"name": self.name, "problem": self.problem}
        keys = ["name", "before", "after", "error", "percentile"]
        if self.solver is not None:
            keys += ["solver", "truth", "difference"]
        if self.problem is not None:
            keys.append("problem")
        found = {key: getattr(self, key) for key in keys}
        return {k: round(v, 6) if isinstance(v, float) else v for k, v in found.items()}

    @property
    def difference(self) -> float | None:
        """The adapted answer minus the solver's."""
        if self.after is None or self.truth is None:
            return None
        return self.after - self.truth

    def __str__(self) -> str:
        if self.before is None:
            return f"{self.name}: {self.problem}"
        said = self.task.said
        text = (
            f"{self.name}: {self.task.quantity} {said(self.before)} before, "
            f"{said(self.after or 0.0)} after; more unusual "
            f"than {self.percentile:.1f} % of the training shapes{' (!)' if self.flagged else ''}"
        )
        if self.difference is not None and self.truth is not None:
            off = said(self.difference, sign="+")
            text += f"; {self.solver} says {said(self.truth)}, we are off by {off}"
        elif self.problem is not None:
            text += f"; not verified: {self.problem}"
        return text


def predict(
    run: Run,
    files: Sequence[str | os.PathLike[str]],
    read: Callable[[Path], Any],
    adapt: Adapt = "auto",
) -> list[Prediction]:
    """An answer for each file, in their order; a file that can't be read gets a problem instead.

    Example:
        >>> predict.__module__
        'it3_aero.learning.predict'
    """
    shapes: dict[int, Any] = {}
    found: list[Prediction] = []
    for number, file in enumerate(files):
        try:
            shapes[number] = read(Path(file))
            found.append(Prediction(run.task, ""))
        except IT3Error as problem:
            found.append(Prediction(run.task, shown(Path(file).name), problem=str(problem)))
    for number, one in zip(shapes, answer(run, list(shapes.values()), adapt), strict=True):
        found[number] = one
    return found


def answer(run: Run, shapes: Sequence[Any], adapt: Adapt = "auto") -> list[Prediction]:
    """The same for shapes that are already here."""
    method = method_for(run, adapt)
    answers: list[Prediction] = []
    task = run.task
    for start in range(0, len(shapes), BATCH):
        batch = shapes[start : start + BATCH]
        got = method(task.inputs([task.graph(shape, run.nodes) for shape in batch]))
        errors = got.error_before
        columns = (
            got.initial.flatten(),
            got.prediction.flatten(),
            errors,
            run.trust.percentile(errors),
            run.trust.flag(errors),
        )
        rows = zip(*(column.tolist() for column in columns), strict=True)
        for shape, (before, after, error, percentile, flagged) in zip(batch, rows, strict=True):
            name = shown(shape.name)
            answers.append(
                Prediction(task, name, before, after, error, percentile, flagged, shape=shape)
            )
    return answers


def method_for(run: Run, adapt: Adapt) -> Method:
    """The method that `--adapt` names, for this RUN's network."""
    if adapt not in get_args(Adapt):
        raise IT3Error(f"adapt is one of {', '.join(get_args(Adapt))}, not {adapt!r}")
    if adapt == "auto":
        return run.method()
    if adapt == "none":
        return Source(run.model, run.adapter)
    settings: dict[str, Any] = {"lr": 2e-4}
    if run.tuning.chosen.method == "IT3":
        settings = dict(run.tuning.chosen.settings)
    settings["per_instance"] = adapt == "instance"
    return IT3(run.model, run.adapter, **settings)


def verify(
    predictions: Sequence[Prediction], ask: Ask, done: Callable[[], object] = lambda: None
) -> None:
    """Asks a solver about every answered shape, and writes down what it says, or why it can't."""
    for prediction in predictions:
        if prediction.shape is not None:
            prediction.solver, prediction.truth, problem = ask(prediction.shape)
            if problem is not None:
                prediction.problem = f"{prediction.solver} has no answer: {problem}"
        done()


def draw(predictions: Sequence[Prediction], path: str | os.PathLike[str]) -> None:
    """The answered shapes with their numbers, as a picture: PNG, SVG or PDF by the file's name."""
    from matplotlib.figure import Figure

    shapes = [prediction for prediction in predictions if prediction.shape is not None]
    if not shapes:
        raise IT3Error("there is no answered shape to draw")
    columns = min(3, len(shapes))
    rows = -(-len(shapes) // columns)
    figure = Figure(figsize=(4.2 * columns, 2.1 * rows + 0.3), layout="constrained")
    for index, prediction in enumerate(shapes):
        axes = figure.add_subplot(rows, columns, index + 1)
        colour = "#c2410c" if prediction.flagged else "#0f766e"
        prediction.task.sketch(axes, prediction.shape, colour)
        axes.set_axis_off()
        said, quantity = prediction.task.said, prediction.task.quantity
        says = f", {prediction.solver} {said(prediction.truth)}" if prediction.truth else ""
        axes.set_title(
            f"{prediction.name[:40]}\n{quantity} {said(prediction.before or 0.0)} → "
            f"{said(prediction.after or 0.0)}{says}; {prediction.percentile:.1f} %",
            fontsize=9,
            parse_math=False,
        )
    write_figure(path, figure, dpi=150)
