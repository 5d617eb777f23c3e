"""From a path to an `ImageSet`: which of the known layouts it is, and which part is wanted."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from it3_core import IT3Error, IT3Warning
from it3_vision.data import arrays, trees
from it3_vision.data.images import SUFFIXES
from it3_vision.data.sets import ImageSet
from it3_vision.data.trees import Parts, Tree, shown

LAYOUTS = (
    "CLASS/FILE folders, images without class folders, either of them in split folders or in a "
    ".tar or .tar.gz, ImageNet-C (CORRUPTION/SEVERITY/CLASS/FILE), CIFAR-10 or CIFAR-100 in .bin "
    "files, CIFAR-10-C in .npy files, and MNIST's IDX files"
)
SPLITS = frozenset(("train", "training", "val", "valid", "validation", "test", "testing"))

_ARRAYS = (arrays.cifar_files, arrays.mnist_files, arrays.stack_corruptions)
_GROUPS = 10  # more folders than that are classes, and are not searched for corruptions
_IN_A_GROUP = 20


def open_images(
    path: str | Path,
    *,
    split: str | None = None,
    classes: Sequence[str] | None = None,
    corruption: str | None = None,
    severity: int | None = None,
) -> ImageSet:
    """The images at a path, in whichever of the known layouts they are; none is decoded yet.

    Args:
        path: a folder, a tar, an .npy array or one image.
        split: "train", "test", "val" ..., where the layout has splits.
        classes: the classes that labels are to follow, by name: at test time, those of the
            training. A class without images is no error, one that is not listed is.
        corruption, severity: which, of ImageNet-C and CIFAR-10-C.

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
    path, selection = Path(path), Selection(split, corruption, severity)
    try:
        there = path.exists()
    except (OSError, ValueError):  # a name too long, or with a NUL
        there = False
    if not there:
        raise IT3Error(f"{path} does not exist: give a folder or a tar of images")
    if isinstance(classes, str) or (classes and len(set(classes)) < len(classes)):
        raise IT3Error("classes must be a list of different names")
    found = (_from_file if path.is_file() else _from_folder)(path, selection, classes)
    selection.check_used(path)
    return found


def _from_file(path: Path, selection: Selection, classes: Sequence[str] | None) -> ImageSet:
    suffix = path.suffix.casefold()
    if trees.is_tar(path.name):
        return from_tree(trees.open_tree(path), (), selection, classes)
    if suffix == ".npy":
        selection.used.add("severity")
        level = None if (severity := selection.values["severity"]) is None else int(severity)
        return arrays.read_stack(path.parent, path.stem, level, classes)
    if suffix in SUFFIXES:
        one = trees.FileSource(trees.Folder(path.parent), [(path.name,)])
        return ImageSet(one, [-1], classes or ())
    raise IT3Error(f"{path} is not an image, a .tar, a .tar.gz or an .npy array")


def _from_folder(path: Path, selection: Selection, classes: Sequence[str] | None) -> ImageSet:
    folder = _descended(path)
    if cifar := arrays.cifar_files(folder):
        return arrays.read_cifar(folder, selection.choose("split", list(cifar), path), classes)
    if mnist := arrays.mnist_files(folder):
        return arrays.read_mnist(folder, selection.choose("split", list(mnist), path), classes)
    if stacks := arrays.stack_corruptions(folder):
        name = selection.choose("corruption", stacks, path)
        there = [str(level) for level in arrays.stack_severities(folder)]
        level = int(selection.choose("severity", there, path))
        return arrays.read_stack(folder, name, level, classes)
    if (folder / "data_batch_1").is_file():
        raise IT3Error(f"{path} holds pickles, which are never loaded: get the binary version")
    tree = trees.Folder(folder)
    tars, wanted = _split_tars(folder), selection.values["split"]
    nothing_else = not tree.folders() and not tree.images()
    if tars and (nothing_else or (wanted in tars and wanted not in tree.folders())):
        split = selection.choose("split", sorted(tars), path)
        return from_tree(trees.open_tree(tars[split]), (), selection, classes)
    return from_tree(tree, (), selection, classes)


def _descended(path: Path) -> Path:
    """Into the only folder there is, and so on, if it leads to arrays; else where we were."""
    here = path
    for _ in range(4):
        if any(kind(here) for kind in _ARRAYS):
            return here
        inner = [here / name for name in trees.entries(here) if (here / name).is_dir()]
        if len(inner) != 1 or inner[0].is_symlink():
            break
        here = inner[0]
    return path


def _split_tars(folder: Path) -> dict[str, Path]:
    """train.tar.gz, test.tar ... by split."""
    tars = (
        name for name in trees.entries(folder) if trees.is_tar(name) and (folder / name).is_file()
    )
    named = {name.split(".")[0]: folder / name for name in tars}
    return {name: file for name, file in named.items() if name.casefold() in SPLITS}


class Selection:
    """Which part of a layout is wanted, and by what a layout was found to be divided."""

    def __init__(self, split: str | None, corruption: str | None, severity: int | None) -> None:
        self.values = {"split": split, "corruption": corruption, "severity": severity}
        self.used: set[str] = set()

    def choose(self, what: str, there: Sequence[str], title: object) -> str:
        """The part that was wanted, or the only one."""
        self.used.add(what)
        wanted = self.values[what]
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
        """Raises if something was wanted by which the layout is not divided."""
        for what, value in self.values.items():
            if value is not None and what not in self.used:
                raise IT3Error(f"{title} is not divided by {what}: leave {what}={value!r} out")


def from_tree(
    tree: Tree, at: Parts, selection: Selection, classes: Sequence[str] | None
) -> ImageSet:
    """Goes down by split, corruption and severity, as far as the tree has them."""
    if "corruption" not in selection.used and (found := corruption_folders(tree, at)):
        at = found[selection.choose("corruption", sorted(found), tree.title)]
    if "severity" not in selection.used and (there := levels(tree, at)):
        at = (*at, selection.choose("severity", there, tree.title))
        return _classes_at(tree, at, classes)
    if "split" not in selection.used and (
        splits := _split_folders(tree, at, selection.values["split"])
    ):
        at = (*at, selection.choose("split", splits, tree.title))
        return from_tree(tree, at, selection, classes)
    inner = tree.folders(at)
    if len(inner) == 1 and not tree.images(at) and _wraps(tree, (*at, inner[0]), classes):
        return from_tree(tree, (*at, inner[0]), selection, classes)
    return _classes_at(tree, at, classes)


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


def _classes_at(tree: Tree, at: Parts, classes: Sequence[str] | None) -> ImageSet:
    title = shown((tree.title, *at))
    inner, loose = tree.folders(at), tree.images(at)
    files: dict[str, list[Parts]] = {}
    for name in inner:  # a class may be spelt with other bytes than in training, as macOS does
        files.setdefault(shown((name,)), []).extend(trees.deep_images(tree, (*at, name)))
    found = sorted(name for name in files if files[name])
    if found and loose:
        raise IT3Error(
            f"{title} holds images ({loose[0]}) beside class folders ({found[0]}): move them into "
            f"a class folder or out of it"
        )
    if not found and not loose:
        raise IT3Error(f"{title} holds no images{_seen(tree, at)}; known layouts are {LAYOUTS}")
    if loose:
        source = trees.FileSource(tree, [(*at, name) for name in loose])
        return ImageSet(source, np.full(len(loose), -1), classes or ())
    wanted = found if classes is None else list(classes)
    index = {shown((name,)): i for i, name in enumerate(wanted)}
    # A class that is wanted is one without images too, in an empty folder as without any.
    empty = [name for name in files if not files[name] and name not in index]
    if empty:
        warnings.warn(
            f"{title}: there are no images in {', '.join(empty[:5])}: no class is made of it",
            IT3Warning,
            stacklevel=2,
        )
    arrays.check_known(title, found, list(index))
    rows = [file for name in found for file in files[name]]
    labels = np.repeat([index[name] for name in found], [len(files[name]) for name in found])
    return ImageSet(trees.FileSource(tree, rows), labels, wanted)


def _seen(tree: Tree, at: Parts) -> str:
    """What is there instead."""
    names = tree.seen(at)
    if not names:
        return " (it is empty)"
    hint = " (open that file)" if trees.is_tar(names[0]) else ""
    return f", only {', '.join(names[:4])}{' ...' if len(names) > 4 else ''}{hint}"
