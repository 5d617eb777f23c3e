"""Statistics, tables, figures and pages of an evaluation."""

from __future__ import annotations

import itertools
import math
import os
import random
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib import rcParams
from torch import Tensor

import it3_core
from it3_core import IT3Error
from it3_core.evaluation.records import Record
from it3_core.experiment.figures import (
    bars,
    box_by_level,
    difference_by_level,
    error_against_accuracy,
    error_histograms,
)
from it3_core.experiment.page import Page, columns, facts, picture, table
from it3_core.experiment.statistics import (
    OUT_OF_DISTRIBUTION,
    Row,
    auroc,
    bootstrap_intervals,
    correlation,
    summarise,
)
from it3_core.experiment.tables import compact, markdown, pooled
from it3_core.io.files import write_figure


def interval(values: list[Tensor], **options: Any) -> tuple[float, float] | None:
    return bootstrap_intervals([values], **options)[0]


SERIES = (("source", None), ("IT3", 1), ("IT3", 4), ("IT3", 16), ("ActMAD", 16), ("online", 16))


def records(seeds: int = 2) -> list[Record]:
    draw = random.Random(0)
    made = []
    for seed, (place, level), (method, size) in itertools.product(
        range(seeds), enumerate(("clean", "5 %", "20 %")), SERIES
    ):
        errors = [place + draw.random() for _ in range(20)]
        gaps = [0.0 if method == "source" else draw.gauss(0, 0.1) for _ in range(20)]
        made.append({
            "seed": seed, "level": level, "method": method, "batch_size": size, "n": 20,
            "reference": "source", "in_distribution": place == 0, "cost": 1.0, "problem": None,
            "errors": errors, "differences": gaps, "error": sum(errors) / 20,
            "difference": sum(gaps) / 20, "cpu_seconds": 1.0, "fallbacks": 1,
        })  # fmt: skip
    return made


def cell(seed: int, level: str, error: float, difference: float, **more: Any) -> Record:
    return {"seed": seed, "level": level, "method": "IT3", "batch_size": 4, "reference": "source",
            "in_distribution": level == "clean", "n": 10, "error": error,
            "difference": difference, "fallbacks": 1,
            "cost": [5.0, 6.0, 50.0][seed], "problem": None, **more}  # fmt: skip


class TestGolden:
    def test_rows_hold_what_can_be_computed_by_hand(self) -> None:
        made = [
            cell(seed, name, error + seed, difference + seed / 100)
            for name, error, difference in (("clean", 10.0, 0.3), ("noise", 18.0, -2.0))
            for seed in range(3)
        ]
        clean, noise = summarise(made)
        assert (noise["seeds"], noise["n"], noise["fallbacks"], noise["cost"]) == (3, 30, 3, 6.0)
        assert noise["error"] == pytest.approx(19)
        assert noise["difference"] == pytest.approx(-1.99)
        assert noise["relative"] == pytest.approx(-1.99 / 20.99)
        # Student's interval of −2, −1.99, −1.98, which the bootstrap imitates
        half = 4.303 * 0.01 / math.sqrt(3)
        assert noise["low"] == pytest.approx(-1.99 - half, abs=0.2 * half)
        assert noise["high"] == pytest.approx(-1.99 + half, abs=0.2 * half)
        assert (noise["verdict"], clean["verdict"]) == ("better", "worse")
        assert noise["harm"] == clean["difference"]
        assert (noise["harm_low"], noise["harm_high"]) == (clean["low"], clean["high"])
        assert noise["harm_verdict"] == "worse"

    def test_intervals_are_those_of_version_0_1(self) -> None:
        a = torch.arange(40, dtype=torch.double)
        groups = [[a.sin(), a.cos()], [a[:7].sin()], [a[:1], a[1:2], a[5:6]],
                  [a.sin()[:9], a.cos(), a.sin()]]  # fmt: skip
        golden = [
            (-0.140497536098, 0.206287745126),
            (-0.65673801682, 0.652006871686),
            (-3.377294588784, 10.065941883176),
            (-0.200153193216, 0.370259109323),
        ]
        for found, expected in zip(bootstrap_intervals(groups), golden, strict=True):
            assert found == pytest.approx(expected, abs=1e-11)

    @pytest.mark.parametrize(
        ("shift", "verdict"),
        [(-2.0, "better"), (-0.1, "no difference"), (0.1, "no difference"), (2.0, "worse")],
    )
    def test_only_an_interval_without_zero_gives_a_verdict(
        self, shift: float, verdict: str
    ) -> None:
        gaps = [shift - 1, shift + 1] * 20
        (row,) = summarise([cell(0, "a", 100.0, shift, differences=gaps)])
        assert row["verdict"] == verdict
        assert (row["low"] < 0 < row["high"]) == (verdict == "no difference")

    def test_a_table_reads_like_this(self) -> None:
        row = {
            "level": "clean|x", "method": "source", "batch_size": None, "reference": "source",
            "in_distribution": True, "seeds": 5, "n": 10, "error": 12.3456, "difference": -0.0123,
            "low": -0.0212, "high": -0.0034, "relative": -0.00123,
            "verdict": "better", "cost": 1.0, "harm": 12.0, "harm_low": -20.0, "harm_high": 44.0,
            "harm_verdict": "no difference", "problem": None,
        }  # fmt: skip
        other = {"method": "IT3", "batch_size": 16, "seeds": 4, "cost": 5.83,
                 "problem": "1 of 5 seeds: it broke"}  # fmt: skip
        assert markdown([row, row | other]).splitlines() == [
            "| level | method | batch | error | against source | % | verdict | cost "
            "| harm on clean\\|x |",
            "| --- | --- | ---: | ---: | ---: | ---: | --- | ---: | ---: |",
            "| clean\\|x | source |  | 12.35 |  |  |  | 1.0 |  |",
            "| clean\\|x | IT3 | 16 | 12.35 | -0.0123 (-0.0212 to -0.0034) | -0.1 "
            "| better (1 of 5 seeds: it broke) | 5.8 | +12 (-20 to +44) |",
            "",
            "4 to 5 seeds. In brackets 95 % intervals over seeds and instances; negative is "
            "better. Cost in passes of source.",
        ]
        _, source, it3 = compact([row, row | other])
        assert source == ["source", "", "12.35", "", "", "", "1.0"]
        assert it3[3:] == ["-0.01 (-0.02 to -0.00)", "-0 %", "+12.00 (-20.00 to +44.00)", "5.8"]

    def test_levels_of_the_same_instances_are_averaged_and_others_joined(self) -> None:
        made = records(1)
        own = [r["errors"] for r in made if r["method"] == "ActMAD" and not r["in_distribution"]]
        (joined,) = [r for r in pooled(made) if r["method"] == "ActMAD"]
        assert (joined["level"], joined["n"], joined["cost"]) == (OUT_OF_DISTRIBUTION, 40, 1.0)
        assert joined["errors"] == [*own[0], *own[1]]
        (mean,) = [r for r in pooled(made, same_instances=True) if r["method"] == "ActMAD"]
        assert mean["n"] == 20
        assert mean["errors"] == [(a + b) / 2 for a, b in zip(*own, strict=True)]
        assert mean["error"] == pytest.approx(joined["error"])
        made[-1] = made[-1] | {"problem": "it broke", "errors": None}
        assert pooled(made)[-1]["problem"] == "it broke"

    def test_correlations_are_the_textbooks_and_auroc_counts_pairs(self) -> None:
        a, b = [1.0, 2.0, 3.0, 4.0], [2.0, 1.0, 4.0, 4.0]
        # centred: (−1.5, −.5, .5, 1.5) · (−.75, −1.75, 1.25, 1.25) = 4.5; norms √5 and √6.75
        assert correlation(a, b) == pytest.approx(4.5 / math.sqrt(5 * 6.75))
        # ranks of b: 2, 1, 3.5, 3.5; centred dot product 3.5, norms √5 and √4.5
        assert correlation(a, torch.tensor(b), "spearman") == pytest.approx(3.5 / 22.5**0.5)
        assert correlation(a, [-value for value in a]) == -1.0
        assert math.isnan(correlation(a, [0.1] * 4))
        assert math.isnan(correlation([1.0], [2.0]))
        out, usual = [3, 5, 0, 2, 2], [2, 1, 4, 2]
        pairs = list(itertools.product(out, usual))
        won = sum(1.0 if o > i else 0.5 if o == i else 0.0 for o, i in pairs)
        assert auroc(out, usual) == won / len(pairs)
        assert auroc([2.0, 3.0], torch.tensor([0.0, 1.0])) == 1.0


class TestInvariants:
    def test_the_order_of_records_changes_no_row_and_no_group_another(self) -> None:
        made = records(3)
        rows = summarise(made)
        by_name = {(row["level"], row["method"], row["batch_size"]): row for row in rows}
        again = summarise(made[::-1])
        assert {(r["level"], r["method"], r["batch_size"]): r for r in again} == by_name
        assert summarise([*made, *made]) == rows  # a cell that comes twice counts once
        assert [(row["method"], row["batch_size"]) for row in rows[:6]] == list(SERIES)
        torch.manual_seed(0)
        groups = [[torch.randn(30), torch.randn(20)], [torch.randn(30)], [torch.randn(7)]]
        ends = bootstrap_intervals(groups)
        assert bootstrap_intervals(groups[::-1])[::-1] == ends
        assert interval(groups[1]) == ends[1]

    @pytest.mark.parametrize(
        ("seeds", "between", "shared", "most"),
        [
            (1, 0.0, 0.0, 0.98),  # instances only
            (5, 1.0, 0.0, 0.98),  # seeds differ much
            (5, 0.1, 1.0, 1.0),  # all seeds have one test set, whose instances differ much
            (20, 0.0, 1.0, 0.98),
        ],
    )
    def test_intervals_cover_the_truth_as_often_as_they_say(
        self, seeds: int, between: float, shared: float, most: float
    ) -> None:
        torch.manual_seed(0)
        trials, n = 400, 40
        values = (
            between * torch.randn(trials, seeds, 1)
            + shared * torch.randn(trials, 1, n)
            + torch.randn(trials, seeds, n)
        )
        ends = bootstrap_intervals([list(group) for group in values], resamples=400)
        covered = [end is not None and end[0] <= 0 <= end[1] for end in ends]
        assert 0.925 < statistics.fmean(covered) <= most

    def test_tables_and_plots_stay_out_of_the_base(self) -> None:
        code = (
            "import sys, it3_core\nit3_core.evaluate, it3_core.tune, it3_core.Trust\n"
            "import it3_core.experiment, it3_core.demo\n"
            "heavy = {'pandas', 'scipy', 'matplotlib', 'jinja2'} & set(sys.modules)\n"
            "assert not heavy, heavy\n"
            "import it3_core.experiment.figures, it3_core.experiment.page\n"
            "assert 'matplotlib.pyplot' not in sys.modules"
        )
        environment = {**os.environ, "PYTHONPATH": str(Path(it3_core.__file__).parents[1])}
        subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=environment, check=True)


class TestRobustness:
    def test_without_instances_intervals_come_from_seeds_and_one_seed_is_unknown(self) -> None:
        made = [cell(seed, "a", 4.0, 1 + seed / 100) for seed in range(3)]
        assert summarise(made)[0]["verdict"] == "worse"
        (one,) = summarise(made[:1])
        assert (one["verdict"], one["low"], one["difference"]) == ("unknown", None, 1.0)
        assert interval([torch.ones(1)]) is None
        low, high = interval([torch.tensor([1.0]), torch.tensor([2.0])]) or (0, 0)
        assert low < 0 < 3 < high  # two seeds say next to nothing
        assert "| +1 |" in markdown([one])
        failed = cell(1, "a", 4.0, 1.0, problem="it broke")
        (row,) = summarise([made[0], failed])
        assert (row["seeds"], row["problem"]) == (1, "1 of 2 seeds: it broke")
        (none,) = summarise([failed | {"error": None, "difference": None}])
        assert (none["verdict"], none["error"], none["seeds"]) == ("failed", None, 0)

    def test_what_says_nothing_is_refused(self) -> None:
        bare = [{k: v for k, v in record.items() if k != "errors"} for record in records()]
        other = cell(0, "a", 1.0, 1.0) | {"reference": "vanilla"}
        calls: list[tuple[str, Any]] = [
            ("several references: source, vanilla", lambda: summarise([*records(), other])),
            ("no number", lambda: summarise([cell(0, "a", "x", 1.0)])),  # type: ignore[arg-type]
            ("no number", lambda: summarise([cell(0, "a", 1.0, 1.0, differences=["x"])])),
            ("no row", lambda: markdown([])),
            ("no row", lambda: compact([])),
            ("each instance", lambda: pooled(bare)),
            ("one of them is empty", lambda: auroc([], [1.0])),
            ("NaN or Inf", lambda: auroc([math.nan], [1.0])),
            ("give pairs", lambda: correlation([1.0, 2.0], [1.0])),
            ("kind must be", lambda: correlation([1.0], [1.0], "kendall")),  # type: ignore[arg-type]
            ("nothing to draw", lambda: box_by_level([])),
            ("instances=True", lambda: box_by_level(bare)),
            ("besides the reference", lambda: difference_by_level([summarise(records())[0]])),
            ("no value", lambda: error_histograms([1.0], [], [1.0])),
            ("no line", lambda: table([])),
        ]
        for message, call in calls:
            with pytest.raises(IT3Error, match=message):
                call()
        assert summarise([]) == []

    def test_a_page_escapes_what_it_is_given(self) -> None:
        page = Page("<script>alert(1)</script>", "a & <s>")
        page.section(
            "<b>",
            "<img src=x>",
            "",
            table([["<i>"], ['"<u>"']], "<caption>"),
            columns(facts({"<dt>": ["<dd>", {"<em>": 1.5}]})),
            picture(b"", '"><script>'),
        )
        made = page.html()
        assert made.startswith("<!doctype html>")
        for tag in ("script", "s", "b", "img src=x", "i", "u", "em", "dt>&lt"):
            assert f"<{tag}>" not in made
        assert "<caption>&lt;caption&gt;</caption>" in made
        assert "<p></p>" not in made
        assert "default-src 'none'" in made
        assert made.count("<section>") == made.count("</section>") == 1


def rows() -> list[Row]:
    made = records()
    for record in made:
        if (record["method"], record["level"]) == ("ActMAD", "5 %"):
            record |= {"problem": "it broke", "error": None, "difference": None}
    return summarise(made)


def drawings() -> dict[str, Any]:
    values = np.random.default_rng(0).random(99)
    return {
        "boxes": lambda: box_by_level(records(), error="MAE"),
        "boxes of seeds": lambda: box_by_level(records(), each="seed", title="a title"),
        "differences": lambda: difference_by_level(rows(), error="MAE"),
        "histograms": lambda: error_histograms([*values, 1e6], values / 2, values / 1e4),
        "Figure 2": lambda: error_histograms(values, values / 2, values / 4, training=values / 5),
        "scatter": lambda: error_against_accuracy(values, values**2, title="CIFAR"),
        "bars": lambda: bars(
            {"a": [1.0, None], "b": [2.0, 3.0]}, ["x", "y"], quantity="%", colours={"a": "#000"}
        ),
    }


@pytest.mark.parametrize("name", sorted(drawings()))
def test_figures_are_drawn_and_nothing_global_is_touched(name: str, tmp_path: Path) -> None:
    before = dict(rcParams)
    figure = drawings()[name]()
    write_figure(tmp_path / "x.png", figure)
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    assert dict(rcParams) == before
    page = Page("a page")
    page.section("a section", picture(figure, "a picture", "a caption"))
    assert "data:image/png;base64,iVBOR" in page.html()
    axes = figure.axes[0]
    if name == "boxes":
        assert axes.get_ylabel() == "MAE"
    if name == "differences":  # a failed cell leaves a gap
        drawn = sum(len(points.get_ydata()) for points, _, _ in axes.containers)
        assert drawn == 3 * (len(SERIES) - 1) - 1
    if name == "scatter":
        assert axes.get_title(loc="left") == "CIFAR: Pearson 0.97, n = 99"
    if name == "Figure 2":
        curves = [text.get_text() for text in figure.legends[0].get_texts()]
        assert curves == ["training", "in distribution", "shifted, before", "shifted, after"]
