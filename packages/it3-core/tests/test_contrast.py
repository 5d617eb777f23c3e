"""Any two methods, paired."""

from __future__ import annotations

import torch

from it3_core.contrast import contrast, slope
from it3_core.evaluation import Record


def records(method: str, seeds: dict[int, list[float]], size: int | None = None) -> list[Record]:
    return [
        {"seed": seed, "method": method, "batch_size": size, "errors": errors}
        for seed, errors in seeds.items()
    ]


def noisy(seed: int, mean: float) -> list[float]:
    generator = torch.Generator().manual_seed(seed)
    return (mean + torch.randn(50, generator=generator)).tolist()


def test_pairs_see_what_means_do_not() -> None:
    """Instances differ by far more than methods do; each with itself, the gain is certain."""
    hard = {seed: noisy(seed, 10.0) for seed in range(4)}
    better = {seed: [error - 0.1 for error in errors] for seed, errors in hard.items()}
    found = contrast(records("a", better) + records("b", hard), ("a", None), ("b", None))
    assert found is not None
    assert found.sign == -1
    assert abs(found.value + 0.1) < 1e-9
    assert found.relative is not None
    assert abs(found.relative + 0.01) < 1e-3
    assert found.seeds == 4


def test_chance_is_called_chance() -> None:
    mine = {seed: noisy(seed, 1.0) for seed in range(3)}
    other = {seed: noisy(seed + 100, 1.0) for seed in range(3)}
    found = contrast(records("a", mine) + records("b", other), ("a", None), ("b", None))
    assert found is not None
    assert found.sign == 0


def test_only_seeds_that_both_have_count() -> None:
    both = records("a", {0: [1.0, 1.0], 1: [9.0, 9.0]}) + records("b", {0: [2.0, 2.0]})
    found = contrast(both, ("a", None), ("b", None))
    assert found is not None
    assert (found.value, found.seeds) == (-1.0, 1)
    assert contrast(both, ("a", None), ("c", None)) is None
    assert contrast(both, ("a", 4), ("b", None)) is None


def test_a_failed_method_has_no_contrast() -> None:
    failed: list[Record] = [{"seed": 0, "method": "a", "batch_size": None, "errors": None}]
    assert contrast(failed + records("b", {0: [1.0]}), ("a", None), ("b", None)) is None


def test_slopes_need_no_common_instances() -> None:
    near = records("a", {0: [1.0], 1: [1.0]}) + records("b", {0: [1.0], 1: [1.2]})
    far = records("a", {0: [2.0, 2.0], 1: [2.1, 2.1]}) + records(
        "b", {0: [5.0, 5.0], 1: [5.1, 5.3]}
    )
    found = slope(near, far, ("a", None), ("b", None))
    assert found is not None
    assert found.value < -2.5
    assert found.sign == -1
