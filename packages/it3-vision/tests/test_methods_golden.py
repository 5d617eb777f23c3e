"""Each method, step by step, against its paper written out on an ordinary copy of the network."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from it3_core import Adapter, Classification, Conditioned, condition
from it3_vision.methods import ETA, MEMO, TTT, BatchNormStats, Fisher, Tent, with_rotation_head

CLASSES = 5
CLOSE: dict[str, Any] = {"rtol": 0, "atol": 1e-9}  # in double precision
MOMENTUM = partial(torch.optim.SGD, momentum=0.9)


class Tiny(nn.Module):
    """Two blocks of convolution and norm, and a Linear."""

    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.block1 = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), norm(6), nn.ReLU())
        self.block2 = nn.Sequential(nn.Conv2d(6, 8, 3, stride=2), norm(8), nn.ReLU())
        self.fc = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.fc(self.block2(self.block1(x)).mean((2, 3)))
        return output


def tiny(norm: str = "batch") -> tuple[Conditioned, Adapter]:
    """A network in double precision whose every number counts, and which hears its signal."""
    torch.manual_seed(0)
    adapter = Classification(CLASSES)
    make = nn.BatchNorm2d if norm == "batch" else partial(nn.GroupNorm, 2)
    model = condition(Tiny(make).double(), adapter, "block1").eval()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if "running_var" in name:
                tensor.uniform_(0.3, 0.8)
            elif tensor.is_floating_point():
                tensor.add_(torch.randn_like(tensor) * (1.5 if "fc" in name else 0.4))
    return model, adapter


def stream(batches: int = 3, size: int = 6) -> list[Tensor]:
    """Images of different colours and contrasts, so that their answers differ."""
    torch.manual_seed(1)
    made = []
    for _ in range(batches):
        colour, contrast = torch.randn(2, size, 3, 1, 1, dtype=torch.float64) * 2
        made.append(torch.randn(size, 3, 9, 9, dtype=torch.float64) * contrast + colour)
    return made


def norms(net: nn.Module) -> Iterator[nn.BatchNorm2d]:
    return (layer for layer in net.modules() if isinstance(layer, nn.BatchNorm2d))


def configured(model: nn.Module) -> nn.Module:
    """A copy as Tent's `configure_model` leaves it: batch statistics, affine weights only."""
    net = copy.deepcopy(model).train().requires_grad_(False)
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm2d | nn.GroupNorm):
            layer.requires_grad_(True)
    for layer in norms(net):
        layer.track_running_stats = False
        layer.running_mean = layer.running_var = None
    return net


def blended(model: nn.Module, share: float) -> nn.Module:
    """A copy whose batch norms blend, written as Schneider et al. have it."""

    def forward(layer: nn.BatchNorm2d, x: Tensor) -> Tensor:
        assert layer.running_mean is not None
        assert layer.running_var is not None
        mean = (1 - share) * layer.running_mean + share * x.mean((0, 2, 3))
        var = (1 - share) * layer.running_var + share * x.var((0, 2, 3), correction=0)
        mean, var, scale, shift = (
            v.view(1, -1, 1, 1) for v in (mean, var, layer.weight, layer.bias)
        )
        return (x - mean) / (var + layer.eps).sqrt() * scale + shift

    net = copy.deepcopy(model).eval()
    for layer in norms(net):
        layer.forward = partial(forward, layer)  # type: ignore[method-assign]
    return net


def entropy(logits: Tensor) -> Tensor:
    p = logits.softmax(1)
    return -(p * p.log()).sum(1)


# Batch-norm statistics: Nado et al. 2020, Schneider et al. 2020


@pytest.mark.parametrize("size", [1, 6])
def test_batch_statistics(size: int) -> None:
    model, adapter = tiny()
    for x in stream(size=size):
        with torch.no_grad():
            expected = configured(model)(x, adapter.neutral(x))
        found = BatchNormStats(model, adapter)(x)
        torch.testing.assert_close(found.prediction, expected, **CLOSE)


def test_statistics_with_a_prior() -> None:
    model, adapter = tiny()
    method = BatchNormStats(model, adapter, prior=16)
    for size in (1, 6, 2, 6):
        (x,) = stream(1, size)
        with torch.no_grad():
            expected = blended(model, size / (16 + size))(x, adapter.neutral(x))
        torch.testing.assert_close(method(x).prediction, expected, **CLOSE)
        fixed = BatchNormStats(model, adapter, share=0.3)(x).prediction
        with torch.no_grad():
            expected = blended(model, 0.3)(x, adapter.neutral(x))
        torch.testing.assert_close(fixed, expected, **CLOSE)


# Tent: Wang et al. 2021


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("online", [True, False])
@pytest.mark.parametrize("answer", ["before", "after"])
@pytest.mark.parametrize("optimizer", ["Adam", MOMENTUM])
@pytest.mark.parametrize("steps", [1, 2])
def test_tent(norm: str, online: bool, answer: Any, optimizer: Any, steps: int) -> None:
    model, adapter = tiny(norm)
    how: dict[str, Any] = {"online": online, "answer": answer, "steps": steps}
    method = Tent(model, adapter, optimizer=optimizer, lr=0.05, **how)

    def start() -> tuple[nn.Module, torch.optim.Optimizer]:
        net = configured(model)
        make = torch.optim.Adam if optimizer == "Adam" else optimizer
        return net, make([p for p in net.parameters() if p.requires_grad], lr=0.05)

    net, rule = start()
    for x in stream():
        if not online:
            net, rule = start()
        outputs = []
        for _ in range(steps):
            output = net(x, adapter.neutral(x))
            outputs.append(output.detach())
            rule.zero_grad()
            torch.autograd.backward(entropy(output).mean())
            rule.step()
        with torch.no_grad():
            outputs.append(net(x, adapter.neutral(x)))
        found = method(x)
        expected = outputs[-2] if answer == "before" else outputs[-1]
        torch.testing.assert_close(found.prediction, expected, **CLOSE)
        torch.testing.assert_close(found.initial, outputs[0], **CLOSE)
        assert found.steps == steps


def test_tent_answers_as_the_authors_code_does_unless_told() -> None:
    model, adapter = tiny()
    assert Tent(model, adapter).answer == "before"
    assert Tent(model, adapter, online=False).answer == "after"


# ETA and EATA: Niu et al. 2022

# So that each rule leaves out some images and not others.
RULES = {"batch": (0.6, 0.85), "group": (0.3, 0.993)}


def plain_fisher(model: nn.Module, adapter: Adapter) -> dict[str, Tensor]:
    net = configured(model)
    total: dict[str, Tensor] = {}
    for x in stream(4):
        net.zero_grad()
        output = net(x, adapter.neutral(x))
        torch.autograd.backward(nnf.cross_entropy(output, output.argmax(1)))
        for name, parameter in net.named_parameters():
            if parameter.grad is not None:
                total[name] = total.get(name, 0) + parameter.grad**2 / 4
    return total


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_fisher(norm: str) -> None:
    model, adapter = tiny(norm)
    expected = plain_fisher(model, adapter)
    found = Fisher.collect(model, adapter, stream(4))
    assert found.batches == 4
    assert found.importance.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found.importance[name], value, **CLOSE)


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("online", [True, False])
@pytest.mark.parametrize("answer", ["before", "after"])
@pytest.mark.parametrize("beta", [0.0, 50.0])
@pytest.mark.parametrize("steps", [1, 2])
def test_eta(norm: str, online: bool, answer: Any, beta: float, steps: int) -> None:
    model, adapter = tiny(norm)
    sure, new = RULES[norm]
    importance = plain_fisher(model, adapter)
    method = ETA(
        model, adapter, Fisher(importance, 4) if beta else None, fisher_weight=beta, sure=sure,
        new=new, online=online, answer=answer, steps=steps, lr=0.02,
    )  # fmt: skip
    source = dict(model.named_parameters())
    e0 = sure * math.log(CLASSES)

    def start() -> tuple[nn.Module, torch.optim.Optimizer, Tensor | None]:
        net = configured(model)
        return net, MOMENTUM([p for p in net.parameters() if p.requires_grad], lr=0.02), None

    net, rule, average = start()
    unsure = old = all_taken = 0
    for x in stream(4):
        if not online:
            net, rule, average = start()
        outputs, taken = [], 0
        for _ in range(steps):
            output = net(x, adapter.neutral(x))
            outputs.append(output.detach())
            rows = []
            for row, h in enumerate(entropy(output).tolist()):
                if h >= e0:
                    unsure += 1
                    continue
                p = output[row].softmax(0).detach()
                if average is not None and float(p @ average / (p.norm() * average.norm())) >= new:
                    old += 1
                    continue
                rows.append(row)
            if not rows:
                continue
            now = output[rows].softmax(1).mean(0).detach()
            average = now if average is None else 0.9 * average + 0.1 * now
            h = entropy(output[rows])
            loss = (h / (h.detach() - e0).exp()).mean()
            for name, parameter in net.named_parameters():
                if beta and name in importance:
                    gone = parameter - source[name].detach()
                    loss = loss + beta * (importance[name] * gone**2).sum()
            rule.zero_grad()
            torch.autograd.backward(loss)
            rule.step()
            taken += 1
        with torch.no_grad():
            outputs.append(net(x, adapter.neutral(x)))
        found = method(x)
        expected = outputs[-2] if answer == "before" else outputs[-1]
        torch.testing.assert_close(found.prediction, expected, **CLOSE)
        assert found.steps == taken
        all_taken += taken
    assert all_taken > 0
    assert unsure > 0
    assert old > 0 or (not online and steps == 1)


def test_eta_takes_no_step_where_no_answer_is_sure() -> None:
    model, adapter = tiny()
    method = ETA(model, adapter, sure=1e-6, answer="after", lr=1.0)
    for x in stream():
        found = method(x)
        with torch.no_grad():
            expected = configured(model)(x, adapter.neutral(x))
        torch.testing.assert_close(found.prediction, expected, **CLOSE)
        assert (found.steps, found.fallback) == (0, None)


# MEMO: Zhang et al. 2022


def noisy(image: Tensor, copies: int, generator: torch.Generator) -> Tensor:
    noise = torch.randn(copies, *image.shape, generator=generator, dtype=image.dtype)
    return image + 0.3 * noise


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("steps", [1, 2])
def test_memo(norm: str, steps: int) -> None:
    model, adapter = tiny(norm)
    seen: list[Tensor] = []

    def augment(image: Tensor, copies: int, generator: torch.Generator) -> Tensor:
        seen.append(noisy(image, copies, generator))
        return seen[-1]

    method = MEMO(model, adapter, augment, copies=8, lr=0.1, steps=steps)
    for x in stream(2, 3):
        seen.clear()
        found = method(x)
        expected = []
        for image in torch.split(x, 1):
            net = blended(model, 1 / 17)
            rule = torch.optim.SGD(net.parameters(), lr=0.1)
            for _ in range(steps):
                copies = seen.pop(0)
                mean = net(copies, adapter.neutral(copies)).softmax(1).mean(0)
                rule.zero_grad()
                torch.autograd.backward(-(mean * mean.log()).sum())
                rule.step()
            with torch.no_grad():
                expected.append(net(image, adapter.neutral(image)))
        torch.testing.assert_close(found.prediction, torch.cat(expected), **CLOSE)
        assert not torch.equal(found.prediction, found.initial)


# TTT: Sun et al. 2020


def with_head(norm: str = "batch", layer: str = "model.block2") -> tuple[Conditioned, Adapter]:
    model, adapter = tiny(norm)
    return with_rotation_head(model, adapter, layer, stream(1)[0]).eval(), adapter


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("online", [True, False])
@pytest.mark.parametrize("head", [True, False])
@pytest.mark.parametrize("layer", ["model.block1", "model.block2"])
def test_ttt(norm: str, online: bool, head: bool, layer: str) -> None:
    model, adapter = with_head(norm, layer)
    method = TTT(model, adapter, online=online, head=head, steps=2, lr=0.05)

    def features(net: Any, x: Tensor) -> Tensor:
        neutral = net.embed(adapter.neutral(x))[..., None, None]
        first: Tensor = net.model.block1[2](net.model.block1[1](net.model.block1[0](x))) + neutral
        for part in net.model.block2 if layer == "model.block2" else ():
            first = part(first)
        return first

    def start() -> tuple[Any, torch.optim.Optimizer]:
        net: Any = copy.deepcopy(model)
        shared = [net.embed, net.model.block1, *([net.model.block2] if "2" in layer else [])]
        chosen = [p for part in shared for p in part.parameters()]
        chosen += net.rotation.parameters() if head else []
        return net, torch.optim.SGD(chosen, lr=0.05)

    net, rule = start()
    for x in stream(size=2):
        expected = []
        for image in torch.split(x, 1):
            if not online:
                net, rule = start()
            for _ in range(2):
                rotated = torch.cat([torch.rot90(image, k, (2, 3)) for k in range(4)])
                pooled = features(net, rotated).mean((2, 3))
                logits = pooled @ net.rotation.weight.T + net.rotation.bias
                rule.zero_grad()
                torch.autograd.backward(nnf.cross_entropy(logits, torch.arange(4)))
                rule.step()
            with torch.no_grad():
                expected.append(net(image, adapter.neutral(image)))
        torch.testing.assert_close(method(x).prediction, torch.cat(expected), **CLOSE)


def test_ttt_copies_are_the_authors_kind() -> None:
    """Thirty-two shifted copies, equally many of each turn, the same in every run."""
    model, adapter = with_head()
    method = TTT(model, adapter, copies=32, crop=4)
    (x,) = stream(1, 1)
    shifted = method._shifted(x, torch.Generator().manual_seed(0))
    assert shifted.shape == (32, 3, 9, 9)
    inner = x[:, :, 4:5, 4:5]  # a shift of at most 4 keeps the middle pixel inside
    assert all(bool((copy_ == inner[0]).all(0).any()) for copy_ in shifted)
    assert len({tuple(s.flatten().tolist()) for s in shifted}) > 16
    first, second = method(x).prediction, method(x).prediction
    assert not torch.equal(first, second)  # other shifts each time
    method.reset()
    assert torch.equal(method(x).prediction, first)
    assert torch.equal(TTT(model, adapter, copies=32, crop=4)(x).prediction, first)
