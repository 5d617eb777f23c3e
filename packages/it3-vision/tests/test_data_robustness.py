"""Data: whatever is wrong with a file or a folder, it is handled or named, and the run goes on."""

import gzip
import io
import os
import struct
import tarfile
import tracemalloc
import warnings
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from it3_core import IT3Error, IT3Warning
from it3_vision.data import BadImage, open_images, read_image, severities
from it3_vision.data.images import fit_to

RNG = np.random.default_rng(1)


def noise(*shape):
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def saved(image, kind="png", **options):
    if not isinstance(image, Image.Image):
        image = Image.fromarray(image)
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


GOOD = saved(noise(6, 6, 3))
JPEG = saved(noise(40, 40, 3), "jpeg")


def only(pixels):
    """The one colour of an image."""
    (colour,) = {tuple(row) for row in pixels.reshape(-1, 3).tolist()}
    return colour


# Odd images that are handled


@pytest.mark.parametrize(
    ("mode", "colour", "kind", "expected"),
    [
        ("L", 77, "png", (77,) * 3),
        ("L", 77, "jpeg", (77,) * 3),
        ("1", 1, "png", (255,) * 3),
        ("1", 1, "tiff", (255,) * 3),
        ("LA", (0, 51), "png", (204,) * 3),
        ("RGBA", (255, 0, 0, 0), "png", (255, 255, 255)),
        ("RGBA", (255, 0, 0, 51), "webp", (255, 204, 204)),
        ("RGB", (10, 20, 30), "bmp", (10, 20, 30)),
        ("RGB", (10, 20, 30), "ppm", (10, 20, 30)),
        ("CMYK", (0, 255, 255, 0), "tiff", (255, 0, 0)),
        ("I;16", 257 * 200, "png", (200,) * 3),
        ("I;16", 257 * 200, "tiff", (200,) * 3),
        ("I", 65535, "tiff", (255,) * 3),
        ("I", 200, "tiff", (200,) * 3),
        ("F", 0.8, "tiff", (204,) * 3),
        ("F", 200.4, "tiff", (200,) * 3),
        ("F", 257 * 200, "tiff", (200,) * 3),
    ],
)
def test_every_kind_of_pixel_becomes_rgb(mode, colour, kind, expected):
    pixels = read_image(saved(Image.new(mode, (5, 4), colour), kind, lossless=True))
    assert (pixels.shape, pixels.dtype, only(pixels)) == ((4, 5, 3), np.uint8, expected)


def test_a_cmyk_jpeg():
    red = read_image(saved(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "jpeg", quality=100))
    assert np.abs(red.astype(int) - [255, 0, 0]).max() < 12


def test_palettes_with_and_without_transparency():
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, 10, 200, 30])
    assert only(read_image(saved(image))) == (10, 200, 30)
    assert only(read_image(saved(image, "gif"))) == (10, 200, 30)
    assert only(read_image(saved(image, transparency=1))) == (255, 255, 255)
    grey = Image.new("L", (4, 4), 9)
    assert only(read_image(saved(grey, transparency=9))) == (255, 255, 255)


def test_16_bits_in_colour():
    raw = b"\0" + struct.pack(">3H", 257 * 10, 257 * 20, 65535)
    chunks = [(b"IHDR", struct.pack(">2I5B", 1, 1, 16, 2, 0, 0, 0)), (b"IDAT", zlib.compress(raw))]
    assert only(read_image(png(*chunks))) == (10, 20, 255)


def test_16_bits_of_small_values_are_dark_and_not_taken_for_8():
    assert only(read_image(saved(Image.new("I;16", (4, 4), 255), "tiff"))) == (1, 1, 1)
    assert only(read_image(b"P5 1 1 65535\n" + struct.pack(">H", 255))) == (1, 1, 1)


def png(*chunks):
    out = b"\x89PNG\r\n\x1a\n"
    for kind, data in (*chunks, (b"IEND", b"")):
        out += struct.pack(">I", len(data)) + kind + data
        out += struct.pack(">I", zlib.crc32(kind + data))
    return out


@pytest.mark.parametrize("kind", ["jpeg", "png", "webp", "tiff"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_rotation_is_applied(kind, orientation):
    upright = np.zeros((16, 32, 3), np.uint8)
    upright[:8, :16] = 250  # the upper left quarter is bright
    turned, swapped = (lambda k: lambda x: np.rot90(x, k)), (lambda x: x.transpose(1, 0, 2))
    back = {1: turned(0), 2: np.fliplr, 3: turned(2), 4: np.flipud, 5: swapped, 6: turned(1),
            7: lambda x: swapped(np.rot90(x, 2)), 8: turned(-1)}  # fmt: skip
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = np.ascontiguousarray(back[orientation](upright))
    pixels = read_image(saved(stored, kind, exif=exif))
    assert pixels.shape == upright.shape
    assert np.abs(pixels.astype(int) - upright)[[3, 3, 12], [3, 28, 3]].max() < 30


@pytest.mark.parametrize("kind", ["jpeg", "png", "webp", "tiff"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_rotation_can_be_left_alone(kind, orientation):
    plain = np.repeat(np.linspace(0, 250, 8 * 16).astype(np.uint8).reshape(8, 16, 1), 3, 2)
    exif = Image.Exif()
    exif[0x0112] = orientation
    made = saved(plain, kind, exif=exif, **{"jpeg": {"quality": 100}}.get(kind, {"lossless": True}))
    found = read_image(made, upright=False)
    assert found.shape == plain.shape
    assert np.abs(found.astype(int) - plain).max() < 5


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_broken_exif_does_not_lose_the_image():
    data = saved(noise(8, 8, 3), "jpeg", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff")
    assert read_image(data).shape == (8, 8, 3)


@pytest.mark.parametrize("kind", ["gif", "png", "webp", "tiff"])
def test_of_an_animation_the_first_frame_is_taken(kind):
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    data = saved(frames[0], kind, save_all=True, append_images=frames[1:], lossless=True)
    assert only(read_image(data)) == (255, 0, 0)


def test_one_pixel_is_an_image(tmp_path):
    (tmp_path / "1.png").write_bytes(saved(np.full((1, 1, 3), 9, np.uint8)))
    images = open_images(tmp_path)
    assert images.image(0).shape == (1, 1, 3)
    assert only(images.batch([0], size=8)[0]) == (9, 9, 9)


# Bad images that are named


def bomb(side):
    """A small PNG whose header says side × side."""
    return png((b"IHDR", struct.pack(">2I5B", side, side, 8, 2, 0, 0, 0)), (b"IDAT", b""))


BAD = {
    "bomb.png": (bomb(50_000), "50000 × 50000 pixels, more than the 100,000,000 allowed"),
    "cut.jpg": (JPEG[: len(JPEG) // 2], "is damaged .*truncated"),
    "cut.png": (GOOD[:-40], "is damaged"),
    "empty.jpg": (b"", r"is empty \(0 bytes\)"),
    "float.tiff": (saved(Image.new("F", (4, 4), -0.5), "tiff"), "32-bit pixels from -0.5"),
    "header.jpg": (JPEG[:30], "damaged"),
    "nan.tiff": (saved(Image.new("F", (4, 4), float("nan")), "tiff"), "32-bit pixels from nan"),
    "script.png": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image"),
    "text.png": (b"this is a text\n", "not an image of a known kind"),
    "wide.tiff": (saved(Image.new("I", (4, 4), 1 << 20), "tiff"), "32-bit"),
    "zeros.gif": (bytes(500), "not an image"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_image_is_named(tmp_path, name):
    data, words = BAD[name]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(BadImage, match=words) as caught:
        read_image(tmp_path / name)
    assert str(caught.value).startswith(str(tmp_path / name))
    with pytest.raises(BadImage, match=words):
        read_image(data)


@pytest.mark.parametrize("packed", [None, "w", "w:gz"])
def test_bad_files_do_not_end_a_run(tmp_path, packed):
    files = {f"a/{name}": data for name, (data, _) in BAD.items()}
    files |= {"a/good.png": GOOD, "b/good.jpg": JPEG}
    path = tmp_path / ("x.tar" if packed else "x")
    if packed:
        pack(path, files, packed)
    else:
        for name, data in files.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(data)
    images = open_images(path)
    assert len(images) == len(files)
    assert [bad.name for bad in images.check()] == [f"a/{name}" for name in sorted(BAD)]
    sound, problems = images.sound(workers=2)
    assert (list(sound.names), sound.labels.tolist()) == (["a/good.png", "b/good.jpg"], [0, 1])
    assert len(problems) == len(BAD)
    loaded, problems = images.load(6, workers=2)
    assert (list(loaded.names), loaded.labels.tolist()) == (["a/good.png", "b/good.jpg"], [0, 1])
    assert np.array_equal(loaded.pixels(), sound.pixels(6))
    assert len(problems) == len(BAD)
    with pytest.warns(IT3Warning, match="11 of 13 images can't be read and are left out: a/bomb"):
        assert images.pixels(6).shape == (2, 6, 6, 3)
    with pytest.raises(BadImage, match=r"a/bomb\.png has 50000"):
        images.batch([0, 10], size=6)


def test_the_limit_on_pixels_is_ours_to_set(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)  # Pillow's own would refuse or warn
    assert read_image(GOOD, most_pixels=36).shape == (6, 6, 3)
    with pytest.raises(BadImage, match="6 × 6 pixels, more than the 35 allowed"):
        read_image(GOOD, most_pixels=35)


def test_a_bomb_costs_nothing():
    tracemalloc.start()
    with pytest.raises(BadImage, match="more than"):
        read_image(bomb(60_000))
    assert tracemalloc.get_traced_memory()[1] < 10**6
    tracemalloc.stop()


def test_what_is_no_file(tmp_path):
    with pytest.raises(BadImage, match="does not exist"):
        read_image(tmp_path / "x.png")
    with pytest.raises(BadImage, match="is not a file"):
        read_image(tmp_path)
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(BadImage, match="is not a file"):
        read_image(tmp_path / "pipe.png")
    with pytest.warns(IT3Warning, match=r"left out \(pipe"), pytest.raises(IT3Error, match="no im"):
        open_images(tmp_path)


def test_a_file_that_went_away_is_named(tmp_path):
    (tmp_path / "a.png").write_bytes(GOOD)
    images = open_images(tmp_path)
    (tmp_path / "a.png").unlink()
    assert [str(bad) for bad in images.check()] == ["a.png does not exist"]


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(["jpeg", "png", "gif", "bmp", "tiff", "webp", "ppm"]), st.data())
def test_damage_anywhere_gives_pixels_or_bad_image(kind, data):
    whole = bytearray(saved(Image.new("RGB", (9, 7), (200, 100, 50)), kind))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's, of odd tags
        try:
            pixels = read_image(cut, most_pixels=10**6)
        except BadImage:
            return
    assert (pixels.dtype, pixels.ndim, pixels.shape[2]) == (np.uint8, 3, 3)


# Folders


def test_nothing_to_read(tmp_path):
    with pytest.raises(IT3Error, match=r"holds no images \(it is empty\); known layouts are CLASS"):
        open_images(tmp_path)
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(IT3Error, match=r"holds no images, only notes\.txt; known"):
        open_images(tmp_path)
    with pytest.raises(IT3Error, match=r"is not an image, a \.tar"):
        open_images(tmp_path / "notes.txt")
    with pytest.raises(IT3Error, match="does not exist"):
        open_images(tmp_path / "nowhere")
    with pytest.raises(IT3Error, match="does not exist"):
        open_images("a\0b")
    pack(tmp_path / "photos.tar", {"a.txt": b"x"}, "w")
    with pytest.raises(IT3Error, match=r"holds no images, only a\.txt"):
        open_images(tmp_path / "photos.tar")


def test_loose_images_beside_classes(tmp_path):
    (tmp_path / "cat").mkdir()
    for name in ("cat/1.png", "sample.png"):
        (tmp_path / name).write_bytes(GOOD)
    with pytest.raises(IT3Error, match=r"images \(sample\.png\) beside class folders \(cat\)"):
        open_images(tmp_path)


def test_links_stay_inside(tmp_path):
    outside, root = tmp_path / "outside", tmp_path / "root"
    (outside / "cat").mkdir(parents=True)
    (root / "cat").mkdir(parents=True)
    for path in (outside / "cat" / "secret.png", root / "cat" / "1.png"):
        path.write_bytes(GOOD)
    (root / "cat" / "2.png").symlink_to("1.png")
    (root / "cat" / "out.png").symlink_to(outside / "cat" / "secret.png")
    (root / "cat" / "broken.png").symlink_to("nothing.png")
    (root / "cat" / "round").symlink_to(root)
    with pytest.warns(IT3Warning, match=r"left out \(3, first cat/broken\.png\)"):
        images = open_images(root)
    assert list(images.names) == ["cat/1.png", "cat/2.png"]
    (tmp_path / "way").symlink_to(outside)  # but what the user names may be a link
    assert list(open_images(tmp_path / "way").names) == ["cat/secret.png"]


def test_names_that_a_terminal_cannot_print(tmp_path):
    os.makedirs(os.fsencode(tmp_path) + b"/caf\xe9\x1b[31m")  # noqa: PTH103  not UTF-8
    with open(os.fsencode(tmp_path) + b"/caf\xe9\x1b[31m/1.png", "wb") as file:  # noqa: PTH123
        file.write(GOOD)
    images = open_images(tmp_path)
    assert images.classes == ("caf��[31m",)
    assert images.names[0].encode() == "caf��[31m/1.png".encode()
    assert images.image(0).shape == (6, 6, 3)


# Tars


def pack(path, files, mode):
    with tarfile.open(path, mode) as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def test_only_plain_members_of_a_tar_are_read(tmp_path):
    path = pack(tmp_path / "x.tar", {"a/1.png": GOOD, "../b/2.png": GOOD, "/c/3.png": GOOD}, "w")
    with tarfile.open(path, "a") as tar:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE):
            member = tarfile.TarInfo(f"a/{kind[0]}.png")
            member.type, member.linkname = kind, "/etc/passwd"
            tar.addfile(member)
    with pytest.warns(IT3Warning, match=r"climb out are left out \(5, first \.\./b/2\.png\)"):
        images = open_images(path)
    assert list(images.names) == ["a/1.png", "c/3.png"]


def test_of_two_members_with_one_name_the_later_counts(tmp_path):
    path = pack(tmp_path / "x.tar", {"a/1.png": GOOD}, "w")
    with tarfile.open(path, "a") as tar:
        member = tarfile.TarInfo("a/1.png")
        member.size = len(JPEG)
        tar.addfile(member, io.BytesIO(JPEG))
    images = open_images(path)
    assert (len(images), images.image(0).shape) == (1, (40, 40, 3))


@pytest.mark.parametrize("mode", ["w", "w:gz"])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 0.6])
def test_a_tar_that_was_cut_short(tmp_path, mode, share):
    path = pack(tmp_path / "x.tar", {f"a/{i}.jpg": JPEG for i in range(20)}, mode)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole)) // 512 * 512 + 100 * (share > 0)])
    with pytest.raises(IT3Error, match=r"x\.tar is damaged or cut short .*get it anew"):
        open_images(path)


def test_rubbish_inside_a_tar_is_not_its_end(tmp_path):
    path = pack(tmp_path / "x.tar", {f"a/{i}.jpg": JPEG for i in range(5)}, "w")
    whole = bytearray(path.read_bytes())
    step = 512 + -(-len(JPEG) // 512) * 512
    whole[2 * step : 2 * step + 512] = b"\x7f" * 512
    path.write_bytes(whole)
    with pytest.raises(IT3Error, match=f"no header at byte {2 * step:,}"):
        open_images(path)
    path.write_text("this is no tar")
    with pytest.raises(IT3Error, match="damaged or cut short"):
        open_images(path)


def test_a_member_with_a_size_below_zero(tmp_path):
    path = pack(tmp_path / "x.tar", {"a/1.jpg": JPEG, "a/2.jpg": JPEG}, "w")
    whole = bytearray(path.read_bytes())
    whole[124:136] = b"\xff" * 8 + (-1024 & 0xFFFFFFFF).to_bytes(4, "big")  # base 256
    whole[148:156] = b" " * 8
    whole[148:156] = b"%06o\0 " % sum(whole[:512])
    path.write_bytes(whole)
    with pytest.raises(IT3Error, match="damaged or cut short"):
        open_images(path)


def test_a_header_that_claims_gigabytes_costs_nothing(tmp_path):
    member = tarfile.TarInfo("pax")
    member.type, member.size = tarfile.XHDTYPE, 6 * 2**30
    (tmp_path / "x.tar").write_bytes(member.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    tracemalloc.start()
    with pytest.raises(IT3Error, match=r"holds no images|damaged or cut short"):
        open_images(tmp_path / "x.tar")
    assert tracemalloc.get_traced_memory()[1] < 10**7
    tracemalloc.stop()


def test_a_gzip_bomb_is_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr("it3_vision.data.trees.MOST_BYTES", 10_000)
    path = pack(tmp_path / "x.tar.gz", {"a/1.png": bytes(50_000)}, "w:gz")
    with pytest.raises(IT3Error, match=r"gunzip it to a plain \.tar"):
        open_images(path)


# Arrays


@pytest.mark.parametrize("size", [0, 3073 * 2 - 1, 100])
def test_a_bin_file_that_was_cut_short(tmp_path, size):
    (tmp_path / "test_batch.bin").write_bytes(bytes(size))
    with pytest.raises(IT3Error, match=r"test_batch\.bin is damaged or cut short"):
        open_images(tmp_path)


def test_cifar_with_a_missing_file_or_label_or_as_pickles(tmp_path):
    (tmp_path / "test_batch.bin").write_bytes(b"\x0c" + bytes(3072))
    with pytest.raises(IT3Error, match="labels go from 12 to 12, but there are 10 classes"):
        open_images(tmp_path)
    with pytest.raises(IT3Error, match="labels from 12 to 12, but there are only 10 classes"):
        open_images(tmp_path, classes=["cat"])
    (tmp_path / "data_batch_1.bin").write_bytes(bytes(3073))
    with pytest.raises(IT3Error, match=r"data_batch_2\.bin can't be read .*unpack the set anew"):
        open_images(tmp_path, split="train")
    (tmp_path / "py").mkdir()
    (tmp_path / "py" / "data_batch_1").write_bytes(b"\x80\x02")
    with pytest.raises(IT3Error, match=r"pickles, which are never loaded: get the binary version"):
        open_images(tmp_path / "py")


def stack(folder, pixels, labels, notes=None):
    np.save(folder / "fog.npy", pixels)
    np.save(folder / "labels.npy", labels)
    if notes is not None:
        (folder / "severities.json").write_text(notes)
    return folder


@pytest.mark.parametrize(
    ("pixels", "labels", "words"),
    [
        (noise(10, 4, 4, 3).astype(float), [0] * 10, "float64: images are uint8"),
        (noise(10, 3, 4, 4), [0] * 10, r"shape \(10, 3, 4, 4\): images are"),
        (noise(10, 4, 4, 3), [0] * 9, "9 labels for the 2 images"),
        (noise(9, 4, 4, 3), [0] * 9, "not a multiple of its 5 severities"),
        (noise(10, 4, 4, 3), [0.5] * 10, "whole numbers, but is float64"),
        (noise(10, 4, 4, 3), [-7] * 10, "labels go from -7 to -7"),
        (noise(10, 4, 4, 3), [2**50] * 10, "its classes need names"),
        (noise(0, 4, 4, 3), [0], "holds no images"),
        (np.array(0, np.uint8), [0], r"shape \(\): images are"),
    ],
)
def test_wrong_stacks(tmp_path, pixels, labels, words):
    with pytest.raises(IT3Error, match=words):
        open_images(stack(tmp_path, pixels, labels), severity=1)


@pytest.mark.parametrize(
    "notes", ["", "[5]", '{"severities": []}', '{"severities": [5, 5]}', '{"severities": ["5"]}']
)
def test_wrong_notes_on_severities(tmp_path, notes):
    stack(tmp_path, noise(10, 4, 4, 3), [0] * 10, notes)
    with pytest.raises(IT3Error, match=r"severities\.json must read like"):
        severities(tmp_path)


def test_arrays_of_objects_are_never_loaded(tmp_path):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "sprung"),)

    trap = np.array([Trap()], dtype=object)
    np.save(tmp_path / "fog.npy", trap, allow_pickle=True)
    np.save(tmp_path / "labels.npy", trap, allow_pickle=True)
    for path in (tmp_path, tmp_path / "fog.npy"):
        with pytest.raises(IT3Error, match="pickled objects, which are never loaded"):
            open_images(path, severity=1)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("name", ["fog.npy", "labels.npy"])
@pytest.mark.parametrize("left", [0, 5, 60, 130])
def test_an_array_that_was_cut_short(tmp_path, name, left):
    stack(tmp_path, noise(10, 4, 4, 3), [0] * 10)
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:left])
    with pytest.raises(IT3Error, match=rf"{name} can't be read as a plain \.npy"):
        open_images(tmp_path, severity=1)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["fog.npy", "labels.npy"]), st.integers(0, 127), st.integers(0, 255))
def test_damage_in_an_array_s_header_is_named_or_harmless(tmp_path_factory, name, place, byte):
    folder = stack(tmp_path_factory.mktemp("c"), noise(10, 4, 4, 3), [0] * 10)
    whole = bytearray((folder / name).read_bytes())
    whole[place] = byte
    (folder / name).write_bytes(whole)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's, of headers written by Python 2
        try:
            images = open_images(folder, severity=1)
        except IT3Error:
            return
    assert len(images) == len(images.labels)


@pytest.mark.parametrize(
    ("images", "labels", "words"),
    [
        (struct.pack(">4I", 0x803, 2, 2, 2) + bytes(7), struct.pack(">2I", 0x801, 2) + b"\0\1",
         "cut short: 7 bytes instead of 8"),
        (struct.pack(">4I", 0x803, 2, 2, 2) + bytes(8), struct.pack(">2I", 0x801, 1) + b"\0",
         "1 labels for 2 images"),
        (struct.pack(">4I", 0x803, 2, 2, 2) + bytes(8), b"", "not an IDX file"),
        (struct.pack(">4I", 0x803, 2, 2, 2) + bytes(8), None, "labels.*can't be read"),
        (struct.pack(">4I", 0xD03, 2, 2, 2) + bytes(32), b"", "not an IDX file of bytes"),
        (struct.pack(">4I", 0x803, *[2**32 - 1] * 3), b"", "claims .* bytes: it is damaged"),
        (struct.pack(">4I", 0x803, 0, 2, 2), b"", "cut short"),
        (struct.pack(">4I", 0x803, 2**31, 1, 1) + b"\0", b"", "1 bytes instead of 2,147,483,648"),
        (b"\0\0\x08", b"", "not an IDX file"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("packed", [False, True])
def test_wrong_idx_files(tmp_path, images, labels, words, packed):
    for name, data in (("images-idx3", images), ("labels-idx1", labels)):
        if data is not None:
            path = tmp_path / f"t10k-{name}-ubyte{'.gz' if packed else ''}"
            path.write_bytes(gzip.compress(data) if packed else data)
    with pytest.raises(IT3Error, match=words):
        open_images(tmp_path, split="test")


def test_an_idx_gzip_that_was_cut_short(tmp_path):
    path = tmp_path / "t10k-images-idx3-ubyte.gz"
    whole = gzip.compress(struct.pack(">4I", 0x803, 9, 9, 9) + noise(729).tobytes())
    for left in (5, 40, len(whole) - 9):
        path.write_bytes(whole[:left])
        with pytest.raises(IT3Error, match=r"can't be read|not an IDX"):
            open_images(tmp_path)
    path.write_bytes(b"not gzipped at all, but long enough")
    with pytest.raises(IT3Error, match="can't be read"):
        open_images(tmp_path)


def test_a_size_that_no_memory_holds() -> None:
    with pytest.raises(IT3Error, match="size must be at most 100,000,000 pixels in all"):
        fit_to(np.zeros((4, 4, 3), np.uint8), 8_000_000)
