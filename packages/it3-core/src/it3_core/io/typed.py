"""The one reader of stored JSON, whole files or an object a line: typed, bounded, and clear."""

from __future__ import annotations

import json
import math
import stat
import sys
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from it3_core.errors import IT3Error
from it3_core.io.files import FilePath, append, make_folder, truncate

T = TypeVar("T")

MAX_DEPTH = 100
MAX_BYTES = 256 * 2**20

_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
    type(None): "null",
    dict: "an object",
    list: "a list",
    tuple: "a list",
}


def read_json(path: FilePath, kind: type[T], advice: str = "") -> T:
    """Reads a JSON file as a `kind`: a dataclass, a TypedDict, `dict[str, X]`, `list[X]` …

    Keys that a class does not have are passed over; an error names the file, the key and what was
    expected there, and gives the advice.
    """
    return parse_json(_content(path, advice, MAX_BYTES), kind, str(path), advice)


def parse_json(text: str | bytes, kind: type[T], source: str, advice: str = "") -> T:
    """The same for text that is already there; `source` says where it came from."""
    try:
        value = json.loads(text, parse_constant=_finite, parse_float=_finite)
        if b"\\ud" in (text.encode() if isinstance(text, str) else text):  # half a character?
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        deep = f"{printable(source)} is damaged: nested too deeply"
        raise IT3Error(_with(deep, advice)) from None
    except ValueError as problem:
        raise IT3Error(_with(f"{printable(source)} is damaged ({problem})", advice)) from problem
    return as_kind(value, kind, source, advice)


def as_kind(value: Any, kind: type[T], source: str, advice: str = "") -> T:
    """A value that `json.loads` gave, as a `kind`."""
    try:
        return cast(T, _converted(value, kind, ""))
    except _UnexpectedError as problem:
        raise IT3Error(_with(f"{printable(source)} is damaged: {problem}", advice)) from None


def as_json(value: Any) -> Any:
    """A value as it would be read again: tuples are lists, keys are texts."""
    return json.loads(json.dumps(value, allow_nan=False))


def printable(text: object, limit: int = 200) -> str:
    """Text from a file, fit for one line of a terminal: short, without control characters."""
    whole = str(text)
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in whole[: limit + 1])
    return shown if len(whole) <= limit else f"{shown[: limit - 1]}…"


class _UnexpectedError(Exception):
    def __init__(self, key: str, expected: str, value: Any = MISSING) -> None:
        if value is MISSING:
            super().__init__(f"{printable(key)} is missing, which should be {expected}")
            return
        words = _WORDS.get(type(value), "something else")
        if isinstance(value, int | float | str) or value is None:
            words = printable(json.dumps(value, ensure_ascii=False), 60)
        super().__init__(f"{printable(key) or 'it'} should be {expected}, but is {words}")


def _converted(value: Any, kind: Any, key: str, depth: int = 0) -> Any:
    if depth > MAX_DEPTH:
        raise _UnexpectedError(key[:60], f"nested at most {MAX_DEPTH} deep", value)
    origin, arguments = get_origin(kind), get_args(kind)
    base = origin or kind
    if kind is Any or kind is object:
        return _checked_depth(value, key, depth)
    if origin in (Union, types.UnionType):
        return _first_that_fits(value, kind, arguments, key, depth)
    if origin is Literal and any(value == one and type(value) is type(one) for one in arguments):
        return value
    start = f"{key}." if key else ""
    if isinstance(value, dict):
        if is_dataclass(kind) or typing.is_typeddict(kind):
            hints, required = _shape(kind)
            if missing := [name for name in hints if name in required and name not in value]:
                raise _UnexpectedError(f"{start}{missing[0]}", _expected(hints[missing[0]]))
            given = {name: hint for name, hint in hints.items() if name in value}
            found = {
                name: _converted(value[name], hint, f"{start}{name}", depth + 1)
                for name, hint in given.items()
            }
            return kind(**found)
        if _accepts(base, dict):
            inner = arguments[1] if arguments else Any
            return {k: _converted(v, inner, f"{start}{k}", depth + 1) for k, v in value.items()}
    if isinstance(value, list) and _accepts(base, list):
        parts = [arguments[0] if arguments else Any] * len(value)
        if base is tuple and arguments and arguments[-1] is not Ellipsis:
            parts = list(arguments)
        if len(value) != len(parts):
            raise _UnexpectedError(key, f"a list of {len(parts)}", value)
        items = [
            _converted(item, part, f"{key}[{row}]", depth + 1)
            for row, (item, part) in enumerate(zip(value, parts, strict=True))
        ]
        return tuple(items) if base is tuple else items
    if base is float and isinstance(value, int | float) and not isinstance(value, bool):
        if not abs(value) <= sys.float_info.max:  # a whole number of hundreds of digits, or 1e999
            raise _UnexpectedError(key, "a finite number", value)
        return float(value)
    if base is int and type(value) is int and abs(value) >= 2**63:
        raise _UnexpectedError(key, "a whole number of 64 bits", value)
    if base not in (int, str, bool, type(None)) or type(value) is not base:
        raise _UnexpectedError(key, _expected(kind), value)
    return value


@cache
def _shape(kind: Any) -> tuple[dict[str, Any], frozenset[str]]:
    """The types of a class's keys, and which of them must be there."""
    hints = get_type_hints(kind)
    if typing.is_typeddict(kind):
        return hints, frozenset(kind.__required_keys__)
    made = [field for field in fields(kind) if field.init]
    required = [f.name for f in made if f.default is MISSING and f.default_factory is MISSING]
    return {field.name: hints[field.name] for field in made}, frozenset(required)


def _first_that_fits(value: Any, kind: Any, choices: Any, key: str, depth: int) -> Any:
    problem = None
    for choice in choices:
        try:
            return _converted(value, choice, key, depth)
        except _UnexpectedError as wrong:
            if isinstance(value, dict | list) and choice is not type(None):
                problem = problem or wrong  # what is wrong inside says more than "an object"
    raise problem or _UnexpectedError(key, _expected(kind), value)


def _checked_depth(value: Any, key: str, depth: int) -> Any:
    """Any JSON, as long as it is not nested too deeply; without recursion."""
    level = [value]
    for _ in range(MAX_DEPTH - depth + 1):
        inner = [part for part in level if isinstance(part, dict | list)]
        if not inner:
            return value
        level = [x for part in inner for x in (part.values() if isinstance(part, dict) else part)]
    raise _UnexpectedError(key, f"nested at most {MAX_DEPTH} deep", value)


def _expected(kind: Any) -> str:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(_expected, arguments)))
    if origin is Literal:
        return " or ".join(json.dumps(choice) for choice in arguments)
    base = origin or kind
    if is_dataclass(base) or typing.is_typeddict(base) or _accepts(base, dict):
        return "an object"
    return "a list" if _accepts(base, list) else _WORDS.get(base, "something else")


def _accepts(base: Any, kind: type) -> bool:
    """Whether a JSON object (dict) or list will do, as for Mapping, Sequence, or a tuple."""
    if typing.is_typeddict(base):  # has no subclasses
        return False
    return (base is tuple and kind is list) or (isinstance(base, type) and issubclass(kind, base))


def _with(problem: str, advice: str) -> str:
    return f"{problem}: {advice}" if advice else problem


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text[:20]} is not a number that JSON has")
    return value


def to_line(value: Mapping[str, Any]) -> bytes:
    """An object as one line; numbers must be finite."""
    return json.dumps(value, allow_nan=False).encode() + b"\n"


def append_lines(path: FilePath, values: Iterable[Mapping[str, Any]]) -> None:
    """Adds objects to the end of a file, all of them in one write."""
    append(path, b"".join(map(to_line, values)))


def read_lines(path: FilePath, kind: type[T], advice: str = "") -> list[T]:
    """The objects of a file; a last line that was cut off in the middle is passed over."""
    lines = _content(path, advice).split(b"\n")
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or (number == len(lines) and is_torn(line)):
            continue
        found.append(parse_json(line, kind, f"line {number} of {path}", advice))
    return found


def mend(path: FilePath) -> None:
    """Makes the next line start on a new line: what a kill left of the last one is cut off.

    Where there is no file, an empty one is made, and its folder: a path that can't be written is
    told before any work is done.
    """
    make_folder(Path(path).parent)
    append(path, b"")
    content = _content(path)
    tail = content.rpartition(b"\n")[2]
    if is_torn(tail):
        truncate(path, len(content) - len(tail))
    elif tail.strip():
        append(path, b"\n")


def is_torn(line: bytes) -> bool:
    """Whether this is the beginning of an object; what is whole, or no JSON at all, is foreign."""
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return line.startswith(b"{")
    return False


def _content(path: FilePath, advice: str = "", most: float = math.inf) -> bytes:
    try:
        status = Path(path).stat()
        if not stat.S_ISREG(status.st_mode):  # a pipe would wait for someone to write into it
            raise IT3Error(_with(f"{path} is not a file", advice))
        if status.st_size > most:
            raise IT3Error(f"{path} has {status.st_size} bytes, more than the {most} that are read")
        return Path(path).read_bytes()
    except OSError as problem:
        raise IT3Error(_with(f"can't read {path}: {problem.strerror}", advice)) from problem
