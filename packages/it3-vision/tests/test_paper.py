"""The paper's rows are the algorithm as the paper tells it, and the preset its protocol."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from it3_core import Classification, IT3Error, PaperStep, Regression
from it3_core.batching import Ragged
from it3_core.experiment.lines import common_lines
from it3_core.experiment.types import Network
from it3_vision import networks
from it3_vision.age import task as age
from it3_vision.age.cli import FaceSettings
from it3_vision.age.cli import Train as Faces
from it3_vision.classify import task as classify
from it3_vision.classify.cli import Train as Images
from it3_vision.image_task import recipe_of
from it3_vision.networks import NetworkSettings
from it3_vision.roads.adapter import RoadMap
from it3_vision.roads.cli import Train as Roads
from it3_vision.roads.drawn import drawn_scenes
from it3_vision.roads.lines import lines as road_lines
from it3_vision.roads.network import DRUSettings, build
from it3_vision.roads.task import problem_of
from it3_vision.roads.tiling import Tiled
from reference import reference

STEPS, LR, SIZE, WITHOUT = 2, 1e-3, 16, 4  # rows of each tile have no data


def images(n: int, shift: float, channels: int = 3) -> Tensor:
    """Coloured noise, further from the training's with the shift."""
    generator = torch.Generator().manual_seed(int(10 * shift))
    return torch.randn(n, channels, SIZE, SIZE, generator=generator, dtype=torch.float64) + shift


def settled(model: nn.Module, adapter: Any, channels: int = 3) -> Any:
    """The network as after training: it hears its signal, and batch norms know their images."""
    model.double()
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data += 0.05 * torch.randn_like(parameter)
    model.train()
    for _ in range(4):
        x = known(images(8, 0.0, channels))
        for signal in (adapter.neutral(x), adapter.encode(model(x, adapter.neutral(x)))):
            model(x, signal)
    return model.eval()


def known(x: Tensor) -> Tensor:
    """Of an aerial image, what has data: not the first rows."""
    if x.shape[1] == 4:
        x[:, 3] = 1
        x[:, 3, :WITHOUT] = 0
    return x


def network(model: nn.Module, adapter: Any) -> Network:
    step = PaperStep(STEPS, LR)
    blank = dict.fromkeys(("answers", "settings", "predictors", "history", "measured"))
    return Network(seed=0, model=model, adapter=adapter, statistics={},
                   paper={"source": step, "online": step}, **cast(Any, blank))  # fmt: skip


def classifier() -> tuple[Any, Any, Any, Any, Any]:
    adapter = Classification(5)
    settings = NetworkSettings("dla", "tiny")
    model = networks.build(settings, adapter, rotation=True)
    lines = [*common_lines(classify.FEWEST), *classify.own_lines(False)]
    return model, adapter, partial(torch.softmax, dim=1), lambda gap: gap.abs().sum(1), lines


def ages() -> tuple[Any, Any, Any, Any, Any]:
    adapter = Regression(40.0, 12.0)
    model = age.build(FaceSettings("tiny"), adapter)
    lines = [*common_lines(age.FEWEST, stream=True), *age.OWN_LINES]
    return model, adapter, lambda y: y / 12, lambda gap: gap.abs().sum(1), lines


def maps() -> tuple[Any, Any, Any, Any, Any]:
    """‖·‖ is the mean, over the pixels that have data, of |p − q| of road and of ground."""
    model = build(DRUSettings("tiny", steps=2))
    model.most = 2 * SIZE * SIZE  # it runs in parts, as on whole images
    pixels = SIZE * (SIZE - WITHOUT)
    norm = lambda gap: 2 * gap.abs().flatten(1).sum(1) / pixels  # noqa: E731
    return model, RoadMap(), torch.sigmoid, norm, road_lines()


@pytest.mark.parametrize("online", [False, True])
@pytest.mark.parametrize("task", [classifier, ages, maps])
def test_the_papers_rows_equal_the_algorithm_as_the_paper_tells_it(task: Any, online: bool) -> None:
    torch.manual_seed(0)
    model, adapter, read, norm, lines = task()
    channels = 4 if task is maps else 3
    model = settled(model, adapter, channels)
    stream = [known(images(3, shift, channels)) for shift in (0.5, 1.0, 1.5)]
    wanted = reference(
        model, adapter.neutral, adapter.encode, norm, stream,
        steps=STEPS, lr=LR, online=online, as_probabilities=read,
    )  # fmt: skip
    name = "online IT³ (paper)" if online else "IT³ (paper)"
    method = next(line for line in lines if line.name == name).make(network(model, adapter), 3)
    whole: Any = Tiled(method, tile=SIZE) if task is maps else None
    for x, answer in zip(stream, wanted, strict=True):
        y0 = model(x, adapter.neutral(x))
        assert (read(answer) - read(y0)).abs().max() > 1e-3
        if task is maps:  # whole tiles: nothing is blended
            answer = torch.where(x[:, 3] > 0.5, answer[:, 0].sigmoid(), -1.0)
            found = torch.stack(whole(Ragged(list(x))).prediction.rows).double()
        else:
            found = method(x).prediction
        torch.testing.assert_close(found, answer, rtol=0, atol=1e-6)


def test_the_preset_is_the_protocol_of_each_network_s_authors(tmp_path: Path) -> None:
    """As their papers and code have it: SGD at 0.1, a tenth after every 30 epochs."""
    for name, epochs, pixels in (("dla", 120, 32), ("resnet18", 90, 224)):
        options = Images(out=tmp_path, preset="paper", network=NetworkSettings(name))
        recipe = recipe_of(options, batch_norm=True)
        assert (recipe.epochs, recipe.batch_size, recipe.lr) == (epochs, 256, 0.1)
        assert (recipe.schedule, recipe.clip) == ("step30", None)
        wanted = {"momentum": 0.9, "nesterov": False, "weight_decay": 1e-4}
        assert dict(recipe.optimizer_options) == wanted
        assert (options.network.size, options.network.side) == ("full", pixels)
    assert options.normalise == "imagenet"
    with pytest.raises(IT3Error, match="the paper has no resnet20, but dla and resnet18"):
        Images(out=tmp_path, preset="paper", network=NetworkSettings("resnet20"))


def test_both_terms_of_the_loss_are_alike_and_the_second_signal_is_the_label(
    tmp_path: Path,
) -> None:
    out, scenes = tmp_path, drawn_scenes("urban", 1, 16)
    for options in (Images(out=out, preset="paper"), Faces(out=out, preset="paper")):
        assert (options.protocol.second_weight, options.second_signal) == (1.0, "label")
    faces = Faces(out=out, preset="paper")
    assert (faces.network.size, faces.network.side, faces.low, faces.high) == ("full", 224, 20, 60)
    settings = problem_of(scenes, Roads(out=out, preset="paper"), {}).settings
    assert (settings["second_signal"], settings["rotation"]) == ("label", True)
    assert settings["network"] == {"size": "full", "steps": 3, "norm": "batch"}


def test_what_is_given_goes_before_the_preset(tmp_path: Path) -> None:
    given: dict[str, Any] = {"out": tmp_path, "preset": "paper", "epochs": 12, "lr": 0.2}
    images = Images(**given, network=NetworkSettings(size="small", pixels=16))
    assert images.protocol[:4] == (12, 256, 0.2, 1e-4)
    assert (images.network.size, images.network.side) == ("small", 16)
    faces = Faces(**given, second_weight=0.1, network=FaceSettings("tiny"))
    assert (faces.protocol.epochs, faces.protocol.second_weight) == (12, 0.1)
    assert faces.network.size == "tiny"
    roads = Roads(**given, size="tiny", second_signal="noisy", rotation=False)
    settings = problem_of(drawn_scenes("urban", 1, 16), roads, {}).settings
    assert (settings["second_signal"], settings["rotation"]) == ("noisy", False)
    assert settings["network"]["size"] == "tiny"
    assert Images(out=tmp_path).network.size == Faces(out=tmp_path).network.size == "small"
