"""What holds for every method and network, whatever the numbers are."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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
    IT3Error,
    Method,
    OnlineIT3,
    Regression,
    Source,
    condition,
)
from it3_core.batching import count, take
from it3_core.memory import peak_memory

Build = Callable[..., Any]

# A watched layer of each network, for ActMAD.
LAYER = {
    "mlp": "model.4",
    "mlp widened": "model.4",
    "cnn": "model.late",
    "graph": "model.second",
    "map": "model.deep",
}


def every_method(case: Any, lr: float = 1e-3) -> dict[str, Method]:
    known = Activations.collect(case.model, case.adapter, [case.x], [LAYER[case.name]])
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


class HalfWayError(Exception):
    pass


class Brittle(nn.Module):
    """Raises when it is asked with an answer as its signal, which is half-way through."""

    def __init__(self, exception: type[BaseException]) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.exception = exception

    def forward(self, x: Tensor, signal: Tensor) -> Tensor:
        if signal[:, -1].any():
            raise self.exception
        output: Tensor = self.layer(x)
        return output


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
    model, adapter = Brittle(exception).train(), Regression()
    before = snapshot(model)
    methods: list[Method] = [
        AnswerStep(model, adapter),
        IT3(model, adapter),
        IT3(model, adapter, per_instance=True),
        OnlineIT3(model, adapter),
    ]
    for method in methods:
        with pytest.raises(exception):
            method(torch.randn(3, 2))
    assert same(before, snapshot(model))
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


@pytest.mark.parametrize("name", ["mlp", "cnn", "map"])
def test_module_is_not_touched_when_the_step_explodes(build: Build, name: str) -> None:
    case = build(name)
    before = snapshot(case.model)
    source = Source(case.model, case.adapter)(case.x).prediction
    explosive: dict[str, Any] = {"lr": 1e300, "optimizer": "SGD", "trust_region": False}
    for method in (
        IT3(case.model, case.adapter, steps=3, **explosive),
        IT3(case.model, case.adapter, steps=3, per_instance=True, **explosive),
        OnlineIT3(case.model, case.adapter, steps=3, **explosive),
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
            assert torch.equal(method(case.x).prediction, source), method
    assert torch.equal(AnswerStep(case.model, case.adapter, 0.0)(case.x).prediction, source)


def test_source_is_the_network_in_evaluation_mode(case: Any) -> None:
    with torch.no_grad():
        expected = copy.deepcopy(case.model).eval()(case.x, case.adapter.neutral(case.x))
    assert torch.equal(Source(case.model, case.adapter)(case.x).prediction, expected)


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
@pytest.mark.parametrize("steps", [1, 3])
def test_steps_equal_a_naive_reference(
    case: Any, steps: int, optimizer: str, lr: float, anchor_gradient: bool
) -> None:
    how = {"steps": steps, "lr": lr, "optimizer": optimizer, "anchor_gradient": anchor_gradient}
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

    for _ in range(3):
        expected = naive_it3(case.model, case.adapter, case.x, chosen=above, **how)
        found = method(case.x)
        torch.testing.assert_close(found.prediction, expected, rtol=0, atol=1e-6)
        case.x = take(case.x, list(reversed(range(count(case.x)))))


class WorksInPlace(nn.Module):
    """Adds to what its first layer returned, in place: replaying it naively would add twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 6)
        self.middle = nn.Linear(6, 6)
        self.head = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.stem(x)
        hidden += 1.0
        hidden = self.middle(hidden)
        hidden.mul_(2.0)
        output: Tensor = self.head(hidden.tanh())
        return output


@pytest.mark.parametrize("layer", ["stem", "middle"])
def test_sharing_is_given_up_where_it_would_be_wrong(layer: str) -> None:
    adapter = Regression()
    model = condition(WorksInPlace().double(), adapter, layer)
    torch.nn.init.normal_(model.embed.weight)  # type: ignore[union-attr, arg-type]
    x = torch.randn(5, 4, dtype=torch.float64)
    how = {"steps": 2, "lr": 0.01, "optimizer": "SGD", "anchor_gradient": False}
    expected = naive_it3(model, adapter, x, **how)
    method = IT3(model, adapter, trust_region=False, **how)
    for _ in range(3):
        torch.testing.assert_close(method(x).prediction, expected, rtol=0, atol=1e-6)


class Skips(nn.Module):
    """Takes what its first layer returned past the second: for all inputs, or for some."""

    def __init__(self, always: bool) -> None:
        super().__init__()
        self.always = always
        self.stem = nn.Linear(4, 6)
        self.middle = nn.Linear(6, 6)
        self.head = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.stem(x)
        deeper = self.middle(hidden)
        if self.always or float(x.mean()) > 5:
            deeper = deeper + hidden
        output: Tensor = self.head(deeper.tanh())
        return output


@pytest.mark.parametrize("always", [True, False])
def test_what_goes_past_the_entrance_is_there_when_it_is_needed(always: bool) -> None:
    adapter = Regression()
    model = condition(Skips(always).double(), adapter, "middle")
    torch.nn.init.normal_(model.embed.weight)  # type: ignore[union-attr, arg-type]
    how: dict[str, Any] = {"steps": 2, "lr": 0.01, "optimizer": "SGD", "anchor_gradient": False}
    method = IT3(model, adapter, trust_region=False, parameters=["embed.*", "model.head.*"], **how)
    for shift in (0.0, 10.0, 0.0):  # proven on the first, where the second needs more
        x = torch.randn(5, 4, dtype=torch.float64) + shift
        chosen = lambda name: name.startswith(("embed.", "model.head."))  # noqa: E731
        expected = naive_it3(model, adapter, x, chosen=chosen, **how)
        torch.testing.assert_close(method(x).prediction, expected, rtol=0, atol=1e-6)


def test_only_what_the_entrance_returned_is_kept() -> None:
    """And a pass that starts from it answers as a whole one does, bit for bit."""
    adapter, x = Regression(), torch.randn(64, 1000)
    layers = [layer for _ in range(6) for layer in (nn.Linear(1000, 1000), nn.Tanh())]
    model = condition(nn.Sequential(*layers, nn.Linear(1000, 1)), adapter, "10").eval()
    torch.nn.init.normal_(model.embed.weight)  # type: ignore[union-attr, arg-type]
    method = AnswerStep(model, adapter)
    method(x)
    with torch.no_grad():
        expected = model(x, adapter.encode(model(x, adapter.neutral(x))))
    assert torch.equal(method(x).prediction, expected)
    assert peak_memory(lambda: method(x)) < 4.5 * x.nbytes  # kept, its input, sum and output


@pytest.mark.filterwarnings("ignore:this network can't be mapped")
@pytest.mark.parametrize("trust_region", [False, True])
@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "Adagrad"])
def test_per_instance_equals_a_loop_over_rows(
    case: Any, optimizer: str, trust_region: bool
) -> None:
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


@pytest.mark.parametrize("norm", ["batch", 0.3])
def test_per_instance_statistics_are_each_row_s_own(build: Build, norm: Any) -> None:
    case = build("cnn")
    # After the last norm: a norm over one image takes away what was added to a whole channel.
    model = condition(case.model.model, case.adapter, "late")
    torch.nn.init.normal_(model.embed.weight)  # type: ignore[union-attr, arg-type]
    together = IT3(model, case.adapter, lr=1e-3, per_instance=True, norm=norm)(case.x)
    alone = IT3(model, case.adapter, lr=1e-3, norm=norm)
    rows = [alone(take(case.x, [row])) for row in range(count(case.x))]
    for part in ("prediction", "error_before", "error_after"):
        expected = torch.cat([getattr(row, part) for row in rows])
        torch.testing.assert_close(getattr(together, part), expected, rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("ignore:this network can't be mapped")
@pytest.mark.parametrize("per_instance", [False, True])
def test_permuting_a_batch_permutes_the_answers(case: Any, per_instance: bool) -> None:
    method = IT3(case.model, case.adapter, lr=1e-2, optimizer="SGD", per_instance=per_instance)
    order = torch.randperm(count(case.x)).tolist()
    expected = method(case.x).prediction[order]
    found = method(take(case.x, order)).prediction
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


def test_chunks_of_rows_answer_like_one(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    case = build("mlp")
    method = IT3(case.model, case.adapter, lr=1e-3, per_instance=True)
    whole = method(case.x)
    monkeypatch.setattr("it3_core.methods.it3._MOST_ROWS", 2)
    parts = method(case.x)
    torch.testing.assert_close(parts.prediction, whole.prediction)
    torch.testing.assert_close(parts.error_after, whole.error_after)


@pytest.mark.parametrize("lr", [1e-3, 0.1, 10.0])
def test_an_answer_never_moves_further_than_to_y1(case: Any, lr: float) -> None:
    methods: list[Method] = [
        IT3(case.model, case.adapter, lr=lr),
        OnlineIT3(case.model, case.adapter, lr=lr, steps=2),
    ]
    for method in methods:
        answer = method(case.x)
        moved = case.adapter.distance(answer.prediction, answer.initial)
        assert (moved <= answer.error_before * (1 + 1e-3)).all()
        assert torch.isfinite(answer.prediction).all()


@pytest.mark.parametrize("distance", ["absolute", "euclidean", "squared"])
def test_an_answer_that_overshoots_lands_at_the_edge(build: Build, distance: Any) -> None:
    case = build("mlp")
    adapter = Regression(1.0, 2.0, distance)
    answer = IT3(case.model, adapter, lr=0.1)(case.x)
    free = IT3(case.model, adapter, lr=0.1, trust_region=False)(case.x)
    over = adapter.distance(free.prediction, free.initial) > free.error_before
    assert over.any()
    edge = adapter.distance(answer.prediction, answer.initial)[over]
    torch.testing.assert_close(edge, answer.error_before[over], rtol=1e-3, atol=1e-12)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
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


def test_an_episode_leaves_nothing_behind(case: Any) -> None:
    method = IT3(case.model, case.adapter, lr=1e-2, steps=2)
    first = method(case.x)
    method(take(case.x, [0]))
    again = method(case.x)
    assert torch.equal(first.prediction, again.prediction)


def test_methods_can_be_copied_and_pickled(build: Build) -> None:
    case = build("mlp")
    method = IT3(case.model, case.adapter, lr=1e-3)
    expected = method(case.x).prediction
    assert torch.equal(copy.deepcopy(method)(case.x).prediction, expected)
    sent = pickle.loads(pickle.dumps(method))  # noqa: S301 - as joblib sends it to a worker
    assert torch.equal(sent(case.x).prediction, expected)


def test_tied_weights_stay_tied() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.second = nn.Linear(4, 4)
            self.second.weight = self.first.weight
            self.head = nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = self.head(self.second(self.first(x).tanh()).tanh())
            return output

    adapter = Regression()
    model = condition(Tied().double(), adapter, "first")
    torch.nn.init.normal_(model.embed.weight)  # type: ignore[union-attr, arg-type]
    x = torch.randn(5, 4, dtype=torch.float64)
    how = {"steps": 2, "lr": 0.05, "optimizer": "SGD", "anchor_gradient": True}
    expected = naive_it3(model, adapter, x, **how)
    found = IT3(model, adapter, trust_region=False, **how)(x).prediction
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    # A weight that also acts below the signal is not above it.
    names = ["model.second.bias", "model.head.weight", "model.head.bias", "embed.weight"]
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


def test_parameters_may_be_those_of_the_norms() -> None:
    torch.manual_seed(0)
    adapter = Regression()
    net = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, 1)).double()
    model = condition(net, adapter, "0")
    nn.init.normal_(model.embed.weight)  # type: ignore[union-attr, arg-type]
    x = torch.randn(5, 4, dtype=torch.float64)
    how = {"steps": 2, "lr": 0.05, "optimizer": "SGD", "anchor_gradient": False}
    expected = naive_it3(model, adapter, x, chosen=lambda n: n.startswith("model.1."), **how)
    found = IT3(model, adapter, parameters="norms", trust_region=False, **how)(x).prediction
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    assert not torch.equal(found, IT3(model, adapter, lr=0.0)(x).prediction)
    with pytest.raises(IT3Error, match="no normalisation layer"):
        IT3(condition(nn.Linear(4, 1), adapter, ""), adapter, parameters="norms")
