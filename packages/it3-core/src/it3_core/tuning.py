"""Choosing a method, its settings, or none, on held-out training data and never on test labels.

A step that helps on one network harms on the next, and so does its sign (docs: the README's
"Does it help?"). So nothing is taken on faith: every candidate is tried on rows that the network
was not fitted to, as they are and under shifts that the caller names; and for regression, where
labels may lie beyond all that was seen, on a tail of the labels that a second network was
trained without. A candidate must gain there by more than chance and by 2 %, and harm nowhere by
more than 1 %, on a single shift: beyond chance. If none does, doing nothing is the choice.

Each is tried on all batches, and with gates (`it3_core.gating`): on those batches alone whose
idempotence error, or whose batch norms' statistics, are unusual, and where there is a tail, on
answers at the edge of what was trained. What helps under shift at some cost on usual data passes
with such a gate, and a choice with one comes first.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from it3_core.adapters import Adapter
from it3_core.batching import batches, count
from it3_core.candidates import CARRYING, STREAMING, Candidate, default_candidates
from it3_core.choosing import WITNESSES, Tried, Tuning, choose
from it3_core.errors import IT3Error, IT3Warning
from it3_core.gating import Gates, Picking, Trial
from it3_core.methods import Gate
from it3_core.progress import Progress

__all__ = ["Tail", "Tuning", "split_tail", "tail_files", "tune"]

_TAIL = "label tail"


class Tail(Trial):
    """A network like the one to tune, trained without a tail of the labels, and that tail."""


def tail_files(folder: Path) -> list[Path]:
    """Where the networks without a tail are kept in a RUN: as many as are believed.

    Example:
        >>> [path.name for path in tail_files(Path("run"))]
        ['tail.safetensors', 'tail-2.safetensors', 'tail-3.safetensors']
    """
    others = (f"tail-{number}.safetensors" for number in range(2, WITNESSES + 1))
    return [folder / name for name in ("tail.safetensors", *others)]


def tune(
    model: nn.Module,
    adapter: Adapter,
    x: Any,
    y: Tensor,
    *,
    shifts: Mapping[str, Callable[[Any], Any]],
    tail: Tail | Sequence[Tail] | None = None,
    candidates: Sequence[Candidate] | None = None,
    batch_size: int = 32,
    worth: float = 0.02,
    harm: float = 0.01,
    confidence: float = 0.95,
    false_alarms: float | None = 0.1,
    progress: bool = True,
) -> Tuning:
    """Chooses a method and its settings, or none, on held-out training data.

    A candidate is chosen if it lowers the error under the shifts (and on the tail, which weighs
    as much as all of them) by more than chance at this confidence, corrected for the number of
    candidates, and by `worth`; under the shifts alone too, since a tail is another network's. Gains
    that are real but tiny are of these shifts, and hardly of those to come. It may raise the
    error by `harm` on clean data and on the tail, and under no shift by more beyond chance. Among
    those, the one that gains most. Each is tried for all batches, and for what is unusual alone
    (`Gated`), which is preferred: what is usual then stays as it is, whatever else would come of
    it. A gate looks at the drift of several instances' statistics where the network has batch norm,
    and else at idempotence errors.

    What helps where labels lie beyond need not help where inputs are shifted: a gain on the tails
    of three networks, by more than chance and by `worth` on each, is enough in place of one there;
    on the whole, chance alone must then be beaten.

    Args:
        model: the conditioned and trained network.
        adapter: what kind of answer it gives; its `error` is what counts.
        x: held-out training inputs, which the network was not fitted to.
        y: their labels.
        shifts: what might happen to inputs, by name: each takes `x` and returns it shifted. Each
            is applied once, so that all candidates see the same inputs.
        tail: for regression, see `Tail` and `split_tail`; or several networks' of the same rows.
        candidates: what to try; by default `default_candidates(model)`.
        batch_size: how many instances come together at test time.
        worth: the gain that is asked for at least, as a share of the source's error.
        harm: the loss that is allowed on any trial, as a share of the source's error.
        confidence: of the gain.
        false_alarms: share of usual batches that a gate may adapt, and on each side half of it of
            usual answers; None tries no gates, for methods whose answer to a row must not depend
            on its neighbours.
        progress: whether to show on standard error how far it is.

    Example:
        >>> import torch
        >>> from it3_core import Regression, tune, widen
        >>> _ = torch.manual_seed(0)
        >>> adapter, x = Regression(), torch.randn(64, 3)
        >>> model = widen(torch.nn.Linear(3, 1), adapter)
        >>> _ = torch.nn.init.normal_(model.model.weight)  # stands in for training
        >>> noise = lambda x: x + 0.3 * torch.randn_like(x)
        >>> tuning = tune(model, adapter, x, model(x, adapter.neutral(x)).detach(),
        ...               shifts={"noise": noise}, progress=False)
        >>> tuning.chosen  # the labels are the network's own answers: nothing can be better
        Source()
    """
    if not 0 < confidence < 1:
        raise IT3Error(f"confidence must lie between 0 and 1, but is {confidence}")
    tails = [] if tail is None else [tail] if isinstance(tail, Tail) else list(tail)
    _check_rows(x, y, tails)
    if not shifts and not tails:
        raise IT3Error("name at least one shift to tune for, or give a label tail")
    if any(name == "clean" or name.startswith(_TAIL) for name in shifts):
        raise IT3Error('"clean" and "label tail" are names of trials of their own')
    tries = list(default_candidates(model) if candidates is None else candidates)
    trials = {"clean": Trial(model, x, y)}
    for name, shift in shifts.items():
        trials[name] = Trial(model, shift(x), y)
    beyond = [_TAIL if number == 0 else f"{_TAIL} {number + 1}" for number in range(len(tails))]
    trials |= dict(zip(beyond, tails, strict=True))
    base = {name: _base(name, trial, adapter, batch_size) for name, trial in trials.items()}
    gates: list[Picking] = []
    drifts: dict[nn.Module, Gate] = {}
    if false_alarms is not None:
        with _silent():
            allowed = Gates(trials, adapter, batch_size, false_alarms)
            gates = list(allowed.pickings(beyond))
            if any(one.method == STREAMING for one in tries):
                drifts = allowed.by_drift()
    if not drifts:
        tries = [one for one in tries if one.method != STREAMING]
    # A share of almost nothing means nothing: no scale below a hundredth of the largest.
    largest = max(float(errors.mean()) for errors in base.values())
    results: list[Tried] = []
    with closing(Progress(len(trials) * (len(tries) + 1), "tune", progress)) as bar:
        for number, candidate in enumerate(tries):
            relative = {}
            for done, (name, trial) in enumerate(trials.items()):
                # Of a tail's network, trained for this alone, nobody wants to be warned.
                with _silent() if name in beyond else nullcontext():
                    errors = _errors(
                        _for(trial.model, candidate, drifts), trial, adapter, batch_size
                    )
                scale = max(float(base[name].mean()), 0.01 * largest) or 1.0
                relative[name] = (errors - base[name]) / scale
                bar.show((number + 1) * len(trials) + done + 1, f"{candidate!r} on {name}")
            whole = _for(model, candidate, drifts)
            results.append(Tried.of(whole, relative, beyond, confidence))
            if candidate.gate is not None or candidate.method in CARRYING:
                continue
            for gate, picked in gates:
                some = {name: change.where(picked[name], 0.0) for name, change in relative.items()}
                results.append(Tried.of(replace(candidate, gate=gate), some, beyond, confidence))
    return choose(results, worth, harm, confidence)


def split_tail(y: Tensor, share: float = 0.2, side: str = "upper") -> tuple[Tensor, Tensor]:
    """The rows to train on and the rows of the label tail, for `tune(tail=…)`.

    Train a second network like the first on the former, and give it with the latter as `Tail`.

    Args:
        y: labels, one number a row.
        share: how much of the rows is the tail.
        side: `"upper"`, `"lower"` or `"both"`.

    Example:
        >>> import torch
        >>> split_tail(torch.tensor([5.0, 1.0, 9.0, 3.0]), share=0.25)
        (tensor([0, 1, 3]), tensor([2]))
    """
    if not 0 < share < 1:
        raise IT3Error(f"share is between 0 and 1, not {share}")
    if y.numel() != len(y):
        raise IT3Error("a label tail needs one number a row: pick one of the answers")
    if not bool(torch.isfinite(y).all()):
        raise IT3Error("the labels hold NaN or Inf: drop those rows first")
    order = y.flatten().argsort(stable=True)
    size = round(share * len(y))
    if not 0 < size < len(y):
        raise IT3Error(f"a tail of {share:.0%} of {len(y)} rows is empty or everything")
    if side == "upper":
        tail = order[-size:]
    elif side == "lower":
        tail = order[:size]
    elif side == "both":
        lower = size // 2
        tail = torch.cat([order[:lower], order[len(y) - (size - lower) :]])
    else:
        raise IT3Error(f'side must be "upper", "lower" or "both", not {side!r}')
    inside = torch.ones(len(y), dtype=torch.bool, device=y.device)
    inside[tail] = False
    return inside.nonzero().flatten(), tail.sort().values


def _for(network: nn.Module, candidate: Candidate, drifts: Mapping[nn.Module, Gate]) -> Candidate:
    """A stream's candidate with the gate of this network: each has its own idea of usual."""
    if candidate.method != STREAMING:
        return candidate
    return replace(candidate, gate=drifts[network])


@contextmanager
def _silent() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IT3Warning)
        yield


def _check_rows(x: Any, y: Tensor, tails: Sequence[Tail]) -> None:
    if count(x) != len(y):
        raise IT3Error(f"there are {count(x)} inputs to tune on but {len(y)} labels")
    if len(y) < 8:
        raise IT3Error(f"tuning on {len(y)} rows would choose by chance: hold out at least 8")
    for _, inputs, labels in tails:
        if count(inputs) != len(labels):
            raise IT3Error(f"a label tail has {count(inputs)} inputs but {len(labels)} labels")
        if len(labels) < 2:
            raise IT3Error("a label tail of less than 2 rows can't tell a gain from chance")
    if len({len(one.y) for one in tails}) > 1:
        raise IT3Error("the tails are of different rows: give every network the same")


def _base(name: str, trial: Trial, adapter: Adapter, size: int) -> Tensor:
    """The errors that candidates are compared with."""
    errors = _errors(Candidate("Source"), trial, adapter, size)
    if bool(torch.isfinite(errors).all()):
        return errors
    if not bool(torch.isfinite(trial.y).all()):
        raise IT3Error(f"the labels hold NaN or Inf on trial {name!r}: drop those rows first")
    raise IT3Error(f"the network's own answers are not finite on trial {name!r}")


def _errors(candidate: Candidate, trial: Trial, adapter: Adapter, size: int) -> Tensor:
    """Per instance, in double precision; answers that are not finite count as infinitely wrong."""
    method = candidate.build(trial.model, adapter)
    found = []
    for part, label in zip(batches(trial.x, size), batches(trial.y, size), strict=True):
        found.append(adapter.error(method(part).prediction, label).detach().double().cpu())
    errors = torch.cat(found)
    return torch.where(errors.isnan(), float("inf"), errors)
