"""Evaluation: fair comparisons, files that survive a crash, intervals that keep their promise."""

from __future__ import annotations

import io
import itertools
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import it3_core
from it3_core import (
    IT3,
    Adaptation,
    AnswerStep,
    IT3Error,
    IT3Warning,
    OnlineIT3,
    Regression,
    Source,
    condition,
)
from it3_core.bootstrap import _student, bootstrap_interval, bootstrap_intervals
from it3_core.evaluation import Record, evaluate, read_records, write_records
from it3_core.metrics import auroc, correlation
from it3_core.summary import markdown, summarise

SOURCE = str(Path(it3_core.__file__).parents[1])
ADAPTER = Regression()
TIMES = ("cpu_seconds", "cost")


class Offset:
    """Answers its input's first column plus a number, and remembers what it was asked."""

    def __init__(self, offset: float = 0.0) -> None:
        self.offset = offset
        self.seen: list[Tensor] = []
        self.resets = 0

    def __call__(self, x: Tensor) -> Adaptation:
        self.seen.append(x.clone())
        y = x[:, 0] + self.offset
        return Adaptation(y, x[:, 0], 0, before=torch.full((len(x),), 2.0), after=y * 0 + 1.0)

    def reset(self) -> None:
        self.resets += 1


class Counting:
    """Answers how many batches it has had since its last reset."""

    def __init__(self) -> None:
        self.batches = 0

    def __call__(self, x: Tensor) -> Tensor:
        self.batches += 1
        return torch.full((len(x),), float(self.batches))

    def reset(self) -> None:
        self.batches = 0


class Raising:
    """Answers like its input, but refuses values above a limit."""

    def __init__(self, limit: float) -> None:
        self.limit = limit

    def __call__(self, x: Tensor) -> Tensor:
        if bool((x > self.limit).any()):
            raise RuntimeError(f"can't go beyond {self.limit}\nand a second line")
        return x[:, 0]


def same(x: Tensor) -> Tensor:
    return x[:, 0]


def level(n: int, start: float = 0.0) -> tuple[Tensor, Tensor]:
    """Inputs start, start + 1, …, and labels of 0: a method without offset errs by its input."""
    return torch.arange(start, start + n).unsqueeze(1), torch.zeros(n)


def run(methods: Any, levels: Any, **options: Any) -> list[Record]:
    options = {"batch_sizes": (4,), "progress": False, "in_distribution": None} | options
    return evaluate(methods, levels, ADAPTER.error, **options)


def pick(records: Sequence[Record], **wanted: Any) -> Record:
    (found,) = [r for r in records if all(r[key] == value for key, value in wanted.items())]
    return found


def timeless(records: Sequence[Record]) -> list[Record]:
    return [{key: v for key, v in record.items() if key not in TIMES} for record in records]


def networks(seed: int = 0) -> tuple[nn.Module, Regression, dict[str, tuple[Tensor, Tensor]]]:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
    model = condition(net, ADAPTER, layer="0")
    for parameter in model.embed.parameters():  # stands in for training
        nn.init.normal_(parameter, std=0.3)
    x, y = torch.randn(11, 3), torch.randn(11)
    return model, ADAPTER, {"clean": (x, y), "noise": (x + 1, y), "more": (x + 2, y)}


class TestGolden:
    def test_a_record_holds_what_can_be_computed_by_hand(self) -> None:
        records = run(
            {"source": same, "plus": Offset(0.5), "minus": Offset(-0.5)},
            {"clean": level(3, 1.0)},
            idempotence=True,
            in_distribution="clean",
            seed=7,
        )
        plus, minus = pick(records, method="plus"), pick(records, method="minus")
        assert (plus["seed"], plus["level"], plus["batch_size"], plus["n"]) == (7, "clean", 4, 3)
        assert (plus["reference"], plus["in_distribution"]) == ("source", True)
        assert (plus["error"], plus["difference"], plus["errors"]) == (2.5, 0.5, [1.5, 2.5, 3.5])
        assert (minus["error"], minus["differences"]) == (1.5, [-0.5, -0.5, -0.5])
        assert (plus["before"], plus["after"], plus["befores"]) == (2.0, 1.0, [2.0, 2.0, 2.0])
        assert (plus["fallbacks"], plus["problem"]) == (0, None)
        assert pick(records, method="source")["before"] is None  # it is no Method

    def test_what_is_not_asked_for_is_left_out(self) -> None:
        record = pick(
            run({"source": same, "plus": Offset()}, {"a": level(3)}, instances=False),
            method="plus",
        )
        assert record["before"] is None
        assert not {"errors", "differences", "befores", "afters"} & set(record)

    def test_instances_are_kept_to_six_digits_and_means_in_full(self) -> None:
        x = torch.tensor([[1 / 3], [1e6 / 3], [1e-9 / 3]], dtype=torch.double)
        record = run({"source": same}, {"a": (x, torch.zeros(3, dtype=torch.double))})[0]
        assert record["errors"] == [0.333333, 333333.0, 3.33333e-10]
        assert record["error"] == pytest.approx(float(x.mean()), rel=1e-15)

    def test_fallbacks_are_counted(self) -> None:
        def falls(x: Tensor) -> Adaptation:
            reason = "too far" if bool((x > 3).any()) else None
            return Adaptation(x[:, 0], x[:, 0], 0, reason, before=x[:, 0])

        records = run({"source": same, "falls": falls}, {"a": level(10)}, batch_sizes=(2,))
        assert pick(records, method="falls")["fallbacks"] == 3

    def test_costs_are_ratios_to_the_reference_in_the_same_run(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clock = {"now": 0.0}
        monkeypatch.setattr(time, "process_time", lambda: clock["now"])

        def slow(seconds: float) -> Callable[[Tensor], Tensor]:
            calls = itertools.count()

            def answer(x: Tensor) -> Tensor:
                clock["now"] += 100 if next(calls) == 0 else seconds  # the first call is dear
                return x[:, 0]

            return answer

        records = run({"source": slow(0.1), "slow": slow(0.5)}, {"a": level(8)}, batch_sizes=(2,))
        assert pick(records, method="source")["cost"] == 1.0
        assert pick(records, method="slow")["cost"] == pytest.approx(5.0)
        assert pick(records, method="slow")["cpu_seconds"] == pytest.approx(2.0)

    def test_rows_hold_what_can_be_computed_by_hand(self) -> None:
        def cell(seed: int, level: str, method: str, error: float, difference: float) -> Record:
            return {
                "seed": seed,
                "level": level,
                "method": method,
                "batch_size": 4,
                "reference": "source",
                "in_distribution": level == "clean",
                "n": 10,
                "error": error,
                "difference": difference,
                "before": 3.0 + seed,
                "after": 1.0,
                "fallbacks": 1,
                "cost": [5.0, 6.0, 50.0][seed],
                "problem": None,
            }

        records = [
            cell(seed, name, "IT3", error + seed, difference + seed / 100)
            for name, error, difference in (("clean", 10.0, 0.3), ("noise", 18.0, -2.0))
            for seed in range(3)
        ]
        clean, noise = summarise(records)
        assert (noise["seeds"], noise["n"], noise["fallbacks"], noise["cost"]) == (3, 30, 3, 6.0)
        assert noise["error"] == pytest.approx(19)
        assert noise["difference"] == pytest.approx(-1.99)
        assert noise["relative"] == pytest.approx(-1.99 / 20.99)
        assert (noise["before"], noise["after"]) == (4.0, 1.0)
        # Student's interval of −2, −1.99, −1.98, which the bootstrap imitates
        half = 4.303 * 0.01 / math.sqrt(3)
        assert noise["low"] == pytest.approx(-1.99 - half, abs=0.2 * half)
        assert noise["high"] == pytest.approx(-1.99 + half, abs=0.2 * half)
        assert (noise["verdict"], clean["verdict"]) == ("better", "worse")
        assert noise["harm"] == clean["difference"]
        assert (noise["harm_low"], noise["harm_high"]) == (clean["low"], clean["high"])
        assert noise["harm_verdict"] == "worse"

    @pytest.mark.parametrize(
        ("shift", "verdict"),
        [(-2.0, "better"), (-0.1, "no difference"), (0.1, "no difference"), (2.0, "worse")],
    )
    def test_only_an_interval_without_zero_gives_a_verdict(
        self, shift: float, verdict: str
    ) -> None:
        errors = torch.tensor([-1.0, 1.0] * 20)
        records = run(
            {"source": same, "other": lambda x: x[:, 0] + errors[: len(x)] + shift},
            {"a": level(40, 100.0)},
            batch_sizes=(40,),
        )
        row = summarise(records)[1]
        assert row["verdict"] == verdict
        assert (row["low"] < 0 < row["high"]) == (verdict == "no difference")

    def test_a_table_reads_like_this(self) -> None:
        rows = [
            {
                "level": "clean|x",
                "method": method,
                "batch_size": size,
                "reference": "source",
                "in_distribution": True,
                "seeds": seeds,
                "n": 10,
                "error": 12.3456,
                "difference": -0.0123,
                "low": -0.0212,
                "high": -0.0034,
                "confidence": 0.9,
                "relative": -0.00123,
                "verdict": "better",
                "cost": cost,
                "harm": 12.0,
                "harm_low": -20.0,
                "harm_high": 44.0,
                "harm_verdict": "no difference",
                "problem": problem,
            }
            for method, size, seeds, cost, problem in (
                ("source", None, 5, 1.0, None),
                ("IT3", 16, 4, 5.83, "1 of 5 seeds: it broke"),
            )
        ]
        assert markdown(rows).splitlines() == [
            "| level | method | batch | error | against source | % | verdict | cost "
            "| harm on clean\\|x |",
            "| --- | --- | ---: | ---: | ---: | ---: | --- | ---: | ---: |",
            "| clean\\|x | source |  | 12.35 |  |  |  | 1.0 |  |",
            "| clean\\|x | IT3 | 16 | 12.35 | -0.0123 (-0.0212 to -0.0034) | -0.1 "
            "| better (1 of 5 seeds: it broke) | 5.8 | +12 (-20 to +44) |",
            "",
            "4 to 5 seeds. In brackets 90 % intervals over seeds and instances; negative is "
            "better. Cost in passes of source.",
        ]

    @pytest.mark.parametrize(
        ("freedom", "confidence", "expected"),
        [
            (1, 0.95, 12.706),
            (2, 0.95, 4.3027),
            (4, 0.99, 4.6041),
            (9, 0.9, 1.8331),
            (30, 0.95, 2.0423),
        ],
    )
    def test_students_t_is_the_tables(
        self, freedom: int, confidence: float, expected: float
    ) -> None:
        assert _student(freedom, confidence) == pytest.approx(expected, rel=1e-4)

    def test_correlations_are_the_textbooks(self) -> None:
        a, b = [1.0, 2.0, 3.0, 4.0], [2.0, 1.0, 4.0, 4.0]
        # centred: (−1.5, −.5, .5, 1.5) · (−.75, −1.75, 1.25, 1.25) = 4.5; norms √5 and √6.75
        assert correlation(a, b) == pytest.approx(4.5 / math.sqrt(5 * 6.75))
        # ranks of b: 2, 1, 3.5, 3.5; centred dot product 3.5, norms √5 and √4.5
        assert correlation(a, b, "spearman") == pytest.approx(3.5 / math.sqrt(5 * 4.5))
        assert correlation(a, [-value for value in a]) == -1.0
        assert correlation([1e300, 2e300], [1e-300, 3e-300]) == pytest.approx(1.0)
        assert math.isnan(correlation(a, [0.1] * 4))
        assert math.isnan(correlation([1.0], [2.0]))

    def test_auroc_counts_pairs(self) -> None:
        torch.manual_seed(0)
        for _ in range(20):
            out, usual = torch.randint(6, (13,)).tolist(), torch.randint(5, (7,)).tolist()
            pairs = list(itertools.product(out, usual))
            won = sum(1.0 if o > i else 0.5 if o == i else 0.0 for o, i in pairs)
            assert auroc(out, usual) == won / len(pairs)
        assert auroc([2.0, 3.0], [0.0, 1.0]) == 1.0

    def test_spearman_is_pearson_on_ranks_that_ties_share(self) -> None:
        torch.manual_seed(0)
        a, b = torch.randint(5, (30,)).tolist(), torch.randint(9, (30,)).tolist()

        def ranks(values: list[int]) -> list[float]:
            return [
                sum(other < value for other in values)
                + statistics.fmean(range(1, values.count(value) + 1))
                for value in values
            ]

        expected = statistics.correlation(ranks(a), ranks(b))
        assert correlation(a, b, "spearman") == pytest.approx(expected)


class TestInvariants:
    def test_the_reference_differs_from_itself_by_exactly_nothing(self) -> None:
        model, adapter, levels = networks()
        records = run({"source": Source(model, adapter)}, levels, batch_sizes=(1, 4))
        assert {record["difference"] for record in records} == {0.0}
        assert {record["cost"] for record in records} == {1.0}
        assert {row["verdict"] for row in summarise(records)} == {"no difference"}

    def test_no_step_makes_no_difference_at_any_batch_size(self) -> None:
        model, adapter, levels = networks()
        methods = {"source": Source(model, adapter), "still": IT3(model, adapter, lr=0.0)}
        records = run(methods, levels, batch_sizes=(1, 4, 16), once=["source"])
        differences = [d for r in records if r["method"] == "still" for d in r["differences"]]
        assert set(differences) == {0.0}

    def test_the_order_of_instances_changes_no_mean(self) -> None:
        model, adapter, levels = networks()
        x, y = levels["noise"]
        shuffled = torch.randperm(len(x))
        methods = {"source": Source(model, adapter), "second pass": AnswerStep(model, adapter)}
        given = run(methods, {"a": (x, y)}, idempotence=True)
        other = run(methods, {"a": (x[shuffled], y[shuffled])}, idempotence=True)
        for first, second in zip(given, other, strict=True):
            for key in ("error", "difference", "before", "after"):
                assert second[key] == pytest.approx(first[key], rel=1e-5)

    def test_all_methods_answer_the_same_batches_and_every_instance_once(self) -> None:
        methods = {"source": Offset(), "other": Offset(1.0)}
        run(methods, {"a": level(10)}, batch_sizes=(4,))
        for method in methods.values():
            warm_up, *batches = method.seen
            assert [len(batch) for batch in batches] == [4, 4, 2]
            assert torch.equal(torch.cat(batches), level(10)[0])
            assert len(warm_up) == 4

    def test_inputs_may_be_of_any_make(self) -> None:
        x, y = level(5)
        given = {"a": ({"first": x, "more": (x, x)}, y)}
        records = run({"source": lambda batch: batch["more"][1][:, 0]}, given, batch_sizes=(2,))
        assert records[0]["errors"] == [0.0, 1.0, 2.0, 3.0, 4.0]

    def test_a_method_that_needs_no_batches_runs_once_at_the_largest(self) -> None:
        methods = {"source": Offset(), "once": Offset(), "batched": Offset()}
        records = run(methods, {"a": level(9)}, batch_sizes=(1, 4), once=["source", "once"])
        assert [(r["method"], r["batch_size"]) for r in records] == [
            ("source", None),
            ("once", None),
            ("batched", 4),
            ("batched", 1),
        ]
        assert {len(batch) for batch in methods["once"].seen} == {4, 1}
        assert len(methods["once"].seen) == 4  # a warm-up, 4, 4 and 1

    def test_a_stream_goes_on_where_others_start_anew(self) -> None:
        records = run(
            {"source": same, "stream": Counting(), "anew": Counting()},
            {"a": level(8), "b": level(8)},
            streams=["stream"],
        )
        assert pick(records, method="anew", level="b")["errors"] == [1.0] * 4 + [2.0] * 4
        assert pick(records, method="stream", level="a")["errors"] == [1.0] * 4 + [2.0] * 4
        assert pick(records, method="stream", level="b")["errors"] == [3.0] * 4 + [4.0] * 4

    def test_chance_depends_on_nothing_that_runs_beside_it(self) -> None:
        def noisy(x: Tensor) -> Tensor:
            return x[:, 0] + torch.randn(len(x))

        def greedy(x: Tensor) -> Tensor:
            torch.randn(1000)
            return x[:, 0]

        levels = {"a": level(10), "b": level(10)}
        torch.manual_seed(5)
        before = torch.get_rng_state()
        alone = run({"source": same, "noisy": noisy}, levels)
        assert torch.equal(torch.get_rng_state(), before)
        beside = run({"source": same, "greedy": greedy, "noisy": noisy}, levels)
        for name in levels:
            expected = pick(alone, method="noisy", level=name)["errors"]
            assert pick(beside, method="noisy", level=name)["errors"] == expected
        other_seed = run({"source": same, "noisy": noisy}, levels, seed=1)
        assert timeless(other_seed) != timeless(alone)

    def test_levels_are_loaded_when_their_turn_comes_and_not_for_nothing(
        self, tmp_path: Path
    ) -> None:
        loaded: list[str] = []

        def load(name: str) -> Callable[[], tuple[Tensor, Tensor]]:
            def loads() -> tuple[Tensor, Tensor]:
                loaded.append(name)
                return level(5)

            return loads

        path = tmp_path / "r.jsonl"
        run({"source": same}, {"a": load("a")}, path=path)
        run({"source": same}, {"a": load("a"), "b": load("b")}, path=path)
        assert loaded == ["a", "b"]

    def test_the_order_of_records_changes_no_row(self) -> None:
        model, adapter, levels = networks()
        records = []
        for seed in range(3):
            model, adapter, levels = networks(seed)
            methods = {"source": Source(model, adapter), "IT3": IT3(model, adapter, lr=0.01)}
            records += run(methods, levels, seed=seed)
        rows = summarise(records)
        by_name = {(row["level"], row["method"]): row for row in rows}
        assert {(r["level"], r["method"]): r for r in summarise(records[::-1])} == by_name
        assert summarise([*records, *records]) == rows  # a cell that comes twice counts once
        assert [row["level"] for row in rows] == [name for name in levels for _ in range(2)]

    def test_draws_are_the_seeds_and_no_group_changes_another(self) -> None:
        torch.manual_seed(0)
        groups = [[torch.randn(30), torch.randn(20)], [torch.randn(30)], [torch.randn(7)]]
        ends = bootstrap_intervals(groups)
        assert bootstrap_intervals(groups[::-1])[::-1] == ends
        assert bootstrap_interval(groups[1]) == ends[1]
        assert bootstrap_interval(groups[1], seed=1) != ends[1]

    @pytest.mark.parametrize(
        ("seeds", "between", "shared", "most"),
        [
            (1, 0.0, 0.0, 0.98),  # instances only
            (5, 1.0, 0.0, 0.98),  # seeds differ much
            (5, 0.1, 0.0, 1.0),
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

    def test_a_higher_confidence_and_fewer_values_make_wider_intervals(self) -> None:
        torch.manual_seed(0)
        values = torch.randn(400)

        def width(count: int, confidence: float = 0.95) -> float:
            low, high = bootstrap_interval([values[:count]], confidence=confidence) or (0.0, 0.0)
            return high - low

        assert width(400, 0.5) < width(400, 0.95) < width(400, 0.99)
        assert width(400) == pytest.approx(2 * 1.96 / 20, rel=0.15)
        assert width(400) < width(100) < width(25)


class TestRobustness:
    def test_a_method_that_raises_costs_its_own_cell_only(self, tmp_path: Path) -> None:
        path = tmp_path / "r.jsonl"
        levels = {"a": level(6), "b": level(6, 10.0), "c": level(6)}
        methods: dict[str, Any] = {"source": same, "picky": Raising(12.0), "last": Offset(1.0)}
        message = r"'picky' on level 'b', instances 0 to 4: RuntimeError: can't go beyond 12.0$"
        with pytest.warns(IT3Warning, match=message):
            records = run(methods, levels, path=path, in_distribution="a")
        failed = pick(records, method="picky", level="b")
        assert failed["problem"] == "RuntimeError: can't go beyond 12.0"
        assert (failed["error"], failed["difference"], failed["cost"]) == (None, None, None)
        assert [r["problem"] for r in records].count(None) == 8
        assert read_records(path) == records

        row = next(r for r in summarise(records) if r["method"] == "picky" and r["level"] == "b")
        assert (row["verdict"], row["seeds"], row["error"]) == ("failed", 0, None)
        assert "1 of 1 seeds: RuntimeError" in markdown(summarise(records))

        methods["picky"] = Raising(100.0)  # mended: only its cell is run again
        again = run(methods, levels, path=path, in_distribution="a")
        assert pick(again, method="picky", level="b")["error"] == 12.5
        assert len(path.read_text().splitlines()) == 10
        assert read_records(path) == sorted(again, key=again.index)
        assert len(methods["last"].seen) == 7  # a warm-up and two batches a level, all before

    def test_a_stream_that_breaks_stays_broken(self) -> None:
        levels = {"a": level(4), "b": level(4, 10.0), "c": level(4)}
        with pytest.warns(IT3Warning):
            records = run({"source": same, "s": Raising(9.0)}, levels, streams=["s"])
        assert pick(records, method="s", level="a")["error"] == 1.5
        assert "broke on level 'b'" in pick(records, method="s", level="c")["problem"]

    def test_a_reference_that_raises_ends_the_run_and_loses_nothing(self, tmp_path: Path) -> None:
        path = tmp_path / "r.jsonl"
        methods = {"source": Raising(9.0), "other": Offset()}
        with pytest.raises(IT3Error, match=r"'source' on level 'b'.*can't go beyond"):
            run(methods, {"a": level(4), "b": level(4, 10.0)}, path=path)
        assert [record["level"] for record in read_records(path)] == ["a", "a"]

    def test_answers_that_are_not_finite_are_neither_averaged_nor_hidden(
        self, tmp_path: Path
    ) -> None:
        path = tmp_path / "r.jsonl"

        def broken(x: Tensor) -> Tensor:
            return torch.where(x[:, 0] == 2, torch.nan, x[:, 0] - 1)

        records = run({"source": same, "nan": broken}, {"a": level(5)}, path=path)
        record = pick(records, method="nan")
        assert (record["error"], record["difference"]) == (None, None)
        assert record["errors"][1:4] == [0.0, None, 2.0]
        assert record["problem"] == "the errors of 1 of 5 instances are not finite"
        assert read_records(path) == records
        assert "NaN" not in path.read_text()  # which is no JSON
        assert summarise(records)[1]["verdict"] == "failed"

    def test_what_can_not_be_compared_is_told_before_anything_runs(self) -> None:
        calls = Offset()
        good: dict[str, Any] = {"methods": {"source": calls}, "levels": {"clean": level(3)}}
        bad: list[tuple[str, dict[str, Any]]] = [
            ("no method 'none' among 'source'", {"reference": "none"}),
            ("no method 'onse' among 'source'", {"once": ["onse"]}),
            ("no method 'x' among 'source'", {"streams": ["x"]}),
            ("lists of names", {"once": "source"}),
            ("no level 'noise' among 'clean'", {"in_distribution": "noise"}),
            ("'source' and 'twin' are the same object",
             {"methods": {"source": calls, "twin": calls}}),
            ("'text' can't be called", {"methods": {"source": calls, "text": "IT3"}}),
            ("no level to evaluate on", {"levels": {}}),
            ("level 'none' is empty", {"levels": {"clean": level(3), "none": level(0)}}),
            ("3 inputs but 2 labels",
             {"levels": {"clean": (torch.zeros(3, 1), torch.zeros(2))}}),
            ("whole numbers from 1 up", {"batch_sizes": (0,)}),
            ("whole numbers from 1 up", {"batch_sizes": ()}),
        ]  # fmt: skip
        for message, change in bad:
            with pytest.raises(IT3Error, match=message):
                run(**(good | change))
        assert not calls.seen

    def test_a_method_that_writes_into_its_input_is_stopped(self, tmp_path: Path) -> None:
        path = tmp_path / "r.jsonl"
        methods = {"source": same, "rude": lambda x: x.mul_(2)[:, 0]}
        with pytest.raises(IT3Error, match=r"'rude'.*writes into its input"):
            run(methods, {"a": level(4)}, path=path)
        assert read_records(path) == []

    def test_an_error_of_the_wrong_shape_is_not_broadcast(self) -> None:
        methods = {"source": same}
        with pytest.raises(IT3Error, match=r"each of 4 instances, but gives shape \(4, 4\)"):
            evaluate(
                methods,
                {"a": level(4)},
                lambda output, label: output[:, None] - label,
                in_distribution=None,
                progress=False,
            )

    @pytest.mark.parametrize("kept", [0, 1, 8, -2, -1])
    def test_a_line_cut_off_anywhere_is_done_again(self, tmp_path: Path, kept: int) -> None:
        path = tmp_path / "sub" / "r.jsonl"
        methods = {"source": same, "plus": Offset(1.0)}
        levels = {"a": level(5), "b": level(5)}
        whole = run(methods, levels, path=path)
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(lines[:3]) + lines[3][:kept])
        known = read_records(path)
        assert len(known) == (4 if kept == -1 else 3)  # only the newline is missing
        again = run(methods, levels, path=path)
        assert timeless(again) == timeless(whole)
        assert len(path.read_bytes().splitlines()) == 4
        assert read_records(path) == again

    @pytest.mark.parametrize(
        "content",
        [
            "hello",
            '{"a": 1}',
            "[1]\n",
            '{"seed": 0}\n',
            "\x00\x01\n",
            "name,error\n1,2\n",
            "{\n}\n",
        ],
    )
    def test_a_foreign_file_is_named_and_left_alone(self, tmp_path: Path, content: str) -> None:
        path = tmp_path / "notes.txt"
        path.write_text(content)
        with pytest.raises(IT3Error, match=r"line 1 of .*notes.txt is not a record"):
            run({"source": same}, {"a": level(3)}, path=path)
        assert path.read_text() == content

    def test_a_foreign_line_among_records_is_named(self, tmp_path: Path) -> None:
        path = tmp_path / "r.jsonl"
        run({"source": same}, {"a": level(3), "b": level(3)}, path=path)
        first, second = path.read_text().splitlines()
        path.write_text(f"{first}\n\n# a note\n{second}\n")
        with pytest.raises(IT3Error, match="line 3 of"):
            read_records(path)
        path.write_text(f"{first}\n\n{second}\n")  # a blank line is none
        assert len(read_records(path)) == 2

    def test_a_file_of_another_network_or_other_data_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "r.jsonl"
        run({"source": same}, {"a": level(50)}, path=path)
        before = path.read_bytes()
        for start, n in ((5.0, 50), (0.0, 49)):
            with pytest.raises(IT3Error, match=f"{n} instances.*another network or other data"):
                run({"source": same, "new": Offset()}, {"a": level(n, start)}, path=path)
        assert path.read_bytes() == before
        assert len(run({"source": same, "new": Offset()}, {"a": level(50)}, path=path)) == 2
        assert len(run({"source": same}, {"a": level(9, 5.0)}, path=path, seed=1)) == 1

    def test_a_record_of_somebody_else_s_that_has_no_error_is_nothing_to_compare_with(
        self, tmp_path: Path
    ) -> None:
        path = tmp_path / "r.jsonl"
        known = {"seed": 0, "level": "a", "method": "source", "batch_size": 4, "n": 3}
        write_records([known], path)
        records = run({"source": same, "new": Offset()}, {"a": level(3)}, path=path)
        assert records[0] == known
        assert records[1]["difference"] == 0.0

    def test_paths_that_can_not_be_used_are_told(self, tmp_path: Path) -> None:
        with pytest.raises(IT3Error, match=r"can't read .*none.jsonl: No such file"):
            read_records(tmp_path / "none.jsonl")
        for call in (
            lambda: run({"source": same}, {"a": level(3)}, path=tmp_path),
            lambda: write_records([], tmp_path),
        ):
            with pytest.raises(IT3Error, match="Is a directory"):
                call()

    def test_a_broken_stream_of_records_continues_to_the_same_numbers(self, tmp_path: Path) -> None:
        model, adapter, levels = networks()
        path = tmp_path / "r.jsonl"

        def go() -> list[Record]:
            methods = {
                "source": Source(model, adapter),
                "online": OnlineIT3(model, adapter, lr=0.01),
                "IT3": IT3(model, adapter, lr=0.01),
            }
            options = {"once": ["source"], "streams": ["online"], "batch_sizes": (1, 4)}
            return run(methods, levels, path=path, idempotence=True, **options)

        whole = go()
        lines = path.read_bytes().splitlines(keepends=True)
        for kept in (1, 4, 8, len(lines) - 1):
            path.write_bytes(b"".join(lines[:kept]))
            assert timeless(go()) == timeless(whole)
            assert path.read_bytes().startswith(b"".join(lines[:kept]))
            assert len(path.read_bytes().splitlines()) == len(lines)

    def test_a_killed_run_continues_and_repeats_nothing(self, tmp_path: Path) -> None:
        path, log = tmp_path / "r.jsonl", tmp_path / "log"
        script = """
import sys, time, torch
from it3_core import Regression
from it3_core.evaluation import evaluate

def answer(x):
    return x[:, 0]

def slow(x):
    with open(sys.argv[1], "a") as log:
        log.write(f"{x[0, 0]}\\n")
    time.sleep(float(sys.argv[2]))
    return x[:, 0] + torch.randn(len(x))

levels = {f"level {i}": (torch.arange(4.0)[:, None] + 10 * i, torch.zeros(4)) for i in range(8)}
for path in sys.argv[3:]:
    evaluate({"source": answer, "slow": slow}, levels, Regression().error, batch_sizes=(4,),
             in_distribution=None, path=path, progress=False)
    open(sys.argv[1], "a").write("done\\n")
"""
        environment = {**os.environ, "PYTHONPATH": SOURCE}
        command = [sys.executable, "-W", "ignore", "-c", script, str(log)]
        process = subprocess.Popen([*command, "0.2", str(path)], env=environment)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if path.exists() and path.read_bytes().count(b"\n") >= 4:
                break
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        finished = read_records(path)
        assert 4 <= len(finished) < 16

        log.unlink()
        whole = tmp_path / "whole.jsonl"
        subprocess.run([*command, "0", str(path), str(whole)], env=environment, check=True)
        records = read_records(path)
        assert records[: len(finished)] == finished
        assert len(records) == len(path.read_bytes().splitlines()) == 16
        done = {f"{10.0 * int(record['level'].split()[1])}" for record in finished}
        assert done.isdisjoint(log.read_text().split("done")[0].split())
        assert timeless(records) == timeless(read_records(whole))

    def test_intervals_need_more_than_one_value(self) -> None:
        assert bootstrap_interval([torch.ones(1)]) is None
        low, high = bootstrap_interval([torch.tensor([1.0]), torch.tensor([2.0])]) or (0, 0)
        assert low < 0 < 3 < high  # two seeds say next to nothing
        for options in ({"confidence": 1.0}, {"confidence": 0.0}, {"resamples": 0}):
            with pytest.raises(IT3Error):
                bootstrap_interval([torch.ones(3)], **options)  # type: ignore[arg-type]

    def test_without_instances_intervals_come_from_seeds_and_one_seed_is_unknown(self) -> None:
        records = [
            record
            for seed in range(4)
            for record in run(
                {"source": same, "plus": Offset(1 + seed / 100)},
                {"a": level(5, 1.0)},
                seed=seed,
                instances=False,
            )
        ]
        assert [row["verdict"] for row in summarise(records)] == ["no difference", "worse"]
        one = summarise(records[:2])[1]
        assert (one["verdict"], one["low"], one["difference"]) == ("unknown", None, 1.0)
        assert "| +1 |" in markdown(summarise(records[:2]))

    def test_records_of_two_references_are_not_mixed(self) -> None:
        first = run({"source": same}, {"a": level(3)})
        second = run({"vanilla": same}, {"b": level(3)}, reference="vanilla")
        with pytest.raises(IT3Error, match="several references: source, vanilla"):
            summarise([*first, *second])

    def test_tables_and_metrics_refuse_what_says_nothing(self) -> None:
        for call in (
            lambda: markdown([]),
            lambda: auroc([], [1.0]),
            lambda: auroc([math.nan], [1.0]),
            lambda: correlation([1.0, 2.0], [1.0]),
            lambda: correlation([1.0, math.inf], [1.0, 2.0]),
            lambda: correlation([1.0, 2.0], [1.0, 2.0], "kendall"),  # type: ignore[arg-type]
        ):
            with pytest.raises(IT3Error):
                call()
        assert summarise([]) == []


class TestEntryPoints:
    def test_seeds_of_several_processes_join_in_one_file(self, tmp_path: Path) -> None:
        for seed in range(2):
            run({"source": same}, {"a": level(3)}, seed=seed, path=tmp_path / f"{seed}.jsonl")
        parts = [read_records(tmp_path / f"{seed}.jsonl") for seed in range(2)]
        write_records(itertools.chain(*parts), tmp_path / "all.jsonl")
        joined = read_records(tmp_path / "all.jsonl")
        assert joined == [*parts[0], *parts[1]]
        assert summarise(joined)[0]["seeds"] == 2
        for line in (tmp_path / "all.jsonl").read_text().splitlines():
            assert isinstance(json.loads(line), dict)

    def test_progress_is_told_on_standard_error_or_not_at_all(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        run({"source": same}, {"a": level(3)}, progress=True)
        captured = capsys.readouterr()
        assert captured.out == ""
        assert "evaluate [####################] done" in captured.err
        run({"source": same}, {"a": level(3)}, progress=False)
        assert capsys.readouterr().err == ""

    def test_what_goes_wrong_leaves_the_terminal_on_a_new_line(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Terminal(io.StringIO):
            def isatty(self) -> bool:
                return True

        terminal = Terminal()
        monkeypatch.setattr(sys, "stderr", terminal)
        with pytest.raises(IT3Error, match="can't go beyond"):
            run({"source": Raising(2.0)}, {"a": level(5)}, progress=True)
        assert "evaluate [" in terminal.getvalue()
        assert terminal.getvalue().endswith("\n")

    def test_real_methods_go_through_to_a_table(self) -> None:
        records: list[Record] = []
        for seed in range(3):
            model, adapter, levels = networks(seed)
            records += run(
                {
                    "source": Source(model, adapter),
                    "second pass": AnswerStep(model, adapter),
                    "IT3": IT3(model, adapter, lr=0.01),
                    "online": OnlineIT3(model, adapter, lr=0.01),
                    "vanilla": lambda x: x.sum(1),
                },
                levels,
                seed=seed,
                batch_sizes=(1, 4),
                in_distribution="clean",
                once=["source", "second pass", "vanilla"],
                streams=["online"],
                idempotence=True,
            )
        rows = summarise(records)
        assert len(rows) == 3 * (3 + 2 * 2)
        assert all(row["low"] <= row["difference"] <= row["high"] for row in rows)
        adapted = [row for row in rows if row["method"] == "IT3"]
        assert all(row["after"] < row["before"] for row in adapted)
        assert all(row["cost"] > 1 for row in adapted)
        lines = markdown(rows).splitlines()
        assert len(lines) == 2 + len(rows) + 2
        assert len({line.count("|") for line in lines[:-2]}) == 1
