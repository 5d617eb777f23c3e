"""One form of data everywhere: whoever takes `(x, y)` takes loaders and Datasets of it, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    TensorDataset,
    WeightedRandomSampler,
)

from it3_core import (
    Activations,
    Classification,
    IT3Error,
    Source,
    Trust,
    choose_step,
    condition,
    evaluate,
    fit,
    tune,
)
from it3_core.experiment.statistics import assess_scores
from it3_core.scores.uncertainty import Mahalanobis

A = Classification(3)
X = torch.randn(48, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(48) % 3


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(X, Y, strict=True)


FORMS: dict[str, Callable[[], Any]] = {
    "Dataset": lambda: TensorDataset(X, Y),
    "DataLoader": lambda: DataLoader(TensorDataset(X, Y), 16),
    "IterableDataset": Stream,
    "DataLoader of one": lambda: DataLoader(Stream(), 16),
}
BATCHES: dict[str, Callable[[], Any]] = {
    "batches": lambda: [*zip(X.split(16), Y.split(16), strict=True)],
    "batches that are loaded": lambda: DataLoader(
        [*zip(X.split(16), Y.split(16), strict=True)],  # type: ignore[arg-type]
        None,
    ),
}

WEIGHTED = DataLoader(TensorDataset(X, Y), 4, sampler=WeightedRandomSampler([1] * 48, 48))


def model() -> nn.Module:
    torch.manual_seed(0)
    found = condition(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), A, layer="0")
    nn.init.normal_(found.embed.weight)  # type: ignore[union-attr,arg-type]
    return found


def noisy(x: Tensor) -> Tensor:
    return x + 0.1


def measured(net: nn.Module, data: Callable[[], Any]) -> list[Any]:
    """Everything that takes data and trains nothing, as numbers."""
    found: list[Any] = [
        Trust.fit(net, A, data()).quantiles,
        Activations.collect(net, A, data(), ["model.1"]).means[0],
        Mahalanobis.fit(net, A, data(), "model.1").means,
        tune(net, A, data(), shifts={"shift": noisy}, progress=False).reason,
    ]
    records = evaluate({"source": Source(net, A)}, {"clean": data()}, A.error, progress=False)
    found += [records[0]["error"], records[0]["n"]]
    return found + [
        line["spearman"] for line in assess_scores(net, A, {}, {"clean": data()}, "clean")
    ]


@pytest.mark.parametrize("form", [*FORMS, *BATCHES])
def test_every_form_gives_the_same_numbers(form: str) -> None:
    found, wanted = measured(model(), (FORMS | BATCHES)[form]), measured(model(), lambda: (X, Y))
    assert found[3] == wanted.pop(3) == found.pop(3)
    torch.testing.assert_close(found, wanted)


def test_inputs_alone_where_no_label_is_needed() -> None:
    net = model()
    forms: list[Any] = [X, [X], DataLoader(TensorDataset(X), 16), (X, Y)]
    wanted = Trust.fit(net, A, X).quantiles
    assert all(torch.allclose(Trust.fit(net, A, form).quantiles, wanted) for form in forms)
    means = [len(Mahalanobis.fit(net, A, form, "model.1").means) for form in forms]
    assert means == [1, 1, 1, 3]  # one for each class, where there are labels
    assert choose_step(net, A, [X]).tried == choose_step(net, A, iter([(X, Y)])).tried


@pytest.mark.parametrize("form", [*FORMS, *BATCHES])
def test_fit_takes_every_form_and_ends_with_the_same_weights(form: str) -> None:
    one, other = model(), model()
    how: dict[str, Any] = {"epochs": 2, "progress": False, "validation": 0.25}
    fit(one, A, (X, Y), batch_size=16 if "Loader" in form else None, **how)
    data = (FORMS | BATCHES)[form]()
    fit(other, A, data, **how)
    torch.testing.assert_close(one.state_dict(), other.state_dict(), rtol=0, atol=0)
    fit(other, A, data, **how | {"validation": data})


def test_fit_on_graphs_with_a_label_for_each_node(build: Any) -> None:
    graphs, adapter = build("graph", torch.float32).x, Classification(2, each="node")
    rows = [(graph, (graph.nodes[:, 0] > 0).long())
            for graph in graphs.index_select(range(4))]  # fmt: skip

    class PerNode(nn.Linear):
        def forward(self, x: Any) -> Tensor:  # type: ignore[override]
            return super().forward(x.nodes)

    def collate(items: list[Any]) -> Any:
        parts, labels = zip(*items, strict=True)
        return type(graphs).from_data_list(parts), torch.cat(labels)

    loader = DataLoader(rows, 2, collate_fn=collate)  # type: ignore[arg-type]
    net = condition(PerNode(2, 2), adapter, layer="")
    history = fit(net, adapter, loader, validation=loader, epochs=20, lr=0.1, progress=False)
    assert history.validation[-1] < history.validation[0]
    x, y = collate(rows)
    loss = adapter.loss(net(x, adapter.neutral(x)), y).mean().item()  # over nodes, not graphs
    assert history.validation[history.best_epoch - 1] == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (lambda net: tune(net, A, X, shifts={"s": noisy}), "labels are needed"),
        (lambda net: tune(net, A, iter([]), shifts={"s": noisy}), "there are no data"),
        (lambda net: Trust.fit(net, A, [(X, Y, Y)]), "this one has 3"),
        (lambda net: fit(net, A, iter([])), "there are no data"),
        (lambda net: evaluate({"source": Source(net, A)}, {"clean": (X, Y, Y)}, A.error), "labels"),
        (lambda net: fit(net, A, WEIGHTED), "draws the rows itself"),
    ],
)
def test_what_cannot_be_read_is_named(call: Callable[[nn.Module], Any], hint: str) -> None:
    with pytest.raises(IT3Error, match=hint):
        call(model())
