"""How well a distance of the two passes tells errors, with the signal at the pooled features.

A ResNet-20 for CIFAR goes on from its published weights for one epoch of ZigZag, once with the
embedding that `build` gives it (a hidden layer) and once with one Linear, and answers images, clean
and under 15 corruptions at 5 severities: about six minutes of CPU for each network. They are of
that half of the test images which choices are made on; tables are of the other.

    python tools/bench/late_signal.py CIFAR_FOLDER WEIGHTS.safetensors --seeds 1
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from it3_core import Classification, condition, fit, zigzag_loss
from it3_core.batching import batches
from it3_core.experiment.statistics import auroc, correlation
from it3_core.experiment.train import refresh_statistics
from it3_core.model.distances import MEASURES
from it3_vision.corruptions import CORRUPTIONS, benchmark_for, corrupt_all
from it3_vision.data import ImageSet, Preprocessing, open_images
from it3_vision.image_task import TrainingImages, augmentation
from it3_vision.networks import NetworkSettings, bare, load_weights

ADAPTER = Classification(10)
PREPROCESS = Preprocessing(32, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def trained(images: ImageSet, weights: Path, hidden: int | None, seed: int) -> nn.Module:
    """The network after its epoch, by the recipe that it brings."""
    torch.manual_seed(seed)
    settings = NetworkSettings("resnet20")
    network = bare(settings, 10)
    load_weights(network, weights)
    model = condition(network, ADAPTER, "pool", hidden=hidden)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    data, brings = TrainingImages(images, PREPROCESS, augmentation(32)), settings.brings
    sgd = partial(torch.optim.SGD, momentum=0.9, nesterov=True, weight_decay=brings.weight_decay)
    fit(model, ADAPTER, data, collate=data.collate, validation=None, epochs=1, batch_size=128,
        lr=brings.lr, schedule="onecycle", clip=5.0, optimizer=sgd, seed=seed,
        loss=partial(zigzag_loss, shared_prefix=True))  # fmt: skip
    plain = TrainingImages(images, PREPROCESS)
    refresh_statistics(model, ADAPTER, plain.collate(range(0, len(images), 50))[0])
    return model.eval()


@torch.no_grad()
def answers(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities of both passes."""
    first = torch.cat([model(part, ADAPTER.neutral(part)) for part in batches(x, 256)])
    pairs = zip(batches(x, 256), batches(first, 256), strict=True)
    second = torch.cat([model(part, ADAPTER.encode(one)) for part, one in pairs])
    return first.log_softmax(1), second.log_softmax(1)


def report(model: nn.Module, sets: list[Tensor], labels: Tensor) -> None:
    """Pearson of a batch's mean score with its accuracy, and AUROC for wrong answers."""
    found = [answers(model, x) for x in sets]
    wrong = torch.stack([(first.argmax(1) != labels) for first, _ in found])
    print(f"  right: clean {100 - 100 * wrong[0].double().mean():.1f} %, "
          f"severity 5 {100 - 100 * wrong[5::5].double().mean():.1f} %")  # fmt: skip
    scores = {name: torch.stack([f(q, p) for p, q in found]) for name, f in MEASURES.items()}
    scores["entropy"] = torch.stack([-(p.exp() * p).sum(1) for p, _ in found])
    for name, score in scores.items():
        told = []
        for size in (64, 128, 256):
            mean = score.reshape(-1, size).double().mean(1).tolist()
            right = (1 - wrong.double()).reshape(-1, size).mean(1).tolist()
            told.append(f"{correlation(mean, right):.3f}")
        area = auroc(score[wrong].tolist(), score[~wrong].tolist())
        print(f"  {name:8}Pearson at 64, 128, 256: {', '.join(told)}; AUROC {area:.3f}", flush=True)


def main() -> None:
    """Both embeddings, seed by seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    images, _ = open_images(options.data, split="train").load(32)
    test = open_images(options.data, split="test", classes=images.classes).half(0).sample(1024, 0)
    pixels, kind = test.batch(slice(None), 32), benchmark_for(32)
    sets = [PREPROCESS(pixels)]
    for name in CORRUPTIONS:
        for severity in range(1, 6):
            sets.append(PREPROCESS(corrupt_all(pixels, name, severity, benchmark=kind, seed=0)))
    for seed in range(options.seeds):
        for hidden in (64, None):
            start = time.process_time()
            model = trained(images, options.weights, hidden, seed)
            spent = time.process_time() - start
            print(f"seed {seed}, hidden units {hidden}: {spent:.0f} CPU-s", flush=True)
            report(model, sets, torch.from_numpy(test.labels))


if __name__ == "__main__":
    main()
