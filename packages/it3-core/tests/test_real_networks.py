"""A second input for networks that have none, and what real networks do."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as nnf
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from it3_core import (
    IT3,
    Activations,
    ActMAD,
    Adapter,
    AnswerStep,
    Classification,
    Conditioned,
    DenseMap,
    IT3Error,
    OnlineIT3,
    Regression,
    Source,
    Trust,
    condition,
    sensitivity,
    widen,
    zigzag_loss,
)


def listening(model: Conditioned) -> Conditioned:
    """As if it had been trained."""
    nn.init.normal_(model.embed.weight, std=0.5)  # type: ignore[union-attr, arg-type]
    return model


def mlp(width: int = 4) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, 1))


class BasicBlock(nn.Module):
    """As torchvision's: one in-place ReLU for both places, an in-place sum."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None if stride == 1 else nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += identity
        output: Tensor = self.relu(out)
        return output


def resnet() -> nn.Module:
    stem = [nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True)]
    blocks = [BasicBlock(4, 4, 1), BasicBlock(4, 6, 2)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3))


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return nn.Sequential(nn.Linear(3, 8), layer, nn.Flatten(), nn.Linear(40, 2))


class Listed(nn.Module):
    """Keeps its layers in a list, which is never called itself."""

    def __init__(self) -> None:
        super().__init__()
        self.early = nn.ModuleList(nn.Linear(3, 3) for _ in range(2))
        self.first = nn.Linear(3, 5)
        self.rest = nn.ModuleList(nn.Linear(5, 5) for _ in range(3))
        self.heads = nn.ModuleDict({"a": nn.Linear(5, 1)})

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.early:
            x = layer(x).tanh()
        x = self.first(x)
        for layer in self.rest:
            x = layer(x.tanh())
        output: Tensor = self.heads["a"](x)
        return output


REAL: list[tuple[Callable[[], nn.Module], str, Adapter, tuple[int, ...]]] = [
    (resnet, "3.conv1", Classification(3, "l2"), (4, 3, 8, 8)),
    (resnet, "1", Classification(3, "kl"), (4, 3, 8, 8)),
    (transformer, "1", Classification(2), (4, 5, 3)),
    (Listed, "rest.1", Regression(), (4, 3)),
]


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.filterwarnings("ignore:this network can't be mapped")
@pytest.mark.parametrize(("kind", "layer", "adapter", "shape"), REAL)
def test_sharing_mapping_and_plain_passes_agree(
    kind: Callable[[], nn.Module], layer: str, adapter: Adapter, shape: tuple[int, ...]
) -> None:
    """PrefixCache sharing and rows at once give what a deepcopy, torch.optim and a loop give."""
    model = listening(condition(kind().double(), adapter, layer)).train()
    x = torch.randn(*shape, dtype=torch.float64)
    before = copy.deepcopy(model.state_dict())
    f, anchor = copy.deepcopy(model).eval(), copy.deepcopy(model).eval()
    step = torch.optim.SGD(f.parameters(), lr=0.05)
    for _ in range(2):
        y0 = f(x, adapter.neutral(x))
        adapter.distance(anchor(x, adapter.encode(y0)), y0).mean().backward()
        step.step()
        step.zero_grad()
    how: dict[str, Any] = {"lr": 0.05, "steps": 2, "optimizer": "SGD", "anchor_gradient": True}
    method = IT3(model, adapter, trust_region=False, **how)
    for _ in range(2):
        found = method(x).prediction
        expected = f(x, adapter.neutral(x)).detach()
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    at_once = IT3(model, adapter, per_instance=True, **how)(x).prediction
    alone = IT3(model, adapter, **how)
    rows = torch.cat([alone(row[None]).prediction for row in x])
    torch.testing.assert_close(at_once, rows, rtol=0, atol=1e-5)
    cheap = IT3(model, adapter, parameters="above", **how)
    torch.testing.assert_close(cheap(x).prediction, cheap(x).prediction, rtol=0, atol=0)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class Counts(nn.Module):
    """Writes into its buffers and its weights in every pass, in evaluation mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 1)
        self.calls: Tensor
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        with torch.no_grad():
            self.head.weight.clamp_(-0.1, 0.1)
        norm = self.norm
        hidden = nnf.batch_norm(self.layer(x), norm.running_mean, norm.running_var, training=True)
        output: Tensor = self.head(hidden)
        return output


def test_a_network_that_writes_into_itself_is_not_touched_either() -> None:
    adapter, x = Regression(), torch.randn(8, 3)
    net = Counts()
    nn.init.normal_(net.head.weight)
    model = listening(condition(net, adapter, "layer"))
    before = copy.deepcopy(model.state_dict())
    known = Activations.collect(model, adapter, [x], ["model.layer"])
    methods = [kind(model, adapter) for kind in (Source, AnswerStep, IT3, OnlineIT3)]
    for method in [*methods, ActMAD(model, adapter, known)]:
        for _ in range(3):
            assert torch.isfinite(method(x).error_after).all()
    sensitivity(model, adapter, x)
    Trust.fit(model, adapter, [x] * 4)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_frozen_network_is_one_made_for_inference() -> None:
    adapter, x = Regression(), torch.randn(20, 3)
    model = listening(condition(mlp(), adapter, "0")).requires_grad_(False)
    for parameters in (None, "above"):
        answer = IT3(model, adapter, lr=1e-2, parameters=parameters)(x)
        assert not torch.equal(answer.prediction, answer.initial)
    assert not any(parameter.requires_grad for parameter in model.parameters())
    some = listening(condition(mlp(), adapter, "0"))
    some.model[0].requires_grad_(False)  # type: ignore[index]
    whole = IT3(some, adapter, lr=1e-2)(x).prediction
    named = IT3(some, adapter, lr=1e-2, parameters=["model.2.*", "embed.*"])(x).prediction
    assert torch.equal(whole, named)


@pytest.mark.parametrize("kind", [IT3, partial(OnlineIT3, gate=None)])
def test_a_step_is_a_step_under_autocast(kind: Any) -> None:
    model = listening(condition(mlp(), Regression(), "0"))
    method = kind(model, Regression(), lr=0.05, trust_region=False)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        answer = method(torch.randn(8, 3))
    assert (answer.prediction - answer.initial).abs().max() > 1e-3


class Spoilt(nn.Module):
    """The second pass is not finite for inputs above 2."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.value = value

    def forward(self, x: Tensor, signal: Tensor) -> Tensor:
        y: Tensor = self.layer(x) + 0.5 * signal[:, :1]
        return torch.where((x[:, :1] > 2) & (signal[:, 1:] > 0), self.value, y)


@pytest.mark.parametrize(("value", "trust_region"), [(float("nan"), False), (float("inf"), True)])
def test_a_loss_that_is_not_finite_falls_back(value: float, trust_region: bool) -> None:
    x = torch.randn(6, 3).clamp(-1, 1)
    x[2, 0] = 3.0
    model, how = Spoilt(value), {"lr": 0.1, "trust_region": trust_region}
    online = OnlineIT3(model, Regression(), **how)
    online(x[:2])
    kept = online.state_dict()
    for method in (IT3(model, Regression(), **how), online):
        answer = method(x)
        assert torch.equal(answer.prediction, answer.initial)
        assert answer.fallback is not None
        assert answer.steps == 0
    torch.testing.assert_close(online.state_dict(), kept, rtol=0, atol=0)  # it leaves no trace
    # Each on its own: the others are not held back by one of them.
    answer = IT3(model, Regression(), per_instance=True, **how)(x)
    moved = (answer.prediction != answer.initial).flatten()
    assert moved.tolist() == [True, True, False, True, True, True]
    assert answer.fallback == "in 1 of 6 rows the step was not finite: lower the learning rate"


def test_a_signal_that_can_t_arrive_says_so() -> None:
    class Checkpointed(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = checkpoint(super().forward, x, use_reentrant=False)
            return output

    model = condition(Checkpointed(nn.Linear(3, 4), nn.Linear(4, 1)), Regression(), "0")
    loss = zigzag_loss(model, Regression(), torch.randn(8, 3), torch.randn(8))
    with pytest.raises(IT3Error, match="without its signal"):
        loss.backward()
    with pytest.raises(IT3Error, match="without its signal"):
        model.model(torch.randn(8, 3))


def test_the_axis_of_the_channels_is_never_guessed_wrong() -> None:
    adapter = Regression()
    series = nn.Sequential(nn.Conv1d(2, 6, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(60, 1))
    x = torch.randn(4, 2, 10)
    with pytest.raises(IT3Error, match="channel_dim=1"):
        condition(series, adapter, "1", channels=6)(x, adapter.neutral(x))
    model = condition(series, adapter, "1", channels=6, channel_dim=1)
    assert model(x, adapter.neutral(x)).shape == (4, 1)
    turned = condition(mlp(), adapter, "0")
    with pytest.raises(IT3Error, match="7 rows for a batch of 4"):
        turned(torch.randn(7, 4, 3), torch.zeros(4, 2))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.compile's own imports
def test_wrappers_are_looked_through() -> None:
    model, x = listening(condition(mlp(), Regression(), "0")), torch.randn(4, 3)
    expected = IT3(model, Regression(), parameters="above", lr=1e-2)(x).prediction
    for wrapped in (torch.compile(model), nn.DataParallel(model)):
        found = IT3(wrapped, Regression(), parameters="above", lr=1e-2)(x)  # type: ignore[arg-type]
        assert torch.equal(found.prediction, expected)


def test_a_stream_that_is_interrupted_goes_on_from_the_batch_before() -> None:
    class Interrupting(Regression):
        calls = 0

        def encode(self, answer: Tensor) -> Tensor:
            self.calls += 1
            if self.calls == 2:
                raise KeyboardInterrupt
            return super().encode(answer)

    model, x = listening(condition(mlp(), Regression(), "0")), torch.randn(4, 3)
    method = OnlineIT3(model, Regression(), lr=0.1, steps=2, gate=None)
    method(x)
    kept = method.state_dict()
    method.adapter = Interrupting()
    with pytest.raises(KeyboardInterrupt):
        method(x)
    torch.testing.assert_close(method.state_dict(), kept, rtol=0, atol=0)
    model.double()
    with pytest.raises(IT3Error, match="call reset"):
        method(x.double())


Build = Callable[..., Any]


def shaped(kind: str) -> tuple[nn.Module, Adapter, Tensor, list[str]]:
    """A network, its adapter, an input, and layers where a signal can enter."""
    if kind == "vector":
        net: nn.Module = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2))
        return net, Regression([0.0] * 2, [1.0] * 2), torch.randn(4, 5), ["0", "1", "2", ""]
    if kind == "image":
        net = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(),
                            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4))  # fmt: skip
        return net, Classification(4), torch.randn(4, 3, 9, 9), ["0", "1", "5"]
    if kind == "map":
        net = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 1, 1))
        return net, DenseMap(), torch.randn(4, 3, 8, 8), ["0"]
    if kind == "series":
        net = nn.Sequential(nn.Conv1d(3, 6, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(1))
        net(torch.randn(4, 3, 10))
        return net, Regression(), torch.randn(4, 3, 10), ["0"]
    if kind == "volume":
        net = nn.Sequential(nn.Conv3d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 27, 1))
        return net, Regression(), torch.randn(4, 1, 5, 5, 5), ["0"]
    if kind == "tokens":
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
        net = nn.Sequential(nn.Linear(3, 8), layer, nn.Flatten(), nn.Linear(48, 2))
        return net, Classification(2), torch.randn(4, 6, 3), ["0", "1", "3"]
    raise KeyError(kind)


KINDS = ["vector", "image", "map", "series", "volume", "tokens"]


@pytest.mark.parametrize("kind", KINDS)
def test_until_trained_the_network_answers_as_before(kind: str) -> None:
    net, adapter, x, layers = shaped(kind)
    net.eval()
    with torch.no_grad():
        expected = net(x)
        for layer in layers:
            channels = 8 if (kind, layer) == ("vector", "1") else None  # of a ReLU
            model = condition(net, adapter, layer, channels=channels)
            for signal in (adapter.neutral(x), adapter.encode(expected)):
                assert torch.equal(model(x, signal), expected), layer
        wide = widen(net, adapter)
        torch.testing.assert_close(wide(x, adapter.encode(expected)), expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["condition", "widen"])
def test_the_signal_reaches_the_answer_and_its_gradient_the_weights(kind: str, way: str) -> None:
    net, adapter, x, layers = shaped(kind)
    model = condition(net, adapter, layers[0]) if way == "condition" else widen(net, adapter)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    model.eval()
    first = model(x, adapter.neutral(x))
    second = model(x, adapter.encode(first.detach()))
    assert not torch.allclose(first, second)
    second.sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in [*model.parameters()][:1])
    if model.embed is not None:
        assert all(p.grad is not None for p in model.embed.parameters())
    for settings in ({}, {"parameters": "above"})[: 1 + (way == "condition")]:
        answer = IT3(model, adapter, lr=1e-2, **settings)(x)  # type: ignore[arg-type]
        assert answer.prediction.shape == net(x).shape
        assert answer.error_before.shape == (4,)
        assert not torch.equal(answer.prediction, answer.initial)


def test_the_original_stays_as_it_was() -> None:
    net, adapter, _, _ = shaped("image")
    net.train()
    state = copy.deepcopy(net.state_dict())
    names = {f"model.{name}" for name in state}  # they stay
    assert condition(net, adapter, "0").state_dict().keys() == names | {"embed.weight"}
    for model in (condition(net, adapter, "0"), widen(net, adapter)):
        assert model.training
        for parameter in model.parameters():
            parameter.data.fill_(7.0)
    assert all(torch.equal(net.state_dict()[name], value) for name, value in state.items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("layr3", "'layer3'"),
        ("layer3.conv", "'layer3.0'"),
        ("conv", "'stem.conv'"),
        ("z", "it has"),
    ],
)
def test_unknown_layers_get_near_matches(name: str, hint: str) -> None:
    stem = nn.ModuleDict({"conv": nn.Conv1d(1, 1, 1)})
    net = nn.ModuleDict({"layer3": nn.Sequential(nn.Linear(1, 1)), "stem": stem})
    with pytest.raises(IT3Error, match=f"no layer '{name}'") as caught:
        condition(net, Regression(), name)
    assert hint in str(caught.value)


@pytest.mark.parametrize(
    ("make", "hint"),
    [
        (lambda: widen(nn.Sequential(nn.ReLU()), Regression()), "use condition"),
        (lambda: widen(nn.Sequential(nn.BatchNorm1d(3)), Regression(), "0"), "BatchNorm1d"),
        (lambda: widen(nn.Sequential(nn.Conv1d(4, 4, 1, groups=2)), Regression()), "groups=2"),
        (lambda: widen(nn.Sequential(nn.LazyLinear(3)), Regression()), "run the network once"),
        (lambda: condition(nn.Sequential(nn.ReLU()), Regression(), "0"), "channels="),
    ],
)
def test_what_can_t_be_conditioned_says_why(make: Callable[[], Any], hint: str) -> None:
    with pytest.raises(IT3Error, match=hint):
        make()


@pytest.mark.parametrize("affine", [True, False])
def test_both_passes_at_once_in_bfloat16(affine: bool) -> None:
    """Batch norms compute in single precision while the convolutions around them do not."""
    adapter, norm = Classification(3), nn.BatchNorm2d(8, affine=affine)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), norm, nn.Flatten(), nn.Linear(72, 3))
    model = condition(net, adapter, layer="0").train()
    x, y = torch.randn(6, 3, 5, 5), torch.arange(6) % 3
    whole = model.several(x, adapter.neutral(x), adapter.encode(y))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        halved = model.several(x, adapter.neutral(x), adapter.encode(y))
    sum(part.float().sum() for part in halved).backward()
    for mine, other in zip(whole, halved, strict=True):
        torch.testing.assert_close(other.float(), mine, atol=0.05, rtol=0.05)
