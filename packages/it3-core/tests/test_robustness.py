"""Hostile input: told apart, told clearly, and nothing is harmed."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from it3_core import (
    IT3,
    Activations,
    ActMAD,
    AnswerStep,
    Classification,
    DenseMap,
    IT3Error,
    IT3Warning,
    OnlineIT3,
    Regression,
    Source,
    Trust,
    condition,
    sensitivity,
    widen,
    zigzag_loss,
)
from it3_core.batching import check_input, count, take

Build = Callable[..., Any]
NAN, INF = float("nan"), float("inf")


def small() -> tuple[Any, Regression]:
    adapter = Regression()
    model = condition(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)), adapter, "0")
    nn.init.normal_(model.embed.weight)  # type: ignore[union-attr, arg-type]
    return model, adapter


@pytest.mark.parametrize(
    ("x", "hint"),
    [
        (torch.tensor([[1.0, NAN, 2.0]]), "NaN in 1 of 3 values"),
        (torch.tensor([[1.0, INF, -INF]]), "Inf in 2 of 3 values"),
        (torch.zeros(0, 3), "empty"),
        (torch.zeros(2, 3, dtype=torch.float64), r"torch.float64.*torch.float32"),
        (torch.zeros(2, 3, dtype=torch.uint8), r"uint8.*x.float\(\)"),
        (torch.tensor(1.0), "batch dimension"),
        ("a string", "this is a str"),
        ((torch.zeros(2, 3), torch.zeros(3, 3)), r"differ in batch size: \[2, 3\]"),
    ],
)
@pytest.mark.parametrize("method", [Source, AnswerStep, IT3, OnlineIT3])
def test_bad_inputs_are_told_apart(method: Any, x: Any, hint: str) -> None:
    model, adapter = small()
    with pytest.raises(IT3Error, match=hint):
        method(model, adapter)(x)


def test_large_values_are_not_taken_for_infinite() -> None:
    assert check_input(torch.full((4, 3), 3e38)) == 4  # their sum overflows


def test_a_wrong_width_is_the_network_s_own_complaint() -> None:
    model, adapter = small()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        IT3(model, adapter)(torch.zeros(2, 4))


class Deaf(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x: Tensor, signal: Tensor) -> Tensor:
        output: Tensor = self.layer(x)
        return output


@pytest.mark.parametrize("method", [AnswerStep, IT3, OnlineIT3])
def test_a_network_that_ignores_its_signal_is_named_once(method: Any) -> None:
    deaf = method(Deaf(), Regression())
    with pytest.warns(IT3Warning, match=r"does not depend on its signal .*dF/dy\| = 0"):
        deaf(torch.randn(4, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        deaf(torch.randn(4, 3))
    assert sensitivity(Deaf(), Regression(), torch.randn(4, 3)) == 0.0


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
def test_a_network_that_listens_is_not_named(scale: float) -> None:
    model, _ = small()
    model.model[2].weight.data *= scale
    model.model[2].bias.data *= scale
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        IT3(model, Regression(0.0, scale), lr=1e-6)(torch.randn(4, 3))


def test_a_confident_classifier_is_not_called_deaf() -> None:
    adapter = Classification(3)
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3))
    model = condition(net, adapter, "0")
    nn.init.normal_(model.embed.weight)  # type: ignore[union-attr, arg-type]
    model.model[2].weight.data *= 200  # probabilities of 1: no derivative to speak of
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        IT3(model, adapter)(torch.randn(8, 3))


def test_a_source_that_is_not_finite_is_returned_as_it_is() -> None:
    model, adapter = small()
    model.model[2].bias.data.fill_(NAN)
    for method in (Source(model, adapter), AnswerStep(model, adapter), IT3(model, adapter),
                   OnlineIT3(model, adapter)):  # fmt: skip
        answer = method(torch.randn(2, 3))
        assert answer.prediction.isnan().all()
        if not isinstance(method, Source):
            assert answer.fallback is not None


@pytest.mark.parametrize("norm", ["batch", 1.0])
def test_batch_statistics_of_one_value_are_refused(norm: Any) -> None:
    adapter = Regression()
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))
    model = condition(net, adapter, "0")
    with pytest.raises(IT3Error, match="more than one value per channel"):
        Source(model, adapter, norm=norm)(torch.randn(1, 3))
    Source(model, adapter, norm=0.5)(torch.randn(1, 3))  # a blend is fine


def test_blends_go_from_source_to_batch(build: Build) -> None:
    case = build("cnn")
    ends = [
        Source(case.model, case.adapter, norm=n)(case.x).prediction for n in ("source", "batch")
    ]
    found = [Source(case.model, case.adapter, norm=n)(case.x).prediction for n in (0.0, 1.0, 0.5)]
    torch.testing.assert_close(found[0], ends[0])
    torch.testing.assert_close(found[1], ends[1])
    assert not torch.allclose(found[2], ends[0])
    assert not torch.allclose(found[2], ends[1])
    f = case.model.train()
    with torch.no_grad():  # train mode is what normalises with the batch in plain torch
        torch.testing.assert_close(f(case.x, case.adapter.neutral(case.x)), ends[1])


@pytest.mark.parametrize(
    ("make", "hint"),
    [
        (lambda m, a: IT3(m, a, lr=-1), "from 0 up, not -1"),
        (lambda m, a: IT3(m, a, steps=-1), "whole number from 0 up"),
        (lambda m, a: IT3(m, a, lr=NAN), "learning rate"),
        (lambda m, a: IT3(m, a, steps=1.5), "whole number"),
        (lambda m, a: IT3(m, a, power=-1), "power"),
        (lambda m, a: IT3(nn.Linear(3, 1), a), "takes no signal"),
        (lambda m, a: Trust([1.0, 0.5]), "ascend"),
        (lambda m, a: a.distance(torch.zeros(4, 3), torch.zeros(4, 1)), "don't fit"),
        (lambda m, a: Classification(3).encode(torch.zeros(3)), "logits of shape"),
        (lambda m, a: Source(m, a)({}), "empty dict"),
        (lambda m, a: IT3(m, a, optimizer="Adamm")(torch.zeros(1, 3)), "no optimiser 'Adamm'"),
        (lambda m, a: IT3(m, a, norm="batches"), "norm must be"),
        (lambda m, a: IT3(m, a, norm=1.5), "norm must be"),
        (lambda m, a: IT3(widen(nn.Linear(3, 1), a), a, parameters="above"), "condition"),
        (lambda m, a: OnlineIT3(m, a, decay=2), "decay"),
        (lambda m, a: AnswerStep(m, a, alpha=NAN), "alpha"),
        (lambda m, a: Activations.collect(m, a, [torch.zeros(4, 3)], ["model.9"]), "no layer"),
        (lambda m, a: Activations.collect(m, a, [], ["model.0"]), "at least two"),
        (lambda m, a: Trust([1.0, 2.0], false_alarms=0), "false_alarms"),
        (lambda m, a: Trust.from_errors(torch.tensor([1.0])), "at least two"),
        (lambda m, a: Regression([1.0], [1.0, 2.0]), "mean has 1 values but std has 2"),
        (lambda m, a: Regression(distance="l2"), "distance must be one of"),
        (lambda m, a: Regression.fit(torch.tensor([1.0, NAN])), "NaN or Inf"),
        (lambda m, a: Classification(1), "two classes"),
        (lambda m, a: Classification(3).encode(torch.tensor([3])), "0 … 2"),
        (lambda m, a: Classification(3).loss(torch.zeros(1, 3), torch.tensor([1.0])), "integers"),
        (lambda m, a: DenseMap().loss(torch.zeros(1, 1, 2, 2), torch.zeros(1, 2, 2)), "integers"),
        (lambda m, a: DenseMap().loss(torch.zeros(1, 1, 2, 2), torch.zeros(1, 3, 3).long()), "fit"),
        (lambda m, a: a.encode(torch.zeros(2, 5)), "5 answers"),
        (lambda m, a: a.loss(torch.zeros(2, 1), torch.zeros(3)), "fit labels"),
        (lambda m, a: zigzag_loss(m, a, torch.zeros(2, 3), torch.zeros(2), given=2), "probability"),
        (lambda m, a: zigzag_loss(m, a, torch.zeros(2, 3), torch.zeros(2), second="x"), "second"),
    ],
)
def test_bad_settings_say_what_to_change(make: Callable[[Any, Any], Any], hint: str) -> None:
    with pytest.raises(IT3Error, match=hint):
        make(*small())


def test_actmad_refuses_other_sizes() -> None:
    adapter = Classification(2)
    net = nn.Sequential(nn.Conv2d(1, 2, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 2))
    model = condition(net, adapter, "0")
    known = Activations.collect(model, adapter, [torch.randn(4, 1, 8, 8)], ["model.0"])
    ActMAD(model, adapter, known)(torch.randn(1, 1, 8, 8))
    with pytest.raises(IT3Error, match="inputs of the same size"):
        ActMAD(model, adapter, known)(torch.randn(2, 1, 9, 9))
    data = [torch.randn(4, 1, 8, 8), torch.randn(4, 1, 9, 9)]
    with pytest.raises(IT3Error, match="different sizes"):
        Activations.collect(model, adapter, data, ["model.0"])


def test_a_network_that_can_t_be_mapped_falls_back_to_a_loop_and_says_so() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 1)
            self.ear = nn.Linear(2, 1)

        def forward(self, x: Tensor, signal: Tensor) -> Tensor:
            if float(x.sum()) > 1e9:  # depends on the data
                return x[:, :1]
            output: Tensor = self.layer(x) + self.ear(signal).tanh()
            return output

    model, adapter, x = Branches(), Regression(), torch.randn(3, 3)
    method = IT3(model, adapter, lr=1e-3, per_instance=True)
    with pytest.warns(IT3Warning, match="one by one"):
        answer = method(x)
    rows = [IT3(model, adapter, lr=1e-3)(x[row : row + 1]).prediction for row in range(3)]
    torch.testing.assert_close(answer.prediction, torch.cat(rows))


def test_a_network_that_can_t_be_copied_is_refused() -> None:
    model = Deaf()
    model.lock = (i for i in range(3))  # type: ignore[assignment]
    with pytest.raises(IT3Error, match="can't be copied"):
        Source(model, Regression())


def test_inputs_of_several_parts(build: Build) -> None:
    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(7, 1)

        def forward(self, x: dict[str, Any], signal: Tensor) -> Tensor:
            output: Tensor = self.layer(torch.cat([x["a"], *x["b"], signal], 1))
            return output

    x = {"a": torch.randn(4, 2), "b": (torch.randn(4, 2), torch.randn(4, 1))}
    adapter = Regression()
    for per_instance in (False, True):
        answer = IT3(Parts(), adapter, lr=1e-3, per_instance=per_instance)(x)
        assert answer.prediction.shape == (4, 1)
    x["a"][2, 0] = NAN
    with pytest.raises(IT3Error, match="NaN"):
        Source(Parts(), adapter)(x)
    graph = build("graph").x
    assert count(take(graph, slice(1, 3))) == 2


def test_import_brings_torch_safetensors_and_nothing_else() -> None:
    """`import it3_core` costs little more than importing torch: it brings nothing else along."""
    code = (
        "import sys, torch, safetensors; known = set(sys.modules); import it3_core; "
        "print(*sorted({name.split('.')[0] for name in set(sys.modules) - known}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    brought = set(done.stdout.split()) - set(sys.stdlib_module_names)
    assert brought <= {"it3_core", "torch", "safetensors"}, brought
