"""What must hold for any input."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.loader import DataLoader
from torch_geometric.transforms import Cartesian

from it3_aero.generation import read_samples
from it3_aero.wings import (
    Airfoil,
    NeuralFoil,
    WingDataset,
    XFoil,
    generate,
    naca,
    naca4,
    outline,
    read_airfoil,
    resample,
    to_graph,
)
from it3_aero.wings.families import draw

shapes = st.builds(
    naca4,
    camber=st.floats(0.0, 0.08),
    position=st.floats(0.2, 0.7),
    thickness=st.floats(0.04, 0.3),
    n=st.sampled_from([41, 100, 201]),
)


@given(airfoil=shapes)
@settings(max_examples=40, deadline=None)
def test_every_airfoil_has_the_same_form(airfoil: Airfoil) -> None:
    x, y = airfoil.points.T
    assert x.min() == 0.0
    assert x.max() == pytest.approx(1.0)
    assert y[0] + y[-1] == pytest.approx(0.0)
    nose = int(np.argmin(x))
    assert y[:nose].mean() > y[nose:].mean()
    assert not airfoil.points.flags.writeable


@given(
    airfoil=shapes,
    backwards=st.booleans(),
    scale=st.floats(0.01, 1000),
    shift=st.tuples(st.floats(-5, 5), st.floats(-5, 5)),
    start=st.floats(0, 1, exclude_max=True),
)
@settings(max_examples=30, deadline=None)
def test_direction_scale_place_and_start_do_not_matter(
    airfoil: Airfoil, backwards: bool, scale: float, shift: tuple[float, float], start: float
) -> None:
    ring = np.roll(airfoil.points, -int(start * len(airfoil.points)), axis=0)
    given_points = (ring[::-1] if backwards else ring) * scale + np.array(shift) * scale
    assert outline("same", given_points).points == pytest.approx(airfoil.points, abs=1e-9)


def test_straight_sides_do_not_cross() -> None:
    # Edges along one line; a flat nose keeps them from being told apart at a glance.
    along = [round(0.1 * step, 1) for step in range(11)]
    upper = [(x, 0.03 + 0.01 * x) for x in along]
    front = [(0.0, y) for y in (0.02, 0.01, 0.0, -0.01, -0.02)]
    lower = [(x, -0.03 - 0.017 * x) for x in along]
    plate = outline("plate", np.array([*upper[::-1], *front, *lower]))
    assert plate.thickness == pytest.approx(0.087, abs=0.001)


@given(airfoil=shapes)
@settings(max_examples=15, deadline=None)
def test_resampling_stays_on_the_outline(airfoil: Airfoil) -> None:
    graph = to_graph(airfoil, nodes=64)
    dense = naca4(**airfoil.parameters, n=801).points
    gaps = np.hypot(*(dense[:, None] - graph.pos.double().numpy()[None]).T).min(axis=1)
    assert gaps.max() < 3e-3


def test_a_graph_is_what_torch_geometric_makes_of_it() -> None:
    graph = to_graph(naca("2412"))
    pseudo = graph.edge_attr.clone()
    del graph.edge_attr
    assert torch.allclose(Cartesian(norm=True)(graph).edge_attr, pseudo)
    assert graph.is_undirected()
    assert graph.num_edges == 2 * graph.num_nodes == 256
    assert not graph.has_isolated_nodes()
    assert not graph.has_self_loops()


def test_a_mirrored_airfoil_has_a_mirrored_graph_and_flow(xfoil: XFoil) -> None:
    one = naca("2412")
    other = outline("mirrored", one.points * [1, -1])
    assert to_graph(other).pos.flip(0) * torch.tensor([1, -1]) == pytest.approx(to_graph(one).pos)
    here, there = xfoil.solve(one, 1e6, 3.0), xfoil.solve(other, 1e6, -3.0)
    assert there.cl == pytest.approx(-here.cl, abs=2e-3)
    assert there.cd == pytest.approx(here.cd, rel=5e-3)


def selig(points: np.ndarray) -> list[str]:
    return [f"{x:.6f} {y:.6f}" for x, y in points.tolist()]


def lednicer(points: np.ndarray) -> list[str]:
    nose = int(np.argmin(points[:, 0]))
    upper, lower = points[nose::-1], points[nose:]
    return [f"{len(upper)}. {len(lower)}.", "", *selig(upper), "", *selig(lower)]


STYLES: dict[str, Callable[[np.ndarray], list[str]]] = {
    "selig": lambda points: ["NACA 2412", *selig(points)],
    "no header": selig,
    "other direction": lambda points: ["NACA 2412", *selig(points[::-1])],
    "from the nose": lambda points: ["x", *selig(np.roll(points, 100, axis=0))],
    "in millimetres": lambda points: ["NACA 2412 chord 180 mm", *selig(180 * points)],
    "lednicer": lambda points: ["NACA 2412", *lednicer(points)],
    "lednicer, no counts": lambda points: ["NACA 2412", *lednicer(points)[1:]],
    "lednicer, lower first": lambda points: ["x", *selig(points[100:]), *selig(points[100::-1])],
    "headings": lambda points: [
        "x",
        "Upper",
        *lednicer(points)[2:104],
        "Lower",
        *selig(points[100:]),
    ],
    "commas": lambda points: [line.replace(" ", ", ") for line in ["x,y", *selig(points)]],
    "tabs, windows": lambda points: [f"{line}\r".replace(" ", "\t") for line in selig(points)],
    "comments": lambda points: ["# by hand", "! 2026", "2412", *selig(points), "% end"],
    "a note after it": lambda points: ["x", *selig(points), "Thickness: 12 %", "28/12/2005", "--"],
    "fortran": lambda points: [line.replace(".", ".") + "D0" for line in selig(points)],
    "sharp": lambda points: ["x", *selig(points - [[0, y] for y in 0.00126 * points[:, 0]][:1])],
    "a z column": lambda points: [f"{line} 0.000" for line in selig(points)],
}


@pytest.mark.parametrize("style", STYLES)
def test_files_in_any_style_are_the_same_airfoil(style: str, tmp_path: Path) -> None:
    wanted = naca("2412")
    path = tmp_path / "shape.dat"
    path.write_text("\n".join(STYLES[style](wanted.points)), newline="")
    at = np.linspace(0.02, 0.98, 25)
    assert resample(read_airfoil(path), at) == pytest.approx(resample(wanted, at), abs=2e-4)


def test_a_name_comes_from_the_head_or_the_file(written: Callable[..., Path]) -> None:
    assert read_airfoil(written(Airfoil("Clark Y, 11.7 %", naca("2412").points))).name == (
        "Clark Y, 11.7 %"
    )
    path = written(naca("2412"), "wing7.dat")
    path.write_text("\n".join(path.read_text().splitlines()[1:]))
    assert read_airfoil(path).name == "wing7"


def test_a_sample_does_not_depend_on_the_others() -> None:
    ten = [draw("naca4", 3, sample) for sample in range(10)]
    assert [draw("naca4", 3, sample) for sample in reversed(range(10))] == ten[::-1]
    assert len({str(one) for one in ten}) == 10
    assert draw("naca4", 4, 0) != ten[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty profiles by NeuralFoil, with camber for both sides of 60."""
    out = tmp_path_factory.mktemp("wings")
    ranges = {"camber": (0.0, 0.05)}
    generate(out, 20, ranges=ranges, solver="neuralfoil", workers=2, progress=False)
    return out


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_the_place_where_work_runs_does_not_matter(folder: Path, tmp_path: Path, kind: str) -> None:
    executor: Executor = ThreadPoolExecutor(3)
    if kind == "processes":
        executor = ProcessPoolExecutor(1, get_context("spawn"))
    with executor:
        ranges = {"camber": (0.0, 0.05)}
        generate(
            *(tmp_path, 6),
            ranges=ranges,
            solver=NeuralFoil(),
            executor=executor,
            workers=2,
            progress=False,
        )
    assert read_samples(tmp_path) == read_samples(folder)[:6]


def test_a_dataset_holds_what_was_generated(folder: Path) -> None:
    wings = WingDataset(folder)
    records = read_samples(folder)
    assert len(wings) == len(records) == 20
    assert wings.solver.startswith("NeuralFoil")
    for data, record in zip(wings, records, strict=True):
        assert data.y.item() == pytest.approx(record["cl"] / record["cd"], rel=1e-6)
        assert data.name == record["name"]
        assert data.sample.item() == record["sample"]
        named = dict(zip(wings.parameter_names, data.parameters[0].tolist(), strict=True))
        assert named == pytest.approx(record["parameters"], rel=1e-6)
        assert data.cp.shape == (data.num_nodes,)
        wanted = to_graph(naca4(**record["parameters"]))
        assert torch.equal(data.pos, wanted.pos)
        assert torch.equal(data.edge_index, wanted.edge_index)
        assert torch.equal(data.edge_attr, wanted.edge_attr)
    batch = next(iter(DataLoader(wings, batch_size=5)))
    assert batch.y.shape == (5, 1)
    assert batch.parameters.shape == (5, 3)
    assert batch.pos.view(5, 128, 2).shape == (5, 128, 2)
    assert torch.equal(wings[[3, 1]][1].pos, wings[1].pos)


def test_a_dataset_notices_new_samples(folder: Path, tmp_path: Path) -> None:
    generate(tmp_path, 2, solver="neuralfoil", progress=False)
    assert len(WingDataset(tmp_path)) == len(WingDataset(tmp_path)) == 2
    generate(tmp_path, 3, solver="auto", progress=False)  # which stays with NeuralFoil
    assert len(WingDataset(tmp_path)) == 3
    assert len(WingDataset(tmp_path, nodes=32)[0].pos) == 32


def test_a_split_puts_every_profile_in_one_place(folder: Path) -> None:
    wings = WingDataset(folder)
    split = wings.split(threshold=60.0, seed=1)
    parts = [split.train, split.validation, split.test, *split.levels.values()]
    assert sorted(index for part in parts for index in part) == list(range(20))
    assert all(wings[i].y <= 60 for i in [*split.train, *split.validation, *split.test])
    ratios = [float(wings[i].y) for i in split.beyond]
    assert ratios == sorted(ratios)
    assert min(ratios) > 60
    assert len(split.levels) == 3
    assert wings.split(seed=1) == split
    assert wings.split(seed=2).train != split.train
