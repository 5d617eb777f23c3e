"""Checkpoints: what goes in comes out, a file is whole or absent, and a bad one says what it is."""

from __future__ import annotations

import base64
import json
import os
import random
import resource
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import it3_core
from it3_core import Classification, IT3Error, Regression, condition, widen
from it3_core.checkpoint import load, save
from it3_core.tensorfile import read_tensors, write_tensors

SOURCE = str(Path(it3_core.__file__).parents[1])


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))
    return condition(net, Regression(), layer="0")


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(100, 100, bias=False)
        self.second = nn.Linear(100, 100, bias=False)
        self.second.weight = self.first.weight


class Learnt:
    """Stands in for anything that describes itself."""

    def describe(self) -> dict[str, Any]:
        return {"quantiles": [0.1, 0.5], "rate": 1 / 3}


def same(first: Tensor, second: Tensor) -> bool:
    """Equal bit for bit, so that NaN equals NaN and 0 differs from −0."""
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    one, other = first.contiguous().flatten(), second.contiguous().flatten()
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "net.safetensors"


@pytest.fixture
def good(path: Path) -> bytes:
    save(path, network(), adapter=Regression(), settings={"hidden": 4})
    return path.read_bytes()


# Golden: what goes in comes out.


def test_everything_comes_back(path: Path) -> None:
    net, activations = network(), {"means.0": torch.randn(4, dtype=torch.float64)}
    save(
        path,
        net,
        adapter=Regression([1 / 3, 2.0], [0.1, 1e-30]),
        settings={"hidden": [30, 20], "name": "Flügel ³", "dropout": None},
        trust=Learnt(),
        tuning={"method": "none"},
        tensors=activations,
        versions={"it3-aero": "0.3.1"},
    )
    found = load(path)
    assert found.weights.keys() == net.state_dict().keys()
    assert all(same(found.weights[name], value) for name, value in net.state_dict().items())
    assert isinstance(found.adapter, Regression)
    assert found.adapter.mean == (1 / 3, 2.0)
    assert found.adapter.std == (0.1, 1e-30)
    assert found.settings == {"hidden": [30, 20], "name": "Flügel ³", "dropout": None}
    assert found.trust == {"quantiles": [0.1, 0.5], "rate": 1 / 3}
    assert found.tuning == {"method": "none"}
    assert same(found.tensors["means.0"], activations["means.0"])
    assert found.versions == {
        "it3-core": it3_core.__version__,
        "torch": torch.__version__,
        "it3-aero": "0.3.1",
    }


def test_what_was_left_out_is_none(path: Path, good: bytes) -> None:
    found = load(path)
    assert (found.trust, found.tuning, found.tensors) == (None, None, {})


def test_restore_gives_the_same_answers(path: Path, good: bytes) -> None:
    net, other, x = network().eval(), network(seed=1).eval(), torch.randn(5, 3)
    neutral = Regression().neutral(x)
    assert not torch.equal(net(x, neutral), other(x, neutral))
    assert load(path).restore(other) is other
    assert torch.equal(net(x, neutral), other(x, neutral))


DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
DTYPES += [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]


def test_tensors_of_every_kind_come_back(path: Path) -> None:
    kinds = {str(dtype): torch.tensor([0, 1, 3]).to(dtype) for dtype in DTYPES}
    kinds["special"] = torch.tensor([float("nan"), float("inf"), -0.0, 1e-45])
    kinds["empty"] = torch.zeros(0, 3)
    kinds["number"] = torch.tensor(7)
    kinds["transposed"] = torch.arange(6).view(2, 3).t()
    kinds["channels last"] = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    kinds["every second"] = torch.arange(10)[::2]
    kinds["needs a gradient"] = torch.ones(2, requires_grad=True)
    write_tensors(path, kinds, {}, kind="test")
    found = read_tensors(path, kind="test").tensors
    assert found.keys() == kinds.keys()
    for name, tensor in kinds.items():
        assert same(found[name], tensor.detach()), name


def test_safetensors_itself_reads_the_file(path: Path, good: bytes) -> None:
    found = safetensors.torch.load_file(path)
    assert {name.removeprefix("weights.") for name in found} == network().state_dict().keys()
    assert all(same(found[f"weights.{name}"], t) for name, t in network().state_dict().items())
    with safetensors.safe_open(path, framework="pt") as file:
        assert list(file.metadata()) == ["it3"]
        assert json.loads(file.metadata()["it3"])["schema"] == 1


# Written by it3-core 0.1.0: whatever comes after must still read it.
SCHEMA_1 = (
    "eAIAAAAAAAB7Il9fbWV0YWRhdGFfXyI6eyJpdDMiOiJ7XCJraW5kXCI6XCJjaGVja3BvaW50XCIsXCJtZXRhZGF0YV"
    "wiOntcImFkYXB0ZXJcIjp7XCJkaXN0YW5jZVwiOlwiYWJzb2x1dGVcIixcImtpbmRcIjpcIlJlZ3Jlc3Npb25cIixc"
    "Im1lYW5cIjpbMjAuMF0sXCJzdGRcIjpbNS4wXX0sXCJzZXR0aW5nc1wiOntcImlucHV0c1wiOjJ9LFwidHJ1c3RcIj"
    "p7XCJxdWFudGlsZXNcIjpbMC4yNSwwLjVdfSxcInR1bmluZ1wiOm51bGx9LFwic2NoZW1hXCI6MSxcInNoYTI1Nlwi"
    "OlwiYWRjNjk0ZjM3NTc2NDMzNjJhNjk1NTUxYTNkMTJhMDFmMzkzMzA2ZGRjYzZkYWMwZjg1MWJhZTNlZGU0NWViMF"
    "wiLFwidGllc1wiOnt9LFwidmVyc2lvbnNcIjp7XCJpdDMtY29yZVwiOlwiMC4xLjBcIixcInRvcmNoXCI6XCIyLjEz"
    "LjArY3B1XCJ9fSJ9LCJ0ZW5zb3JzLm1lYW5zLjAiOnsiZHR5cGUiOiJGNjQiLCJzaGFwZSI6WzJdLCJkYXRhX29mZn"
    "NldHMiOlswLDE2XX0sIndlaWdodHMubW9kZWwuYmlhcyI6eyJkdHlwZSI6IkYzMiIsInNoYXBlIjpbMV0sImRhdGFf"
    "b2Zmc2V0cyI6WzE2LDIwXX0sIndlaWdodHMubW9kZWwud2VpZ2h0Ijp7ImR0eXBlIjoiRjMyIiwic2hhcGUiOlsxLD"
    "RdLCJkYXRhX29mZnNldHMiOlsyMCwzNl19fSAgICAgIAAAAAAAAPA/AAAAAAAAAEAAAAA/AACAPwAAIMAAAAAAAAAA"
    "AA=="
)


def test_a_file_of_schema_1_is_read_for_ever(path: Path) -> None:
    path.write_bytes(base64.b64decode(SCHEMA_1))
    found = load(path)
    assert found.weights["model.weight"].tolist() == [[1.0, -2.5, 0.0, 0.0]]
    assert found.weights["model.bias"].tolist() == [0.5]
    assert repr(found.adapter) == "Regression(mean=[20.0], std=[5.0], distance='absolute')"
    assert found.settings == {"inputs": 2}
    assert found.trust == {"quantiles": [0.25, 0.5]}
    assert found.tuning is None
    assert found.tensors["means.0"].tolist() == [1.0, 2.0]
    assert found.versions["it3-core"] == "0.1.0"


def test_summary_is_for_people(path: Path) -> None:
    save(
        path,
        network(),
        adapter=Classification(3),
        settings={"hidden": 4},
        trust=Learnt(),
        tensors={"means.0": torch.zeros(1000)},
        versions={"it3-vision": "0.2.0"},
    )
    lines = load(path).summary().splitlines()
    assert lines[0].startswith(f"IT³ checkpoint, written with it3-core {it3_core.__version__}")
    assert lines[0].endswith("it3-vision 0.2.0")
    assert lines[2] == "tensors   1000 numbers in 1 tensor (4 kB): 'means.0'"
    assert lines[3:] == [
        'adapter   {"kind": "Classification", "classes": 3, "distance": "js"}',
        'settings  {"hidden": 4}',
        'trust     {"quantiles": [0.1, 0.5], "rate": 0.3333333333333333}',
        "tuning    not run",
    ]


# Invariants.


def test_the_same_content_gives_the_same_bytes(path: Path, good: bytes) -> None:
    save(path, network(), adapter=Regression(), settings={"hidden": 4})
    assert path.read_bytes() == good


def test_tied_weights_are_stored_once_and_stay_tied(path: Path) -> None:
    net = Tied()
    save(path, net, adapter=Regression(), settings={})
    assert path.stat().st_size < 1.2 * net.first.weight.nbytes
    found = load(path)
    assert found.weights["first.weight"] is found.weights["second.weight"]
    other = found.restore(Tied())
    assert other.first.weight is other.second.weight
    assert same(other.second.weight.detach(), net.second.weight.detach())


def test_views_of_one_tensor_come_back_apart(path: Path) -> None:
    whole = torch.arange(6.0)
    write_tensors(path, {"a": whole[:4], "b": whole[2:], "c": whole.view(2, 3)}, {}, kind="test")
    found = read_tensors(path, kind="test").tensors
    assert found["a"].tolist() == [0, 1, 2, 3]
    assert found["b"].tolist() == [2, 3, 4, 5]
    assert found["c"].tolist() == [[0, 1, 2], [3, 4, 5]]
    found["a"].zero_()
    assert found["b"].tolist() == [2, 3, 4, 5]


def test_what_was_read_outlives_the_file(path: Path, good: bytes) -> None:
    found = load(path)
    with path.open("r+b") as file:
        file.write(b"\xff" * len(good))
    assert all(same(found.weights[name], t) for name, t in network().state_dict().items())


def test_a_link_stays_a_link(tmp_path: Path, path: Path, good: bytes) -> None:
    link = tmp_path / "latest.safetensors"
    link.symlink_to(path)
    save(link, network(seed=1), adapter=Regression(), settings={})
    assert link.is_symlink()
    assert path.read_bytes() != good


def test_numpy_is_not_needed(path: Path) -> None:
    program = f"""
import sys
sys.modules["numpy"] = None  # any import of it fails
import warnings
warnings.simplefilter("ignore")
import torch
from it3_core import Regression, widen
from it3_core.checkpoint import load, save
net = widen(torch.nn.Linear(3, 1), Regression())
save({str(path)!r}, net, adapter=Regression(), settings={{}}, tensors={{"e": torch.ones(2, 2)}})
load({str(path)!r}).restore(net)
try:
    import numpy
except ImportError:
    print("done without numpy")
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": SOURCE},
        check=False,
    )
    assert done.stdout == "done without numpy\n", done.stderr
    assert load(path).tensors["e"].tolist() == [[1, 1], [1, 1]]


def test_the_file_reaches_the_disk_before_its_name(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = []
    fsync, replace = os.fsync, Path.replace

    def sync(descriptor: int) -> None:
        synced = Path(f"/proc/self/fd/{descriptor}").readlink()
        events.append("folder" if synced.is_dir() else f"file of {synced.stat().st_size}")
        fsync(descriptor)

    def rename(old: Path, new: Path) -> Path:
        events.append("name")
        return replace(old, new)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Path, "replace", rename)
    write_tensors(path, {"a": torch.zeros(3)}, {}, kind="test")
    assert events == [f"file of {path.stat().st_size}", "name", "folder"]


# Robustness: a bad file says what it is.


def pickled(path: Path) -> None:
    torch.save({"weight": torch.zeros(2)}, path)


def pickled_the_old_way(path: Path) -> None:
    torch.save({"weight": torch.zeros(2)}, path, _use_new_zipfile_serialization=False)


def zipped(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", "x" * 100)


def another_program_s(path: Path) -> None:
    safetensors.torch.save_file({"weight": torch.zeros(2)}, path)


def of_another_kind(path: Path) -> None:
    write_tensors(path, {}, {}, kind="training")


def of_a_newer_schema(path: Path) -> None:
    body = {"schema": 2, "kind": "checkpoint", "versions": {"it3-core": "9.9"}, "new": True}
    safetensors.torch.save_file({}, path, {"it3": json.dumps(body)})


def with_bad_metadata(path: Path) -> None:
    safetensors.torch.save_file({}, path, {"it3": "{"})


def cut_off_in_the_data(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def cut_off_in_the_header(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def too_long(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\n")


def with_one_bit_turned(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


BAD = [
    (Path.unlink, "there is no file"),
    (a_folder, "is a folder"),
    (lambda path: path.write_bytes(b""), "has 0 bytes"),
    (lambda path: path.write_text("epoch,loss\n1,0.5\n"), "is no safetensors file"),
    (pickled, "is a pickle or zip file"),
    (pickled_the_old_way, "is a pickle or zip file"),
    (zipped, "is a pickle or zip file"),
    (another_program_s, "without IT³'s metadata"),
    (of_another_kind, "is a training file, but a checkpoint file is needed"),
    (of_a_newer_schema, r"schema 2, written by it3-core 9\.9; .* upgrade"),
    (with_bad_metadata, "is damaged.* its metadata can't be read"),
    (cut_off_in_the_header, "is cut off: 100 bytes are there"),
    (cut_off_in_the_data, "is cut off"),
    (too_long, "is damaged"),
    (with_one_bit_turned, "is damaged.* checksum"),
]


@pytest.mark.parametrize(("spoil", "message"), BAD)
def test_a_bad_file_says_what_it_is(path: Path, good: bytes, spoil: Any, message: str) -> None:
    spoil(path)
    with pytest.raises(IT3Error, match=message) as raised:
        load(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_cut_off_anywhere_is_refused(path: Path, good: bytes) -> None:
    for length in range(len(good)):
        path.write_bytes(good[:length])
        with pytest.raises(IT3Error):
            load(path)


def test_a_bit_turned_anywhere_is_noticed(path: Path, good: bytes) -> None:
    draw, before = random.Random(0), load(path)
    refused = 0
    for place in range(len(good)):
        content = bytearray(good)
        content[place] ^= 1 << draw.randrange(8)
        path.write_bytes(content)
        try:
            after = load(path)
        except IT3Error:
            refused += 1
        else:  # JSON can be spelt in two ways; it must say the same
            assert after.summary() == before.summary()
            assert all(same(after.weights[n], t) for n, t in before.weights.items())
    assert refused > 0.99 * len(good)


def test_nothing_is_unpickled(path: Path, good: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    import pickle

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    monkeypatch.setattr(torch, "load", refuse)
    load(path)
    pickled(path)
    with pytest.raises(IT3Error):
        load(path)


def test_another_network_is_refused_by_name_and_left_alone(path: Path, good: bytes) -> None:
    other = widen(nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1)), Regression())
    before = {name: value.clone() for name, value in other.state_dict().items()}
    with pytest.raises(IT3Error) as raised:
        load(path).restore(other)
    message = str(raised.value)
    assert "it lacks 'model.2.weight', 'model.2.bias';" in message
    assert "it has 'embed." in message
    assert " and 5 more, which the network has not;" in message
    assert "'model.0.weight' has shape (4, 3), not (4, 4)" in message
    assert all(same(value, before[name]) for name, value in other.state_dict().items())


def test_an_unknown_adapter_does_not_hide_the_rest(path: Path) -> None:
    class Own(Regression):
        def describe(self) -> dict[str, Any]:
            return {"kind": "LiftAndDrag", "mach": 0.3}

    save(path, network(), adapter=Own(), settings={"hidden": 4})
    found = load(path)
    assert found.adapter_description == {"kind": "LiftAndDrag", "mach": 0.3}
    assert found.settings == {"hidden": 4}
    assert "LiftAndDrag" in found.summary()
    with pytest.raises(IT3Error, match="LiftAndDrag"):
        _ = found.adapter


class Stateful(nn.Linear):
    def get_extra_state(self) -> str:
        return "a string"


UNFIT: list[tuple[dict[str, Any], str]] = [
    ({"settings": {"rate": float("nan")}}, "JSON"),
    ({"settings": {"path": Path()}}, "JSON"),
    ({"tensors": {"s": torch.eye(2).to_sparse()}}, "'tensors.s' .* dense"),
    ({"tensors": {"c": torch.zeros(2, dtype=torch.complex64)}}, "complex64"),
    ({"tensors": {"n": [1, 2]}}, "'tensors.n' is a list"),
    ({"tensors": {"m": torch.zeros(2, device="meta")}}, "no values"),
    ({"model": nn.LazyLinear(2)}, "run the network once"),
    ({"model": Stateful(1, 1)}, "is a str"),
]


@pytest.mark.parametrize(("change", "message"), UNFIT)
def test_what_cannot_be_stored_is_named(
    path: Path, good: bytes, change: dict[str, Any], message: str
) -> None:
    arguments = {"model": network(), "adapter": Regression(), "settings": {}, **change}
    with pytest.raises(IT3Error, match=message):
        save(path, **arguments)
    assert path.read_bytes() == good
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(IT3Error, match=f"there is no folder {tmp_path / 'no'}: make it first"):
        save(tmp_path / "no" / "net.safetensors", network(), adapter=Regression(), settings={})


def test_an_interrupted_write_leaves_the_old_file(
    path: Path, good: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save(path, network(seed=1), adapter=Regression(), settings={})
    assert path.read_bytes() == good
    assert list(path.parent.iterdir()) == [path]


def test_a_full_disk_leaves_the_old_file(path: Path, good: bytes) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))  # the kernel stops the write
    try:
        with pytest.raises(IT3Error, match=r"can't write .*net\.safetensors \(File too large\)"):
            save(path, nn.Linear(300, 300), adapter=Regression(), settings={})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_bytes() == good
    assert list(path.parent.iterdir()) == [path]
