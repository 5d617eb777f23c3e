"""Choosing a method, a score and a cap, or no adaptation, on rows that choose and nothing else.

Harm is bounded by how `Gated` is built, so that nothing has to be certified: of what may be had
at the bound, the pair is taken that gains most under synthetic shifts and on extrapolation splits.
Two questions are kept apart: which score finds wrong answers, and which finds shifted inputs. The
rows that choose, those that set the threshold and those of intervals are never the same.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from it3_core.batching import Data, count, inputs_of, take, whole
from it3_core.errors import IT3Error, IT3Warning
from it3_core.io.progress import Progress
from it3_core.methods.gated import Gate, Unit, fewest, unit_scores
from it3_core.model.adapters import Adapter
from it3_core.trust.candidates import (
    Candidate,
    ScoreKind,
    Tuning,
    default_candidates,
    default_scores,
)
from it3_core.trust.trials import (
    Pair,
    Seen,
    Trial,
    answers_of,
    between,
    caps_for,
    gating,
    look,
    paired,
    possible,
    questions,
    typical,
)

_PAIRS = 12  # of a method and a score, that are tried at most
_CHOOSE = 0.25  # of the rows, where one set both chooses and sets the threshold
_FEWEST = 8  # rows to choose by
_LEAST_GAIN = 0.01  # a smaller one is not worth a method
_SPLIT = "extrapolation split"


class ExtrapolationSplit(NamedTuple):
    """A network like the one to tune, trained without an end of the labels, and that end."""

    model: nn.Module
    x: Any
    y: Tensor
    train: Any = None  # rows that it was trained on, for scores that learn from them


def tune(
    model: nn.Module,
    adapter: Adapter,
    data: Data,
    *,
    shifts: Mapping[str, Callable[[Any], Any]] | None = None,
    thresholds: Any = None,
    extrapolation: ExtrapolationSplit | Sequence[ExtrapolationSplit] | None = None,
    candidates: Sequence[Candidate] | None = None,
    scores: Sequence[ScoreKind] | None = None,
    train: Any = None,
    layer: str | None = None,
    unit: Unit = "row",
    max_harm: float = 0.02,
    confidence: float | None = None,
    groups: Sequence[Any] | Tensor | None = None,
    seed: int = 0,
    progress: bool = True,
) -> Tuning:
    """Chooses a method behind a gate, or none, and the score that says which answers are doubtful.

    A pair of method and score is ranked by its gain under the shifts, and on the extrapolation
    split, which weighs as much as all of them. In distribution it does no more harm than `max_harm`
    by the way that `Gated` is built: its false-positive rate is `max_harm` / cap, with a cap of
    0.5, 1, 2, 4 or 8 mean errors (shares of a batch, up to 1, for classes), as the number of
    threshold units allows.

    Args:
        model: the trained network, with a signal or without.
        adapter: what kind of answer it gives; its `error` is what counts.
        data: rows with labels that the network was not fitted to.
        shifts: what might happen to inputs, by name: each takes `x` and returns it shifted. Each
            is applied once.
        thresholds: further inputs, without labels, that set the threshold. Without them a quarter
            of `data` chooses, and the rest sets it.
        extrapolation: for regression, an `ExtrapolationSplit`, or several networks' of the same
            rows.
        candidates: methods to try; by default `default_candidates(model, unit)`.
        scores: to choose from; by default `default_scores(model, adapter, layer)`.
        train, layer: training rows, and the layer, for scores of features.
        unit: what a gate opens for: `"row"`, or the size of the batches that come at test time.
        max_harm: relative to the source's mean absolute error for numbers; for classes and maps
            the share of answers that may change.
        confidence: see `Gate`.
        groups: of each row of `data`; rows of one group (a person, a scene) stay together.
        seed: of the split of `data`.
        progress: whether to show on standard error how far it is.

    Example:
        >>> import torch
        >>> from it3_core import Regression, tune, widen
        >>> _ = torch.manual_seed(0)
        >>> adapter, x = Regression(), torch.randn(128, 3)
        >>> model = widen(torch.nn.Linear(3, 1), adapter)
        >>> _ = torch.nn.init.normal_(model.model.weight)  # stands in for training
        >>> noise = lambda x: x + 0.3 * torch.randn_like(x)
        >>> y = model(x, adapter.neutral(x)).detach()  # its own answers: nothing can be better
        >>> tuning = tune(model, adapter, (x, y), shifts={"noise": noise}, progress=False)
        >>> tuning.chosen.method, tuning.rows
        ('Source', {'choosing': 32, 'threshold': 96})
    """
    splits = [extrapolation] if isinstance(extrapolation, ExtrapolationSplit) else extrapolation
    splits, (x, y), shifts = list(splits or ()), whole(data), dict(shifts or {})
    _check(x, y, splits, shifts, max_harm, unit)
    if thresholds is None:
        chooses, rest = apart(len(y), [_CHOOSE, 1 - _CHOOSE], seed, groups)
        thresholds = take(x, rest)
        x, y = take(x, chooses), take(y, chooses)
    else:
        thresholds = inputs_of(thresholds)
    units = count(thresholds) if unit == "row" else count(thresholds) // unit
    kinds = list(default_scores(model, adapter, layer) if scores is None else scores)
    kinds = [kind for kind in kinds if train is not None or not kind.is_fitted]
    tries = list(default_candidates(model, unit) if candidates is None else candidates)
    trials = [Trial("clean", model, x, y, train)]
    trials += [Trial(name, model, shift(x), y, train) for name, shift in shifts.items()]
    names = [_SPLIT if n == 0 else f"{_SPLIT} {n + 1}" for n in range(len(splits))]
    trials += [Trial(name, *one) for name, one in zip(names, splits, strict=True)]
    with closing(Progress(len(trials) * (len(tries) + 1), "tune", progress)) as bar:
        seen: list[Seen] = []
        for done, trial in enumerate(trials):
            with _silent() if trial.name in names else nullcontext():
                if trial.name not in names:
                    one = look(trial, adapter, kinds, unit)
                    seen.append(replace(one, usual=seen[0] if seen else None))
                    continue
                rows = between(y, trial.y)  # what this network has seen, it takes for usual
                own = trial._replace(x=take(x, rows), y=y[rows], labels=y[rows])
                one = look(trial._replace(labels=y[rows]), adapter, kinds, unit)
                seen.append(replace(one, usual=look(own, adapter, kinds, unit)))
            bar.show(done + 1, f"scores, on {trial.name}")
        tuning = questions(Tuning(Candidate("Source"), "", unit), kinds, seen, adapter)
        tuning = replace(
            tuning, max_harm=max_harm, error=typical(adapter, seen[0]),
            rows={"choosing": len(y), "threshold": units},
        )  # fmt: skip
        caps = caps_for(adapter, unit, units, max_harm, confidence)
        pairs: list[Pair] = []
        gates = gating(tuning, kinds, max(1, _PAIRS // max(1, len(tries)))) if caps else []
        for number, candidate in enumerate(tries if gates else []):
            answers = []
            for done, (trial, one) in enumerate(zip(trials, seen, strict=True)):
                with _silent() if trial.name in names else nullcontext():
                    answers.append(answers_of(candidate, trial, adapter, one))
                at = (number + 1) * len(trials) + done + 1
                bar.show(at, f"{candidate}, on {trial.name}")
            for kind in gates:
                found = [paired(candidate, kind, cap, answers, seen, adapter, tuning, names)
                         for cap in caps]  # fmt: skip
                pairs.append(max(found, key=lambda pair: pair.gain))
    least = possible(adapter, unit)[0]
    tuning = _chosen(tuning, pairs, caps, units, confidence, least)
    fitted: dict[str, Tensor] = {}
    for name, wanted in (("opens", tuning.opens), ("doubt", tuning.doubt)):
        if wanted is not None:
            score = wanted.fit(model, adapter, train)
            fitted |= {f"{name}.{k}": v for k, v in wanted.tensors(score).items()}
            if name == "opens":
                gate = Gate.fit(
                    unit_scores(score, thresholds, unit), max_harm / tuning.cap, unit,
                    score=str(wanted), confidence=confidence,
                )  # fmt: skip
                tuning = replace(tuning, gate=gate)
    tuning = replace(tuning, tensors=fitted)
    return replace(tuning, method=tuning.build(model, adapter))


def apart(
    rows: int, shares: Sequence[float], seed: int = 0,
    groups: Sequence[Any] | Tensor | None = None,
) -> list[list[int]]:  # fmt: skip
    """Rows drawn into parts of these shares; those of one group stay together.

    Example:
        >>> [len(part) for part in apart(100, [0.25, 0.75])]
        [25, 75]
    """
    if groups is not None and len(groups) != rows:
        raise IT3Error(f"there are {rows} rows and {len(groups)} groups: name one for each row")
    marks = list(range(rows)) if groups is None else list(map(_mark, groups))
    names = list(dict.fromkeys(marks))
    drawn = torch.randperm(len(names), generator=torch.Generator().manual_seed(seed)).tolist()
    ends, total = [], 0.0
    for share in shares:
        total += share / sum(shares)
        ends.append(round(total * len(names)))
    part_of = {names[row]: sum(place >= end for end in ends) for place, row in enumerate(drawn)}
    return [[row for row in range(rows) if part_of[marks[row]] == n] for n in range(len(shares))]


def _mark(group: Any) -> Any:
    return group.item() if isinstance(group, Tensor) else group


def extrapolation_split(
    y: Tensor, fraction: float = 0.2, side: str = "upper"
) -> tuple[Tensor, Tensor]:
    """The rows to train on and the rows of the split, for `tune(extrapolation=…)`.

    Train a second network like the first on the former, and give it with the latter as an
    `ExtrapolationSplit`.

    Args:
        y: labels, one number a row.
        fraction: of the rows that are split off.
        side: `"upper"`, `"lower"` or `"both"` ends of the labels.
    """
    if not 0 < fraction < 1:
        raise IT3Error(f"fraction is between 0 and 1, not {fraction}")
    if y.numel() != len(y):
        raise IT3Error("an extrapolation split needs one number a row: pick one of the answers")
    if not bool(torch.isfinite(y).all()):
        raise IT3Error("the labels hold NaN or Inf: drop those rows first")
    order = y.flatten().argsort(stable=True)
    size = round(fraction * len(y))
    if not 0 < size < len(y):
        raise IT3Error(f"a split of {fraction:.0%} of {len(y)} rows is empty or everything")
    if side not in ("upper", "lower", "both"):
        raise IT3Error(f'side must be "upper", "lower" or "both", not {side!r}')
    lower = {"upper": 0, "lower": size, "both": size // 2}[side]
    inside = order[lower : len(y) - (size - lower)]
    outside = torch.cat([order[:lower], order[len(y) - (size - lower) :]])
    return inside.sort().values, outside.sort().values


def _chosen(
    tuning: Tuning, pairs: Sequence[Pair], caps: Sequence[float], units: int,
    confidence: float | None, least: float,
) -> Tuning:  # fmt: skip
    """The pair that gains most, if that is worth it, with a sentence."""
    best = max(pairs, key=lambda pair: pair.gain, default=None)
    tuning = replace(tuning, tried=[pair.describe() for pair in pairs])
    what = "rows" if tuning.unit == "row" else f"batches of {tuning.unit}"
    if not caps:
        needed = fewest(tuning.max_harm / least, confidence)
        return replace(tuning, reason=(
            f"No adaptation: {units} {what} are too few to set a threshold; {needed} would do."
        ))  # fmt: skip
    if best is None:
        return replace(tuning, reason="No adaptation: there was nothing to try.")
    if not best.gain > _LEAST_GAIN:
        return replace(tuning, reason=(
            f"No adaptation: the best of {len(pairs)} pairs of method and score ({best.candidate}; "
            f"{best.opens}) changes the error by {-best.gain:+.1%} under shifts."
        ))  # fmt: skip
    name, rate = str(best.candidate), tuning.max_harm / best.cap
    of = f"{best.cap:g} mean errors" if tuning.error else f"{100 * best.cap:g} % of the answers"
    bound = "the mean error rises by" if tuning.error else "the share of answers that change is"
    reason = (
        f"{name[:1].upper()}{name[1:]}, where the {best.opens} is above that of {1 - rate:.2%} of "
        f"{units} usual {what}, and by {of} at most: it lowers the error by {best.gain:.1%} under "
        f"the shifts that it was chosen by. In distribution {bound} at most {tuning.max_harm:.1%}."
    )
    return replace(tuning, chosen=best.candidate, opens=best.opens, cap=best.cap, reason=reason)


@contextmanager
def _silent() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IT3Warning)
        yield


def _check(
    x: Any, y: Tensor, splits: Sequence[ExtrapolationSplit], shifts: Mapping[str, Any],
    max_harm: float, unit: Unit,
) -> None:  # fmt: skip
    if count(x) != len(y):
        raise IT3Error(f"there are {count(x)} inputs to tune on but {len(y)} labels")
    if len(y) < _FEWEST:
        raise IT3Error(f"tuning on {len(y)} rows would choose by chance: give at least {_FEWEST}")
    if y.is_floating_point() and not bool(torch.isfinite(y).all()):
        raise IT3Error("the labels hold NaN or Inf: drop those rows first")
    if unit != "row" and (not isinstance(unit, int) or unit < 1):
        raise IT3Error(f'unit is "row" or the size of a batch, not {unit!r}')
    if not 0 < max_harm < 1:
        raise IT3Error(f"max_harm is a fraction between 0 and 1, such as 0.02, not {max_harm}")
    if not shifts and not splits:
        raise IT3Error("name at least one shift to tune for, or give an extrapolation split")
    if any(name == "clean" or name.startswith(_SPLIT) for name in shifts):
        raise IT3Error(f'"clean" and "{_SPLIT}" are names of trials of their own')
    for split in splits:
        if count(split.x) != len(split.y):
            raise IT3Error(f"a split has {count(split.x)} inputs but {len(split.y)} labels")
    if len({len(one.y) for one in splits}) > 1:
        raise IT3Error("the extrapolation splits are of different rows: give all the same")
