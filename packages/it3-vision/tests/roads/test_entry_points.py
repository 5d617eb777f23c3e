"""What a user calls: commands from a folder of images to masks, tables and pages."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from it3_vision.__main__ import main
from it3_vision.data import read_image
from it3_vision.roads.demo import run_demo
from it3_vision.roads.georeference import find_georeference
from it3_vision.roads.graphs import draw_graph
from it3_vision.roads.reading import open_roads
from it3_vision.roads.runs import Run

Write = Callable[..., Path]


@pytest.mark.filterwarnings("ignore::it3_core.IT3Warning")
def test_train_evaluate_predict(
    folder: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = folder(16), tmp_path / "run"
    small = ["--preset", "tiny", "--steps", "1", "--size", "32", "--epochs", "1", "--quiet"]
    assert main(["roads", "train", str(data), "--resolution", "0.5", "--at", "1", "--out",
                 str(out), *small]) == 0  # fmt: skip
    assert "held-out quality" in capsys.readouterr().out
    asked = ["--data", str(data), "--resolution", "1", "--most", "5", "--batch-sizes", "2",
             "--only", "IT³, cheap;ActMAD", "--tile", "32", "--quiet"]  # fmt: skip
    assert main(["roads", "evaluate", str(out), *asked]) == 0
    told = capsys.readouterr().out
    assert "| ActMAD | 2 |" in told
    made = out / "evaluation"
    for name in ("table.md", "rows.md", "records.jsonl", "qualitative.png", "quartiles.png"):
        assert (made / name).stat().st_size > 100, name
    page = (made / "report.html").read_text()
    assert "Roads from the air" in page
    assert "it3-vision roads evaluate" in page
    assert "<script" not in page
    mask, over = tmp_path / "mask.png", tmp_path / "over.png"
    image = data / "images" / "3.png"
    asked = ["--out", str(mask), "--overlay", str(over), "--adapt", "it3", "--steps", "2"]
    assert main(["roads", "predict", str(out), str(image), *asked, "--resolution", "1"]) == 0
    assert set(np.unique(read_image(mask))) <= {0, 255}
    assert read_image(mask).shape == read_image(over).shape == (48, 48, 3)
    assert "3.png" in capsys.readouterr().out


@pytest.mark.parametrize("adapt", ["auto", "statistics", "none"])
def test_predict_with_a_world_file(
    adapt: str, run: Run, folder: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = folder(1, 96) / "images" / "0.png"
    image.with_suffix(".pgw").write_text("0.5\n0\n0\n-0.5\n1000\n2000\n")
    lines = tmp_path / "lines.geojson"
    out = ["--out", str(tmp_path / "m.png"), "--lines", str(lines), "--adapt", adapt]
    assert main(["roads", "predict", str(run.folder), str(image), *out]) == 0
    found = json.loads(lines.read_text())
    assert found["type"] == "FeatureCollection"
    points = np.array([p for f in found["features"] for p in f["geometry"]["coordinates"]])
    if len(points):
        assert points.min(0) == pytest.approx(points.min(0).clip([1000, 1952], [1048, 2000]))
    assert read_image(tmp_path / "m.png").shape == (96, 96, 3)
    assert "road on 100 % of the image" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:Use .@. matmul:PendingDeprecationWarning")  # rasterio's own
def test_a_geotiff_says_where_it_lies(tmp_path: Path) -> None:
    rasterio = pytest.importorskip("rasterio")
    from rasterio.transform import from_origin

    from it3_vision.roads.georeference import geojson

    file = tmp_path / "a.tif"
    profile = {"driver": "GTiff", "height": 8, "width": 8, "count": 3, "dtype": "uint8"}
    place = {"crs": "EPSG:26986", "transform": from_origin(236_000, 901_000, 1, 1)}
    with rasterio.open(file, "w", **profile, **place) as made:
        made.write(np.zeros((3, 8, 8), np.uint8))
    where = find_georeference(file)
    assert where is not None
    assert where.numbers == (1.0, 0.0, 0.0, -1.0, 236_000.5, 900_999.5)
    found = json.loads(geojson([np.array([[0.0, 0.0], [7.0, 7.0]])], where, {}))
    (x, y), _ = found["features"][0]["geometry"]["coordinates"]
    assert (x, y) == pytest.approx((-71.06, 42.36), abs=0.01)  # Boston


@pytest.mark.filterwarnings("ignore:Use .@. matmul:PendingDeprecationWarning")  # rasterio's own
@pytest.mark.parametrize(
    ("system", "corner", "side", "metres"),
    [
        ("EPSG:26986", (236_000, 901_000), 0.5, 0.5),  # metres
        ("EPSG:2249", (775_000, 2_955_000), 1.0, 0.3048),  # feet
        ("EPSG:4326", (-71.06, 42.36), 1e-5, 0.956),  # degrees: 1.11 m north, 0.82 m east
        ("EPSG:3857", (-7_910_000, 5_215_000), 1.0, 0.739),  # Mercator's metres at 42°
        (None, (1000, 2000), 0.5, 0.5),  # no system: taken for metres, as a world file's are
    ],
)
def test_a_pixel_s_size_is_in_metres_whatever_the_map_s_unit(
    tmp_path: Path, system: str | None, corner: tuple[float, float], side: float, metres: float
) -> None:
    rasterio = pytest.importorskip("rasterio")
    from rasterio.transform import from_origin

    file = tmp_path / "a.tif"
    profile = {"driver": "GTiff", "height": 80, "width": 80, "count": 3, "dtype": "uint8"}
    place = {"crs": system, "transform": from_origin(*corner, side, side)}
    with rasterio.open(file, "w", **profile, **place) as made:
        made.write(np.zeros((3, 80, 80), np.uint8))
    where = find_georeference(file)
    assert where is not None
    assert where.resolution == pytest.approx(metres, rel=0.01)


def test_roadtracer_from_its_own_files(tmp_path: Path) -> None:
    for name in ("imagery", "graphs", "masks"):
        (tmp_path / name).mkdir()
    (tmp_path / "graphs" / "boston.graph").write_text("-40 20\n40 20\n\n0 1\n1 0\n")
    for x in (-1, 0):
        Image.new("RGB", (64, 64), "gray").save(tmp_path / "imagery" / f"boston_{x}_0_sat.png")
    ready = np.zeros((64, 64), np.uint8)
    ready[50:60] = 255
    Image.fromarray(ready).save(tmp_path / "masks" / "boston_0_0_osm.png")
    scenes = open_roads(tmp_path)
    assert scenes.names == ("imagery/boston_-1_0_sat.png", "imagery/boston_0_0_sat.png")
    assert scenes[0].resolution == 0.6
    drawn = draw_graph(np.array([[24.0, 20.0], [104.0, 20.0]]), np.array([[0, 1]]), (0, 0),
                       (64, 64))  # fmt: skip
    assert np.array_equal(scenes[0].label, drawn // 255)
    assert np.array_equal(scenes[1].label, ready // 255)


@pytest.mark.filterwarnings("ignore::it3_core.IT3Warning")
def test_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = run_demo(tmp_path / "demo", n=16, tested=4, epochs=1, size=64, progress=False)
    page = made.report.read_text()
    assert "online IT³" in page
    assert page.count("data:image/png;base64") == 2
    assert "countryside" in capsys.readouterr().out


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["roads", "--help"]) == 0
    told = capsys.readouterr().out
    assert all(name in told for name in ("train", "evaluate", "predict", "demo"))
