"""Data: every layout that people have is read, as it was written, and labels follow the names."""

import gzip
import io
import json
import pickle
import struct
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image

from it3_core import IT3Error, IT3Warning
from it3_core.io.typed import as_kind, parse_json
from it3_vision.data import ImageSet, Preprocessing, fit_to, open_images, read_image
from it3_vision.data.arrays import CIFAR10

RNG = np.random.default_rng(0)
GREY = (0.5, 0.5, 0.5)


def noise(*shape):
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def refused(words, path, **how):
    with pytest.raises(IT3Error, match=words):
        open_images(path, **how)


def encoded(pixels, kind="png", **options):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


def write(folder, files):
    """Images by name; None makes an empty folder."""
    for name, pixels in files.items():
        path = folder / name
        if pixels is None:
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pixels if isinstance(pixels, bytes) else encoded(pixels))
    return folder


def pack(path, files, mode="w:gz"):
    with tarfile.open(path, mode) as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            data = data if isinstance(data, bytes) else encoded(data)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


PETS = {"cat/a.png": noise(6, 6, 3), "cat/b.png": noise(6, 6, 3), "dog/c.PNG": noise(6, 6, 3)}


def assert_pets(images, prefix=""):
    assert images.classes == ("cat", "dog")
    assert images.labels.tolist() == [0, 0, 1]
    assert images.labels.dtype == np.int64
    assert list(images.names) == [prefix + name for name in PETS]
    for i, pixels in enumerate(PETS.values()):
        assert np.array_equal(images.image(i), pixels)


# Folders and tars


@pytest.mark.parametrize(
    ("name", "mode"), [("x.tar", "w"), ("x.tar.gz", "w:gz"), ("X.TGZ", "w:gz")]
)
def test_folders_and_tars_of_classes(tmp_path, name, mode):
    assert_pets(open_images(pack(tmp_path / name, PETS, mode)))
    assert [file.name for file in tmp_path.iterdir()] == [name]  # nothing was unpacked beside it
    assert_pets(open_images(str(write(tmp_path / "folder", PETS))))


def test_a_folder_of_split_tars(tmp_path):
    pack(tmp_path / "train.tar.gz", {f"train/{name}": pixels for name, pixels in PETS.items()})
    pack(tmp_path / "test.tar", {"dog/1.png": noise(4, 4, 3)}, "w")
    train = open_images(tmp_path, split="train")
    assert_pets(train, "train/")
    test = open_images(tmp_path, split="test", classes=train.classes)
    assert (test.labels.tolist(), test.classes) == ([1], ("cat", "dog"))
    refused(r"several splits: choose one with --split or split= \(test, train\)", tmp_path)


def test_split_folders(tmp_path):
    write(tmp_path / "train", PETS)
    write(tmp_path / "val", {"dog/1.png": noise(4, 4, 3)})
    assert_pets(open_images(tmp_path, split="train"), "train/")
    assert_pets(open_images(tmp_path / "train"))
    assert list(open_images(tmp_path, split="val").names) == ["val/dog/1.png"]
    refused(r"several splits: choose one with --split or split= \(train, val\)", tmp_path)
    refused("has no split 'test', only train, val", tmp_path, split="test")


def test_a_class_may_be_called_train(tmp_path):
    trains = {"apple/1.png": noise(4, 4, 3), "train/2.png": noise(4, 4, 3)}
    assert open_images(write(tmp_path / "a", trains)).classes == ("apple", "train")
    inside = {f"train/{name}": pixels for name, pixels in trains.items()}
    pack(tmp_path / "train.tar.gz", inside)
    images = open_images(tmp_path / "train.tar.gz", classes=["apple", "bear", "train"])
    assert images.labels.tolist() == [0, 2]
    images = open_images(tmp_path, split="train", classes=["apple", "bear", "train"])
    assert images.labels.tolist() == [0, 2]


def test_folders_around_it_all_and_below_classes_are_seen_through(tmp_path):
    write(tmp_path / "a" / "pets-1.0", PETS)
    assert_pets(open_images(tmp_path / "a"), "pets-1.0/")
    deep = {"n01/images/1.png": noise(4, 4, 3), "n02/images/1.png": noise(4, 4, 3)}
    assert open_images(write(tmp_path / "b", deep)).classes == ("n01", "n02")


def test_images_without_classes(tmp_path):
    images = open_images(write(tmp_path, {"b 1.png": noise(4, 4, 3), "ä.jpg": noise(4, 4, 3)}))
    assert (list(images.names), images.labels.tolist()) == (["b 1.png", "ä.jpg"], [-1, -1])
    assert images.classes == ()
    one = open_images(tmp_path / "b 1.png", classes=["cat"])
    assert (one.image(0).shape, one.labels.tolist(), one.classes) == ((4, 4, 3), [-1], ("cat",))


def test_what_systems_leave_behind_is_ignored(tmp_path):
    names = ".DS_Store cat/._a.png cat/Thumbs.db __MACOSX/cat/._a.png .git/x.png readme.txt"
    litter = dict.fromkeys(names.split(), b"x")
    assert_pets(open_images(write(tmp_path / "folder", PETS | litter)))
    assert_pets(open_images(pack(tmp_path / "x.tar", PETS | litter, "w")))


def test_labels_follow_the_training_classes(tmp_path):
    write(tmp_path, {"dog/1.png": noise(4, 4, 3), "ant/1.png": noise(4, 4, 3)})
    images = open_images(tmp_path, classes=["dog", "cat", "ant"])
    assert dict(zip(images.names, images.labels, strict=True)) == {"ant/1.png": 2, "dog/1.png": 0}
    refused(r"not among the 2 expected \(dog, cat\): ant; rename", tmp_path, classes=["dog", "cat"])
    refused("different names", tmp_path, classes=["dog", "ant", "dog"])
    # A class is the same, however its accents are stored.
    write(tmp_path / "x", {"cafe\u0301/1.png": noise(4, 4, 3), "the a/1.png": noise(4, 4, 3)})
    images = open_images(tmp_path / "x", classes=["the a", "caf\u00e9"])
    assert images.labels.tolist() == [1, 0]
    assert [images.image(i).shape for i in range(2)] == [(4, 4, 3)] * 2


def test_an_empty_class_folder_is_no_class(tmp_path):
    write(tmp_path, PETS | {"emu": None})
    with pytest.warns(IT3Warning, match="no images in emu"):
        assert_pets(open_images(tmp_path))
    images = open_images(tmp_path, classes=["cat", "dog", "emu"])  # asked for: without a warning
    assert (images.classes, set(images.labels.tolist())) == (("cat", "dog", "emu"), {0, 1})


# ImageNet-C


def test_imagenet_c(tmp_path):
    for corruption in ("fog", "snow"):
        for severity in "135":
            write(tmp_path / corruption / severity, PETS)
    assert_pets(open_images(tmp_path, corruption="snow", severity=3), "snow/3/")
    assert_pets(open_images(tmp_path / "fog", severity=5), "5/")
    assert_pets(open_images(tmp_path / "fog" / "1"))
    refused(r"several corruptions: choose one .* \(fog, snow\)", tmp_path)
    refused(r"several severities: choose one .* \(1, 3, 5\)", tmp_path, corruption="fog")
    refused("no severity 2, only 1, 3, 5", tmp_path, corruption="fog", severity=2)
    refused("no corruption 'rain', only fog, snow", tmp_path, corruption="rain", severity=1)


def test_imagenet_c_in_its_groups_and_in_a_tar(tmp_path):
    write(tmp_path / "blur" / "glass_blur" / "5", PETS)
    write(tmp_path / "noise" / "shot_noise" / "5", PETS)
    assert_pets(open_images(tmp_path, corruption="shot_noise"), "noise/shot_noise/5/")
    inside = {f"glass_blur/5/{name}": pixels for name, pixels in PETS.items()}
    path = pack(tmp_path / "blur.tar", inside, "w")
    assert_pets(open_images(path, corruption="glass_blur", severity=5), "glass_blur/5/")


def test_folders_of_digits_are_classes_not_severities(tmp_path):
    write(tmp_path, {f"{digit}/1.png": noise(4, 4, 3) for digit in "12345"})
    assert open_images(tmp_path).classes == ("1", "2", "3", "4", "5")
    refused("not divided by severity: leave severity=5 out", tmp_path, severity=5)


# Arrays


def write_cifar(folder, each=4):
    folder.mkdir(parents=True)
    pixels, labels = noise(6 * each, 32, 32, 3), np.arange(6 * each, dtype=np.uint8) % 10
    records = np.concatenate([labels[:, None], pixels.transpose(0, 3, 1, 2).reshape(-1, 3072)], 1)
    files = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]
    for i, name in enumerate(files):
        records[i * each : (i + 1) * each].tofile(folder / name)
    (folder / "batches.meta.txt").write_text("\n".join(CIFAR10) + "\n\n")
    return pixels, labels


def test_cifar_10(tmp_path):
    pixels, labels = write_cifar(tmp_path / "cifar-10-batches-bin")
    for path in (tmp_path, tmp_path / "cifar-10-batches-bin"):
        train, test = (open_images(path, split=split) for split in ("train", "test"))
        assert np.array_equal(train.batch(slice(None)), pixels[:20])
        assert np.array_equal(test.batch([3, 0]), pixels[[23, 20]])
        assert test.labels.tolist() == labels[20:].tolist()
        assert (train.classes, test.names[3]) == (CIFAR10, "test/3")
    turned = open_images(tmp_path, split="test", classes=CIFAR10[::-1])
    assert turned.labels.tolist() == (9 - labels[20:]).tolist()
    refused(r"choose one with --split or split= \(train, test\)", tmp_path)


def test_a_set_beside_the_archive_it_came_in(tmp_path):
    write_cifar(tmp_path / "cifar-10-batches-bin")
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(b"")
    assert len(open_images(tmp_path, split="test")) == 4
    write(tmp_path / "pets" / "train", PETS)
    pack(tmp_path / "pets" / "train.tar.gz", {"emu/1.png": noise(4, 4, 3)})
    assert_pets(open_images(tmp_path / "pets", split="train"), "train/")


def test_cifar_100_has_fine_labels(tmp_path):
    pixels, fine = noise(6, 32, 32, 3), np.array([0, 99, 5, 7, 7, 1], np.uint8)
    planes = pixels.transpose(0, 3, 1, 2).reshape(-1, 3072)
    np.concatenate([fine[:, None] // 5, fine[:, None], planes], 1).tofile(tmp_path / "test.bin")
    names = [f"thing {i}" for i in range(100)]
    (tmp_path / "fine_label_names.txt").write_text("\n".join(names))
    images = open_images(tmp_path)
    assert images.labels.tolist() == fine.tolist()
    assert images.classes == tuple(names)
    assert np.array_equal(images.batch(slice(None)), pixels)


def write_stack(folder, levels=5, each=4, **notes):
    folder.mkdir(parents=True)
    fog = noise(levels * each, 32, 32, 3)
    np.save(folder / "fog.npy", fog)
    np.save(folder / "snow.npy", fog[::-1])
    np.save(folder / "labels.npy", np.tile(np.arange(each, dtype=np.uint8), levels))
    if notes:
        (folder / "severities.json").write_text(json.dumps(notes))
    return fog


def test_cifar_10_c(tmp_path):
    fog = write_stack(tmp_path / "CIFAR-10-C")
    images = open_images(tmp_path, corruption="fog", severity=2)
    assert np.array_equal(images.batch(slice(None)), fog[4:8])
    assert (images.labels.tolist(), images.classes) == ([0, 1, 2, 3], CIFAR10)
    assert images.names[0] == "fog/2/0"
    whole = open_images(tmp_path / "CIFAR-10-C" / "fog.npy")
    assert np.array_equal(whole.batch(slice(None)), fog)
    assert whole.labels.tolist() == [0, 1, 2, 3] * 5
    turned = open_images(tmp_path, corruption="fog", severity=1, classes=CIFAR10[::-1])
    assert turned.labels.tolist() == [9, 8, 7, 6]
    refused("several severities", tmp_path, corruption="fog")


def test_a_stack_of_fewer_severities_or_labels(tmp_path):
    names = ["ant", "bee", "cat", "dog"]
    fog = write_stack(tmp_path / "c", levels=2, severities=[3, 5], classes=names)
    images = open_images(tmp_path / "c", corruption="fog", severity=5, classes=["dog", *names[:3]])
    assert np.array_equal(images.batch(slice(None)), fog[4:])
    assert images.labels.tolist() == [1, 2, 3, 0]
    refused("no severity 1, only 3, 5", tmp_path / "c", corruption="fog", severity=1)
    write_stack(tmp_path / "d")
    np.save(tmp_path / "d" / "labels.npy", np.array([2, 0, 1, 1]))  # once for all severities
    images = open_images(tmp_path / "d", corruption="snow", severity=4)
    assert (images.labels.tolist(), images.classes) == ([2, 0, 1, 1], ("0", "1", "2"))
    assert open_images(tmp_path / "d" / "snow.npy").labels.tolist() == [2, 0, 1, 1] * 5


def write_mnist(folder, n=5, packed=True, dash="-"):
    folder.mkdir(parents=True)
    pixels, digits = noise(n, 28, 28), np.arange(n, dtype=np.uint8) % 10
    open_file, end = (gzip.open, ".gz") if packed else (open, "")
    for prefix in ("train", "t10k"):
        with open_file(folder / f"{prefix}-images{dash}idx3-ubyte{end}", "wb") as file:
            file.write(struct.pack(">4I", 0x803, n, 28, 28) + pixels.tobytes())
        with open_file(folder / f"{prefix}-labels{dash}idx1-ubyte{end}", "wb") as file:
            file.write(struct.pack(">2I", 0x801, n) + digits.tobytes())
    return pixels, digits


@pytest.mark.parametrize(("packed", "dash"), [(True, "-"), (False, "-"), (False, ".")])
def test_mnist(tmp_path, packed, dash):
    pixels, digits = write_mnist(tmp_path / "MNIST" / "raw", packed=packed, dash=dash)
    images = open_images(tmp_path, split="test")
    assert images._source.pixels.shape == (5, 28, 28)  # kept grey, given in three equal channels
    for given in (images.image(2), images.batch([2])[0], images.batch(slice(None))[2]):
        assert np.array_equal(given, np.stack([pixels[2]] * 3, 2))
    assert images.labels.tolist() == digits.tolist()
    assert images.classes == tuple("0123456789")
    refused(r"choose one with --split or split= \(train, test\)", tmp_path)


# The set


def test_a_sample_keeps_the_proportions_and_is_shuffled():
    labels = [0] * 60 + [1] * 30 + [2] * 10
    images = ImageSet.from_array(noise(100, 2, 2, 3), labels)
    chosen = images.sample(21, seed=3)
    assert np.bincount(chosen.labels).tolist() == [13, 6, 2]
    assert len(set(chosen.names)) == 21
    assert chosen.labels.tolist() != sorted(chosen.labels.tolist())
    assert list(images.sample(21, seed=3).names) == list(chosen.names)
    assert list(images.sample(21, seed=4).names) != list(chosen.names)
    assert len(images.sample(0)) == 0
    assert len(ImageSet.from_array(noise(9, 2, 2, 3)).sample(4)) == 4
    with pytest.raises(IT3Error, match="can't sample 101 of 100"):
        images.sample(101)


def test_batches_of_files_and_arrays_agree(tmp_path):
    pixels = {f"{i}.png": noise(20, 30, 3) for i in range(4)}
    files = open_images(write(tmp_path, pixels))
    array = ImageSet.from_array(np.stack(list(pixels.values())))
    for size in (None, 8, (10, 15), 64):
        assert np.array_equal(files.batch([2, 0], size), array.batch([2, 0], size))
        assert np.array_equal(files.batch(slice(None), size), array.batch(slice(None), size))
        assert files.batch([], size).shape[0] == array.batch([], size).shape[0] == 0
    assert np.array_equal(files.load(8, workers=3)[0].batch([1, 3]), files.batch([1, 3], 8))


def test_different_sizes_need_a_size(tmp_path):
    images = open_images(write(tmp_path, {"a.png": noise(4, 4, 3), "b.png": noise(5, 9, 3)}))
    assert images.batch([0, 1], 4).shape == (2, 4, 4, 3)
    for call in (images.load, lambda: images.batch([0, 1])):
        with pytest.raises(IT3Error, match=r"different sizes \(4 × 4 and 5 × 9.*size="):
            call()


def test_fitting_keeps_the_middle_and_averages():
    image = np.zeros((40, 80, 3), np.uint8)
    image[:, 20:60] = 200  # the middle square
    assert (fit_to(image, 10) == 200).all()
    assert (fit_to(image.transpose(1, 0, 2), 10) == 200).all()
    checks = np.indices((8, 8)).sum(0)[..., None].repeat(3, 2) % 2 * 200
    assert (fit_to(checks.astype(np.uint8), 4) == 100).all()  # area means, no aliasing
    assert fit_to(noise(1, 100_000, 3), 32).shape == (32, 32, 3)
    assert np.array_equal(fit_to(image, (40, 80)), image)
    for size, words in ((0, "at least 1"), (8_000_000, "at most 100,000,000 pixels in all")):
        with pytest.raises(IT3Error, match=words):
            fit_to(image, size)


def test_a_large_jpeg_is_decoded_small_and_looks_the_same():
    y, x = np.mgrid[:600, :800]
    image = np.stack([y * 255 / 600, x * 255 / 800, (x + y) % 200], 2).astype(np.uint8)
    data = encoded(image, "jpeg", quality=95)
    small = read_image(data, smallest=32)
    assert small.shape == (75, 100, 3)
    apart = fit_to(small, 32).astype(int) - fit_to(read_image(data), 32)
    assert np.abs(apart).mean() < 3
    assert read_image(encoded(image[:60, :60], "jpeg"), smallest=32).shape == (60, 60, 3)


def test_a_set_can_be_sent_to_another_process(tmp_path):
    files = (pack(tmp_path / "x.tar", PETS, "w"), pack(tmp_path / "x.tgz", PETS))
    sets = [open_images(path) for path in (*files, write(tmp_path / "folder", PETS))]
    for images in (*sets, ImageSet.from_array(np.stack(list(PETS.values())), [0, 0, 1])):
        there = pickle.loads(pickle.dumps(images.take([2, 0])))  # noqa: S301  our own bytes
        assert np.array_equal(there.batch(slice(None)), images.batch([2, 0]))


# Tensors


def test_preprocessing(tmp_path):
    pixels = noise(7, 12, 12, 3)
    fitted = Preprocessing.fit(pixels)
    x = fitted(pixels)
    assert (x.shape, x.dtype, x.is_contiguous()) == ((7, 3, 12, 12), torch.float32, True)
    by_hand = (pixels[..., 0] / 255 - pixels[..., 0].mean() / 255) / (pixels[..., 0].std() / 255)
    assert np.allclose(x[:, 0].numpy(), by_hand, atol=1e-3)
    assert parse_json(json.dumps(fitted.describe()), Preprocessing, "here") == fitted
    small = Preprocessing(8, (0.5,) * 3, (0.5,) * 3)  # brings images to its size
    assert torch.equal(small(pixels)[1], small(fit_to(pixels[1], 8)[None])[0])
    assert small(pixels[:0]).shape == (0, 3, 8, 8)
    np.save(tmp_path / "a.npy", pixels)
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")  # can't be written to
    assert torch.equal(small(mapped), small(pixels))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Preprocessing(8, (0.5,), (0.5,)), "need 3 numbers each"),
        (lambda: Preprocessing(8, GREY, (0.5, 0.0, 0.5)), "std positive"),
        (lambda: Preprocessing(0, GREY, GREY), "at least 1"),
        (lambda: as_kind({"size": 8}, Preprocessing, "here"), "mean is missing"),
        (lambda: ImageSet.from_array(noise(5, 8, 8, 3), [0] * 4), "4 labels for 5 images"),
        (lambda: ImageSet.from_array(noise(2, 8, 8, 3), [0, 2], ["a", "b"]), "go from 0 to 2"),
        (lambda: Preprocessing.fit(np.zeros((2, 4, 4, 3), np.uint8)), "nothing to see"),
        (lambda: Preprocessing.fit(noise(2, 4, 5, 3)), "square"),
        (lambda: Preprocessing(4, GREY, GREY)(np.zeros((2, 4, 4, 3))), "not float64"),
        (lambda: Preprocessing(4, GREY, GREY)(noise(4, 4)), r"not \(4, 4\)"),
    ],
)
def test_wrong_preprocessing_and_arrays(call, words):
    with pytest.raises(IT3Error, match=words):
        call()
