"""Data: whatever is wrong with a file or a folder, it is handled or named, and the run goes on."""

import gzip
import io
import os
import shutil
import struct
import tarfile
import tracemalloc
import warnings
import zlib
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from it3_core import IT3Error, IT3Warning
from it3_vision.data import BadImage, open_images, read_image
from it3_vision.data.trees import open_tree

RNG = np.random.default_rng(1)


def noise(*shape):
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def refused(words, path, **how):
    with pytest.raises(IT3Error, match=words):
        open_images(path, **how)


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


def test_palettes_with_and_without_transparency():
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, 10, 200, 30])
    assert only(read_image(saved(image))) == (10, 200, 30)
    assert only(read_image(saved(image, "gif"))) == (10, 200, 30)
    assert only(read_image(saved(image, transparency=1))) == (255, 255, 255)
    grey = Image.new("L", (4, 4), 9)
    assert only(read_image(saved(grey, transparency=9))) == (255, 255, 255)


def test_16_bits_in_colour_and_of_small_values():
    raw = b"\0" + struct.pack(">3H", 257 * 10, 257 * 20, 65535)
    chunks = [(b"IHDR", struct.pack(">2I5B", 1, 1, 16, 2, 0, 0, 0)), (b"IDAT", zlib.compress(raw))]
    assert only(read_image(png(*chunks))) == (10, 20, 255)
    # Dark, and not taken for 8 bits.
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
def test_exif_rotation_is_applied_or_left_alone(kind, orientation):
    upright = np.zeros((16, 32, 3), np.uint8)
    upright[:8, :16] = 250  # the upper left quarter is bright
    turned, swapped = (lambda k: lambda x: np.rot90(x, k)), (lambda x: x.transpose(1, 0, 2))
    back = {1: turned(0), 2: np.fliplr, 3: turned(2), 4: np.flipud, 5: swapped, 6: turned(1),
            7: lambda x: swapped(np.rot90(x, 2)), 8: turned(-1)}  # fmt: skip
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = np.ascontiguousarray(back[orientation](upright))
    made = saved(stored, kind, exif=exif)
    for pixels, wanted in ((read_image(made), upright), (read_image(made, upright=False), stored)):
        assert pixels.shape == wanted.shape
        corners = np.abs(pixels.astype(int) - wanted)[[3, 3, -4, -4], [3, -4, 3, -4]]
        assert corners.max() < 30


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_broken_exif_does_not_lose_the_image():
    data = saved(noise(8, 8, 3), "jpeg", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff")
    assert read_image(data).shape == (8, 8, 3)


@pytest.mark.parametrize("kind", ["gif", "png", "webp", "tiff"])
def test_of_an_animation_the_first_frame_is_taken(kind):
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    data = saved(frames[0], kind, save_all=True, append_images=frames[1:], lossless=True)
    assert only(read_image(data)) == (255, 0, 0)


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
    path = pack(tmp_path / "x.tar", files, packed or "w")
    if not packed:
        shutil.unpack_archive(path, path := tmp_path / "x", filter="data")
    images = open_images(path)
    assert len(images) == len(files)
    sound, problems = images.sound(workers=2)
    assert [bad.name for bad in problems] == [f"a/{name}" for name in sorted(BAD)]
    assert (list(sound.names), sound.labels.tolist()) == (["a/good.png", "b/good.jpg"], [0, 1])
    loaded, problems = images.load(6, workers=2)
    assert (loaded.names, loaded.labels.tolist()) == (sound.names, [0, 1])
    assert np.array_equal(loaded.batch(slice(None)), sound.batch(slice(None), 6))
    assert len(problems) == len(BAD)
    with pytest.raises(BadImage, match=r"a/bomb\.png has 50000"):
        images.batch([0, 10], size=6)


def test_the_limit_on_pixels_is_ours_to_set(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)  # Pillow's own would refuse or warn
    assert read_image(GOOD, most_pixels=36).shape == (6, 6, 3)
    with pytest.raises(BadImage, match="6 × 6 pixels, more than the 35 allowed"):
        read_image(GOOD, most_pixels=35)


def test_what_is_no_file(tmp_path):
    (tmp_path / "a.png").write_bytes(GOOD)
    images = open_images(tmp_path)
    (tmp_path / "a.png").unlink()  # it went away
    assert "a.png can't be opened (No such file" in str(images.sound()[1][0])
    with pytest.raises(BadImage, match="does not exist"):
        read_image(tmp_path / "x.png")
    with pytest.raises(BadImage, match="is not a file"):
        read_image(tmp_path)
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(BadImage, match="is not a file"):
        read_image(tmp_path / "pipe.png")
    with pytest.raises(IT3Error, match="is no folder, tar or image"):
        open_tree(tmp_path / "pipe.png")
    with pytest.warns(IT3Warning, match=r"left out \(pipe"), pytest.raises(IT3Error, match="no im"):
        open_images(tmp_path)


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


def test_folders_that_are_no_set(tmp_path):
    refused(r"holds no images \(it is empty\); known layouts are CLASS", tmp_path)
    (tmp_path / "notes.txt").write_text("hello")
    refused(r"holds no images, only notes\.txt; known", tmp_path)
    refused(r"is not an image, a \.tar", tmp_path / "notes.txt")
    refused("does not exist", tmp_path / "nowhere")
    refused("does not exist", "a\0b")
    pack(tmp_path / "photos.tar", {"a.txt": b"x"}, "w")
    refused(r"holds no images, only a\.txt", tmp_path / "photos.tar")
    (tmp_path / "cat").mkdir()
    for name in ("cat/1.png", "sample.png"):
        (tmp_path / name).write_bytes(GOOD)
    refused(r"images \(sample\.png\) beside class folders \(cat\)", tmp_path)


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
    pack(tmp_path / "x.tar", {"a/1.png": GOOD}, "w")
    images = open_images(pack(tmp_path / "x.tar", {"a/1.png": JPEG}, "a"))
    assert (len(images), images.image(0).shape) == (1, (40, 40, 3))


@pytest.mark.parametrize("mode", ["w", "w:gz"])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 0.6])
def test_a_tar_that_was_cut_short(tmp_path, mode, share):
    path = pack(tmp_path / "x.tar", {f"a/{i}.jpg": JPEG for i in range(20)}, mode)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole)) // 512 * 512 + 100 * (share > 0)])
    refused(r"x\.tar is damaged or cut short .*get it anew", path)


def test_rubbish_inside_a_tar_is_not_its_end(tmp_path):
    path = pack(tmp_path / "x.tar", {f"a/{i}.jpg": JPEG for i in range(5)}, "w")
    good, step = path.read_bytes(), 512 + -(-len(JPEG) // 512) * 512
    path.write_bytes(good[: 2 * step] + b"\x7f" * 512 + good[2 * step + 512 :])
    refused(f"no header at byte {2 * step:,}", path)
    path.write_text("this is no tar")
    refused("damaged or cut short", path)
    whole = bytearray(good)  # a size below zero
    whole[124:136] = b"\xff" * 8 + (-1024 & 0xFFFFFFFF).to_bytes(4, "big")  # base 256
    whole[148:156] = b" " * 8
    whole[148:156] = b"%06o\0 " % sum(whole[:512])
    path.write_bytes(whole)
    refused("damaged or cut short", path)


def test_a_header_that_claims_gigabytes_costs_nothing(tmp_path):
    member = tarfile.TarInfo("pax")
    member.type, member.size = tarfile.XHDTYPE, 6 * 2**30
    (tmp_path / "x.tar").write_bytes(member.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    tracemalloc.start()
    refused(r"holds no images|damaged or cut short", tmp_path / "x.tar")
    assert tracemalloc.get_traced_memory()[1] < 10**7
    tracemalloc.stop()


def test_a_gzip_bomb_is_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr("it3_vision.data.trees.MOST_BYTES", 10_000)
    path = pack(tmp_path / "x.tar.gz", {"a/1.png": bytes(50_000)}, "w:gz")
    refused(r"gunzip it to a plain \.tar", path)


# Arrays


def test_cifar_cut_short_with_a_missing_file_or_label_or_as_pickles(tmp_path):
    for size in (0, 3073 * 2 - 1, 100):
        (tmp_path / "test_batch.bin").write_bytes(bytes(size))
        refused(r"test_batch\.bin is damaged or cut short", tmp_path)
    (tmp_path / "test_batch.bin").write_bytes(b"\x0c" + bytes(3072))
    refused("labels go from 12 to 12, but there are 10 classes", tmp_path)
    refused("labels from 12 to 12, but there are only 10 classes", tmp_path, classes=["cat"])
    (tmp_path / "data_batch_1.bin").write_bytes(bytes(3073))
    refused(r"data_batch_2\.bin can't be read .*unpack the set anew", tmp_path, split="train")
    (tmp_path / "py").mkdir()
    (tmp_path / "py" / "data_batch_1").write_bytes(b"\x80\x02")
    refused(r"pickles, which are never loaded: get the binary version", tmp_path / "py")


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
        (noise(10, 4, 4, 3), [0] * 9, "9 labels for the 10 images"),
        (noise(9, 4, 4, 3), [0] * 9, "not a multiple of its 5 severities"),
        (noise(10, 4, 4, 3), [0.5] * 10, "whole numbers, but is float64"),
        (noise(10, 4, 4, 3), [-7] * 10, "labels go from -7 to -7"),
        (noise(10, 4, 4, 3), [2**50] * 10, "its classes need names"),
        (noise(0, 4, 4, 3), [0], "holds no images"),
        (np.array(0, np.uint8), [0], r"shape \(\): images are"),
    ],
)
def test_wrong_stacks(tmp_path, pixels, labels, words):
    refused(words, stack(tmp_path, pixels, labels), severity=1)


@pytest.mark.parametrize(
    "notes",
    ["", "[5]", '{"severities": []}', '{"severities": [5, 5]}', '{"severities": ["5"]}',
     '{"severities": 5}', '{"severities": ' + "[" * 100_000, '{"classes": [1]}'],
)  # fmt: skip
def test_wrong_notes_on_severities(tmp_path, notes):
    stack(tmp_path, noise(10, 4, 4, 3), [0] * 10, notes)
    refused(r"severities\.json is damaged.*it must read like", tmp_path, severity=5)


def test_arrays_of_objects_are_never_loaded(tmp_path):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "sprung"),)

    trap = np.array([Trap()], dtype=object)
    np.save(tmp_path / "fog.npy", trap, allow_pickle=True)
    np.save(tmp_path / "labels.npy", trap, allow_pickle=True)
    for path in (tmp_path, tmp_path / "fog.npy"):
        refused("pickled objects, which are never loaded", path, severity=1)
    assert not (tmp_path / "sprung").exists()


def test_an_array_that_was_cut_short(tmp_path):
    for name, left in product(("fog.npy", "labels.npy"), (0, 5, 60, 130)):
        stack(tmp_path, noise(10, 4, 4, 3), [0] * 10)
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:left])
        refused(rf"{name} can't be read as a plain \.npy", tmp_path, severity=1)


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
    refused(words, tmp_path, split="test")
