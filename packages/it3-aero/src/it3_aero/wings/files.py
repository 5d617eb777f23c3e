"""Airfoil coordinate files as they are found: Selig's order or Lednicer's, headers, comments.

`read_airfoil` takes a `.dat` file apart into points, and leaves to `outline` what makes them an
airfoil. Whatever it can't use is an `IT3Error` whose sentence names the file and the reason.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np

from it3_aero.shapes.options import content
from it3_aero.wings.geometry import Airfoil, Points, outline
from it3_core import IT3Error
from it3_core.io.typed import printable

_LARGEST = 1_000_000  # bytes of a coordinate file; the longest of the UIUC collection has 20,000
_COMMENT = re.compile(r"\s*(#|%|!|//|;)")
_SEPARATOR = re.compile(r"[\s,;]+")


def read_airfoil(path: str | os.PathLike[str]) -> Airfoil:
    """The airfoil in a coordinate file.

    Args:
        path: a text file with a pair of numbers a line, once around (Selig) or one side after the
            other (Lednicer), with or without a name in the first line, counts, comments (#, %, !),
            commas, in either direction and at any scale.

    Example:
        >>> import tempfile
        >>> from it3_aero.wings import naca
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "mine.dat")
        ...     lines = ["My wing", *(f"{x} {y}" for x, y in naca("2412").points)]
        ...     _ = path.write_text("\\n".join(lines))
        ...     read_airfoil(path).name
        'My wing'
    """
    path = Path(path)
    try:
        name, points = _parse(_text(path))
        return outline(name or printable(path.stem), points)
    except IT3Error as problem:
        raise IT3Error(f"{printable(path)}: {problem}") from None


def _text(path: Path) -> str:
    found = content(path, _LARGEST)
    if b"\0" in found:
        raise IT3Error("this is not an airfoil: the file is not a text")
    try:
        return found.decode("utf-8-sig")
    except UnicodeDecodeError:
        return found.decode("latin-1")


def _parse(text: str) -> tuple[str, Points]:
    """The name in a file's head, if any, and its points once around."""
    header: list[str] = []
    pairs: list[tuple[float, float]] = []
    note = ""  # what follows the points in many files: who made them, and when
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or _COMMENT.match(line):
            continue
        pair = _pair(line)
        odd = f"line {number} is not a pair of numbers: {printable(line.strip()[:40])}"
        if pair is not None and note:
            raise IT3Error(note)  # it was no note: there are points on both sides of it
        if pair is not None:
            pairs.append(pair)
        elif not pairs:
            header.append(line)
        elif not note and not _is_note(line):
            raise IT3Error(odd)
        elif any(sign.isdigit() for sign in line):  # others may be a heading: "Lower surface"
            note = note or odd
        if len(header) > 20:
            break
    if not pairs:
        raise IT3Error("this is not an airfoil: there are no pairs of numbers")
    points = np.array(pairs)
    if not np.isfinite(points).all():
        raise IT3Error("a coordinate is NaN or infinite")
    words = " ".join(header[0].split()) if header else ""
    name = "".join(sign for sign in words if sign.isprintable())[:100]
    return name, _once_around(_without_counts(points))


def _pair(line: str) -> tuple[float, float] | None:
    fields = [field for field in _SEPARATOR.split(line) if field]
    if len(fields) == 3 and not fields[2].strip("+-0."):  # some files have z = 0 as a third column
        fields.pop()
    if len(fields) != 2:
        return None
    try:
        x, y = (float(re.sub("[dD]", "e", field)) for field in fields)
    except ValueError:
        return None
    return x, y


def _is_note(line: str) -> bool:
    """Whether a line is words, and not a pair of numbers that was damaged."""
    words = any(sign.isalpha() or sign == "/" for sign in line)
    return words or line.strip()[0] not in "+-.0123456789"


def _without_counts(points: Points) -> Points:
    """Lednicer's files begin with the number of points on each side."""
    if len(points) < 3:
        return points
    first = points[0]
    whole = np.all(first == np.round(first)) and np.all(first > 1)
    beyond = np.all(first > 1.5 * np.abs(points[1:]).max(axis=0))
    return points[1:] if whole and (first.sum() == len(points) - 1 or beyond) else points


def _once_around(points: Points) -> Points:
    """One side after the other, joined to a ring; what goes around already stays as it is."""
    chord = np.ptp(points[:, 0])
    jumps = np.abs(np.diff(points[:, 0])) > 0.8 * chord
    if chord <= 0 or jumps.sum() != 1:
        return points
    cut = int(np.argmax(jumps)) + 1
    sides = [points[:cut], points[cut:]]
    if min(map(len, sides)) < 3:
        return points
    first, second = (side if side[0, 0] < side[-1, 0] else side[::-1] for side in sides)
    return np.concatenate([first[::-1], second])
