"""The paper's rows equal the algorithm as the paper tells it; its protocol is what it states."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from it3_aero.cars import task as cars
from it3_aero.cars.bodies import ahmed
from it3_aero.cars.dataset import MeshTrunk, inputs, to_graph
from it3_aero.cars.meshes import remeshed
from it3_aero.shapes.data import Levels, Shapes, threshold_of_top
from it3_aero.shapes.graph_net import NetworkSettings, build
from it3_aero.shapes.options import Train
from it3_aero.shapes.paper import samples
from it3_aero.shapes.shared import LINES
from it3_aero.wings import naca4
from it3_aero.wings import task as wings
from it3_aero.wings.graph import OutlineTrunk, outlines
from it3_aero.wings.graph import to_graph as wing_graph
from it3_core import IT3Error, PaperStep, Regression
from it3_core.batching import batches, map_tensors
from it3_core.experiment.types import Answers, Network
from reference import reference

STEP = PaperStep(2, 1e-2)  # so large that a trust region would hold it back


def wing_shapes() -> Any:
    """Seven outlines, thicker and thicker."""
    return outlines([wing_graph(naca4(0.02, 0.4, 0.06 + 0.02 * i), nodes=32) for i in range(7)])


def car_shapes() -> Any:
    """Five meshes of different sizes."""
    bodies = [remeshed(ahmed(slant=8.0 * i, height=0.28), 60 + 5 * i) for i in range(5)]
    return inputs([to_graph(body.vertices, body.faces) for body in bodies])


@pytest.fixture(scope="module", params=["wings", "cars"])
def shapes(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """A trunk, and shapes in double precision."""
    trunk, x = {"wings": (OutlineTrunk, wing_shapes), "cars": (MeshTrunk, car_shapes)}[
        request.param
    ]
    return trunk, map_tensors(x(), lambda part: part.double() if part.is_floating_point() else part)


def network(trunk: Any, entrance: Any) -> Network:
    """A small one that listens to its signal, as after training."""
    torch.manual_seed(0)
    adapter = Regression(30.0, 15.0)
    settings = NetworkSettings(layers=5, channels=6, hidden=12, entrance=entrance, damped=True)
    model = build(trunk, settings, adapter).double()
    assert model.embed is not None
    nn.init.normal_(cast(nn.Linear, model.embed).weight)
    steps = {"source": STEP, "online": STEP}
    return Network(0, model, adapter, Answers(), {}, {}, {}, cast(Any, None), {}, {}, paper=steps)


@pytest.mark.parametrize("entrance", ["nodes", "head"])
@pytest.mark.parametrize("name", ["IT³ (paper)", "online IT³ (paper)"])
def test_the_papers_rows_equal_the_algorithm_as_the_paper_tells_it(
    shapes: tuple[Any, Any], entrance: str, name: str
) -> None:
    trunk, x = shapes
    one, line = network(trunk, entrance), next(line for line in LINES if line.name == name)
    adapter, stream = cast(Regression, one.adapter), list(batches(x, 2))

    def norm(gap: Tensor) -> Tensor:
        return gap.abs().sum(1) / 15.0

    wanted = reference(
        one.model, adapter.neutral, adapter.encode, norm, stream,
        steps=STEP.steps, lr=STEP.lr, online=line.stream,
    )  # fmt: skip
    method = line.make(one, 2)
    assert method is not None
    for part, answer in zip(stream, wanted, strict=True):
        found: Any = method(part)
        torch.testing.assert_close(found.prediction, answer, rtol=0, atol=1e-6)
        assert float((answer - found.initial).detach().abs().min()) > 1e-3  # it did something


@pytest.mark.parametrize("task", [wings, cars])
def test_the_preset_is_the_protocol_and_the_size_the_network(task: Any) -> None:
    ours = task.protocol_of(Train(out=Path("x")), task.OURS, task.PAPER)
    assert ours == task.OURS["small"]
    assert (ours.network.entrance, ours.top) == ("head", None)
    full = task.OURS["full"].network
    paper = task.protocol_of(
        Train(out=Path("x"), preset="paper", size="full"), task.OURS, task.PAPER
    )
    assert paper.network == replace(full, entrance="nodes", damped=True)
    assert (paper.second_weight, paper.top, paper.clip) == (1.0, 0.05, None)
    assert paper.network.layers == (25 if task is wings else 35)
    wanted = (20, 1e-3, "step", 128) if task is wings else (100, 1e-3, "constant", 4)
    assert (paper.epochs, paper.lr, paper.schedule, paper.batch_size) == wanted


def test_the_top_is_a_share_of_the_shapes_at_the_far_end() -> None:
    labels = torch.randperm(200).float().tolist()
    assert sum(y > threshold_of_top(labels, 0.05) for y in labels) == 10
    assert sum(y < threshold_of_top(labels, 0.05, falling=True) for y in labels) == 10
    assert threshold_of_top(labels, 1e-9) == 198  # one at least
    with pytest.raises(IT3Error, match="nothing to train on"):
        threshold_of_top(labels[:1], 0.05)
    assert Train(out=Path("x"), top="5%").share() == pytest.approx(0.05)
    for text in ("5", "0%", "60%", "nan%", "five%", "%"):
        with pytest.raises(IT3Error, match="a share up to 50%"):
            Train(out=Path("x"), top=text).share()


@pytest.mark.parametrize("pressure", [True, False])
def test_samples_show_the_known_on_the_left_and_pressure_where_there_is_some(
    pressure: bool,
) -> None:
    x = wing_shapes()
    cp, forces = torch.linspace(-1, 1, 32).expand(7, 32), torch.full((7, 2), 0.1)
    given = {"cp": list(cp), "forces": forces} if pressure else {}
    known = Shapes(x, torch.arange(7.0), [f"wing {i}" for i in range(7)], **given)
    levels = Levels(known, {"in distribution": known, "L/D 6–7": known.take([6])})
    figure = samples(levels, wings.WINGS.quantity, wings.WINGS.sample, "").figure
    left, right = figure.subfigs
    assert (len(left.axes), len(right.axes)) == (6, 1)
    assert [axes.get_title() for axes in left.axes][::5] == ["L/D 0.0", "L/D 6.0"]
    for axes in left.axes:
        assert len(axes.lines) == (2 if pressure else 0)  # lift and drag
        assert [type(one).__name__ for one in axes.collections] == ["Quiver"] * pressure
