"""The command `it3-vision corrupt`, and what its options mean."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import cv2
import typer

from it3_core import IT3Error
from it3_vision import options
from it3_vision.corruptions import CORRUPTIONS, EXTRA, constants
from it3_vision.corruptions.writing import BAD_IMAGES, Corrupted, corrupt_set, pool
from it3_vision.data import open_images

__all__ = ["Corrupted", "corrupt", "corrupt_set", "parse_severities", "parse_types", "pool"]


def parse_types(text: str) -> tuple[str, ...]:
    """What `--type` says: all, extra, or names with commas between.

    Example:
        >>> parse_types("fog, extra")
        ('fog', 'speckle_noise', 'gaussian_blur', 'spatter', 'saturate')
    """
    names: list[str] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        names += {"all": CORRUPTIONS, "extra": EXTRA}.get(part, (part,))
    if not names:
        raise IT3Error("--type must be all, extra, or names such as fog,snow")
    for name in names:
        constants(name, 1)
    return tuple(dict.fromkeys(names))


def parse_severities(text: str) -> tuple[int, ...]:
    """What `--severity` says: all, a number, a range, or several with commas between.

    Example:
        >>> parse_severities("all"), parse_severities("1,3-5")
        ((1, 2, 3, 4, 5), (1, 3, 4, 5))
    """
    found: set[int] = set()
    for part in text.replace("all", "1-5").split(","):
        first, _, last = part.partition("-")
        try:
            levels = range(int(first), int(last or first) + 1)
        except ValueError:
            levels = range(0)
        if not levels or levels[0] < 1 or levels[-1] > 5:
            raise IT3Error(f"--severity must be like 5, 1-5, 1,3,5 or all, but is {text!r}")
        found.update(levels)
    return tuple(sorted(found))


class Constants(StrEnum):
    """Whose constants to take."""

    auto = "auto"
    cifar = "cifar"
    imagenet = "imagenet"


def corrupt(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="IN",
            help="A folder of class folders, a tar of one, CIFAR's .bin files, MNIST's IDX "
            "files, or an .npy of (N, H, W, 3).",
        ),
    ],
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="Folder to write: new, or of an earlier run.")
    ],
    types: Annotated[
        str,
        typer.Option("--type", help="all (the fifteen), extra (the four), or names with commas."),
    ] = "all",
    severity: Annotated[str, typer.Option(help="From 1 to 5: 5, 1-5, 1,3,5, or all.")] = "all",
    benchmark: Annotated[
        Constants,
        typer.Option(help="Whose constants. auto: CIFAR's up to 84 pixels, else ImageNet's."),
    ] = Constants.auto,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes.", show_default="one for each core")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of everything that is random.")] = 0,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Only so many images, spread over the set.")
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Which, where IN has several: train, test ...")
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(
            min=1, max=10_000, help="Cut files to squares of this side first; ImageNet-C has 224."
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress on standard error.")] = False,
) -> None:
    """Make your own CIFAR-10-C or ImageNet-C of a set of images.

    Arrays (CIFAR, MNIST, .npy) become OUT/fog.npy ..., the severities one after the other, and
    OUT/labels.npy. Files become OUT/fog/5/CLASS/FILE. A run that was stopped goes on when the same
    command is given again; more types can be added later in the same way.

    The fifteen: gaussian_noise, shot_noise, impulse_noise, defocus_blur, glass_blur, motion_blur,
    zoom_blur, snow, frost, fog, brightness, contrast, elastic_transform, pixelate,
    jpeg_compression. The four extra: speckle_noise, gaussian_blur, spatter, saturate.

    Example: `it3-vision corrupt cifar-10-batches-bin CIFAR-10-C --split test --severity 5`
    """
    cv2.setNumThreads(1)  # the work is shared out by images
    names, severities = parse_types(types), parse_severities(severity)
    options.check_outside(out, source)
    images = open_images(source, split=split)
    with pool(workers or len(os.sched_getaffinity(0))) as executor:
        done = corrupt_set(
            images,
            out,
            names,
            severities,
            benchmark=benchmark.value,
            seed=seed,
            limit=limit,
            size=size,
            executor=executor,
            progress=not quiet,
        )
    earlier = f", {done.before:,} were there before" if done.before else ""
    print(f"wrote {done.written:,} images to {out} with {done.benchmark}'s constants{earlier}")
    if done.bad:
        print(f"{len(done.bad):,} images can't be read and are left out: see {out / BAD_IMAGES}")
