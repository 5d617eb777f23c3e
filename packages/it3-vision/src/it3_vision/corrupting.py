"""The command `it3-vision corrupt`, and what its options mean."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from it3_core.errors import IT3Error
from it3_core.experiment.verbs import Positive, Quiet, Seed


def parse_types(text: str) -> tuple[str, ...]:
    """Which corruptions: all, extra, or names with commas between."""
    from it3_vision.corruptions import CORRUPTIONS, EXTRA, constants

    names: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        names += {"all": CORRUPTIONS, "extra": EXTRA}.get(part, (part,))
    for name in names:
        constants(name, 1)  # says what is wrong with it
    return tuple(dict.fromkeys(names))


def parse_severities(text: str) -> tuple[int, ...]:
    """Which severities: all, a number, a range, or several with commas between."""
    plain = text.replace(" ", "").replace("all", "1-5")
    if not re.fullmatch(r"[1-5](-[1-5])?(,[1-5](-[1-5])?)*", plain):
        raise IT3Error(f"severities are from 1 to 5, such as 5, 1-5, 1,3,5 or all, not {text}")
    bounds = [sorted(map(int, part.split("-"))) for part in plain.split(",")]
    return tuple(sorted({level for ends in bounds for level in range(ends[0], ends[-1] + 1)}))


def corrupt(
    source: Annotated[Path, Parameter(name="IN")],
    out: Path,
    /,
    *,
    corruptions: str = "all",
    severities: str = "all",
    benchmark: Literal["auto", "cifar", "imagenet"] = "auto",
    workers: Positive | None = None,
    seed: Seed = 0,
    most: Positive | None = None,
    split: str | None = None,
    size: Annotated[int, Parameter(validator=Number(gte=1, lte=10_000))] | None = None,
    quiet: Quiet = False,
) -> None:
    """Make your own CIFAR-10-C or ImageNet-C of a set of images.

    Arrays (CIFAR, MNIST, .npy) become OUT/fog.npy ..., the severities one after the other, and
    OUT/labels.npy. Files become OUT/fog/5/CLASS/FILE. A run that was stopped goes on when the same
    command is given again; more corruptions can be added later in the same way.

    The fifteen: gaussian_noise, shot_noise, impulse_noise, defocus_blur, glass_blur, motion_blur,
    zoom_blur, snow, frost, fog, brightness, contrast, elastic_transform, pixelate,
    jpeg_compression. The four extra: speckle_noise, gaussian_blur, spatter, saturate.

    Example: it3-vision corrupt cifar-10-batches-bin CIFAR-10-C --split test --severities 5

    Args:
        source: A folder of class folders, a tar of one, CIFAR's .bin files, MNIST's IDX files, or
            an .npy of (N, H, W, 3).
        out: Folder to write: new, or of an earlier run.
        corruptions: all (the fifteen), extra (the four), or names with commas.
        severities: From 1 to 5: 5, 1-5, 1,3,5, or all.
        benchmark: Whose constants. auto: CIFAR's up to 84 pixels, else ImageNet's.
        workers: Processes; one for each core by default.
        most: Images at most, spread over the set.
        split: Which, where IN has several: train, test ...
        size: Cut files to squares of this side first; ImageNet-C has 224.
    """
    import cv2

    from it3_vision.corruptions.writing import BAD_IMAGES, corrupt_set
    from it3_vision.data import open_images

    cv2.setNumThreads(1)  # the work is shared out by images
    run = corrupt_set(
        open_images(source, split=split),
        out,
        parse_types(corruptions),
        parse_severities(severities),
        benchmark=benchmark,
        seed=seed,
        limit=most,
        size=size,
        workers=workers or len(os.sched_getaffinity(0)),
        inputs=[source],
        progress=not quiet,
    )
    earlier = f", {run.before:,} were there before" if run.before else ""
    print(f"wrote {run.written:,} images to {out} with {run.benchmark}'s constants{earlier}")
    if run.bad:
        print(f"{len(run.bad):,} images can't be read and are left out: see {out / BAD_IMAGES}")
