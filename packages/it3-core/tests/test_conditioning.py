"""A second input for networks that have none."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from it3_core import (
    IT3,
    Adapter,
    Classification,
    DenseMap,
    IT3Error,
    Regression,
    condition,
    widen,
)

Build = Callable[..., Any]


class Transformer(nn.Module):
    """Tokens, attention, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(3, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.head(self.layer(self.embed(x)).mean(1))
        return output


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
        net = Transformer()
        return net, Classification(2), torch.randn(4, 6, 3), ["embed", "layer", "head"]
    raise KeyError(kind)


KINDS = ["vector", "image", "map", "series", "volume", "tokens"]


@pytest.mark.parametrize("kind", KINDS)
def test_until_trained_the_network_answers_as_before(kind: str) -> None:
    net, adapter, x, layers = shaped(kind)
    net.eval()
    with torch.no_grad():
        expected = net(x)
        for layer in layers:
            model = condition(net, adapter, layer, example=x)
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


@pytest.mark.parametrize("kind", KINDS)
def test_any_shape_is_adapted_through_a_named_layer(kind: str) -> None:
    net, adapter, x, layers = shaped(kind)
    model = condition(net, adapter, layers[0])
    nn.init.normal_(model.embed.weight, std=0.3)  # type: ignore[union-attr, arg-type]
    for settings in ({}, {"parameters": "above"}, {"anchor_gradient": True}):
        answer = IT3(model, adapter, lr=1e-2, **settings)(x)  # type: ignore[arg-type]
        assert answer.prediction.shape == net(x).shape
        assert answer.error_before.shape == (4,)
        assert not torch.equal(answer.prediction, answer.initial)


def test_the_original_stays_as_it_was() -> None:
    net, adapter, _, _ = shaped("image")
    net.train()
    state = copy.deepcopy(net.state_dict())
    for model in (condition(net, adapter, "0"), widen(net, adapter)):
        assert model.training
        for parameter in model.parameters():
            parameter.data.fill_(7.0)
    assert all(torch.equal(net.state_dict()[name], value) for name, value in state.items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())


def test_names_stay_and_the_embedding_is_there_from_the_start() -> None:
    net, adapter, _, _ = shaped("image")
    model = condition(net, adapter, "0")
    names = [name for name, _ in model.named_parameters()]
    assert [name for name in names if name.startswith("model.")] == [
        f"model.{name}" for name, _ in net.named_parameters()
    ]
    assert "embed.weight" in names
    assert "embed.weight" in model.state_dict()
    assert model.embed.weight.shape == (6, adapter.channels)  # type: ignore[union-attr]


def test_copies_do_not_share_hooks() -> None:
    net, adapter, x, _ = shaped("vector")
    model = condition(net, adapter, "0")
    nn.init.normal_(model.embed.weight)  # type: ignore[union-attr, arg-type]
    twin = copy.deepcopy(model)
    nn.init.zeros_(model.embed.weight)  # type: ignore[union-attr, arg-type]
    signal = adapter.encode(net(x))
    assert not torch.allclose(twin(x, signal), model(x, signal))


def test_widening_keeps_the_weights_and_any_chosen_layer() -> None:
    net, adapter, x, _ = shaped("image")
    wide = widen(net, adapter)
    assert torch.equal(wide.model[0].weight[:, :3], net[0].weight)  # type: ignore[index]
    assert wide.model[0].in_channels == 3 + adapter.channels  # type: ignore[index]
    late = widen(net, adapter, "5")
    assert late.model[5].in_features == 6 + adapter.channels  # type: ignore[index]
    nn.init.normal_(late.model[5].weight)  # type: ignore[index]
    assert not torch.allclose(late.eval()(x, adapter.neutral(x)), late(x, adapter.encode(net(x))))


def test_a_layer_in_pretrained_precision_and_device() -> None:
    net, adapter, x, _ = shaped("vector")
    model = condition(net.double(), adapter, "0")
    assert model(x.double(), adapter.neutral(x.double())).dtype == torch.float64


def test_an_embedding_of_the_user_s_own() -> None:
    net, adapter, x, _ = shaped("vector")
    own = nn.Sequential(nn.Linear(adapter.channels, 3), nn.Tanh(), nn.Linear(3, 8))
    model = condition(net, adapter, "0", embed=own)
    assert model(x, adapter.neutral(x)).shape == (4, 2)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("layr3", "'layer3'"),
        ("layer3.conv", "'layer3.0'"),
        ("conv", "'stem.conv'"),
        ("zzz", "it has"),
    ],
)
def test_unknown_layers_get_near_matches(name: str, hint: str) -> None:
    net = nn.ModuleDict(
        {
            "layer3": nn.Sequential(nn.Linear(1, 1)),
            "layer4": nn.Linear(1, 1),
            "stem": nn.ModuleDict({"conv": nn.Conv1d(1, 1, 1)}),
        }
    )
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


def test_wrong_channels_are_named() -> None:
    net, adapter, x, _ = shaped("vector")
    model = condition(net, adapter, "0", channels=5)
    with pytest.raises(IT3Error, match=r"returns 8 channels.*channels=8"):
        model(x, adapter.neutral(x))


@pytest.mark.parametrize("affine", [True, False])
def test_both_passes_at_once_in_bfloat16(affine: bool) -> None:
    """Batch norms compute in single precision while the convolutions around them do not."""
    adapter = Classification(3)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8, affine=affine),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 3),
    )
    model = condition(net, adapter, layer="0").train()
    x, y = torch.randn(6, 3, 5, 5), torch.arange(6) % 3
    whole = model.several(x, adapter.neutral(x), adapter.encode(y))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        halved = model.several(x, adapter.neutral(x), adapter.encode(y))
    sum(part.float().sum() for part in halved).backward()
    for mine, other in zip(whole, halved, strict=True):
        torch.testing.assert_close(other.float(), mine, atol=0.05, rtol=0.05)
