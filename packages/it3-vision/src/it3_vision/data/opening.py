"""From a path to an `ImageSet`: which of the known layouts it is, and which part is wanted."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from it3_core import IT3Error, IT3Warning
from it3_vision.data import arrays
from it3_vision.data.images import MOST_PIXELS, SUFFIXES, Pixels, read_image
from it3_vision.data.sets import ImageSet
from it3_vision.data.trees import (
    FileSource,
    Folder,
    Parts,
    Tree,
    deep_images,
    entries,
    is_tar,
    open_tree,
    shown,
)

__all__ = ["corruptions", "open_images", "severities"]

LAYOUTS = (
    "CLASS/FILE folders, images without class folders, either of them in split folders or in a "
    ".tar or .tar.gz, ImageNet-C (CORRUPTION/SEVERITY/CLASS/FILE), CIFAR-10 or CIFAR-100 in .bin "
    "files, CIFAR-10-C in .npy files, and MNIST's IDX files"
)
_SPLITS = frozenset(("train", "training", "val", "valid", "validation", "test", "testing"))


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
    path, place = _existing(path), _Place(split, corruption, severity)
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
    found = arrays.stack_corruptions(folder) if folder.is_dir() else []
    found = found or sorted(_corruption_folders(open_tree(folder)))
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
    names = corruptions(path)
    folder = _descended(_existing(path))
    if folder.is_dir() and arrays.stack_corruptions(folder):
        return arrays.stack_severities(folder)
    tree = open_tree(folder)
    at = _corruption_folders(tree)
    common = set.intersection(*(set(_levels(tree, at[name])) for name in names))
    return sorted(map(int, common))


class _Place:
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
            raise IT3Error(f"{title} has several {many}: choose one with {what}= ({listed})")
        if str(wanted) not in there:
            raise IT3Error(f"{title} has no {what} {wanted!r}, only {listed}")
        return str(wanted)

    def check_used(self, title: object) -> None:
        for what, value in self.wanted.items():
            if value is not None and what not in self.asked:
                raise IT3Error(f"{title} is not divided by {what}: leave {what}={value!r} out")


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
    path: Path, place: _Place, classes: Sequence[str] | None, most_pixels: int
) -> ImageSet:
    suffix = path.suffix.casefold()
    if is_tar(path.name):
        return _from_tree(open_tree(path), (), place, classes, most_pixels)
    if suffix == ".npy":
        severity = place.wanted["severity"]
        place.asked.add("severity")
        level = None if severity is None else int(severity)
        return arrays.read_stack(path.parent, path.stem, level, classes)
    if suffix in SUFFIXES:
        return ImageSet(_OneFile(path, most_pixels), [-1], classes or ())
    raise IT3Error(f"{path} is not an image, a .tar, a .tar.gz or an .npy array")


class _OneFile:
    def __init__(self, path: Path, most_pixels: int) -> None:
        self._path, self._most_pixels = path, most_pixels

    def __len__(self) -> int:
        return 1

    def name(self, row: int) -> str:
        return self._path.name

    def image(self, row: int, smallest: int | None = None) -> Pixels:
        return read_image(self._path, self._most_pixels, smallest=smallest)


def _from_folder(
    path: Path, place: _Place, classes: Sequence[str] | None, most_pixels: int
) -> ImageSet:
    folder = _descended(path)
    if cifar := arrays.cifar_files(folder):
        return arrays.read_cifar(folder, place.choose("split", list(cifar), path), classes)
    if mnist := arrays.mnist_files(folder):
        return arrays.read_mnist(folder, place.choose("split", list(mnist), path), classes)
    if stacks := arrays.stack_corruptions(folder):
        name = place.choose("corruption", stacks, path)
        levels = [str(level) for level in arrays.stack_severities(folder)]
        level = int(place.choose("severity", levels, path))
        return arrays.read_stack(folder, name, level, classes)
    if tars := _split_tars(folder):
        split = place.choose("split", sorted(tars), path)
        return _from_tree(open_tree(tars[split]), (), place, classes, most_pixels)
    if (folder / "data_batch_1").is_file():
        raise IT3Error(f"{path} holds pickles, which are never loaded: get the binary version")
    return _from_tree(Folder(folder), (), place, classes, most_pixels)


def _descended(path: Path) -> Path:
    """Into a folder that holds nothing but the folder of arrays that was meant."""
    here = path
    for _ in range(3):
        if _array_files(here):
            return here
        if not here.is_dir():
            return path
        inner = entries(here)
        if len(inner) != 1 or (here / inner[0]).is_symlink():
            return path
        here = here / inner[0]
    return here if _array_files(here) else path


def _array_files(folder: Path) -> bool:
    return bool(
        arrays.cifar_files(folder) or arrays.mnist_files(folder) or arrays.stack_corruptions(folder)
    )


def _split_tars(folder: Path) -> dict[str, Path]:
    """train.tar.gz, test.tar ... by split."""
    tars = (name for name in entries(folder) if is_tar(name) and (folder / name).is_file())
    named = {name.split(".")[0]: folder / name for name in tars}
    return {name: file for name, file in named.items() if name.casefold() in _SPLITS}


def _from_tree(
    tree: Tree, at: Parts, place: _Place, classes: Sequence[str] | None, most_pixels: int
) -> ImageSet:
    """Goes down by split, corruption and severity, as far as the tree has them."""
    if "corruption" not in place.asked and (found := _corruption_folders(tree, at)):
        at = found[place.choose("corruption", sorted(found), tree.title)]
    if "severity" not in place.asked and (levels := _levels(tree, at)):
        at = (*at, place.choose("severity", levels, tree.title))
        return _classes_at(tree, at, classes, most_pixels)
    if "split" not in place.asked and (splits := _split_folders(tree, at, place.wanted["split"])):
        at = (*at, place.choose("split", splits, tree.title))
        return _from_tree(tree, at, place, classes, most_pixels)
    inner = tree.folders(at)
    if len(inner) == 1 and not tree.images(at) and _wraps(tree, (*at, inner[0]), classes):
        return _from_tree(tree, (*at, inner[0]), place, classes, most_pixels)
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
    splits = [name for name in inner if name.casefold() in _SPLITS]
    if len(splits) > 1 or splits == inner:
        return splits
    return inner if wanted in inner and tree.folders((*at, str(wanted))) else []


def _levels(tree: Tree, at: Parts) -> list[str]:
    """Severities: folders 1 to 5 with folders in them. (Folders of digits have images in them.)"""
    inner = tree.folders(at)
    if not inner or any(name not in ("1", "2", "3", "4", "5") for name in inner):
        return []
    return inner if all(tree.folders((*at, name)) for name in inner) else []


def _corruption_folders(tree: Tree, at: Parts = ()) -> dict[str, Parts]:
    """Where each corruption is: at the top, or a level below as blur/defocus_blur."""
    inner = tree.folders(at)
    found = {name: (*at, name) for name in inner if _levels(tree, (*at, name))}
    if not found and len(inner) <= 10:
        for group in inner:
            for name in tree.folders((*at, group))[:20]:
                if _levels(tree, (*at, group, name)):
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
    if len(found) < len(files):
        empty = [name for name in files if not files[name]]
        warnings.warn(
            f"{title}: there are no images in {', '.join(empty[:5])}: no class is made of it",
            IT3Warning,
            stacklevel=2,
        )
    wanted = found if classes is None else list(classes)
    arrays.check_known(title, found, [shown((name,)) for name in wanted])
    place = {shown((name,)): i for i, name in enumerate(wanted)}
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
