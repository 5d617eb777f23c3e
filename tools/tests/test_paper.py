"""The paper's harness: records, arithmetic, items, page and command."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from it3_core import IT3Error
from it3_core.evaluation.records import Record
from it3_core.experiment.statistics import IDEMPOTENCE
from it3_core.experiment.tables import markdown_table
from it3_core.io.files import figure_bytes
from paper import intervals, numbers, records
from paper.__main__ import KEPT, PAGE, _made, main
from paper.claims import Finding, findings, memory
from paper.deviations import DEVIATIONS
from paper.images import SEVERITIES
from paper.intervals import (
    Contrast,
    auroc_interval,
    contrast,
    in_percent,
    pearson_interval,
    slope,
)
from paper.items import ITEMS, TABLES, listed, make, named
from paper.numbers import ACTMAD, IT3, ON_BATCH, ONLINE, STATISTICS
from paper.page import claims_table, markdown, write_page
from paper.places import NotHereError, Place
from paper.records import MAIN, Measured, measured
from paper.running import GALLERIES, MOST_BYTES, Task, run_seeds, small_png
from paper.tasks import TASKS

COMMAND = (sys.executable, "-m", "paper")
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
BATCH_NORM = ("cifar", "imagenet", "age", "roads")
LEVELS = {
    "tabular": ("clean", "5 %", "20 %"),
    "cifar": ("clean", "fog 5", "jpeg_compression 5"),
    "imagenet": ("clean", *(f"{kind} {n}" for n in SEVERITIES for kind in ("fog", "snow"))),
    "age": ("20–60", "younger by 1–10", "older by 1–10", "older by 11–20"),
}
Shifts = dict[str, float]


def cells(
    method: str,
    shifts: Shifts | float,
    size: int | None = None,
    *,
    levels: Sequence[str] = LEVELS["tabular"],
    seeds: int = 3,
    part: str = MAIN,
    scale: float = 10.0,
) -> list[Record]:
    """Thirty instances a seed: the source's errors, moved by so much on each level."""
    made = []
    for seed in range(seeds):
        usual = scale * np.random.default_rng(seed).uniform(0.9, 1.1, 30)
        for level in levels:
            shift = shifts.get(level, 0.0) if isinstance(shifts, dict) else shifts
            shift = 0.0 if level == levels[0] and not isinstance(shifts, dict) else shift
            errors = (usual + shift).tolist()
            made.append({
                "seed": seed, "level": level, "method": method, "batch_size": size, "n": 30,
                "reference": "source", "in_distribution": level == levels[0], "cost": 4.2,
                "errors": errors, "differences": [shift] * 30, "error": sum(errors) / 30,
                "difference": shift, "cpu_seconds": 1.0, "fallbacks": 0, "problem": None,
                "part": part, "correctness": [50.0] * 30, "completeness": [40.0] * 30,
            })  # fmt: skip
    return made


def task(name: str, *parts: list[Record], seeds: int = 3, **about: Any) -> Measured:
    """A task's records, with the source among them."""
    levels = LEVELS.get(name, LEVELS["tabular"])
    found = cells("source", 0.0, levels=levels, seeds=seeds)
    for part in parts:
        found += part
    same = name in ("tabular", "cifar", "imagenet")
    heads = [
        {"task": name, "seed": n, "same": same, "unit": "MAE", "data": "<made up>", "network": "x",
         **about}
        for n in range(seeds)
    ]  # fmt: skip
    return Measured(name, heads, found)


def whole(name: str, gain: float = -1.0) -> Measured:
    """A task with all that the paper has of it."""
    how: dict[str, Any] = {"levels": LEVELS.get(name, LEVELS["tabular"])}
    sizes = numbers.BATCHES[name]
    lines = [cells(IT3, gain * (1 + n / 9), size, **how) for n, size in enumerate(sizes)]
    lines += [cells(m, 0.1, sizes[-1], **how) for m in (ACTMAD, "Tent", "ETA", ONLINE)]
    lines += [cells("vanilla net", 0.0, **how), cells(f"{IT3}, steps: 2", -1.0, sizes[-1], **how)]
    if name in BATCH_NORM:
        lines += [cells(m, 2 * gain, sizes[-1], **how) for m in (ON_BATCH, STATISTICS)]
        lines += [cells(m, 0.2, **how) for m in ("TTT", "MEMO")]
    held = {"batch": 128, "bytes": {"source": 4.5e6, IT3: 7.4e6, ACTMAD: 7.2e6}}
    made = task(name, *lines, memory=held if name == "imagenet" else None)
    rng = np.random.default_rng(0)
    scores = []
    for seed in range(3):
        for index, level in enumerate(["training", *how["levels"]]):
            wrong = 100.0 * (rng.random(128) < 0.1 * index)
            score = 0.1 + 0.1 * index + 0.01 * rng.random(128)
            columns: dict[str, Any] = {
                "error": wrong,
                "idempotence": score,
                "entropy": score,
                "after": 0.5 * score,
            }
            scores.append(records.Scores(seed, level, columns))
    if name in ("imagenet", "wings", "cifar"):
        kept = [s for s in scores if s.level != "training" or name == "wings"]
        return replace(made, scores=kept)
    return made


def everything() -> dict[str, Measured]:
    return {name: whole(name) for name in numbers.TASKS}


def verdict(found: dict[str, Measured], name: str, claim: str) -> str:
    return next(one.source.verdict for one in lines(found, name, claim))


def lines(found: dict[str, Measured], name: str, claim: str) -> list[Finding]:
    return [one for one in findings(found) if one.task == name and one.claim.startswith(claim)]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rough intervals, in less time."""
    monkeypatch.setattr(intervals, "_RESAMPLES", 200)


# --- intervals

A, B = ("a", None), ("b", None)


def noisy(seed: int, mean: float) -> list[float]:
    return [float(value) for value in np.random.default_rng(seed).normal(mean, 1.0, 50)]


def pair(mine: dict[int, list[float]], other: dict[int, list[float]]) -> list[Record]:
    return [{"seed": seed, "method": name, "batch_size": None, "errors": errors}
            for name, seeds in (("a", mine), ("b", other))
            for seed, errors in seeds.items()]  # fmt: skip


class TestIntervals:
    def test_pairs_see_what_means_do_not(self) -> None:
        """Instances differ by far more than methods do; each with itself, the gain is certain."""
        hard = {seed: noisy(seed, 10.0) for seed in range(5)}
        better = {seed: [error - 0.1 for error in errors] for seed, errors in hard.items()}
        found = contrast(pair(better, hard), A, B)
        assert found is not None
        assert (found.sign, len(found.seeds), found.by_seed) == (-1, 5, "")
        assert abs(found.value + 0.1) < 1e-9
        assert abs(found.percent.value + 1.0) < 0.1
        chance = contrast(pair({0: noisy(0, 1.0)}, {0: noisy(9, 1.0)}), A, B)
        assert chance is not None
        assert chance.sign == 0

    @pytest.mark.parametrize(("seeds", "sign"), [(3, -1), (4, -1), (5, 0)])
    def test_few_seeds_are_fixed(self, seeds: int, sign: int) -> None:
        """Seeds that disagree widen the interval only where there are enough of them."""
        gains = [-3.0, -0.1, -0.2, -2.0, 2.9][:seeds]
        source = {seed: noisy(seed, 10.0) for seed in range(seeds)}
        mine = {seed: [e + gains[seed] for e in errors] for seed, errors in source.items()}
        found = contrast(pair(mine, source), A, B)
        assert found is not None
        assert found.sign == sign
        assert found.by_seed.startswith("seeds -29") == (seeds < 5)

    def test_few_seeds_that_disagree_show_nothing(self) -> None:
        source = {seed: noisy(seed, 10.0) for seed in range(2)}
        mine = {0: [e - 2.0 for e in source[0]], 1: [e + 0.1 for e in source[1]]}
        found = contrast(pair(mine, source), A, B)
        assert found is not None
        assert found.high is not None
        assert found.high < 0
        assert found.sign == 0

    def test_only_seeds_that_both_have_count(self) -> None:
        both = pair({0: [1.0, 1.0], 1: [9.0, 9.0]}, {0: [2.0, 2.0]})
        found = contrast(both, A, B)
        assert found is not None
        assert (found.value, found.seeds) == (-1.0, (-1.0,))
        assert contrast(both, A, ("c", None)) is None
        assert contrast(both, ("a", 4), B) is None
        assert contrast([both[0] | {"errors": None}, both[2]], A, B) is None  # it failed

    def test_slopes_need_no_common_instances(self) -> None:
        near = pair({0: [1.0, 1.1], 1: [1.0, 1.2]}, {0: [1.0, 1.1], 1: [1.2, 1.4]})
        far = pair({0: [2.0, 2.0, 2.1], 1: [2.1] * 3}, {0: [5.0, 5.0, 5.1], 1: [5.1, 5.3, 5.2]})
        found = slope(near, far, A, B)
        assert found is not None
        assert found.value == pytest.approx(-2.95, abs=0.1)
        assert found.sign == -1

    def test_no_change_is_shown_in_per_cent_too(self) -> None:
        assert str(Contrast(0.0, -1.0, 2.0, 50.0, (0.0,))) == "+0.0 % (-2.0 to +4.0)"
        assert str(Contrast(-5.0, None, None, 50.0, (-5.0,))) == "-10.0 %"
        assert str(Contrast(-5.0, -6.0, -4.0, None, (-5.0,))) == "-5.0 (-6.0 to -4.0)"

    @pytest.mark.parametrize("seeds", [1, 2, 6])
    def test_none_leaves_its_scale(self, seeds: int) -> None:
        """An AUROC of 0.96 once had an interval up to 1.25."""
        rng = np.random.default_rng(0)
        high, low = ([rng.normal(mean, 1, 9) for _ in range(seeds)] for mean in (2.0, 0))
        worth = auroc_interval(high, low)
        assert worth is not None
        assert 0.5 < worth.low <= worth.value <= worth.high <= 1.0
        levels = [f"fog {n // 2}" for n in range(12)]
        x = np.arange(12.0)
        tight = [(levels, x, -x + 0.3 * rng.normal(size=12)) for _ in range(seeds)]
        r = pearson_interval(tight)
        assert r is not None
        assert -1.0 <= r.low <= r.value <= r.high < -0.9
        assert auroc_interval([], []) is None
        assert pearson_interval([(levels, x, 0 * x)]) is None

    def test_means_are_brought_into_their_scale(self) -> None:
        for value in (0.0, 2.0, 50.0, 99.9, 100.0):
            low, high = in_percent(value, value - 40, value + 40)
            assert 0 <= low <= value <= high <= 100
        assert in_percent(50.0, 49.0, 51.0) == pytest.approx((49, 51), abs=0.01)


# --- claims


def under(shift: float, clean: float = 0.0) -> Shifts:
    return {"clean": clean, "5 %": shift, "20 %": shift}


@pytest.mark.parametrize(
    ("methods", "claim", "expected"),
    [
        ([(IT3, under(-1.0), 4)], "IT³ lowers", "reproduced"),
        ([(IT3, under(1.0), 4)], "IT³ lowers", "the opposite"),
        ([(IT3, under(0.0), 4)], "IT³ lowers", "not shown"),
        ([(ACTMAD, under(0.0), 4)], "IT³ lowers", "not measured"),
        ([(IT3, under(-0.1), 1), (IT3, under(-0.5), 8)], "larger batches", "reproduced"),
        ([(IT3, under(-0.1), 1)], "larger batches", "not measured"),
        ([(IT3, {"20 %": -3.0}, 4)], "IT³ degrades", "reproduced"),
        ([(IT3, {"5 %": -3.0}, 4)], "IT³ degrades", "the opposite"),
        ([(IT3, under(-1.0), 4), (ACTMAD, under(-2.0), 4)], "IT³ beats", "the opposite"),
        ([(IT3, under(-1.0), 4), (ACTMAD, under(0.0))], "IT³ beats", "reproduced"),
    ],
)
def test_a_claim_gets_its_verdict(methods: list[Any], claim: str, expected: str) -> None:
    made = task("tabular", *(cells(*method) for method in methods))
    assert verdict({"tabular": made}, "tabular", claim) == expected


def test_nothing_degrades_slowly_where_the_source_does_not_degrade() -> None:
    made = task("tabular", cells(IT3, {"20 %": -3.0}, 4))
    for record in made.records:
        if record["level"] == "20 %":
            record["errors"] = [error - 2.0 for error in record["errors"]]
    (found,) = lines({"tabular": made}, "tabular", "IT³ degrades")
    assert found.source.verdict == "not shown"
    assert found.source.measured.startswith("without adapting the error falls")


def test_batch_statistics_have_a_verdict_of_their_own() -> None:
    levels = LEVELS["age"]
    made = task("age", cells(IT3, 1.0, 4, levels=levels), cells(ON_BATCH, -1.0, 4, levels=levels))
    found = lines({"age": made}, "age", "IT³ lowers")[0]
    assert found.batch is not None
    assert (found.source.verdict, found.batch.verdict) == ("the opposite", "reproduced")
    assert lines(everything(), "wings", "IT³ lowers")[0].batch is None


def test_baselines_of_few_images_are_compared_on_theirs() -> None:
    """MEMO's evaluation has IT³ on the same images, and may be of one seed."""
    levels = LEVELS["imagenet"]
    some = [("source", 0.0, None), (IT3, -1.0, 8), ("MEMO", -2.0, None)]
    slow = [cells(*one, levels=levels, seeds=1, part="slow") for one in some]
    rivals = [cells(name, 1.0, 8, levels=levels) for name in ("Tent", "ETA")]
    made = task("imagenet", cells(IT3, -1.0, 8, levels=levels), *rivals, *slow)
    found = lines({"imagenet": made}, "imagenet", "IT³ beats Tent")
    assert found[0].source.verdict == "the opposite"
    assert "Tent: reproduced; ETA: reproduced; MEMO: the opposite" in found[0].source.note


@pytest.mark.parametrize(("cost", "expected"), [(4.3, "reproduced"), (4.5, "not shown")])
def test_costs_are_held_against_the_papers(cost: float, expected: str) -> None:
    made = task("wings", [{**r, "cost": cost} for r in cells(IT3, -1.0, 4)])
    assert verdict({"wings": made}, "wings", "IT³ costs") == expected


@pytest.mark.parametrize(("held", "expected"), [(7.0e6, "reproduced"), (9.0e6, "not shown")])
def test_memory_is_held_against_the_papers(held: float, expected: str) -> None:
    made = task("imagenet", memory={"bytes": {"source": 4.5e6, IT3: held}})
    assert verdict({"imagenet": made}, "imagenet", "IT³ needs") == expected
    assert memory(task("imagenet")) == {}


def test_scores_are_assessed_on_their_scale(few: None) -> None:
    found = everything()
    assert verdict(found, "wings", "the idempotence error") == "reproduced"
    pearson = lines(found, "imagenet", "idempotence error and accuracy")[0].source
    assert pearson.verdict == "reproduced"
    assert "entropy −0.9" in pearson.note
    grown = replace(found["wings"], scores=[
        replace(s, columns={**s.columns, "after": 2 * s.columns["idempotence"]})
        for s in found["wings"].scores])  # fmt: skip
    assert verdict({"wings": grown}, "wings", "the idempotence error") == "the opposite"


def test_the_table_of_claims_fits_its_forty_lines(few: None) -> None:
    for found in ({}, everything()):
        table = claims_table(findings(found))
        assert len(markdown_table(table).splitlines()) <= 40
    assert {one.source.verdict for one in findings({})} == {"not measured"}
    assert "not measured" not in {one.source.verdict for one in findings(everything())}


# --- items


def test_all_sixteen_figures_and_five_tables_are_named() -> None:
    figures = [item for item in ITEMS if item.kind == "figure"]
    tables = [item for item in ITEMS if item.kind == "table"]
    assert (len(figures), len(tables), len(TABLES["online"])) == (16, 7, 3)
    assert [item.place for item in figures] == [f"Figure {n}" for n in range(1, 17)]
    assert len({item.place.partition(",")[0] for item in tables}) == 5
    assert all(item.draw is not None or item.name in GALLERIES for item in figures)
    assert sum(line.startswith("figure") for line in listed()) == 16
    assert sum(line.startswith("table") for line in listed()) == 5
    assert [item.name for item in named("online", "table")] == list(TABLES["online"])
    assert set(DEVIATIONS) == {"all", *numbers.TASKS}
    assert sorted(TASKS) == sorted(numbers.TASKS)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of records with pictures of inputs."""
    from matplotlib.figure import Figure

    folder = tmp_path_factory.mktemp("records")
    for one in everything().values():
        for seed in one.seeds:
            own = replace(
                one,
                about=[about for about in one.about if about["seed"] == seed],
                records=[r for r in one.records if r["seed"] == seed],
                scores=[s for s in one.scores if s.seed == seed],
            )
            records.write(folder, own)
    for name in GALLERIES:
        (folder / f"{name}.png").write_bytes(small_png(figure_bytes(Figure(figsize=(0.5, 0.5)))))
    return folder


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.name)
def test_each_item_is_made_from_records(item: Any, kept: Path, tmp_path: Path) -> None:
    text = make(item, records.read(kept), kept, tmp_path, {})
    if item.kind == "table":
        assert "| method |" in text
        assert "–" not in text.splitlines()[4]  # the paper's number and ours
    else:
        assert (tmp_path / f"{item.name}.png").stat().st_size < MOST_BYTES
    if item.task:
        with pytest.raises(IT3Error, match="not measured: no such data"):
            make(item, {}, tmp_path / "empty", tmp_path, {item.task: "no such data"})


# --- records and page


def test_records_are_kept_in_small(tmp_path: Path) -> None:
    """Errors of 0 and 100 as bits, others with four digits; differences follow from them."""
    wrong = [{**r, "errors": [100.0, 0.0] * 15} for r in cells("source", 0.0, seeds=1)]
    for one in wrong:
        del one["correctness"], one["completeness"]
    moved = cells(IT3, -1.0 / 3, 4, seeds=1)
    failed = [{**r, "method": "x", "problem": "none", "errors": None} for r in moved]
    answers = pd.DataFrame({"level": "clean", "error": [1.0, 2.0], IDEMPOTENCE: [0.12345, None]})
    about = {"task": "cifar", "seed": 0, "same": True}
    path = records.write(tmp_path, measured(about, {MAIN: [*wrong, *moved, *failed]}, answers))
    found = records.read(tmp_path)["cifar"]
    assert found.records[0]["errors"] == [100.0, 0.0] * 15
    ours = next(r for r in found.records if r["method"] == IT3 and r["level"] == "5 %")
    assert ours["errors"] == pytest.approx(moved[1]["errors"], rel=1e-3)
    assert ours["differences"][:2] == pytest.approx([ours["errors"][0] - 100, ours["errors"][1]])
    assert ours["correctness"] == [50.0] * 30
    assert next(r for r in found.records if r["method"] == "x")["problem"] == "none"
    assert found.scores[0].columns["idempotence"][0] == 0.123
    assert math.isnan(found.scores[0].columns["idempotence"][1])
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(IT3Error, match="measure that seed again"):
        records.read(tmp_path)


def test_levels_are_those_of_every_seed() -> None:
    first = cells(IT3, 0.0, 4, levels=("clean", "fog 1", "fog 5"), seeds=1)
    rest = [{**r, "seed": 1} for r in cells(IT3, 0.0, 4, levels=("clean", "fog 5"), seeds=1)]
    assert Measured("imagenet", [{"same": True}], [*first, *rest]).levels() == ["fog 5"]


def test_the_page_holds_every_claim_item_and_deviation(
    kept: Path, tmp_path: Path, few: None
) -> None:
    text, html = (
        p.read_text() for p in write_page(kept, tmp_path / "paper.md", tmp_path / "p.html")
    )
    assert all(
        one.claim in text and escape(one.claim, quote=False).replace("'", "&#39;") in html
        for one in findings(everything())
    )
    assert all(f"## {item.name}: {item.place}" in text for item in ITEMS)
    assert all(one in text for some in DEVIATIONS.values() for one in some)
    assert "Not measured yet" not in text
    assert "&lt;made up&gt;" in html
    assert "<made up>" not in html
    for item in ITEMS:
        if item.kind == "figure" and not item.is_gallery:
            assert f"](paper/{item.name}.png)" in text
            assert (tmp_path / "paper" / f"{item.name}.png").exists()
    assert "](paper/accuracy-idempotence-cifar.png)" in text


def test_what_is_not_measured_is_said(tmp_path: Path) -> None:
    text, pictures = markdown({}, tmp_path, tmp_path / "paper.md", {"cars": "no such solver"})
    assert "Not measured yet: no such solver." in text
    assert text.count("Not measured yet") == 22  # all but the diagram
    assert [path.stem for path in pictures] == ["method"]
    assert "| IT³ (online) | 77.5 | 79.8 | 69.8 | – | – | – | – |" in text


def test_the_committed_page_is_that_of_the_committed_records() -> None:
    """Nothing on it is written by hand: `nox -s paper -- --page` writes it again."""
    text, pictures = markdown(records.read(KEPT), KEPT, PAGE, {})
    assert PAGE.read_text(encoding="utf-8") == text
    assert all(path.exists() and path.stat().st_size < MOST_BYTES for path in pictures)


# --- command


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "there is no task 'nonsense': take tabular"),
        (["--size", "huge"], "huge"),
        (["--preset", "small"], "small"),
        (["--jobs", "0"], "--jobs"),
        (["--figure", "online"], "the paper has no figure 'online': take method"),
        (["--table", "method"], "the paper has no table 'method': take online"),
    ],
)
def test_what_the_user_can_mend_ends_with_2_and_a_sentence(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_a_figure_of_what_was_measured_trains_nothing(
    kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "quick").mkdir()
    (tmp_path / "quick" / "records").symlink_to(kept)
    assert main(["--figure", "car-box", "--table", "online", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "car-box.png" in shown
    assert shown.count("| IT³ (online) |") == 3
    assert main(["--list"]) == 0


def test_a_seed_is_measured_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[int] = []

    def measure(place: Place, seed: int) -> Measured:
        seen.append(seed)
        if seed > 2:
            raise NotHereError("no more")
        return replace(task("tabular", seeds=1), about=[{**task("tabular").about[0], "seed": seed}])

    place = Place("quick", None, tmp_path, tmp_path, made={"commit": "abc"})
    one = Task(measure, (2, 3, 4), ())
    assert [path.name for path in run_seeds("tabular", one, place)] == [
        "tabular-0.jsonl.xz",
        "tabular-1.jsonl.xz",
    ]
    run_seeds("tabular", one, replace(place, seeds=3))
    assert seen == [0, 1, 2]
    other = replace(place, size="small", seeds=1)  # another size is another measurement
    run_seeds("tabular", one, other)
    assert seen == [0, 1, 2, 0]
    assert "measured by commit" not in capsys.readouterr().err
    run_seeds("tabular", one, replace(other, made={"commit": "def"}))
    assert "tabular-0.jsonl.xz was measured by commit abc: delete it" in capsys.readouterr().err
    assert seen == [0, 1, 2, 0]
    about = records.read(tmp_path)["tabular"].about
    assert [(a["seed"], a["commit"], a["asked"]["size"]) for a in about][1:] == [
        (1, "abc", "quick"), (2, "abc", "quick")]  # fmt: skip


def test_what_is_missing_is_named_and_harms_no_other_task(tmp_path: Path) -> None:
    line = ["imagenet", "tabular", "--size", "small", "--seeds", "1"]
    done = command(tmp_path, *line, data=uci(tmp_path / "data"))
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "out" / "small"
    assert "tabular: done" in done.stderr
    assert records.read(folder / "records")["tabular"].seeds == [0]
    page = (folder / "paper.md").read_text()
    # The data or the package.
    assert "IT3_DATA has no imagenet" in page or "it needs it3-vision, which is not" in page


def command(folder: Path, *arguments: str, data: Path) -> subprocess.CompletedProcess[str]:
    line = [*COMMAND, *arguments, "--out", str(folder / "out")]
    environment = ENVIRONMENT | {"IT3_DATA": str(data)}
    return subprocess.run(line, env=environment, capture_output=True, text=True, check=False)


def uci(folder: Path) -> Path:
    """A data set of 60 rows in the layout of IT3_DATA, with one split."""
    place = folder / "uci" / "bostonHousing"
    place.mkdir(parents=True)
    rows = np.random.default_rng(0).normal(size=(60, 4))
    rows[:, 3] = rows[:, 0] - 2 * rows[:, 1]
    np.savetxt(place / "data.txt", rows)
    indices = {"features": (0, 3), "target": (3, 4), "train_0": (8, 60), "test_0": (0, 8)}
    for name, (start, end) in indices.items():
        np.savetxt(place / f"index_{name}.txt", np.arange(start, end), fmt="%d")
    return folder


@pytest.mark.parametrize("out", [["--out", "/home/me"], ["--out=/home/me"]])
def test_records_hold_no_path_of_a_machine(monkeypatch: pytest.MonkeyPatch, out: list[str]) -> None:
    monkeypatch.setattr("sys.argv", ["paper", "age", *out, "--keep"])
    assert _made()["command"] == "nox -s paper -- age --keep"
