"""Candidates for the default, on tables: what each does to the same network's first answer.

    python tools/experiments/recipe.py DATA [NAME...] [--seeds 5] [--only meta] [--out OUT]

DATA is a folder of UCI folders. Test rows are never looked at: a fifth of the training rows is
judged on, the estimator sees the rest and holds a tenth of that out, and every setting is chosen
there by `tune`, under shifts of other draws than those that are judged; unguarded, the best on
average is taken, be it harm or chance. `gain` and `strong noise`
are kinds of shift that no candidate was chosen under; `label tail` are rows whose target lies
beyond all that this network was trained on, and there candidates are chosen on the next tail, too.
Records are JSON lines; a killed run goes on.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from controls import Own, stretches
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from it3_core import (
    IT3,
    Adaptation,
    AnswerStep,
    Conditioned,
    IT3Error,
    Regression,
    Source,
)
from it3_core.bootstrap import bootstrap_interval
from it3_core.candidates import Candidate
from it3_core.contrast import contrast
from it3_core.evaluation import Record, evaluate, read_records
from it3_core.files import make_folder
from it3_core.tables import markdown_table
from it3_core.training import Loss
from it3_core.tuning import Tail, tune
from it3_tabular.choosing import shifts
from it3_tabular.estimators import IT3Regressor
from it3_tabular.learning import batch_size_for, hold_out, seeded, train
from it3_tabular.networks import build
from it3_tabular.preparing import Floats
from it3_tabular.uci import UCI, load_uci

NAMES = ("bostonHousing", "yacht", "energy", "concrete")
MOST = 1000  # rows of a data set, so that none takes longer than all others together
TAIL = "label tail"
KINDS = ("", "corrective", "augmented", "meta", "tail")
STEP: dict[str, Any] = {"optimizer": "SGD", "power": 2.0, "lr": 0.02, "trust_region": False}


class GatedRows:
    """The answer step for those rows alone whose idempotence error is beyond a limit."""

    def __init__(self, model: nn.Module, adapter: Regression, alpha: float, limit: float) -> None:
        self._step, self._limit = AnswerStep(model, adapter, alpha), limit

    def __call__(self, x: Any) -> Adaptation:
        found = self._step(x)
        moved = (found.error_before > self._limit)[:, None]
        answer = torch.where(moved, found.prediction, found.initial)
        return Adaptation(answer, found.initial, 0, before=found.error_before)

    def reset(self) -> None:
        """Nothing to forget."""


def families(errors: Tensor) -> dict[str, list[Candidate]]:
    """What is chosen from, by the name of the line in the table.

    Args:
        errors: idempotence errors of held-out rows, for the gate.
    """
    return {
        "signed step": [Candidate("AnswerStep", {"alpha": a})
                        for a in (-3.0, -2.0, -1.0, -0.5, 0.5, 1.0, 2.0, 3.0)],
        "gated step": [Own("Gated", {"alpha": a, "limit": float(errors.quantile(q))},
                           make=GatedRows)
                       for a in (-2.0, -1.0, 1.0, 2.0) for q in (0.5, 0.9)],
        "stretch": stretches(0.8, 0.9, 0.95, 1.05, 1.1, 1.2),
    }  # fmt: skip


def last_layers(network: Conditioned) -> list[Candidate]:
    """Gradient steps of the last two layers; an answer moves no further than to y1."""
    linear = [name for name, layer in network.named_modules() if isinstance(layer, nn.Linear)]
    step = {"optimizer": "SGD", "power": 2.0, "per_instance": True,
            "parameters": [f"{name}.*" for name in linear[-2:]]}  # fmt: skip
    return [
        Candidate("IT3", {**step, "lr": lr, "steps": n})
        for lr, n in ((0.05, 1), (0.2, 1), (0.2, 3))
    ]


def spoilt(x: Tensor) -> Tensor:
    """Rows with noise, or with values that read as their column's mean."""
    values, marks = x.chunk(2, 1)
    noisy = values + 0.3 * torch.randn_like(values)
    dropped = values * (torch.rand_like(values) >= 0.15)
    return torch.cat([torch.where(torch.rand(len(x), 1) < 0.5, noisy, dropped), marks], 1)


def corrective(network: nn.Module, adapter: Any, x: Tensor, y: Tensor) -> Tensor:
    """ZigZag whose second pass sees spoilt rows, and half of the time its own answer to them."""
    again, neutral = spoilt(x), adapter.neutral(x)
    with torch.no_grad():
        own = network(again, neutral)[:, 0]
    given = adapter.encode(torch.where(torch.rand(len(y)) < 0.5, own, y)).to(neutral)
    output = network(torch.cat([x, again]), torch.cat([neutral, given]))
    losses: Tensor = adapter.loss(output, torch.cat([y, y]))
    return 2 * losses.mean()


def augmented(network: nn.Module, adapter: Any, x: Tensor, y: Tensor) -> Tensor:
    """The control of `corrective`: as many rows, half of them spoilt, and no signal at all."""
    neutral = adapter.neutral(x)
    output = network(torch.cat([x, spoilt(x)]), torch.cat([neutral, neutral]))
    losses: Tensor = adapter.loss(output, torch.cat([y, y]))
    return 2 * losses.mean()


def meta(network: nn.Module, adapter: Any, x: Tensor, y: Tensor) -> Tensor:
    """ZigZag, and the step itself is learnt: after it, on spoilt rows, the answer is to be right.

    Each row takes its own step of `STEP`; gradients flow through it, second derivatives too.
    """
    weights: dict[str, Tensor] = dict(network.named_parameters())
    neutral = adapter.neutral(x)

    def answer(theta: dict[str, Tensor], row: Tensor, signal: Tensor) -> Tensor:
        return functional_call(network, theta, (row[None], signal[None]))  # type: ignore[no-any-return]

    def stepped(row: Tensor, signal: Tensor) -> Tensor:
        def gap(theta: dict[str, Tensor]) -> Tensor:
            y0 = answer(theta, row, signal)
            y1 = answer(weights, row, adapter.encode(y0.detach())[0])
            return adapter.distance(y1, y0).pow(STEP["power"]).sum()  # type: ignore[no-any-return]

        slope = grad(gap)(weights)
        moved = {name: value - STEP["lr"] * slope[name] for name, value in weights.items()}
        return answer(moved, row, signal)[0]

    after = vmap(stepped)(spoilt(x), neutral)
    first, second = network(x, neutral), network(x, adapter.encode(y).to(neutral))
    losses: Tensor = adapter.loss(first, y) + adapter.loss(second, y) + adapter.loss(after, y)
    return losses.mean()


def methods(
    model: IT3Regressor,
    x: Floats,
    y: Floats,
    seed: int,
    *,
    tail: Tail | None = None,
    more: dict[str, list[Candidate]] | None = None,
) -> dict[str, Any]:
    """Every line of the table for one fitted estimator and its training rows."""
    network, adapter = model.network_, model.adapter_
    generator, _ = seeded(model.random_state)
    _, held_out = hold_out(np.zeros(len(y)), model.validation_fraction, generator)
    rows, labels = model.preparation_(x[held_out]), torch.as_tensor(y[held_out])
    made: dict[str, Any] = {
        "source": Source(network, adapter),
        "second pass": AnswerStep(network, adapter),
    }
    asked = families(Source(network, adapter)(rows).error_before) | (more or {})
    for name, tries in asked.items():
        found = tune(network, adapter, rows, labels, shifts=shifts(seed), tail=tail,
                     candidates=tries, batch_size=1024, false_alarms=None,
                     progress=False)  # fmt: skip
        gains = [one["gain"] or 0.0 for one in found.tried]
        best = tries[gains.index(max(gains))] if max(gains) > 0 else Candidate("Source")
        print(f"  {name}: {found.chosen!r}, unguarded {best!r}", file=sys.stderr, flush=True)
        made[name] = found.build(network, adapter)
        made[f"{name}, unguarded"] = best.build(network, adapter)
    return made


def retrained(model: IT3Regressor, x: Floats, y: Floats, loss: Loss) -> IT3Regressor:
    """The same estimator with a network that was trained by another loss."""
    other = copy.copy(model)
    labels = torch.as_tensor(y)
    generator, seed = seeded(model.random_state)
    kept, held_out = hold_out(np.zeros(len(y)), model.validation_fraction, generator)
    other.network_ = build(x.shape[1], tuple(model.hidden_layer_sizes), model.adapter_, seed=seed)
    parts = [(model.preparation_(x[rows]), labels[rows]) for rows in (kept, held_out)]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        train(other.network_, model.adapter_, *parts, epochs=model.max_iter,
              batch_size=batch_size_for(len(kept)), lr=model.learning_rate_init,
              patience=model.n_iter_no_change, seed=seed, progress=False,
              loss=loss)  # fmt: skip
    return other


def levels(rows: Tensor, y: Tensor, seed: int) -> dict[str, tuple[Tensor, Tensor]]:
    """The judged rows as they are, under the kinds of shift that were chosen under, and others."""
    columns = rows.shape[1] // 2
    values, marks = rows[:, :columns], rows[:, columns:]
    drawn = torch.randn(values.shape, generator=torch.Generator().manual_seed(seed)).to(values)
    found = {"clean": rows}
    found |= {kind[:-2]: shift(rows) for kind, shift in shifts(seed).items() if kind[-1] == "1"}
    found["strong noise"] = torch.cat([values + 0.8 * drawn, marks], 1)
    found["gain"] = torch.cat([1.5 * values, marks], 1)
    return {name: (x, y) for name, x in found.items()}


def measure(data: UCI, seed: int, folder: Path, kinds: Sequence[str]) -> list[Record]:
    """One seed of one data set: the network as published, trained otherwise, and without a tail."""
    files = {kind: folder / f"{data.name}{'-' * bool(kind)}{kind}.jsonl" for kind in kinds}
    last = {kind: TAIL if kind == "tail" else "gain" for kind in kinds}  # level, when it is whole
    known = {kind: {record["level"] for record in _of(seed, files[kind])} for kind in kinds}
    _measure(data, seed, {kind: files[kind] for kind in kinds if last[kind] not in known[kind]})
    records = []
    for kind, file in files.items():
        for record in _of(seed, file):
            if kind in ("corrective", "augmented", "meta"):
                record["method"] = f"{kind}: {record['method']}"
            records.append(record)
    return records


def _of(seed: int, file: Path) -> list[Record]:
    found = read_records(file) if file.exists() else []
    return [record for record in found if record["seed"] == seed]


def _measure(data: UCI, seed: int, files: dict[str, Path]) -> None:
    """What is missing, each into its file."""
    if not files:
        return
    x, y, *_ = data.split(seed % len(data.splits))
    order = np.random.default_rng(seed).permutation(len(y))[:MOST]
    judged, kept = order[: len(order) // 5], order[len(order) // 5 :]
    x, y, x_judged, y_judged = x[kept], y[kept], x[judged], y[judged]
    model = IT3Regressor(random_state=seed, adapt="auto" if "" in files else None).fit(x, y)
    common: dict[str, Any] = {"seed": seed, "progress": False, "batch_sizes": [1024]}

    def judge(lines: dict[str, Any], levels: Any, kind: str) -> None:
        evaluate(lines, levels, model.adapter_.error, once=list(lines), path=files[kind],
                 in_distribution=next(iter(levels)), **common)  # fmt: skip

    tests = levels(model.preparation_(x_judged), torch.as_tensor(y_judged), 1000 + seed)
    first = Source(model.network_, model.adapter_)
    if "" in files:
        more = {"last layers": last_layers(model.network_)}
        judge({**methods(model, x, y, seed, more=more), "auto": model.method()}, tests, "")
    if "corrective" in files:
        other = retrained(model, x, y, corrective)
        judge({**methods(other, x, y, seed), "published source": first}, tests, "corrective")
    if "augmented" in files:
        other = retrained(model, x, y, augmented)
        source = Source(other.network_, other.adapter_)
        judge({"source": source, "published source": first}, tests, "augmented")
    if "meta" in files:
        other, plain = (retrained(model, x, y, loss) for loss in (meta, augmented))
        step = IT3(other.network_, other.adapter_, per_instance=True, **STEP)
        judge({"source": Source(other.network_, other.adapter_), "learnt step": step,
               "augmented source": Source(plain.network_, plain.adapter_),
               "published source": first,
               "published step": IT3(model.network_, model.adapter_, per_instance=True, **STEP)},
              tests, "meta")  # fmt: skip
    if "tail" not in files:
        return
    # Without the upper fifth of the labels, and for choosing once more without that of the rest.
    low, lower = (y <= np.quantile(y, share) for share in (0.8, 0.64))
    inner, outer = (
        IT3Regressor(random_state=seed, adapt=None).fit(x[rows], y[rows]) for rows in (lower, low)
    )
    held = ~lower & low
    tail = Tail(inner.network_, inner.preparation_(x[held]), torch.as_tensor(y[held]))
    far = y_judged > np.quantile(y, 0.8)
    tests = {
        name: (outer.preparation_(x_judged[rows]), torch.as_tensor(y_judged[rows]))
        for name, rows in (("below the tail", ~far), (TAIL, far))
    }
    judge(methods(outer, x[low], y[low], seed, tail=tail), tests, "tail")


def table(records: dict[str, list[Record]]) -> list[list[str]]:
    """A line a candidate, a column a level: the change in per cent of the source's error.

    The mean over data sets and seeds with its 95 % interval; then on how many data sets it is
    better, and on how many worse, beyond the interval of that set.
    """
    every = [record for part in records.values() for record in part]
    names = list(dict.fromkeys(record["level"] for record in every))
    lines = [["candidate", *names]]
    for method in dict.fromkeys(record["method"] for record in every):
        head, _, own = method.rpartition(": ")
        source = f"{head}: source" if head else "source"
        if own != "source":
            lines.append([method, *(_cell(records, level, method, source) for level in names)])
    return lines


def _cell(records: dict[str, list[Record]], level: str, method: str, source: str) -> str:
    changes: list[Tensor] = []
    signs: list[int] = []
    for part in records.values():
        here = [record for record in part if record["level"] == level]
        errors = [
            {r["seed"]: torch.tensor(r["errors"]).double() for r in here if r["method"] == name}
            for name in (method, source)
        ]
        common = sorted(errors[0].keys() & errors[1].keys())
        changes += [
            100 * (errors[0][seed] - errors[1][seed]) / errors[1][seed].mean() for seed in common
        ]
        found = contrast(here, (method, None), (source, None))
        signs += [found.sign] if found is not None else []
    ends = bootstrap_interval(changes, resamples=500) if changes else None
    if ends is None:
        return ""
    mean = sum(float(change.mean()) for change in changes) / len(changes)
    told = f"{mean:+.1f} ({ends[0]:+.1f} to {ends[1]:+.1f})" if any(ends) else "0"
    return f"{told}, {signs.count(-1)}/{signs.count(1)}"


def main() -> int:
    """Measure, and print the table; what the user can mend ends with 2."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("data", type=Path, help="a folder of UCI folders")
    parser.add_argument("names", nargs="*", default=list(NAMES))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", choices=KINDS[1:], help="networks trained in this way alone")
    parser.add_argument("--out", type=Path, default=Path("results/recipe"))
    asked = parser.parse_args()
    kinds = KINDS if asked.only is None else (asked.only,)
    records: dict[str, list[Record]] = {}
    try:
        make_folder(asked.out)
        for seed in range(asked.seeds):
            for name in asked.names:
                print(f"{name}, seed {seed}", file=sys.stderr, flush=True)
                data = load_uci(asked.data / name)
                records.setdefault(name, []).extend(measure(data, seed, asked.out, kinds))
    except IT3Error as problem:
        print(f"recipe: {problem}", file=sys.stderr)
        return 2
    print(markdown_table(table(records)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
