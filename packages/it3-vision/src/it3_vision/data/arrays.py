"""Sets that come as arrays: CIFAR's .bin files, CIFAR-10-C's .npy files and MNIST's IDX files."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from it3_core import IT3Error
from it3_core.io.typed import read_json
from it3_vision.data.images import Pixels
from it3_vision.data.sets import ArraySource, ImageSet

CIFAR10 = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)

LABELS = "labels.npy"
SEVERITIES = "severities.json"

_SIDE = 32
_NOTES = 'it must read like {"severities": [1, 3, 5]}'
_MNIST = {"train": "train", "test": "t10k"}
_MOST_BYTES = 2 * 2**30  # what an IDX header may promise


def named(
    source: ArraySource,
    labels: NDArray[np.int64],
    known: Sequence[str] | None,
    wanted: Sequence[str] | None,
) -> ImageSet:
    """A set whose labels follow the wanted classes: by name where the names are known.

    Without names of its own, an array's labels are indices of the wanted classes.
    """
    if known is None or wanted is None:
        return ImageSet.from_array(source.pixels, labels, wanted or known, source.title)
    if labels.min(initial=0) < -1 or labels.max(initial=0) >= len(known):
        raise IT3Error(
            f"{source.title} has labels from {labels.min()} to {labels.max()}, but there are only "
            f"{len(known)} classes: its labels are damaged or of another set"
        )
    index = {name: i for i, name in enumerate(wanted)}
    check_known(source.title, [known[i] for i in np.unique(labels[labels >= 0])], wanted)
    to = np.asarray([*(index.get(name, -1) for name in known), -1])  # −1 stays −1
    return ImageSet(source, to[labels], wanted)


def check_known(title: str, found: Sequence[str], wanted: Sequence[str]) -> None:
    """Raises, by name, if a class is none of the wanted."""
    strange = [name for name in found if name not in set(wanted)]
    if strange:
        listed = ", ".join(strange[:5]) + (" ..." if len(strange) > 5 else "")
        expected = ", ".join(wanted[:5]) + (" ..." if len(wanted) > 5 else "")
        raise IT3Error(
            f"{title} holds classes that are not among the {len(wanted)} expected ({expected}): "
            f"{listed}; rename them or take them out"
        )


# CIFAR-10 and CIFAR-100, binary version: records of one or two label bytes and 3 × 32 × 32 pixels.


def cifar_files(folder: Path) -> dict[str, list[Path]]:
    """The .bin files of each split, if this is such a folder."""
    ten = {
        "train": [folder / f"data_batch_{i}.bin" for i in range(1, 6)],
        "test": [folder / "test_batch.bin"],
    }
    hundred = {"train": [folder / "train.bin"], "test": [folder / "test.bin"]}
    for splits in (ten, hundred):
        there = {k: files for k, files in splits.items() if any(f.is_file() for f in files)}
        if there:
            return there
    return {}


def read_cifar(folder: Path, split: str, wanted: Sequence[str] | None) -> ImageSet:
    """One split of CIFAR-10 or CIFAR-100 (fine labels)."""
    files = cifar_files(folder)[split]
    fine = files[0].name in ("train.bin", "test.bin")
    classes = [str(i) for i in range(100)] if fine else list(CIFAR10)
    with suppress(OSError, UnicodeDecodeError):
        names = folder / ("fine_label_names.txt" if fine else "batches.meta.txt")
        classes = names.read_text(encoding="utf-8").strip().splitlines() or classes
    head = 2 if fine else 1
    records = [_records(file, head + 3 * _SIDE**2) for file in files]
    planes = [part[:, head:].reshape(-1, 3, _SIDE, _SIDE) for part in records]
    pixels = np.ascontiguousarray(np.concatenate(planes).transpose(0, 2, 3, 1))
    labels = np.concatenate([part[:, head - 1] for part in records]).astype(np.int64)
    return named(ArraySource(pixels, split), labels, classes, wanted)


def _records(file: Path, length: int) -> NDArray[np.uint8]:
    try:
        size = file.stat().st_size
        if size == 0 or size % length:
            raise IT3Error(
                f"{file} is damaged or cut short: its {size:,} bytes are not whole records of "
                f"{length:,}; get it anew"
            )
        return np.memmap(file, np.uint8, "r").reshape(-1, length)
    except OSError as error:
        raise IT3Error(f"{file} can't be read ({error.strerror}): unpack the set anew") from None


# CIFAR-10-C: one array for each corruption, its severities one after the other, and labels.npy.


def read_stack(
    folder: Path, corruption: str, severity: int | None, wanted: Sequence[str] | None
) -> ImageSet:
    """One corruption at one severity, or at all of them; the array stays on disk."""
    pixels = ArraySource(read_npy(folder / f"{corruption}.npy"), f"{corruption}.npy").pixels
    if not pixels.size:
        raise IT3Error(f"{folder / corruption}.npy holds no images: its shape is {pixels.shape}")
    title, levels = corruption, stack_severities(folder)
    labels = _labels(folder / LABELS)
    if labels is None:
        labels = np.full(len(pixels), -1)
    elif len(labels) * len(levels) == len(pixels):  # given once for all
        labels = np.tile(labels, len(levels))
    if len(labels) != len(pixels):
        raise IT3Error(
            f"{folder / LABELS} has {len(labels):,} labels for the {len(pixels):,} images of "
            f"{corruption}.npy"
        )
    if severity is not None:
        if severity not in levels:
            raise IT3Error(f"{folder} has the severities {levels}, not {severity}")
        each, rest = divmod(len(pixels), len(levels))
        if rest:
            raise IT3Error(
                f"{folder / corruption}.npy has {len(pixels):,} images, which is not a multiple of "
                f"its {len(levels)} severities: say which there are in {SEVERITIES} "
                f'({{"severities": [5]}})'
            )
        level = slice(levels.index(severity) * each, (levels.index(severity) + 1) * each)
        pixels, labels, title = pixels[level], labels[level], f"{corruption}/{severity}"
    published = list(CIFAR10) if folder.resolve().name.casefold() == "cifar-10-c" else None
    classes = _notes(folder).get("classes", published)
    return named(ArraySource(pixels, title), labels, classes, wanted)


def stack_corruptions(folder: Path) -> list[str]:
    """The arrays beside labels.npy, by name."""
    if not (folder / LABELS).is_file():
        return []
    names = (file.name for file in folder.glob("*.npy") if not file.name.startswith("."))
    return sorted(name.removesuffix(".npy") for name in names if name != LABELS)


def stack_severities(folder: Path) -> list[int]:
    """1 to 5, as published, unless severities.json says otherwise."""
    levels = _notes(folder).get("severities", [1, 2, 3, 4, 5])
    if not levels or len(set(levels)) < len(levels):
        raise IT3Error(f"{folder / SEVERITIES} is damaged: {_NOTES}")
    return levels


class _Notes(TypedDict, total=False):
    severities: list[int]
    classes: list[str]


def _notes(folder: Path) -> _Notes:
    file = folder / SEVERITIES
    return read_json(file, _Notes, _NOTES) if file.is_file() else {}


def read_npy(file: Path) -> NDArray[Any]:
    """An array on disk, mapped into memory; one that holds Python objects is refused."""
    try:
        return np.lib.format.open_memmap(file, mode="r")
    except Exception as error:  # a damaged header makes NumPy's parser raise nearly anything
        raise IT3Error(
            f"{file} can't be read as a plain .npy array ({error}): it is cut short, empty or "
            f"holds pickled objects, which are never loaded"
        ) from None


def _labels(file: Path) -> NDArray[np.int64] | None:
    if not file.is_file():
        return None
    labels = read_npy(file)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise IT3Error(
            f"{file} must be one row of whole numbers, but is {labels.dtype} of shape "
            f"{labels.shape}"
        )
    return np.array(labels, dtype=np.int64)


# MNIST: IDX files, plain or gzipped.


def mnist_files(folder: Path) -> dict[str, tuple[Path, Path]]:
    """Images and labels of each split, if this is such a folder."""
    found = {}
    for split, prefix in _MNIST.items():
        images = _either(folder, f"{prefix}-images", "idx3-ubyte")
        labels = _either(folder, f"{prefix}-labels", "idx1-ubyte")
        if images:
            found[split] = images, labels or folder / f"{prefix}-labels-idx1-ubyte"
    return found


def _either(folder: Path, stem: str, kind: str) -> Path | None:
    names = (f"{stem}{dot}{kind}{packed}" for dot in "-." for packed in ("", ".gz"))
    return next((folder / name for name in names if (folder / name).is_file()), None)


def read_mnist(folder: Path, split: str, wanted: Sequence[str] | None) -> ImageSet:
    """One split; kept as (N, 28, 28) and given as three equal channels."""
    images, labels = mnist_files(folder)[split]
    pixels, digits = _idx(images, 3), _idx(labels, 1).astype(np.int64)
    if len(pixels) != len(digits):
        raise IT3Error(f"{labels} has {len(digits):,} labels for {len(pixels):,} images")
    known = [str(i) for i in range(max(10, int(digits.max(initial=0)) + 1))]
    return named(ArraySource(pixels, split), digits, known, wanted)


def _idx(file: Path, dimensions: int) -> Pixels:
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
            header = stream.read(4 + 4 * dimensions)
            if len(header) < 4 + 4 * dimensions or header[:4] != bytes((0, 0, 8, dimensions)):
                raise IT3Error(
                    f"{file} is not an IDX file of bytes with {dimensions} dimensions: get it anew"
                )
            shape = struct.unpack(f">{dimensions}I", header[4:])
            size = int(np.prod([int(n) for n in shape], dtype=object))
            if size > _MOST_BYTES:
                raise IT3Error(f"{file} claims {size:,} bytes: it is damaged, get it anew")
            data = stream.read(size)
    except (OSError, EOFError, zlib.error) as error:
        raise IT3Error(f"{file} can't be read ({error}): get it anew") from None
    if len(data) < size or size == 0:
        raise IT3Error(f"{file} is cut short: {len(data):,} bytes instead of {size:,}; get it anew")
    return np.frombuffer(data, np.uint8).reshape(shape)
