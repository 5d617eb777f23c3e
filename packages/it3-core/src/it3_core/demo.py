"""A toy problem that shows it all in half a minute: labels beyond those that were trained on.

The truth is a smooth function of two inputs; training data has the first one between 0 and 1, and
the test data goes on to 2, where labels grow beyond all that was seen. Wings with more lift than
any before, faces older than any before: the same situation, in two dimensions.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from it3_core.adapters import Regression
from it3_core.checkpoint import save
from it3_core.conditioning import Conditioned, condition
from it3_core.errors import IT3Error
from it3_core.evaluation import evaluate
from it3_core.losses import zigzag_loss
from it3_core.methods import IT3, AnswerStep, OnlineIT3, Source
from it3_core.metrics import auroc
from it3_core.sensitivity import sensitivity
from it3_core.summary import overview, summarise
from it3_core.training import fit
from it3_core.trust import Trust
from it3_core.tuning import Tail, split_tail, tune

__all__ = ["run_demo"]

LEVELS = {"seen (0 to 1)": (0.0, 1.0), "near (1 to 1.3)": (1.0, 1.3), "far (1.3 to 2)": (1.3, 2.0)}


def run_demo(seed: int = 0, out: Path | None = None, progress: bool = True) -> str:
    """Trains, tunes and evaluates on the toy problem; returns what it found as text.

    Args:
        seed: of data and training.
        out: a folder for the trained network and, where matplotlib is there, a picture.
        progress: whether to show on standard error how far it is.
    """
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)  # now, and not after the training
    draw = torch.Generator().manual_seed(seed)
    x, y = _data(600, 0.0, 1.0, draw)
    held_out = (x[450:], y[450:])
    x, y = x[:450], y[:450]
    model, adapter = _trained(x, y, held_out, seed, progress)
    kept, beyond = split_tail(y, 0.2)
    without_tail, _ = _trained(x[kept], y[kept], None, seed, progress)
    noise = 0.05 * torch.randn(held_out[0].shape, generator=draw)
    tuning = tune(
        model,
        adapter,
        *held_out,
        shifts={"noise": lambda inputs: inputs + noise},
        tail=Tail(without_tail, x[beyond], y[beyond]),
        progress=progress,
    )
    trust = Trust.fit(model, adapter, [held_out[0]])
    levels = {name: _data(400, *bounds, draw) for name, bounds in LEVELS.items()}
    rows = evaluate(
        {
            "source": Source(model, adapter),
            "second pass": AnswerStep(model, adapter),
            "IT3, as published": IT3(model, adapter, anchor_gradient=True),
            "IT3, online": OnlineIT3(model, adapter, anchor_gradient=True),
            "chosen by tune": tuning.build(model, adapter),
        },
        levels,
        adapter.error,
        batch_sizes=(16,),
        seed=seed,
        in_distribution=next(iter(levels)),
        streams=["IT3, online"],
        progress=progress,
    )
    errors = {
        name: Source(model, adapter)(inputs).error_before for name, (inputs, _) in levels.items()
    }
    text = _text(model, adapter, tuning.reason, trust, held_out[0], summarise(rows), errors)
    if out is not None:
        save(out / "demo.safetensors", model, adapter=adapter, trust=trust, tuning=tuning,
             settings={"demo": True, "seed": seed})  # fmt: skip
        text += (
            f"\n\nSaved the network; look into it with: it3-core inspect {out / 'demo.safetensors'}"
        )
        text += _picture(rows, out / "demo.png")
    return text


def _data(rows: int, low: float, high: float, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    first = low + (high - low) * torch.rand(rows, generator=draw)
    second = 2 * torch.rand(rows, generator=draw) - 1
    truth = 3 * first + 0.5 * first**2 + torch.sin(2 * second)
    return torch.stack([first, second], 1), truth + 0.05 * torch.randn(rows, generator=draw)


def _trained(
    x: Tensor, y: Tensor, held_out: tuple[Tensor, Tensor] | None, seed: int, progress: bool
) -> tuple[Conditioned, Regression]:
    adapter = Regression.fit(y)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = nn.Sequential(
            nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1),
            adapter.rescale(),
        )  # fmt: skip
        model = condition(net, adapter, layer="0")
    loss = partial(zigzag_loss, second="noisy", noise=0.3)
    fit(model, adapter, (x, y), validation=held_out, epochs=80, batch_size=32, lr=3e-3,
        schedule="cosine", loss=loss, seed=seed, progress=progress)  # fmt: skip
    return model, adapter


def _text(
    model: nn.Module, adapter: Regression, reason: str, trust: Trust, known: Tensor,
    rows: list[dict[str, Any]], errors: dict[str, Tensor],
) -> str:  # fmt: skip
    inside, *outside = errors
    lines = [
        "Mean absolute error, by where the first input lies; trained on 0 to 1, batches of 16.",
        "Changes are against source, those in brackets may be chance; cost in passes of source.",
        "",
        overview(rows),
        "",
        f"What tune chose, without having seen any of these: {reason}",
        "",
        "How unusual the network finds an input, by its idempotence error alone:",
    ]
    for name, found in errors.items():
        percent = trust.percentile(found).mean().item()
        flagged = trust.flag(found).float().mean().item()
        lines.append(f"  {name:16} percentile {percent:5.1f} on average, {flagged:4.0%} flagged")
    lines += [
        *(f"  AUROC, {name} against {inside}: {auroc(errors[name], errors[inside]):.2f}"
          for name in outside),
        f"  The second answer moves by {sensitivity(model, adapter, known):.2f} for each 1 that "
        f"the first one does.",
    ]  # fmt: skip
    return "\n".join(lines)


def _picture(records: list[dict[str, Any]], path: Path) -> str:
    try:
        from it3_core.plots import box_by_level

        box_by_level(records, path=path)
    except IT3Error:  # no matplotlib
        return '\nNo picture: pip install "it3-core[plots]" brings matplotlib.'
    return f"\nSaved a picture of these errors:\n  {path}"
