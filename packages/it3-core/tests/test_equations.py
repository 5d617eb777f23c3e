"""Each equation of the paper by its number, computed by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from it3_core import IT3, IT3Error, OnlineIT3, Regression, idempotence_loss, zigzag_loss
from it3_core.model.losses import first_pass, second_pass

X, Y = torch.tensor([[1.0], [2.0]]), torch.tensor([2.0, 2.0])
ADAPTER = Regression()  # encode(y) = (y, 1), neutral = (0, 0)


class Line(nn.Module):
    """f(x, s) = θ x + s / 2."""

    def __init__(self, theta: float = 1.0) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.tensor(theta))

    def forward(self, x: Tensor, signal: Tensor) -> Tensor:
        return self.theta * x + signal[:, :1] / 2


def test_2_and_9_zigzag() -> None:
    # f(x, 0) = 1, 2 is off by 1, 0; f(x, y) = 2, 3 is off by 0, 1; squared, and the mean of each
    assert zigzag_loss(Line(), ADAPTER, X, Y).item() == pytest.approx((1 + 0) / 2 + (0 + 1) / 2)


def test_3_and_4_the_two_passes() -> None:
    y0 = first_pass(Line(), ADAPTER, X)
    assert y0.flatten().tolist() == [1.0, 2.0]
    assert second_pass(Line(), ADAPTER, X, y0).flatten().tolist() == [1.5, 3.0]


@pytest.mark.parametrize(
    ("second", "by_hand"),
    [
        (Line(1.0), (0.5 + 1.0) / 2),  # (5) = (12) = (16): f itself
        (Line(0.5), (0.0 + 0.0) / 2),  # (6) = (17) to (19): another F
        (Line(0.75), (0.25 + 0.5) / 2),  # (7): half way between the two
    ],
)
def test_5_6_and_7_are_one_norm_with_other_second_passes(second: Line, by_hand: float) -> None:
    y0 = first_pass(Line(), ADAPTER, X)
    y1 = second_pass(second, ADAPTER, X, y0)
    assert idempotence_loss(ADAPTER, y1, y0).item() == pytest.approx(by_hand)
    assert idempotence_loss(ADAPTER, y1, y0, each=True).item() == pytest.approx(2 * by_hand)


# One step of SGD at 0.1 on x = 2, from θ = F's θ = 1. The gap is |F's θ x + θ x / 2 − θ x|.
STEPS: list[tuple[dict[str, Any], float]] = [
    ({"anchor_gradient": True}, -0.5 * 2),  # (6): d/dθ of (1 − θ / 2) x
    ({"anchor_gradient": False}, -1.0 * 2),  # (6) with the gradient stopped at F's input
    ({"anchor": "none", "anchor_gradient": True}, +0.5 * 2),  # (5): d/dθ of θ x / 2
]


@pytest.mark.parametrize(("settings", "slope"), STEPS)
def test_a_step_of_it3_is_a_step_on_its_equation(settings: dict[str, Any], slope: float) -> None:
    model, x = Line(), torch.tensor([[2.0]])
    method = IT3(model, ADAPTER, lr=0.1, optimizer="SGD", trust_region=False, **settings)
    assert method(x).prediction.item() == pytest.approx((1 - 0.1 * slope) * 2)
    rows = IT3(model, ADAPTER, lr=0.1, optimizer="SGD", trust_region=False, per_instance=True,
               **settings)  # fmt: skip
    assert rows(x.repeat(3, 1)).prediction[1].item() == pytest.approx((1 - 0.1 * slope) * 2)
    assert model.theta.item() == 1.0


def test_7_the_second_step_of_a_stream_is_against_the_moving_average() -> None:
    x = torch.tensor([[2.0]])
    method = OnlineIT3(Line(), ADAPTER, lr=0.1, optimizer="SGD", decay=0.75, pull=0.0, gate=None,
                       trust_region=False, anchor_gradient=True)  # fmt: skip
    first = 1 - 0.1 * -0.5 * 2  # as (6), since the average is still F
    assert method(x).prediction.item() == pytest.approx(first * 2)
    average = 0.75 * 1 + 0.25 * first
    gap = average + first / 2 - first  # over x; positive, so that the slope is the same again
    second = method(x)
    assert second.error_before.item() == pytest.approx(gap * 2)
    assert second.prediction.item() == pytest.approx((first + 0.1 * 0.5 * 2) * 2)


def test_an_unknown_anchor_is_refused() -> None:
    with pytest.raises(IT3Error, match='anchor is "frozen" or "none"'):
        IT3(Line(), ADAPTER, anchor="moving")  # type: ignore[arg-type]
