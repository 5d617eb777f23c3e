"""What a user calls; bad input gets one sentence that names it, and nothing is changed."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from PIL.TiffImagePlugin import ImageFileDirectory_v2 as Tags

from it3_core import IT3Error
from it3_core.batching import Ragged
from it3_core.io.tensors import read_tensors, write_tensors
from it3_vision.__main__ import main
from it3_vision.data import read_image
from it3_vision.roads.cli import Train
from it3_vision.roads.geo import find_georeference, geojson
from it3_vision.roads.network import DRUSettings, build
from it3_vision.roads.reading import declared_no_data, open_roads, read_graph, read_scene
from it3_vision.roads.scenes import gathered, images_of
from it3_vision.roads.tiling import Tiled

Write = Callable[..., Path]


def test_an_evaluation_leaves_tables_pictures_and_a_page(evaluation, tmp_path, capsys):
    pictures = ("boxes", "quartiles", "qualitative", "segmentation")
    for name in ("table.md", "records.jsonl", *(f"{picture}.png" for picture in pictures)):
        assert (evaluation / name).stat().st_size > 100, name
    assert main(["roads", "report", str(evaluation), "--out", str(tmp_path / "page.html")]) == 0
    assert "| ActMAD | 2 |" in capsys.readouterr().out
    page = (tmp_path / "page.html").read_text()
    assert "6 images, of 2 + 2 + 1 + 1 a quartile; the paper has 450" in page
    assert "No test-time method: trained on the labels of every second image" in page
    for text in ("Roads from the air", "completeness", "MSE quartile 4", "validation crops"):
        assert text in page
    assert "<script" not in page


@pytest.mark.parametrize("adapt", ["auto", "instance", "batch", "online", "statistics", "none"])
def test_predict_several_images_from_a_folder_that_was_moved(
    adapt, folder, write, tmp_path, capsys
):
    place = shutil.copytree(folder, tmp_path / "moved") if adapt == "auto" else folder
    images, masks = write(2, 96) / "images", tmp_path / "masks"
    if adapt == "none":  # before a world file states it
        assert main(["roads", "predict", str(folder), str(images / "0.png")]) == 0
        text = capsys.readouterr().out
        assert " % road; percentile " in text
        assert "ground resolution unknown, assumed 1 m a pixel" in text
    (images / "0.pgw").write_text("0.5\n0\n0\n-0.5\n1000\n2000\n")
    (images / "1.wld").write_text("0.5\n0\n0\n-0.5\n1000\n2000\n")
    masks.mkdir()
    asked = ["roads", "predict", str(place), *(str(images / f"{n}.png") for n in (0, 1)), "--json"]
    for option in ("--out", "--overlay", "--lines"):
        asked += [option, str(masks)]
    assert main([*asked, "--adapt", adapt, "--tile", "32"]) == 0
    for line, name in zip(capsys.readouterr().out.splitlines(), "01", strict=True):
        told = json.loads(line)
        assert told["name"].endswith(f"{name}.png")
        assert (told["resolution"], told["resolution_stated"]) == (0.5, True)
        mask = read_image(masks / f"{name}.png")
        assert set(np.unique(mask)) <= {0, 255}
        assert mask.shape == read_image(masks / f"{name}-overlay.png").shape == (96, 96, 3)
        lines = json.loads((masks / f"{name}.geojson").read_text())
        points = np.array([p for f in lines["features"] for p in f["geometry"]["coordinates"]])
        if len(points):
            assert points.min(0) == pytest.approx(points.min(0).clip([1000, 1952], [1048, 2000]))


@pytest.mark.filterwarnings("ignore:Use .@. matmul:PendingDeprecationWarning")  # rasterio's own
@pytest.mark.parametrize(
    ("system", "corner", "side", "metres"),
    [
        ("EPSG:26986", (236_000, 901_000), 0.5, 0.5),  # metres
        ("EPSG:4326", (-71.06, 42.36), 1e-5, 0.956),  # degrees: 1.11 m north, 0.82 m east
        ("EPSG:3857", (-7_910_000, 5_215_000), 1.0, 0.739),  # Mercator's metres at 42°
        (None, (1000, 2000), 0.5, 0.5),  # no system: taken for metres, as a world file's are
    ],
)
def test_a_geotiff_says_where_it_lies_and_how_large_its_pixels_are(
    tmp_path, system, corner, side, metres
):
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
    x, y = corner[0] + side / 2, corner[1] - side / 2  # a pixel's middle
    assert where.numbers == pytest.approx((side, 0, 0, -side, x, y))
    found = json.loads(geojson([np.array([[0.0, 0.0], [7.0, 7.0]])], where, {}))
    first, _ = found["features"][0]["geometry"]["coordinates"]
    # All but the last lie in Boston.
    assert first == pytest.approx((-71.06, 42.36) if system else (x, y), abs=0.02)


def test_roadtracer_from_its_own_files(tmp_path):
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
    assert scenes[0].label[:, 40].nonzero()[0].tolist() == list(range(16, 25))  # nine pixels wide
    assert scenes[0].label[20].nonzero()[0].tolist() == list(range(20, 64))  # from its round end
    assert np.array_equal(scenes[1].label, ready // 255)


Refused = Callable[[str, str], None]

WORLD = "1\n0\n0\n-1\n1000\n2000\n"

GREY_ROAD = np.zeros((48, 48), np.uint8)
GREY_ROAD[20, :30], GREY_ROAD[0, 0] = 100, 255
CMYK = Image.new("CMYK", (32, 32))
WORDS = Image.fromarray(np.zeros((32, 32), np.uint16))


def geotags():
    """Of a TIFF that says where it lies."""
    tags = Tags()
    tags[33550] = (1.0, 1.0, 0.0)
    tags.tagtype[33550] = 12  # doubles
    return tags


@pytest.mark.parametrize(
    ("name", "image", "resolution", "told"),
    [
        ("masks/0.png", Image.new("L", (20, 30)), 1.0, r"0\.png: the image has 48 × 48 .* 20 × 30"),
        ("masks/0.png", Image.fromarray(GREY_ROAD), 1.0, r"images/0\.png: 1\.3% .* grey"),
        ("masks/0.png", None, 1.0, r"0\.png has no mask of the same name in .*masks"),
        ("images/0.png", None, 1.0, "images holds no image"),
        ("images/0.jpg", Image.new("RGB", (48, 48)), 1.0, r"has both 0\.\w+ and 0\.\w+"),
        ("images/0.png", CMYK, 1.0, "0.png has 4 bands: .*gdal_translate"),
        ("images/0.png", WORDS, 1.0, "0.png has 16 bits a band: .*gdal_translate"),
        ("images/1.txt", None, None, "--resolution"),
        ("images/1.txt", None, -1.0, "metres a pixel"),
    ],
)
def test_data_that_can_t_be_right_are_named(name, image, resolution, told, write):
    place = write(1)
    if image is None:
        (place / name).unlink(missing_ok=True)
    else:
        image.save(place / name, "tiff" if image in (CMYK, WORDS) else None)
    with pytest.raises(IT3Error, match=told):
        open_roads(place, resolution=resolution)[0]


def test_folders_say_what_they_want(tmp_path, write, capsys):
    for name in ("empty", "imagery", "sets/train/sat", "sets/train/map", "sets/test/sat"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "sets/test/map").mkdir()
    Image.new("RGB", (32, 32)).save(tmp_path / "imagery" / "boston_0_0_sat.png")
    for place, split, told in (
        ("sets", None, "--split, of test, train"),
        ("sets", "valid", "has no valid/"),
        ("empty", None, "has no images/ and masks/, but nothing"),
        ("gone", None, "gone does not exist"),
        ("", None, r"boston_0_0_sat\.png has no mask"),
    ):
        with pytest.raises(IT3Error, match=told):
            open_roads(tmp_path / place, split=split)
    data = write(3)
    with pytest.raises(IT3Error, match=r"24000 × 24000 pixels of 1 m: check its ground resol"):
        open_roads(data, resolution=500.0)[0].at(1.0)
    with pytest.raises(IT3Error, match="3 scenes to train on: give 10"):
        gathered(open_roads(data, resolution=1.0), 1.0, True)
    assert "[####################] images/2.png" in capsys.readouterr().err  # it fills
    assert Train(out=data).epochs == 80  # the command line's default and Python's are one
    (data / "images" / "0.png").write_bytes(b"no image")  # one bad image does not end the others
    found = images_of(open_roads(data, resolution=1.0), 1.0)
    assert len(found.scenes) == 2
    assert "0.png" in found.skipped[0]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("0.png --out 0.png", "0.png is, or lies in, the input 0.png"),
        ("0.png --out m.png --overlay ./m.png", "--out, --overlay name one file twice"),
        ("0.png --out m.jpg", "m.jpg can't be written: its name must end in .png, "),
        ("0.png --out m.png --overlay o.txt", "o.txt can't be written: its name must end in"),
        ("0.png --out mine.png", "mine.png is there already"),
        ("a.png --out m.png --lines a.pgw --overwrite", "a.pgw is, or lies in, the input a.pgw"),
        ("0.png --out EXPERIMENT/m.png", "is part of the experiment"),
        ("0.png --out m.png --lines l.json", "0.png has no georeference"),
        ("gone.png --out m.png", "gone.png does not exist"),
        ("scale.tif --out m.png --lines l.json", "scale.tif has no georeference"),
        ("cut.tif --out m.png", "cut.tif is a TIFF file with a damaged header"),
        ("white.png --out m.png", "white.png has no data"),
        ("text.png --out m.png", "text.png is not an image"),
        ("cmyk.tif --out m.png", "cmyk.tif has 4 bands"),
        ("0.png a.png --out m.png", "name one file twice"),
    ],
)
def test_predict_refuses_before_it_works(asked, told, refused, write, monkeypatch):
    monkeypatch.chdir(write(1) / "images")
    Image.new("RGB", (64, 64), "white").save("white.png")
    Path("text.png").write_bytes(b"no image")
    Path("mine.png").write_bytes(b"mine")
    CMYK.save("cmyk.tif")
    Image.new("RGB", (64, 64)).save("scale.tif", tiffinfo=geotags())
    Path("cut.tif").write_bytes(Path("scale.tif").read_bytes()[:60])
    Image.open("0.png").save("a.png")
    Path("a.pgw").write_text(WORLD)
    refused(f"predict EXPERIMENT {asked} --quiet", told)


def test_masks_may_be_of_ones_and_transparency_is_no_data(write):
    place = write(1, end="tif")
    before = open_roads(place, resolution=1.0)[0].label
    mask, pixels = (read_image(place / name) for name in ("masks/0.png", "images/0.tif"))
    Image.fromarray(mask[..., 0] // 255).save(place / "masks" / "0.png")
    assert np.array_equal(open_roads(place, resolution=1.0)[0].label, before)
    image = np.dstack([pixels, np.full((48, 48), 255, np.uint8)])
    image[:, :24, 3] = 0
    Image.fromarray(image).save(place / "images" / "0.tif")
    scene = open_roads(place, resolution=1.0)[0]
    assert not scene.known[:, :22].any()
    assert scene.known[:, 27:].all()


def test_a_declared_value_is_no_data(write):
    image = write(1, end="tif") / "images" / "0.tif"
    pixels, tags = read_image(image).copy(), Tags()
    pixels[10:14, 20:24], tags[42113] = 7, "7"  # too small to be found by its colour
    Image.fromarray(pixels).save(image, tiffinfo=tags)
    scene = open_roads(image.parents[1], resolution=1.0)[0]
    assert (scene.label[10:14, 20:24] == -1).all()
    assert scene.known.sum() == 48 * 48 - 16
    Image.fromarray(pixels).save(image.with_suffix(".png"))  # a PNG declares nothing
    assert read_scene(image.with_suffix(".png"), 1.0).known.all()
    for text in ("nan", "-9999", "x", "256", "0.5"):  # what no pixel has
        assert declared_no_data({258: (8, 8, 8), 42113: text}) is None
    assert declared_no_data({258: (8, 8, 8), 42113: "7\0"}) == 7
    assert declared_no_data({258: (8,), 262: 3, 42113: "7"}) is None  # a palette's number


@pytest.mark.parametrize("placed", ["by nothing", "by a world file", "by its tags"])
def test_what_lies_on_a_map_is_not_turned(placed, write):
    """Its georeference is of the stored pixels, and so is its mask."""
    place = write(1, end="tif")
    image, mask = place / "images" / "0.tif", place / "masks" / "0.png"
    pixels, tags = read_image(image)[:32], geotags() if "tags" in placed else Tags()
    tags[274] = 6
    if "world" in placed:
        image.with_suffix(".tfw").write_text(WORLD)
    Image.fromarray(pixels).save(image, tiffinfo=tags)
    expected = np.rot90(pixels, -1) if placed == "by nothing" else pixels
    Image.new("L", expected.shape[1::-1]).save(mask)
    assert np.array_equal(read_scene(image, 1.0).image, expected)
    assert np.array_equal(open_roads(place, resolution=1.0)[0].image, expected)


def test_broken_graphs_and_world_files_are_named(tmp_path):
    for text in ("0 0\n1\n\n0 1\n", "0 0\n5 5\n\n0 7\n", "nan 0\n1 1\n\n0 1\n", "\x80"):
        (tmp_path / "boston.graph").write_text(text, encoding="latin-1")
        with pytest.raises(IT3Error, match=r"boston\.graph"):
            read_graph(tmp_path / "boston.graph")
    for text in ("1\n0\n0\n", "a\nb\nc\nd\ne\nf", "0\n0\n0\n0\n1\n1", "1\n0\n0\n1\nnan\n1", ""):
        (tmp_path / "a.pgw").write_text(text)
        with pytest.raises(IT3Error, match=r"a\.pgw"):
            find_georeference(tmp_path / "a.png")


def test_a_geotiff_without_rasterio_says_what_to_install(tmp_path, monkeypatch):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.tif", tiffinfo=geotags())
    monkeypatch.setitem(sys.modules, "rasterio", None)
    assert read_scene(tmp_path / "a.tif", 1.0).image.shape == (8, 8, 3)  # pixels need no place
    with pytest.raises(IT3Error, match=r"a\.tif is a GeoTIFF: .*it3-vision\[geo\]"):
        find_georeference(tmp_path / "a.tif")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda f: f.settings["settings"].pop("resolution"), "resolution is missing"),
        (lambda f: f.settings["settings"]["network"].update(size="x"), '"x"'),
        (lambda f: f.settings["settings"]["prepare"].update(std=[0, 0, 0]), "std positive"),
        (lambda f: f.adapter.update(kind="Regression"), "adapter"),
        (lambda f: f.tensors.update({"tensors.validation.y": torch.ones(1)}), "no validation cr"),
    ],
)
def test_an_experiment_that_was_tampered_with_is_refused(
    change, told, folder, scenes, tmp_path, refused
):
    path = Path(shutil.copytree(folder, tmp_path / "copy"), "0", "network.safetensors")
    found = read_tensors(path, kind="checkpoint", metadata=dict[str, Any])
    change(SimpleNamespace(tensors=found.tensors, **found.metadata))
    write_tensors(path, found.tensors, found.metadata, kind="checkpoint")
    copy = path.parents[1]
    refused(f"evaluate {copy} --data {scenes} --split test --resolution 1 --only source", told)


def test_training_options_are_checked(scenes, refused):
    train = f"train {scenes} --split train --resolution 1 --quiet --out"
    refused(f"{train} EXPERIMENT", "was made with other settings")
    refused(f"{train} new --crop 100", "multiple of 16")


def test_what_can_not_be_is_refused():
    net = build(DRUSettings("tiny"))
    wrong: list[Callable[[], object]] = [
        lambda: build(DRUSettings(steps=0)),
        lambda: net(torch.ones(1, 3, 32, 32), torch.ones(1, 2, 32, 32)),
        lambda: net(torch.ones(1, 4, 30, 32), torch.ones(1, 2, 30, 32)),
        lambda: net(torch.ones(1, 4, 32, 32), torch.ones(1, 1, 32, 32)),
        lambda: Tiled(lambda x: x, tile=100)(Ragged([torch.ones(4, 32, 32)])),
    ]
    for one in wrong:
        with pytest.raises(IT3Error):
            one()
