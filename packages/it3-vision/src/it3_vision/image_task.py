"""What the tasks on images share: reading, preprocessing, trials for tuning, files to predict."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import albumentations as A
import cv2
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.utils.data import Dataset

from it3_core import Activations, Adapter, IT3Error
from it3_core.experiment import types
from it3_core.experiment.predict import in_words
from it3_core.experiment.train import hold_out
from it3_core.io.tensors import digest, load
from it3_core.io.typed import as_kind, printable
from it3_core.trust.tune import apart as drawn
from it3_vision.corruptions import EXTRA, benchmark_for, corrupt_all
from it3_vision.data import BadImage, ImageSet, Preprocessing, fit_to, open_images, read_image
from it3_vision.data.images import Pixels
from it3_vision.image_options import Brings, ImageTrain, tuned_sizes
from it3_vision.networks import is_network

IN_MEMORY = 4e9  # bytes up to which training images are decoded once and kept
VALIDATION, MOST_VALIDATION = 0.1, 5000  # of an extrapolation network; and how many at most
STATISTICS = 2000  # training images that statistics are taken of
REFRESH = 1000  # of them, images that batch norms get theirs from before each validation

_LOST = 0.1  # fraction of the right answers that a corruption must cost to be worth trying under
_REPEATS = 6  # times that it is applied at most
_AT_ONCE = 64  # images that are predicted at once
_ENOUGH = 48  # held-out images of which a quarter can choose


# --- train


def recipe_of(options: ImageTrain, batch_norm: bool) -> types.Recipe:
    """SGD with momentum and weight decay, by the protocol."""
    how = options.protocol
    momentum = {"momentum": 0.9, "nesterov": how.nesterov, "weight_decay": how.weight_decay}
    return types.Recipe(
        how.epochs,
        how.batch_size,
        how.lr,
        options.seed,
        optimizer="SGD",
        optimizer_options=momentum,
        schedule=how.schedule,
        clip=how.clip,
        bfloat16=options.bfloat16,
        channels_last=True,
        freeze_until=options.freeze_until,
        refresh=REFRESH if batch_norm else 0,
    )


def settings_of(options: ImageTrain, brings: Brings, images: ImageSet) -> dict[str, Any]:
    """What decides a training on images, apart from the network and the recipe."""
    names = ("second_signal", "new_head", "tuned")
    return {
        **{name: getattr(options, name) for name in names},
        "second_weight": options.protocol.second_weight,
        "normalise": normalised_by(options, brings),
        "weights": _digest(options.weights),
        "images": len(images),
        "fingerprint": fingerprint(images),
    }


def _digest(weights: Path | None) -> str | None:
    """What distinguishes a file of weights from another, whatever its path."""
    if weights is None or not weights.is_file():  # which `load_weights` refuses
        return None
    with weights.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()[:16]


def fingerprint(images: ImageSet, pixels: Pixels | None = None) -> str:
    """What distinguishes these images from others: names, classes, labels, and some pixels."""
    tensors = {"labels": torch.from_numpy(np.asarray(images.labels))}
    if pixels is not None:
        tensors["pixels"] = torch.tensor(pixels)
    return digest(tensors, {"names": list(images.names), "classes": list(images.classes)})[:16]


def in_memory(images: ImageSet, size: int, progress: bool) -> tuple[ImageSet, list[BadImage]]:
    """The images that can be read, in memory where they fit, and those that can't."""
    workers = os.cpu_count() or 1
    if len(images) * size**2 * 3 <= IN_MEMORY:
        return images.load(size, workers=workers, progress=progress)
    return images.sound(workers=workers, progress=progress)


_KNOWN: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "tensorflow": ((127 / 255,) * 3, (128 / 255,) * 3),
}


def normalised_by(options: ImageTrain, brings: Brings) -> str:
    """By whose mean and deviation images are normalised: what weights were trained with."""
    if options.normalise is not None or options.weights is None:
        return options.normalise or brings.normalise or "data"
    return "weights" if is_network(options.weights) else "imagenet"


def fit_preprocessing(
    images: ImageSet, size: int, options: ImageTrain, brings: Brings
) -> Preprocessing:
    """How images become tensors, by a sample of all: folders come class by class."""
    by = normalised_by(options, brings)
    stored = load(options.weights).settings if options.weights and by == "weights" else {}
    if stored:  # a vanilla net has none
        return replace(preprocessing_of(stored["settings"]), size=size)
    if by in _KNOWN:
        return Preprocessing(size, *_KNOWN[by])
    some = images.sample(min(20_000, len(images)), options.seed)
    return Preprocessing.fit(some.batch(slice(None), size))


def augmentation(size: int, *, flip: bool = True) -> A.Compose:
    """For classifiers: crops, and flips unless the images hold digits or letters.

    Up to 64 pixels an image is shifted by up to an eighth of its size; a larger one is cropped at
    random and its colours are changed, as for ImageNet.
    """
    steps: list[Any]
    if size <= 64:
        margin = size // 8
        steps = [
            A.Pad(padding=margin, border_mode=cv2.BORDER_REFLECT_101),
            A.RandomCrop(size, size),
        ]
    else:
        steps = [
            A.RandomResizedCrop((size, size), scale=(0.25, 1.0)),
            A.ColorJitter(0.2, 0.2, 0.2, 0.05, p=0.5),
        ]
    return A.Compose([*steps, A.HorizontalFlip(p=0.5)] if flip else steps)


def face_augmentation(size: int) -> A.Compose:
    """For aligned faces: slightly rotated, shifted and scaled, flipped, in other light.

    Nothing that makes a face look older or younger, such as blur, is among it.
    """
    return A.Compose(
        [
            A.HorizontalFlip(p=0.5),
            A.Affine(
                scale=(0.9, 1.2),
                translate_percent=(-0.07, 0.07),
                rotate=(-12, 12),
                border_mode=cv2.BORDER_REFLECT_101,
                p=1.0,
            ),
            A.ColorJitter(0.25, 0.25, 0.25, 0.02, p=0.7),
            A.ToGray(p=0.1),
            A.CoarseDropout(
                num_holes_range=(1, 1),
                hole_height_range=(size // 8 / size, 0.4),
                hole_width_range=(size // 8 / size, 0.4),
                fill="random_uniform",
                p=0.3,
            ),
        ]
    )


@dataclass(frozen=True)
class TrainingImages(Dataset[tuple[int, int]]):
    """Images for `fit`: a Dataset of row numbers, whose `collate` makes a batch of them.

    A batch is decoded, augmented and preprocessed as one. The augmentation is seeded for each
    batch from torch's generator, which `fit` seeds for each step, so that a training that was
    killed goes on bit for bit. Without augmentation images are as they come at test time.
    """

    images: ImageSet
    preprocess: Preprocessing
    augment: Callable[..., dict[str, Any]] | None = None

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> int:  # type: ignore[override]
        return row

    def collate(self, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """A batch: a tensor of images, and their labels."""
        pixels = self.images.batch(rows, self.preprocess.size)
        if self.augment is not None:
            if hasattr(self.augment, "set_random_seed"):
                self.augment.set_random_seed(int(torch.randint(2**31, ())))
            pixels = np.stack([self.augment(image=image)["image"] for image in pixels])
        return self.preprocess(pixels), torch.from_numpy(self.images.labels[np.asarray(rows)])

    __call__ = collate


def training_data(
    images: ImageSet,  # that can be read
    size: int,  # of the network's input
    options: ImageTrain,
    brings: Brings,  # the network
    adapter: Callable[[ImageSet], Adapter],  # by the training images
    augment: Callable[..., dict[str, Any]],
    skipped: Sequence[object],  # what could not be read
    least: int = 10,  # validation images
    apart: ImageSet | None = None,  # images to validate on, in place of some of the others
) -> types.TrainingData:
    """Images, split, with their preprocessing."""
    if apart is None:
        rows, held = hold_out(
            len(images), options.held_out, options.seed, least=least, most=MOST_VALIDATION
        )
        rest = images.take(rows)
    else:
        rest, images = images, images.joined(apart)
        rows, held = list(range(len(rest))), list(range(len(rest), len(images)))
    # Of few, all choose, and there is nothing to set a threshold by.
    parts = drawn(len(held), [1, 3], options.seed) if len(held) >= _ENOUGH else [range(len(held))]
    validation, *others = ([held[row] for row in part] for part in parts)
    preprocess = fit_preprocessing(rest, size, options, brings)
    some = rest.sample_rows(min(STATISTICS, len(rest)), options.seed)
    return types.TrainingData(
        adapter=adapter(rest),
        rows=rows,
        validation=validation,
        calibration=[row for part in others for row in part],
        plain=TrainingImages(images, preprocess),
        augmented=lambda chosen: TrainingImages(images.take(list(chosen)), preprocess, augment),
        seen=np.asarray(rows)[some].tolist(),
        labels=torch.from_numpy(images.labels),
        settings={"preprocessing": preprocess.describe()},
        skipped=[str(one) for one in skipped],
    )


def activations(model: nn.Module, data: types.TrainingData) -> dict[str, Tensor]:
    """What ActMAD aligns: outputs of the normalisation layers, as its authors do."""
    kinds = (nn.BatchNorm2d, nn.GroupNorm)
    layers = [name for name, layer in model.named_modules() if isinstance(layer, kinds)]
    return Activations.collect(model, data.adapter, data.plain(data.seen), layers).tensors()


def shifted_validation(
    data: types.TrainingData,
    options: ImageTrain,
    severity: int,
    wrong: Callable[[Tensor, Tensor], float] | None = None,
) -> Iterator[tuple[int, Tensor, Tensor, dict[str, types.Shift]]]:
    """For each batch size some validation images, as they are and under the four extra corruptions.

    Where one hardly harms a network, as blur does to one that reads digits, no method could show a
    gain: with `wrong`, the fraction of wrong answers, each is repeated until it costs a tenth.
    """
    source = data.plain
    assert isinstance(source, TrainingImages)
    validation, preprocess = source.images.take(data.validation), source.preprocess
    benchmark = benchmark_for(preprocess.size)
    for size, number in tuned_sizes(options.tuned).items():
        images = validation.sample(_whole_batches(min(number, len(validation)), size), options.seed)
        pixels = images.batch(slice(None), preprocess.size)
        x, y = preprocess(pixels), torch.from_numpy(images.labels)
        enough = 0.0 if wrong is None else 1 - (1 - _LOST) * (1 - wrong(x, y))
        shifts: dict[str, types.Shift] = {}
        for name in EXTRA:
            corrupted = pixels
            for repeat in range(1 if wrong is None else _REPEATS):
                seed = options.seed + repeat
                corrupted = corrupt_all(corrupted, name, severity, benchmark=benchmark, seed=seed)
                shifted = preprocess(corrupted)
                if wrong is not None and wrong(shifted, y) >= enough:
                    break
            shifts[name] = lambda _, shifted=shifted: shifted  # type: ignore[misc]
        yield size, x, y, shifts


def _whole_batches(number: int, size: int) -> int:
    """A last batch of a few images has other statistics, and of one image perhaps none at all."""
    return number - number % size if number > size else number


# --- evaluate and predict


def preprocessing_of(settings: types.Json) -> Preprocessing:
    """How a trained network takes its images."""
    what = "the network's preprocessing"
    return as_kind(settings.get("preprocessing"), Preprocessing, what, "train it again")


def tensor_of(network: types.Network, pixels: Pixels) -> Tensor:
    """Images as a network takes them, on its device."""
    return preprocessing_of(network.settings)(pixels).to(network.device)


def instances(
    network: types.Network, pixels: Pixels, images: ImageSet, dtype: torch.dtype
) -> types.Instances:
    """Pixels of these images, ready for a network, with labels and names."""
    labels = torch.from_numpy(images.labels).to(network.device, dtype)
    return types.Instances(tensor_of(network, pixels), labels, list(images.names))


def sample_sheet(
    answers: Any,  # the evaluation's, of the images to show
    pixels: Mapping[str, Sequence[Pixels] | Pixels],  # of each level, in the order of the answers
    title: str,  # a format of an answer's fields
    words: Callable[[Any], str],  # a prediction
    frames: bool = False,  # green where the prediction is right, else red
) -> Figure:
    """Images, eight in a row, with predictions before and after, and how unusual each is."""
    rows = -(-len(answers) // 8)
    figure = Figure(figsize=(10.8, 2.15 * rows))
    # A row's last line must not look like the next one's title.
    figure.set_layout_engine("constrained", hspace=0.12)
    numbers = answers.groupby("level").cumcount()
    for index, (line, number) in enumerate(zip(answers.to_dict("records"), numbers, strict=True)):
        axes = figure.add_subplot(rows, 8, index + 1, xticks=[], yticks=[])
        axes.imshow(pixels[line["level"]][number], interpolation="nearest")
        colour = "#0f766e" if line["prediction"] == line["truth"] else "#b42318"
        axes.spines[:].set(color=colour, linewidth=1.6, visible=frames)
        before, after = words(line["initial"]), words(line["prediction"])
        said = before if before == after else f"{before}\n→ {after}"
        above = title.format_map(line).replace("_", " ")
        axes.set_title(above, fontsize=6.5, parse_math=False)
        axes.set_xlabel(f"{said}\n{line['percentile']:.0f} %", fontsize=6.5, parse_math=False)
    return figure


def reader_of(
    settings: types.Json, noun: str, describe: Callable[[Mapping[str, Any]], str]
) -> types.Reader:
    """Images in files, folders and tars; `describe` puts a prediction into words."""
    return types.Reader(
        noun=noun,
        read=partial(_items, preprocessing_of(settings).size),
        batch=lambda network, values: tensor_of(network, np.stack(values)),
        words=partial(in_words, describe),
        batch_size=_AT_ONCE,
    )


def _items(size: int, path: Path) -> Iterator[types.Item]:
    """The images at a path, brought to a size; a problem instead of each that can't be read."""
    if not path.is_dir() and path.suffix.lower() not in (".tar", ".gz", ".tgz", ".npy"):
        yield _item(path, lambda: fit_to(read_image(path), size))
        return
    try:
        images = open_images(path)
    except IT3Error as problem:
        yield types.Item(printable(path), problem=str(problem))
        return
    for row, name in enumerate(images.names):
        yield _item(path / name, lambda row=row: images.batch([row], size)[0])  # type: ignore[misc]


def _item(path: Path, read: Callable[[], Pixels]) -> types.Item:
    try:
        return types.Item(str(path), read())
    except IT3Error as problem:
        text = problem.problem if isinstance(problem, BadImage) else str(problem)
        return types.Item(printable(path), problem=text)
