"""Which layout a tree of images has: splits, corruptions and severities, then classes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np

from it3_core import IT3Error, IT3Warning
from it3_vision.data.arrays import check_known
from it3_vision.data.sets import ImageSet
from it3_vision.data.trees import FileSource, Parts, Tree, deep_images, is_tar, shown

__all__ = ["SPLITS", "Place", "corruption_folders", "from_tree", "levels"]

LAYOUTS = (
    "CLASS/FILE folders, images without class folders, either of them in split folders or in a "
    ".tar or .tar.gz, ImageNet-C (CORRUPTION/SEVERITY/CLASS/FILE), CIFAR-10 or CIFAR-100 in .bin "
    "files, CIFAR-10-C in .npy files, and MNIST's IDX files"
)
SPLITS = frozenset(("train", "training", "val", "valid", "validation", "test", "testing"))

_GROUPS = 10  # more folders than that are classes, and are not searched for corruptions
_IN_A_GROUP = 20


class Place:
    """Which part of a layout is wanted; each question may be asked by one layout or by none."""

    def __init__(self, split: str | None, corruption: str | None, severity: int | None) -> None:
        self.wanted = {"split": split, "corruption": corruption, "severity": severity}
        self.asked: set[str] = set()

    def choose(self, what: str, there: Sequence[str], title: object) -> str:
        """The part that was wanted, or the only one."""
        self.asked.add(what)
        wanted = self.wanted[what]
        listed = ", ".join(there)
        if wanted is None:
            if len(there) == 1:
                return there[0]
            many = {"split": "splits", "corruption": "corruptions", "severity": "severities"}[what]
            how = "--split or split=" if what == "split" else f"{what}="
            raise IT3Error(f"{title} has several {many}: choose one with {how} ({listed})")
        if str(wanted) not in there:
            raise IT3Error(f"{title} has no {what} {wanted!r}, only {listed}")
        return str(wanted)

    def check_used(self, title: object) -> None:
        """Raises if something was wanted that no layout asked for."""
        for what, value in self.wanted.items():
            if value is not None and what not in self.asked:
                raise IT3Error(f"{title} is not divided by {what}: leave {what}={value!r} out")


def from_tree(
    tree: Tree, at: Parts, place: Place, classes: Sequence[str] | None, most_pixels: int
) -> ImageSet:
    """Goes down by split, corruption and severity, as far as the tree has them."""
    if "corruption" not in place.asked and (found := corruption_folders(tree, at)):
        at = found[place.choose("corruption", sorted(found), tree.title)]
    if "severity" not in place.asked and (there := levels(tree, at)):
        at = (*at, place.choose("severity", there, tree.title))
        return _classes_at(tree, at, classes, most_pixels)
    if "split" not in place.asked and (splits := _split_folders(tree, at, place.wanted["split"])):
        at = (*at, place.choose("split", splits, tree.title))
        return from_tree(tree, at, place, classes, most_pixels)
    inner = tree.folders(at)
    if len(inner) == 1 and not tree.images(at) and _wraps(tree, (*at, inner[0]), classes):
        return from_tree(tree, (*at, inner[0]), place, classes, most_pixels)
    return _classes_at(tree, at, classes, most_pixels)


def _wraps(tree: Tree, at: Parts, classes: Sequence[str] | None) -> bool:
    """Whether a lone folder holds the class folders, rather than being the only class there is."""
    inner = tree.folders(at)
    if not inner or tree.images(at):
        return False
    return classes is None or at[-1] not in classes or any(name in classes for name in inner)


def _split_folders(tree: Tree, at: Parts, wanted: object) -> list[str]:
    """Folders that are splits, not classes; there is a class `train` in CIFAR-100."""
    inner = tree.folders(at)
    splits = [name for name in inner if name.casefold() in SPLITS]
    if len(splits) > 1 or splits == inner:
        return splits
    return inner if wanted in inner and tree.folders((*at, str(wanted))) else []


def levels(tree: Tree, at: Parts) -> list[str]:
    """Severities: folders 1 to 5 with folders in them. (Folders of digits have images in them.)

    Those that `corrupt` wrote are known by its notes, and may hold images without classes.
    """
    inner = tree.folders(at)
    if not inner or any(name not in ("1", "2", "3", "4", "5") for name in inner):
        return []
    return inner if tree.noted(at) or all(tree.folders((*at, name)) for name in inner) else []


def corruption_folders(tree: Tree, at: Parts = ()) -> dict[str, Parts]:
    """Where each corruption is: at the top, or a level below as blur/defocus_blur."""
    inner = tree.folders(at)
    found = {name: (*at, name) for name in inner if levels(tree, (*at, name))}
    if not found and len(inner) <= _GROUPS:
        for group in inner:
            for name in tree.folders((*at, group))[:_IN_A_GROUP]:
                if levels(tree, (*at, group, name)):
                    found[name] = (*at, group, name)
    return found


def _classes_at(tree: Tree, at: Parts, classes: Sequence[str] | None, most_pixels: int) -> ImageSet:
    title = shown((tree.title, *at))
    inner, loose = tree.folders(at), tree.images(at)
    files: dict[str, list[Parts]] = {}
    for name in inner:  # a class may be spelt with other bytes than in training, as macOS does
        files.setdefault(shown((name,)), []).extend(deep_images(tree, (*at, name)))
    found = sorted(name for name in files if files[name])
    if found and loose:
        raise IT3Error(
            f"{title} holds images ({loose[0]}) beside class folders ({found[0]}): move them into "
            f"a class folder or out of it"
        )
    if not found and not loose:
        raise IT3Error(f"{title} holds no images{_seen(tree, at)}; known layouts are {LAYOUTS}")
    if loose:
        source = FileSource(tree, [(*at, name) for name in loose], most_pixels)
        return ImageSet(source, np.full(len(loose), -1), classes or ())
    wanted = found if classes is None else list(classes)
    place = {shown((name,)): i for i, name in enumerate(wanted)}
    # A class that is asked for is one without images too, in an empty folder as without any.
    empty = [name for name in files if not files[name] and name not in place]
    if empty:
        warnings.warn(
            f"{title}: there are no images in {', '.join(empty[:5])}: no class is made of it",
            IT3Warning,
            stacklevel=2,
        )
    check_known(title, found, list(place))
    rows = [file for name in found for file in files[name]]
    labels = np.repeat([place[name] for name in found], [len(files[name]) for name in found])
    return ImageSet(FileSource(tree, rows, most_pixels), labels, wanted)


def _seen(tree: Tree, at: Parts) -> str:
    """What is there instead."""
    names = tree.seen(at)
    if not names:
        return " (it is empty)"
    hint = " (open that file)" if is_tar(names[0]) else ""
    return f", only {', '.join(names[:4])}{' ...' if len(names) > 4 else ''}{hint}"
