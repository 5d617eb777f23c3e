"""`predict`: predictions for files, in their order, from the experiment folder alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
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
from it3_core.methods.base import Adaptation, Method, answered
from it3_core.methods.batch_statistics import BatchStatistics
from it3_core.methods.it3 import IT3
from it3_core.methods.source import Source
from it3_core.scores.answers import Idempotence
from it3_core.scores.passes import UncertaintyScore
from it3_core.trust.calibration import Trust
from it3_core.trust.conformal import Predictor as CalibratedPredictor

_ENDS = ("lower", "upper")
_LEAST = 9  # calibration rows that a coverage of 0.9 needs


def predict(
    experiment: Experiment,
    reader: Reader,
    paths: Sequence[Path],
    *,
    adapt: Adapt = "auto",
    coverage: float | None = None,
) -> Iterator[Prediction]:
    """One prediction an item, in the order of the paths; what can't be read has a problem.

    Args:
        experiment: whose first network predicts.
        reader: how files become inputs, and predictions words.
        paths: files, folders, or what else the reader takes.
        adapt: what to do at test time.
        coverage: of the intervals, or sets, that `auto` has; by default 0.9, where there are rows
            enough for it.
    """
    network = experiment.first
    method = reader.wrap(method_for(network, adapt))
    plain = reader.wrap(Source(network.model, network.adapter))
    items = chain.from_iterable(reader.read(path) for path in paths)
    sizes = network.sizes if adapt == "auto" else []
    if coverage is not None and adapt == "auto":
        network.predictors["row"]._limit(coverage)  # before any work
    size = 1 if adapt == "instance" else reader.batch_size
    for part in _in_sizes(items, sizes) if sizes else _evenly(items, size):
        found = [Prediction(item, problem=item.problem) for item in part]
        if good := [one for one in found if one.problem is None]:
            _fill(network, reader, plain, method, good, adapt == "auto", coverage)
        for one in found:
            if one.problem is None and reader.verify is not None:
                truth = reader.verify(one.item.value)
                one.truth, one.solver, one.problem = truth.values, truth.solver, truth.problem
            if one.output is not None and reader.write is not None:
                reader.write(one)
            yield one


def _fill(
    network: Network, reader: Reader, plain: Predictor, method: Predictor,
    found: list[Prediction], calibrated: bool, coverage: float | None,
) -> None:  # fmt: skip
    """Predicts for these items, as one batch."""
    x = reader.batch(network, [one.item.value for one in found])
    # A method on the batch's statistics has another first prediction than the network as it is, and
    # another error than those that trust was fitted to.
    first, last = plain(x), method(x)
    assert isinstance(first, Adaptation)
    output = last.prediction if isinstance(last, Adaptation) else last
    predictor = network.predictor(len(found))
    scores, trust = doubts(predictor, x, first, reader.wrap), trust_of(predictor, network)
    percentiles, flags = trust.percentile(scores), trust.flag(scores)
    intervals: dict[str, Tensor] = {}
    if calibrated and isinstance(last, Adaptation):
        intervals = interval_of(network.answers, predictor, last, scores, coverage)
    columns = [columns_of(network.answers, one) for one in (first.prediction, output)]
    for row, one in enumerate(found):
        one.first_output, one.output = take(first.prediction, [row]), take(output, [row])
        one.initial, one.values = (_fields(network, some, row) for some in columns)
        one.percentile, one.flagged = float(percentiles[row]), bool(flags[row])
        one.adapted = one.initial != one.values
        if isinstance(last, Adaptation):
            one.adapted = bool(last.adapted[row])
        one.interval = {name: values[row].tolist() for name, values in intervals.items()}
        if (likely := one.interval.pop("probability", None)) is not None:
            one.values = {**one.values, "probability": likely}
        if "prediction_set" in one.interval:
            inside = zip(network.answers.classes, one.interval["prediction_set"], strict=True)
            one.interval = {"prediction_set": [name for name, is_in in inside if is_in]}


def doubts(
    predictor: CalibratedPredictor, x: Any, first: Adaptation,
    wrap: Callable[[Predictor], Predictor],
) -> Tensor:  # fmt: skip
    """How doubtful the source's answers are, by the score that was chosen."""
    score = predictor.score
    if not isinstance(score, UncertaintyScore) or isinstance(score, Idempotence):
        return first.error_before

    def scored(x: Any) -> Adaptation:
        passes = score.observe(x)
        return replace(answered(passes), before=score.of(passes).detach())

    found = wrap(scored)(x)
    assert isinstance(found, Adaptation)
    return found.error_before


def trust_of(predictor: CalibratedPredictor, network: Network) -> Trust:
    """Which of these scores are usual."""
    return predictor.trust or network.trust


def interval_of(
    answers: Answers, predictor: CalibratedPredictor, found: Adaptation, scores: Tensor,
    coverage: float | None,
) -> dict[str, Tensor]:  # fmt: skip
    """Ends of each number's interval, or sets and probabilities; nothing without rows for it."""
    rows = 0 if predictor.misses is None else len(predictor.misses)
    if not isinstance(found.prediction, Tensor) or (coverage is None and rows < _LEAST):
        return {}
    said = predictor.of(found, scores, 0.9 if coverage is None else coverage)
    if said.prediction_set is not None and said.probability is not None:
        return {"probability": said.probability.amax(1), "prediction_set": said.prediction_set}
    ends = {"lower": said.lower, "upper": said.upper}
    return {
        name if key == "prediction" else f"{key}_{name}": values
        for name, end in ends.items() if end is not None
        for key, values in columns_of(answers, end).items()
    }  # fmt: skip


def _in_sizes(items: Iterable[Item], sizes: Sequence[int]) -> Iterator[list[Item]]:
    """Batches of the sizes that something was chosen for; what is left over is one batch."""
    waiting: list[Item] = []
    for item in items:
        waiting.append(item)
        if len(waiting) == sizes[0]:
            yield waiting
            waiting = []
    for size in sizes:
        while len(waiting) >= size:
            yield waiting[:size]
            waiting = waiting[size:]
    if waiting:
        yield waiting


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
    inside = ""
    if "lower" in one.interval:
        ends = [describe({**one.values, "prediction": one.interval[end]}) for end in _ENDS]
        inside = f" ({ends[0]} to {ends[1]})"
    elif "prediction_set" in one.interval:
        inside = f" {{{', '.join(one.interval['prediction_set'])}}}"
    text = f"{one.item.name}: {describe(one.values)}{inside}{before}"
    return f"{text}; percentile {one.percentile:.1f}{unusual}"


def as_json(one: Prediction) -> dict[str, Any]:
    """A prediction as `--json` prints it."""
    if one.percentile is None:
        return {"name": one.item.name, "problem": one.problem}
    found = {
        "name": one.item.name,
        **one.values,
        **{_named(k, "initial"): v for k, v in one.initial.items()},
        **one.interval,
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
    """What was chosen for batches of just this size, or for each row."""

    def __init__(self, network: Network) -> None:
        self.network = network

    def __call__(self, x: Any) -> Adaptation:
        return self.network.predictor(count(x)).method(x)

    def reset(self) -> None:
        """Forgets what came before."""
        for one in self.network.predictors.values():
            one.method.reset()


def method_for(network: Network, adapt: Adapt) -> Method:
    """The method that `--adapt` names, for this network."""
    model, adapter = network.model, network.adapter
    if adapt not in get_args(Adapt):
        raise IT3Error(f"adapt is one of {', '.join(get_args(Adapt))}, not {adapt!r}")
    if adapt == "auto":
        return ByBatchSize(network)
    if adapt == "none":
        return Source(model, adapter)
    if adapt == "statistics":
        return BatchStatistics(model, adapter, prior=PRIOR)
    chosen = [one.chosen for one in network.tunings.values() if one.chosen.method == "IT3"]
    settings: dict[str, Any] = dict(chosen[0].settings) if chosen else {"lr": 2e-4}
    settings.pop("per_instance", None)
    if adapt == "online":
        return online_it3(network, **settings)
    if adapt == "instance":
        settings["norm"] = "source"
    return IT3(model, adapter, **settings, per_instance=adapt == "instance")
