"""Numbers that can be worked out by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest

from it3_vision.roads.ccq import ccq, score
from it3_vision.roads.georeference import Georeference, geojson
from it3_vision.roads.graphs import draw_graph
from it3_vision.roads.lines import centre_lines, thinned
from it3_vision.roads.nodata import find_no_data
from it3_vision.roads.tiling import corners


def line(row: int, start: int = 0, end: int = 100) -> np.ndarray:
    found = np.zeros((60, 100), bool)
    found[row, start:end] = True
    return found


@pytest.mark.parametrize(
    ("predicted", "true", "slack", "expected"),
    [
        (line(20), line(20), 0, (1.0, 1.0, 1.0)),
        (line(25), line(20), 5, (1.0, 1.0, 1.0)),
        (line(26), line(20), 5, (0.0, 0.0, 0.0)),
        # Half of the road is found, and nothing else is said: no slack to help at the end.
        (line(20, 0, 50), line(20), 0, (1.0, 0.5, 0.5)),
        # With slack the end of what was found covers five more pixels.
        (line(20, 0, 50), line(20), 5, (1.0, 0.55, 0.55)),
        # A second road that is not there: half of what is said is wrong.
        (line(20) | line(50), line(20), 5, (0.5, 1.0, 0.5)),
        (line(20, 0, 50) | line(50, 0, 50), line(20), 0, (0.5, 0.5, 1 / 3)),
        (line(0, 0, 0), line(20), 5, (1.0, 0.0, 0.0)),
        (line(20), line(0, 0, 0), 5, (0.0, 1.0, 0.0)),
        (line(0, 0, 0), line(0, 0, 0), 5, (1.0, 1.0, 1.0)),
    ],
)
def test_ccq_of_lines(predicted, true, slack, expected) -> None:  # type: ignore[no-untyped-def]
    assert ccq(predicted, true, slack=slack) == pytest.approx(expected)


def test_ccq_measures_euclidean_distances() -> None:
    true, predicted = np.zeros((2, 20, 20), bool)
    true[5, 5], predicted[8, 9] = True, True  # three down, four right: five away
    assert ccq(predicted, true, slack=5)[2] == 1
    assert ccq(predicted, true, slack=4.99)[2] == 0


def test_what_has_no_data_counts_for_nothing() -> None:
    known = np.ones((60, 100), bool)
    known[:, 50:] = False
    # Wrong and missed roads where nobody can know; the rest is right.
    predicted = line(20, 0, 50) | line(50, 60, 100)
    assert ccq(predicted, line(20, 0, 100), known, slack=0) == (1.0, 1.0, 1.0)
    label = np.where(known, line(20), -1)
    found = score(predicted.astype(float), label, slack=0)
    assert (found.quality, found.iou, found.mse) == (1.0, 1.0, 0.0)


def test_iou_and_mse_have_no_slack() -> None:
    found = score(line(22).astype(float), line(20).astype(int), slack=5)
    assert (found.quality, found.iou) == (1.0, 0.0)
    assert found.mse == pytest.approx(200 / 6000)


def test_a_cross_has_four_arms_and_a_ring_is_closed() -> None:
    cross = np.zeros((61, 61), bool)
    cross[28:33], cross[:, 28:33] = True, True
    arms = centre_lines(cross)
    assert len([arm for arm in arms if np.hypot(*(arm[-1] - arm[0])) > 20]) == 4
    middle = np.array([30.0, 30.0])
    assert all(min(np.hypot(*(arm - middle).T)) < 4 for arm in arms)
    y, x = np.indices((61, 61))
    ring = np.abs(np.hypot(y - 30, x - 30) - 20) < 3
    (closed,) = centre_lines(ring)
    assert closed[0].tolist() == closed[-1].tolist()
    assert np.hypot(*(closed - middle).T) == pytest.approx(20, abs=1.6)


def test_thinning_keeps_what_hangs_together() -> None:
    mask = np.zeros((40, 40), bool)
    mask[5:12, 3:36], mask[5:36, 20:27] = True, True
    skeleton = thinned(mask)
    assert skeleton.sum() < 80
    assert (skeleton & ~mask).sum() == 0


def test_georeferenced_lines() -> None:
    where = Georeference((0.5, 0.0, 0.0, -0.5, 200_000.25, 900_000.75))
    found = json.loads(geojson([np.array([[0.0, 0.0], [10.0, 4.0]])], where, {"a": 1}))
    (feature,) = found["features"]
    assert feature["geometry"] == {
        "type": "LineString",
        "coordinates": [[200_000.25, 900_000.75], [200_005.25, 899_998.75]],
    }
    assert "not known" in found["coordinates"]


def test_a_graph_is_drawn_where_its_window_is() -> None:
    vertices, edges = np.array([[4096.0, 100.0], [4200.0, 100.0]]), np.array([[0, 1]])
    beside = draw_graph(vertices, edges, (0, 0), (256, 4096))
    mask = draw_graph(vertices, edges, (4096, 0), (256, 4096))
    assert beside[:, :4090].sum() == 0
    assert mask[:, 50].nonzero()[0].tolist() == list(range(96, 105))  # nine pixels wide


def test_white_roofs_are_data_and_white_corners_are_not() -> None:
    image = np.full((200, 200, 3), 80, np.uint8)
    corner = np.tri(200, 200, -100, bool)
    image[corner] = 253  # as a JPEG leaves it
    image[20:60, 120:160] = 255
    found = find_no_data(image)
    assert (found != corner).mean() < 0.005
    assert not found[20:60, 120:160].any()


def test_black_corners_have_no_data_and_shadows_have() -> None:
    image = np.full((200, 200, 3), 80, np.uint8)
    corner = np.tri(200, 200, -100, bool)
    image[corner] = 0
    image[20:60, 120:160] = 0  # inside, as a shadow
    image[:60, :60] = (0, 0, 1)  # at the border, as water
    image[:, 199] = 0  # at the border, as a line
    assert np.array_equal(find_no_data(image), corner)
    image[70:170, 90:190] = 0  # huge: then it need not reach the border
    assert find_no_data(image)[72:168, 92:188].all()


def test_what_is_declared_has_no_data_wherever_it_is() -> None:
    image = np.full((64, 64, 3), 80, np.uint8)
    image[30, 30], image[40, 40] = 7, (7, 7, 8)
    assert np.argwhere(find_no_data(image, declared=7)).tolist() == [[30, 30]]
    assert not find_no_data(image).any()


def test_tiles_cover_a_side_evenly() -> None:
    found = corners(1500, 256, 32)
    assert (found[0], found[-1] + 256, len(found)) == (0, 1500, 7)
    assert max(np.diff(found)) <= 224
