"""Each method, step by step, against its paper written out on an ordinary copy of the network."""

from __future__ import annotations

import copy
import math
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from it3_core import ETA, BatchStatistics, Classification, Tent, condition
from it3_vision.methods import MEMO, TTT, Fisher, with_rotation_head

CLASSES = 5
CLOSE: dict[str, Any] = {"rtol": 0, "atol": 1e-9}  # in double precision
MOMENTUM = partial(torch.optim.SGD, momentum=0.9)


class Tiny(nn.Module):
    """Two blocks of convolution and norm, and a Linear."""

    def __init__(self, norm):
        super().__init__()
        self.block1 = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), norm(6), nn.ReLU())
        self.block2 = nn.Sequential(nn.Conv2d(6, 8, 3, stride=2), norm(8), nn.ReLU())
        self.fc = nn.Linear(8, CLASSES)

    def forward(self, x):
        output: Tensor = self.fc(self.block2(self.block1(x)).mean((2, 3)))
        return output


def tiny(norm="batch"):
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


def stream(batches=3, size=6):
    """Images of different colours and contrasts, so that their answers differ."""
    torch.manual_seed(1)
    made = []
    for _ in range(batches):
        colour, contrast = torch.randn(2, size, 3, 1, 1, dtype=torch.float64) * 2
        made.append(torch.randn(size, 3, 9, 9, dtype=torch.float64) * contrast + colour)
    return made


def norms(net):
    return (layer for layer in net.modules() if isinstance(layer, nn.BatchNorm2d))


def configured(model):
    """A copy as Tent's `configure_model` leaves it: batch statistics, affine weights only."""
    net = copy.deepcopy(model).train().requires_grad_(False)
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm2d | nn.GroupNorm):
            layer.requires_grad_(True)
    for layer in norms(net):
        layer.track_running_stats = False
        layer.running_mean = layer.running_var = None
    return net


def started(model, make, lr):
    net = configured(model)
    return net, make([p for p in net.parameters() if p.requires_grad], lr=lr)


def blended(model, share):
    """A copy whose batch norms blend, written as Schneider et al. have it."""

    def forward(layer, x):
        mean = (1 - share) * layer.running_mean + share * x.mean((0, 2, 3))
        var = (1 - share) * layer.running_var + share * x.var((0, 2, 3), correction=0)
        numbers = (mean, var, layer.weight, layer.bias)
        mean, var, scale, shift = (v.view(1, -1, 1, 1) for v in numbers)
        return (x - mean) / (var + layer.eps).sqrt() * scale + shift

    net = copy.deepcopy(model).eval()
    for layer in norms(net):
        layer.forward = partial(forward, layer)
    return net


def entropy(logits):
    p = logits.softmax(1)
    return -(p * p.log()).sum(1)


# Batch-norm statistics: Nado et al. 2020, Schneider et al. 2020


@pytest.mark.parametrize("prior", [0, 16])
def test_batch_statistics(prior):
    model, adapter = tiny()
    method = BatchStatistics(model, adapter, prior=prior)
    for size in (1, 6, 2, 6):
        (x,) = stream(1, size)
        net = blended(model, size / (prior + size)) if prior else configured(model)
        with torch.no_grad():
            expected = net(x, adapter.neutral(x))
        torch.testing.assert_close(method(x).prediction, expected, **CLOSE)


# Tent: Wang et al. 2021


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("online", [True, False])
@pytest.mark.parametrize("optimizer", ["Adam", MOMENTUM])
@pytest.mark.parametrize("steps", [1, 2])
def test_tent(norm, online, optimizer, steps):
    """Online it answers as the authors' code does, before its last step; in episodes after it."""
    model, adapter = tiny(norm)
    method = Tent(model, adapter, optimizer=optimizer, lr=0.05, online=online, steps=steps)

    make = torch.optim.Adam if optimizer == "Adam" else optimizer
    net, rule = started(model, make, 0.05)
    for x in stream():
        if not online:
            net, rule = started(model, make, 0.05)
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
        expected = outputs[-2] if online else outputs[-1]
        torch.testing.assert_close(found.prediction, expected, **CLOSE)
        torch.testing.assert_close(found.initial, outputs[0], **CLOSE)
        assert found.steps == steps


# ETA and EATA: Niu et al. 2022

# So that each rule leaves out some images and not others.
RULES = {"batch": (0.6, 0.85), "group": (0.3, 0.993)}


def plain_fisher(model, adapter):
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
def test_fisher(norm):
    model, adapter = tiny(norm)
    expected = plain_fisher(model, adapter)
    found = Fisher.collect(model, adapter, stream(4))
    assert found.importance.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found.importance[name], value, **CLOSE)


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("online", [True, False])
@pytest.mark.parametrize("beta", [0.0, 50.0])
@pytest.mark.parametrize("steps", [1, 2])
def test_eta(norm, online, beta, steps):
    model, adapter = tiny(norm)
    sure, new = RULES[norm]
    importance = plain_fisher(model, adapter)
    method = ETA(
        model, adapter, importance if beta else None, fisher_weight=beta, sure=sure,
        new=new, online=online, steps=steps, lr=0.02,
    )  # fmt: skip
    source = dict(model.named_parameters())
    e0 = sure * math.log(CLASSES)

    average = None
    net, rule = started(model, MOMENTUM, 0.02)
    unsure = old = all_taken = 0
    for x in stream(4):
        if not online:
            (net, rule), average = started(model, MOMENTUM, 0.02), None
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
        expected = outputs[-2] if online else outputs[-1]
        torch.testing.assert_close(found.prediction, expected, **CLOSE)
        assert found.steps == taken
        all_taken += taken
    assert all_taken > 0
    assert unsure > 0
    assert old > 0 or (not online and steps == 1)


# MEMO: Zhang et al. 2022


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("steps", [1, 2])
def test_memo(norm, steps):
    model, adapter = tiny(norm)
    seen: list[Tensor] = []

    def augment(image, copies, generator):
        noise = torch.randn(copies, *image.shape, generator=generator, dtype=image.dtype)
        seen.append(image + 0.3 * noise)
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


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("layer", ["model.block1", "model.block2"])
def test_ttt(norm, layer):
    model, adapter = tiny(norm)
    model = with_rotation_head(model, adapter, layer, stream(1)[0]).eval()
    method = TTT(model, adapter, steps=2, lr=0.05)

    def features(net, x):
        neutral = net.embed(adapter.neutral(x))[..., None, None]
        first: Tensor = net.model.block1[2](net.model.block1[1](net.model.block1[0](x))) + neutral
        for part in net.model.block2 if layer == "model.block2" else ():
            first = part(first)
        return first

    for x in stream(size=2):
        expected = []
        for image in torch.split(x, 1):
            net: Any = copy.deepcopy(model)
            shared = [net.embed, net.model.block1, *([net.model.block2] if "2" in layer else [])]
            rule = torch.optim.SGD([p for part in shared for p in part.parameters()], lr=0.05)
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
