"""Evaluation: fair comparisons, files that survive a crash, intervals that keep their promise."""

from __future__ import annotations

import itertools
import multiprocessing
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from it3_core import (
    IT3,
    Adaptation,
    IT3Error,
    IT3Warning,
    OnlineIT3,
    Regression,
    Source,
    condition,
)
from it3_core.evaluation.evaluate import evaluate
from it3_core.evaluation.records import Record, read_records
from it3_core.experiment.statistics import summarise
from it3_core.experiment.tables import markdown

ADAPTER = Regression()
TIMES = ("cpu_seconds", "cost")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "r.jsonl"


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
            in_distribution="clean",
            seed=7,
        )
        plus, minus = pick(records, method="plus"), pick(records, method="minus")
        assert (plus["seed"], plus["level"], plus["batch_size"], plus["n"]) == (7, "clean", 4, 3)
        assert (plus["reference"], plus["in_distribution"]) == ("source", True)
        assert (plus["error"], plus["difference"], plus["errors"]) == (2.5, 0.5, [1.5, 2.5, 3.5])
        assert (minus["error"], minus["differences"]) == (1.5, [-0.5, -0.5, -0.5])
        assert (plus["fallbacks"], plus["problem"]) == (0, None)

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
            waits = itertools.chain([100], itertools.repeat(seconds))  # the first call is dear

            def answer(x: Tensor) -> Tensor:
                clock["now"] += next(waits)
                return x[:, 0]

            return answer

        records = run({"source": slow(0.1), "slow": slow(0.5)}, {"a": level(8)}, batch_sizes=(2,))
        assert pick(records, method="source")["cost"] == 1.0
        assert pick(records, method="slow")["cost"] == pytest.approx(5.0)
        assert pick(records, method="slow")["cpu_seconds"] == pytest.approx(2.0)


class TestInvariants:
    def test_all_methods_answer_the_same_batches_and_every_instance_once(self) -> None:
        methods = {"source": Offset(), "other": Offset(1.0)}
        run(methods, {"a": level(10)}, batch_sizes=(4,))
        for method in methods.values():
            warm_up, *batches = method.seen
            assert [len(batch) for batch in batches] == [4, 4, 2]
            assert torch.equal(torch.cat(batches), level(10)[0])
            assert len(warm_up) == 4

    def test_a_method_that_needs_no_batches_runs_once_at_the_largest(self) -> None:
        methods = {"source": Offset(), "once": Offset(), "batched": Offset()}
        records = run(methods, {"a": level(9)}, batch_sizes=(1, 4), once=["source", "once"])
        found = [(r["method"], r["batch_size"]) for r in records]
        assert found == [("source", None), ("once", None), ("batched", 4), ("batched", 1)]
        assert [len(batch) for batch in methods["once"].seen] == [4, 4, 4, 1]  # one is a warm-up

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


class TestRobustness:
    def test_a_method_that_raises_costs_its_own_cell_only(self, path: Path) -> None:
        levels = {"a": level(6), "b": level(6, 10.0), "c": level(6)}
        methods: dict[str, Any] = {"source": same, "picky": Raising(12.0), "last": Offset(1.0)}
        message = r"'picky' on level 'b', from instance 0 on: RuntimeError: can't go beyond 12.0$"
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

    def test_a_reference_that_raises_ends_the_run_and_loses_nothing(self, path: Path) -> None:
        methods = {"source": Raising(9.0), "other": Offset()}
        with pytest.raises(IT3Error, match=r"'source' on level 'b'.*can't go beyond"):
            run(methods, {"a": level(4), "b": level(4, 10.0)}, path=path)
        assert [record["level"] for record in read_records(path)] == ["a", "a"]

    def test_answers_that_are_not_finite_are_neither_averaged_nor_hidden(self, path: Path) -> None:

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
            ("no level 'noise' among 'clean'", {"in_distribution": "noise"}),
            ("'source' and 'twin' are the same object",
             {"methods": {"source": calls, "twin": calls}}),
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

    def test_a_method_that_writes_into_its_input_is_stopped(self, path: Path) -> None:
        methods = {"source": same, "rude": lambda x: x.mul_(2)[:, 0]}
        with pytest.raises(IT3Error, match=r"'rude'.*writes into its input"):
            run(methods, {"a": level(4)}, path=path)
        assert read_records(path) == []

    @pytest.mark.parametrize("kept", [0, 8, -1])
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

    @pytest.mark.parametrize("content", ["hello", '{"a": 1}', '{"seed": 0}\n', "\x00\x01\n"])
    def test_a_foreign_file_is_named_and_left_alone(self, tmp_path: Path, content: str) -> None:
        path = tmp_path / "notes.txt"
        path.write_text(content)
        with pytest.raises(IT3Error, match=r"line \d of .*notes.txt is damaged"):
            run({"source": same}, {"a": level(3)}, path=path)
        assert path.read_text() == content

    def test_a_file_of_another_network_or_other_data_is_refused(self, path: Path) -> None:
        run({"source": same}, {"a": level(50)}, path=path)
        before = path.read_bytes()
        for start, n in ((5.0, 50), (0.0, 49)):
            with pytest.raises(IT3Error, match=f"{n} instances.*another network or other data"):
                run({"source": same, "new": Offset()}, {"a": level(n, start)}, path=path)
        assert path.read_bytes() == before
        assert len(run({"source": same, "new": Offset()}, {"a": level(50)}, path=path)) == 2
        assert len(run({"source": same}, {"a": level(9, 5.0)}, path=path, seed=1)) == 1

    def test_a_broken_stream_of_records_continues_to_the_same_numbers(self, path: Path) -> None:
        model, adapter, levels = networks()

        def go() -> list[Record]:
            methods = {
                "source": Source(model, adapter),
                "online": OnlineIT3(model, adapter, lr=0.01),
                "IT3": IT3(model, adapter, lr=0.01),
            }
            options = {"once": ["source"], "streams": ["online"], "batch_sizes": (1, 4)}
            return run(methods, levels, path=path, **options)

        whole = go()
        lines = path.read_bytes().splitlines(keepends=True)
        for kept in (1, 4, 8, len(lines) - 1):
            path.write_bytes(b"".join(lines[:kept]))
            assert timeless(go()) == timeless(whole)
            assert path.read_bytes().startswith(b"".join(lines[:kept]))
            assert len(path.read_bytes().splitlines()) == len(lines)

    def test_a_killed_run_continues_and_repeats_nothing(self, tmp_path: Path) -> None:
        path = tmp_path / "r.jsonl"
        levels = {f"level {number}": level(4, 10.0 * number) for number in range(8)}
        asked: list[float] = []

        def noisy(x: Tensor) -> Tensor:
            asked.append(float(x[0, 0]))
            time.sleep(pause)
            return x[:, 0] + torch.randn(len(x))

        pause = 0.02
        process = multiprocessing.get_context("fork").Process(
            target=run, args=({"source": same, "noisy": noisy}, levels), kwargs={"path": path}
        )
        process.start()
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if path.exists() and path.read_bytes().count(b"\n") >= 4:
                break
            time.sleep(0.001)
        process.kill()
        process.join()
        finished = read_records(path)
        assert 4 <= len(finished) < 16

        pause = 0.0
        records = run({"source": same, "noisy": noisy}, levels, path=path)
        assert records == read_records(path)
        assert sorted(records, key=records.index)[: len(finished)] == finished
        assert len(path.read_bytes().splitlines()) == 16
        done = {10.0 * int(record["level"].split()[1]) for record in finished}
        assert done.isdisjoint(asked)
        assert timeless(records) == timeless(run({"source": same, "noisy": noisy}, levels))
