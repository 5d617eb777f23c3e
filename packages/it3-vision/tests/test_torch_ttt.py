"""The methods beside torch-ttt 0.0.2: same net, weights, images, optimiser and rate.

Where torch-ttt does what the papers say, answers and weights must agree. Where it does not, a test
holds in what it differs. Its TTT is not compared: it turns images with torchvision, which is not
installed here.
"""

from __future__ import annotations

import copy
import math
import sys
import types
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from it3_core import IT3, Activations, ActMAD, Classification, Conditioned, condition
from it3_vision.methods import ETA, MEMO, Fisher, Tent

CLASSES = 5
ADAPTER = Classification(CLASSES)
LR = 0.05
CLOSE: dict[str, Any] = {"rtol": 0, "atol": 1e-9}  # in double precision
LAYERS = ["2", "5"]

Engines = Callable[[str], Any]


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    """torch-ttt's classes by name."""
    pytest.importorskip("torch_ttt")
    with pytest.MonkeyPatch.context() as patch:
        # It imports all its engines at once, and some of them torchvision: MEMO for copies that
        # we make ourselves here, TTT and TTT++ for images, which are not compared.
        for name in ("torchvision", "torchvision.transforms", "torchvision.transforms.functional"):
            patch.setitem(sys.modules, name, types.ModuleType(name))
        from torch_ttt.engine_registry import EngineRegistry

        yield EngineRegistry.get_engine


def nets(norm: str = "batch") -> tuple[nn.Sequential, Conditioned]:
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


def stream(batches: int = 3, size: int = 12) -> list[Tensor]:
    """Images of different colours and contrasts, so that their answers differ."""
    torch.manual_seed(1)
    made = []
    for _ in range(batches):
        colour, contrast = torch.randn(2, size, 3, 1, 1, dtype=torch.float64) * 2
        made.append(torch.randn(size, 3, 9, 9, dtype=torch.float64) * contrast + colour)
    return made


def settings(steps: int = 1, online: bool = False) -> dict[str, Any]:
    """torch-ttt's; Adam is the only optimiser that it has."""
    return {"lr": LR, "num_steps": steps, "copy_model": not online}


class Watched:
    """An Adam whose weights can be looked at after the step."""

    weights: list[Tensor]

    def __call__(self, parameters: list[Tensor], lr: float) -> torch.optim.Adam:
        self.weights = parameters
        return torch.optim.Adam(parameters, lr=lr)


def check_same(engine: Any, make: Callable[..., Any], batches: list[Tensor]) -> Any:
    """Answers and weights of both, batch by batch; our method, which `make` makes, is returned."""
    watched = Watched()
    ours, seen = make(optimizer="Adam"), make(optimizer=watched)
    for x in batches:
        expected, _ = engine(x)
        found = ours(x)
        torch.testing.assert_close(found.prediction, expected, **CLOSE)
        assert not torch.allclose(found.prediction, found.initial, atol=1e-3)
        torch.testing.assert_close(seen(x).prediction, expected, **CLOSE)
        weights = engine.optimizer.param_groups[0]["params"]
        torch.testing.assert_close(watched.weights, weights, **CLOSE)
    return ours


# Tent: it takes the batch's statistics in training mode only


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("online", [True, False])
@pytest.mark.parametrize("norm", ["batch", "source"])
def test_tent(engines: Engines, steps: int, online: bool, norm: Any) -> None:
    """As published; and as its documentation calls it, which leaves the training statistics."""
    net, model = nets()
    engine = engines("tent")(net, settings(steps, online)).eval()
    engine.model.train(norm == "batch")
    how: dict[str, Any] = {"online": online, "answer": "after", "norm": norm}
    check_same(engine, partial(Tent, model, ADAPTER, lr=LR, steps=steps, **how), stream())


# ETA and EATA: the same of its statistics; and it goes on by momentum where nothing is chosen

RULES = (0.6, 0.9)  # each leaves out some images, never all
MARGINS = {"e_margin": RULES[0] * math.log(CLASSES), "d_margin": RULES[1]}


@pytest.mark.parametrize("online", [True, False])
@pytest.mark.parametrize("beta", [0.0, 50.0])
def test_eata(engines: Engines, online: bool, beta: float) -> None:
    net, model = nets()
    fisher = Fisher.collect(model, ADAPTER, stream(4)) if beta else None
    engine = engines("eata")(net, settings(2, online), **MARGINS, fisher_alpha=beta)
    engine.eval().model.train()
    if fisher is not None:
        engine.fishers = {
            name.removeprefix("model."): (value, model.get_parameter(name).detach())
            for name, value in fisher.importance.items()
        }
    how: dict[str, Any] = {"online": online, "answer": "after", "steps": 2, "lr": LR}
    make = partial(ETA, model, ADAPTER, fisher, fisher_weight=beta, **how)
    sure, new = RULES
    ours = check_same(engine, partial(make, sure=sure, new=new), stream())
    if online:
        average = ours.state_dict()["average"]
        torch.testing.assert_close(average, engine.current_model_probs, **CLOSE)
    x, answers = stream()[0], []
    for rules in ((sure, new), (1.0, new), (sure, 1.1)):  # both, and each alone
        answers.append(make(sure=rules[0], new=rules[1])(x).prediction)
    assert not torch.allclose(answers[0], answers[1])
    assert not torch.allclose(answers[0], answers[2])


def test_eata_moves_where_nothing_is_chosen_and_computes_no_fisher(engines: Engines) -> None:
    net, _ = nets()
    engine = engines("eata")(net, settings(online=True), **MARGINS).eval()
    x = stream()[0]
    engine(x)
    before = copy.deepcopy(engine.model.state_dict())
    engine.e_margin = 0.0
    _, loss = engine(x)
    assert loss.isnan()
    assert not torch.equal(engine.model.state_dict()["1.weight"], before["1.weight"])
    with pytest.raises(TypeError, match="_configure_bn"):
        engine.compute_fishers(stream())


# MEMO: on networks without batch norm


def test_memo(engines: Engines) -> None:
    net, model = nets("group")
    made: list[Tensor] = []

    def augment(image: Tensor, copies: int, generator: torch.Generator) -> Tensor:
        """The same copies for both libraries, of which ours comes last."""
        return torch.stack(made[-copies:])

    def copied(image: Tensor) -> Tensor:
        made.append(image[0] + 0.3 * torch.randn_like(image[0]))
        return made[-1][None]

    engine = engines("memo")(net, settings(), augmentations=copied, n_augmentations=8).eval()
    make = partial(MEMO, model, ADAPTER, augment, copies=8, lr=LR, parameters="model.*")
    check_same(engine, make, stream(size=1))


def test_memo_fails_on_batch_norms(engines: Engines) -> None:
    net, _ = nets()
    engine = engines("memo")(net, settings(), augmentations=copy.copy).eval()
    with pytest.raises(TypeError, match="_modified_bn_forward"):
        engine(stream(size=1)[0])


# ActMAD: variances divided by n - 1, where ours are divided by n


@pytest.mark.parametrize("steps", [1, 2])
def test_actmad(engines: Engines, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    net, model = nets()
    (known,), batches = stream(1, 20), stream()
    names = [f"model.{layer}" for layer in LAYERS]
    activations = Activations.collect(model, ADAPTER, [known], names)
    make = partial(ActMAD, model, ADAPTER, activations, lr=LR, steps=steps, parameters="model.*")
    theirs = engines("actmad")(net, LAYERS, settings(steps)).eval()
    theirs.compute_statistics([(known,)])
    with pytest.raises(AssertionError, match="not close"):
        check_same(theirs, make, batches)
    with pytest.warns(UserWarning, match="degrees of freedom"):
        assert theirs(batches[0][:1])[0].isnan().all()

    monkeypatch.setattr(torch, "var", partial(torch.var, correction=0))
    theirs.compute_statistics([(known,)])
    check_same(theirs, make, batches)


# IT³: no frozen F, so that a gradient flows into its weights, and a second step moves them


def test_it3(engines: Engines) -> None:
    net, model = nets()

    def embed(y: Tensor) -> Tensor:  # torch-ttt's own takes logits as they are
        assert model.embed is not None
        embedding: Tensor = model.embed(ADAPTER.encode(y))
        return embedding[..., None, None]

    def engine(steps: int, detached: bool) -> Any:
        def distance(y1: Tensor, y0: Tensor) -> Tensor:
            return ADAPTER.distance(y1.detach() if detached else y1, y0).mean()

        given = {"embeder": embed, "combine_fn": torch.add, "distance_fn": distance}
        made = engines("ittt")(net, LAYERS[0], **given, optimization_parameters=settings(steps))
        return made.eval()

    make = partial(IT3, model, ADAPTER, lr=LR, parameters="model.*", trust_region=False)
    check_same(engine(1, detached=True), make, stream())
    for x in stream():  # the gap is ours in any case
        _, gap = engine(1, detached=False)(x)
        torch.testing.assert_close(make()(x).error_before.mean(), gap, **CLOSE)
    with pytest.raises(AssertionError, match="not close"):
        check_same(engine(1, detached=False), partial(make, anchor_gradient=True), stream())
    with pytest.raises(AssertionError, match="not close"):
        check_same(engine(2, detached=True), partial(make, steps=2), stream())
