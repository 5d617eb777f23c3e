"""Each method, step by step, against its paper written out on an ordinary copy of the network."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from it3_core import Adapter, Classification, Conditioned, condition
from it3_vision.methods import TTT, BatchNormStats, Tent, with_rotation_head

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
                tensor.add_(torch.randn_like(tensor) * 0.4)
    return model, adapter


def stream(batches: int = 3, size: int = 6) -> list[Tensor]:
    torch.manual_seed(1)
    return [torch.randn(size, 3, 9, 9, dtype=torch.float64) * 2 + 0.5 for _ in range(batches)]


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
        return nnf.batch_norm(x, mean, var, layer.weight, layer.bias, False, 0, layer.eps)

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
