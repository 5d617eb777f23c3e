"""`predict`: predictions for files, in their order, from the experiment folder alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, get_args

from torch import Tensor

from it3_core.batching import count, take
from it3_core.errors import IT3Error
from it3_core.evaluation.evaluate import Predictor
from it3_core.experiment import Adapt
from it3_core.experiment.lines import PRIOR, online_it3
from it3_core.experiment.types import Answers, Experiment, Item, Json, Network, Prediction, Reader
from it3_core.methods.base import Adaptation, Method
from it3_core.methods.batch_statistics import BatchStatistics
from it3_core.methods.it3 import IT3
from it3_core.methods.source import Source


def predict(
    experiment: Experiment, reader: Reader, paths: Sequence[Path], *, adapt: Adapt = "auto"
) -> Iterator[Prediction]:
    """One prediction an item, in the order of the paths; what can't be read has a problem.

    Args:
        experiment: whose first network predicts.
        reader: how files become inputs, and predictions words.
        paths: files, folders, or what else the reader takes.
        adapt: what to do at test time.
    """
    network = experiment.first
    method = reader.wrap(method_for(network, adapt))
    plain = reader.wrap(Source(network.model, network.adapter))
    items = chain.from_iterable(reader.read(path) for path in paths)
    for part in _evenly(items, 1 if adapt == "instance" else reader.batch_size):
        found = [Prediction(item, problem=item.problem) for item in part]
        if good := [one for one in found if one.problem is None]:
            _fill(network, reader, plain, method, good)
        for one in found:
            if one.problem is None and reader.verify is not None:
                truth = reader.verify(one.item.value)
                one.truth, one.solver, one.problem = truth.values, truth.solver, truth.problem
            if one.output is not None and reader.write is not None:
                reader.write(one)
            yield one


def _fill(
    network: Network, reader: Reader, plain: Predictor, method: Predictor, found: list[Prediction]
) -> None:
    """Predicts for these items, as one batch."""
    x = reader.batch(network, [one.item.value for one in found])
    # A method on the batch's statistics has another first prediction than the network as it is, and
    # another error than those that trust was fitted to.
    first, last = plain(x), method(x)
    assert isinstance(first, Adaptation)
    output = last.prediction if isinstance(last, Adaptation) else last
    errors = first.error_before
    percentiles, flags = network.trust.percentile(errors), network.trust.flag(errors)
    columns = [columns_of(network.answers, one) for one in (first.prediction, output)]
    for row, one in enumerate(found):
        one.first_output, one.output = take(first.prediction, [row]), take(output, [row])
        one.initial, one.values = (_fields(network, some, row) for some in columns)
        one.percentile, one.flagged = float(percentiles[row]), bool(flags[row])
        one.adapted = one.initial != one.values


def _fields(network: Network, columns: Mapping[str, Tensor], row: int) -> dict[str, Any]:
    fields: dict[str, Any] = {name: values[row].item() for name, values in columns.items()}
    if network.answers.classes:
        fields["prediction"] = network.answers.classes[int(fields["prediction"])]
    return fields


def columns_of(answers: Answers, output: Any, word: str = "prediction") -> dict[str, Tensor]:
    """A number a row: `prediction` and a class's `probability`, or each quantity by name.

    With another word, such as `truth`, they are named by it.
    """
    if answers.classes and output.dim() == 1:
        found = {"prediction": output}
    elif answers.classes:
        best = output.softmax(1).max(1)
        found = {"prediction": best.indices, "probability": best.values}
    else:
        names = [one.name for one in answers.quantities]
        names = names if len(names) > 1 else ["prediction"]
        found = dict(zip(names, answers.values(output).unbind(1), strict=True))
    return {_named(name, word): values for name, values in found.items()}


def _named(name: str, word: str) -> str:
    if word == "prediction":
        return name
    return {"prediction": word, "probability": f"{word}_probability"}.get(name, f"{name}_{word}")


def in_words(describe: Callable[[Json], str], one: Prediction) -> str:
    """A prediction as people read it; `describe` says what the network predicts."""
    before = f" (before adaptation {describe(one.initial)})" if one.adapted else ""
    unusual = ", unusual" if one.flagged else ""
    text = f"{one.item.name}: {describe(one.values)}{before}"
    return f"{text}; percentile {one.percentile:.1f}{unusual}"


def as_json(one: Prediction) -> dict[str, Any]:
    """A prediction as `--json` prints it."""
    if one.percentile is None:
        return {"name": one.item.name, "problem": one.problem}
    found = {
        "name": one.item.name,
        **one.values,
        **{_named(k, "initial"): v for k, v in one.initial.items()},
    }
    found |= {"percentile": one.percentile, "flagged": one.flagged, "adapted": one.adapted}
    if one.solver is not None:
        found["solver"] = one.solver
    if one.truth is not None:
        found["truth"] = one.truth.get("prediction", dict(one.truth))
        errors = {k: one.values[k] - v for k, v in one.truth.items() if k in one.values}
        found["error"] = errors.get("prediction", errors)
    found |= one.item.fields or {}
    if one.problem is not None:
        found["problem"] = one.problem
    return {k: round(v, 6) if isinstance(v, float) else v for k, v in found.items()}


def _evenly(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Batches of at most `size`, the last two of equal length: one image has no statistics."""
    waiting: list[Item] = []
    for item in items:
        waiting.append(item)
        if len(waiting) >= 2 * size:
            yield waiting[:size]
            waiting = waiting[size:]
    half = -(-len(waiting) // 2) if len(waiting) > size else len(waiting)
    yield from filter(None, (waiting[:half], waiting[half:]))


class ByBatchSize:
    """The method that was chosen for the largest batch since `reset`.

    So the last, smaller batch of a level is adapted as the others were.
    """

    def __init__(self, methods: Mapping[int, Method], fewer: Method) -> None:
        self.methods, self.fewer, self.most = dict(sorted(methods.items())), fewer, 0

    def __call__(self, x: Any) -> Adaptation:
        self.most = max(self.most, count(x))
        fitting = [method for size, method in self.methods.items() if size <= self.most]
        return (fitting[-1] if fitting else self.fewer)(x)

    def reset(self) -> None:
        """Forgets what came before."""
        self.most = 0
        for method in (self.fewer, *self.methods.values()):
            method.reset()


def method_for(network: Network, adapt: Adapt) -> Method:
    """The method that `--adapt` names, for this network."""
    model, adapter = network.model, network.adapter
    if adapt not in get_args(Adapt):
        raise IT3Error(f"adapt is one of {', '.join(get_args(Adapt))}, not {adapt!r}")
    if adapt == "auto":
        methods = {size: one.build(model, adapter) for size, one in network.tunings.items()}
        return ByBatchSize(methods, Source(model, adapter))
    if adapt == "none":
        return Source(model, adapter)
    if adapt == "statistics":
        return BatchStatistics(model, adapter, prior=PRIOR)
    chosen = [one.chosen for one in network.tunings.values() if one.chosen.method == "IT3"]
    settings: dict[str, Any] = dict(chosen[0].settings) if chosen else {"lr": 2e-4}
    if adapt == "online":
        return online_it3(network, **settings)
    if adapt == "instance":
        settings["norm"] = "source"
    return IT3(model, adapter, **settings, per_instance=adapt == "instance")
