"""The page: every claim, figure and table from records alone, as Markdown and as HTML."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from it3_core.experiment import page as html
from it3_core.experiment.tables import Table, markdown_table
from it3_core.io.files import make_folder, write_bytes, write_text
from paper import records, tables
from paper.claims import Finding, Outcome, findings
from paper.deviations import DEVIATIONS, UNITS
from paper.items import ITEMS, Item, pictures
from paper.numbers import SAYS, TASKS
from paper.records import Measured

_HOW = (
    "Written by `nox -s paper -- --page` from the records in `{}` alone. Each claim is assessed on "
    "the row “IT³ (paper)”: on the trained network's statistics and, where there is batch norm, on "
    "the batch's. A number is the change of the error on the same network and the same inputs, "
    "instance by instance; negative is better. It is reproduced where its 95 % interval lies below "
    "zero, the opposite where it lies above, not shown where it holds zero. From five training "
    "seeds on, the interval is over seeds and instances; of fewer it is over instances with the "
    "seeds fixed, each seed's mean stands beside it, and all must agree. Intervals of AUROC and of "
    "Pearson's r are percentiles of resampled instances and of resampled corruption sets; those of "
    "accuracies are made on the logit. A cost or a memory is reproduced up to 1.1 times the "
    "paper's, Pearson's r where its interval reaches −0.92."
)

TITLE = "The paper, measured"

Part = str | Table | tuple[str, str, bytes]
"""A paragraph, a table, or a picture: what it shows, its path from the page, and its content."""

Section = tuple[str, list[Part]]


def write_page(
    folder: Path, page: Path, html_page: Path, missing: Mapping[str, str] | None = None
) -> list[Path]:
    """Writes `page`, its pictures in a folder beside it and the same as HTML; where they are."""
    sections = _sections(records.read(folder), folder, page, missing or {})
    text, pictures = _as_markdown(sections, page)
    for path, content in pictures.items():
        if path.parent.resolve() != folder.resolve():  # pictures of inputs lie there already
            make_folder(path.parent)
            write_bytes(path, content)
    whole = html.Page(TITLE)
    for heading, parts in sections:
        whole.section(heading, *map(_as_html, parts))
    return [write_text(page, text), whole.write(html_page)]


def markdown(
    found: Mapping[str, Measured], folder: Path, page: Path, missing: Mapping[str, str]
) -> tuple[str, dict[Path, bytes]]:
    """The page's text, and the pictures that it shows, by their paths."""
    return _as_markdown(_sections(found, folder, page, missing), page)


def _as_markdown(sections: Sequence[Section], page: Path) -> tuple[str, dict[Path, bytes]]:
    lines, pictures = [f"# {TITLE}"], {}
    for heading, parts in sections:
        lines.append(f"## {heading}")
        for part in parts:
            if isinstance(part, tuple):
                alt, path, content = part
                lines.append(f"![{alt}]({path})")
                pictures[page.parent / path] = content
            else:
                lines.append(part if isinstance(part, str) else markdown_table(part))
    return "\n\n".join(lines) + "\n", pictures


def _sections(
    found: Mapping[str, Measured], folder: Path, page: Path, missing: Mapping[str, str]
) -> list[Section]:
    claims = findings(found)
    where = os.path.relpath(folder, page.parent)
    sections: list[Section] = [("The claims", [claims_table(claims), _HOW.format(where)])]
    for item in ITEMS:
        parts = _item(item, found, claims, folder, page, missing)
        sections.append((f"{item.name}: {item.place}", parts))
    ordered = [found[task] for task in TASKS if task in found]
    if len(networks := tables.networks(ordered)) > 1:
        text = "Mean errors before any adaptation; of each seed too, where they are few."
        sections.append(("Networks", [text, networks]))
    if len(ablation := tables.ablation(ordered)) > 1:
        text = "Steps of the paper's range, its equation (5) without an anchor, and appendix C.4."
        sections.append(("Ablation", [text, ablation]))
    sections.append(("Notes on the claims", [_notes(claims)]))
    deviations = [[task, one] for task, some in DEVIATIONS.items() for one in some]
    sections.append(("Deviations from the paper", [[["task", "deviation"], *deviations]]))
    sections.append(("Units", list(UNITS)))
    if (changed := page.parent / page.stem / "changed.md").is_file():  # written by hand
        sections.append(("What changed since 0.1", [changed.read_text(encoding="utf-8").strip()]))
    sections.append(("Records", [_files(ordered)]))
    return sections


def claims_table(claims: Sequence[Finding]) -> Table:
    """A line a claim: at most forty with its header."""
    lines = [["task", "claim", "measured", "verdict", "on batch statistics", "verdict"]]
    for one in claims:
        batch = ["", ""] if one.batch is None else [one.batch.measured, one.batch.verdict]
        measured = [one.source.measured, one.source.verdict]
        lines.append([one.task, one.claim, *measured, *batch])
    return lines


def _notes(claims: Sequence[Finding]) -> Table:
    lines = [["task", "claim", "note"]]
    for one in claims:
        notes = [one.source.note]
        if one.batch is not None and one.batch.note:
            notes.append(f"on batch statistics: {one.batch.note}")
        if any(notes):
            lines.append([one.task, one.claim, "; ".join(filter(None, notes))])
    return lines


def _item(
    item: Item,
    found: Mapping[str, Measured],
    claims: Sequence[Finding],
    folder: Path,
    page: Path,
    missing: Mapping[str, str],
) -> list[Part]:
    """The item, its command, our picture or table, what we measured, the paper's numbers."""
    parts: list[Part] = [
        f"{item.says[:1].upper()}{item.says[1:]}. `nox -s paper -- --{item.kind} {item.name}`"
    ]
    one = found.get(item.task)
    made = {} if item.tabulate else pictures(item, found, folder)
    for name, content in made.items():
        place = folder if item.is_gallery else page.parent / page.stem
        path = os.path.relpath(place / f"{name}.png", page.parent)
        parts.append((f"{item.place}: {item.says}", path, content))
    if not made and (item.tabulate is None or one is None):
        why = missing.get(item.task)
        parts.append(f"Not measured yet: {why}." if why else "Not measured yet.")
    if item.tabulate is not None:  # the paper's numbers, and ours where there are some
        parts.append(item.tabulate(one or Measured(item.task, [], [])))
    tasks = [task for task in (item.task, *item.also) if task]
    if made and item.caption:
        parts.append(
            item.caption if isinstance(item.caption, str) else item.caption(found[tasks[0]])
        )
    for claim in claims:
        if claim.task in tasks and claim.claim.startswith(item.claims or ("nothing",)):
            parts.append(f"- {f'{claim.task}: ' if item.also else ''}{_said(claim)}")
    for task in tasks:
        parts += [f"Measured: {_about(found[task])}."] if task in found else []
    if tasks:
        parts += [] if item.is_gallery else [f"The paper: {item.paper or SAYS[item.task]}."]
        parts.append(f"Deviations: those of all tasks and of {' and '.join(tasks)}, below.")
    return parts


def _said(one: Finding) -> str:
    batch = "" if one.batch is None else f"; on batch statistics {_words(one.batch)}"
    return f"{one.claim}: {_words(one.source)}{batch}."


def _words(claims: Outcome) -> str:
    return ", ".join(part for part in (claims.measured, claims.verdict) if part)


def _about(one: Measured) -> str:
    first = one.about[0]
    images = f", {first['images']} images" if first.get("images") else ""
    seeds = f"{len(one.seeds)} training seed{'s' if len(one.seeds) > 1 else ''}"
    return f"{first['data']}{images}; {first['network']}; {seeds}; {first['unit']}"


def _files(found: Sequence[Measured]) -> Table:
    """What made the records: a line for the seeds of one command at one commit."""
    keys = ["data", "network", "commit", "command", "machine"]
    seeds: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for about in (about for one in found for about in one.about):
        made = (about["task"], *(str(about.get(key, "")) for key in keys))
        seeds.setdefault(made, []).append(about)
    lines = [["task", *keys, "seeds", "minutes"]]
    for made, some in seeds.items():
        numbers = ", ".join(str(about["seed"]) for about in some)
        lines.append([*made, numbers, f"{sum(about.get('minutes', 0) for about in some):.0f}"])
    return lines


def _as_html(part: Part) -> Any:
    if isinstance(part, tuple):
        alt, _, content = part
        return html.picture(content, alt, dpi=110)
    return part if isinstance(part, str) else html.table(part)
