"""Networks that nobody here wrote: small stand-ins for what other libraries' networks do."""

from __future__ import annotations

import copy
import json
import shutil
from collections import OrderedDict, UserDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from it3_core import (
    IT3,
    Adapter,
    AnswerStep,
    Classification,
    DenseMap,
    IT3Error,
    IT3Warning,
    OnlineIT3,
    Regression,
    Source,
    Tent,
    Trust,
    fit,
    load,
    save,
    supervised_loss,
    widen,
    zigzag_loss,
)
from it3_core import condition as conditioned
from it3_core.batching import take
from it3_core.io.tensors import Checkpoint

NAN, INF = float("nan"), float("inf")

METHODS: list[Callable[..., Any]] = [
    Source,
    AnswerStep,
    IT3,
    lambda m, a: IT3(m, a, parameters="above"),
    lambda m, a: IT3(m, a, per_instance=True, steps=2),
    OnlineIT3,
]


def listening(model: nn.Module, adapter: Adapter, layer: str, **how: Any) -> Any:
    """A network with a signal, as if it had been trained."""
    made = conditioned(model, adapter, layer, **how)
    nn.init.normal_(made.embed.weight, std=0.5)  # type: ignore[union-attr, arg-type]
    return made


def plain_step(model: nn.Module, adapter: Adapter, x: Any) -> Tensor:
    """What IT³ must answer: a step of torch.optim on a copy."""
    f, anchor = copy.deepcopy(model).eval(), copy.deepcopy(model).eval()
    optimizer = torch.optim.SGD(f.parameters(), lr=0.05)
    y0 = f(x, adapter.neutral(x))
    adapter.distance(anchor(x, adapter.encode(y0)), y0).mean().backward()
    optimizer.step()
    answer: Tensor = f(x, adapter.neutral(x)).detach()
    return answer


class Pooling(nn.Linear):
    """As torch-geometric's aggregations: called with a keyword `index`; SchNet's say `forward`."""

    def forward(self, x: Tensor, index: int = 0, forward: bool = False) -> Tensor:  # type: ignore[override]
        return super().forward(x) * (index + forward)


class Net(nn.Module):
    """Layers by name, and what is done with them."""

    def __init__(self, run: Callable[[Any, Any], Any], **layers: nn.Module) -> None:
        super().__init__()
        self.run = run
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x: Any) -> Any:
        return self.run(self, x)


def keywords() -> nn.Module:
    def run(net: Any, x: Tensor) -> Any:
        x = net.pool(net.norm(input=net.stem(x)), index=1, forward=True)
        return net.head(net.late(x.tanh(), index=2, forward=False))

    first = {"stem": nn.Linear(3, 4), "norm": nn.BatchNorm1d(4), "pool": Pooling(4, 4)}
    return Net(run, **first, late=Pooling(4, 4), head=nn.Linear(4, 1))


class Dense(nn.ModuleDict):
    """As torchvision's DenseNet blocks: a container with a forward of its own."""

    def __init__(self) -> None:
        super().__init__({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)})

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.values():
            x = x + layer(x).tanh()
        return x


def dense() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 3), Dense(), Dense(), nn.Linear(3, 1))


def tied() -> nn.Module:
    layer = nn.Linear(3, 3)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(3, 1))


class Several(nn.Linear):
    """A layer that returns its features and something else, in a tuple, a dict or a ModelOutput."""

    def __init__(self, kind: Callable[..., Any]) -> None:
        super().__init__(3, 4)
        self.kind = kind

    def forward(self, x: Tensor) -> Any:
        return self.kind("a note", super().forward(x), x)


class ModelOutput(OrderedDict[str, Any]):
    """As Hugging Face's: a dict of a type of its own, which counts its parts too."""


class Pair(NamedTuple):
    note: str
    first: Tensor
    second: Tensor


def as_dict(note: str, first: Tensor, second: Tensor) -> Any:
    return ModelOutput(note=note, first=first, second=second)


class Encoder(nn.Module):
    """As Hugging Face's: called by keywords, a layer and the network return several things."""

    def __init__(self, kind: Callable[..., Any]) -> None:
        super().__init__()
        self.kind, self.stem, self.head = kind, Several(kind), nn.Linear(4, 1)

    def forward(self, ids: Any = None, mask: Any = None, **more: Any) -> Any:
        if isinstance(ids, dict):
            raise ValueError("You have to specify ids")
        returned = self.stem(ids * mask)
        hidden = list(returned.values() if isinstance(returned, dict) else returned)[1]
        return self.kind("loss", self.head(hidden.tanh()), hidden)


WORDS = {"ids": torch.linspace(-1, 1, 12).view(4, 3), "mask": torch.ones(4, 3)}


@pytest.mark.parametrize(
    ("make", "layer", "how", "x"),
    [
        (keywords, "pool", {}, WORDS["ids"]),
        (dense, "1", {"channels": 3}, WORDS["ids"]),
        (dense, "1.b", {}, WORDS["ids"]),
        (tied, "2", {}, WORDS["ids"]),
        (lambda: Encoder(lambda *parts: parts), "stem", {"output": 1}, WORDS),
        (lambda: Encoder(Pair), "stem", {"output": "first"}, UserDict(WORDS)),
        (lambda: Encoder(as_dict), "stem", {"output": "first"}, UserDict(WORDS)),
        (lambda: Encoder(as_dict), "stem", {"output": 1}, ModelOutput(WORDS)),
    ],
)
@pytest.mark.filterwarnings("ignore:this network can't be mapped")
def test_networks_of_other_makes_adapt_as_a_plain_step_does(
    make: Callable[[], nn.Module], layer: str, how: dict[str, Any], x: Any
) -> None:
    torch.manual_seed(0)
    adapter = Regression()
    model = listening(make(), adapter, layer, **how).eval()
    fit(model, adapter, (x, torch.arange(4.0)), epochs=1, progress=False, validation=0.25)
    before = copy.deepcopy(model.state_dict())
    expected = plain_step(model, adapter, x)
    method = IT3(model, adapter, lr=0.05, optimizer="SGD", anchor_gradient=True, trust_region=False)
    for _ in range(2):
        torch.testing.assert_close(method(x).prediction, expected)
    first = model(x, adapter.neutral(x))
    for kind in METHODS:
        found = kind(model, adapter)
        torch.testing.assert_close(found(x).initial, first)
        assert found(x).prediction.shape == first.shape
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_norms_that_are_called_by_keyword() -> None:
    adapter, x, y = Regression(), torch.randn(6, 3), torch.randn(6)
    model = listening(keywords(), adapter, "stem")
    zigzag_loss(model, adapter, x, y, shared_prefix=True).backward()
    for norm in (0.5, "batch"):
        assert Source(model, adapter, norm=norm)(x).prediction.isfinite().all()


def tokens() -> nn.Module:
    def run(net: Any, ids: Tensor) -> Any:
        return net.head(net.mix(net.embed(ids)).mean(1).tanh())

    return Net(run, embed=nn.Embedding(9, 4), mix=nn.Linear(4, 4), head=nn.Linear(4, 3))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("way", ["condition", "widen"])
def test_token_ids_into_weights_of_any_type(dtype: torch.dtype, way: str) -> None:
    adapter, x = Classification(3), torch.randint(9, (4, 5))
    if way == "condition":
        model: nn.Module = listening(tokens().to(dtype), adapter, "mix")
    else:
        model = widen(tokens().to(dtype), adapter, "head")
    fit(model, adapter, (x, torch.tensor([0, 1, 2, 0])), epochs=1, progress=False)
    for kind in METHODS[: 6 if way == "condition" else 3]:
        assert kind(model, adapter)(x).prediction.dtype == dtype
    with pytest.raises(IT3Error, match=r"shape \(4, 5\): give it one like those"):
        Source(model, adapter)(x.to(dtype))


def test_rows_adapt_each_on_its_own_where_an_answer_is_one_number() -> None:
    adapter, x = Regression(), torch.randn(4, 3)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1), nn.Flatten(0))
    model = listening(net, adapter, "0")
    alone = torch.cat([IT3(model, adapter)(row).prediction for row in x[:, None]])
    found = IT3(model, adapter, per_instance=True)(x)
    torch.testing.assert_close(found.prediction, alone)
    assert found.error_after.shape == (4,)


def skipping() -> nn.Module:
    return Net(lambda net, x: net.used(x), used=nn.Linear(3, 3), unused=nn.Linear(3, 3))


IDS = WORDS["ids"]
LABELS = torch.tensor([0, 1, 2, 0])
CLASSES, NUMBER, MAP = Classification(3), Regression(), torch.zeros(4, 3, 2, 2)
MISTAKES: list[tuple[Any, Adapter, Tensor, str]] = [
    ((nn.Linear(3, 5), "", IDS), CLASSES, LABELS, r"\(batch, classes\), not \(3, 5\)"),
    ((nn.Linear(3, 2), "", IDS), CLASSES, LABELS, r"\(batch, classes\), not \(3, 2\)"),
    ((nn.Linear(3, 2), "", IDS), NUMBER, IDS[:, 0], "2 answers, but the adapter 1"),
    ((nn.Linear(3, 1), "", IDS), NUMBER, IDS[:, :2], "don't fit"),
    ((nn.Conv2d(3, 4, 1), "", MAP), DenseMap(), LABELS, r"logits .* not \(3, 4, 2, 2\)"),
    ((skipping(), "unused", IDS), CLASSES, LABELS, "'unused' does not run"),
    ((Encoder(lambda *p: p), "stem", WORDS), NUMBER, LABELS, "a tuple of 0, 1, 2,.*output="),
    ((Encoder(as_dict), "stem", WORDS), NUMBER, LABELS, "ModelOutput of 'note', 'first', 'second'"),
    ((nn.Linear(4, 3), "", IDS), CLASSES, LABELS, r"shape \(3, 3\): give it one"),
    ((nn.Conv2d(3, 1, 1), "", MAP.byte()), DenseMap(), LABELS, r"x.float\(\)"),
]


@pytest.mark.parametrize(("network", "adapter", "y", "message"), MISTAKES)
def test_mistakes_are_found_before_training(
    network: tuple[nn.Module, str, Any], adapter: Adapter, y: Tensor, message: str
) -> None:
    net, layer, x = network
    model = listening(net, adapter, layer)
    before, trained = copy.deepcopy(model.state_dict()), []

    def loss(*_: Any) -> Tensor:
        trained.append(1)
        return model.embed.weight.sum()

    with pytest.raises(IT3Error, match=message) as raised:
        fit(model, adapter, (x, y), epochs=1, validation=0.25, loss=loss, progress=False)
    assert not trained
    assert "\n" not in str(raised.value)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def attention() -> nn.Module:
    def run(net: Any, x: Any) -> Any:
        tokens, mask = net.stem(x[0]), x[1]
        return net.head(((tokens @ tokens.mT + mask).softmax(-1) @ tokens).mean(1))

    return Net(run, stem=nn.Linear(3, 3), head=nn.Linear(3, 1))


@pytest.mark.parametrize("method", METHODS)
def test_masks_and_tensors_made_under_inference_mode(method: Callable[..., Any]) -> None:
    adapter = Regression()
    with torch.inference_mode():
        net = attention()
        x = torch.randn(4, 2, 3), torch.tensor([[0.0, -INF], [0.0, 0.0]]).expand(4, 2, 2)
    found = method(listening(net, adapter, "stem"), adapter)(x)
    assert found.prediction.isfinite().all()
    assert not found.prediction.is_inference()


NET = conditioned(nn.Linear(3, 1), Regression(), "")
INTEGERS = {name: value.long() for name, value in NET.state_dict().items()}
with torch.inference_mode():
    MADE_INSIDE = conditioned(nn.Linear(3, 1), Regression(), "")


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (lambda: Source(NET, Regression())(torch.zeros(4, 3, device="meta")), "'meta'"),
        (lambda: Source(copy.deepcopy(NET).to("meta"), Regression())(IDS), "network .* 'meta'"),
        (lambda: fit(copy.deepcopy(NET).to("meta"), Regression(), (IDS, IDS[:, 0])), "'meta'"),
        (lambda: Source(NET, Regression())({"other": IDS.float()}), "be Tensor, not dict"),
        (lambda: Source(NET, Regression())((IDS, IDS / 0)), "Inf in 12 of 12"),
        (lambda: Source(NET, Regression())(torch.full((4, 3), -INF)), "Inf in 12 of 12"),
        (lambda: Source(NET, Regression())((IDS * NAN).to_sparse()), "NaN in 12 of 12"),
        (
            lambda: conditioned(nn.Sequential(nn.ModuleList([nn.Linear(3, 3)])), Regression(), "0"),
            "only holds layers .* such as '0.0'",
        ),
        (
            lambda: Source(
                listening(Encoder(as_dict), Regression(), "stem", output="logits"), Regression()
            )(WORDS),
            "output='logits' is not in .* of 'note', 'first'",
        ),
        (lambda: take(IDS.to_sparse(), [0]), r"x.to_dense\(\)"),
        (lambda: Source(NET, Regression())(torch.zeros(4, 5)), r"shape \(4, 5\): give it one like"),
        (lambda: Trust.from_errors(IDS, false_alarms=0), "between 0 and 1, not 0"),
        (lambda: Checkpoint(INTEGERS, {}, {}, None, None, {}, {}).restore(NET), "int64, not torch"),
        (lambda: fit(MADE_INSIDE, Regression(), (IDS, IDS[:, 0])), "copy.deepcopy"),
    ],
)
def test_what_can_t_be_used_is_told_in_a_sentence(call: Callable[[], Any], hint: str) -> None:
    with pytest.raises(IT3Error, match=hint) as raised:
        call()
    assert "\n" not in str(raised.value)


def test_adapters_of_numpy_s_numbers() -> None:
    np = pytest.importorskip("numpy")
    assert Regression.fit(np.array([1.0, 3.0])).mean == (2.0,)
    assert json.dumps(Classification(np.int64(3)).describe())


@pytest.mark.parametrize("kind", [IT3, OnlineIT3, Source])
def test_a_layer_that_is_replaced_is_noticed(kind: Callable[..., Any]) -> None:
    model = listening(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1)), Regression(), "0")
    method = kind(model, Regression())
    method(IDS)
    model.model[1] = nn.Linear(4, 1)
    with pytest.raises(IT3Error, match="was replaced: make the method anew"):
        method(IDS)


def borrowing() -> nn.Module:
    def run(net: Any, x: Tensor) -> Any:
        x = net.stem(nn.functional.linear(x, net.late.weight))
        return net.head(net.late(x.tanh()))

    return Net(run, stem=nn.Linear(3, 3), late=nn.Linear(3, 3), head=nn.Linear(3, 1))


def test_a_weight_that_is_borrowed_below_the_signal_is_not_above_it() -> None:
    adapter = Regression()
    model = listening(borrowing(), adapter, "stem")
    how: dict[str, Any] = {"lr": 0.05, "optimizer": "SGD", "trust_region": False}
    whole = IT3(model, adapter, parameters="*late.weight", anchor_gradient=True, **how)
    f, anchor = copy.deepcopy(model), copy.deepcopy(model)
    y0 = f(IDS, adapter.neutral(IDS))
    adapter.distance(anchor(IDS, adapter.encode(y0)), y0).mean().backward()
    with torch.no_grad():
        f.model.late.weight -= 0.05 * f.model.late.weight.grad
    for _ in range(2):
        torch.testing.assert_close(whole(IDS).prediction, f(IDS, adapter.neutral(IDS)))
    with pytest.raises(IT3Error, match="used above the signal alone"):
        IT3(model, adapter, parameters="above")(IDS)


class Operator(nn.Module):
    """As neuralop's: complex weights, and settings in the state dict, asked for on loading."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.lift, self.project = nn.Linear(3, 4, dtype=dtype), nn.Linear(4, 1, dtype=dtype)
        self.modes = nn.Parameter(torch.complex(*torch.randn(2, 3, dtype=dtype)))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.fft.irfft(torch.fft.rfft(self.lift(x)) * self.modes, n=4)
        answer: Tensor = self.project(x.tanh())
        return answer

    def state_dict(self, *args: Any, **how: Any) -> Any:
        state = super().state_dict(*args, **how)
        state["_metadata"] = {"modes": 3}
        return state

    def load_state_dict(self, state: Any, strict: bool = True, assign: bool = False) -> Any:
        del state["_metadata"]
        return super().load_state_dict(state, strict, assign)


@pytest.mark.parametrize("signal", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_complex_weights_are_trained_saved_and_adapted(
    tmp_path: Path, signal: bool, dtype: torch.dtype
) -> None:
    adapter, x = Regression(), IDS.to(dtype)

    def make() -> nn.Module:
        net = Operator(dtype)
        return listening(net, adapter, "lift") if signal else net

    how: dict[str, Any] = {"epochs": 2, "progress": False, "checkpoint": tmp_path / "run"}
    if not signal:
        how["loss"] = supervised_loss
    model = make()
    if not signal:
        model.forward = lambda x, signal: Operator.forward(model, x)  # type: ignore[arg-type, assignment]
    history = fit(model, adapter, (x, x[:, 0]), **how)
    assert fit(model, adapter, (x, x[:, 0]), **how) == history  # finished
    save(tmp_path / "net", model, adapter=adapter, settings={})
    again = load(tmp_path / "net").restore(make())
    pairs = zip(model.parameters(), again.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    if signal:
        for kind in METHODS:
            assert kind(model, adapter)(x).prediction.isfinite().all()
        stream, resumed = (OnlineIT3(one, adapter, gate=None) for one in (model, again))
        stream(x)
        resumed.load_state_dict(stream.state_dict())
        assert torch.equal(resumed(x).prediction, stream(x).prediction)


def test_a_training_is_not_lost_when_its_last_checkpoint_can_t_be_written(tmp_path: Path) -> None:
    model = listening(nn.Linear(3, 1), Regression(), "")
    folder = tmp_path / "gone"
    folder.mkdir()

    def measure(_: nn.Module) -> float:
        shutil.rmtree(folder, ignore_errors=True)
        return 1.0

    with pytest.warns(IT3Warning, match="the network is trained, but its checkpoint .*no folder"):
        history = fit(
            model, Regression(), (IDS, IDS[:, 0]), epochs=1, validation=measure,
            checkpoint=folder / "run", progress=False,
        )  # fmt: skip
    assert history.best_epoch == 1


class OwnRMSNorm(nn.Module):
    """As every language model has one."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()


def test_a_norm_of_another_library_is_one() -> None:
    adapter = Classification(3)
    model = listening(nn.Sequential(nn.Linear(3, 3), OwnRMSNorm()), adapter, "0")
    assert Tent(model, adapter)(IDS).steps == 1
