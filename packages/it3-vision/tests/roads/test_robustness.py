"""Bad input: each gets one sentence that names it and says what to do."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, TiffImagePlugin

from it3_core import IT3Error
from it3_vision.__main__ import main
from it3_vision.data import read_image
from it3_vision.roads.evaluate import Views, evaluate_run, views_of
from it3_vision.roads.georeference import find_georeference
from it3_vision.roads.graphs import read_graph
from it3_vision.roads.network import DRUSettings, build
from it3_vision.roads.predict import read_scene
from it3_vision.roads.reading import open_roads
from it3_vision.roads.runs import Run, Training, load_run, train
from it3_vision.roads.tiff import declared_no_data
from it3_vision.roads.tiling import answer

Write = Callable[..., Path]


def test_a_mask_of_another_size_is_named(folder: Write) -> None:
    place = folder(2)
    Image.new("L", (20, 30)).save(place / "masks" / "1.png")
    scenes = open_roads(place, resolution=1.0)
    with pytest.raises(IT3Error, match=r"images/1\.png: the image has 48 × 48 .* mask 20 × 30"):
        scenes[1]


def test_a_grey_mask_is_refused(folder: Write) -> None:
    place = folder(2)
    grey = np.tile(np.linspace(0, 255, 48).astype(np.uint8), (48, 1))
    Image.fromarray(grey).save(place / "masks" / "0.png")
    with pytest.raises(IT3Error, match=r"images/0\.png: .* grey, neither road nor ground"):
        open_roads(place, resolution=1.0)[0]


def test_a_grey_road_is_refused_though_roads_are_few_pixels(folder: Write) -> None:
    place = folder(2)
    mask = np.zeros((48, 48), np.uint8)
    mask[20, :30] = 100
    mask[0, 0] = 255
    Image.fromarray(mask).save(place / "masks" / "0.png")
    with pytest.raises(IT3Error, match=r"images/0\.png: 1\.3% .* grey, neither road nor ground"):
        open_roads(place, resolution=1.0)[0]


def test_two_images_of_one_name_are_told_apart_by_nobody(folder: Write) -> None:
    place = folder(2)
    Image.open(place / "images" / "1.png").save(place / "images" / "1.jpg")
    with pytest.raises(IT3Error, match=r"has both 1\.jpg and 1\.png|has both 1\.png and 1\.jpg"):
        open_roads(place, resolution=1.0)


def test_a_mistaken_resolution_does_not_fill_the_memory(folder: Write) -> None:
    scene = open_roads(folder(2), resolution=500.0)[0]
    with pytest.raises(IT3Error, match=r"24000 × 24000 pixels of 1 m: check its ground resol"):
        scene.at(1.0)


def test_one_bad_image_does_not_end_an_evaluation(run: Run, folder: Write) -> None:
    place = folder(3)
    (place / "images" / "0.png").write_bytes(b"no image")
    found = views_of(run, open_roads(place, resolution=run.resolution))
    assert len(found) == 2
    assert "0.png" in found.skipped[0]


def test_lines_without_a_georeference_are_refused_before_the_work(
    run: Run, folder: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    image, out = folder(2) / "images" / "0.png", tmp_path / "mask.png"
    asked = ["roads", "predict", str(run.folder), str(image), "--out", str(out)]
    monkeypatch.setattr("sys.argv", ["it3-vision", *asked, "--lines", str(tmp_path / "a.json")])
    assert main() == 2
    assert "has no georeference" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", ["it3-vision", *asked])
    assert main() == 0
    assert "does not say its ground resolution" in capsys.readouterr().err
    assert out.exists()


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (["--out", "0.png"], "0.png is named twice"),
        (["--out", "m.png", "--overlay", "./m.png"], "m.png is named twice"),
        (["--out", "gone/m.png"], "there is no folder gone"),
        (["--out", "m.xyz"], "m.xyz can't be written: name it .png, "),
        (["--out", "m.jpg"], "m.jpg can't be written: name it .png, "),
        (["--out", "m.png", "--overlay", "o.txt"], "o.txt can't be written: name it .png, "),
    ],
)
def test_files_that_can_t_or_must_not_be_written_are_refused_before_the_work(
    asked: list[str], sentence: str, run: Run, folder: Write,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Above all the image itself, which a mask would be written over."""
    here = folder(1) / "images"
    monkeypatch.chdir(here)
    monkeypatch.setattr("it3_vision.roads.predict.answer", None)
    before = (here / "0.png").read_bytes()
    assert main(["roads", "predict", str(run.folder), "0.png", *asked]) == 2
    told = capsys.readouterr().err
    assert sentence in told
    assert len(told.splitlines()) == 1
    assert (here / "0.png").read_bytes() == before
    assert not (here / "m.png").exists()


def test_a_mask_is_written_whole_or_not_at_all(
    run: Run, folder: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    image, out = folder(1) / "images" / "0.png", tmp_path / "m.png"
    out.write_bytes(b"of before")
    monkeypatch.setattr("pathlib.Path.replace", full)  # what a whole file ends with
    assert main(["roads", "predict", str(run.folder), str(image), "--out", str(out)]) == 2
    assert out.read_bytes() == b"of before"
    assert [path.name for path in tmp_path.glob("*m.png*")] == ["m.png"]


def test_masks_of_zeros_and_ones_are_masks(folder: Write) -> None:
    place = folder(2)
    as_it_was = open_roads(place, resolution=1.0)[0].label
    mask = read_image(place / "masks" / "0.png")[..., 0] // 255
    Image.fromarray(mask).save(place / "masks" / "0.png")
    assert np.array_equal(open_roads(place, resolution=1.0)[0].label, as_it_was)


def test_a_missing_mask_is_named(folder: Write) -> None:
    place = folder(3)
    (place / "masks" / "2.png").unlink()
    with pytest.raises(IT3Error, match=r"2\.png has no mask in .*masks"):
        open_roads(place, resolution=1.0)


def test_an_image_smaller_than_a_tile_is_answered(run: Run) -> None:
    from it3_core import Source

    x = torch.ones(4, 7, 21)
    (found,) = answer(Source(run.model, run.adapter), [x])
    assert found.probability.shape == (7, 21)
    assert np.isfinite(found.probability).all()


@pytest.mark.parametrize(
    ("image", "told"),
    [
        (Image.new("CMYK", (32, 32)), "has 4 bands"),
        (Image.fromarray(np.zeros((32, 32), np.uint16)), "has 16 bits a band"),
        (Image.fromarray(np.zeros((32, 32), np.float32)), "has 32 bits a band"),
    ],
)
def test_a_tiff_that_is_not_plain_rgb_is_refused(
    image: Image.Image, told: str, folder: Write, run: Run, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    place = folder(2, end="tif")
    image.save(place / "images" / "0.tif")
    with pytest.raises(IT3Error, match=f"images/0.tif {told}.*gdal_translate"):
        open_roads(place, resolution=1.0)[0]
    asked = [str(run.folder), str(place / "images" / "0.tif"), "--out", str(tmp_path / "m.png")]
    assert main(["roads", "predict", *asked]) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "m.png").exists()


def test_transparency_is_no_data(folder: Write) -> None:
    place = folder(2, end="tif")
    pixels = read_image(place / "images" / "0.tif")
    image = np.dstack([pixels, np.full((48, 48), 255, np.uint8)])
    image[:, :24, 3] = 0
    Image.fromarray(image).save(place / "images" / "0.tif")
    scene = open_roads(place, resolution=1.0)[0]
    assert not scene.known[:, :22].any()
    assert scene.known[:, 27:].all()


def test_a_declared_value_is_no_data(folder: Write) -> None:
    place = folder(2, end="tif")
    pixels = read_image(place / "images" / "0.tif").copy()
    pixels[10:14, 20:24] = 7  # too small to be found by its colour
    tags = TiffImagePlugin.ImageFileDirectory_v2()
    tags[42113] = "7"
    for end, there in (("tif", False), ("png", True)):  # a PNG declares nothing
        image = place / "images" / f"0.{end}"
        Image.fromarray(pixels).save(image, **({} if there else {"tiffinfo": tags}))
        scene = read_scene(image, 1.0, 1.0)
        assert bool(scene.known[10:14, 20:24].any()) is there
        assert scene.known.sum() == 48 * 48 - 16 * (not there)
    (place / "images" / "0.png").unlink()
    label = open_roads(place, resolution=1.0)[0].label
    assert label is not None
    assert (label[10:14, 20:24] == -1).all()


@pytest.mark.parametrize("text", ["nan", "-9999", "x", "256", "0.5"])
def test_a_declared_value_that_no_pixel_has(text: str) -> None:
    assert declared_no_data({258: (8, 8, 8), 42113: text}) is None
    assert declared_no_data({258: (8, 8, 8), 42113: "7\0"}) == 7
    assert declared_no_data({258: (8,), 262: 3, 42113: "7"}) is None  # a palette's number


@pytest.mark.parametrize("placed", ["by nothing", "by a world file", "by its tags"])
def test_what_lies_on_a_map_is_not_turned(placed: str, folder: Write) -> None:
    """Its georeference is of the stored pixels, and so is its mask."""
    place = folder(2, end="tif")
    image = place / "images" / "0.tif"
    pixels, tags = read_image(image)[:32], TiffImagePlugin.ImageFileDirectory_v2()
    tags[274] = 6
    if placed == "by its tags":
        tags[33550] = (1.0, 1.0, 0.0)
        tags.tagtype[33550] = 12  # doubles
    elif placed == "by a world file":
        image.with_suffix(".tfw").write_text("1\n0\n0\n-1\n1000\n2000\n")
    Image.fromarray(pixels).save(image, tiffinfo=tags)
    found = read_scene(image, 1.0, 1.0).image
    if placed == "by nothing":
        assert np.array_equal(found, np.rot90(pixels, -1))
        return
    assert np.array_equal(found, pixels)
    Image.fromarray(read_image(place / "masks" / "0.png")[:32]).save(place / "masks" / "0.png")
    assert np.array_equal(open_roads(place, resolution=1.0)[0].image, pixels)


def test_an_empty_folder_says_what_it_wants(tmp_path: Path, folder: Write) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(IT3Error, match="has no images/ and masks/, but nothing"):
        open_roads(tmp_path / "empty", resolution=1.0)
    place = folder(1)
    (place / "images" / "0.png").unlink()
    with pytest.raises(IT3Error, match="images holds no image"):
        open_roads(place, resolution=1.0)


def test_the_resolution_must_be_said(folder: Write) -> None:
    place = folder(1)
    with pytest.raises(IT3Error, match="--resolution"):
        open_roads(place)
    with pytest.raises(IT3Error, match="metres a pixel"):
        open_roads(place, resolution=-1.0)[0]


def test_several_splits_want_a_name(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for name in ("sat", "map"):
            (tmp_path / split / name).mkdir(parents=True)
    with pytest.raises(IT3Error, match="--split, of test, train"):
        open_roads(tmp_path)
    with pytest.raises(IT3Error, match="has no valid/"):
        open_roads(tmp_path, split="valid")


@pytest.mark.parametrize(
    "text", ["0 0\n1\n\n0 1\n", "0 0\n5 5\n\n0 7\n", "nan 0\n1 1\n\n0 1\n", "\x80"]
)
def test_a_broken_graph_is_named(text: str, tmp_path: Path) -> None:
    file = tmp_path / "boston.graph"
    file.write_text(text, encoding="latin-1")
    with pytest.raises(IT3Error, match=r"boston\.graph"):
        read_graph(file)


def test_roadtracer_without_a_graph(tmp_path: Path) -> None:
    (tmp_path / "imagery").mkdir()
    Image.new("RGB", (32, 32)).save(tmp_path / "imagery" / "boston_0_0_sat.png")
    with pytest.raises(IT3Error, match=r"boston_0_0_sat\.png has no mask"):
        open_roads(tmp_path)


@pytest.mark.parametrize("text", ["1\n0\n0\n", "a\nb\nc\nd\ne\nf", "0\n0\n0\n0\n1\n1", ""])
def test_a_broken_world_file_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.pgw").write_text(text)
    with pytest.raises(IT3Error, match=r"a\.pgw"):
        find_georeference(tmp_path / "a.png")


def test_lines_need_a_georeference(
    run: Run, folder: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = folder(1) / "images" / "0.png"
    out = ["--out", str(tmp_path / "m.png"), "--lines", str(tmp_path / "l.geojson")]
    assert main(["roads", "predict", str(run.folder), str(image), *out]) == 2
    assert "world file" in capsys.readouterr().err
    assert not (tmp_path / "m.png").exists()


@pytest.mark.parametrize("kind", ["white", "black", "empty", "none", "text"])
def test_an_image_without_data(
    kind: str, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = tmp_path / "a.png"
    if kind in ("white", "black"):
        Image.new("RGB", (64, 64), kind).save(image)
    elif kind != "none":
        image.write_bytes(b"" if kind == "empty" else b"no image")
    out = ["--out", str(tmp_path / "m.png")]
    assert main(["roads", "predict", str(run.folder), str(image), *out]) == 2
    told = capsys.readouterr().err
    assert "a.png" in told
    assert len(told.splitlines()) == 1


def test_a_folder_that_is_no_run(tmp_path: Path, run: Run) -> None:
    with pytest.raises(IT3Error, match="roads train"):
        load_run(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"x" * 100)
    with pytest.raises(IT3Error):
        load_run(tmp_path)


def test_too_few_scenes(folder: Write, tmp_path: Path) -> None:
    with pytest.raises(IT3Error, match="3 scenes to train on: give 10"):
        train(open_roads(folder(3), resolution=1.0), tmp_path / "run", progress=False)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: DRUSettings("huge"),  # type: ignore[arg-type]
        lambda: DRUSettings(steps=0),
        lambda: Training(size=100),
        lambda: Training(resolution=0.0),
        lambda: build(DRUSettings("tiny"))(torch.ones(1, 3, 32, 32), torch.ones(1, 2, 32, 32)),
        lambda: build(DRUSettings("tiny"))(torch.ones(1, 4, 30, 32), torch.ones(1, 2, 30, 32)),
        lambda: build(DRUSettings("tiny"))(torch.ones(1, 4, 32, 32), torch.ones(1, 1, 32, 32)),
        lambda: answer(lambda x: x, [torch.ones(4, 32, 32)], tile=100),
        lambda: answer(lambda x: x, [torch.ones(4, 64, 64)], tile=32, overlap=-1),
    ],
)
def test_settings_that_can_not_be(wrong: Callable[[], object]) -> None:
    with pytest.raises(IT3Error):
        wrong()


def test_a_method_that_fails_does_not_take_the_others_with_it(
    run: Run, country: Views, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("out of ideas")

    monkeypatch.setattr("it3_core.ActMAD.__call__", broken)
    found = evaluate_run(run, country, out=tmp_path, batch_sizes=(3,), tile=48,
                         only=["ActMAD", "second pass"], progress=False)  # fmt: skip
    lines = {line[0]: line for line in found.table()}
    assert lines["ActMAD"][2] == "failed: out of ideas"
    assert float(lines["second pass"][4]) >= 0
