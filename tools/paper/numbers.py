"""What the paper prints: its tables' numbers, batch sizes and colours, and what its figures say."""

from __future__ import annotations

from typing import Literal, NamedTuple

IT3, SOURCE, ONLINE, ACTMAD = "IT³ (paper)", "source", "online IT³ (paper)", "ActMAD"
STOPPED = "IT³ (paper, gradient stopped)"
SHIFTED = "online IT³ (paper), shifted only"
ON_BATCH, STATISTICS = "IT³ (paper), batch statistics", "batch statistics"
VANILLA = ("vanilla net", "vanilla")
"""The same network trained without a signal; the second name is that of tables."""

BATCHES: dict[str, tuple[int, ...]] = {
    "tabular": (1, 4, 8),
    "cifar": (1, 4, 16, 64),  # the paper does not print its own
    "imagenet": (1, 4, 8),  # nor these
    "age": (4, 8, 16),
    "roads": (4, 8, 16),
    "wings": (1, 4, 16),
    "cars": (1, 2, 4),
}
"""Batch sizes of IT³ in the paper's figures."""

NOT_OPTIMISED = "#96cac1"
ACTMAD_BLUE, TTT_GREEN = (0.008, 0.176, 0.722), (0.0, 0.6, 0.078)
BATCH_COLOURS = ((0.325, 0.016, 0.659), (0.412, 0.204, 0.620), (0.494, 0.361, 0.631))
"""Of IT³ at the three batch sizes, the smallest first; all from the paper's captions."""


class Online(NamedTuple):
    """A part of the paper's Table 1."""

    columns: tuple[str, ...]
    rows: dict[str, tuple[float, ...]]  # not optimised, at each batch size, online


_ROADS = ("correctness", "completeness", "quality")
ONLINE_TABLE: dict[str, Online] = {
    "online-roads": Online(_ROADS, {
        "Not optimised": (55.7, 44.3, 39.5), "IT³ (batch=4)": (55.7, 49.1, 46.4),
        "IT³ (batch=8)": (58.1, 52.0, 48.5), "IT³ (batch=16)": (57.3, 52.7, 48.7),
        "IT³ (online)": (77.5, 79.8, 69.8),
    }),
    "online-airfoils": Online(("MAE",), {
        "Not optimised": (38.2,), "IT³ (batch=1)": (37.6,), "IT³ (batch=4)": (37.5,),
        "IT³ (batch=16)": (37.4,), "IT³ (online)": (34.1,),
    }),
    "online-cars": Online(("MAE",), {
        "Not optimised": (0.501,), "IT³ (batch=1)": (0.446,), "IT³ (batch=2)": (0.424,),
        "IT³ (batch=4)": (0.412,), "IT³ (online)": (0.385,),
    }),
}  # fmt: skip

COSTS: dict[str, dict[str, float]] = {
    "wings": {SOURCE: 1.0, ACTMAD: 3.0, IT3: 4.0},
    "cars": {SOURCE: 1.0, ACTMAD: 4.0, IT3: 5.0},
    "roads": {SOURCE: 1.0, ACTMAD: 4.5, IT3: 6.0},
}
"""Time on out-of-distribution data, in passes of the base model."""

MEMORY: dict[str, float] = {
    SOURCE: 4.5, "Tent": 4.8, "MEMO": 13.5, "ETA": 4.9, ACTMAD: 7.2, IT3: 7.4,
}  # fmt: skip
"""GB on ImageNet-C in batches of 128."""

PEARSON = -0.94
"""Of a batch's idempotence error with its accuracy, on ImageNet-C."""

BASELINES: dict[str, tuple[str, ...]] = {
    "cifar": ("TTT",),
    "roads": ("TTT",),
    "imagenet": ("Tent", "ETA", "MEMO"),
}
"""What the paper compares with besides ActMAD, which it has in every task."""

SAYS: dict[str, str] = {
    "tabular": "box plots on Boston Housing, batches 1, 4, 8: IT³ degrades less",
    "cifar": "bars on CIFAR-10-C, severity 5: IT³ below none, TTT and ActMAD",
    "imagenet": "bars on ImageNet-C: IT³ above TENT, ETA, MEMO, ActMAD; Pearson −0.94",
    "age": "box plots on UTKFace, batches 4, 8, 16: IT³ degrades less",
    "roads": "quality 39.5 → 46.4 (4), 48.5 (8), 48.7 (16), online 69.8",
    "wings": "MAE 38.2 → 37.6 (1), 37.5 (4), 37.4 (16), online 34.1",
    "cars": "MAE 0.501 → 0.446 (1), 0.424 (2), 0.412 (4), online 0.385",
}
"""What the paper reports of each task."""

TASKS = tuple(SAYS)

Verdict = Literal["reproduced", "not shown", "the opposite", "not measured"]
