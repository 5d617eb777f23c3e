"""What all methods promise, and how the rotation head gets on with the rest of it3-core."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from it3_core import (
    IT3,
    Activations,
    ActMAD,
    Adapter,
    Classification,
    Conditioned,
    IT3Error,
    IT3Warning,
    Method,
    OnlineIT3,
    Regression,
    Source,
    condition,
    fit,
    load,
    save,
    sensitivity,
    widen,
)
from it3_vision.augmix import AugMix
from it3_vision.methods import (
    ETA,
    MEMO,
    TTT,
    BatchNormStats,
    Fisher,
    Tent,
    joint_loss,
    rotation_logits,
    with_rotation_head,
)


def network(norm: str = "batch", affine: bool = True) -> nn.Module:
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


def tiny(norm: str = "batch", affine: bool = True) -> tuple[Conditioned, Adapter]:
    adapter = Classification(5)
    model = condition(network(norm, affine), adapter, "2", channels=6).eval()
    nn.init.normal_(model.embed.weight)  # type: ignore[union-attr, arg-type]
    return with_rotation_head(model, adapter, "model.5", images(2)), adapter


def regression() -> Conditioned:
    net = network()
    net[8] = nn.Linear(8, 1)  # type: ignore[operator]
    return condition(net, Regression(), "0")


def images(size: int = 4, seed: int = 1) -> Tensor:
    return torch.randn(size, 3, 9, 9, generator=torch.Generator().manual_seed(seed)) + 0.5


def eata(model: nn.Module, adapter: Adapter, **how: Any) -> ETA:
    chosen = {"parameters": how.get("parameters", "norms")}
    fisher = Fisher.collect(model, adapter, [images(seed=9)], **chosen)
    return ETA(model, adapter, fisher, **SURE, **how)


AUGMENT = AugMix(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5), shift=1)
SURE: dict[str, Any] = {"sure": 1.0, "new": 1.1}  # all are chosen
METHODS: dict[str, Callable[..., Any]] = {
    "batch-norm": BatchNormStats,
    "batch-norm-prior": partial(BatchNormStats, prior=16),
    "tent": Tent,
    "tent-episodic": partial(Tent, online=False),
    "eta": partial(ETA, **SURE),
    "eta-episodic": partial(ETA, online=False, **SURE),
    "eata": eata,
    "memo": partial(MEMO, augment=AUGMENT, copies=4),
    "ttt": partial(TTT, lr=0.1),
    "ttt-online": partial(TTT, online=True, lr=0.1, copies=8, crop=1),
}
ONLINE = ["tent", "eta", "eata", "ttt-online"]
STEPS = [name for name in METHODS if not name.startswith("batch-norm")]
ORDERED = ["memo", "ttt-online"]  # one image after the other: which comes first matters
each_method = pytest.mark.parametrize("name", METHODS)


@each_method
@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("size", [1, 4])
def test_answers_are_finite_and_the_module_stays_bit_identical(
    name: str, norm: str, size: int
) -> None:
    model, adapter = tiny(norm)
    before = copy.deepcopy(model.state_dict())
    model.train()
    if norm == "group" and name.startswith("batch-norm"):
        with pytest.warns(IT3Warning, match="no batch norm: BatchNormStats answers as Source"):
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
def test_reset_starts_anew(name: str) -> None:
    model, adapter = tiny()
    method = METHODS[name](model, adapter)
    first = [method(images(seed=seed)).prediction for seed in range(3)]
    if name in ONLINE:
        assert not torch.equal(method(images(seed=0)).prediction, first[0])
    method.reset()
    for seed, expected in enumerate(first):
        assert torch.equal(method(images(seed=seed)).prediction, expected)


@pytest.mark.parametrize("name", ONLINE)
def test_a_stream_goes_on_after_a_restart(name: str) -> None:
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
    with pytest.raises(IT3Error, match="make the method as it was made"):
        METHODS[name](model, adapter, parameters="model.8.*").load_state_dict(state)
    model.double()
    with pytest.raises(IT3Error, match=r"call reset\(\) to begin anew"):
        method(images().double())
    again.load_state_dict(state)
    with pytest.raises(IT3Error, match="this state is not of"):
        again(images().double())


@pytest.mark.parametrize("name", [name for name in METHODS if name not in ORDERED])
def test_permuting_a_batch_permutes_the_answers(name: str) -> None:
    model, adapter = tiny()
    x, order = images(), torch.tensor([2, 0, 3, 1])
    found = METHODS[name](model, adapter)(x[order]).prediction
    expected = METHODS[name](model, adapter)(x).prediction[order]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["ttt"])
def test_each_image_is_an_episode_of_its_own(name: str) -> None:
    model, adapter = tiny()
    x = images()
    for norm in ("source", 0.1):
        whole = METHODS[name](model, adapter, norm=norm)(x)
        alone = [METHODS[name](model, adapter, norm=norm)(image) for image in torch.split(x, 1)]
        for numbers in ("prediction", "error_before", "error_after"):
            expected = torch.cat([getattr(part, numbers) for part in alone])
            torch.testing.assert_close(getattr(whole, numbers), expected, rtol=1e-4, atol=1e-6)


@each_method
def test_bad_inputs_are_one_sentence(name: str) -> None:
    model, adapter = tiny()
    method = METHODS[name](model, adapter)
    nan = images()
    nan[0, 0, 0, 0] = float("nan")
    for x, hint in ((nan, "has NaN in 1 of"), (images(0), "batch is empty")):
        with pytest.raises(IT3Error, match=hint):
            method(x)


@each_method
def test_a_network_that_is_not_finite_is_said_to_be(name: str) -> None:
    model, adapter = tiny()
    with torch.no_grad():
        model.get_parameter("model.8.bias")[0] = float("nan")
    method = METHODS[name](model, adapter)
    answer = method(images())
    if not name.startswith("batch-norm"):
        assert "network's own answer is not finite" in str(answer.fallback)
    assert answer.steps == 0


@pytest.mark.parametrize("name", STEPS)
def test_a_step_that_explodes_leaves_no_trace(name: str) -> None:
    model, adapter = tiny()
    method = METHODS[name](model, adapter, lr=3e37, steps=3, norm="source")
    for seed in range(2):  # a second batch that goes on from NaN would not be finite at all
        answer = method(images(seed=seed))
        assert "lower the learning rate" in str(answer.fallback)
        assert torch.equal(answer.prediction, answer.initial)
        assert bool(torch.isfinite(answer.prediction).all())
        assert answer.steps == 0


@each_method
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_calls_work_in_any_gradient_mode(name: str, mode: Callable[[], Any]) -> None:
    model, adapter = tiny()
    expected = METHODS[name](model, adapter)(images()).prediction
    with mode():
        found = METHODS[name](model, adapter)(images())
        assert torch.equal(found.prediction, expected)
        assert bool(torch.isfinite(found.error_after).all())


@each_method
def test_methods_can_be_copied_and_pickled(name: str) -> None:
    model, adapter = tiny()
    expected = METHODS[name](model, adapter)(images()).prediction
    method = METHODS[name](model, adapter)
    for other in (copy.deepcopy(method), pickle.loads(pickle.dumps(method))):  # noqa: S301
        assert torch.equal(other(images()).prediction, expected)


@pytest.mark.parametrize("name", STEPS)
def test_no_step_is_exactly_source(name: str) -> None:
    model, adapter = tiny()
    expected = Source(model, adapter)(images()).prediction
    for how in ({"lr": 0.0}, {"steps": 0}):
        answer = METHODS[name](model, adapter, norm="source", **how)(images())
        torch.testing.assert_close(answer.prediction, expected, rtol=0, atol=1e-6)
        assert answer.steps == 0


BAD: list[tuple[Callable[[nn.Module, Adapter], Any], str]] = [
    (lambda m, a: BatchNormStats(m, a, share=1.5), "share from 0 to 1"),
    (lambda m, a: BatchNormStats(m, a, prior=-1), "number of images from 0 up"),
    (lambda m, a: BatchNormStats(m, a, share=0.5, prior=16), "a share or a prior"),
    (lambda m, a: Tent(m, a, answer="during"), 'answer must be "before" or "after"'),  # type: ignore[arg-type]
    (lambda m, a: Tent(m, a, lr=-1.0), "learning rate"),
    (lambda m, a: Tent(regression(), Regression())(images()), "logits .* of two classes or more"),
    (lambda m, a: ETA(m, a, sure=float("nan")), "sure and new must be positive"),
    (lambda m, a: ETA(m, a, decay=2.0), "decay must lie between"),
    (lambda m, a: ETA(m, a, Fisher({"fc": torch.zeros(1)}, 1)), "this Fisher is of other"),
    (lambda m, a: Fisher.collect(m, a, []), "at least one batch"),
    (lambda m, a: MEMO(m, a, AUGMENT, copies=0), "copies must be at least 1"),
    (lambda m, a: MEMO(m, a, lambda i, n, g: i[None])(images()), "augment must return"),
    (lambda m, a: AUGMENT(torch.zeros(1, 9, 9), 2, torch.Generator()), "images of 3 channels"),
    (lambda m, a: AugMix((0.5,), (0.0,)), "positive std"),
    (lambda m, a: AugMix((0.5,), (0.5,), severity=11), "severity runs from"),
    (lambda m, a: AugMix((0.5,), (0.5,), depth=0), "width and depth are at least 1"),
    (lambda m, a: TTT(m, a, copies=6), "multiple of four"),
    (lambda m, a: TTT(m, a, crop=-1), "pixels from 0 up"),
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
    (lambda m, a: joint_loss(m, a, images(), torch.arange(4), share=0.0), r"share must be in"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "hint"), BAD)
def test_bad_settings_say_what_to_change(make: Callable[..., Any], hint: str) -> None:
    model, adapter = tiny()
    with pytest.raises(IT3Error, match=hint):
        make(model, adapter)


def test_batch_one_without_places_is_refused() -> None:
    adapter = Classification(5)
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.BatchNorm1d(4), nn.Linear(4, 5))
    model = condition(net, adapter, "1")
    for method in (BatchNormStats(model, adapter), Tent(model, adapter)):
        with pytest.raises(IT3Error, match="needs more than one value per channel"):
            method(torch.zeros(1, 3, 2, 2))
    assert BatchNormStats(model, adapter, prior=16)(torch.zeros(1, 3, 2, 2)).steps == 0


# The rotation head


def test_the_head_changes_no_answer_and_stops_the_network_at_its_layer() -> None:
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


def test_the_head_is_trained_by_fit_and_saved_with_the_network(tmp_path: Path) -> None:
    """A slope in four directions: the head learns to tell them apart."""
    torch.manual_seed(0)
    adapter = Classification(2)
    ramp = torch.linspace(-1, 1, 9).view(1, 1, 9, 1)
    y = torch.arange(128) % 2
    x = ramp.expand(128, 3, 9, 9) * (1 + y.view(-1, 1, 1, 1)) + torch.randn(128, 3, 9, 9) * 0.05

    def build() -> Conditioned:
        net = network("group")
        net[8] = nn.Linear(8, 2)  # type: ignore[operator]
        net = condition(net, adapter, "2", channels=6)
        return with_rotation_head(net, adapter, "model.5", x[:2])

    model = build()
    loss = partial(joint_loss, weight=1.0, share=1.0)
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


def test_the_head_gets_on_with_core_s_methods() -> None:
    model, adapter = tiny()
    plain = condition(network(), adapter, "2", channels=6).eval()
    plain.load_state_dict({k: v for k, v in model.state_dict().items() if "rotation" not in k})
    x = images()
    assert sensitivity(model, adapter, x) == sensitivity(plain, adapter, x) > 0
    for parameters in ("above", None):
        for kind in (IT3, OnlineIT3, partial(IT3, per_instance=True)):
            how: dict[str, Any] = {"parameters": parameters, "lr": 1e-3, "steps": 2}
            found = kind(model, adapter, **how)(x).prediction
            torch.testing.assert_close(found, kind(plain, adapter, **how)(x).prediction)
    known = Activations.collect(model, adapter, [images(8, 3)], ["model.5"])
    found = ActMAD(model, adapter, known, lr=1e-3)(x).prediction
    torch.testing.assert_close(found, ActMAD(plain, adapter, known, lr=1e-3)(x).prediction)
    ActMAD(model, adapter, known, optimizer="AdamW")(x)  # its weights have no gradient there


def test_the_head_works_where_the_first_layer_is_widened() -> None:
    adapter = Classification(5)
    model = with_rotation_head(widen(network("group"), adapter), adapter, "model.2", images())
    answer = TTT(model, adapter, lr=0.1)(images())
    assert not torch.equal(answer.prediction, answer.initial)


def test_what_the_head_does_not_hear_never_moves() -> None:
    model, adapter = tiny()
    method = TTT(model, adapter, online=True, optimizer="Adam", lr=0.01)
    method(images())
    source = dict(model.named_parameters())
    moved = {
        name.removeprefix("weights."): not torch.equal(value, source[name[8:]])
        for name, value in method.state_dict().items()
        if name.startswith("weights.")
    }
    assert moved["model.0.weight"]
    assert moved["model.4.bias"]
    assert not moved["model.8.weight"]
    assert "rotation.weight" not in moved
