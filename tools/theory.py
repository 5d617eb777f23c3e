"""The paper's arguments, each as a small experiment: `nox -s theory` writes docs/theory.md.

A network of two hidden layers learns y = sin(3x) from labels with noise of 0.1, for |x| < 1, and
is asked for |x| < 2.5. Each experiment runs for five seeds and takes seconds.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from it3_core import (
    Method,
    OnlineIT3,
    Regression,
    condition,
    fit,
    paper_it3,
    paper_online_it3,
    zigzag_loss,
)
from it3_core.experiment.figures import plain_axes
from it3_core.experiment.statistics import auroc, correlation
from it3_core.io.files import make_folder, write_figure, write_text
from it3_core.model.conditioning import Conditioned
from it3_core.model.losses import first_pass, idempotence_loss, second_pass

SEEDS = range(5)
ADAPTER = Regression()
INSIDE = torch.linspace(-1, 1, 201)[:, None]
ALL = torch.linspace(-2.5, 2.5, 501)[:, None]
OUTSIDE = ALL[ALL[:, 0].abs() > 1.2]

Section = tuple[str, str, Figure]
"""Title, text and picture."""


def truth(x: Tensor) -> Tensor:
    """What is to be learnt."""
    return torch.sin(3 * x)


def trained(seed: int) -> Conditioned:
    """A network after ZigZag training on |x| < 1."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    model = condition(net, ADAPTER, "0")
    x = 2 * torch.rand(512, 1) - 1
    # Without any noise the label says nothing that x does not, and the signal is hardly heard.
    data = (x, truth(x)[:, 0] + 0.1 * torch.randn(512))
    fit(model, ADAPTER, data, loss=zigzag_loss, epochs=60, batch_size=64, lr=1e-2, seed=seed,
        progress=False)  # fmt: skip
    return model.eval()


def gap(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """y0 and y1 of the network as it is."""
    with torch.no_grad():
        y0 = first_pass(model, ADAPTER, x)
        return y0, second_pass(model, ADAPTER, x, y0)


def mean(values: list[float]) -> str:
    """Mean over seeds, and the smallest and largest."""
    return f"{sum(values) / len(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def zigzag() -> Section:
    """Equations (2) to (4): right with and without the answer, and a gap that grows outside."""
    first, second, rank = [], [], []
    figure, axes = plain_axes(6.0, 3.2)
    for seed in SEEDS:
        model = trained(seed)
        y0, y1 = gap(model, ALL)
        inside = ALL[:, 0].abs() <= 1
        with torch.no_grad():
            given = model(INSIDE, ADAPTER.encode(truth(INSIDE)))
        first.append(float((y0 - truth(ALL))[inside].abs().mean()))
        second.append(float((given - truth(INSIDE)).abs().mean()))
        error = (y0 - truth(ALL)).abs()[:, 0]
        rank.append(correlation((y1 - y0).abs()[:, 0].tolist(), error.tolist(), "spearman"))
        axes.plot(ALL[:, 0], (y1 - y0).abs()[:, 0], color="#5b2a9d", linewidth=0.8)
        axes.plot(ALL[:, 0], error, color="#c2410c", linewidth=0.8, linestyle=":")
    axes.axvspan(-1, 1, color="#e5e7eb", zorder=0)
    axes.set(
        xlabel="x (grey: trained on)", ylabel="|y1 − y0| (lines), |y0 − y| (dots)", ylim=(0, 3)
    )
    text = (
        "After ZigZag training (2) the network is right where it was trained, with the neutral "
        f"signal (mean error {mean(first)}) and with the answer ({mean(second)}). So y1 ≈ y0 "
        "there (3, 4); outside nothing asks for it. Spearman of |y1 − y0| with the true error "
        f"over |x| < 2.5: {mean(rank)}."
    )
    return "ZigZag training: a gap that tells where the network does not know", text, figure


def descended(model: Conditioned, anchored: bool, steps: int = 100) -> Conditioned:
    """A copy after many steps on (6), or on (5), the loss without an anchor, outside."""
    f, F = copy.deepcopy(model), copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.Adam(f.parameters(), 1e-3)
    for _ in range(steps):
        y0 = first_pass(f, ADAPTER, OUTSIDE)
        y1 = second_pass(F if anchored else f, ADAPTER, OUTSIDE, y0)
        optimizer.zero_grad()
        torch.autograd.backward(idempotence_loss(ADAPTER, y1, y0))
        optimizer.step()
    return f


def confirming(model: Conditioned, steps: int = 1000) -> Conditioned:
    """A copy that learns, outside, to leave its answers to many signals as they are."""
    f = copy.deepcopy(model)
    optimizer = torch.optim.Adam(f.parameters(), 1e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        with torch.no_grad():  # the gradient flows through the second call alone
            y = f(OUTSIDE, ADAPTER.encode(2 * torch.randn(OUTSIDE.shape, generator=generator)))
        optimizer.zero_grad()
        torch.autograd.backward(idempotence_loss(ADAPTER, f(OUTSIDE, ADAPTER.encode(y)), y))
        optimizer.step()
    return f


def copies(f: Conditioned) -> float:
    """How near f(x, s) is to s: the fraction of a change of the signal that comes through."""
    y0, _ = gap(f, OUTSIDE)
    with torch.no_grad():
        near, far = (f(OUTSIDE, ADAPTER.encode(y0 + d)) for d in (-0.5, 0.5))
    return float((far - near).mean())


def anchor() -> Section:
    """Equation (5) against (6): what goes wrong without F."""
    found: dict[str, dict[str, list[float]]] = {}
    alone: list[float] = []
    for seed in SEEDS:
        model = trained(seed)
        alone.append(copies(confirming(model)))
        networks = {"before": model, "(5)": descended(model, False), "(6)": descended(model, True)}
        y = truth(OUTSIDE)
        for name, f in networks.items():
            y0, y1 = gap(f, OUTSIDE)
            if name == "(6)":  # with an anchor, the second pass is F's
                y1 = second_pass(model, ADAPTER, OUTSIDE, y0).detach()
            told = {"through": copies(f), "left": float((y1 - y0).abs().mean())}
            told |= {"first": float((y0 - y).abs().mean()), "second": float((y1 - y).abs().mean())}
            for what, value in told.items():
                found.setdefault(what, {}).setdefault(name, []).append(value)
    first, second, through, left = (found[k] for k in ("first", "second", "through", "left"))
    figure, axes = plain_axes(6.0, 3.2)
    for errors, colour, words in ((first, "#5b2a9d", "first"), (second, "#c2410c", "second")):
        places = [place for place, values in enumerate(errors.values()) for _ in values]
        axes.scatter(places, list(chain(*errors.values())), color=colour, label=f"{words} answer")
    axes.set_xticks(range(3), ["trained", "100 steps on (5)", "100 steps on (6)"])
    axes.set(ylabel="mean error for |x| > 1.2", xlim=(-0.5, 2.5))
    axes.legend(frameon=False, fontsize=8)
    text = (
        "The naive loss (5) puts f itself in F's place. A hundred steps of Adam (1e-3) on it "
        f"for inputs with |x| > 1.2 bring the gap from {mean(left['before'])} to "
        f"{mean(left['(5)'])}; with the anchor (6) it is {mean(left['(6)'])}. The paper names "
        "two failures. *The error is magnified*, since the second answer is pulled towards a "
        f"wrong first one: its error goes from {mean(second['before'])} to "
        f"{mean(second['(5)'])} (F's can't change, and f's first answer is what (6) moves: from "
        f"{mean(first['before'])} to {mean(first['(6)'])}, and with (5) to "
        f"{mean(first['(5)'])}). *The identity*: the fraction of a change of the signal that "
        f"comes through f(x, ·), 1 for the identity, is {mean(through['before'])} after training. "
        "Along the pathway of (5) that the anchor cuts, f's second call, a thousand steps on "
        f"answers to many signals bring it to {mean(alone)}: f copies what it is given. Both "
        f"pathways together lead the other way here, to {mean(through['(5)'])}: f ignores the "
        "signal, and the gap is closed by that."
    )
    return "The frozen anchor: what the loss without it does", text, figure


def average() -> Section:
    """Equation (7): a stream that drifts, and three anchors for it."""
    stream = [torch.rand(8, 1) * 0.2 + start for start in torch.linspace(0.5, 1.8, 120).tolist()]
    names: dict[str, Callable[[Conditioned], Method]] = {
        "source": lambda model: paper_it3(model, ADAPTER, steps=0, lr=0.0),
        "reset, F frozen (6)": lambda model: paper_it3(model, ADAPTER, steps=1, lr=1e-3),
        "online, F frozen": lambda model: replace(online(model), decay=1.0),
        "online, moving average (7)": online,
        "online, f itself": lambda model: replace(online(model), decay=0.0),
    }
    errors: dict[str, list[float]] = {name: [] for name in names}
    course: dict[str, list[Tensor]] = {name: [] for name in names}
    for seed in SEEDS:
        model = trained(seed)
        for name, make in names.items():
            method = make(model)
            gaps = [(method(x).prediction - truth(x)).abs().mean() for x in stream]
            course[name].append(torch.stack(gaps))
            errors[name].append(float(torch.stack(gaps).mean()))
    figure, axes = plain_axes(6.0, 3.2)
    for name, found in course.items():
        axes.semilogy(torch.stack(found).mean(0), label=name, linewidth=1)
    axes.set(xlabel="batch of a stream from x = 0.5 to 2", ylabel="mean error")
    axes.legend(frameon=False, fontsize=7)
    rows = "; ".join(f"{name}: {mean(found)}" for name, found in errors.items())
    text = (
        "Online, f goes on from batch to batch, and its moving average takes F's place (7): an "
        f"anchor that evolves, but slower than f. Mean error over the stream: {rows}."
    )
    return "Online: a moving average in the anchor's place", text, figure


def online(model: Conditioned) -> OnlineIT3:
    """The paper's online IT³ with one step of 1e-3."""
    return paper_online_it3(model, ADAPTER, steps=1, lr=1e-3)


def projection() -> Section:
    """Appendix B: F(x, ·) as a projection on the answers that it leaves as they are."""
    near: list[float] = []
    far: list[float] = []
    again: list[float] = []
    figure, axes = plain_axes(6.0, 3.2)
    for seed in SEEDS:
        model = trained(seed)
        for x, found in ((INSIDE, near), (OUTSIDE, far)):
            s = truth(x) + torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))
            moves = []
            with torch.no_grad():
                for _ in range(6):
                    y = model(x, ADAPTER.encode(s))
                    moves.append(float((y - s).abs().mean()))
                    s = y
            found.append(moves[1] / moves[0])
            axes.semilogy(moves, color="#0f766e" if found is near else "#c2410c", linewidth=0.9)
        again.append(moves[-1] / moves[0])
    axes.set(xlabel="application of F(x, ·)", ylabel="how far it moves the answer")
    text = (
        "A projection changes nothing the second time: g(g(z)) = g(z), the principle of "
        "idempotent generative networks. Starting from wrong answers (the truth and noise of "
        "deviation 1), a second application of F(x, ·) moves them by a fraction of "
        f"{mean(near)} of the first one's move for inputs like the training data (green), and "
        f"of {mean(far)} outside (red); the sixth, outside, by {mean(again)}. So F(x, ·) "
        "contracts answers to those that it leaves as they are, in one step only where the "
        "signal is hardly heard. Outside these are what the network believes, not the truth."
    )
    return "IGN's projection, in pairs", text, figure


def pathways() -> Section:
    """Appendix C: a large gap outside, and the two ways in which the loss can be lowered."""
    scores: list[float] = []
    desired: list[float] = []
    undesired: list[float] = []
    figure, axes = plain_axes(6.0, 3.2)
    for seed in SEEDS:
        model = trained(seed)
        inside, outside = (
            (b - a).abs()[:, 0] for a, b in (gap(model, INSIDE), gap(model, OUTSIDE))
        )
        scores.append(auroc(outside.tolist(), inside.tolist()))
        axes.hist(inside, bins=40, density=True, histtype="step", color="#0f766e", range=(0, 0.4))
        axes.hist(outside, bins=40, density=True, histtype="step", color="#c2410c", range=(0, 0.4))
        y = truth(OUTSIDE)
        for stop, found in (("second", desired), ("first", undesired)):
            f = copy.deepcopy(model)
            optimizer = torch.optim.Adam(f.parameters(), 1e-4)
            y0 = first_pass(f, ADAPTER, OUTSIDE)
            if stop == "second":  # only y0 moves: F has no gradient
                y1 = second_pass(model, ADAPTER, OUTSIDE, y0).detach()
            else:  # only f(x, ·) moves: the set of its fixed points grows
                y0 = y0.detach()
                y1 = second_pass(f, ADAPTER, OUTSIDE, y0)
            torch.autograd.backward(idempotence_loss(ADAPTER, y1, y0))
            optimizer.step()
            before = [(one - y).abs().mean() for one in gap(model, OUTSIDE)]
            after = [(one - y).abs().mean() for one in gap(f, OUTSIDE)]
            index = 0 if stop == "second" else 1
            found.append(1000 * float(after[index] - before[index]))
    axes.set(xlabel="|y1 − y0| inside (green) and outside (red)", ylabel="density")
    text = (
        f"The gap tells inputs outside from those inside with an AUROC of {mean(scores)}. A "
        "step of 1e-4 on one of the loss's two gradient pathways at a time changes, in "
        f"thousandths, the error of the first answer by {mean(desired)} (the desirable pathway: "
        f"y0 moves to F(x, y0)) and the error of the second answer by {mean(undesired)} (the "
        "undesirable one: f(x, ·) learns to confirm y0). Freezing F cuts the second. Whether "
        "the first helps depends on whether y1 is nearer to the truth than y0, which training "
        "does not ask for outside."
    )
    return "Appendix C: two pathways", text, figure


def main(folder: Path) -> None:
    """Writes `theory.md` and its pictures into a folder."""
    pictures = make_folder(folder / "theory")
    parts = ["# The paper's arguments, in small", __doc__.partition("\n\n")[2].strip()]
    parts.append(
        "In brackets: the smallest and largest of the five seeds. `nox -s theory` makes this page."
    )
    for make in (zigzag, anchor, average, projection, pathways):
        title, text, figure = make()
        write_figure(pictures / f"{make.__name__}.png", figure, dpi=100)
        parts += [f"## {title}", text, f"![{title}](theory/{make.__name__}.png)"]
        print(f"{title}\n  {text}\n")
    write_text(folder / "theory.md", "\n\n".join(parts) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs"))
