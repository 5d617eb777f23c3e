"""Generation: killed, starved of disk, refused, on a cluster; nothing lost and nothing twice."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from it3_aero.__main__ import main
from it3_aero.generation.store import Record, Store, fan_out, read_data
from it3_aero.wings import WingDataset, XFoil, generate
from it3_core import IT3Error
from it3_core.io.output import read_marker


def read_samples(folder: Path) -> list[Record]:
    return read_data(folder, read_marker(folder).task, dict, Record)[1]


def lines(folder: Path) -> list[str]:
    """The samples as they stand in the file, whole lines only."""
    path = folder / "raw" / "samples.jsonl"
    return path.read_text().splitlines(keepends=True) if path.exists() else []


@pytest.fixture(scope="module")
def reference(xfoil: XFoil, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty profiles by XFoil, in one go."""
    folder = tmp_path_factory.mktemp("reference")
    generate(folder, 30, solver=xfoil, progress=False)
    return folder


def test_killed_again_and_again_it_makes_the_same_set(reference: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "it3_aero", "wings", "generate", str(tmp_path), "--n", "30"]
    for wanted in (0, 4, 15):
        process = subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True)
        limit = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < limit:
            if (tmp_path / "raw").exists() and len(lines(tmp_path)) >= wanted:
                break
            time.sleep(0.001)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL, "it was done before it could be killed"
    assert 15 <= len(lines(tmp_path)) < 30
    generate(tmp_path, 30, progress=False)
    # Not a byte differs but for the order.
    assert sorted(lines(tmp_path)) == sorted(lines(reference))
    for name in ("card.json", "histogram.png"):
        assert (tmp_path / name).read_bytes() == (reference / name).read_bytes()


def test_a_larger_number_adds_to_what_is_there(reference: Path, tmp_path: Path) -> None:
    generate(tmp_path, 2, solver="xfoil", progress=False)
    first = lines(tmp_path)
    generate(tmp_path, 4, solver="xfoil", progress=False)
    assert lines(tmp_path)[:2] == first
    assert read_samples(tmp_path) == read_samples(reference)[:4]
    with pytest.raises(IT3Error, match="holds 4 profiles already, more than 3"):
        generate(tmp_path, 3, solver="xfoil", progress=False)


def test_failures_are_kept_with_their_reason(
    program: Callable[..., XFoil], tmp_path: Path, xfoil: XFoil
) -> None:
    solver = program("echo XFOIL Version 6.99; cat > /dev/null")
    card = generate(tmp_path / "out", 3, solver=solver, progress=False)
    assert card["counts"] == {"requested": 3, "solved": 0, "failed": 3}
    assert card["problems"] == {"not converged (with 160, 120, 200 panels)": 3}
    problems = [record["problem"] for record in read_samples(tmp_path / "out")]
    assert problems == list(card["problems"]) * 3
    with pytest.raises(IT3Error, match="holds no solved profile"):
        WingDataset(tmp_path / "out")


def made(number: int) -> Record:
    return {"sample": number, "y": number / 7}


class AtOnce(Executor):
    """Everything is finished before anybody looks, as on a busy machine."""

    def submit(self, work: Any, *arguments: Any, **_: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(work(*arguments))
        return future


def test_samples_that_finish_together_are_put_down_in_order(tmp_path: Path) -> None:
    with Store(tmp_path, "test", {}) as store:
        fan_out(store, made, range(40), AtOnce(), under_way=20)
    assert [json.loads(line)["sample"] for line in lines(tmp_path)] == list(range(40))


def test_a_torn_line_is_made_again(tmp_path: Path) -> None:
    with Store(tmp_path, "test", {}) as store, ThreadPoolExecutor(2) as executor:
        fan_out(store, made, range(5), executor, under_way=3)
        store.append(made(3))  # which it has already
    path = tmp_path / "raw" / "samples.jsonl"
    whole = path.read_bytes()
    assert whole.count(b"\n") == 5
    path.write_bytes(whole[:-4])  # a power cut
    assert len(read_samples(tmp_path)) == 4
    with Store(tmp_path, "test", {}) as store, ThreadPoolExecutor(2) as executor:
        assert len(store.samples) == 4
        fan_out(store, made, range(5), executor, under_way=3)
    assert sorted(path.read_bytes().splitlines()) == sorted(whole.splitlines())
    path.write_bytes(whole + b"\x00\x00\n")
    with pytest.raises(IT3Error, match=r"line 6 of .* is damaged"), Store(tmp_path, "test", {}):
        pass


def test_two_runs_at_once_are_refused(tmp_path: Path) -> None:
    for _ in range(2):  # the lock is gone afterwards
        with Store(tmp_path, "test", {}), pytest.raises(IT3Error, match="another run is writing"):
            Store(tmp_path, "test", {}).__enter__()


def test_what_was_under_way_is_kept_when_one_sample_ends_the_run(tmp_path: Path) -> None:
    def work(number: int) -> Record:
        if number == 2:
            raise IT3Error("the solver is gone")
        time.sleep(0.1)
        return made(number)

    with Store(tmp_path, "test", {}) as store, ThreadPoolExecutor(4) as executor:
        with pytest.raises(IT3Error, match="the solver is gone"):
            fan_out(store, work, range(100), executor, under_way=4)
        assert sorted(store.samples) == [0, 1, 3]
    assert [record["sample"] for record in read_samples(tmp_path)] == [0, 1, 3]


def test_a_file_that_may_not_grow_loses_nothing(reference: Path, tmp_path: Path) -> None:
    _, hard = before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, hard))
    try:
        with pytest.raises(IT3Error, match="File too large"):
            generate(tmp_path, 30, solver="xfoil", progress=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    kept = read_samples(tmp_path)
    assert 3 < len(kept) < 30
    generate(tmp_path, 30, solver="xfoil", progress=False)
    assert sorted(lines(tmp_path)) == sorted(lines(reference))


def test_a_missing_or_hanging_solver_stops_the_run(
    program: Callable[..., XFoil],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    hanging = program("sleep 1000")
    out = tmp_path / "out"
    for solver, told in {
        XFoil("/nowhere/xfoil"): "there is no program /nowhere/xfoil: run apt-get install xfoil",
        hanging: f"{hanging.program} doesn't answer as XFoil does: no result within 1 s",
    }.items():
        monkeypatch.setattr("it3_aero.wings.solvers.XFoil", lambda solver=solver: solver)
        assert main(["wings", "generate", str(out), "--n", "3", "--solver", "xfoil"]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"it3-aero: {told}")
        assert len(error.splitlines()) == 1
    assert not out.exists()


def test_a_dask_cluster_survives_the_death_of_a_worker(reference: Path, tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed", reason="the extra dask is not installed")
    told = tmp_path / "scheduler.json"
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--no-dashboard"]
    command += ["--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(told)]
    worker = [sys.executable, "-m", "distributed.cli.dask_worker", "--no-dashboard", "--no-nanny"]
    worker += ["--nthreads", "1", "--scheduler-file", str(told), "--death-timeout", "60"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    processes = [subprocess.Popen(command, **quiet)]  # type: ignore[call-overload]
    try:
        processes += [
            subprocess.Popen([*worker, "--local-directory", tmp_path / name], **quiet)
            for name in ("one", "two")
        ]
        limit = time.monotonic() + 60
        while not told.exists() and time.monotonic() < limit:
            time.sleep(0.05)
        address = json.loads(told.read_text())["address"]
        out = tmp_path / "out"
        with distributed.Client(address, set_as_default=False) as client:
            client.wait_for_workers(2, timeout=60)
        with ThreadPoolExecutor(1) as executor:
            running = executor.submit(generate, out, 30, dask=address, progress=False)
            while len(lines(out)) < 5 and time.monotonic() < limit and not running.done():
                time.sleep(0.01)
            assert not running.done(), running.result()
            processes[1].kill()
            running.result(timeout=120)
        assert sorted(lines(out)) == sorted(lines(reference))
        assert processes[2].poll() is None
    finally:
        for process in processes[::-1]:
            process.kill()
            process.wait()
