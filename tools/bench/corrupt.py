"""How many images per CPU-second it3-vision corrupts: 32 × 32, severity 5, CIFAR's constants.

Run it with it3-vision installed: `python tools/bench/corrupt.py`. With IT3_DATA in the environment
the images are CIFAR-10's test images ($IT3_DATA/cifar10/test.tar.gz), else smooth noise. One
thread; reading and writing are not counted. Prints a Markdown table.
"""

import argparse
import os
import tarfile
import time
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from it3_vision.corruptions import CORRUPTIONS, EXTRA, corrupt_all


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=10_000, help="how many [10000]")
    parser.add_argument("--severity", type=int, default=5, choices=range(1, 6), help="[5]")
    given = parser.parse_args()
    cv2.setNumThreads(1)
    data = os.environ.get("IT3_DATA")
    images = read(Path(data, "cifar10", "test.tar.gz")) if data else drawn(given.images)
    images = images[: given.images]
    kind = "CIFAR-10's test images" if data else "images of smooth noise"
    print(f"{len(images):,} {kind}, severity {given.severity}, one thread\n")
    print("| corruption | images per CPU-second |")
    print("| --- | ---: |")
    spent: dict[str, float] = {}
    for name in CORRUPTIONS + EXTRA:
        began = time.process_time()
        corrupt_all(images, name, given.severity, benchmark="cifar")
        spent[name] = time.process_time() - began
        print(f"| {name} | {len(images) / spent[name]:,.0f} |", flush=True)
    fifteen = sum(spent[name] for name in CORRUPTIONS)
    print(f"| **the fifteen together** | **{len(images) * len(CORRUPTIONS) / fifteen:,.0f}** |")


def read(tar: Path) -> NDArray[np.uint8]:
    """All images in a tar of JPEGs of one size."""
    found = []
    with tarfile.open(tar) as members:
        for member in members:
            file = members.extractfile(member) if member.name.endswith(".jpg") else None
            if file is not None:
                coded = np.frombuffer(file.read(), dtype=np.uint8)
                found.append(np.asarray(cv2.imdecode(coded, cv2.IMREAD_COLOR))[..., ::-1])
    return np.stack(found).astype(np.uint8)


def drawn(count: int) -> NDArray[np.uint8]:
    """Smooth noise: what compresses and blurs somewhat like a photograph."""
    random = np.random.default_rng(0)
    coarse = random.integers(0, 256, (count, 8, 8, 3), dtype=np.uint8)
    return np.stack([cv2.resize(one, (32, 32), interpolation=cv2.INTER_CUBIC) for one in coarse])


if __name__ == "__main__":
    main()
