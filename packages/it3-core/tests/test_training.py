"""Training: the same whatever happens to it, as it is written down, and told clearly.

This file is a program too: the tests start it to be killed, and under torchrun.
"""

from __future__ import annotations

import copy
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import Dataset, TensorDataset

import it3_core
from it3_core import IT3Error, Regression, condition, widen, zigzag_loss
from it3_core.io.tensors import read_tensors
from it3_core.training.fit import fit
from it3_core.training.trainer import History, make_schedule

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
    """Rows with noise from torch's generator and from Python's, and time to be killed in.

    It notes which rows are asked for."""

    def __init__(self, rows: int = 60, pause: float = 0.0) -> None:
        self.x, self.y = problem(rows)
        self.pause = pause
        self.asked: list[int] = []

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        time.sleep(self.pause)
        self.asked.append(row)
        noise = 0.1 * torch.randn(3) + random.gauss(0, 0.1)
        return self.x[row] + noise, self.y[row]


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[n], second[n]) for n in first)


def train(model: nn.Module, data: Any = None, **change: Any) -> History:
    """One quiet epoch, unless told otherwise."""
    arguments = {"epochs": 1, "progress": False, **change}
    return fit(model, Regression(), data or problem(), **arguments)


class KilledError(Exception):
    """Stands in for the end of a process."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.safetensors"


class Counting:
    """ZigZag with noisy labels that counts its calls, and ends one of them or multiplies it."""

    __qualname__ = "counting"

    def __init__(self, end: int | None = None, how: Callable[[], Any] | None = None) -> None:
        self.calls, self.end, self.how = 0, end, how

    def __call__(self, model: nn.Module, adapter: Any, x: Any, y: Tensor) -> Tensor:
        self.calls += 1
        factor = None
        if self.calls == self.end:
            if self.how is None:
                raise KilledError
            factor = self.how()
        return zigzag_loss(model, adapter, x, y, second_signal="noisy") * (factor or 1)


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
        "loss": partial(zigzag_loss, second_signal="noisy"),
        "checkpoint": path,
        "every": 0,
        "seed": 3,
        "progress": False,
    }
    return fit(model, Regression(), Augmented(pause=pause), **{**arguments, **change})


Whole = tuple[dict[str, Tensor], History]


@pytest.fixture(scope="module")
def whole() -> Whole:
    """What that run ends with when nothing happens to it."""
    torch.set_num_threads(1)
    model = network()
    history = demanding(model, None, loss=Counting())
    return weights(model), replace(history, seconds=0)


def goes_on(path: Path, whole: Whole, steps: int) -> None:
    """From there it needs so many steps, and ends as if nothing had happened."""
    model, loss = network(seed=1), Counting()
    resumed = demanding(model, path, loss=loss)
    assert loss.calls == steps
    assert same(weights(model), whole[0])
    assert replace(resumed, seconds=0) == whole[1]


# Golden: what is written down is what happens.


def test_networks_for_imagenet_slow_down_every_thirty_epochs() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1)
    schedule, rates = make_schedule("step30", optimizer, 90, 7), []
    for _ in range(90):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates == pytest.approx([0.1] * 30 + [0.01] * 30 + [0.001] * 30)


@pytest.mark.parametrize("schedule", ["constant", "cosine", "onecycle", "step"])
def test_fit_is_the_plain_loop(schedule: str) -> None:
    x, y = (part.double() for part in problem())
    adapter = Regression.fit(y)
    model = network(noisy=False).double()
    reference = copy.deepcopy(model)
    optimizer = torch.optim.Adam(reference.parameters(), lr=0.05)
    how: dict[str, Any] = {"epochs": 12, "lr": 0.05, "clip": 0.5, "schedule": schedule}
    history = fit(model, adapter, (x, y), validation=None, progress=False, **how)
    losses, clipped = [], 0
    for epoch in range(12):
        rate = 0.05 * (1 + torch.cos(torch.tensor(torch.pi * epoch / 12))) / 2
        up_and_down = 0.05 * min((epoch + 1) / 2.4, (12 - epoch) / 9.6)  # a step an epoch here
        rates = {"constant": 0.05, "cosine": float(rate), "onecycle": up_and_down}
        rates["step"] = 0.05 if epoch < 6 else 0.005
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
    torch.testing.assert_close(weights(model), weights(reference), rtol=1e-6, atol=1e-6)
    assert (history.validation, history.best_epoch) == ([], 12)


@pytest.mark.parametrize(
    ("losses", "patience", "epochs", "best"),
    [
        ([5.0, 3.0, 4.0, 2.0, 2.5, 2.0, 9.0, 1.0], 3, 7, 4),  # equal is not better
        ([5.0, 1.0, 4.0], None, 3, 2),
    ],
)
def test_early_stopping_gives_the_best_weights_back(
    losses: list[float], patience: int | None, epochs: int, best: int
) -> None:
    coming, seen = iter(losses), []

    def judge(model: nn.Module) -> float:
        assert not model.training
        assert not torch.is_grad_enabled()
        seen.append(weights(model))
        return next(coming)

    model = network()
    history = train(model, validation=judge, epochs=len(losses), patience=patience)
    assert history.validation == losses[:epochs]
    assert (history.best_epoch, history.stopped_early) == (best, patience is not None)
    assert same(weights(model), seen[best - 1])
    assert not same(weights(model), seen[-1])


@pytest.mark.parametrize("shared", [False, True])
def test_above_frozen_layers_it_is_training_on_their_features(shared: bool) -> None:
    torch.manual_seed(0)
    below = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.ReLU())
    above = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
    nn.init.normal_(below[1].running_mean)
    whole = condition(nn.Sequential(below, *above), Regression(), layer="1")
    head = condition(above, Regression(), layer="0")
    kept, graphs = weights(whole.model[0]), []  # type: ignore[index, arg-type]
    whole.model[0].register_forward_hook(lambda _m, _i, y: graphs.append(y.requires_grad))  # type: ignore[index, union-attr]
    how: dict[str, Any] = {
        "epochs": 3,
        "lr": 0.05,
        "loss": partial(zigzag_loss, shared_prefix=shared),
    }
    x, y = problem()
    train(whole, (x, y), freeze_until="1", **how)
    with torch.no_grad():
        train(head, (below.eval()(x), y), **how)
    assert same(weights(whole.model[0]), kept)  # type: ignore[index, arg-type]
    pairs = zip(whole.model[1:].parameters(), head.model.parameters(), strict=True)  # type: ignore[index, union-attr]
    assert all(torch.allclose(one, other, rtol=0, atol=1e-6) for one, other in pairs)
    assert not any(graphs)
    assert all(parameter.requires_grad for parameter in whole.parameters())  # as it was


def test_held_out_loss_is_the_loss_of_the_neutral_pass() -> None:
    (x, y), adapter, model = problem(31), Regression(0.5, 2.0), network()
    history = fit(model, adapter, problem(), validation=(x, y), epochs=1, progress=False)
    expected = adapter.loss(model(x, adapter.neutral(x)), y).mean().item()
    assert history.validation == pytest.approx([expected], rel=1e-5)
    assert history.seconds > 0
    assert History(**json.loads(json.dumps(history.describe()))) == history


# Invariants: every row, the same bits.


def test_every_row_once_an_epoch_in_another_order() -> None:
    data, sizes = Augmented(33), []

    def loss(model: nn.Module, adapter: Any, x: Any, y: Tensor) -> Tensor:
        sizes.append(len(y))
        return zigzag_loss(model, adapter, x, y)

    train(network(), data, validation=None, epochs=2, batch_size=16, loss=loss)
    assert sizes == [11, 11, 11] * 2  # not 16, 16, 1
    assert sorted(data.asked[:33]) == sorted(data.asked[33:]) == list(range(33))
    assert data.asked[:33] != data.asked[33:]


def test_validation_rows_are_not_trained_on() -> None:
    data, validation = Augmented(50), []

    def loss(model: nn.Module, adapter: Any, x: Any, y: Tensor) -> Tensor:
        trained.update(data.asked)
        data.asked.clear()
        return zigzag_loss(model, adapter, x, y)

    for seed in (0, 0, 1):
        trained: set[int] = set()
        train(network(), data, validation=0.2, loss=loss, seed=seed)
        validation.append(sorted(data.asked))  # what was read after the one step
        assert (len(trained), len(validation[-1])) == (40, 10)
        assert trained.isdisjoint(validation[-1])
        data.asked.clear()
    assert validation[0] == validation[1] != validation[2]


def test_a_seed_is_a_result_and_the_caller_s_generators_stay(whole: Whole) -> None:
    for seed in (3, 4):
        model = network()
        torch.manual_seed(seed)
        random.seed(seed)
        before = (torch.random.get_rng_state(), random.getstate())
        with torch.no_grad():  # whatever mode the caller is in; worker processes change nothing
            demanding(model, None, seed=seed, loss=Counting(), workers=2 * (seed == 3))
        assert torch.equal(torch.random.get_rng_state(), before[0])
        assert random.getstate() == before[1]
        assert same(weights(model), whole[0]) == (seed == 3)


CHANGES: list[dict[str, Any]] = [
    {"optimizer": "AdamW", "schedule": "constant", "patience": 1},
    {"optimizer": "Adam", "schedule": "onecycle", "validation": None},
    {"optimizer": "Adam", "freeze_until": "3"},
]


@pytest.mark.parametrize("change", CHANGES)
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
        assert replace(resumed, seconds=0) == replace(history, seconds=0)


def test_at_most_one_interval_is_lost(
    path: Path, whole: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss = Counting(30)
    monkeypatch.setattr(time, "monotonic", lambda: float(loss.calls))  # a step takes a second
    with pytest.raises(KilledError):
        demanding(network(), path, every=3, loss=loss)
    goes_on(path, whole, STEPS - 27)


# Kill -9, for real.


def position(path: Path) -> int:
    state = read_tensors(path, kind="training", metadata=dict[str, Any]).metadata
    return STEPS if state["finished"] else state["epoch"] * 4 + state["step"]


def nursery(path: Path) -> None:
    """Starts a training process for each line that comes in, and says how it ended.

    They are its children, because to import torch takes longer than all they have to do.
    """
    import torch._dynamo  # noqa: F401  which the first step imports

    for _ in sys.stdin:
        child = os.fork()
        if child == 0:
            demanding(network(), path, 0.002, loss=Counting())
            os._exit(0)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def test_kill_9_at_any_moment_changes_nothing(tmp_path: Path, path: Path, whole: Whole) -> None:
    draw, reached = random.Random(0), [0]
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
        while len(reached) < 6 and reached[-1] < 20:
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
    goes_on(path, whole, STEPS - reached[-1])
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
@pytest.mark.parametrize("end", [3, 4])
def test_ctrl_c_writes_a_checkpoint_and_goes_on(path: Path, whole: Whole, end: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        demanding(network(), path, every=1e9, loss=Counting(end, press))
    goes_on(path, whole, STEPS - end)  # the step it came in was finished


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
    for result in results:
        trained = {name: torch.tensor(value) for name, value in result["weights"].items()}
        torch.testing.assert_close(trained, weights(alone), rtol=1e-5, atol=1e-5)
        assert result["weights"] == results[0]["weights"]
        assert result["train"] == pytest.approx(history.train, rel=1e-5)
        assert result["validation"] == pytest.approx(history.validation, rel=1e-5)
        assert abs(len(result["rows"]) - 28.5) < 2, "the work is not shared"
        assert result["best_epoch"] == history.best_epoch
        for true in ("batch norm alike", "killed and resumed", "group of the caller lives"):
            assert result[true], true
        assert (result["ctrl-C in the other"], result["stopped after"]) == (5, 3)
        assert result["not finite"].startswith("the loss is not finite in epoch 1, step 2")
    assert log.read_text().count("is finished: nothing to do") == 1  # the first process tells


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

    data = Augmented(57)
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
        path = folder / "interrupted"
        state = read_tensors(path, kind="training", metadata=dict[str, Any]).metadata
        result["ctrl-C in the other"] = state["epoch"] * 6 + state["step"]

    better = iter(range(100, 0, -1))
    judge = (lambda model: 1.0) if rank == 0 else (lambda model: float(next(better)))
    options |= {"validation": judge, "patience": 2}
    stopped = fit(network(), Regression(), problem(57), **options)
    result["stopped after"] = len(stopped.train)

    broken = Counting(2, lambda: float("nan") if rank == 1 else 1.0)
    try:
        fit(network(), Regression(), problem(57), **options, loss=broken)
    except IT3Error as problem_:
        result["not finite"] = str(problem_)

    result["group of the caller lives"] = dist.is_initialized()
    (folder / f"{rank}.json").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


# Robustness: what can't be used is told.


def test_a_loss_that_is_not_finite_ends_it_in_good_order(path: Path, whole: Whole) -> None:
    model = network()
    message = r"not finite in epoch 2, step 3: lower lr \(it is 0\.019.*run\.safetensors holds"
    with pytest.raises(IT3Error, match=message):
        demanding(model, path, loss=Counting(7, lambda: float("nan")))
    assert all(value.isfinite().all() for value in weights(model).values())
    goes_on(path, whole, STEPS - 6)


def steep(model: nn.Module, adapter: Any, x: Any, y: Tensor) -> Tensor:
    return zigzag_loss(model, adapter, x, y).mul(0).sqrt()  # infinitely steep at 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loss": steep}, "the gradient is not finite in epoch 1, step 1"),
        ({"validation": lambda m: float("nan")}, "the validation loss is not finite after epoch 1"),
    ],
)
def test_what_is_not_finite_is_noticed(change: dict[str, Any], message: str) -> None:
    with pytest.raises(IT3Error, match=message):
        train(network(), **change)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"seed": 4, "clip": None}, r"clip was 1\.0 and is None; seed was 3 and is 4"),
    ({"loss": zigzag_loss}, r"loss was zigzag_loss\(second_signal=noisy\) and is zigzag_loss"),
    ({"optimizer": "SGD"}, r"optimizer was SGD\(momentum=0\.9, nesterov=True\) and is SGD"),
    ({"validation": 0.5}, "the number of rows was 60 and is 30; the number of validation rows was"),
    ({"validation": (problem(20)[0], problem(20)[1] + 1)}, "the validation data's fingerprint was"),
    ({"model": widen(nn.Linear(3, 1), Regression())}, "another network .it lacks 'model.weight'"),
    (
        {"model": network().double(), "validation": tuple(part.double() for part in problem(20))},
        "the weights' type was torch.float32 and is torch.float64",
    ),
]


@pytest.mark.parametrize(("change", "message"), REFUSED)
def test_a_checkpoint_of_another_run_is_refused(
    path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(KilledError):
        demanding(network(), path, collate=killing)
    content, change = path.read_bytes(), dict(change)
    model = change.pop("model", network())
    with pytest.raises(IT3Error, match=message):
        demanding(model, path, **change)
    assert path.read_bytes() == content


def killing(items: list[Any]) -> Any:
    raise KilledError


X, Y = problem()
BAD: list[tuple[dict[str, Any], str]] = [
    ({"epochs": 0}, "epochs must be a whole number from 1 on, not 0"),
    ({"batch_size": 2.5}, "batch_size must be a whole number"),
    ({"patience": 3, "validation": None}, "patience needs a validation loss"),
    ({"workers": -1}, "workers must be a whole number from 0 on"),
    ({"lr": float("nan")}, "lr must be a positive number"),
    ({"freeze_until": "9"}, "the network has no layer '9'"),
    ({"clip": -1.0}, "clip must be a positive number"),
    ({"every": -1.0}, "every is a number of seconds"),
    ({"validation": 1.0}, "validation=1.0 must be a fraction between 0 and 1"),
    ({"validation": (X, Y[:5])}, r"60 inputs, but the labels have shape \(5,\)"),
    ({"optimizer": "Adm"}, "torch.optim has no optimiser 'Adm'"),
    ({"optimizer": "LBFGS"}, "LBFGS"),
    ({"schedule": "cosin"}, '"constant", "cosine", "onecycle", "step" or "step30"'),
    ({"collate": list}, "collate belongs to a Dataset"),
    ({"loss": lambda model, adapter, x, y: y}, "the loss must be one number"),
    ({"data": (X, [1, 2])}, "must be a pair"),
    ({"data": (X[:0], Y[:0])}, "there are no rows"),
    ({"data": (X / 0, Y)}, "the input has Inf"),
    ({"data": (X, Y / 0)}, "the labels hold NaN or Inf"),
    ({"data": (X.double(), Y)}, "the input is torch.float64"),
    ({"data": (X[:1], Y[:1])}, "give None to train on all"),
    ({"data": TensorDataset(X)}, "must be a pair"),
    ({"model": nn.LazyLinear(1)}, "run it once first"),
    ({"model": network().requires_grad_(False)}, "there is nothing to train"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_bad_arguments_are_told(change: dict[str, Any], message: str) -> None:
    arguments = {"model": network(), "adapter": Regression(), "data": (X, Y), **change}
    with pytest.raises(IT3Error, match=message) as raised:
        fit(**{"epochs": 1, "progress": False, **arguments})
    assert "\n" not in str(raised.value)


if __name__ == "__main__":
    {"nursery": nursery, "together": together}[sys.argv[1]](Path(sys.argv[2]))
