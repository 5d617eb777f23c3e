"""Cars from numbers: closed, symmetric, seeded, and of the size that was asked for."""

from __future__ import annotations

import numpy as np
import pytest

from it3_aero.cars.bodies import FAMILIES, ahmed, draw, make
from it3_aero.cars.meshes import decimated, frontal_area, is_symmetric, remeshed
from it3_core import IT3Error


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_a_closed_symmetric_body(family: str) -> None:
    body = make(family)
    assert body.is_volume
    assert body.body_count == 1
    assert 2_000 < len(body.faces) < 10_000
    assert is_symmetric(body)
    assert body.bounds[0][0] == pytest.approx(0.0, abs=1e-6)
    lowest = 0.05 if family == "ahmed" else 0.0
    assert body.bounds[0][2] == pytest.approx(lowest, abs=1e-6)


def test_corners_of_the_ranges_are_cars() -> None:
    for family, ranges in FAMILIES.items():
        if family == "ahmed":  # its ranges are shares of the length, see `draw`
            continue
        for side in (0, 1):
            body = make(family, **{name: pair[side] for name, pair in ranges.items()})
            assert body.is_volume, (family, side)


def test_a_sample_depends_on_its_number_alone() -> None:
    assert draw(0, 7) == draw(0, 7) not in (draw(1, 7), draw(0, 8))
    family, parameters = draw(0, 7)
    one, again = make(family, **parameters), make(family, **parameters)
    np.testing.assert_array_equal(one.vertices, again.vertices)


def test_the_ahmed_body_measures_what_it_should() -> None:
    body = ahmed(slant=25)
    np.testing.assert_allclose(body.extents, [1.044, 0.389, 0.288], atol=1e-6)
    assert frontal_area(body) == pytest.approx(0.389 * 0.288, rel=1e-3)
    base = body.vertices[np.isclose(body.vertices[:, 0], 1.044)]
    drop = 0.222 * np.sin(np.radians(25))
    assert base[:, 2].max() == pytest.approx(0.05 + 0.288 - drop, abs=1e-5)


def test_what_is_no_car_is_refused() -> None:
    for family, parameters, told in [
        ("lorry", {}, "there is no family 'lorry'"),
        ("sedan", {"wings": 2}, "a sedan has no 'wings'"),
        ("sedan", {"length": float("nan")}, "length must be a number"),
        ("sedan", {"length": 2.0}, "no roof is left"),
        ("ahmed", {"nose": 0.5}, "no such Ahmed body"),
    ]:
        with pytest.raises(IT3Error, match=told):
            make(family, **parameters)


@pytest.mark.parametrize("family", FAMILIES)
def test_fewer_triangles_keep_the_shape_and_stay_closed(family: str) -> None:
    body = make(family)
    fewer = remeshed(body, 1000)
    assert 800 < len(fewer.vertices) <= 1000
    for mesh in (fewer, decimated(body, 900)):
        assert mesh.is_volume
        assert mesh.volume == pytest.approx(body.volume, rel=0.01)
        assert frontal_area(mesh) == pytest.approx(frontal_area(body), rel=0.01)
    assert float(fewer.edges_unique_length.max()) < 0.4 * float(body.extents[0])
    with pytest.raises(IT3Error, match="without losing its shape"):
        remeshed(make("streamlined"), 60)
