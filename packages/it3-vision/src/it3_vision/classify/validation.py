"""Images to choose by that are not training images: a set, or one half of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from it3_core import IT3Error
from it3_vision import image_task
from it3_vision.classify.cli import Train
from it3_vision.data import BadImage, ImageSet, open_images

FEWEST = 10  # that can be chosen by


@dataclass(frozen=True)
class Chosen:
    """Which set a training was given to choose by, and which half of it."""

    fingerprint: str
    half: int | None


def open_apart(options: Train, classes: Sequence[str]) -> ImageSet | None:
    """The set that `--validation` names, without images whose class is unknown."""
    if options.validation is None:
        return None
    images = open_images(options.validation, split=options.validation_split, classes=classes)
    return images.take(images.labels >= 0)


def chosen_of(apart: ImageSet | None, half: int | None) -> Chosen | None:
    """What an experiment remembers of it."""
    return None if apart is None else Chosen(image_task.fingerprint(apart), half)


def decoded(apart: ImageSet, options: Train) -> tuple[ImageSet, list[BadImage]]:
    """The images of its half that can be read, up to as many as are validated on."""
    some = apart if options.validation_half is None else apart.half(options.validation_half)
    some = some.take(some.sample_rows(min(image_task.MOST_VALIDATION, len(some))))
    found, bad = image_task.in_memory(some, options.network.side, not options.quiet)
    if len(found) < FEWEST:
        raise IT3Error(
            f"there are {len(found)} labelled images to validate on: give {FEWEST} at least"
        )
    return found, bad


def check_unseen(chosen: Chosen | None, images: ImageSet, half: int | None) -> None:
    """Refuses to test on the images that were chosen by."""
    if chosen is None or chosen.fingerprint != image_task.fingerprint(images):
        return
    if chosen.half is None or half in (None, chosen.half):
        other = "name others" if chosen.half is None else f"give --half {1 - chosen.half}"
        raise IT3Error(f"some of these images are those that training validated on: {other}")
