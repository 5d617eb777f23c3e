"""Checkpoints: what goes in comes out, a file is whole or absent, and a bad one says what it is."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import it3_core
from it3_core import IT3Error, Regression, condition, widen
from it3_core.io.tensors import load, read_tensors, save, write_tensors


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


DTYPES = [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


def test_tensors_of_every_kind_come_back(path: Path) -> None:
    kinds = {str(dtype): torch.tensor([0, 1, 3]).to(dtype) for dtype in DTYPES}
    kinds["special"] = torch.tensor([float("nan"), float("inf"), -0.0, 1e-45])
    kinds["empty"] = torch.zeros(0, 3)
    kinds["number"] = torch.tensor(7)
    kinds["transposed"] = torch.arange(6).view(2, 3).t()
    kinds["channels last"] = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    kinds["a view"] = kinds["special"][1:]
    kinds["needs a gradient"] = torch.ones(2, requires_grad=True)
    write_tensors(path, kinds, {}, kind="test")
    found = read_tensors(path, kind="test", metadata=dict[str, Any]).tensors
    assert found.keys() == kinds.keys()
    for name, tensor in kinds.items():
        assert same(found[name], tensor.detach()), name


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


# Robustness: a bad file says what it is.


def pickled(path: Path) -> None:
    torch.save({"weight": torch.zeros(2)}, path)


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def spoilt(path: Path, change: Callable[[bytearray], object]) -> None:
    content = bytearray(path.read_bytes())
    change(content)
    path.write_bytes(content)


def of_schema(path: Path, number: Any) -> None:
    body = {"schema": number, "kind": "checkpoint", "versions": {"it3-core": "9.9"}, "new": True}
    safetensors.torch.save_file({}, path, {"it3": json.dumps(body)})


BAD: list[tuple[Callable[[Path], object], str]] = [
    (Path.unlink, "there is no file"),
    (a_folder, "is a folder"),
    (lambda path: path.write_bytes(b""), "is cut off, damaged or no"),
    (lambda path: path.write_text("epoch,loss\n1,0.5\n"), "no safetensors file"),
    (pickled, "never loaded"),
    (lambda p: safetensors.torch.save_file({"a": torch.zeros(2)}, p), "without IT³'s metadata"),
    (lambda path: write_tensors(path, {}, {}, kind="training"), "is a training file, but a checkp"),
    (partial(of_schema, number=1), "is of schema 1, .* make the file again"),
    (partial(of_schema, number=[]), "damaged: schema should be a whole number, but is a list: "),
    (partial(of_schema, number=3), "is of schema 3, .* upgrade it"),
    (lambda p: safetensors.torch.save_file({}, p, {"it3": "{"}), "the metadata of .* is damaged"),
    *(
        (
            lambda path, end=end: spoilt(
                path, lambda content: content.__delitem__(slice(end, None))
            ),
            "is cut off",
        )
        for end in (1, 7, 8, 9, 500, -1000, -17, -1)
    ),
    (lambda path: spoilt(path, lambda content: content.append(10)), "is cut off, damaged"),
    (lambda path: spoilt(path, lambda c: c.__setitem__(-3, c[-3] ^ 1)), "is damaged.* checksum"),
]


@pytest.mark.parametrize(("spoil", "message"), BAD)
def test_a_bad_file_says_what_it_is(path: Path, good: bytes, spoil: Any, message: str) -> None:
    spoil(path)
    with pytest.raises(IT3Error, match=message) as raised:
        load(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_bit_turned_anywhere_is_noticed(path: Path, good: bytes) -> None:
    draw, before = random.Random(0), load(path)
    places, refused = range(0, len(good), 4), 0
    for place in places:
        content = bytearray(good)
        content[place] ^= 1 << draw.randrange(8)
        path.write_bytes(content)
        try:
            after = load(path)
        except IT3Error:
            refused += 1
        else:  # JSON can be spelt in two ways; it must say the same
            assert replace(after, weights={}) == replace(before, weights={})
            assert all(same(after.weights[n], t) for n, t in before.weights.items())
    assert refused > 0.99 * len(places)


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


class Stateful(nn.Linear):
    def get_extra_state(self) -> str:
        return "a string"


UNFIT: list[tuple[dict[str, Any], str]] = [
    ({"settings": {"rate": float("nan")}}, "JSON"),
    ({"settings": {"path": Path()}}, "JSON"),
    ({"tensors": {"s": torch.eye(2).to_sparse()}}, "'tensors.s' .* dense"),
    ({"tensors": {"f": torch.zeros(2).to(torch.float8_e5m2)}}, "float8_e5m2"),
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
