"""Training: the same whatever happens to it, as it is written down, and told clearly.

This file is a program too: the tests start it to be killed, and under torchrun.
"""

from __future__ import annotations

import copy
import io
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LinearLR,
    LRScheduler,
    MultiStepLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
)
from torch.utils.data import Dataset

import it3_core
from it3_core import IT3Error, Regression, condition, widen, zigzag_loss
from it3_core.checkpoint import load
from it3_core.tensorfile import read_tensors
from it3_core.training import History, fit

SOURCE = str(Path(it3_core.__file__).parents[1])


def problem(rows: int = 60) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(rows, 3, generator=draw)
    return x, x[:, 0] * 2 - x[:, 1] + 0.1 * torch.randn(rows, generator=draw)


def network(seed: int = 0, *, noisy: bool = True) -> nn.Module:
    torch.manual_seed(seed)
    layers = [nn.BatchNorm1d(8), nn.Dropout(0.2)] if noisy else []
    net = nn.Sequential(nn.Linear(3, 8), *layers, nn.ReLU(), nn.Linear(8, 1))
    return condition(net, Regression(), layer="0")


class Augmented(Dataset[tuple[Tensor, Tensor]]):
    """Rows with noise from torch's generator and from Python's, and time to be killed in."""

    def __init__(self, pause: float = 0.0) -> None:
        self.x, self.y = problem()
        self.pause = pause

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        time.sleep(self.pause)
        noise = 0.1 * torch.randn(3) + random.gauss(0, 0.1)
        return self.x[row] + noise, self.y[row]


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[n], second[n]) for n in first)


def close(first: dict[str, Tensor], second: dict[str, Tensor], tolerance: float) -> bool:
    return first.keys() == second.keys() and all(
        torch.allclose(first[n], second[n], rtol=tolerance, atol=tolerance) for n in first
    )


class KilledError(Exception):
    """Stands in for the end of a process."""


class Counting:
    """ZigZag with noisy labels that counts its calls, and ends one of them."""

    __qualname__ = "counting"

    def __init__(self, end: int | None = None, how: Callable[[], object] | None = None) -> None:
        self.calls = 0
        self.end = end
        self.how = how

    def __call__(self, model: nn.Module, adapter: Any, x: Any, y: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == self.end:
            if self.how is None:
                raise KilledError
            self.how()
        return zigzag_loss(model, adapter, x, y, second="noisy")


# The run that is killed: dropout, batch norm, noisy labels, augmentation, momentum, a schedule.
STEPS = 8 * 4


def demanding(model: nn.Module, path: Path | None, pause: float = 0.0, **change: Any) -> History:
    arguments: dict[str, Any] = {
        "validation": problem(20),
        "epochs": 8,
        "batch_size": 16,
        "lr": 0.02,
        "optimizer": partial(SGD, momentum=0.9, nesterov=True),
        "schedule": "cosine",
        "clip": 1.0,
        "loss": partial(zigzag_loss, second="noisy"),
        "checkpoint": path,
        "every": 0,
        "seed": 3,
        "progress": False,
    }
    return fit(model, Regression(), Augmented(pause), **{**arguments, **change})


# Golden: what is written down is what happens.


@pytest.mark.parametrize("schedule", ["constant", "cosine", "onecycle"])
def test_fit_is_the_plain_loop(schedule: str) -> None:
    x, y = (part.double() for part in problem())
    adapter = Regression.fit(y)
    model = network(noisy=False).double()
    reference = copy.deepcopy(model)
    optimizer = torch.optim.Adam(reference.parameters(), lr=0.05)
    history = fit(
        model,
        adapter,
        (x, y),
        validation=None,
        epochs=12,
        batch_size=len(x),
        lr=0.05,
        clip=0.5,
        schedule=schedule,
        progress=False,
    )
    losses, clipped = [], 0
    for epoch in range(12):
        rate = 0.05 * (1 + torch.cos(torch.tensor(torch.pi * epoch / 12))) / 2
        up_and_down = 0.05 * min((epoch + 1) / 2.4, (12 - epoch) / 9.6)  # a step an epoch here
        rates = {"constant": 0.05, "cosine": float(rate), "onecycle": up_and_down}
        optimizer.param_groups[0]["lr"] = rates[schedule]
        optimizer.zero_grad()
        neutral = reference(x, adapter.neutral(x)).squeeze(1)
        told = reference(x, adapter.encode(y)).squeeze(1)
        loss = ((neutral - y).square() + (told - y).square()).mean() / adapter.std[0] ** 2
        loss.backward()
        norm = nn.utils.clip_grad_norm_(reference.parameters(), 0.5)
        clipped += bool(norm > 0.5)
        optimizer.step()
        losses.append(loss.item())
    assert clipped  # or the test would not see the clipping
    assert history.train == pytest.approx(losses, rel=1e-6)
    assert close(weights(model), weights(reference), 1e-6)
    assert (history.validation, history.best_epoch) == ([], 12)


def test_early_stopping_gives_the_best_weights_back() -> None:
    losses, seen = iter([5.0, 3.0, 4.0, 2.0, 2.5, 2.0, 9.0, 1.0]), []

    def judge(model: nn.Module) -> float:
        assert not model.training
        assert not torch.is_grad_enabled()
        seen.append(weights(model))
        return next(losses)

    model = network()
    history = fit(
        model,
        Regression(),
        problem(),
        validation=judge,
        epochs=50,
        batch_size=16,
        patience=3,
        progress=False,
    )
    assert history.validation == [5.0, 3.0, 4.0, 2.0, 2.5, 2.0, 9.0]  # equal is not better
    assert history.best_epoch == 4
    assert history.stopped_early
    assert same(weights(model), seen[3])
    assert not same(weights(model), seen[6])


def test_without_patience_all_epochs_run_and_the_best_weights_come_back() -> None:
    losses, seen = iter([5.0, 1.0, 4.0]), []

    def judge(model: nn.Module) -> float:
        seen.append(weights(model))
        return next(losses)

    model = network()
    history = fit(model, Regression(), problem(), validation=judge, epochs=3, progress=False)
    assert (history.best_epoch, history.stopped_early) == (2, False)
    assert same(weights(model), seen[1])


def test_held_out_loss_is_the_loss_of_the_neutral_pass() -> None:
    (x, y), adapter, model = problem(31), Regression(0.5, 2.0), network()
    history = fit(
        model, adapter, problem(), validation=(x, y), epochs=1, batch_size=7, progress=False
    )
    expected = adapter.loss(model(x, adapter.neutral(x)), y).mean().item()
    assert history.validation == pytest.approx([expected], rel=1e-5)


def test_history_is_json() -> None:
    history = fit(network(), Regression(), problem(), epochs=2, progress=False)
    assert History(**json.loads(json.dumps(history.describe()))) == history
    assert history.seconds > 0


# Invariants: every row, the same bits.


class Listening(Dataset[tuple[Tensor, Tensor]]):
    """Notes which rows are asked for."""

    def __init__(self, rows: int) -> None:
        self.asked: list[int] = []
        self.x, self.y = problem(rows)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        self.asked.append(row)
        return self.x[row], self.y[row]


def test_every_row_once_an_epoch_in_another_order() -> None:
    data, sizes = Listening(33), []

    def loss(model: nn.Module, adapter: Any, x: Any, y: Tensor) -> Tensor:
        sizes.append(len(y))
        return zigzag_loss(model, adapter, x, y)

    fit(
        network(),
        Regression(),
        data,
        validation=None,
        epochs=2,
        batch_size=16,
        loss=loss,
        progress=False,
    )
    assert sizes == [11, 11, 11] * 2  # not 16, 16, 1
    assert sorted(data.asked[:33]) == sorted(data.asked[33:]) == list(range(33))
    assert data.asked[:33] != data.asked[33:]


def test_held_out_rows_are_not_trained_on() -> None:
    data, held_out = Listening(50), []

    def loss(model: nn.Module, adapter: Any, x: Any, y: Tensor) -> Tensor:
        trained.update(data.asked)
        data.asked.clear()
        return zigzag_loss(model, adapter, x, y)

    for seed in (0, 0, 1):
        trained: set[int] = set()
        fit(
            network(),
            Regression(),
            data,
            validation=0.2,
            epochs=1,
            batch_size=64,
            loss=loss,
            seed=seed,
            progress=False,
        )
        held_out.append(sorted(data.asked))  # what was asked for after the one step
        assert len(trained) == 40
        assert trained.isdisjoint(held_out[-1])
        data.asked.clear()
    assert len(held_out[0]) == 10
    assert held_out[0] == held_out[1] != held_out[2]


def test_a_seed_is_a_result_and_the_caller_s_generators_stay() -> None:
    models = [network() for _ in range(3)]
    random.seed(5)
    torch.manual_seed(5)
    before = (torch.random.get_rng_state(), random.getstate())
    demanding(models[0], None)
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    torch.manual_seed(6)
    random.seed(6)
    demanding(models[1], None)
    demanding(models[2], None, seed=4)
    assert same(weights(models[0]), weights(models[1]))
    assert not same(weights(models[0]), weights(models[2]))


def test_worker_processes_change_nothing() -> None:
    alone, helped = network(), network()
    demanding(alone, None, epochs=1)
    demanding(helped, None, epochs=1, workers=2)
    assert same(weights(alone), weights(helped))


def test_inputs_of_any_make_are_trained_on() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(3, 1)

        def forward(self, x: dict[str, Any]) -> Tensor:
            return self.net(x["a"] + x["b"][0])  # type: ignore[no-any-return]

    x, y = problem()
    model = condition(Sum(), Regression(), layer="net")
    data = ({"a": x / 2, "b": (x / 2,)}, y)
    history = fit(model, Regression(), data, epochs=30, lr=0.05, progress=False)
    assert history.validation[-1] < 0.2 * history.validation[0]


def test_it_works_inside_no_grad_and_leaves_eval_mode() -> None:
    model, before = network(), weights(network())
    with torch.no_grad():
        fit(model, Regression(), problem(), epochs=1, progress=False)
    assert not model.training
    assert not same(weights(model), before)


def sequence(optimizer: Optimizer) -> LRScheduler:
    warm = LinearLR(optimizer, 0.1, total_iters=1)
    return SequentialLR(optimizer, [warm, CosineAnnealingLR(optimizer, 2)], [1])


CHANGES: list[dict[str, Any]] = [
    {"optimizer": "Adam", "schedule": partial(MultiStepLR, milestones=[1, 2])},
    {"optimizer": "AdamW", "schedule": partial(ReduceLROnPlateau, patience=0, threshold=0.5)},
    {"optimizer": "RMSprop", "schedule": sequence, "patience": 1},
    {"schedule": partial(OneCycleLR, max_lr=0.1, total_steps=3)},
    {"optimizer": "Adagrad", "schedule": "onecycle"},
    {"validation": None},
]


@pytest.mark.parametrize("change", CHANGES, ids=["-".join(map(str, c)) or "none" for c in CHANGES])
def test_a_run_that_ends_at_any_step_goes_on_bit_for_bit(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    change = {"epochs": 3, "batch_size": 30, **change}
    whole = network()
    history = demanding(whole, None, **change, loss=Counting())
    for end in range(1, 2 * len(history.train) + 1):
        path = tmp_path / f"{end}.safetensors"
        with pytest.raises(KilledError):
            demanding(network(), path, **change, loss=Counting(end))
        rest, model = Counting(), network(seed=1)
        resumed = demanding(model, path, **change, loss=rest)
        assert rest.calls == 2 * len(history.train) - end + 1  # no step is done again
        assert same(weights(model), weights(whole))
        assert resumed.train == history.train
        assert resumed.validation == history.validation
        assert resumed.best_epoch == history.best_epoch
        assert resumed.stopped_early == history.stopped_early


def test_at_most_one_interval_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, loss = tmp_path / "run.safetensors", Counting(30)
    monkeypatch.setattr(time, "monotonic", lambda: float(loss.calls))  # a step takes a second
    with pytest.raises(KilledError):
        demanding(network(), path, every=3, loss=loss)
    assert position(path) == 27
    whole, model = network(), network()
    demanding(whole, None, loss=Counting())
    demanding(model, path, loss=Counting())
    assert same(weights(model), weights(whole))


def test_a_finished_run_returns_at_once(tmp_path: Path) -> None:
    path, first, again = tmp_path / "run.safetensors", network(), network(seed=1)
    history = demanding(first, path, loss=Counting())
    content = path.read_bytes()
    idle = Counting()
    assert demanding(again, path, loss=idle) == history
    assert idle.calls == 0
    assert same(weights(first), weights(again))
    assert not again.training
    assert path.read_bytes() == content


# Kill -9, for real.


def position(path: Path) -> int:
    state = read_tensors(path, kind="training").metadata
    return STEPS if state["finished"] else state["epoch"] * 4 + state["step"]


def nursery(path: Path) -> None:
    """Starts a training process for each line that comes in, and says how it ended.

    They are its children, because to import torch takes longer than all they have to do.
    """
    import torch._dynamo  # noqa: F401  which the first step imports

    for _ in sys.stdin:
        child = os.fork()
        if child == 0:
            demanding(network(), path, 0.002)
            os._exit(0)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def test_kill_9_at_any_moment_changes_nothing(tmp_path: Path) -> None:
    whole, path, draw = network(), tmp_path / "run.safetensors", random.Random(0)
    history = demanding(whole, None)
    reached = [0]
    # As many threads as here: they decide in which order numbers are added up.
    threads = {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    with subprocess.Popen(
        [sys.executable, __file__, "nursery", str(path)],
        env={**os.environ, "PYTHONPATH": SOURCE, **threads},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        while len(reached) < 9 and reached[-1] < 20:
            print(file=parent.stdin, flush=True)
            child = int(parent.stdout.readline())
            # Its first step from here on shows that it runs; then it has a moment to live.
            deadline = time.monotonic() + 60
            while not (path.exists() and position(path) > reached[-1]):
                assert time.monotonic() < deadline
                time.sleep(0.002)
            time.sleep(draw.uniform(0, 0.04))
            os.kill(child, signal.SIGKILL)
            assert int(parent.stdout.readline()) == -signal.SIGKILL
            reached.append(position(path))
    assert len(reached) > 3
    assert reached[-1] < STEPS, "the last kill came too late to be one"
    (tmp_path / ".run.safetensors.1-0123abcd.tmp").touch()  # what a kill within a write leaves
    model = network(seed=1)
    resumed = demanding(model, path)
    assert same(weights(model), weights(whole))
    assert resumed.train == history.train
    assert resumed.validation == history.validation
    assert list(tmp_path.iterdir()) == [path]


# Ctrl-C.


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def usual_ctrl_c() -> Any:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("usual_ctrl_c")
@pytest.mark.parametrize("end", [1, 3, 4, STEPS])
def test_ctrl_c_writes_a_checkpoint_and_goes_on(tmp_path: Path, end: int) -> None:
    path, whole, model = tmp_path / "run.safetensors", network(), network(seed=1)
    demanding(whole, None, loss=Counting())
    with pytest.raises(KeyboardInterrupt):
        demanding(network(), path, every=1e9, loss=Counting(end, press))
    assert position(path) == end  # the step it came in was finished
    rest = Counting()
    demanding(model, path, loss=rest)
    assert rest.calls == STEPS - end
    assert same(weights(model), weights(whole))


@pytest.mark.usefixtures("usual_ctrl_c")
def test_ctrl_c_without_a_checkpoint_is_ctrl_c() -> None:
    loss = Counting(2, press)
    with pytest.raises(KeyboardInterrupt):
        demanding(network(), None, loss=loss)
    assert loss.calls == 2


@pytest.mark.usefixtures("usual_ctrl_c")
def test_ctrl_c_while_the_last_epoch_is_judged_is_not_swallowed(tmp_path: Path) -> None:
    def judge(model: nn.Module) -> float:
        press()
        return 1.0

    path = tmp_path / "run.safetensors"
    with pytest.raises(KeyboardInterrupt):
        demanding(network(), path, epochs=1, validation=judge)
    assert read_tensors(path, kind="training").metadata["finished"]


# Several processes, for real.


def test_torchrun_gives_what_one_process_gives(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2"]
    command += ["--master_addr=127.0.0.1", f"--master_port={port}"]
    log = tmp_path / "log"
    with log.open("wb") as stream:
        agent = subprocess.Popen(
            [*command, __file__, "together", str(tmp_path)],
            env={**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"},
            stderr=stream,
            start_new_session=True,
        )
        try:
            assert agent.wait(timeout=120) == 0, log.read_text()
        finally:
            if agent.poll() is None:
                os.killpg(agent.pid, signal.SIGTERM)  # it takes its processes along
                agent.wait()
    results = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]

    # One process with the same batches; each of the two had its part of every batch.
    alone = network(noisy=False)
    history = fit(alone, Regression(), problem(57), **TOGETHER)
    assert sorted(results[0]["rows"] + results[1]["rows"]) == list(range(57))
    for rank, result in enumerate(results):
        trained = {name: torch.tensor(value) for name, value in result["weights"].items()}
        assert close(trained, weights(alone), 1e-5)
        assert result["weights"] == results[0]["weights"]
        assert result["train"] == pytest.approx(history.train, rel=1e-5)
        assert result["validation"] == pytest.approx(history.validation, rel=1e-5)
        assert abs(len(result["rows"]) - 28.5) < 2, "the work is not shared"
        assert result["best_epoch"] == history.best_epoch
        assert result["batch norm alike"], rank
        assert result["killed and resumed"], rank
        assert result["ctrl-C in the other"] == 5, rank
        assert result["stopped after"] == 3, rank
        assert result["group of the caller lives"], rank
        assert result["not finite"].startswith("the loss is not finite in epoch 1, step 2"), rank
    assert "epoch 4/4" in log.read_text()  # the bar,
    assert log.read_text().count("is finished: nothing to do") == 1  # and only the first one's


TOGETHER: dict[str, Any] = {
    "validation": problem(21),
    "epochs": 4,
    "batch_size": 10,
    "lr": 0.02,
    "clip": 1.0,
    "schedule": "cosine",
    "progress": False,
}


def together(folder: Path) -> None:
    """What each of two processes does under torchrun; the test reads what it writes."""
    rank = int(os.environ["RANK"])
    options = {**TOGETHER, "progress": True}
    result: dict[str, Any] = {}

    data = Listening(57)
    model = network(seed=rank, noisy=False)  # the first process's weights count
    history = fit(model, Regression(), data, **{**options, "epochs": 1})
    result["rows"] = data.asked

    model = network(seed=rank, noisy=False)
    history = fit(model, Regression(), problem(57), **options)
    result |= history.describe()
    result["weights"] = {name: value.tolist() for name, value in weights(model).items()}
    # No hook of DDP's is left behind:
    torch.autograd.backward(zigzag_loss(model, Regression(), *problem(4)))

    def noisy(path: Path, loss: Any) -> nn.Module:
        model = network(seed=rank)
        fit(model, Regression(), problem(57), **options, loss=loss, checkpoint=path, every=0)
        return model

    whole = weights(noisy(folder / "whole", Counting()))
    try:
        noisy(folder / "killed", Counting(11))
    except KilledError:
        result["killed and resumed"] = same(weights(noisy(folder / "killed", Counting())), whole)
    noisy(folder / "killed", Counting())  # says that it has finished

    dist.init_process_group("gloo")  # from here on there is a group of the caller's
    both: list[Any] = [None, None]
    dist.all_gather_object(both, {name: value.tolist() for name, value in whole.items()})
    result["batch norm alike"] = both[0] == both[1]

    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        noisy(folder / "interrupted", Counting(5, press if rank == 1 else lambda: None))
    except KeyboardInterrupt:
        dist.barrier()
        state = read_tensors(folder / "interrupted", kind="training").metadata
        result["ctrl-C in the other"] = state["epoch"] * 6 + state["step"]

    better = iter(range(100, 0, -1))
    judge = (lambda model: 1.0) if rank == 0 else (lambda model: float(next(better)))
    stopped = fit(
        network(),
        Regression(),
        problem(57),
        **{**options, "validation": judge, "epochs": 9, "patience": 2},
    )
    result["stopped after"] = len(stopped.train)

    def broken(model: nn.Module, adapter: Any, x: Any, y: Tensor) -> Tensor:
        broken.calls += 1  # type: ignore[attr-defined]
        bad = rank == 1 and broken.calls == 2  # type: ignore[attr-defined]
        return zigzag_loss(model, adapter, x, y) * (float("nan") if bad else 1.0)

    broken.calls = 0  # type: ignore[attr-defined]
    try:
        fit(network(), Regression(), problem(57), **options, loss=broken)
    except IT3Error as problem_:
        result["not finite"] = str(problem_)

    result["group of the caller lives"] = dist.is_initialized()
    (folder / f"{rank}.json").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


# Progress.


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    fit(network(), Regression(), problem(), epochs=3, batch_size=8)
    drawn = terminal.getvalue().split("\r")
    assert "train [" in drawn[1]
    assert "] epoch 1/3" in drawn[1]
    assert "left" not in drawn[-1] or "0:00:00 left" in drawn[-1]
    assert "train [####################] epoch 3/3, train" in drawn[-1]
    assert "held out" in drawn[-1]
    assert drawn[-1].endswith("\n")
    assert "\n" not in "".join(drawn[:-1])


def test_progress_is_a_few_lines_in_a_log(capfd: pytest.CaptureFixture[str]) -> None:
    fit(network(), Regression(), problem(), epochs=20)
    out, err = capfd.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 2
    assert "epoch 20/20" in err.splitlines()[-1]
    assert "\r" not in err


def test_no_progress_is_silence(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        demanding(network(), tmp_path / "run.safetensors", epochs=1)
    assert capfd.readouterr() == ("", "")


# Robustness: what can't be used is told.


def test_a_loss_that_is_not_finite_ends_it_in_good_order(tmp_path: Path) -> None:
    path, model, whole = tmp_path / "run.safetensors", network(), network()
    demanding(whole, None, loss=Counting())

    class Spoilt(Counting):
        def __call__(self, model: nn.Module, adapter: Any, x: Any, y: Tensor) -> Tensor:
            return super().__call__(model, adapter, x, y) * (1 if self.calls < 7 else float("nan"))

    Spoilt.__qualname__ = Counting.__qualname__
    message = r"not finite in epoch 2, step 3: lower lr \(it is 0\.019.*run\.safetensors holds"
    with pytest.raises(IT3Error, match=message):
        demanding(model, path, loss=Spoilt())
    assert all(value.isfinite().all() for value in weights(model).values())
    assert position(path) == 6
    demanding(model, path, loss=Counting())
    assert same(weights(model), weights(whole))


def test_a_gradient_that_is_not_finite_is_noticed() -> None:
    def steep(model: nn.Module, adapter: Any, x: Any, y: Tensor) -> Tensor:
        return zigzag_loss(model, adapter, x, y).mul(0).sqrt()  # infinitely steep at 0

    with pytest.raises(IT3Error, match="the gradient is not finite in epoch 1, step 1"):
        fit(network(), Regression(), problem(), loss=steep, progress=False)


def test_a_held_out_loss_that_is_not_finite_is_noticed() -> None:
    with pytest.raises(IT3Error, match="the held-out loss is not finite after epoch 1: lower lr"):
        fit(network(), Regression(), problem(), validation=lambda m: float("nan"), progress=False)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"seed": 4}, "seed was 3 and is 4"),
    ({"batch_size": 8}, "batch_size was 16 and is 8"),
    ({"epochs": 9}, "epochs was 8 and is 9"),
    ({"clip": None}, r"clip was 1\.0 and is None"),
    ({"loss": zigzag_loss}, r"loss was zigzag_loss\(second=noisy\) and is zigzag_loss"),
    ({"optimizer": "SGD"}, r"optimizer was SGD\(momentum=0\.9, nesterov=True\) and is SGD"),
    ({"validation": 0.5}, "the number of rows was 60 and is 30; the number of held-out rows was"),
    ({"validation": (problem(20)[0], problem(20)[1] + 1)}, "the held-out data's fingerprint was"),
    ({"model": widen(nn.Linear(3, 1), Regression())}, "another network .it lacks 'model.weight'"),
    (
        {"model": network().double(), "validation": tuple(part.double() for part in problem(20))},
        "the weights' type was torch.float32 and is torch.float64",
    ),
]


@pytest.mark.parametrize(("change", "message"), REFUSED)
def test_a_checkpoint_of_another_run_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = tmp_path / "run.safetensors"
    with pytest.raises(KilledError):
        demanding(network(), path, collate=killing)
    content, change = path.read_bytes(), dict(change)
    model = change.pop("model", network())
    with pytest.raises(IT3Error, match=message):
        demanding(model, path, **change)
    assert path.read_bytes() == content


def measure(model: nn.Module) -> float:
    return 1.0


def test_a_run_judged_by_another_measure_is_refused(tmp_path: Path) -> None:
    """Its best weights would be compared by two measures, or by none and yet taken."""
    path = tmp_path / "run.safetensors"
    with pytest.raises(KilledError):
        demanding(network(), path, validation=measure, loss=Counting(7))
    for other in (None, Counting()):
        with pytest.raises(IT3Error, match="the measure to minimise was measure and is"):
            demanding(network(), path, validation=other, loss=Counting())
    assert demanding(network(), path, validation=measure, loss=Counting()).best_epoch == 1


def killing(items: list[Any]) -> Any:
    raise KilledError


def test_other_data_of_the_same_length_are_refused(tmp_path: Path) -> None:
    x, y = problem()
    options: dict[str, Any] = {"epochs": 1, "checkpoint": tmp_path / "run", "progress": False}
    fit(network(), Regression(), (x, y), **options)
    x[7, 1] += 1
    with pytest.raises(IT3Error, match="the data's fingerprint was"):
        fit(network(), Regression(), (x, y), **options)


def test_a_file_that_is_no_run_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("a year of notes")
    with pytest.raises(IT3Error, match="is no safetensors file"):
        demanding(network(), path)
    assert path.read_text() == "a year of notes"


def test_a_run_is_not_a_checkpoint(tmp_path: Path) -> None:
    demanding(network(), tmp_path / "run.safetensors", epochs=1)
    with pytest.raises(IT3Error, match="is a training file, but a checkpoint file is needed"):
        load(tmp_path / "run.safetensors")


def test_a_path_that_cannot_be_written_is_told_before_the_work(tmp_path: Path) -> None:
    loss = Counting()
    with pytest.raises(IT3Error, match="there is no folder"):
        demanding(network(), tmp_path / "no" / "run.safetensors", loss=loss)
    assert loss.calls == 0


class Odd(Dataset[Tensor]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, row: int) -> Tensor:
        return torch.zeros(3)


X, Y = problem()
BAD: list[tuple[dict[str, Any], str]] = [
    ({"epochs": 0}, "epochs must be a whole number from 1 on, not 0"),
    ({"epochs": 2.5}, "epochs must be a whole number"),
    ({"batch_size": 0}, "batch_size must be a whole number from 1 on"),
    ({"patience": 0}, "patience must be a whole number from 1 on"),
    ({"patience": 3, "validation": None}, "patience needs something to judge by"),
    ({"workers": -1}, "workers must be a whole number from 0 on"),
    ({"lr": 0.0}, "lr must be a positive number"),
    ({"lr": float("nan")}, "lr must be a positive number"),
    ({"clip": -1.0}, "clip must be a positive number"),
    ({"every": -1.0}, "every is a number of seconds"),
    ({"validation": 1.0}, "validation=1.0 must be a share between 0 and 1"),
    ({"validation": "none"}, "must be a pair"),
    ({"validation": (X, Y[:5])}, r"60 inputs, but the labels have shape \(5,\)"),
    ({"optimizer": "Adm"}, "torch.optim has no optimiser 'Adm'"),
    ({"optimizer": "LBFGS"}, "LBFGS"),
    ({"schedule": "cosin"}, 'schedule must be "constant", "cosine", "onecycle" or a'),
    ({"collate": list}, "collate belongs to a Dataset"),
    ({"loss": lambda model, adapter, x, y: y}, "the loss must be one number"),
    ({"data": (X, Y[:5])}, r"60 inputs, but the labels have shape \(5,\)"),
    ({"data": (X, [1, 2])}, "must be a pair"),
    ({"data": (X[:0], Y[:0])}, "there are no rows"),
    ({"data": (X / 0, Y)}, "the input has Inf"),
    ({"data": (X, Y / 0)}, "the labels hold NaN or Inf"),
    ({"data": (X.double(), Y)}, "the input is torch.float64"),
    ({"data": (X[:1], Y[:1])}, "give None to hold nothing out"),
    ({"data": Odd()}, "must be a pair"),
    ({"data": iter([])}, "must be a pair"),
    ({"model": nn.LazyLinear(1)}, "run it once first"),
    ({"model": network().requires_grad_(False)}, "there is nothing to train"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_bad_arguments_are_told(change: dict[str, Any], message: str) -> None:
    arguments = {"model": network(), "adapter": Regression(), "data": (X, Y), **change}
    with pytest.raises(IT3Error, match=message) as raised:
        fit(**{"epochs": 1, "progress": False, **arguments})
    assert "\n" not in str(raised.value)


def test_a_schedule_that_cannot_be_stored_is_told_at_once(tmp_path: Path) -> None:
    class Odd(LRScheduler):
        def __init__(self, optimizer: Optimizer) -> None:
            self.thing = object()
            super().__init__(optimizer)

        def get_lr(self) -> list[float | Tensor]:
            return [0.1]

    with pytest.raises(IT3Error, match=r"schedule\.thing is a object, which a checkpoint can't"):
        demanding(network(), tmp_path / "run.safetensors", schedule=Odd)


if __name__ == "__main__":
    {"nursery": nursery, "together": together}[sys.argv[1]](Path(sys.argv[2]))
