"""Shapes with labels as the network takes them, and the paper's split of them by label."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from it3_core import IT3Error
from it3_core.batching import take

IN_DISTRIBUTION = "in distribution"
"""The name of the first level."""


@dataclass(frozen=True)
class Shapes:
    """Some shapes, a row each."""

    x: Any  # the network's input: outlines `(n, nodes, 2)`, or a batch of graphs
    y: Tensor  # labels, `(n,)`
    names: Sequence[str]
    parameters: Tensor | None = None  # what they were made from, `(n, k)`, if that is known
    cp: Sequence[Tensor] | None = None  # pressure coefficients at the nodes of each
    forces: Tensor | None = None  # coefficients of lift and drag, `(n, 2)`

    @classmethod
    def of(cls, graphs: Iterable[Any], inputs: Callable[[Sequence[Any]], Any]) -> Shapes:
        """From graphs as a data set holds them; `inputs` makes the network's input of them."""
        found = list(graphs)
        if not found:
            raise IT3Error("there is no shape to work with")
        return cls(
            inputs(found),
            torch.cat([graph.y.reshape(1).float() for graph in found]),
            [str(graph.name) for graph in found],
            torch.cat([graph.parameters for graph in found]) if "parameters" in found[0] else None,
            [graph.cp for graph in found] if "cp" in found[0] else None,
            torch.stack([torch.cat([graph.cl, graph.cd]) for graph in found])
            if "cl" in found[0]
            else None,
        )

    def __len__(self) -> int:
        return len(self.y)

    def take(self, rows: Sequence[int] | Tensor) -> Shapes:
        """Some of them, in that order."""
        chosen: list[int] = torch.as_tensor(rows, dtype=torch.long).tolist()
        return Shapes(
            take(self.x, chosen),
            self.y[chosen],
            [self.names[row] for row in chosen],
            None if self.parameters is None else self.parameters[chosen],
            None if self.cp is None else [self.cp[row] for row in chosen],
            None if self.forces is None else self.forces[chosen],
        )

    def sample(self, most: int, seed: int = 0) -> Shapes:
        """At most so many of them, drawn with `seed`, in their own order."""
        if len(self) <= most:
            return self
        generator = torch.Generator().manual_seed(seed)
        return self.take(torch.randperm(len(self), generator=generator)[:most].sort().values)


@dataclass(frozen=True)
class Levels:
    """What to train on and what to test on."""

    train: Shapes
    test: Mapping[str, Shapes]  # by level, the in-distribution one first
    falling: bool = False  # whether labels fall, and do not grow, out of distribution

    @classmethod
    def of(
        cls,
        dataset: Any,
        inputs: Callable[[Sequence[Any]], Any],
        threshold: float,
        levels: int,
        falling: bool = False,
    ) -> Levels:
        """The paper's split of a data set; its test shapes never depend on a training seed."""
        split = dataset.split(threshold, levels=levels)
        parts = {IN_DISTRIBUTION: split.test, **split.levels}

        def shapes(rows: Iterable[int]) -> Shapes:
            return Shapes.of((dataset[row] for row in rows), inputs)

        test = {name: shapes(rows) for name, rows in parts.items() if rows}
        return cls(shapes(sorted([*split.train, *split.validation])), test, falling)

    def drawn(self, most: int) -> Levels:
        """The same with at most so many shapes a level, in the order of growing shift."""
        test = {}
        for name, shapes in self.test.items():
            some = shapes.sample(most)
            test[name] = some.take(some.y.argsort(stable=True, descending=self.falling))
        return Levels(self.train, test, self.falling)


def threshold_of_top(labels: Sequence[float], share: float, *, falling: bool = False) -> float:
    """The last label in distribution, where so large a share at the far end is out of it."""
    ordered = sorted(labels, reverse=falling)
    outside = max(1, round(share * len(ordered)))
    if outside >= len(ordered):
        raise IT3Error(f"{len(ordered)} samples leave nothing to train on beside the top {share:%}")
    return ordered[-outside - 1]


class Split(NamedTuple):
    """Indices into a dataset: what to train on, and what to test on in and out of distribution."""

    train: list[int]  # on the training side of the threshold
    validation: list[int]  # there too, to stop early and to tune
    test: list[int]  # there too, for the in-distribution figures
    levels: dict[str, list[int]]  # out of distribution, from the nearest to the furthest


def split_by_label(
    labels: Sequence[float],
    threshold: float,
    *,
    quantity: str,
    side: Literal["upper", "lower"] = "upper",
    levels: int = 3,
    seed: int = 0,
) -> Split:
    """Labels up to a threshold are in distribution, those on the given side of it are not.

    A tenth of the samples in distribution is for validation and 15 % for the test, drawn with
    `seed`; the others are sorted by label into `levels` of equal size, named by `quantity`.
    """
    if levels < 1:
        raise IT3Error(f"levels must be positive, but is {levels}")
    distance = (1 if side == "upper" else -1) * (np.array(labels, dtype=float) - threshold)
    inside, outside = np.flatnonzero(distance <= 0), np.flatnonzero(distance > 0)
    if not len(inside):
        reach = "up to" if side == "upper" else "from"
        raise IT3Error(f"no sample has a {quantity} {reach} {threshold:g} to train on")
    held, tested = round(0.1 * len(inside)), round(0.15 * len(inside))
    mixed = np.random.default_rng(seed).permutation(inside).tolist()
    ordered = outside[np.argsort(distance[outside], kind="stable")]
    parts = [part for part in np.array_split(ordered, levels) if len(part)]
    ends = [threshold, *(float(labels[part[-1]]) for part in parts)]
    names = [f"{quantity} {low:.4g}–{high:.4g}" for low, high in pairwise(ends)]
    return Split(
        train=mixed[held + tested :],
        validation=mixed[:held],
        test=mixed[held : held + tested],
        levels={name: part.tolist() for name, part in zip(names, parts, strict=True)},
    )
