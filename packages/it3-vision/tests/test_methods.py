"""What all methods promise, and how the rotation head gets on with the rest of it3-core."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from it3_core import (
    ETA,
    BatchStatistics,
    Classification,
    IT3Error,
    IT3Warning,
    Method,
    Regression,
    Source,
    Tent,
    condition,
    fit,
    load,
    save,
)
from it3_vision.augmix import AugMix
from it3_vision.methods import MEMO, TTT, Fisher, joint_loss, with_rotation_head
from it3_vision.methods.rotation import rotation_logits


def network(norm="batch", affine=True):
    make: dict[str, Callable[[int], nn.Module]] = {
        "batch": partial(nn.BatchNorm2d, affine=affine),
        "group": partial(nn.GroupNorm, 2, affine=affine),
        "none": lambda channels: nn.Identity(),
    }
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), make[norm](6), nn.ReLU(),
        nn.Conv2d(6, 8, 3, stride=2), make[norm](8), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5),
    )  # fmt: skip


def tiny(norm="batch", affine=True):
    adapter = Classification(5)
    model = condition(network(norm, affine), adapter, "2", channels=6).eval()
    nn.init.normal_(model.embed.weight)
    return with_rotation_head(model, adapter, "model.5", images(2)), adapter


def regression():
    net = network()
    net[8] = nn.Linear(8, 1)
    return condition(net, Regression(), "0")


def images(size=4, seed=1):
    return torch.randn(size, 3, 9, 9, generator=torch.Generator().manual_seed(seed)) + 0.5


def eata(model, adapter, **how):
    fisher = Fisher.collect(model, adapter, [images(seed=9)])
    return ETA(model, adapter, fisher.importance, **SURE, **how)


AUGMENT = AugMix(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5), shift=1)
SURE: dict[str, Any] = {"sure": 1.0, "new": 1.1}  # all are chosen
METHODS: dict[str, Callable[..., Any]] = {
    "batch-norm": BatchStatistics,
    "batch-norm-prior": partial(BatchStatistics, prior=16),
    "tent": Tent,
    "tent-episodic": partial(Tent, online=False),
    "eta": partial(ETA, **SURE),
    "eta-episodic": partial(ETA, online=False, **SURE),
    "eata": eata,
    "memo": partial(MEMO, augment=AUGMENT, copies=4),
    "ttt": partial(TTT, lr=0.1),
}
ONLINE = ["tent", "eta", "eata"]
STEPS = [name for name in METHODS if not name.startswith("batch-norm")]
each_method = pytest.mark.parametrize("name", METHODS)


@each_method
@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("size", [1, 4])
def test_answers_are_finite_and_the_module_stays_bit_identical(name, norm, size):
    model, adapter = tiny(norm)
    before = copy.deepcopy(model.state_dict())
    model.train()
    if norm == "group" and name.startswith("batch-norm"):
        with pytest.warns(IT3Warning, match="no batch norm: BatchStatistics answers as Source"):
            method = METHODS[name](model, adapter)
        expected = Source(model, adapter)(images(size)).prediction
        assert torch.equal(method(images(size)).prediction, expected)
    else:
        method = METHODS[name](model, adapter)
    assert isinstance(method, Method)
    for seed in range(2):
        answer = method(images(size, seed))
        assert answer.prediction.shape == answer.initial.shape == (size, 5)
        assert answer.fallback is None
        for numbers in (answer.prediction, answer.error_before, answer.error_after):
            assert bool(torch.isfinite(numbers).all())
        assert answer.error_before.shape == (size,)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert model.training


@each_method
def test_reset_starts_anew(name):
    model, adapter = tiny()
    method = METHODS[name](model, adapter)
    first = [method(images(seed=seed)).prediction for seed in range(3)]
    if name in ONLINE:
        assert not torch.equal(method(images(seed=0)).prediction, first[0])
    method.reset()
    for seed, expected in enumerate(first):
        assert torch.equal(method(images(seed=seed)).prediction, expected)


@pytest.mark.parametrize("name", ONLINE)
def test_a_stream_goes_on_after_a_restart(name):
    model, adapter = tiny()
    method = METHODS[name](model, adapter)
    for seed in range(2):
        method(images(seed=seed))
    state = method.state_dict()
    expected = method(images(seed=2)).prediction
    again = METHODS[name](model, adapter)
    again.load_state_dict(state)
    assert again.state_dict().keys() == state.keys()
    assert torch.equal(again(images(seed=2)).prediction, expected)
    with pytest.raises(IT3Error, match="make the method "):
        METHODS[name](*tiny("group")).load_state_dict({**state, "weights.model.8.bias": images()})
    model.double()
    with pytest.raises(IT3Error, match=r"call reset\(\) to begin anew"):
        method(images().double())
    again.load_state_dict(state)
    with pytest.raises(IT3Error, match="this state is not of"):
        again(images().double())


@pytest.mark.parametrize("name", STEPS)
def test_what_is_not_finite_is_said_to_be_and_leaves_no_trace(name):
    model, adapter = tiny()
    nan = images()
    nan[0, 0, 0, 0] = float("nan")
    for x, hint in ((nan, "has NaN in 1 of"), (images(0), "batch is empty")):
        with pytest.raises(IT3Error, match=hint):
            METHODS[name](model, adapter)(x)
    broken = copy.deepcopy(model)
    torch.nn.init.constant_(broken.get_parameter("model.8.bias"), float("nan"))
    answer = METHODS[name](broken, adapter)(images())
    assert "network's own answer is not finite" in str(answer.fallback)
    assert answer.steps == 0
    method = METHODS[name](model, adapter, lr=3e37, steps=3, norm="source")
    for seed in range(2):  # a second batch that goes on from NaN would not be finite at all
        answer = method(images(seed=seed))
        assert "lower the learning rate" in str(answer.fallback)
        assert torch.equal(answer.prediction, answer.initial)
        assert bool(torch.isfinite(answer.prediction).all())
        assert answer.steps == 0


@each_method
def test_calls_work_in_any_gradient_mode(name):
    model, adapter = tiny()
    expected = METHODS[name](model, adapter)(images()).prediction
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            found = METHODS[name](model, adapter)(images())
            assert torch.equal(found.prediction, expected)
            assert bool(torch.isfinite(found.error_after).all())


@pytest.mark.parametrize("name", STEPS)
def test_no_step_is_exactly_source(name):
    model, adapter = tiny()
    expected = Source(model, adapter)(images()).prediction
    for how in ({"lr": 0.0}, {"steps": 0}):
        answer = METHODS[name](model, adapter, norm="source", **how)(images())
        torch.testing.assert_close(answer.prediction, expected, rtol=0, atol=1e-6)
        assert answer.steps == 0


BAD: list[tuple[Callable[..., Any], str]] = [
    (lambda m, a: BatchStatistics(m, a, prior=-1), "number of images from 0 up"),
    (lambda m, a: Tent(m, a, lr=-1.0), "learning rate"),
    (lambda m, a: Tent(regression(), Regression())(images()), "logits .* of two classes or more"),
    (lambda m, a: ETA(m, a, sure=float("nan")), "sure and new must be positive"),
    (lambda m, a: ETA(m, a, decay=2.0), "decay must lie between"),
    (lambda m, a: ETA(m, a, {"fc": torch.zeros(1)}), "this Fisher is of another"),
    (lambda m, a: Fisher.collect(m, a, []), "at least one batch"),
    (lambda m, a: MEMO(m, a, AUGMENT, copies=0), "copies must be at least 1"),
    (lambda m, a: MEMO(m, a, lambda i, n, g: i[None])(images()), "augment must return"),
    (lambda m, a: AUGMENT(torch.zeros(1, 9, 9), 2, torch.Generator()), "images of 3 channels"),
    (lambda m, a: AugMix((0.5,), (0.0,)), "positive std"),
    (lambda m, a: AugMix((0.5,), (0.5,), shift=-1), "pixels from 0 up"),
    (lambda m, a: TTT(m, a)(torch.zeros(1, 3, 8, 9)), "only square images"),
    (lambda m, a: TTT(m, a)(torch.zeros(3, 9, 9)), "batch, channels, height, width"),
    (lambda m, a: TTT(condition(network(), a, "0"), a), "has no rotation head"),
    (lambda m, a: rotation_logits(condition(network(), a, "0"), images(), a.neutral(images())),
     "has no rotation head"),
    (lambda m, a: with_rotation_head(m, a, "model.5", images()), "something called 'rotation'"),
    (lambda m, a: with_rotation_head(condition(network(), a, "0"), a, "5", images()),
     "did you mean 'model.5'"),
    (lambda m, a: Tent(tiny("none")[0], a), "no normalisation layer"),
    (lambda m, a: Tent(tiny(affine=False)[0], a), "no normalisation layer"),
    (lambda m, a: joint_loss(m, a, images(), torch.arange(4), fraction=0.0), "fraction must be"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "hint"), BAD)
def test_bad_settings_say_what_to_change(make, hint):
    model, adapter = tiny()
    with pytest.raises(IT3Error, match=hint):
        make(model, adapter)


# The rotation head


def test_the_head_changes_no_answer_and_stops_the_network_at_its_layer():
    adapter, x = Classification(5), images()
    plain = condition(network(), adapter, "2", channels=6).eval()
    model = with_rotation_head(plain, adapter, "model.5", x)
    assert torch.equal(model(x, adapter.neutral(x)), plain(x, adapter.neutral(x)))
    assert not hasattr(plain, "rotation")
    ran: list[str] = []
    model.get_submodule("model.8").register_forward_hook(lambda *_: ran.append("8"))
    assert rotation_logits(model, x, adapter.neutral(x)).shape == (4, 4)
    assert ran == []
    model(x, adapter.neutral(x))
    assert ran == ["8"]


def test_the_head_is_trained_by_fit_and_saved_with_the_network(tmp_path):
    """A slope in four directions: the head learns to tell them apart."""
    torch.manual_seed(0)
    adapter = Classification(2)
    ramp = torch.linspace(-1, 1, 9).view(1, 1, 9, 1)
    y = torch.arange(128) % 2
    x = ramp.expand(128, 3, 9, 9) * (1 + y.view(-1, 1, 1, 1)) + torch.randn(128, 3, 9, 9) * 0.05

    def build():
        net = network("group")
        net[8] = nn.Linear(8, 2)
        net = condition(net, adapter, "2", channels=6)
        return with_rotation_head(net, adapter, "model.5", x[:2])

    model = build()
    loss = partial(joint_loss, weight=1.0, fraction=1.0)
    fit(model, adapter, (x, y), epochs=12, batch_size=16, lr=0.02, loss=loss, progress=False)
    model.eval()
    for k in range(4):
        turned = torch.rot90(x, k, (2, 3))
        said = rotation_logits(model, turned, adapter.neutral(x)).argmax(1)
        assert float((said == k).float().mean()) > 0.9
    save(tmp_path / "net.safetensors", model, adapter=adapter, settings={})
    again = load(tmp_path / "net.safetensors").restore(build()).eval()
    signal = adapter.neutral(x)
    assert torch.equal(rotation_logits(again, x, signal), rotation_logits(model, x, signal))
