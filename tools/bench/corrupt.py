"""How many images per CPU-second it3-vision corrupts: 32 × 32, severity 5, CIFAR's constants.

    python tools/bench/corrupt.py [IMAGES]

With IT3_DATA in the environment the images are CIFAR-10's test images
($IT3_DATA/cifar10/test.tar.gz), else smooth noise. One thread; reading and writing are not counted.
"""

import os
import sys
import time
from pathlib import Path

import cv2
import numpy as np

from it3_core.experiment.tables import markdown_table
from it3_vision.corruptions import CORRUPTIONS, EXTRA, corrupt_all
from it3_vision.data import open_images


def main(number: int = 10_000) -> None:
    """Measure and print."""
    cv2.setNumThreads(1)
    if data := os.environ.get("IT3_DATA"):
        images = open_images(Path(data, "cifar10", "test.tar.gz")).batch(slice(number), 32)
    else:  # what compresses and blurs somewhat like a photograph
        coarse = np.random.default_rng(0).integers(0, 256, (number, 8, 8, 3), dtype=np.uint8)
        images = np.stack([cv2.resize(one, (32, 32), interpolation=2) for one in coarse])
    spent: dict[str, float] = {}
    for name in CORRUPTIONS + EXTRA:
        began = time.process_time()
        corrupt_all(images, name, 5, benchmark="cifar")
        spent[name] = time.process_time() - began
    mean = sum(spent[name] for name in CORRUPTIONS) / len(CORRUPTIONS)
    lines = [[name, f"{number / seconds:.0f}"] for name, seconds in spent.items()]
    lines.append(["the fifteen together", f"{number / mean:.0f}"])
    print(markdown_table([["corruption", "images per CPU-second"], *lines]))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
