"""What holds for every method and network, whatever the numbers are."""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from it3_core import (
    IT3,
    Activations,
    ActMAD,
    Adapter,
    AnswerStep,
    Classification,
    IT3Error,
    Method,
    OnlineIT3,
    Regression,
    Source,
    condition,
)
from it3_core.batching import count, take

Build = Callable[..., Any]

# A watched layer of each network, for ActMAD; of perceptrons the fifth.
LAYER = {
    "cnn": "model.late",
    "graph": "model.second",
    "map": "model.deep",
}


def every_method(case: Any, lr: float = 1e-3) -> dict[str, Method]:
    known = Activations.collect(
        case.model, case.adapter, [case.x], [LAYER.get(case.name, "model.4")]
    )
    return {
        "Source": Source(case.model, case.adapter),
        "AnswerStep": AnswerStep(case.model, case.adapter),
        "IT3": IT3(case.model, case.adapter, lr=lr, steps=2, anchor_gradient=True),
        "IT3 per instance": IT3(case.model, case.adapter, lr=lr, per_instance=True),
        "OnlineIT3": OnlineIT3(case.model, case.adapter, lr=lr),
        "ActMAD": ActMAD(case.model, case.adapter, known, lr=lr),
    }


def snapshot(model: nn.Module) -> list[Any]:
    state = [(name, value.clone(), value.data_ptr()) for name, value in model.state_dict().items()]
    modes = [module.training for module in model.modules()]
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    gradients = [(p.grad is None, p.requires_grad) for p in model.parameters()]
    return [state, modes, hooks, gradients]


def same(first: list[Any], second: list[Any]) -> bool:
    values = zip(first[0], second[0], strict=True)
    equal = all(a == c and p == q and torch.equal(b, d) for (a, b, p), (c, d, q) in values)
    return equal and first[1:] == second[1:]


def equal(case: Any, first: Tensor, second: Tensor) -> bool:
    """Bit for bit; of tokens to rounding, whose matmul depends on whether a gradient is asked."""
    return torch.allclose(first, second, rtol=0, atol=1e-14 if case.name == "tokens" else 0)


class HalfWayError(Exception):
    pass


class Brittle(nn.Linear):
    """Raises when it is asked with an answer as its signal, which is half-way through."""

    exception: type[BaseException] = HalfWayError

    def forward(self, x: Tensor, signal: Tensor) -> Tensor:  # type: ignore[override]
        if signal[:, -1].any():
            raise self.exception
        return super().forward(x)


@pytest.mark.filterwarnings("ignore:this network can't be mapped")
def test_module_is_never_touched(case: Any) -> None:
    before = snapshot(case.model)
    for method in every_method(case).values():
        answer = method(case.x)
        assert answer.error_after.shape == (count(case.x),)
        method.reset()
    assert same(before, snapshot(case.model))


@pytest.mark.parametrize("exception", [HalfWayError, KeyboardInterrupt])
def test_module_is_not_touched_by_a_call_that_raises_half_way(
    exception: type[BaseException],
) -> None:
    model, adapter = Brittle(2, 1).train(), Regression()
    model.exception = exception
    before = snapshot(model)
    for method in (AnswerStep, IT3, partial(IT3, per_instance=True), OnlineIT3):
        with pytest.raises(exception):
            method(model, adapter)(torch.randn(3, 2))  # type: ignore[operator]
    assert same(before, snapshot(model))
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_module_is_not_touched_when_the_step_explodes(build: Build, name: str) -> None:
    case = build(name)
    before = snapshot(case.model)
    source = Source(case.model, case.adapter)(case.x).prediction
    explosive: dict[str, Any] = {"lr": 1e300, "optimizer": "SGD", "trust_region": False}
    for method in (
        IT3(case.model, case.adapter, steps=3, **explosive),
        IT3(case.model, case.adapter, steps=3, per_instance=True, **explosive),
        OnlineIT3(case.model, case.adapter, steps=3, gate=None, **explosive),
    ):
        answer = method(case.x)
        assert torch.equal(answer.prediction, answer.initial)
        assert answer.fallback is not None
        assert "not finite" in answer.fallback
        assert answer.steps == 0
        torch.testing.assert_close(answer.prediction, source)
    assert same(before, snapshot(case.model))


def test_zero_learning_rate_is_exactly_source(case: Any) -> None:
    source = Source(case.model, case.adapter)(case.x).prediction
    for method in every_method(case, lr=0.0).values():
        if not isinstance(method, AnswerStep):
            assert equal(case, method(case.x).prediction, source), method
    assert equal(case, AnswerStep(case.model, case.adapter, 0.0)(case.x).prediction, source)


def test_source_is_the_network_in_evaluation_mode(case: Any) -> None:
    with torch.no_grad():
        expected = copy.deepcopy(case.model).eval()(case.x, case.adapter.neutral(case.x))
    assert equal(case, Source(case.model, case.adapter)(case.x).prediction, expected)


def naive_it3(
    model: nn.Module, adapter: Adapter, x: Any, *, steps: int, lr: float, optimizer: str,
    anchor_gradient: bool, power: float = 1, chosen: Callable[[str], bool] = lambda name: True,
    batch_statistics: bool = False,
) -> Tensor:  # fmt: skip
    """The paper's loop, as one would write it first: deepcopy, torch.optim, plain autograd."""
    f, anchor = copy.deepcopy(model).eval(), copy.deepcopy(model).eval()
    if batch_statistics:
        for network in (f, anchor):
            for module in network.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.running_mean = module.running_var = None
    adapting = [p for name, p in f.named_parameters() if chosen(name)]
    step = getattr(torch.optim, optimizer)(adapting, lr=lr)
    neutral = adapter.neutral(x)
    for _ in range(steps):
        y0 = f(x, neutral)
        y1 = anchor(x, adapter.encode(y0 if anchor_gradient else y0.detach()))
        loss = adapter.distance(y1 if anchor_gradient else y1.detach(), y0).pow(power).mean()
        step.zero_grad()
        loss.backward()
        step.step()
    with torch.no_grad():
        output: Tensor = f(x, neutral)
        return output


@pytest.mark.parametrize("anchor_gradient", [False, True])
@pytest.mark.parametrize(("optimizer", "lr"), [("SGD", 0.01), ("Adam", 1e-3), ("RMSprop", 1e-4)])
def test_steps_equal_a_naive_reference(
    case: Any, optimizer: str, lr: float, anchor_gradient: bool
) -> None:
    how = {"steps": 3, "lr": lr, "optimizer": optimizer, "anchor_gradient": anchor_gradient}
    expected = naive_it3(case.model, case.adapter, case.x, **how)
    found = IT3(case.model, case.adapter, trust_region=False, **how)(case.x)
    assert not torch.allclose(expected, found.initial, atol=1e-6)  # there was something to learn
    torch.testing.assert_close(found.prediction, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("anchor_gradient", [False, True])
def test_batch_statistics_equal_a_naive_reference(build: Build, anchor_gradient: bool) -> None:
    case = build("cnn")
    how = {"steps": 2, "lr": 0.01, "optimizer": "SGD", "anchor_gradient": anchor_gradient}
    expected = naive_it3(case.model, case.adapter, case.x, batch_statistics=True, **how)
    method = IT3(case.model, case.adapter, norm="batch", trust_region=False, **how)
    torch.testing.assert_close(method(case.x).prediction, expected, rtol=0, atol=1e-6)
    assert not torch.allclose(
        method(case.x).initial, Source(case.model, case.adapter)(case.x).initial
    )


@pytest.mark.parametrize("name", ["mlp", "cnn", "graph", "map"])
@pytest.mark.parametrize("anchor_gradient", [False, True])
def test_sharing_the_trunk_changes_nothing(build: Build, name: str, anchor_gradient: bool) -> None:
    """The cheap mode equals the naive loop over the same parameters, on several batches."""
    case = build(name)
    below = {"mlp": ["0", "2"], "cnn": ["stem", "norm", "middle.0"], "graph": ["enter", "first"],
             "map": ["down"]}[name]  # fmt: skip
    how = {"steps": 2, "lr": 0.01, "optimizer": "SGD", "anchor_gradient": anchor_gradient}
    method = IT3(case.model, case.adapter, parameters="above", trust_region=False, **how)

    def above(parameter: str) -> bool:
        return not any(parameter.startswith(f"model.{layer}.") for layer in below)

    for _ in range(3):  # an episode leaves nothing behind
        expected = naive_it3(case.model, case.adapter, case.x, chosen=above, **how)
        found = method(case.x)
        torch.testing.assert_close(found.prediction, expected, rtol=0, atol=1e-6)
        case.x = take(case.x, list(reversed(range(count(case.x)))))


class Awkward(nn.Module):
    """Adds to what its first layer returned in place, so that a replay would add twice; or takes it
    past the second layer, for all inputs or for some."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.stem, self.middle, self.head = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.stem(x)
        if self.kind == "in place":
            hidden += 1.0
        deeper = self.middle(hidden)
        if self.kind == "in place":
            deeper.mul_(2.0)
        if self.kind == "skips" or (self.kind == "skips some" and float(x.mean()) > 5):
            deeper = deeper + hidden
        output: Tensor = self.head(deeper.tanh())
        return output


@pytest.mark.parametrize(
    ("kind", "layer", "parts"),
    [
        ("in place", "stem", ("",)),
        ("in place", "middle", ("",)),
        ("skips", "middle", ("embed.", "model.head.")),
        ("skips some", "middle", ("embed.", "model.head.")),
    ],
)
def test_sharing_is_given_up_where_it_would_be_wrong(
    kind: str, layer: str, parts: tuple[str, ...]
) -> None:
    adapter = Regression()
    model = condition(Awkward(kind).double(), adapter, layer)
    nn.init.normal_(model.embed.weight)  # type: ignore[union-attr, arg-type]
    how: dict[str, Any] = {"steps": 2, "lr": 0.01, "optimizer": "SGD", "anchor_gradient": False}
    patterns = [f"{part}*" for part in parts]
    method = IT3(model, adapter, trust_region=False, parameters=patterns, **how)
    for shift in (0.0, 10.0, 0.0):  # proven on the first, where the second needs more
        x = torch.randn(5, 4, dtype=torch.float64) + shift
        expected = naive_it3(model, adapter, x, chosen=lambda name: name.startswith(parts), **how)
        torch.testing.assert_close(method(x).prediction, expected, rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore:this network can't be mapped")
@pytest.mark.parametrize(
    ("optimizer", "trust_region", "rows"), [("SGD", False, 2), ("Adagrad", True, 99)]
)
def test_per_instance_equals_a_loop_over_rows(
    case: Any, optimizer: str, trust_region: bool, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("it3_core.methods.it3._MOST_ROWS", rows)  # at once, in memory
    how: dict[str, Any] = {"steps": 2, "lr": 1e-3, "optimizer": optimizer}
    together = IT3(case.model, case.adapter, per_instance=True, trust_region=trust_region, **how)
    alone = IT3(case.model, case.adapter, trust_region=trust_region, **how)
    answer = together(case.x)
    rows = [alone(take(case.x, [row])) for row in range(count(case.x))]
    for part in ("prediction", "initial", "error_before", "error_after"):
        expected = torch.cat([getattr(row, part) for row in rows])
        torch.testing.assert_close(getattr(answer, part), expected, rtol=0, atol=1e-5)
    whole = alone(case.x)
    assert not torch.allclose(answer.prediction, whole.prediction, atol=1e-7)  # not the same thing


@pytest.mark.filterwarnings("ignore:this network can't be mapped")
@pytest.mark.parametrize("per_instance", [False, True])
def test_permuting_a_batch_permutes_the_answers(case: Any, per_instance: bool) -> None:
    method = IT3(case.model, case.adapter, lr=1e-2, optimizer="SGD", per_instance=per_instance)
    order = torch.randperm(count(case.x)).tolist()
    expected = method(case.x).prediction[order]
    found = method(take(case.x, order)).prediction
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "adapter"),
    [("mlp", Regression(1.0, 2.0))]
    + [("cnn", Classification(3, d)) for d in ("js", "kl", "l1", "l2")],
)
def test_an_answer_that_overshoots_lands_at_the_edge(
    build: Build, name: str, adapter: Adapter
) -> None:
    case = build(name)
    answer = IT3(case.model, adapter, lr=0.1)(case.x)
    free = IT3(case.model, adapter, lr=0.1, trust_region=False)(case.x)
    over = adapter.distance(free.prediction, free.initial) > free.error_before
    assert over.any()
    share = adapter.distance(answer.prediction, answer.initial)[over] / answer.error_before[over]
    short, far = (0.999, 1.001) if name == "mlp" else (0.98, 1.002)  # of classes: by bisection
    assert ((short <= share) & (share <= far)).all()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_calls_work_in_any_gradient_mode(case: Any, mode: Callable[[], Any]) -> None:
    expected = {name: method(case.x).prediction for name, method in every_method(case).items()}
    methods = every_method(case)
    with mode():
        x = take(case.x, list(range(count(case.x))))  # inside inference_mode: inference tensors
        for name, method in methods.items():
            answer = method(x)
            torch.testing.assert_close(answer.prediction.clone(), expected[name])
            assert not answer.prediction.requires_grad
            assert torch.isfinite(answer.error_after).all()


def test_threads_share_a_network_and_a_method(build: Build) -> None:
    case = build("cnn")
    method = IT3(case.model, case.adapter, lr=1e-2, parameters="above")
    inputs = [torch.randn_like(case.x) for _ in range(8)]
    alone = [method(x).prediction for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda x: method(x).prediction, inputs * 5))
    for found, expected in zip(together, alone * 5, strict=True):
        assert torch.equal(found, expected)


def test_weights_are_read_at_every_call(build: Build) -> None:
    case = build("mlp")
    method = IT3(case.model, case.adapter, lr=1e-3)
    first = method(case.x).prediction
    with torch.no_grad():
        for parameter in case.model.parameters():
            parameter.mul_(1.1)
    assert not torch.allclose(method(case.x).prediction, first)
    fresh = IT3(case.model, case.adapter, lr=1e-3)(case.x).prediction
    assert torch.equal(method(case.x).prediction, fresh)
    case.model.load_state_dict({k: v / 2 for k, v in case.model.state_dict().items()})
    case.model.float()
    assert method(case.x.float()).prediction.dtype == torch.float32


@pytest.mark.parametrize(("size", "hidden"), [((), None), ((), 7), ((6, 6), None), ((6, 6), 7)])
def test_a_signal_changes_nothing_until_it_is_trained(size: tuple[int, ...], hidden: Any) -> None:
    adapter, layer = Classification(3), nn.Conv2d(2, 4, 1) if size else nn.Linear(2, 4)
    net = nn.Sequential(layer, nn.ReLU(), nn.Conv2d(4, 3, 1) if size else nn.Linear(4, 3))
    model, x = condition(net, adapter, "0", hidden=hidden), torch.randn(5, 2, *size)
    signal = adapter.encode(torch.randn(5, 3))
    assert torch.equal(model(x, signal), net(x))
    model(x, signal).square().sum().backward()
    assert model.embed is not None
    last = list(model.embed.parameters())[-1]
    assert last.grad is not None
    assert last.grad.any()
    with torch.no_grad():
        last -= last.grad
    model(x, signal).square().sum().backward()  # and from then on all of the embedding learns
    assert all(p.grad is not None and p.grad.any() for p in model.embed.parameters())


def test_tied_weights_stay_tied() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    net[2].weight = net[0].weight
    adapter = Regression()
    model = condition(net.double(), adapter, "0")
    nn.init.normal_(model.embed.weight)  # type: ignore[union-attr, arg-type]
    x = torch.randn(5, 4, dtype=torch.float64)
    how = {"steps": 2, "lr": 0.05, "optimizer": "SGD", "anchor_gradient": True}
    expected = naive_it3(model, adapter, x, **how)
    found = IT3(model, adapter, trust_region=False, **how)(x).prediction
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    # A weight that also acts below the signal is not above it.
    names = ["model.2.bias", "model.4.weight", "model.4.bias", "embed.weight"]
    expected = naive_it3(model, adapter, x, chosen=names.__contains__, **how)
    found = IT3(model, adapter, parameters="above", trust_region=False, **how)(x).prediction
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_parameters_are_chosen_by_pattern_and_predicate(build: Build) -> None:
    case = build("mlp")
    how = {"steps": 1, "lr": 0.05, "optimizer": "SGD", "anchor_gradient": False}
    expected = naive_it3(
        case.model, case.adapter, case.x, chosen=lambda n: n.startswith("model.6"), **how
    )
    for parameters in ("model.6.*", ["model.6.weight", "model.6.bias"],
                       lambda name, _: name.startswith("model.6")):  # fmt: skip
        method = IT3(case.model, case.adapter, parameters=parameters, trust_region=False, **how)
        torch.testing.assert_close(method(case.x).prediction, expected, rtol=0, atol=1e-6)
    with pytest.raises(IT3Error, match=r"no parameter is called 'model.7.\*'.*model.6"):
        IT3(case.model, case.adapter, parameters="model.7.*")
    with pytest.raises(IT3Error, match="no parameter of the network is chosen"):
        IT3(case.model, case.adapter, parameters=lambda name, _: False)
