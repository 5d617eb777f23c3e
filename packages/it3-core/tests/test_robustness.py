"""Hostile input: told apart, told clearly, and nothing is harmed."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from it3_core import (
    IT3,
    Activations,
    AnswerStep,
    Classification,
    DenseMap,
    IT3Error,
    IT3Warning,
    OnlineIT3,
    Regression,
    Source,
    StreamGate,
    Trust,
    condition,
    sensitivity,
    widen,
    zigzag_loss,
)
from it3_core.batching import count, take

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


class Deaf(nn.Linear):
    def forward(self, x: Tensor, signal: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x)


@pytest.mark.parametrize("method", [AnswerStep, IT3, OnlineIT3])
def test_a_network_that_ignores_its_signal_is_named_once(method: Any) -> None:
    deaf = method(Deaf(3, 1), Regression())
    with pytest.warns(IT3Warning, match=r"does not depend on its signal .*dF/dy\| = 0"):
        deaf(torch.randn(4, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        deaf(torch.randn(4, 3))
    assert sensitivity(Deaf(3, 1), Regression(), torch.randn(4, 3)) == 0.0


@pytest.mark.parametrize("norm", ["batch", 1.0])
def test_batch_statistics_of_one_value_are_refused(norm: Any) -> None:
    adapter = Regression()
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))
    model = condition(net, adapter, "0")
    with pytest.raises(IT3Error, match="more than one value per channel"):
        Source(model, adapter, norm=norm)(torch.randn(1, 3))
    Source(model, adapter, norm=0.5)(torch.randn(1, 3))  # a blend is fine
    with pytest.warns(IT3Warning, match="has no batch norm"):
        Source(small()[0], adapter, norm="batch")


@pytest.mark.parametrize(
    ("make", "hint"),
    [
        (lambda m, a: IT3(m, a, lr=-1), "learning rate .*from 0 up, not -1"),
        (lambda m, a: IT3(m, a, steps=1.5), "whole number from 0 up"),
        (lambda m, a: IT3(m, a, power=-1), "power"),
        (lambda m, a: IT3(nn.Linear(3, 1), a), "takes x alone"),
        (lambda m, a: Trust([1.0, 0.5]), "ascend"),
        (lambda m, a: a.distance(torch.zeros(4, 3), torch.zeros(4, 1)), "don't fit"),
        (lambda m, a: Classification(3).encode(torch.zeros(3)), "logits of shape"),
        (lambda m, a: Source(m, a)({}), "empty dict"),
        (lambda m, a: IT3(m, a, optimizer="Adamm")(torch.zeros(1, 3)), "no optimiser 'Adamm'"),
        (lambda m, a: IT3(m, a, norm=1.5), "norm must be"),
        (lambda m, a: IT3(widen(nn.Linear(3, 1), a), a, parameters="above"), "condition"),
        (lambda m, a: OnlineIT3(m, a, decay=2), "decay"),
        (lambda m, a: OnlineIT3(m, a, pull=-1), "pull"),
        (lambda m, a: OnlineIT3(m, a, gate=StreamGate(0.0, 1.0, of="statistics")), "gate is"),
        (lambda m, a: AnswerStep(m, a, alpha=NAN), "alpha"),
        (lambda m, a: Activations.collect(m, a, [torch.zeros(4, 3)], ["model.9"]), "no layer"),
        (lambda m, a: Activations.collect(m, a, [], ["model.0"]), "at least two"),
        (lambda m, a: Trust([1.0, 2.0], false_alarms=0), "false_alarms"),
        (lambda m, a: Regression([1.0], [1.0, 2.0]), "mean has 1 values but std has 2"),
        (lambda m, a: Classification(3, "euclidean"), "distance must be one of"),
        (lambda m, a: Regression.fit(torch.tensor([1.0, NAN])), "NaN or Inf"),
        (lambda m, a: Classification(1), "at least 2 classes"),
        (lambda m, a: Classification(3).encode(torch.tensor([3])), "0 … 2"),
        (lambda m, a: Classification(3).loss(torch.zeros(1, 3), torch.tensor([1.0])), "integers"),
        (lambda m, a: DenseMap().loss(torch.zeros(1, 1, 2, 2), torch.zeros(1, 3, 3).long()), "fit"),
        (lambda m, a: a.encode(torch.zeros(2, 5)), "5 answers"),
        (
            lambda m, a: zigzag_loss(m, a, torch.zeros(2, 3), torch.zeros(2), second_signal="x"),
            "second",
        ),
    ],
)
def test_bad_settings_say_what_to_change(make: Callable[[Any, Any], Any], hint: str) -> None:
    with pytest.raises(IT3Error, match=hint):
        make(*small())


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


def test_inputs_of_several_parts(build: Build) -> None:
    class Parts(nn.Linear):
        def forward(self, x: dict[str, Any], signal: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(torch.cat([x["a"], *x["b"], signal], 1))

    x = {"a": torch.randn(4, 2), "b": (torch.randn(4, 2), torch.randn(4, 1))}
    adapter, model = Regression(), Parts(7, 1)
    for per_instance in (False, True):
        answer = IT3(model, adapter, lr=1e-3, per_instance=per_instance)(x)
        assert answer.prediction.shape == (4, 1)
    x["a"][2, 0] = NAN
    with pytest.raises(IT3Error, match="NaN"):
        Source(model, adapter)(x)
    assert count(take(build("graph").x, slice(1, 3))) == 2


def test_torch_and_safetensors_are_all_it_needs(tmp_path: Path) -> None:
    """`import it3_core` costs little more than importing torch, and works without numpy."""
    code = f"""
import sys, warnings
sys.modules["numpy"] = None  # any import of it fails
warnings.simplefilter("ignore")
import torch, safetensors
known = set(sys.modules)
import it3_core
print(*sorted({{name.split('.')[0] for name in set(sys.modules) - known}}))
net = it3_core.widen(torch.nn.Linear(3, 1), it3_core.Regression())
it3_core.save({str(tmp_path / "net")!r}, net, adapter=it3_core.Regression(), settings={{}})
it3_core.load({str(tmp_path / "net")!r}).restore(net)
print("done")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules, last = done.stdout.splitlines()
    brought = set(modules.split()) - set(sys.stdlib_module_names)
    assert brought <= {"it3_core", "torch", "safetensors"}, brought
    assert (last, list(tmp_path.iterdir())) == ("done", [tmp_path / "net"])
