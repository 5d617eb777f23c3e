"""From a path to an `ImageSet`: which of the known layouts it is, and which part is wanted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from it3_core import IT3Error
from it3_vision.data import arrays
from it3_vision.data.images import MOST_PIXELS, SUFFIXES
from it3_vision.data.layouts import SPLITS, Place, corruption_folders, from_tree, levels
from it3_vision.data.sets import ImageSet
from it3_vision.data.trees import FileSource, Folder, Tree, entries, is_tar, open_tree

__all__ = ["corruptions", "open_images", "severities"]


def open_images(
    path: str | Path,
    *,
    split: str | None = None,
    classes: Sequence[str] | None = None,
    corruption: str | None = None,
    severity: int | None = None,
    most_pixels: int = MOST_PIXELS,
) -> ImageSet:
    """The images at a path, in whichever of the known layouts they are; none is decoded yet.

    Args:
        path: a folder, a tar, an .npy array or one image.
        split: "train", "test", "val" ..., where the layout has splits.
        classes: the classes that labels are to follow, by name: at test time, those of the
            training. A class without images is no error, one that is not listed is.
        corruption, severity: which, of ImageNet-C and CIFAR-10-C.
        most_pixels: larger images are refused before they are decoded.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import numpy as np
        >>> from PIL import Image
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name in ["cat", "dog"]:
        ...         (Path(folder) / name).mkdir()
        ...         Image.new("RGB", (8, 8), "red").save(Path(folder) / name / "1.png")
        ...     images = open_images(folder, classes=["bird", "cat", "dog"])
        ...     list(images.names), images.labels, images.image(0)[0, 0]
        (['cat/1.png', 'dog/1.png'], array([1, 2]), array([255, 0, 0], dtype=uint8))
    """
    path, place = _existing(path), Place(split, corruption, severity)
    if classes is not None:
        classes = _unrepeated(classes)
    if path.is_file():
        found = _from_file(path, place, classes, most_pixels)
    else:
        found = _from_folder(path, place, classes, most_pixels)
    place.check_used(path)
    return found


def corruptions(path: str | Path) -> list[str]:
    """The corruptions in a folder with the layout of ImageNet-C or CIFAR-10-C.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     (Path(folder) / "fog" / "5" / "cat").mkdir(parents=True)
        ...     corruptions(folder), severities(folder)
        (['fog'], [5])
    """
    folder = _descended(_existing(path))
    found = arrays.stack_corruptions(folder) or sorted(corruption_folders(_tree(folder)))
    if not found:
        raise IT3Error(
            f"{path} holds no corruptions: expected .npy files beside {arrays.LABELS}, or folders "
            f"CORRUPTION/SEVERITY/CLASS"
        )
    return found


def severities(path: str | Path) -> list[int]:
    """The severities that all corruptions in such a folder have.

    Example:
        >>> import json, tempfile
        >>> from pathlib import Path
        >>> import numpy as np
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name in ["labels", "fog"]:
        ...         np.save(Path(folder) / name, np.zeros(2, np.uint8))
        ...     notes = json.dumps({"severities": [3, 5]})
        ...     _ = (Path(folder) / "severities.json").write_text(notes)
        ...     severities(folder)
        [3, 5]
    """
    folder = _descended(_existing(path))
    if arrays.stack_corruptions(folder):
        return arrays.stack_severities(folder)
    tree = _tree(folder)
    each = [levels(tree, at) for at in corruption_folders(tree).values()] or [levels(tree, ())]
    common = set(each[0]).intersection(*each)
    if not common:
        raise IT3Error(f"{path} holds no severities that all its corruptions have")
    return sorted(map(int, common))


def _tree(path: Path) -> Tree:
    if path.is_dir() or is_tar(path.name):
        return open_tree(path)
    raise IT3Error(f"{path} is neither a folder nor a tar")


def _existing(path: str | Path) -> Path:
    path = Path(path)
    try:
        there = path.exists()
    except (OSError, ValueError):  # a name too long, or with a NUL
        there = False
    if not there:
        raise IT3Error(f"{path} does not exist: give a folder or a tar of images")
    return path


def _unrepeated(classes: Sequence[str]) -> Sequence[str]:
    if isinstance(classes, str) or len(set(classes)) < len(classes):
        raise IT3Error("classes must be a list of different names")
    return classes


def _from_file(
    path: Path, place: Place, classes: Sequence[str] | None, most_pixels: int
) -> ImageSet:
    suffix = path.suffix.casefold()
    if is_tar(path.name):
        return from_tree(open_tree(path), (), place, classes, most_pixels)
    if suffix == ".npy":
        severity = place.wanted["severity"]
        place.asked.add("severity")
        level = None if severity is None else int(severity)
        return arrays.read_stack(path.parent, path.stem, level, classes)
    if suffix in SUFFIXES:
        one = FileSource(Folder(path.parent), [(path.name,)], most_pixels)
        return ImageSet(one, [-1], classes or ())
    raise IT3Error(f"{path} is not an image, a .tar, a .tar.gz or an .npy array")


def _from_folder(
    path: Path, place: Place, classes: Sequence[str] | None, most_pixels: int
) -> ImageSet:
    folder = _descended(path)
    if cifar := arrays.cifar_files(folder):
        return arrays.read_cifar(folder, place.choose("split", list(cifar), path), classes)
    if mnist := arrays.mnist_files(folder):
        return arrays.read_mnist(folder, place.choose("split", list(mnist), path), classes)
    if stacks := arrays.stack_corruptions(folder):
        name = place.choose("corruption", stacks, path)
        there = [str(level) for level in arrays.stack_severities(folder)]
        level = int(place.choose("severity", there, path))
        return arrays.read_stack(folder, name, level, classes)
    if (folder / "data_batch_1").is_file():
        raise IT3Error(f"{path} holds pickles, which are never loaded: get the binary version")
    tree = Folder(folder)
    tars, wanted = _split_tars(folder), place.wanted["split"]
    nothing_else = not tree.folders() and not tree.images()
    if tars and (nothing_else or (wanted in tars and wanted not in tree.folders())):
        split = place.choose("split", sorted(tars), path)
        return from_tree(open_tree(tars[split]), (), place, classes, most_pixels)
    return from_tree(tree, (), place, classes, most_pixels)


def _descended(path: Path) -> Path:
    """Into the only folder there is, and so on, if it leads to arrays; else where we were."""
    here = path
    for _ in range(3):
        if _array_files(here):
            return here
        if not here.is_dir():
            return path
        inner = [here / name for name in entries(here) if (here / name).is_dir()]
        if len(inner) != 1 or inner[0].is_symlink():
            return path
        here = inner[0]
    return here if _array_files(here) else path


def _array_files(folder: Path) -> bool:
    return bool(
        arrays.cifar_files(folder) or arrays.mnist_files(folder) or arrays.stack_corruptions(folder)
    )


def _split_tars(folder: Path) -> dict[str, Path]:
    """train.tar.gz, test.tar ... by split."""
    tars = (name for name in entries(folder) if is_tar(name) and (folder / name).is_file())
    named = {name.split(".")[0]: folder / name for name in tars}
    return {name: file for name, file in named.items() if name.casefold() in SPLITS}
