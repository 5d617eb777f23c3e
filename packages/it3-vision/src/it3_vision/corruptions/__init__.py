"""The corruptions of ImageNet-C and CIFAR-10-C: nineteen kinds, five severities, two sizes.

`corrupt` takes one image, `corrupt_all` many of one size. docs/corruptions.md says for each kind
how it relates to the benchmark's own code (Hendrycks and Dietterich, ICLR 2019).
"""

from it3_vision.corruptions.applying import (
    CORRUPTIONS,
    EXTRA,
    constants,
    corrupt,
    corrupt_all,
    generator,
)
from it3_vision.corruptions.kinds import Benchmark, benchmark_for

__all__ = [
    "CORRUPTIONS",
    "EXTRA",
    "Benchmark",
    "benchmark_for",
    "constants",
    "corrupt",
    "corrupt_all",
    "generator",
]
