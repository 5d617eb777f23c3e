"""`train`: from a problem to an experiment folder; the only verb that trains."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from it3_core.batching import batches, count, take
from it3_core.engine.inner_optimizer import has_batch_norm
from it3_core.engine.sensitivity import sensitivity
from it3_core.errors import IT3Error, IT3Warning
from it3_core.experiment.choosing import FITTED, predictors_of
from it3_core.experiment.folder import (
    NETWORK,
    VANILLA,
    baseline_file,
    claim,
    device_for,
    is_first,
    load,
    restore_of,
    write_baseline,
    write_network,
)
from it3_core.experiment.types import (
    Baseline,
    Experiment,
    Extrapolation,
    Network,
    Problem,
    Recipe,
    Rows,
    TrainingData,
    Trial,
)
from it3_core.io.files import FilePath, write_json
from it3_core.io.output import OutputFolder
from it3_core.io.tensors import digest
from it3_core.io.typed import read_json
from it3_core.methods.paper import PaperStep, choose_step
from it3_core.methods.source import Source
from it3_core.model.adapters import Adapter
from it3_core.model.networks import weights_of
from it3_core.training.data import cut
from it3_core.training.fit import Loss, fit
from it3_core.training.frozen import freeze, layers_before
from it3_core.training.resume import History
from it3_core.trust.candidates import Candidate, default_candidates
from it3_core.trust.tune import ExtrapolationSplit, extrapolation_split

_BATCH = 64  # rows of a forward pass
_PAPER_ROWS = 32  # inputs of each shift that the paper's step is chosen on


def train(
    problem: Problem,
    folder: FilePath,
    *,
    vanilla: bool = False,
    device: str | None = None,
    workers: int = 0,
    inputs: Iterable[FilePath] = (),
    progress: bool = True,
) -> Experiment:
    """Trains what the folder lacks of this seed; a killed training goes on, byte for byte.

    Args:
        problem: data, network, loss and recipe.
        folder: of the experiment: new, empty, or of the same settings.
        vanilla: whether to train the same network without a signal too, as long again.
        device: where to train; a GPU if there is one.
        workers: processes that prepare batches.
        inputs: paths that are read, in which the folder must not lie.
        progress: whether to show how far it is.
    """
    device = device_for(device)
    out = claim(folder, problem, inputs)
    seed = problem.recipe.seed
    done = (out.path / str(seed) / NETWORK).is_file()
    wanted: dict[str, Baseline] = {VANILLA: (problem.make, problem.vanilla_loss)} if vanilla else {}
    wanted |= problem.baselines
    missing = [name for name in wanted if not (out.path / baseline_file(seed, name)).is_file()]
    if not done or missing:
        data = problem.data() if callable(problem.data) else problem.data
        fitting = _Fitting(problem, data, out, device, workers, progress)
        if not done:
            model, history = fitting.fit("training", problem.loss, data.rows, data.validation)
            network = _network(problem, data, model, history, _extrapolation(fitting), progress)
            if is_first():
                write_network(out, network, problem.provenance)
        for name in missing:
            (make, loss), parts = wanted[name], (data.rows, data.validation)
            plain, _ = fitting.fit(f"{name}-training", loss, *parts, make=make)
            if is_first():
                write_baseline(out, seed, name, plain, data.adapter)
    return load(folder, str(problem.settings["task"]), restore_of(problem), device)


@dataclass(frozen=True)
class _Fitting:
    """Trains networks of one problem alike: the network itself, baselines, extrapolation."""

    problem: Problem
    data: TrainingData
    out: OutputFolder
    device: str
    workers: int
    progress: bool

    def fit(
        self,
        name: str,
        loss: Loss,
        rows: Rows,
        validation: Rows,
        recipe: Recipe | None = None,
        make: Callable[[Adapter], nn.Module] | None = None,
    ) -> tuple[nn.Module, History]:
        """One network from its first weights to its last; it is left on the CPU."""
        recipe, data = recipe or self.problem.recipe, self.data
        with torch.random.fork_rng([]):
            torch.manual_seed(recipe.seed)
            model = (make or self.problem.make)(data.adapter)
        name = f"{self.problem.recipe.seed}/{name}"
        if is_first():
            self._check_start(name, model)
            self.out.reserve(f"{name}.safetensors")
        if recipe.channels_last:
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        source: Any = (data.augmented or data.plain)(rows)
        measured: Any = data.plain(validation)
        if recipe.refresh:
            own = set(rows)  # an extrapolation network has not seen the others
            seen = [row for row in data.seen if row in own][: recipe.refresh]
            kept, given = recipe.freeze_until, data.plain(seen)[0]
            measured = partial(_refreshed_loss, data.adapter, given, *measured, keep_until=kept)
        bfloat16 = _precision(recipe.bfloat16, self.device)
        history = fit(
            model,
            data.adapter,
            source,
            collate=getattr(source, "collate", None),
            validation=measured,
            epochs=recipe.epochs,
            batch_size=recipe.batch_size,
            lr=recipe.lr,
            optimizer=partial(getattr(torch.optim, recipe.optimizer), **recipe.optimizer_options),
            schedule=recipe.schedule,
            clip=recipe.clip,
            patience=recipe.patience,
            freeze_until=recipe.freeze_until,
            loss=partial(_mixed_precision, loss=loss) if bfloat16 else loss,
            checkpoint=self.out.path / f"{name}.safetensors",
            seed=recipe.seed,
            device=self.device,
            workers=self.workers,
            progress=self.progress,
        )
        # As `load` has it, bit for bit; and torch 2.13's group norm crashes where channels are last
        # and only its own weights get a gradient.
        model.cpu().to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        return model, history

    def _check_start(self, name: str, model: nn.Module) -> None:
        """Refuses to go on where code, a weights file or torch draw other first weights."""
        path = self.out.path / f"{name}.json"
        start = {"first_weights": digest(weights_of(model), {})[:16]}
        if not (path.is_file() and path.with_suffix(".safetensors").is_file()):
            write_json(self.out.reserve(f"{name}.json"), start)
        elif read_json(path, dict[str, str], "name a new folder") != start:
            raise IT3Error(
                f"{path.parent} was begun from other first weights (the network's code, its "
                f"weights file or torch has changed): name a new folder"
            )


def _extrapolation(fitting: _Fitting) -> list[ExtrapolationSplit]:
    """Networks trained without one end of the labels, and that end."""
    problem, data, recipe = fitting.problem, fitting.data, fitting.problem.recipe
    how = problem.extrapolation
    if how is None:
        return []
    rows, validation, outside = extrapolation_rows(data, how, recipe.seed)
    x, y = data.plain(outside)
    found = []
    for number in range(how.networks):
        epochs = max(1, int(recipe.epochs * how.epochs))
        short = replace(recipe, epochs=epochs, seed=recipe.seed + 1000 * number)
        name = f"extrapolation-{number + 1}"
        model, _ = fitting.fit(name, problem.loss, rows, validation, short)
        found.append(ExtrapolationSplit(model, x, y, data.plain(rows[:FITTED])[0]))
    return found


def _network(
    problem: Problem,
    data: TrainingData,
    model: nn.Module,
    history: History,
    splits: list[ExtrapolationSplit],
    progress: bool,
) -> Network:
    """What is measured, chosen and kept once the weights are there, in this order."""
    adapter, (x, y) = data.adapter, data.plain(data.validation)
    model.eval()
    freeze(model, problem.recipe.freeze_until)
    statistics = {} if problem.statistics is None else problem.statistics(model, data)
    trials = list(problem.trials(model, data)) if problem.trials else []
    predictors = predictors_of(problem, data, model, trials, splits, progress)
    errors = torch.cat([Source(model, adapter)(part).error_before for part in batches(x, _BATCH)])
    return Network(
        seed=problem.recipe.seed,
        model=model,
        adapter=adapter,
        answers=problem.answers,
        settings={**problem.settings, **data.settings},
        statistics=statistics,
        predictors=predictors,
        history=history.describe(),
        measured={
            "validation_error": mean_error(model, adapter, x, y),
            "validation_rows": count(x),
            "calibration_rows": len(data.calibration),
            "training_rows": len(data.rows),
            "sensitivity": sensitivity(model, adapter, take(x, slice(0, 500))),
            "usual_error": [float(errors.double().mean()), float(errors.double().std())],
            "skipped": list(data.skipped[:100]),
        },
        paper=_paper_steps(model, adapter, max(trials, key=lambda one: one.batch_size))
        if trials
        else {},
    )


def _paper_steps(model: nn.Module, adapter: Adapter, trial: Trial) -> dict[str, PaperStep]:
    """The paper's step: what it leaves open, chosen on a few inputs of each shift, no label used.

    A stream is ordered as the paper's are: first inputs as they are, then the shifts by their
    idempotence error.
    """
    rows = slice(0, max(trial.batch_size, _PAPER_ROWS))
    clean = take(trial.x, rows)
    source = Source(model, adapter)

    def error(x: Any) -> float:
        return float(source(x).error_before.mean())

    shifted = sorted((take(shift(trial.x), rows) for shift in trial.shifts.values()), key=error)
    parts = [part for x in shifted for part in batches(x, trial.batch_size)]
    stream = [*batches(clean, trial.batch_size), *parts]
    found = {"source": choose_step(model, adapter, parts)}
    found["online"] = choose_step(model, adapter, stream, online=True)
    if has_batch_norm(model) and trial.batch_size > 1:
        found["batch"] = choose_step(model, adapter, parts, norm="batch")
    return found


def trials(
    shifts: Mapping[str, Callable[..., Any]],
    *,
    batch_size: int = 16,
    seed: int = 0,
    candidates: Callable[[nn.Module], Sequence[Candidate]] = default_candidates,
    rows: bool = True,
) -> Callable[[nn.Module, TrainingData], Iterator[Trial]]:
    """The plain case: shifts of the network's input, one batch size."""

    def made(model: nn.Module, data: TrainingData) -> Iterator[Trial]:
        generator = torch.Generator().manual_seed(seed)
        drawn = {name: partial(shift, generator=generator) for name, shift in shifts.items()}
        x, y = data.plain(data.validation)
        yield Trial(batch_size, x, y, drawn, candidates(model), rows)

    return made


@torch.no_grad()
def mean_error(model: nn.Module, adapter: Adapter, x: Any, y: Any) -> float:
    """The mean error of the network as it is, in the adapter's unit."""
    errors = [
        adapter.error(model(part, adapter.neutral(part)), label)
        for part, label in zip(batches(x, _BATCH), batches(y, _BATCH), strict=True)
    ]
    return float(torch.cat(errors).mean())


def _mixed_precision(model: nn.Module, adapter: Adapter, x: Any, y: Any, *, loss: Loss) -> Tensor:
    """The loss in bfloat16, which needs no scaling."""
    with torch.autocast(next(model.parameters()).device.type, torch.bfloat16):
        return loss(model, adapter, x, y).float()


def _precision(wanted: bool | None, device: str) -> bool:
    """Whether to compute in bfloat16: as wanted, where the device can; None means on a GPU."""
    if wanted is None or torch.device(device).type != "cpu":
        return torch.device(device).type == "cuda" if wanted is None else wanted
    # From torch 2.11 on; before it nobody can tell.
    able = getattr(torch.cpu, "get_capabilities", lambda: {"bf16": True})()
    if not wanted or any("bf16" in name and has for name, has in able.items()):
        return wanted
    message = "this CPU has no bfloat16 instructions: training computes in float32, which is faster"
    warnings.warn(message, IT3Warning, stacklevel=3)
    return False


def _refreshed_loss(
    adapter: Adapter, seen: Any, x: Any, y: Any, model: nn.Module, *, keep_until: str | None
) -> float:
    """The validation loss on batch norms' statistics of training rows as they are."""
    device = next(model.parameters()).device
    model.eval()
    refresh_statistics(model, adapter, seen, keep_until)
    losses = []
    with torch.no_grad():
        for part, label in zip(batches(x, 256), batches(y, 256), strict=True):
            part, label = part.to(device), label.to(device)
            losses.append(adapter.loss(model(part, adapter.neutral(part)), label))
    return float(torch.cat(losses).mean())


@torch.no_grad()
def refresh_statistics(
    model: nn.Module, adapter: Adapter, x: Any, keep_until: str | None = None
) -> None:
    """Gives batch norms the statistics of these inputs, in place of training's moving averages.

    The second pass makes a network so sensitive to its signal that averages which lag behind the
    weights by a few steps, or were taken in bfloat16, can spoil its predictions. Those before the
    layer `keep_until`, which were not trained, keep what they have.
    """
    device = next(model.parameters()).device
    kept = {one for layer in layers_before(model, keep_until) for one in layer.modules()}
    kinds = nn.modules.batchnorm._BatchNorm
    layers = [one for one in model.modules() if isinstance(one, kinds) and one not in kept]
    before = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.train()
        layer.momentum = None  # a plain mean over the batches
    try:
        for part in cut(x, 128):
            part = part.to(device)
            model(part, adapter.neutral(part))
    finally:
        for layer, momentum in zip(layers, before, strict=True):
            layer.eval()
            layer.momentum = momentum


def hold_out(
    count: int, fraction: float, seed: int, *, least: int = 1, most: int | None = None
) -> tuple[list[int], list[int]]:
    """The rows for training and those for validation, each in their order, drawn by a seed.

    Args:
        count: of all rows.
        fraction: of them for validation.
        seed: of the draw; the same seed draws first weights elsewhere, so 1000 is added to it.
        least, most: rows for validation.
    """
    size = min(max(round(fraction * count), least), count if most is None else most)
    if count - size < 1:
        raise IT3Error(f"{count} rows are too few to hold {size} of them out")
    order = np.random.default_rng(seed + 1000).permutation(count)
    return sorted(order[size:].tolist()), sorted(order[:size].tolist())


def three_parts(
    count: int, validation: float, calibration: float, seed: int, least: int = 1
) -> tuple[list[int], list[int], list[int]]:
    """Rows to train on, to choose by, and for thresholds and intervals."""
    rest, chooses = hold_out(count, validation, seed, least=least)
    if round(calibration * len(rest)) == 0:
        return rest, chooses, []
    rows, calibrates = hold_out(len(rest), calibration, seed + 1)
    return [rest[row] for row in rows], chooses, [rest[row] for row in calibrates]


def extrapolation_rows(
    data: TrainingData, how: Extrapolation, seed: int
) -> tuple[list[int], list[int], list[int]]:
    """Rows to fit, rows to stop by, and the end of the labels that both lack."""
    if data.labels is None:
        raise IT3Error("an extrapolation split needs one label a row")
    rows = torch.as_tensor(list(data.rows))
    inside, outside = extrapolation_split(data.labels[rows], how.fraction, how.side)
    fraction, least = how.validation
    kept, validation = hold_out(len(inside), fraction, seed, least=least)
    return rows[inside][kept].tolist(), rows[inside][validation].tolist(), rows[outside].tolist()
