"""One self-contained HTML page: sections of tables, numbers and pictures, and no outside request.

A domain puts its own sections together. Styles are inline and pictures
are in the page, so that it can be mailed, printed and read on a phone; there is no script.
"""

from __future__ import annotations

import base64
import html
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from it3_core.errors import IT3Error
from it3_core.files import write_text

__all__ = ["Page", "cards", "columns", "facts", "picture", "table", "text"]


class Page:
    """A page to put sections on, from top to bottom.

    Example:
        >>> page = Page("Wings", "a run of the demo")
        >>> page.section("Numbers", cards([("error", "2.1", "mean, in L/D")]))
        >>> "<h2>Numbers</h2>" in page.html()
        True
    """

    def __init__(self, title: str, subtitle: str = "") -> None:
        self.title = title
        self.subtitle = subtitle
        self._sections: list[str] = []

    def section(self, title: str, *parts: str) -> None:
        """Adds a section; parts are HTML, of this module's functions."""
        body = "\n".join(part for part in parts if part)
        self._sections.append(f"<section>\n<h2>{html.escape(title)}</h2>\n{body}\n</section>")

    def html(self) -> str:
        """The whole page."""
        subtitle = f"<p class=subtitle>{html.escape(self.subtitle)}</p>" if self.subtitle else ""
        head = f"<header>\n<h1>{html.escape(self.title)}</h1>\n{subtitle}\n</header>"
        return _PAGE.format(
            title=html.escape(self.title),
            style=_STYLE,
            policy=_POLICY,
            body="\n".join([head, *self._sections]),
        )

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Writes the page, whole or not at all."""
        return write_text(path, self.html())


def text(*paragraphs: str) -> str:
    """Paragraphs of plain text.

    Example:
        >>> text("1 < 2")
        '<p>1 &lt; 2</p>'
    """
    return "\n".join(f"<p>{html.escape(paragraph)}</p>" for paragraph in paragraphs)


def cards(numbers: Iterable[tuple[str, str, str]]) -> str:
    """Key numbers, large: what it is, the number, and a note below it.

    Example:
        >>> cards([("error", "2.1", "mean")]).count("<div class=card>")
        1
    """
    made = [
        f"<div class=card><div class=what>{html.escape(what)}</div>"
        f"<div class=number>{html.escape(number)}</div>"
        f"<div class=note>{html.escape(note)}</div></div>"
        for what, number, note in numbers
    ]
    return f"<div class=cards>{''.join(made)}</div>"


def facts(values: Mapping[str, Any]) -> str:
    """Names and values, a line each.

    Example:
        >>> facts({"solver": "XFoil 6.99"})
        '<dl><div><dt>solver</dt><dd>XFoil 6.99</dd></div></dl>'
    """
    lines = [
        f"<div><dt>{html.escape(str(name))}</dt><dd>{html.escape(_plain(value))}</dd></div>"
        for name, value in values.items()
    ]
    return f"<dl>{''.join(lines)}</dl>"


def table(lines: Sequence[Sequence[str]], caption: str = "", best: bool = False) -> str:
    """A table whose first line is the header; it scrolls sideways where the screen is narrow.

    Args:
        lines: cells of plain text.
        caption: above it.
        best: whether to mark cells that say "better" or "worse".

    Example:
        >>> table([["method", "error"], ["source", "2.1"]]).count("<td")
        2
    """
    if not lines:
        raise IT3Error("there is no line to put into a table")
    header, *body = lines
    numeric = [all(_is_number(line[i]) for line in body if line[i]) for i in range(len(header))]
    head = "".join(
        f"<th class=n>{html.escape(cell)}</th>" if right else f"<th>{html.escape(cell)}</th>"
        for cell, right in zip(header, numeric, strict=True)
    )
    rows = [f"<tr>{''.join(_cell(cell, best) for cell in line)}</tr>" for line in body]
    title = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    return (
        f"<div class=scroll><table>{title}<thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def picture(figure: Any, alt: str, caption: str = "", dpi: int = 160) -> str:
    """A matplotlib figure (or the bytes of a PNG) as a picture inside the page.

    Args:
        figure: what to show.
        alt: what it shows, for those who can't see it.
        caption: below it.
        dpi: pixels to the inch, of the figure or of the PNG.

    Example:
        >>> picture(b"not really a PNG", "a picture")[:30]
        '<figure><div class=scroll><img'
    """
    if isinstance(figure, bytes):
        data = figure
    else:
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=dpi, facecolor="white")
        data = buffer.getvalue()
    pixels = int.from_bytes(data[16:20], "big")  # where a PNG says how wide it is
    width = round(100 * pixels / dpi)
    source = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    below = f"<figcaption>{html.escape(caption)}</figcaption>" if caption else ""
    # On a phone a picture keeps enough of its width to be read, and scrolls.
    least = min(width, 640) if width > 520 else 0
    return (
        f'<figure><div class=scroll><img alt="{html.escape(alt)}" src="{source}" '
        f'style="width:{width}px;min-width:{least}px"></div>{below}</figure>'
    )


def columns(*parts: str) -> str:
    """Parts side by side where there is room, else below each other.

    Example:
        >>> columns("<p>a</p>", "<p>b</p>")
        '<div class=columns><div><p>a</p></div><div><p>b</p></div></div>'
    """
    return f"<div class=columns>{''.join(f'<div>{part}</div>' for part in parts)}</div>"


def _cell(cell: str, best: bool) -> str:
    kind = "better" if best and cell == "better" else "worse" if best and cell == "worse" else ""
    classes = " ".join(name for name in ("n" if _is_number(cell) else "", kind) if name)
    opening = f'<td class="{classes}">' if classes else "<td>"
    return f"{opening}{html.escape(cell).replace(' %', '&nbsp;%')}</td>"


def _is_number(cell: str) -> bool:
    return cell.lstrip("+-−<≤≈ ")[:1].isdigit()


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.6g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_plain(part)}" for name, part in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_plain, value))
    return "–" if value is None else str(value)


# The browser itself refuses whatever would leave the page.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""

_STYLE = """
:root { color-scheme: light; --ink: #1f2430; --soft: #5b6475; --line: #dfe3ea; --accent: #5b2a9d; }
* { box-sizing: border-box; }
body { margin: 0; background: #f5f6f9; color: var(--ink); line-height: 1.5;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 16px; }
header { padding: 12px 4px 4px; }
h1 { font-size: 1.8rem; line-height: 1.2; margin: 0; }
.subtitle { color: var(--soft); margin: 6px 0 10px; }
section { background: #fff; border: 1px solid var(--line); border-radius: 10px; padding: 16px 20px;
  margin: 14px 0; }
h2 { font-size: 1.2rem; margin: 0 0 10px; }
h3 { font-size: 1rem; margin: 14px 0 6px; }
p { margin: 0 0 10px; max-width: 75ch; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 10px; }
.card { border: 1px solid var(--line); border-radius: 8px; padding: 10px 12px; }
.what { color: var(--soft); font-size: .85rem; }
.number { font-size: 1.5rem; font-weight: 650; color: var(--accent); line-height: 1.3;
  overflow-wrap: anywhere; }
.note { color: var(--soft); font-size: .82rem; line-height: 1.35; }
.scroll { overflow-x: auto; }
.columns { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr));
  gap: 6px 24px; align-items: start; }
.columns > div { min-width: 0; }
figure { margin: 8px 0 14px; }
img { display: block; max-width: 100%; height: auto; margin: 0 auto; }
figcaption, caption { color: var(--soft); font-size: .88rem; text-align: left; }
figcaption { margin-top: 4px; max-width: 80ch; }
caption { padding-bottom: 6px; }
table { border-collapse: collapse; width: 100%; font-size: .88rem; margin: 6px 0 12px;
  font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 4px 10px 4px 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
th { font-weight: 600; color: var(--soft); vertical-align: bottom; }
td.n, th.n { text-align: right; }
td.n { white-space: nowrap; }
th:first-child, td:first-child { white-space: nowrap; }
td.better { color: #0f766e; font-weight: 600; }
td.worse { color: #b42318; font-weight: 600; }
dl { margin: 0; font-size: .92rem; }
dl div { display: flex; gap: 12px; padding: 3px 0; border-bottom: 1px solid var(--line); }
dt { flex: 0 0 38%; color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; min-width: 0; }
@media (max-width: 600px) {
  main { padding: 8px; } section { padding: 12px; border-radius: 8px; } h1 { font-size: 1.45rem; }
  .cards { grid-template-columns: 1fr 1fr; } .number { font-size: 1.25rem; }
}
@media (min-width: 601px) { img { min-width: 0 !important; } }
@media print {
  @page { margin: 14mm; }
  body { background: #fff; font-size: 10.5pt; } main { max-width: none; padding: 0; }
  section { border: 0; padding: 0; margin: 0 0 8mm; } h2 { break-after: avoid; }
  figure, .card, tr, dl div { break-inside: avoid; } .scroll { overflow: visible; }
  .columns { grid-template-columns: 1fr 1fr; } .cards { grid-template-columns: repeat(5, 1fr); }
  .number { font-size: 13pt; }
  img { min-width: 0 !important; max-height: 95mm; width: auto !important; max-width: 100%; }
  table { font-size: 8pt; } th, td { padding-right: 5px; } td.n { white-space: normal; }
}
"""
