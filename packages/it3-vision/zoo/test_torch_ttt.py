"""The methods beside torch-ttt 0.0.2: same net, weights, images, optimiser and rate.

Where torch-ttt does what the papers say, answers and weights must agree. Where it does not, a test
holds in what it differs. Its TTT is not compared: it turns images with torchvision, which is not
installed here; nor is EATA, which tests/test_methods_golden.py holds against the paper.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from it3_core import IT3, Activations, ActMAD, Classification, Tent, condition
from it3_vision.methods import MEMO

CLASSES = 5
ADAPTER = Classification(CLASSES)
LR = 0.05
CLOSE: dict[str, Any] = {"rtol": 0, "atol": 1e-9}  # in double precision
LAYERS = ["2", "5"]

Engines = Callable[[str], Any]


@pytest.fixture(scope="module")
def engines():
    """torch-ttt's classes by name."""
    pytest.importorskip("torch_ttt")
    with pytest.MonkeyPatch.context() as patch:
        # It imports all its engines at once, and some of them torchvision: MEMO for copies that
        # we make ourselves here, TTT and TTT++ for images, which are not compared.
        for name in ("torchvision", "torchvision.transforms", "torchvision.transforms.functional"):
            patch.setitem(sys.modules, name, types.ModuleType(name))
        from torch_ttt.engine_registry import EngineRegistry

        yield EngineRegistry.get_engine


def nets(norm="batch"):
    """One network as torch-ttt takes it and as we do, with the same weights."""
    torch.manual_seed(0)
    make = partial(nn.BatchNorm2d, momentum=1.0) if norm == "batch" else partial(nn.GroupNorm, 2)
    net = nn.Sequential(
        *(nn.Conv2d(3, 6, 3, padding=1), make(6), nn.ReLU()),
        *(nn.Conv2d(6, 8, 3, stride=2), make(8), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES)),
    ).double()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.4)
        net.get_parameter("8.weight").normal_(std=3)  # sure of some images and not of others
        net(torch.cat(stream(9)))  # statistics to remember, near those of the first batches
    net.eval()
    model = condition(net, ADAPTER, LAYERS[0], channels=6)
    assert model.embed is not None
    with torch.no_grad():  # heard, but for the neutral signal, which torch-ttt doesn't give
        neutral = ADAPTER.neutral(torch.zeros(1, 1, dtype=torch.float64))[0]
        weight = nn.init.normal_(model.embed.get_parameter("weight"))
        weight -= torch.outer(weight @ neutral, neutral) / (neutral @ neutral)
    return net, model


def stream(batches=3, size=12):
    """Images of different colours and contrasts, so that their answers differ."""
    torch.manual_seed(1)
    made = []
    for _ in range(batches):
        colour, contrast = torch.randn(2, size, 3, 1, 1, dtype=torch.float64) * 2
        made.append(torch.randn(size, 3, 9, 9, dtype=torch.float64) * contrast + colour)
    return made


def settings(steps=1, online=False):
    """torch-ttt's; Adam is the only optimiser that it has."""
    return {"lr": LR, "num_steps": steps, "copy_model": not online}


class Watched:
    """An Adam whose weights can be looked at after the step."""

    weights: list[Tensor]

    def __call__(self, parameters, lr):
        self.weights = parameters
        return torch.optim.Adam(parameters, lr=lr)


def check_same(engine, make, batches, online=False):
    """Answers and weights of both, batch by batch; our method, which `make` makes, is returned.

    Online only weights are compared: ours answers before its last step, as the papers' code does.
    """
    watched = Watched()
    ours, seen = make(optimizer="Adam"), make(optimizer=watched)
    for x in batches:
        expected, _ = engine(x)
        found, again = ours(x), seen(x)
        if not online:
            torch.testing.assert_close(found.prediction, expected, **CLOSE)
            torch.testing.assert_close(again.prediction, expected, **CLOSE)
            assert not torch.allclose(found.prediction, found.initial, atol=1e-3)
        weights = engine.optimizer.param_groups[0]["params"]
        torch.testing.assert_close(watched.weights, weights, **CLOSE)
    return ours


# Tent: it takes the batch's statistics in training mode only


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("online", [True, False])
@pytest.mark.parametrize("norm", ["batch", "source"])
def test_tent(engines, steps, online, norm):
    """As published; and as its documentation calls it, which leaves the training statistics."""
    net, model = nets()
    engine = engines("tent")(net, settings(steps, online)).eval()
    engine.model.train(norm == "batch")
    make = partial(Tent, model, ADAPTER, lr=LR, steps=steps, online=online, norm=norm)
    check_same(engine, make, stream(), online)


# MEMO: on networks without batch norm


def test_memo(engines):
    net, model = nets("group")
    made: list[Tensor] = []

    def augment(image, copies, generator):
        """The same copies for both libraries, of which ours comes last."""
        return torch.stack(made[-copies:])

    def copied(image):
        made.append(image[0] + 0.3 * torch.randn_like(image[0]))
        return made[-1][None]

    engine = engines("memo")(net, settings(), augmentations=copied, n_augmentations=8).eval()
    make = partial(MEMO, model, ADAPTER, augment, copies=8, lr=LR, parameters="model.*")
    check_same(engine, make, stream(size=1))


# ActMAD: variances divided by n - 1, where ours are divided by n


@pytest.mark.parametrize("steps", [1, 2])
def test_actmad(engines, steps, monkeypatch):
    net, model = nets()
    (known,), batches = stream(1, 20), stream()
    names = [f"model.{layer}" for layer in LAYERS]
    activations = Activations.collect(model, ADAPTER, [known], names)
    make = partial(ActMAD, model, ADAPTER, activations, lr=LR, steps=steps, parameters="model.*")
    theirs = engines("actmad")(net, LAYERS, settings(steps)).eval()
    monkeypatch.setattr(torch, "var", partial(torch.var, correction=0))
    theirs.compute_statistics([(known,)])
    check_same(theirs, make, batches)


# IT³: its F is not frozen, so that gradients flow into it: compared where they are cut off


def test_it3(engines):
    net, model = nets()

    def embed(y):  # torch-ttt's own takes logits as they are
        assert model.embed is not None
        embedding: Tensor = model.embed(ADAPTER.encode(y))
        return embedding[..., None, None]

    def distance(y1, y0):
        return ADAPTER.distance(y1.detach(), y0).mean()

    given = {"embeder": embed, "combine_fn": torch.add, "distance_fn": distance}
    engine = engines("ittt")(net, LAYERS[0], **given, optimization_parameters=settings(1))
    make = partial(IT3, model, ADAPTER, lr=LR, parameters="model.*", trust_region=False)
    check_same(engine.eval(), make, stream())
