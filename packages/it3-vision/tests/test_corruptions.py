"""The corruptions against plain, slow copies of their definitions; the command that writes them."""

from __future__ import annotations

import colorsys
import hashlib
import io
import json
import math
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from it3_core import IT3Error
from it3_core.io.output import MARKER
from it3_vision.__main__ import main
from it3_vision.corrupting import parse_severities, parse_types
from it3_vision.corruptions import CORRUPTIONS, EXTRA, constants, corrupt, corrupt_all, generator
from it3_vision.corruptions.kinds import Benchmark
from it3_vision.corruptions.weather import texture
from it3_vision.corruptions.writing import _processes, corrupt_set
from it3_vision.data import ImageSet, open_images

ALL = CORRUPTIONS + EXTRA
BENCHMARKS: tuple[Benchmark, ...] = ("cifar", "imagenet")
Pixels = NDArray[np.uint8]
Floats = NDArray[Any]


def stored(x):
    """As the benchmark's scripts end: np.uint8(np.clip(x, 0, 1) * 255)."""
    return (np.clip(x, 0, 1) * 255).astype(np.uint8)


@cache
def picture(size=32):
    """A sky with a sun, a house, and grass, which is noise."""
    down = np.linspace(0, 1, 256)[:, None, None] * np.ones((1, 256, 1))
    canvas: Any = (np.array([86, 146, 214]) * (1 - down) + 228 * down).astype(np.uint8)
    grass = np.random.default_rng(6).integers(60, 166, (86, 256, 3))
    canvas[170:] = grass * np.array([0.5, 1, 0.5])
    cv2.rectangle(canvas, (40, 120), (140, 200), (206, 178, 142), -1)
    cv2.fillPoly(canvas, [np.array([[28, 124], [90, 76], [152, 124]], np.int32)], (158, 62, 48))
    cv2.circle(canvas, (220, 34), 16, (255, 222, 110), -1)
    image = np.array(Image.fromarray(canvas).resize((size, size), Image.Resampling.LANCZOS))
    image.flags.writeable = False  # it is shared by all tests
    return image


def test_names_and_constants_are_the_published_ones():
    assert " ".join(CORRUPTIONS) == (
        "gaussian_noise shot_noise impulse_noise defocus_blur glass_blur motion_blur zoom_blur "
        "snow frost fog brightness contrast elastic_transform pixelate jpeg_compression"
    )
    assert EXTRA == ("speckle_noise", "gaussian_blur", "spatter", "saturate")
    # The digests of all constants, which were compared with the authors' two scripts.
    for benchmark, digest in zip(BENCHMARKS, ("de069493020cf05c", "d31b57468866d0ba"), strict=True):
        found = [constants(name, severity, benchmark) for name in ALL for severity in range(1, 6)]
        text = json.dumps([np.round(np.asarray(one, float), 6).tolist() for one in found])
        assert hashlib.sha256(text.encode()).hexdigest()[:16] == digest


def plain_gaussian(x, sigma):
    """skimage.filters.gaussian, as the benchmark calls it."""
    return np.asarray(ndimage.gaussian_filter(x, (sigma, sigma, 0)[: x.ndim], mode="nearest"))


def plain_motion(image, radius, sigma, angle):
    """ImageMagick's sum along a line, of the nearest pixels within the image."""
    width = 2 * radius + 1
    kernel = [math.exp(-(i**2) / (2 * sigma**2)) for i in range(width)]
    height, length = image.shape[:2]
    out = np.zeros(image.shape)
    for i in range(width):
        dx = math.ceil(i * math.cos(math.radians(angle)) - 0.5)
        dy = math.ceil(i * math.sin(math.radians(angle)) - 0.5)
        rows = np.clip(np.arange(height) + dy, 0, height - 1)
        columns = np.clip(np.arange(length) + dx, 0, length - 1)
        out += kernel[i] / sum(kernel) * image[rows][:, columns]
    return np.rint(out).astype(np.uint8)


def plain_zoom(x, factor):
    height = len(x)
    kept = math.ceil(height / factor)
    top = (height - kept) // 2
    middle = x[top : top + kept, top : top + kept]
    large = ndimage.zoom(middle, (factor, factor, 1)[: x.ndim], order=1)
    trim = (len(large) - height) // 2
    return np.asarray(large[trim : trim + height, trim : trim + height])


def impulse_noise(image, c, random):
    x = image.copy()
    flipped = random.random(x.shape) <= c
    salted = random.random(x.shape) <= 0.5
    x[flipped & salted] = 255
    x[flipped & ~salted] = 0
    return x


def glass_blur(image, c, random):
    sigma, reach, rounds = c
    x = (plain_gaussian(image / 255, sigma) * 255).astype(np.uint8)
    rows, columns = (range(size - reach, reach, -1) for size in x.shape[:2])
    count = rounds * len(rows) * len(columns)
    steps = iter(random.integers(-reach, reach, (count, 2), dtype=np.int8).tolist())
    for _ in range(rounds):
        for h, w in product(rows, columns):
            dx, dy = next(steps)
            x[h, w], x[h + dy, w + dx] = x[h + dy, w + dx], x[h, w]  # views: this copies
    return stored(plain_gaussian(x / 255, sigma))


def defocus_blur(image, c, random):
    radius, alias = c
    reach = max(8, int(radius))
    at = np.arange(-reach, reach + 1)
    disk = ((at[:, None] ** 2 + at**2) <= radius**2).astype(float)
    edge = np.exp(-(np.arange(-2, 3.0) ** 2) / (2 * alias**2))
    edge[[0, 4]] *= radius > 8  # three taps up to a radius of 8, then five
    edge /= edge.sum()
    kernel = ndimage.convolve(disk / disk.sum(), np.outer(edge, edge), mode="mirror")
    x = np.pad(image / 255, ((reach, reach), (reach, reach), (0, 0)), mode="reflect")
    out = np.zeros(image.shape)
    for (i, j), weight in np.ndenumerate(kernel):
        out += weight * x[i : i + image.shape[0], j : j + image.shape[1]]
    return stored(out)


def snow(image, c, random):
    layer = plain_zoom(random.normal(c[0], c[1], size=image.shape[:2]), c[2])
    layer[layer < c[3]] = 0
    flakes = plain_motion(stored(layer), c[4], c[5], random.uniform(-135, -45)) / 255
    x = image / 255
    grey = x @ [0.299, 0.587, 0.114]
    x = c[6] * x + (1 - c[6]) * np.maximum(x, grey[..., None] * 1.5 + 0.5)
    return stored(x + (flakes + np.rot90(flakes, 2))[..., None])


def fog(image, c, random):
    x = image / 255
    highest = x.max()
    cloud = plain_plasma(1 << (len(image) - 1).bit_length(), c[1], random)[: len(x), : len(x)]
    return stored((x + c[0] * cloud[..., None]) * highest / (highest + c[0]))


def plain_plasma(size, decay, random):
    """Diamond-square, point by point, on a torus."""
    field = np.zeros((size, size))
    step, wibble = size, 100.0
    while step >= 2:
        half = step // 2
        for top, left in ((half, half), (0, half), (half, 0)):
            diagonal = [(-1, -1), (-1, 1), (1, -1), (1, 1)]
            ways = diagonal if top == left else [(0, 1), (0, -1), (1, 0), (-1, 0)]
            for y, x in product(range(top, size, step), range(left, size, step)):
                near = [field[(y + a * half) % size, (x + b * half) % size] for a, b in ways]
                field[y, x] = sum(near) / 4 + wibble * random.uniform(-wibble, wibble)
        step, wibble = half, wibble / decay
    field -= field.min()
    return np.asarray(field / field.max())


def frost(image, c, random):
    ice = texture(int(random.integers(5)), c[2], len(image))
    top, left = random.integers(len(ice) - len(image)), random.integers(len(ice) - len(image))
    part = ice[top : top + len(image), left : left + len(image)]
    return np.clip(c[0] * image + c[1] * part, 0, 255).astype(np.uint8)


def spatter(image, c, random):
    layer = plain_gaussian(random.normal(c[0], c[1], size=image.shape[:2]), c[2])
    layer[layer < c[3]] = 0
    x = image / 255
    if c[5]:
        mud = plain_gaussian((layer > c[3]).astype(float), c[4])
        mud[mud < 0.8] = 0
        return stored(x * (1 - mud[..., None]) + mud[..., None] * [63 / 255, 42 / 255, 20 / 255])
    liquid = (layer * 255).astype(np.uint8)
    distance = cv2.distanceTransform(255 - cv2.Canny(liquid, 50, 150), cv2.DIST_L2, 5)
    distance = cv2.blur(np.where(distance > 20, 20, distance), (3, 3)).astype(np.uint8)
    slope = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])
    rims = cv2.blur(cv2.filter2D(cv2.equalizeHist(distance), cv2.CV_8U, slope), (3, 3))
    water = liquid * rims.astype(np.float32)
    water = water / water.max() * c[4]
    return stored(x + water[..., None] * [175 / 255, 238 / 255, 238 / 255])


def through_hsv(image, change):
    pixels = [
        colorsys.hsv_to_rgb(*change(*colorsys.rgb_to_hsv(*pixel)))
        for pixel in (image.reshape(-1, 3) / 255).tolist()
    ]
    return stored(np.array(pixels).reshape(image.shape))


def jpeg_compression(image, c, random):
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=c)
    return np.asarray(Image.open(file))


def pixelate(image, c, random):
    size, box = len(image), Image.Resampling.BOX
    small = Image.fromarray(image).resize((int(size * c), int(size * c)), box)
    return np.asarray(small.resize((size, size), box))


def elastic_transform(image, c, random):
    strength, sigma, corner = c
    x = image.astype(np.float32) / 255
    side = len(x) // 3
    middle = np.float32([len(x) // 2, len(x) // 2])
    square = np.float32([middle + side, [middle[0] + side, middle[1] - side], middle - side])
    moved = square + random.uniform(-corner, corner, size=(3, 2)).astype(np.float32)
    matrix = cv2.getAffineTransform(square, moved)
    x = cv2.warpAffine(x, matrix, x.shape[1::-1], borderMode=cv2.BORDER_REFLECT_101)
    drawn = random.uniform(-1, 1, size=(2, *x.shape[:2]))[::-1]  # to the right first
    moves = ndimage.gaussian_filter(drawn, (0, sigma, sigma), mode="reflect", truncate=3)
    at = np.indices(x.shape[:2]) + strength * moves
    planes = [ndimage.map_coordinates(x[..., k], at, order=1, mode="reflect") for k in range(3)]
    return stored(np.stack(planes, axis=-1))


PLAIN: dict[str, Callable[[Pixels, Any, np.random.Generator], Pixels]] = {
    "gaussian_noise": lambda x, c, r: stored(x / 255 + r.normal(scale=c, size=x.shape)),
    "shot_noise": lambda x, c, r: stored(r.poisson(x / 255 * c) / c),
    "zoom_blur": lambda x, c, r: stored(
        np.mean([x / 255, *(plain_zoom(x / 255, factor) for factor in c)], axis=0)
    ),
    "motion_blur": lambda x, c, r: plain_motion(x, *c, r.uniform(-45, 45)),
    "contrast": lambda x, c, r: stored(c * x / 255 + (1 - c) * (x / 255).mean((0, 1))),
    "brightness": lambda x, c, r: through_hsv(x, lambda h, s, v: (h, s, min(v + c, 1))),
    "speckle_noise": lambda x, c, r: stored(x / 255 * (1 + r.normal(scale=c, size=x.shape))),
    "gaussian_blur": lambda x, c, r: stored(plain_gaussian(x / 255, c)),
    "saturate": lambda x, c, r: through_hsv(
        x, lambda h, s, v: (h, min(max(s * c[0] + c[1], 0), 1), v)
    ),
}
EXACT = {"gaussian_noise", "shot_noise", "impulse_noise", "contrast", "frost", "pixelate",
         "jpeg_compression"}  # fmt: skip


@pytest.mark.parametrize("name", ALL)
def test_equals_its_definition(name):
    """To the byte; or to a grey level, where a number that is nearly whole is cut off."""
    for benchmark, severity in product(BENCHMARKS, (1, 3, 5)):
        image = picture(72 if benchmark == "imagenet" else 32)
        definition = PLAIN.get(name) or globals()[name]
        plain = definition(image, constants(name, severity, benchmark), generator(7, 0, name))
        ours = corrupt(image, name, severity, benchmark=benchmark, seed=7)
        assert np.abs(ours.astype(int) - plain).max() <= (0 if name in EXACT else 1)
        assert (ours != plain).mean() < 0.15  # the sky is plain


STILL = ("defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression",
         "gaussian_blur", "saturate")  # fmt: skip


@pytest.mark.parametrize("name", ALL)
def test_an_image_is_the_same_alone_and_in_any_batch(name):
    images = np.stack([np.roll(picture(), shift, axis=1) for shift in range(66)])
    before = images.copy()
    whole = corrupt_all(images, name, 4, benchmark="cifar", seed=3)
    assert (images == before).all()
    some = [65, 2, 41]
    assert corrupt_all(images[:0], name, 4).shape == (0, 32, 32, 3)
    with pytest.raises(IT3Error, match="there are 3 numbers for 2 images"):
        corrupt_all(images[:2], name, 4, numbers=some)
    part = corrupt_all(images[some], name, 4, benchmark="cifar", seed=3, numbers=some)
    assert (part == whole[some]).all()
    alone = corrupt(images[41], name, 4, benchmark="cifar", seed=generator(3, 41, name))
    assert (alone == whole[41]).all()
    assert (corrupt(images[0], name, 4, benchmark="cifar", seed=3) == whole[0]).all()
    other = corrupt(images[0], name, 4, benchmark="cifar", seed=4)
    assert (other != whole[0]).any() == (name not in STILL)


@pytest.mark.parametrize("name", ALL)
def test_any_size_and_colour_works(name):
    random = np.random.default_rng(0)
    shapes = [(1, 1, 3), (1, 9, 3), (7, 2, 3), (30, 50, 3), (130, 3, 3)]
    images = [random.integers(0, 256, shape, dtype=np.uint8) for shape in shapes]
    images += [np.full((32, 32, 3), value, np.uint8) for value in (0, 255)]
    for image in images:
        for benchmark, severity in product(BENCHMARKS, (1, 5)):
            made = corrupt(image, name, severity, benchmark=benchmark)
            assert (made.shape, made.dtype) == (image.shape, np.uint8)
    grey = picture()[..., 0]
    made = corrupt(grey, name, 3, benchmark="cifar")
    assert (made == corrupt(grey[..., None].repeat(3, 2), name, 3, benchmark="cifar")[..., 0]).all()
    assert corrupt_all(grey[None, ..., None], name, 3, benchmark="cifar").shape == (1, 32, 32, 1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "gausian_noise"}, "did you mean 'gaussian_noise'"),
        ({"name": "rain"}, "There are gaussian_noise, shot_noise"),
        ({"severity": 2.5}, "from 1 to 5, but is 2.5"),
        ({"benchmark": "coco"}, "'cifar' or 'imagenet', but is 'coco'"),
        ({"image": np.zeros((8, 8, 3))}, "must be uint8, from 0 to 255, but are float64"),
        ({"image": np.zeros((8, 8, 4), np.uint8)}, r"must be \(H, W, 3\) or grey"),
        ({"image": np.zeros(8, np.uint8)}, r"must be \(H, W, 3\) or grey"),
        ({"image": np.zeros((0, 8, 3), np.uint8)}, "at least one pixel"),
        ({"seed": -1}, "seed must be a whole number"),
        ({"seed": 0.5}, "seed must be a whole number"),
    ],
)
def test_bad_input_gets_one_sentence(change, words):
    given: dict[str, Any] = {"image": picture(), "name": "fog", "severity": 3, **change}
    with pytest.raises(IT3Error, match=words):
        corrupt(given.pop("image"), given.pop("name"), given.pop("severity"), **given)


def test_types_and_severities_are_parsed():
    assert parse_types("all,extra") == ALL
    assert parse_types("snow,fog,snow") == ("snow", "fog")
    for types, words in ((" , ", "no corruption is called ''"), ("fog,snw", "did you mean 'snow'")):
        with pytest.raises(IT3Error, match=words):
            parse_types(types)
    assert (parse_severities("all"), parse_severities("5, 1-2")) == ((1, 2, 3, 4, 5), (1, 2, 5))
    for text in ("", "0", "6", "x", "1,,2", "1-9", "-"):
        with pytest.raises(IT3Error, match="severities are from 1 to 5"):
            parse_severities(text)


def run(*arguments):
    return main(["corrupt", *map(str, arguments), "--workers", "1", "--quiet"])


def tree(folder):
    """All files but the marker, which an unfinished run has another one of."""
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.name != MARKER
    }


@pytest.fixture
def arrays(tmp_path):
    """CIFAR-10's binary version, small."""
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    names = "airplane automobile bird cat deer dog frog horse ship truck"
    (folder / "batches.meta.txt").write_text(names.replace(" ", "\n"))
    rows = np.random.default_rng(0).integers(0, 256, (12, 3073), dtype=np.uint8)
    rows[:, 0] = np.arange(12) % 10
    (folder / "test_batch.bin").write_bytes(rows.tobytes())
    return folder


@pytest.fixture
def folders(tmp_path):
    """Class folders with a JPEG, a PNG and a BMP in each, of different sizes."""
    folder = tmp_path / "images"
    for number, name in enumerate(["cat", "dog"]):
        (folder / name).mkdir(parents=True)
        image = Image.fromarray(picture(40 + 10 * number))
        image.save(folder / name / "one.JPEG", quality=95)
        image.crop((0, 0, 20, 30)).save(folder / name / "two.png")
        image.rotate(90).save(folder / name / "three.bmp")
    return folder


def test_arrays_become_cifar_10_c(arrays, tmp_path, capsys):
    out, few = tmp_path / "out", tmp_path / "few"
    assert run(arrays, out, "--corruptions", "fog,contrast") == 0
    assert "wrote 120 images" in (text := capsys.readouterr().out)
    assert "cifar's constants" in text
    clean = open_images(arrays)
    fog = np.load(out / "fog.npy")
    assert (fog.shape, fog.dtype) == ((60, 32, 32, 3), np.uint8)
    assert (np.load(out / "labels.npy") == np.tile(clean.labels, 5)).all()
    for severity in range(1, 6):
        wanted = corrupt_all(clean.batch(slice(None)), "fog", severity, benchmark="cifar")
        assert (fog[12 * severity - 12 : 12 * severity] == wanted).all()
        again = open_images(out, corruption="fog", severity=severity)
        assert (again.labels == clean.labels).all()
        assert again.classes == clean.classes
        assert (again.batch(slice(None)) == wanted).all()
    assert run(arrays, few, "--corruptions", "fog", "--severities", "2,5", "--most", 4) == 0
    assert json.loads((few / "severities.json").read_text())["severities"] == [2, 5]
    # A limit takes every third image here, each corrupted as it is in the whole set.
    assert (np.load(few / "fog.npy")[4:] == fog[48::3]).all()
    digits = np.stack([picture(28)[..., 1]] * 3)  # grey ones stay grey
    corrupt_set(ImageSet.from_array(digits), tmp_path / "grey", ["snow"], [1])
    made = np.load(tmp_path / "grey" / "snow.npy")
    assert (made == corrupt_all(digits, "snow", 1, benchmark="cifar")).all()


def test_files_become_imagenet_c(folders, tmp_path, capsys):
    out = tmp_path / "out"
    assert run(folders, out, "--corruptions", "snow,pixelate", "--severities", "1-2", "--benchmark",
               "imagenet", "--seed", 5) == 0  # fmt: skip
    assert "wrote 24 images" in capsys.readouterr().out
    assert set(tree(out)) == {
        f"{name}/{severity}/{kind}/{file}"
        for name, severity, kind in product(("snow", "pixelate"), (1, 2), ("cat", "dog"))
        for file in ("one.JPEG", "two.png", "three.bmp.png")
    }
    clean = open_images(folders)
    for name, options in (("two.png", {}), ("one.JPEG", {"quality": 85, "optimize": True})):
        row, made = list(clean.names).index(f"dog/{name}"), io.BytesIO()
        image = corrupt(clean.image(row), "snow", 2, seed=generator(5, row, "snow"))
        Image.fromarray(image).save(made, name[4:], **options)  # type: ignore[arg-type]
        assert (out / "snow/2/dog" / name).read_bytes() == made.getvalue()
    again = open_images(out, corruption="snow", severity=2)
    assert (again.labels == clean.labels).all()
    assert run(folders, tmp_path / "cut", "--corruptions", "fog", "--size", 24) == 0
    with Image.open(tmp_path / "cut/fog/5/cat/two.png") as file:
        assert file.size == (24, 24)
    Image.fromarray(picture()).save(folders / "cat" / "three.bmp.png")
    with pytest.raises(IT3Error, match=r"would both be written as cat/three\.bmp\.png"):
        corrupt_set(open_images(folders), tmp_path / "other", ["contrast"], [5])


def test_files_without_classes_are_read_back_without(folders, tmp_path):
    loose, out = open_images(folders / "cat"), tmp_path / "out"
    corrupt_set(loose, out, ["contrast", "pixelate"], [2, 5])
    with tarfile.open(tmp_path / "out.tar", "w") as tar:
        tar.add(out, "out")
    for path in (out, tmp_path / "out.tar"):
        made = open_images(path, corruption="pixelate", severity=5)
        assert [name[-4:] for name in made.names] == ["JPEG", ".png", ".png"]
        assert (made.labels.tolist(), made.classes) == ([-1] * 3, ())
    assert len(open_images(out / "contrast", severity=2)) == 3
    assert open_images(out / "contrast" / "2").classes == ()
    (out / MARKER).unlink()  # it could be anything now
    assert open_images(out).classes == ("contrast", "pixelate")


@pytest.mark.parametrize("kind", ["arrays", "folders"])
def test_a_killed_run_goes_on_where_it_was(kind, tmp_path, request, monkeypatch):
    images, calls = open_images(request.getfixturevalue(kind)), [0]
    names, out, whole = ["fog", "frost", "snow"], tmp_path / "out", tmp_path / "whole"
    corrupt_set(images, whole, names, [3, 5])

    def killed(*arguments, **options):
        calls[0] += 1
        if calls[0] == 4:
            raise KeyboardInterrupt
        return corrupt_all(*arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr("it3_vision.corruptions.writing.corrupt_all", killed)
        with pytest.raises(KeyboardInterrupt):
            corrupt_set(images, out, names, [3, 5])
    left = tree(out)
    assert not [name for name in left if name.endswith(".tmp")]
    assert all(tree(whole)[name] == content for name, content in left.items())
    assert len(left) < len(tree(whole))
    second = corrupt_set(images, out, names, [3, 5])
    assert tree(out) == tree(whole)
    assert second.written + second.before == len(images) * 6
    assert second.before > 0
    third = corrupt_set(images, out, names, [3, 5])
    assert (third.written, third.before) == (0, len(images) * 6)


def test_workers_change_nothing(arrays, folders, tmp_path):
    with _processes(2) as executor:
        # Ctrl-C is for the one who gives out the work, from a worker's first moment on.
        blocked = executor.submit(signal.pthread_sigmask, signal.SIG_BLOCK, [])
        assert signal.SIGINT in blocked.result()
        assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    for path in (arrays, folders):
        one, two = (tmp_path / f"{path.name}-{workers}" for workers in (1, 2))
        for out, workers in ((one, 1), (two, 2)):
            names = ["shot_noise", "glass_blur", "elastic_transform", "fog"]
            corrupt_set(open_images(path), out, names, [1, 5], workers=workers)
        assert tree(one) == tree(two)


def test_ctrl_c_ends_in_one_line(folders, tmp_path):
    command = [sys.executable, "-m", "it3_vision", "corrupt", folders, tmp_path / "out",
               "--workers", "2", "--size", "300", "--quiet"]  # fmt: skip
    # A job in the background of a script ignores Ctrl-C, and so would what it starts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        signal.signal(signal.SIGINT, before)
        while not list(tmp_path.glob("out/*/*/*/*.*")):
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, text = process.communicate(timeout=60)
    assert (process.returncode, text) == (130, "it3-vision: interrupted\n")


def test_bad_images_are_listed_and_left_out(folders, tmp_path, capsys):
    (folders / "cat" / "text.png").write_text("this is no picture")
    (folders / "dog" / "empty.jpg").touch()
    out = tmp_path / "out"
    assert run(folders, out, "--corruptions", "fog", "--severities", 5) == 0
    assert "wrote 6 images" in (text := capsys.readouterr().out)
    assert "2 images can't be read and are left out" in text
    listed = (out / "bad_images.txt").read_text().splitlines()
    assert [line.split()[0] for line in listed] == ["cat/text.png", "dog/empty.jpg"]
    assert not list(out.rglob("text.png"))
    (tmp_path / "in" / "cat").mkdir(parents=True)
    (tmp_path / "in" / "cat" / "empty.jpg").touch()
    assert run(tmp_path / "in", tmp_path / "none") == 2
    assert "none of the 1 images can be read" in capsys.readouterr().err
    with pytest.raises(IT3Error, match="no images to corrupt"):
        corrupt_set(ImageSet.from_array(np.zeros((0, 8, 8, 3), np.uint8)), tmp_path / "zero")


def test_other_peoples_folders_are_left_alone(arrays, folders, tmp_path, capsys):
    for out in (folders, folders / "out"):
        assert run(folders, out, "--corruptions", "fog") == 2
        assert "is, or lies in, the input" in capsys.readouterr().err
    images, ours = open_images(arrays), tmp_path / "ours"
    corrupt_set(images, ours, ["fog"], [5])
    for change, words in (
        ({"seed": 1}, "seed was 0 and is 1"),
        ({"severities": [4]}, r"severities was \[5\] and is \[4\]"),
        ({"images": images.take(np.arange(12)[::-1])}, "checksum was"),
    ):
        settings: dict[str, Any] = {"images": images, "names": ["fog"], "severities": [5], **change}
        with pytest.raises(IT3Error, match=words):
            corrupt_set(out=ours, **settings)
    corrupt_set(images, ours, ["frost"], [5])  # another type may be added
    assert {"fog.npy", "frost.npy"} <= set(tree(ours))
    copies, elsewhere = tmp_path / "copies", tmp_path / "elsewhere"
    elsewhere.mkdir()
    corrupt_set(open_images(folders), copies, ["fog"], [5])
    (copies / "snow").symlink_to(elsewhere)
    with pytest.raises(IT3Error, match="snow is a link, which is not followed"):
        corrupt_set(open_images(folders), copies, ["snow"], [5])
    assert tree(elsewhere) == {}
