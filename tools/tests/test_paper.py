"""The paper's harness: its arithmetic, its page, its command, and going on after a kill."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from it3_core import Conditioned, Regression, widen
from it3_core.evaluation.records import Record
from it3_core.experiment.statistics import IDEMPOTENCE, OUT_OF_DISTRIBUTION
from paper.__main__ import LONGEST, main
from paper.claims import Finding, defaults, findings
from paper.contrasts import Contrast, advantage, assessed, contrast, slope, trust_table
from paper.outcomes import Outcome, Place, Roles
from paper.page import PICTURE, write
from paper.tasks import TASKS, tabular

IT3 = "IT³ (paper)"
PAPER = (sys.executable, "-m", "paper")
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
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


def shown(found: list[Finding], word: str) -> list[tuple[str, str, str]]:
    return [(one.measured, one.verdict, one.why) for one in found if word in one.claim]


def verdicts(found: list[Finding], word: str) -> list[str]:
    return [verdict for _, verdict, _ in shown(found, word)]


def scored(score: str, aurocs: list[float], pearson: float | None = None) -> list[dict[str, Any]]:
    lines = []
    for seed, value in enumerate(aurocs):
        cell = {"seed": seed, "score": score, "n": 9, "pearson": pearson}
        lines.append({**cell, "level": "clean", "spearman": 0.25, "auroc": None})
        lines.append({**cell, "level": OUT_OF_DISTRIBUTION, "spearman": 0.5, "auroc": value})
    return lines


def noisy(seed: int, mean: float) -> list[float]:
    return [float(value) for value in np.random.default_rng(seed).normal(mean, 1.0, 50)]


def pair(mine: dict[int, list[float]], other: dict[int, list[float]]) -> list[Record]:
    return [{"seed": seed, "method": name, "batch_size": None, "errors": errors}
            for name, seeds in (("a", mine), ("b", other))
            for seed, errors in seeds.items()]  # fmt: skip


A, B = ("a", None), ("b", None)


class TestContrast:
    def test_pairs_see_what_means_do_not(self) -> None:
        """Instances differ by far more than methods do; each with itself, the gain is certain."""
        hard = {seed: noisy(seed, 10.0) for seed in range(4)}
        better = {seed: [error - 0.1 for error in errors] for seed, errors in hard.items()}
        found = contrast(pair(better, hard), A, B)
        assert found is not None
        assert (found.sign, found.seeds) == (-1, 4)
        assert abs(found.value + 0.1) < 1e-9
        assert abs(found.percent.value + 1.0) < 0.1
        chance = contrast(pair({0: noisy(0, 1.0)}, {0: noisy(9, 1.0)}), A, B)
        assert chance is not None
        assert chance.sign == 0

    def test_only_seeds_that_both_have_count(self) -> None:
        both = pair({0: [1.0, 1.0], 1: [9.0, 9.0]}, {0: [2.0, 2.0]})
        found = contrast(both, A, B)
        assert found is not None
        assert (found.value, found.seeds) == (-1.0, 1)
        assert contrast(both, A, ("c", None)) is None
        assert contrast(both, ("a", 4), B) is None
        assert contrast([both[0] | {"errors": None}, both[2]], A, B) is None  # it failed

    def test_slopes_need_no_common_instances(self) -> None:
        near = pair({0: [1.0], 1: [1.0]}, {0: [1.0], 1: [1.2]})
        far = pair({0: [2.0, 2.0], 1: [2.1, 2.1]}, {0: [5.0, 5.0], 1: [5.1, 5.3]})
        found = slope(near, far, A, B)
        assert found is not None
        assert found.value < -2.5
        assert found.sign == -1

    def test_no_change_is_shown_in_per_cent_too(self) -> None:
        assert str(Contrast(0.0, -1.0, 2.0, 50.0, 3)) == "+0.0 % (-2.0 to +4.0)"
        assert str(Contrast(-5.0, None, None, 50.0, 1)) == "-10.0 %"
        assert str(Contrast(-5.0, -6.0, -4.0, None, 3)) == "-5.0 (-6.0 to -4.0)"


def under(shift: float, clean: float = 0.0) -> dict[str, float]:
    return {"clean": clean, "5 %": shift, "20 %": shift}


IDLE, VANILLA = ("auto", under(0.0)), ("vanilla net", under(0.0))


@pytest.mark.parametrize(
    ("methods", "claim", "expected"),
    [
        ([(IT3, under(-1.0), 4)], "lowers the error", ["reproduced"]),
        ([(IT3, under(1.0), 4)], "lowers the error", ["the opposite"]),
        ([(IT3, under(0.0), 4)], "lowers the error", ["not reproduced"]),
        (
            [(IT3, under(-0.1), 1), (IT3, under(-0.5), 16)],
            "larger batches",
            ["reproduced"],
        ),
        ([(IT3, under(-0.1), 1)], "larger batches", []),
        ([(IT3, {**under(0.0), "20 %": -0.5}, 4)], "more slowly", ["reproduced"]),
        ([IDLE, VANILLA], "not worse than source", ["kept", "kept"]),
        ([IDLE, VANILLA], "beats vanilla", ["not shown"]),
        ([("auto", under(-1.0, 0.2)), VANILLA], "not worse than source", ["kept", "broken"]),
        ([("auto", under(-1.0, 0.2)), VANILLA], "beats vanilla", ["kept"]),
    ],
)
def test_a_claim_gets_its_verdict(methods: list[Any], claim: str, expected: list[str]) -> None:
    found = findings(outcome(*(cells(*method) for method in methods)))
    assert verdicts(found, claim) == expected


class TestGolden:
    def test_the_default_is_compared_at_every_batch_size(self) -> None:
        auto = [*cells("auto", under(-1.0), 16), *cells("auto", under(-1.5), 64)]
        statistics = [cells("statistics", under(-1.0), size) for size in (16, 64)]
        records = outcome(auto, *statistics, cells(*VANILLA)).records
        roles = Roles(vanilla="vanilla net", auto="auto", statistics="statistics")
        found = defaults(Outcome("cifar", records, roles, True, "MAE"))
        signs = {size: [one and one.sign for one in by.values()] for size, by in found.items()}
        assert signs == {16: [0, -1, -1, 0], 64: [0, -1, -1, -1]}  # in distribution first

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
            found = assessed(given, [x], levels, "known", layer="model.1")
            names = {line["score"] for line in found if line["score"].startswith("ensemble")}
            assert names == {f"ensemble of {members}"}
        found = assessed(runs[:1], [x], levels, "known", layer="model.1", ensemble=runs)
        assert any(line["score"] == "ensemble of 6" for line in found)

    def test_every_baseline_of_the_paper_has_a_line(self) -> None:
        worse = under(0.0)
        made = outcome(cells(IT3, under(-1.0), 4), cells("Tent", worse, 4), cells("MEMO", worse))
        found = findings(replace(made, task="imagenet"))
        for name in ("Tent", "MEMO"):  # which has no batches
            assert verdicts(found, name) == ["reproduced"]
        assert verdicts(found, "ETA") == []  # not run, and nothing that takes long
        found_in_full = ("", "not measured", "--preset full has it")
        assert shown(findings(replace(made, task="cifar")), "TTT") == [found_in_full]

    def test_from_mild_to_strong_is_a_slope_too(self) -> None:
        strong = outcome(cells(IT3, under(-1.0), 4))
        for gain, verdict in ((0.0, "reproduced"), (-2.0, "the opposite")):
            # The source's errors are five less where the shift is mild, IT³'s by that and the gain.
            both = cells("source", {"fog 1": 0.0}) + cells(IT3, {"fog 1": gain}, 4)
            mild = [{**r, "errors": [e - 5 for e in r["errors"]]} for r in both]
            found = findings(replace(strong, task="imagenet", mild=mild))
            assert verdicts(found, "more slowly") == [verdict]

    def test_costs_and_memory_are_held_against_the_papers(self) -> None:
        for cost, verdict in ((4.3, "reproduced"), (4.5, "not reproduced")):
            steps = [{**record, "cost": cost} for record in cells(IT3, under(0.0), 4)]
            made = outcome(steps, cells("ActMAD", under(0.0), 4))
            expected = (str(cost), verdict, "ActMAD: 1.0")
            assert shown(findings(replace(made, task="wings")), "costs") == [expected]
        for memory, verdict in ((1.2, "reproduced"), (2.0, "not reproduced")):
            made = replace(outcome(), task="imagenet", memory={IT3: memory, "ActMAD": 1.5})
            expected = (f"{memory:.2f}", verdict, "ActMAD: 1.50")
            assert shown(findings(made), "memory") == [expected]


@pytest.mark.parametrize(
    ("task", "aurocs", "pearson", "claim", "verdict"),
    [
        ("tabular", [0.8, 0.85, 0.9], None, "larger under shift", ["reproduced"]),
        ("tabular", [0.4, 0.5, 0.6], None, "larger under shift", ["not reproduced"]),
        ("tabular", [0.2, 0.15, 0.1], None, "larger under shift", ["the opposite"]),
        ("imagenet", [0.6, 0.7, 0.8], 0.6, "Pearson", ["reproduced"]),
        ("imagenet", [0.6, 0.7, 0.8], -0.6, "Pearson", ["the opposite"]),
        ("tabular", [0.6, 0.7, 0.8], 0.6, "Pearson", []),  # a claim about ImageNet alone
    ],
)
def test_what_the_idempotence_error_shows(
    task: str, aurocs: list[float], pearson: float | None, claim: str, verdict: list[str]
) -> None:
    lines = scored(IDEMPOTENCE, aurocs, pearson)
    assert verdicts(findings(replace(outcome(trust=lines), task=task)), claim) == verdict


def test_the_page_holds_every_claim_and_escapes_names(tmp_path: Path) -> None:
    one = outcome(cells(IT3, under(-1.0), 4), trust=scored(IDEMPOTENCE, [0.7, 0.8]))
    page, results = write(tmp_path, [one], {"imagenet": "no such <file>"}, {"commit": "abc"})
    html, text = page.read_text(encoding="utf-8"), results.read_text(encoding="utf-8")
    assert all(finding.claim in text and finding.claim in html for finding in findings(one))
    assert "not measured" in text
    assert "no such &lt;file&gt;" in html
    assert "<made up>" not in html
    assert IDEMPOTENCE in html
    glance = text.split("## The paper at a glance")[1].split("## Claim by claim")[0]
    assert "| claim | tabular |" in glance
    assert "| IT³ lowers the error under shift | yes, -10." in glance
    assert "default" not in glance  # that is no claim of the paper's
    assert not (tmp_path / PICTURE).exists()  # no default was measured
    one = outcome(cells("auto", under(-1.0), 4), cells(*VANILLA))
    page, results = write(tmp_path, [one], {}, {})
    assert (tmp_path / PICTURE).stat().st_size > 1000
    assert f"]({PICTURE})" in results.read_text(encoding="utf-8")
    assert "data:image/png" in page.read_text(encoding="utf-8")


def test_an_outcome_is_kept_for_later_pages(tmp_path: Path) -> None:
    one = outcome(cells(IT3, under(-1.0), 4))
    assert Outcome.read(tmp_path) is None
    one.write(tmp_path)
    assert Outcome.read(tmp_path) == one
    (tmp_path / "outcome.json").write_text('{"task": "tab')  # a kill in the middle
    assert Outcome.read(tmp_path) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "there is no task 'nonsense': take tabular"),
        (["--preset", "huge"], "huge"),
        (["--jobs", "0"], "--jobs"),
    ],
)
def test_what_the_user_can_mend_ends_with_2_and_a_sentence(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_every_task_has_its_turn() -> None:
    assert sorted(LONGEST) == sorted(TASKS)


def test_tasks_run_side_by_side_each_with_its_log(tmp_path: Path) -> None:
    run = command(tmp_path, "imagenet", "tabular", "--jobs", "2", data=uci(tmp_path / "data"))
    assert run.returncode == 0, run.stderr
    folder = tmp_path / "out" / "quick"
    for name in ("tabular", "imagenet"):
        assert f"{name} ... (progress in {folder / name / 'log.txt'})" in run.stderr
        assert (folder / name / "log.txt").exists()
    assert Outcome.read(folder / "tabular") is not None
    page = (folder / "results.md").read_text()
    # What is missing is named, the data or the package, and harms no other.
    assert "tiny-imagenet-50/train.tar.gz" in page or "it needs it3-vision, which is not" in page


def test_a_task_that_fails_leaves_the_others_outcomes(tmp_path: Path) -> None:
    data = uci(tmp_path / "data")
    (data / "uci" / "bostonHousing" / "data.txt").write_text("1 2 three 4\n")
    run = command(tmp_path, "imagenet", "tabular", "--jobs", "2", data=data)
    assert run.returncode == 2
    assert "Traceback" not in run.stderr
    assert "imagenet: done in" in run.stderr


def command(folder: Path, *arguments: str, data: Path) -> subprocess.CompletedProcess[str]:
    line = [*PAPER, *arguments, "--out", str(folder / "out")]
    environment = ENVIRONMENT | {"IT3_DATA": str(data)}
    return subprocess.run(line, env=environment, capture_output=True, text=True, check=False)


def test_a_killed_run_goes_on_where_it_was(tmp_path: Path) -> None:
    """Files that end in the middle of a line, as a kill leaves them, are made whole."""
    place = Place("quick", uci(tmp_path / "data"), tmp_path / "out", progress=False)
    whole = tabular(place)
    records, trust = (place.folder / f"bostonHousing{end}.jsonl" for end in ("", "-trust"))
    before = records.stat().st_mtime_ns, trust.stat().st_mtime_ns
    assert tabular(place) == whole
    assert (records.stat().st_mtime_ns, trust.stat().st_mtime_ns) == before  # nothing to do
    for file in (records, trust):
        text = file.read_bytes()
        file.write_bytes(text[: len(text) - len(text.splitlines()[-1]) // 2])
    resumed = tabular(place)
    assert measured(resumed) == measured(whole)


def test_what_a_killed_run_started_ends_with_it(tmp_path: Path) -> None:
    line = [*PAPER, "tabular", "--quiet", "--out", str(tmp_path)]
    with subprocess.Popen(line, env=ENVIRONMENT, stderr=subprocess.DEVNULL) as run:
        try:
            made = within(300, lambda: [*tmp_path.glob("quick/tabular/*.jsonl")])
            threads = Path(f"/proc/{run.pid}/task").glob("*/children")
            workers = [pid for thread in threads for pid in thread.read_text().split()]
        finally:
            run.kill()
    assert made  # it is at work, with more splits to come
    assert workers
    assert within(60, lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))


def within(seconds: float, found: Callable[[], Any]) -> Any:
    """What is found, as soon as it is something, or when the time is over."""
    end = time.monotonic() + seconds
    while not (got := found()) and time.monotonic() < end:
        time.sleep(0.2)
    return got


def measured(outcome: Outcome) -> list[Record]:
    """Without the seconds, which are never the same."""
    times = {"cost": 0.0, "cpu_seconds": 0.0}
    return [{**record, **times} for record in outcome.records] + outcome.trust


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
