"""Every adapter keeps to the protocol; its numbers are torch's own, or worked out by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from it3_core import (
    IT3,
    Adapter,
    Binary,
    Classification,
    DenseMap,
    IT3Error,
    MultiLabel,
    Quantiles,
    Regression,
    Source,
    adapter_from,
    condition,
    load,
    register_adapter,
    save,
    zigzag_loss,
)
from it3_core.scores.uncertainty import Entropy

VECTORS, IMAGES, IDS = torch.zeros(4, 5), torch.zeros(4, 3, 2, 2), torch.zeros(4, 3).long()
CLASSES = torch.tensor([0, 1, 1, 0])
# An adapter, inputs, the outputs' shape and labels.
TABLE: list[tuple[Adapter, Tensor, tuple[int, ...], Tensor]] = [
    (Regression([1.0, 0.0], [2.0, 1.0]), VECTORS, (4, 2), torch.randn(4, 2)),
    (Regression(1.0, 3.0, each="node"), VECTORS, (4,), torch.randn(4)),
    (Quantiles([0.1, 0.5, 0.9], 1.0, 2.0), VECTORS, (4, 3), torch.randn(4)),
    (Classification(3, "js", weights=[1, 2, 0.5]), VECTORS, (4, 3), CLASSES),
    (Classification(3, ignore_index=7), VECTORS, (4, 3), torch.tensor([0, 2, 7, 1])),
    (Classification(2, each="node"), VECTORS, (4, 2), CLASSES),
    (Binary(weights=[1, 5], each="node"), VECTORS, (4,), CLASSES),
    (Binary(distance="kl", ignore_index=9), VECTORS, (4, 1), CLASSES),
    (MultiLabel(3, weights=[1, 4]), VECTORS, (4, 3), torch.tensor([[0, 1, -1]] * 4)),
    (Classification(2, each="token"), IDS, (4, 3, 2), torch.tensor([[0, 1, -100]] * 4)),
    (DenseMap(), IMAGES, (4, 1, 2, 2), torch.ones(4, 2, 2).long()),
    (DenseMap(3, "l2", [1, 1, 2], 255), IMAGES, (4, 3, 2, 2), torch.full((4, 2, 2), 255)),
]


@pytest.mark.parametrize(("adapter", "x", "shape", "label"), TABLE, ids=range(len(TABLE)))
def test_the_protocol(adapter: Adapter, x: Any, shape: tuple[int, ...], label: Tensor) -> None:
    output = torch.randn(shape, requires_grad=True)
    other = torch.randn(shape)
    neutral, signal, told = adapter.neutral(x), adapter.encode(output), adapter.encode(label)
    assert neutral.shape == signal.shape == told.shape
    assert neutral.shape[1] == adapter.channels
    assert not torch.equal(signal, neutral.expand_as(signal))
    torch.testing.assert_close(adapter.perturb(told, 0.0), told, rtol=0, atol=0)
    assert adapter.perturb(told, 1.0).shape == told.shape
    gap, loss = adapter.distance(output, other), adapter.loss(output, label)
    for found in (gap, loss, adapter.error(output, label)):
        assert found.shape == (4,)
        assert bool((found >= 0).all())
    for number in (signal.sum() + gap.sum(), loss.sum()):
        (gradient,) = torch.autograd.grad(number, output)
        assert torch.isfinite(gradient).all()
    assert bool((adapter.distance(other, other) < 1e-6).all())
    again = adapter_from(json.loads(json.dumps(adapter.describe())))
    assert repr(again) == repr(adapter)
    assert torch.equal(again.loss(output, label), loss)
    if not isinstance(adapter, Regression):
        sure = Entropy(nn.Identity(), adapter)(8 * output.detach())
        assert bool((sure < Entropy(nn.Identity(), adapter)(0 * output.detach())).all())


Z = torch.tensor([[2.0, -1.0, 0.5], [0.0, 1.0, 3.0]])


def test_losses_are_those_of_torch() -> None:
    label, weights = torch.tensor([2, 0]), torch.tensor([1.0, 2.0, 0.5])
    found = Classification(3, weights=weights.tolist()).loss(Z, label)
    torch.testing.assert_close(found, nnf.cross_entropy(Z, label, weights, reduction="none"))
    unknown = torch.tensor([2, -100])
    for adapter in (
        Classification(3, ignore_index=-100),
        Classification(3, ignore_index=-100, each="node"),
    ):
        wanted = nnf.cross_entropy(Z, unknown, ignore_index=-100, reduction="none")
        torch.testing.assert_close(adapter.loss(Z, unknown), wanted)
        assert torch.equal(adapter.encode(unknown)[1], adapter.neutral(Z)[1])
    words = Classification(3, each="token").loss(
        Z[None].repeat(2, 1, 1), torch.tensor([[2, -100], [2, 0]])
    )
    each = nnf.cross_entropy(Z, label, reduction="none")
    torch.testing.assert_close(words, torch.stack([each[0], each.mean()]))  # the known ones alone
    several, positive = torch.tensor([[1, 0, 1], [0, 0, 1]]), torch.tensor(4.0)
    wanted = nnf.binary_cross_entropy_with_logits(Z, several.float(), reduction="none",
                                                  pos_weight=positive)  # fmt: skip
    found = MultiLabel(3, weights=[1, 4]).loss(Z, several)
    torch.testing.assert_close(found, wanted.mean(1))
    torch.testing.assert_close(Binary(weights=[1, 4]).loss(Z[0], several[0]), wanted[0])
    assert MultiLabel(3).error(Z, several).tolist() == [0.0, pytest.approx(1 / 3)]


def test_quantiles_by_hand() -> None:
    adapter = Quantiles.fit(torch.tensor([1.0, 3.0]), levels=[0.1, 0.6])  # mean 2, std 1
    output, label = torch.tensor([[1.0, 4.0]]), torch.tensor([3.0])
    assert adapter.loss(output, label).item() == pytest.approx((0.1 * 2 + 0.4 * 1) / 2)
    assert adapter.error(output, label).item() == pytest.approx(1.0)
    assert adapter.encode(label).tolist() == [[1.0, 1.0, 1.0]]
    assert adapter.encode(output).tolist() == [[-1.0, 2.0, 1.0]]


def test_each_token_and_each_node_hears_its_own_signal(build: Any) -> None:
    net = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
    graphs = build("graph", torch.float32).x
    layer = nn.Linear(2, 2)

    class PerNode(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Any) -> Tensor:
            output: Tensor = self.layer(x.nodes)
            return output

    tokens, nodes = Classification(2, each="token"), Classification(2, each="node")
    cases = [(condition(net, tokens, "0"), tokens, torch.randn(3, 6, 5), (3, 6)),
             (condition(PerNode(), nodes, "layer"), nodes, graphs, (18,))]  # fmt: skip
    for model, adapter, x, shape in cases:
        nn.init.normal_(model.embed.weight)  # type: ignore[union-attr,arg-type]
        y = torch.zeros(shape).long()
        signal = adapter.encode(y)
        before = model(x, signal)
        place = tuple(0 for _ in shape)
        y[place] = 1
        heard = (model(x, adapter.encode(y)) != before).any(-1)
        assert heard.sum() == 1
        assert heard[place]
        zigzag_loss(model, adapter, x, y).backward()
        answer = IT3(model, adapter, lr=1e-2, trust_region=False)(x)
        assert answer.prediction.shape == before.shape
        assert not torch.equal(answer.prediction, answer.initial)
        assert answer.error_before.shape == shape[:1]


def test_an_adapter_of_your_own_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"

    class Heading(Regression):
        """In degrees, the short way round."""

        def _residual(self, output: Tensor, label: Tensor) -> Tensor:
            return (super()._residual(output, label) + 180) % 360 - 180

    net = nn.Linear(2, 1)
    save(path, net, adapter=Heading(0.0, 90.0), settings={})
    with pytest.raises(IT3Error, match=r"no adapter is called 'Heading'; .*register_adapter"):
        _ = load(path).adapter
    register_adapter(Heading)
    found = load(path).adapter
    assert isinstance(found, Heading)
    assert found.error(torch.tensor([350.0]), torch.tensor([10.0])).item() == pytest.approx(20)
    assert math.isfinite(float(Source(net, found)(torch.zeros(1, 2)).prediction))


@pytest.mark.parametrize(
    ("make", "hint"),
    [
        (lambda: Quantiles([0.9, 0.1]), "levels must ascend"),
        (lambda: Quantiles([0.0, 0.5]), "levels must ascend"),
        (lambda: Quantiles.fit(torch.zeros(4, 2)), "one number an instance, not of 2"),
        (lambda: Quantiles().loss(torch.zeros(4, 2), torch.zeros(4)), "don't fit"),
        (lambda: Classification(3, weights=[1, 2]), "3 numbers from 0 up"),
        (lambda: Classification(3, each="word"), "each must be None or 'node' or 'token'"),
        (lambda: DenseMap(3, each="token"), "each must be None"),
        (lambda: Regression(each="token"), 'each must be "node"'),
        (lambda: MultiLabel(0), "at least 1 classes"),
        (lambda: Classification(3, each="token").encode(torch.zeros(2, 3)), "logits of shape"),
        (
            lambda: Classification(3, each="token").encode(torch.zeros(2).long()),
            "one dimension too many or few",
        ),
        (lambda: Binary().encode(torch.zeros(2, 2)), r"logits of shape \(batch, 1\)"),
        (lambda: MultiLabel(2).loss(torch.zeros(1, 2), torch.zeros(1, 3).long()), "don't fit"),
        (lambda: Classification(3, ignore_index=-1).encode(torch.tensor([3])), "0 … 2"),
    ],
)
def test_what_does_not_fit_is_named(make: Any, hint: str) -> None:
    with pytest.raises(IT3Error, match=hint):
        make()
