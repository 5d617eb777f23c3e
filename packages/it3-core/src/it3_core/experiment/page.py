"""One self-contained HTML page: sections of text, tables and pictures.

`page.html.jinja` and `page.css` beside this file say how it looks; Jinja2 escapes whatever is put
on it. A part of a section is a paragraph of plain text, or what the functions below make.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader

from it3_core.errors import IT3Error
from it3_core.experiment.tables import is_number
from it3_core.io.files import figure_bytes, write_text

Part = str | Mapping[str, Any]


class Page:
    """A page to put sections on, from top to bottom."""

    def __init__(self, title: str, subtitle: str = "") -> None:
        self.title = title
        self.subtitle = subtitle
        self.sections: list[tuple[str, list[Part]]] = []

    def section(self, title: str, *parts: Part) -> None:
        """Adds a section; empty parts are left out."""
        self.sections.append((title, [part for part in parts if part]))

    def html(self) -> str:
        """The whole page."""
        loader = FileSystemLoader(Path(__file__).parent)
        environment = Environment(loader=loader, autoescape=True)
        environment.tests["number"] = is_number
        return environment.get_template("page.html.jinja").render(vars(self))

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Writes the page, whole or not at all."""
        return write_text(path, self.html())


def facts(values: Mapping[str, Any]) -> Part:
    """Names and values, a line each."""
    return {"kind": "facts", "facts": {name: plain(value) for name, value in values.items()}}


def table(lines: Sequence[Sequence[str]], caption: str = "") -> Part:
    """A table whose first line is the header; it scrolls sideways where the screen is narrow."""
    if not lines:
        raise IT3Error("there is no line to put into a table")
    header, *body = lines
    numeric = [all(map(is_number, column)) for column in zip(*body, strict=True)]
    return {"kind": "table", "header": header, "body": body, "numeric": numeric, "caption": caption}


def picture(figure: Any, alt: str, caption: str = "", dpi: int = 160) -> Part:
    """A matplotlib figure (or the bytes of a PNG) inside the page; `alt` says what it shows."""
    data = figure if isinstance(figure, bytes) else figure_bytes(figure, dpi=dpi, facecolor="white")
    width = round(100 * int.from_bytes(data[16:20], "big") / dpi)  # where a PNG says its width
    # On a phone a picture keeps enough of its width to be read, and scrolls.
    least = min(width, 640) if width > 520 else 0
    encoded = base64.b64encode(data).decode()
    shown = {"data": encoded, "alt": alt, "caption": caption, "width": width, "least": least}
    return {"kind": "picture", **shown}


def columns(*parts: Part) -> Part:
    """Parts side by side where there is room, else below each other; nothing without any."""
    kept = [part for part in parts if part]
    return {"kind": "columns", "parts": kept} if kept else ""


def plain(value: Any) -> str:
    """A value of a setting as text."""
    if isinstance(value, float):
        return f"{value:,.6g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {plain(part)}" for name, part in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(plain, value))
    return "–" if value is None else str(value)
