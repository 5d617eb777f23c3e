"""The paper's harness: its arithmetic, its page, its command, and going on after a kill."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import torch

from it3_core import Conditioned, Regression, widen
from it3_core.contrast import Contrast
from it3_core.evaluation import Record
from it3_core.judging import IDEMPOTENCE
from it3_core.tables import BEYOND
from paper.__main__ import LONGEST, main
from paper.alone import NamedLines
from paper.claims import Finding, defaults, findings
from paper.outcomes import Outcome, Place, Roles
from paper.page import PICTURE, write
from paper.picture import forest
from paper.tasks import TASKS, tabular
from paper.trust import advantage, judged, trust_table

T = TypeVar("T")

ROLES = Roles(vanilla="vanilla net", auto="auto")


def tiny(seed: int) -> Conditioned:
    """A network f(x, signal) of two inputs."""
    torch.manual_seed(seed)
    net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    return widen(net, Regression())


def cells(method: str, shifts: dict[str, float], size: int | None = None) -> list[Record]:
    """Three seeds of thirty instances: the source's errors, moved by so much on each level."""
    made = []
    for seed in range(3):
        usual = np.random.default_rng(seed).uniform(9.0, 11.0, 30)
        for level, shift in shifts.items():
            errors = (usual + shift).tolist()
            made.append({
                "seed": seed, "level": level, "method": method, "batch_size": size, "n": 30,
                "reference": "source", "in_distribution": level == "clean", "cost": 1.0,
                "errors": errors, "differences": [shift] * 30, "error": sum(errors) / 30,
                "difference": shift, "cpu_seconds": 1.0, "fallbacks": 0, "problem": None,
            })  # fmt: skip
    return made


def outcome(*parts: list[Record], trust: list[dict[str, Any]] | None = None) -> Outcome:
    records = cells("source", {"clean": 0.0, "5 %": 0.0, "20 %": 0.0})
    for part in parts:
        records += part
    return Outcome("tabular", records, ROLES, True, "MAE", trust or [], {"data": "<made up>"})


def verdicts(found: list[Finding], word: str) -> list[str]:
    return [one.verdict for one in found if word in one.claim]


def scored(score: str, aurocs: list[float], pearson: float | None = None) -> list[dict[str, Any]]:
    lines = []
    for seed, value in enumerate(aurocs):
        cell = {"seed": seed, "score": score, "n": 9, "pearson": pearson}
        lines.append({**cell, "level": "clean", "spearman": 0.25, "auroc": None})
        lines.append({**cell, "level": BEYOND, "spearman": 0.5, "auroc": value})
    return lines


class TestGolden:
    def test_a_gain_is_reproduced_and_its_share_is_told(self) -> None:
        better = cells("IT³", {"clean": 0.0, "5 %": -1.0, "20 %": -1.0}, 4)
        found = findings(outcome(better))
        helps = next(one for one in found if "lowers the error" in one.claim)
        assert helps.verdict == "reproduced"
        assert helps.measured.startswith("-10."), helps.measured  # of errors around 10
        assert helps.why.startswith("in distribution")

    def test_harm_is_the_opposite_and_chance_is_neither(self) -> None:
        worse = cells("IT³", {"clean": 0.0, "5 %": 1.0, "20 %": 1.0}, 4)
        assert verdicts(findings(outcome(worse)), "lowers the error") == ["the opposite"]
        same = cells("IT³", {"clean": 0.0, "5 %": 0.0, "20 %": 0.0}, 4)
        found = findings(outcome(same))
        assert verdicts(found, "lowers the error") == ["not reproduced"]
        assert next(one for one in found if "lowers" in one.claim).why.startswith("may be chance")

    def test_larger_batches_are_compared_with_the_smallest(self) -> None:
        one = cells("IT³", {"clean": 0.0, "5 %": -0.1, "20 %": -0.1}, 1)
        many = cells("IT³", {"clean": 0.0, "5 %": -0.5, "20 %": -0.5}, 16)
        assert verdicts(findings(outcome(one, many)), "larger batches") == ["reproduced"]
        assert verdicts(findings(outcome(one)), "larger batches") == []

    def test_degrading_more_slowly_is_a_slope(self) -> None:
        slow = cells("IT³", {"clean": 0.0, "5 %": 0.0, "20 %": -0.5}, 4)
        grown = [{**r, "errors": [e + 5 for e in r["errors"]]} if r["level"] == "20 %" else r
                 for r in outcome(slow).records]  # fmt: skip
        found = findings(Outcome("tabular", grown, ROLES, True, "MAE"))
        assert verdicts(found, "more slowly") == ["reproduced"]

    def test_the_default_must_not_harm(self) -> None:
        idle = cells("auto", {"clean": 0.0, "5 %": 0.0, "20 %": 0.0})
        vanilla = cells("vanilla net", {"clean": 0.0, "5 %": 0.0, "20 %": 0.0})
        found = findings(outcome(idle, vanilla))
        assert verdicts(found, "not worse than source") == ["kept", "kept"]
        assert verdicts(found, "beats vanilla") == ["not shown"]
        harmful = cells("auto", {"clean": 0.2, "5 %": -1.0, "20 %": -1.0})
        found = findings(outcome(harmful, vanilla))
        assert verdicts(found, "not worse than source") == ["kept", "broken"]
        assert verdicts(found, "beats vanilla") == ["kept"]

    def test_the_default_is_compared_at_every_batch_size(self) -> None:
        level = {"clean": 0.0, "5 %": -1.0, "20 %": -1.0}
        some = cells("auto", level, 16)
        many = cells("auto", {"clean": 0.0, "5 %": -1.5, "20 %": -1.5}, 64)
        statistics = [*cells("statistics", level, 16), *cells("statistics", level, 64)]
        vanilla = cells("vanilla net", {"clean": 0.0, "5 %": 0.0, "20 %": 0.0})
        records = outcome(some, many, statistics, vanilla).records
        roles = Roles(vanilla="vanilla net", auto="auto", statistics="statistics")
        one, other = defaults(Outcome("cifar", records, roles, True, "MAE"))
        assert (one.size, other.size) == (16, 64)
        assert [change.sign for change in (one.shifted, one.vanilla) if change] == [-1, -1]
        assert [change.sign for change in (one.statistics, other.statistics) if change] == [0, -1]

    def test_trust_is_compared_seed_by_seed(self) -> None:
        lines = scored(IDEMPOTENCE, [0.7, 0.8, 0.9]) + scored("dropout", [0.6, 0.7, 0.8])
        gap = advantage(lines, "dropout")
        assert gap is not None
        assert abs(gap.value + 0.1) < 1e-6  # in every seed, though seeds differ by as much
        assert gap.sign == -1
        assert advantage(lines, "entropy") is None
        table = trust_table(lines)
        assert table[1] == [IDEMPOTENCE, "0.80", "", "0.25", "0.50", "", "3"]
        assert table[2][:3] == ["dropout", "0.70", "-0.10 (-0.10 to -0.10)"]

    def test_an_ensemble_is_of_each_network_and_four_more(self) -> None:
        adapter, x = Regression(), torch.randn(16, 2, generator=torch.Generator().manual_seed(0))
        runs = [SimpleNamespace(model=tiny(seed), adapter=adapter, seed=seed) for seed in range(6)]
        levels = {"known": (x, x[:, :1]), "far": (9 * x, x[:, :1])}
        for members, given in ((5, runs), (2, runs[:2])):
            found = judged(given, [x], levels, "known", layer="model.1")
            names = {line["score"] for line in found if line["score"].startswith("ensemble")}
            assert names == {f"ensemble of {members}"}
        far = [line["spearman"] for line in judged(runs, [x], levels, "known", layer="model.1")
               if line["level"] == "far" and line["score"] == "ensemble of 5"]  # fmt: skip
        assert len(set(far)) > 1  # not all seeds have the same five
        told = judged(runs[:1], [x], levels, "known", layer="model.1", ensemble=runs)
        assert any(line["score"] == "ensemble of 6" for line in told)

    def test_an_error_that_tells_nothing_apart_is_not_reproduced(self) -> None:
        for aurocs, verdict in (([0.8, 0.85, 0.9], "reproduced"),
                                ([0.4, 0.5, 0.6], "not reproduced"),
                                ([0.2, 0.15, 0.1], "the opposite")):  # fmt: skip
            found = findings(outcome(trust=scored(IDEMPOTENCE, aurocs)))
            assert verdicts(found, "larger under shift") == [verdict]

    def test_every_rival_of_the_paper_has_a_line(self) -> None:
        level = {"clean": 0.0, "5 %": -1.0, "20 %": -1.0}
        worse = {"clean": 0.0, "5 %": 0.0, "20 %": 0.0}
        made = outcome(cells("IT³", level, 4), cells("Tent", worse, 4), cells("MEMO", worse))
        found = {one.claim: one for one in findings(replace(made, task="imagenet"))}
        assert found["IT³ beats Tent"].verdict == "reproduced"
        assert found["IT³ beats MEMO"].verdict == "reproduced"  # it has no batches
        assert "IT³ beats ETA" not in found  # not run, and nothing that takes long
        ttt = next(one for one in findings(replace(made, task="cifar")) if "TTT" in one.claim)
        assert (ttt.verdict, ttt.why) == ("not measured", "--preset full has it")

    def test_from_mild_to_strong_is_a_slope_too(self) -> None:
        strong = outcome(cells("IT³", {"clean": 0.0, "5 %": -1.0, "20 %": -1.0}, 4))
        for gain, verdict in ((0.0, "reproduced"), (-2.0, "the opposite")):
            # The source's errors are five less where the shift is mild, IT³'s by that and the gain.
            both = cells("source", {"fog 1": 0.0}) + cells("IT³", {"fog 1": gain}, 4)
            mild = [{**r, "errors": [e - 5 for e in r["errors"]]} for r in both]
            found = findings(replace(strong, task="imagenet", mild=mild))
            assert verdicts(found, "more slowly") == [verdict]

    def test_costs_and_memory_are_held_against_the_papers(self) -> None:
        level = {"clean": 0.0, "5 %": 0.0, "20 %": 0.0}
        for cost, verdict in ((4.3, "reproduced"), (4.5, "not reproduced")):
            steps = [{**r, "cost": cost, "cpu_seconds": cost} for r in cells("IT³", level, 4)]
            made = outcome(steps, cells("ActMAD", level, 4))
            found = findings(replace(made, task="wings"))
            told = next(one for one in found if "costs" in one.claim)
            assert (told.verdict, told.measured, told.why) == (verdict, str(cost), "ActMAD: 1.0")
        for memory, verdict in ((1.2, "reproduced"), (2.0, "not reproduced")):
            made = replace(outcome(), task="imagenet", memory={"IT³": memory, "ActMAD": 1.5})
            told = next(one for one in findings(made) if "memory" in one.claim)
            assert (told.verdict, told.measured) == (verdict, f"{memory:.2f}")
            assert told.why == "ActMAD: 1.50"

    def test_a_batchs_error_is_held_against_the_papers_correlation(self) -> None:
        for pearson, verdict in ((0.6, "reproduced"), (-0.6, "the opposite")):
            lines = scored(IDEMPOTENCE, [0.6, 0.7, 0.8], pearson)
            found = findings(replace(outcome(trust=lines), task="imagenet"))
            told = next(one for one in found if "Pearson" in one.claim)
            assert (told.verdict, told.why) == (verdict, "the paper: 0.94")
            assert told.measured.startswith(f"{pearson:.2f}")
        assert not verdicts(findings(outcome(trust=lines)), "Pearson")  # of ImageNet alone


def test_the_page_holds_every_claim_and_escapes_names(tmp_path: Path) -> None:
    better = cells("IT³", {"clean": 0.0, "5 %": -1.0, "20 %": -1.0}, 4)
    one = outcome(better, trust=scored(IDEMPOTENCE, [0.7, 0.8]))
    about = {"command": "nox -s paper", "commit": "abc"}
    page, results = write(tmp_path, [one], {"imagenet": "no such <file>"}, about)
    html, text = page.read_text(encoding="utf-8"), results.read_text(encoding="utf-8")
    for finding in findings(one):
        assert finding.claim in text
        assert finding.claim in html
    assert "not measured" in text
    assert "no such &lt;file&gt;" in html
    assert "<made up>" not in html
    assert IDEMPOTENCE in html
    glance = text.split("## The paper at a glance")[1].split("## Claim by claim")[0]
    assert "| claim | tabular |" in glance
    assert "| IT³ lowers the error under shift | yes, -10." in glance
    assert "default" not in glance  # that is no claim of the paper's
    assert not (tmp_path / PICTURE).exists()  # no default was measured


def test_the_default_is_drawn_beside_the_table(tmp_path: Path) -> None:
    level = {"clean": 0.0, "5 %": -1.0, "20 %": -1.0}
    vanilla = cells("vanilla net", {"clean": 0.0, "5 %": 0.0, "20 %": 0.0})
    page, results = write(tmp_path, [outcome(cells("auto", level, 4), vanilla)], {}, {})
    assert (tmp_path / PICTURE).read_bytes().startswith(b"\x89PNG")
    assert f"]({PICTURE})" in results.read_text(encoding="utf-8")
    assert "data:image/png" in page.read_text(encoding="utf-8")


def test_a_picture_has_a_row_a_line_and_a_mark_a_change() -> None:
    better, unsure = Contrast(-15.0, -19.0, -10.0, None, 5), Contrast(2.0, None, None, None, 1)
    figure = forest([("cifar, 4", {"source": better, "vanilla": unsure}),
                     ("cars, 1", {"source": unsure, "vanilla": None})])  # fmt: skip
    (axes,) = figure.axes
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["cifar, 4", "cars, 1"]
    marks = [len(one[0].get_xdata()) for one in axes.containers]
    assert marks == [2, 1]


def test_an_outcome_is_kept_for_later_pages(tmp_path: Path) -> None:
    one = outcome(cells("IT³", {"clean": 0.0, "5 %": -1.0, "20 %": -1.0}, 4))
    assert Outcome.read(tmp_path) is None
    one.write(tmp_path)
    again = Outcome.read(tmp_path)
    assert again is not None
    assert findings(again) == findings(one)
    (tmp_path / "outcome.json").write_text('{"task": "tab')  # a kill in the middle
    assert Outcome.read(tmp_path) is None


def test_what_the_user_can_mend_ends_with_2_and_a_sentence() -> None:
    for arguments, told in (
        (["nonsense"], "there is no task 'nonsense': take tabular"),
        (["--preset", "huge"], "a preset is quick, small or full"),
        (["--jobs", "0"], "--jobs is 1 at least, not 0"),
    ):
        before, sys.argv = sys.argv, ["paper", *arguments]
        heard = io.StringIO()
        try:
            with contextlib.redirect_stderr(heard):
                assert main() == 2
        finally:
            sys.argv = before
        assert told in heard.getvalue()
        assert "Traceback" not in heard.getvalue()


def test_every_task_says_what_it_is_and_when_to_begin_it() -> None:
    assert all((task.__doc__ or "").strip() for task in TASKS.values())
    assert sorted(LONGEST) == sorted(TASKS)


def test_tasks_run_side_by_side_and_say_whose_lines_are_whose(tmp_path: Path) -> None:
    run = command(tmp_path, "imagenet", "tabular", "--jobs", "2", data=uci(tmp_path / "data"))
    assert run.returncode == 0, run.stderr
    assert {"tabular ...", "imagenet ..."} <= set(run.stderr.splitlines())
    assert Outcome.read(tmp_path / "out" / "quick" / "tabular") is not None
    page = (tmp_path / "out" / "quick" / "results.md").read_text()
    # What is missing is named, the data or the package, and harms no other.
    assert "tiny-imagenet-50/train.tar.gz" in page or "it needs it3-vision, which is not" in page


def test_a_task_that_fails_leaves_the_others_outcomes(tmp_path: Path) -> None:
    data = uci(tmp_path / "data")
    (data / "uci" / "bostonHousing" / "data.txt").write_text("1 2 three 4\n")
    run = command(tmp_path, "imagenet", "tabular", "--jobs", "2", data=data)
    assert run.returncode == 2
    assert "Traceback" not in run.stderr
    assert "imagenet: done in" in run.stderr


def test_lines_are_named_in_one_piece() -> None:
    heard = io.StringIO()
    stream = NamedLines(heard, "cars")
    print("half a", end=" ", file=stream)
    assert not heard.getvalue()
    print("line\nand another", file=stream)
    assert heard.getvalue() == "cars: half a line\ncars: and another\n"
    assert not stream.isatty()


def command(folder: Path, *arguments: str, data: Path) -> subprocess.CompletedProcess[str]:
    tools = Path(__file__).parents[1]
    return subprocess.run(
        [sys.executable, "-m", "paper", *arguments, "--out", str(folder / "out")],
        env={**os.environ, "PYTHONPATH": str(tools), "IT3_DATA": str(data)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_a_killed_run_goes_on_where_it_was(tmp_path: Path) -> None:
    """Files that end in the middle of a line, as a kill leaves them, are made whole."""
    place = Place("quick", uci(tmp_path / "data"), tmp_path / "out", progress=False)
    whole = tabular(place)
    records, trust = (place.folder / f"bostonHousing{end}.jsonl" for end in ("", "-trust"))
    before = records.stat().st_mtime_ns, trust.stat().st_mtime_ns
    again = tabular(place)
    assert (records.stat().st_mtime_ns, trust.stat().st_mtime_ns) == before  # nothing to do
    assert again.records == whole.records
    assert again.trust == whole.trust
    for file in (records, trust):
        text = file.read_bytes()
        file.write_bytes(text[: len(text) - len(text.splitlines()[-1]) // 2])
    resumed = tabular(place)
    assert [told(record) for record in resumed.records] == [told(r) for r in whole.records]
    assert key(resumed) == key(whole)


def test_what_a_killed_run_started_ends_with_it(tmp_path: Path) -> None:
    tools = Path(__file__).parents[1]
    command = [sys.executable, "-m", "paper", "tabular", "--quiet", "--out", str(tmp_path)]
    with subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": str(tools)}, stderr=subprocess.DEVNULL
    ) as run:
        try:
            made = within(300, lambda: [*tmp_path.glob("quick/tabular/*.jsonl")])
            workers = children(run.pid, "spawn_main")
        finally:
            run.kill()
    assert made  # it is at work, with more splits to come
    assert workers
    assert within(60, lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))


def children(pid: int, called: str) -> list[int]:
    """Processes that any thread of this one started, of those whose command says this."""
    threads = Path(f"/proc/{pid}/task").glob("*/children")
    listed = [one for thread in threads for one in thread.read_text().split()]
    said = {int(one): Path(f"/proc/{one}/cmdline").read_bytes().decode() for one in listed}
    return [one for one, line in said.items() if called in line]


def within(seconds: float, found: Callable[[], T]) -> T:
    """What is found, as soon as it is something, or when the time is over."""
    end = time.monotonic() + seconds
    while not (got := found()) and time.monotonic() < end:
        time.sleep(0.2)
    return got


def told(record: Record) -> tuple[Any, ...]:
    """Without the seconds, which are never the same."""
    return tuple(record[name] for name in ("seed", "level", "method", "batch_size", "errors"))


def key(outcome: Outcome) -> list[tuple[Any, ...]]:
    return sorted(
        (line["seed"], line["level"], line["score"], line["spearman"] or 0.0, line["auroc"] or 0.0)
        for line in outcome.trust
    )


def uci(folder: Path) -> Path:
    """A data set of 60 rows in the layout of IT3_DATA, with one split."""
    place = folder / "uci" / "bostonHousing"
    place.mkdir(parents=True)
    rows = np.random.default_rng(0).normal(size=(60, 4))
    rows[:, 3] = rows[:, 0] - 2 * rows[:, 1]
    np.savetxt(place / "data.txt", rows)
    (place / "index_features.txt").write_text("0\n1\n2\n")
    (place / "index_target.txt").write_text("3\n")
    np.savetxt(place / "index_train_0.txt", np.arange(8, 60), fmt="%d")
    np.savetxt(place / "index_test_0.txt", np.arange(8), fmt="%d")
    return folder
