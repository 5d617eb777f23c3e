"""What real networks do: in-place activations, counters, tied weights, half precision, wrappers."""

from __future__ import annotations

import copy
import warnings
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as nnf
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from it3_core import (
    IT3,
    Activations,
    ActMAD,
    Adapter,
    AnswerStep,
    Classification,
    Conditioned,
    DenseMap,
    IT3Error,
    IT3Warning,
    Method,
    OnlineIT3,
    Regression,
    Source,
    Trust,
    condition,
    sensitivity,
    widen,
    zigzag_loss,
)
from it3_core.methods.base import within_reach


def listening(model: Conditioned) -> Conditioned:
    """As if it had been trained."""
    nn.init.normal_(model.embed.weight, std=0.5)  # type: ignore[union-attr, arg-type]
    return model


def mlp(width: int = 4) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, 1))


class BasicBlock(nn.Module):
    """As torchvision's: one in-place ReLU for both places, an in-place sum."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None if stride == 1 else nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += identity
        output: Tensor = self.relu(out)
        return output


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace=True)
        self.layer1 = nn.Sequential(BasicBlock(4, 4, 1), BasicBlock(4, 4, 1))
        self.layer2 = nn.Sequential(BasicBlock(4, 6, 2))
        self.fc = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer2(self.layer1(self.relu(self.bn1(self.conv1(x)))))
        output: Tensor = self.fc(x.mean((2, 3)))
        return output


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.d1 = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(inplace=True))
        self.d2 = nn.Sequential(nn.Conv2d(4, 8, 3, 2, 1), nn.ReLU(inplace=True))
        self.up = nn.ConvTranspose2d(8, 4, 2, 2)
        self.out = nn.Conv2d(8, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.d1(x)
        output: Tensor = self.out(torch.cat([self.up(self.d2(first)), first], 1))
        return output


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(3, 5)
        self.lstm = nn.LSTM(5, 6, batch_first=True)
        self.head = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.enter(x))
        output: Tensor = self.head(hidden[:, -1])
        return output


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(3, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.head(self.layer(self.embed(x)).mean(1))
        return output


class Again(nn.Module):
    """Calls one layer three times; the signal enters there."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(3, 5)
        self.cell = nn.Linear(5, 5)
        self.head = nn.Linear(5, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.enter(x).tanh()
        for _ in range(3):
            hidden = self.cell(hidden).tanh()
        output: Tensor = self.head(hidden)
        return output


class Listed(nn.Module):
    """Keeps its layers in a list, which is never called itself."""

    def __init__(self) -> None:
        super().__init__()
        self.early = nn.ModuleList(nn.Linear(3, 3) for _ in range(2))
        self.first = nn.Linear(3, 5)
        self.rest = nn.ModuleList(nn.Linear(5, 5) for _ in range(3))
        self.heads = nn.ModuleDict({"a": nn.Linear(5, 1)})

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.early:
            x = layer(x).tanh()
        x = self.first(x)
        for layer in self.rest:
            x = layer(x.tanh())
        output: Tensor = self.heads["a"](x)
        return output


def test_layers_in_a_list_are_above_too() -> None:
    model, x = listening(condition(Listed(), Regression(), "first")), torch.randn(4, 3)
    above = IT3(model, Regression(), lr=1e-2, parameters="above")(x).prediction
    names = ["embed.*", "model.rest.*", "model.heads.*"]
    named = IT3(model, Regression(), lr=1e-2, parameters=names)(x).prediction
    assert torch.equal(above, named)
    inner = listening(condition(Listed(), Regression(), "rest.1"))
    assert not torch.equal(
        IT3(inner, Regression(), lr=1e-2, parameters="above")(x).prediction,
        Source(inner, Regression())(x).prediction,
    )


REAL: list[tuple[type[nn.Module], str, Adapter, tuple[int, ...]]] = [
    (ResNet, "layer1", Classification(3), (4, 3, 8, 8)),
    (ResNet, "layer1.0.conv1", Classification(3, "l2"), (4, 3, 8, 8)),
    (ResNet, "bn1", Classification(3, "kl"), (4, 3, 8, 8)),
    (UNet, "d1", DenseMap(), (4, 3, 8, 8)),
    (UNet, "d2", DenseMap(), (4, 3, 8, 8)),
    (Recurrent, "enter", Regression(), (4, 5, 3)),
    (Transformer, "embed", Classification(2), (4, 5, 3)),
    (Transformer, "layer", Classification(2), (4, 5, 3)),
    (Again, "cell", Regression(), (4, 3)),
    (Again, "enter", Regression(), (4, 3)),
    (Listed, "first", Regression(), (4, 3)),
    (Listed, "rest.1", Regression(), (4, 3)),
]


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.filterwarnings("ignore:this network can't be mapped")
@pytest.mark.parametrize(("kind", "layer", "adapter", "shape"), REAL)
def test_sharing_mapping_and_plain_passes_agree(
    kind: type[nn.Module], layer: str, adapter: Adapter, shape: tuple[int, ...]
) -> None:
    """Trunk sharing and rows at once give what a deepcopy, torch.optim and a loop give."""
    model = listening(condition(kind().double(), adapter, layer)).train()
    x = torch.randn(*shape, dtype=torch.float64)
    before = copy.deepcopy(model.state_dict())
    f, anchor = copy.deepcopy(model).eval(), copy.deepcopy(model).eval()
    step = torch.optim.SGD(f.parameters(), lr=0.05)
    for _ in range(2):
        y0 = f(x, adapter.neutral(x))
        adapter.distance(anchor(x, adapter.encode(y0)), y0).mean().backward()
        step.step()
        step.zero_grad()
    how: dict[str, Any] = {"lr": 0.05, "steps": 2, "optimizer": "SGD", "anchor_gradient": True}
    method = IT3(model, adapter, trust_region=False, **how)
    for _ in range(2):
        found = method(x).prediction
        expected = f(x, adapter.neutral(x)).detach()
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    together = IT3(model, adapter, per_instance=True, **how)(x).prediction
    alone = IT3(model, adapter, **how)
    rows = torch.cat([alone(row[None]).prediction for row in x])
    torch.testing.assert_close(together, rows, rtol=0, atol=1e-5)
    cheap = IT3(model, adapter, parameters="above", **how)
    torch.testing.assert_close(cheap(x).prediction, cheap(x).prediction, rtol=0, atol=0)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class Counts(nn.Module):
    """Writes into its buffers and its weights in every pass, in evaluation mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 1)
        self.calls: Tensor
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        with torch.no_grad():
            self.head.weight.clamp_(-0.1, 0.1)
        norm = self.norm
        hidden = nnf.batch_norm(self.layer(x), norm.running_mean, norm.running_var, training=True)
        output: Tensor = self.head(hidden)
        return output


def test_a_network_that_writes_into_itself_is_not_touched_either() -> None:
    adapter, x = Regression(), torch.randn(8, 3)
    net = Counts()
    nn.init.normal_(net.head.weight)
    model = listening(condition(net, adapter, "layer", example=x))
    assert net.calls == model.model.calls == 0  # not by the example either
    before = copy.deepcopy(model.state_dict())
    known = Activations.collect(model, adapter, [x], ["model.layer"])
    methods: list[Method] = [
        Source(model, adapter),
        AnswerStep(model, adapter),
        IT3(model, adapter),
        OnlineIT3(model, adapter),
        ActMAD(model, adapter, known),
    ]
    for method in methods:
        for _ in range(3):
            assert torch.isfinite(method(x).error_after).all()
    sensitivity(model, adapter, x)
    Trust.fit(model, adapter, [x] * 4)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_frozen_network_is_one_made_for_inference() -> None:
    adapter, x = Regression(), torch.randn(20, 3)
    model = listening(condition(mlp(), adapter, "0")).requires_grad_(False)
    Trust.fit(model, adapter, x)
    for parameters in (None, "above"):
        answer = IT3(model, adapter, lr=1e-2, parameters=parameters)(x)
        assert not torch.equal(answer.prediction, answer.initial)
    assert not any(parameter.requires_grad for parameter in model.parameters())
    some = listening(condition(mlp(), adapter, "0"))
    some.model[0].requires_grad_(False)  # type: ignore[index]
    whole = IT3(some, adapter, lr=1e-2)(x).prediction
    named = IT3(some, adapter, lr=1e-2, parameters=["model.2.*", "embed.*"])(x).prediction
    assert torch.equal(whole, named)


@pytest.mark.parametrize("optimizer", ["Adam", "SGD", "AdamW"])
def test_a_step_is_a_step_under_autocast(optimizer: str) -> None:
    model = listening(condition(mlp(), Regression(), "0"))
    for method in (
        IT3(model, Regression(), lr=0.05, optimizer=optimizer, trust_region=False),
        OnlineIT3(model, Regression(), lr=0.05, optimizer=optimizer, trust_region=False),
    ):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            answer = method(torch.randn(8, 3))
        assert (answer.prediction - answer.initial).abs().max() > 1e-3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_adapts(dtype: torch.dtype) -> None:
    model = listening(condition(mlp(32), Regression(), "0")).to(dtype)
    answer = IT3(model, Regression(), lr=1e-2)(torch.randn(8, 3, dtype=dtype))
    assert answer.fallback is None
    assert answer.prediction.dtype == dtype
    assert not torch.equal(answer.prediction, answer.initial)


class Spoilt(nn.Module):
    """The second pass is not finite for inputs above 2."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.value = value

    def forward(self, x: Tensor, signal: Tensor) -> Tensor:
        y: Tensor = self.layer(x) + 0.5 * signal[:, :1]
        return torch.where((x[:, :1] > 2) & (signal[:, 1:] > 0), self.value, y)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("trust_region", [False, True])
def test_a_loss_that_is_not_finite_falls_back(value: float, trust_region: bool) -> None:
    x = torch.randn(6, 3).clamp(-1, 1)
    x[2, 0] = 3.0
    model, how = Spoilt(value), {"lr": 0.1, "trust_region": trust_region}
    for method in (IT3(model, Regression(), **how), OnlineIT3(model, Regression(), **how)):
        answer = method(x)
        assert torch.equal(answer.prediction, answer.initial)
        assert answer.fallback is not None
        assert answer.steps == 0
    # Each on its own: the others are not held back by one of them.
    answer = IT3(model, Regression(), per_instance=True, **how)(x)
    moved = (answer.prediction != answer.initial).flatten()
    assert moved.tolist() == [True, True, False, True, True, True]
    assert answer.fallback == "in 1 of 6 rows the step was not finite: lower the learning rate"


@pytest.mark.parametrize("distance", ["js", "kl", "l2"])
def test_a_row_s_reach_is_its_own_business(distance: Any) -> None:
    adapter = Classification(5, distance)
    initial = torch.randn(200, 5)
    answer = initial + 0.3 * torch.randn(200, 5)
    limit = adapter.distance(answer, initial) * torch.rand(200)
    together, _ = within_reach(adapter, answer, initial, limit)
    alone = [
        within_reach(adapter, answer[i : i + 1], initial[i : i + 1], limit[i : i + 1])[0]
        for i in range(200)
    ]
    torch.testing.assert_close(together, torch.cat(alone), rtol=0, atol=1e-4)
    reached = adapter.distance(together, initial)
    assert (reached <= limit * 1.002).all()
    assert (reached >= limit * 0.98 - 1e-6).all()  # and goes as far as it may


def test_activations_of_layers_with_rows_of_their_own() -> None:
    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(2, 1)

        def forward(self, x: Tensor) -> Tensor:
            batch, places, _ = x.shape
            hidden = self.a(x.reshape(batch * places, 3)).tanh()
            output: Tensor = self.c(self.b(hidden.view(batch, places, 4).mean(1)))
            return output

    model, x = condition(Pooled(), Regression(), "c"), torch.randn(12, 5, 3)
    both = Activations.collect(model, Regression(), x.split(5), ["model.a", "model.b"])
    for index, layer in enumerate(["model.a", "model.b"]):
        alone = Activations.collect(model, Regression(), [x], [layer])
        torch.testing.assert_close(both.variances[index], alone.variances[0])
        torch.testing.assert_close(both.means[index], alone.means[0])
    idle = condition(nn.Sequential(nn.Linear(3, 1)), Regression(), "0")
    idle.model.add_module("unused", nn.Linear(1, 1))
    idle.model.forward = idle.model[0].forward  # type: ignore[index, method-assign, assignment]
    with pytest.raises(IT3Error, match=r"'model\.unused' did not run"):
        Activations.collect(idle, Regression(), [torch.randn(4, 3)], ["model.unused"])


def test_statistics_made_in_inference_mode_can_be_trained_on() -> None:
    adapter = Regression([0.0, 1.0], [1.0, 2.0])
    model = condition(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), adapter, "0")
    with torch.inference_mode():
        adapter.distance(torch.zeros(4, 2), torch.ones(4, 2))
    zigzag_loss(model, adapter, torch.randn(4, 3), torch.randn(4, 2)).backward()


def test_a_signal_that_can_t_arrive_says_so() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = checkpoint(lambda z: self.b(self.a(z).relu()), x, use_reentrant=False)
            return output

    model = condition(Checkpointed(), Regression(), "a")
    loss = zigzag_loss(model, Regression(), torch.randn(8, 3), torch.randn(8))
    with pytest.raises(IT3Error, match="without its signal"):
        loss.backward()
    with pytest.raises(IT3Error, match="without its signal"):
        model.model(torch.randn(8, 3))


def test_the_axis_of_the_channels_is_never_guessed_wrong() -> None:
    adapter = Regression()
    series = nn.Sequential(nn.Conv1d(2, 6, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(60, 1))
    x = torch.randn(4, 2, 10)
    with pytest.raises(IT3Error, match="channel_dim=1"):
        condition(series, adapter, "1", example=x)
    model = condition(series, adapter, "1", example=x, channel_dim=1)
    assert model.embed.weight.shape[0] == 6  # type: ignore[union-attr]
    assert model(x, adapter.neutral(x)).shape == (4, 1)
    normed = nn.Sequential(nn.ConvTranspose1d(2, 6, 1), nn.GroupNorm(2, 6), nn.Flatten())
    for layer in ("0", "1"):
        assert condition(normed, adapter, layer, example=x).embed.weight.shape[0] == 6  # type: ignore[union-attr]
    sequence_first = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    turned = condition(sequence_first, adapter, "0")
    with pytest.raises(IT3Error, match="7 rows for a batch of 4"):
        turned(torch.randn(7, 4, 3), torch.zeros(4, 2))


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


def test_named_tuples_pass_through() -> None:
    class Trunked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk = Doubled()
            self.entrance = nn.Linear(4, 4)
            self.head = nn.Linear(4, 1)

        def forward(self, x: Pair) -> Tensor:
            pair = self.trunk(x)
            output: Tensor = self.head(self.entrance(pair.first + pair.second).relu())
            return output

    class Doubled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 4)

        def forward(self, x: Pair) -> Pair:
            return Pair(self.layer(x.first), self.layer(x.second))

    model = listening(condition(Trunked(), Regression(), "entrance"))
    x = Pair(torch.randn(5, 3), torch.randn(5, 3))
    for how in ({}, {"parameters": "above"}, {"per_instance": True}):
        answer = IT3(model, Regression(), lr=1e-2, **how)(x)  # type: ignore[arg-type]
        assert not torch.equal(answer.prediction, answer.initial)


def test_complex_weights_adapt_too() -> None:
    class Spectral(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(5, dtype=torch.complex64))
            self.ear = nn.Linear(2, 8)

        def forward(self, x: Tensor, signal: Tensor) -> Tensor:
            waves = torch.fft.rfft(x + self.ear(signal)) * self.weight
            return torch.fft.irfft(waves, n=8).mean(1, keepdim=True)

    answer = IT3(Spectral(), Regression(), lr=0.1, parameters="weight")(torch.randn(6, 8))
    assert not torch.equal(answer.prediction, answer.initial)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.compile's own imports
def test_wrappers_are_looked_through() -> None:
    model, x = listening(condition(mlp(), Regression(), "0")), torch.randn(4, 3)
    expected = IT3(model, Regression(), parameters="above", lr=1e-2)(x).prediction
    for wrapped in (torch.compile(model), nn.DataParallel(model)):
        found = IT3(wrapped, Regression(), parameters="above", lr=1e-2)(x)  # type: ignore[arg-type]
        assert torch.equal(found.prediction, expected)


def test_one_bad_batch_does_not_make_the_next_slow() -> None:
    method = IT3(listening(condition(mlp(), Regression(), "0")), Regression(), per_instance=True)
    with pytest.raises(RuntimeError, match="shapes"):
        method(torch.randn(8, 5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        method(torch.randn(8, 3))
    assert not method._loops


def test_a_network_rebuilt_under_a_method_is_named_and_modes_are_kept() -> None:
    model = listening(condition(mlp(), Regression(), "0"))
    method = IT3(model, Regression())
    nn.utils.parametrizations.weight_norm(model.model[2])  # type: ignore[index]
    with torch.no_grad():
        with pytest.raises(IT3Error, match=r"lost some of its weights .*make the method anew"):
            method(torch.randn(4, 3))
        assert not torch.is_grad_enabled()


def test_per_layer_modes_survive_conditioning() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    net[1].eval()  # frozen statistics
    for model in (condition(net, Regression(), "0"), widen(net, Regression())):
        assert model.training
        assert not model.model[1].training  # type: ignore[index]
        assert model.model[0].training  # type: ignore[index]


@pytest.mark.parametrize("kind", ["spectral", "shared", "tied"])
def test_what_can_t_be_widened_is_refused(kind: str) -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    if kind == "spectral":
        nn.utils.parametrizations.spectral_norm(net[0])
    elif kind == "shared":
        net[2] = net[0]
    else:
        net[2].weight = net[0].weight
    with pytest.raises(IT3Error, match="use condition"):
        widen(net, Regression(), "0")
    assert condition(net, Regression(), "2").layer == "2"  # an alias has a name, too


def test_attention_is_widened_where_it_is_called() -> None:
    model = widen(Transformer(), Classification(2), "layer.linear1")
    assert model(torch.randn(4, 5, 3), torch.zeros(4, 3)).shape == (4, 2)
    assert widen(nn.TransformerEncoderLayer(8, 2, 16), Classification(2)).layer == "linear1"


def test_answers_are_their_own() -> None:
    import pickle

    model, x = listening(condition(mlp(), Regression(), "0")), torch.randn(4, 3)
    answer = Source(model, Regression())(x)
    expected = Source(model, Regression())(x).error_before
    answer.prediction.mul_(100)
    assert torch.equal(answer.error_before, expected)
    answer = IT3(model, Regression(), lr=1e-2)(x)
    sent = pickle.loads(pickle.dumps(answer))  # noqa: S301 - as a pool sends it
    assert torch.equal(sent.error_after, answer.error_after)
    assert answer != sent  # comparing is not an error


def test_norm_without_a_norm_is_named() -> None:
    model = condition(mlp(), Regression(), "0")
    with pytest.warns(IT3Warning, match="has no batch norm"):
        Source(model, Regression(), norm="batch")


def test_a_stream_that_is_interrupted_goes_on_from_the_batch_before() -> None:
    model, x = listening(condition(mlp(), Regression(), "0")), torch.randn(4, 3)
    method = OnlineIT3(model, Regression(), lr=0.1, steps=2)
    method(x)
    kept = method.state_dict()

    class Interrupting(Regression):
        calls = 0

        def encode(self, answer: Tensor) -> Tensor:
            self.calls += 1
            if self.calls == 2:
                raise KeyboardInterrupt
            return super().encode(answer)

    method.adapter = Interrupting()
    with pytest.raises(KeyboardInterrupt):
        method(x)
    after = method.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in kept.items())
    model.double()
    with pytest.raises(IT3Error, match="call reset"):
        method(x.double())


def test_tune_survives_a_perfect_score(tmp_path: Any) -> None:
    from it3_core import save, tune

    adapter = Classification(3)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    model = listening(condition(net, adapter, "0"))
    x = torch.randn(40, 4)
    y = model.eval()(x, adapter.neutral(x)).argmax(1)
    tuning = tune(model, adapter, x, y, shifts={"noise": lambda x: x + torch.randn_like(x)},
                  progress=False)  # fmt: skip
    assert len(tuning.reason) < 400
    save(tmp_path / "net.safetensors", model, adapter=adapter, settings={}, tuning=tuning)
    broken = listening(condition(mlp(), Regression(), "0"))
    nn.init.constant_(broken.model[2].bias, float("inf"))  # type: ignore[index]
    with pytest.raises(IT3Error, match="not finite"):
        tune(broken, Regression(), torch.randn(10, 3), torch.randn(10), shifts={"a": lambda x: x},
             progress=False)  # fmt: skip


def test_a_network_made_in_inference_mode_adapts() -> None:
    with torch.inference_mode():
        model = listening(condition(mlp(), Regression(), "0"))
    for _ in range(2):
        answer = IT3(model, Regression(), lr=1e-2, anchor_gradient=True)(torch.randn(4, 3))
        assert not torch.equal(answer.prediction, answer.initial)
    method = IT3(model, Regression(), lr=1e-2)
    assert all(torch.isfinite(method(torch.randn(4, 3)).prediction).all() for _ in range(3))
