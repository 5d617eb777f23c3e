"""The networks: torchvision's names, weights that load whole, and a signal that starts at zero."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from it3_core import IT3, AnswerStep, Classification, Conditioned, IT3Error, condition, widen
from it3_vision.networks import DLA, NETWORKS, NetworkSettings, ResNet, bare, build, load_weights

Network = TypeVar("Network", bound=nn.Module)

BLOCKS = {18: [2, 2, 2, 2], 34: [3, 4, 6, 3], 50: [3, 4, 6, 3], 152: [3, 8, 36, 3]}
PARAMETERS = {18: 11_689_512, 34: 21_797_672, 50: 25_557_032, 152: 60_192_808}


def torchvision_shapes(depth: int, width: int = 64, classes: int = 1000) -> dict[str, list[int]]:
    """Names and shapes of torchvision's ResNets, written down from its documentation."""
    shapes: dict[str, list[int]] = {}

    def pair(conv: str, norm: str, out: int, into: int, kernel: int) -> None:
        shapes[f"{conv}.weight"] = [out, into, kernel, kernel]
        for leaf in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{norm}.{leaf}"] = [out]
        shapes[f"{norm}.num_batches_tracked"] = []

    pair("conv1", "bn1", width, 3, 7)
    into, expansion = width, 1 if depth < 50 else 4
    for stage, blocks in enumerate(BLOCKS[depth]):
        inner = width << stage
        for block in range(blocks):
            at = f"layer{stage + 1}.{block}"
            kernels = [3, 3] if expansion == 1 else [1, 3, 1]
            previous = into
            for k, kernel in enumerate(kernels, 1):
                out = inner * expansion if k == len(kernels) else inner
                pair(f"{at}.conv{k}", f"{at}.bn{k}", out, previous, kernel)
                previous = out
            # Where shapes change: in each first block but that of ResNet-18's and 34's layer1.
            if block == 0 and not (stage == 0 and expansion == 1):
                pair(f"{at}.downsample.0", f"{at}.downsample.1", previous, into, 1)
            into = previous
    return shapes | {"fc.weight": [classes, into], "fc.bias": [classes]}


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def resnet152() -> ResNet:
    """Of the real depth, and an eighth of the width."""
    return varied(ResNet(152, 10, width=8))


def varied(network: Network, seed: int = 0) -> Network:
    """With weights and statistics as after a training: none of them at its first value."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in network.state_dict().items():
            if name.endswith("num_batches_tracked"):
                value.fill_(7)
            elif value.dim() == 1 and name.endswith(("running_var", "weight")):
                value.uniform_(0.5, 1.5, generator=generator)
            elif value.dim() == 1:
                value.normal_(0, 0.1, generator=generator)
    return network.eval()


class TestTorchvisionsNames:
    @pytest.mark.parametrize("depth", [18, 34, 50, 152])
    def test_every_name_and_shape(self, depth: int) -> None:
        with torch.device("meta"):  # shapes without memory
            network = ResNet(depth)
        found = {name: list(value.shape) for name, value in network.state_dict().items()}
        assert found == torchvision_shapes(depth)
        assert sum(p.numel() for p in network.parameters()) == PARAMETERS[depth]

    def test_the_layers_steps_are_torchvisions(self) -> None:
        """224 pixels become 56, 28, 14 and 7; a bottleneck's stride is at its 3×3 convolution."""
        network = ResNet(50, 5, width=8).eval()
        sizes: list[int] = []
        for stage in ("maxpool", "layer1", "layer2", "layer3", "layer4"):
            network.get_submodule(stage).register_forward_hook(
                lambda _m, _i, maps: sizes.append(maps.shape[-1])
            )
        network(torch.zeros(1, 3, 224, 224))
        assert sizes == [56, 56, 28, 14, 7]
        first = network.get_submodule("layer2.0")
        strides = [first.get_submodule(f"conv{k}").stride for k in (1, 2, 3)]
        assert strides == [(1, 1), (2, 2), (1, 1)]

    def test_a_block_by_hand(self) -> None:
        """relu(bn2(conv2(relu(bn1(conv1 x)))) + downsample x)."""
        block = varied(ResNet(18, 5, width=8)).get_submodule("layer2.0")
        x = torch.randn(2, 8, 6, 6)
        parts = dict(block.named_children())
        y = parts["bn2"](parts["conv2"](parts["bn1"](parts["conv1"](x)).relu()))
        assert torch.allclose(block(x), (y + parts["downsample"](x)).relu())

    def test_unknown_ones(self) -> None:
        with pytest.raises(IT3Error, match="no ResNet-101: take 18, 34, 50, 152"):
            ResNet(101)
        with pytest.raises(IT3Error, match='stem is "imagenet" or "small"'):
            ResNet(18, stem="large")  # type: ignore[arg-type]
        with pytest.raises(IT3Error, match='normalised by "batch" or "group", not'):
            ResNet(18, width=8, norm="layer")  # type: ignore[arg-type]


def saved(network: nn.Module, path: Path, **changes: Tensor | None) -> Path:
    weights = {**network.state_dict(), **{k.replace("__", "."): v for k, v in changes.items()}}
    save_file({name: value for name, value in weights.items() if value is not None}, path)
    return path


class TestWeights:
    @pytest.mark.parametrize("depth", [18, 152])
    def test_loaded_and_conditioned_it_answers_identically(
        self, depth: int, tmp_path: Path, resnet152: ResNet
    ) -> None:
        there = resnet152 if depth == 152 else varied(ResNet(18, 10, width=16))
        width = 8 if depth == 152 else 16
        assert {n: list(v.shape) for n, v in there.state_dict().items()} == torchvision_shapes(
            depth, width, 10
        )
        here = ResNet(depth, 10, width=width).eval()
        x, adapter = torch.randn(2, 3, 64, 64), Classification(10)
        expected = there(x)
        assert not torch.allclose(here(x), expected)
        load_weights(here, saved(there, tmp_path / "w.safetensors"))
        assert torch.equal(here(x), expected)
        signals = adapter.neutral(x), adapter.encode(torch.randn(2, 10))
        for model in (
            condition(here, adapter, "layer2"),
            condition(here, adapter, "layer4"),
            widen(here, adapter),
            widen(here, adapter, "layer3.0.conv1"),
        ):
            for signal in signals:
                # A wider convolution adds zeros in another order: equal up to rounding.
                assert torch.allclose(model(x, signal), expected, rtol=0, atol=2e-5)
                assert model.embed is None or torch.equal(model(x, signal), expected)

    def test_build_starts_from_them(self, tmp_path: Path) -> None:
        settings = NetworkSettings("resnet18", "tiny", size=96)
        there, adapter, x = varied(bare(settings, 4)), Classification(4), torch.randn(2, 3, 96, 96)
        file = saved(there, tmp_path / "w.safetensors")
        model = build(settings, adapter, weights=file, rotation=True).eval()
        assert torch.equal(model(x, adapter.neutral(x)), there(x))

    def test_older_files_lack_counters(self, tmp_path: Path) -> None:
        there, here = varied(ResNet(18, 4, width=8)), ResNet(18, 4, width=8)
        weights = {k: v for k, v in there.state_dict().items() if "num_batches" not in k}
        save_file(weights, tmp_path / "w.safetensors")
        load_weights(here, tmp_path / "w.safetensors")
        assert all(torch.equal(here.state_dict()[name], value) for name, value in weights.items())

    def test_group_norm_starts_from_batch_norms_scales(self, tmp_path: Path) -> None:
        there, here = varied(ResNet(18, 4, width=8)), ResNet(18, 4, width=8, norm="group")
        load_weights(here, saved(there, tmp_path / "w.safetensors"))
        weights = there.state_dict()
        assert all(torch.equal(value, weights[name]) for name, value in here.state_dict().items())

    def test_new_head(self, tmp_path: Path) -> None:
        there, here = varied(ResNet(18, 9, width=8)), ResNet(18, 4, width=8)
        head = here.fc.weight.clone()
        load_weights(here, saved(there, tmp_path / "w.safetensors"), new_head=True)
        assert torch.equal(here.fc.weight, head)
        assert torch.equal(here.conv1.weight, there.conv1.weight)

    @pytest.mark.parametrize(
        ("changes", "sentence"),
        [
            ({"bn1__weight": None}, "(it lacks 'bn1.weight')"),
            ({"extra": torch.zeros(1)}, "(it has 'extra', which the network has not)"),
            ({"conv1__weight": torch.zeros(8, 3, 3, 3)}, "(8, 3, 3, 3), not (8, 3, 7, 7))"),
            ({"fc__bias": torch.zeros(9)}, "(9,), not (4,)); for other classes, ask for a new"),
        ],
    )
    def test_what_does_not_fit_changes_nothing(
        self, changes: dict[str, Tensor | None], sentence: str, tmp_path: Path
    ) -> None:
        here = ResNet(18, 4, width=8)
        before = {name: value.clone() for name, value in here.state_dict().items()}
        file = saved(varied(ResNet(18, 4, width=8)), tmp_path / "w.safetensors", **changes)
        with pytest.raises(IT3Error) as problem:
            load_weights(here, file)
        assert sentence in str(problem.value)
        assert "\n" not in str(problem.value)
        assert all(torch.equal(value, before[name]) for name, value in here.state_dict().items())

    def test_files_that_are_none(self, tmp_path: Path) -> None:
        network = ResNet(18, 4, width=8)
        whole = saved(network, tmp_path / "w.safetensors").read_bytes()
        (tmp_path / "cut.safetensors").write_bytes(whole[: len(whole) // 2])
        (tmp_path / "empty.safetensors").write_bytes(b"")
        (tmp_path / "text.safetensors").write_text("weights")
        for name in ("cut", "empty", "text"):
            with pytest.raises(IT3Error, match=f"{name}.safetensors is no safetensors file"):
                load_weights(network, tmp_path / f"{name}.safetensors")
        with pytest.raises(IT3Error, match="there is no file "):
            load_weights(network, tmp_path / "gone.safetensors")
        with pytest.raises(IT3Error, match="is no safetensors file"):
            load_weights(network, tmp_path)

    @pytest.mark.parametrize("suffix", [".pth", ".PT", ".bin", ".ckpt"])
    def test_pickles_are_refused_unread(self, suffix: str, tmp_path: Path) -> None:
        file = tmp_path / f"w{suffix}"  # which need not even be there
        with pytest.raises(IT3Error, match="pickled code, which is not read here: save its"):
            load_weights(ResNet(18, 4, width=8), file)


class TestDLA:
    @pytest.mark.parametrize("size", [28, 32, 33, 64])
    @pytest.mark.parametrize("preset", ["tiny", "small"])
    def test_images_of_any_size(self, size: int, preset: str) -> None:
        network = bare(NetworkSettings(preset=preset), 7).eval()  # type: ignore[arg-type]
        assert network(torch.zeros(2, 3, size, size)).shape == (2, 7)

    def test_the_papers(self) -> None:
        """DLA-34 has 15.7 million parameters with 1000 classes; the stem for 32 pixels is small."""
        with torch.device("meta"):
            network = DLA(10)
        blocks = [name for name, _ in network.named_modules() if name.endswith("conv1")]
        assert len(blocks) == 2 + 4 + 4 + 2
        convolutions = [m for m in network.modules() if isinstance(m, nn.Conv2d)]
        deep = [m for m in convolutions if m.kernel_size == (3, 3)]
        assert len(deep) == 3 + 2 * len(blocks)
        assert 15.0e6 < sum(p.numel() for p in network.parameters()) < 15.6e6
        network = DLA(10, widths=(4, 4, 8, 8, 8, 8)).eval()
        sizes = stage_sizes(network, 32)
        assert sizes == [32, 32, 32, 32, 16, 8, 4]

    def test_a_root_sees_all_its_trees(self) -> None:
        """level3: four blocks, two roots; the last merges two blocks, the first tree, the input."""
        network = DLA(10, widths=(4, 4, 8, 16, 24, 32))
        roots = {
            name: module.in_channels
            for name, module in network.named_modules()
            if name.endswith("root.conv")
        }
        assert roots == {
            "level2.root.conv": 8 + 8,
            "level3.first.root.conv": 16 + 16,
            "level3.second.root.conv": 16 + 16 + 16 + 8,
            "level4.first.root.conv": 24 + 24,
            "level4.second.root.conv": 24 + 24 + 24 + 16,
            "level5.root.conv": 32 + 32 + 24,
        }

    def test_wrong_lengths(self) -> None:
        with pytest.raises(IT3Error, match="six widths, six strides and four depths"):
            DLA(10, widths=(8, 8))


def stage_sizes(network: nn.Module, size: int) -> list[int]:
    sizes: list[int] = []
    for stage in ("base", *(f"level{i}" for i in range(6))):
        network.get_submodule(stage).register_forward_hook(
            lambda _m, _i, maps: sizes.append(maps.shape[-1])
        )
    network(torch.zeros(1, 3, size, size))
    return sizes


STAGES = {
    "dla": ["base", *(f"level{i}" for i in range(6)), "fc"],
    "resnet18": ["conv1", *(f"layer{i}" for i in range(1, 5)), "fc"],
    "resnet50": ["conv1", *(f"layer{i}" for i in range(1, 5)), "fc"],
}


class TestTheSignal:
    @pytest.mark.parametrize(
        ("name", "stage"), [(name, stage) for name in STAGES for stage in STAGES[name]]
    )
    def test_enters_at_any_stage_and_changes_nothing_at_first(self, name: str, stage: str) -> None:
        network = varied(bare(NetworkSettings(name, "tiny"), 5))
        adapter, x = Classification(5), torch.randn(2, 3, 32, 32)
        model = condition(network, adapter, stage)
        signal = adapter.encode(torch.randn(2, 5))
        assert torch.equal(model(x, signal), network(x))
        assert model.embed is not None
        nn.init.normal_(model.embed.weight)  # type: ignore[arg-type]
        assert not torch.allclose(model(x, signal), network(x), atol=1e-3)  # now it is heard

    def test_the_authors_stages(self) -> None:
        assert NetworkSettings().stage == "level3"
        assert NetworkSettings("resnet152").stage == "layer2"
        assert NetworkSettings(layer="level1").stage == "level1"

    @pytest.mark.parametrize("name", ["dla", "resnet18"])
    def test_gradients_reach_every_parameter(self, name: str) -> None:
        adapter, x = Classification(5), torch.randn(4, 3, 32, 32)
        model = build(NetworkSettings(name, "tiny"), adapter)
        model(x, adapter.encode(torch.randn(4, 5))).square().sum().backward()
        still = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
        assert still == []

    @pytest.mark.parametrize("cheap", [True, False])
    def test_the_trunk_below_runs_once(self, cheap: bool) -> None:
        """For f and F of one batch, in an answer step and in IT³'s cheap mode."""
        network = varied(bare(NetworkSettings(preset="tiny"), 5))
        counts = {"below": 0, "above": 0}
        below, above = network.get_submodule("level1.0"), network.get_submodule("level4")
        below.register_forward_pre_hook(lambda _m, _i: counts.update(below=counts["below"] + 1))
        above.register_forward_pre_hook(lambda _m, _i: counts.update(above=counts["above"] + 1))
        adapter, x = Classification(5), torch.randn(4, 3, 32, 32)
        model = listening(condition(network, adapter, "level3"))
        method = IT3(model, adapter, parameters="above") if cheap else AnswerStep(model, adapter)
        method(x)  # once for all, it is proven that what is shared is the same
        counts.update(below=0, above=0)
        method(x)
        assert counts == {"below": 1, "above": 3 if cheap else 2}


def listening(model: Conditioned) -> Conditioned:
    """As after a training: the signal counts."""
    assert model.embed is not None
    nn.init.normal_(model.embed.weight, std=0.3)  # type: ignore[arg-type]
    return model


class TestSettings:
    def test_group_norm_leaves_no_batch_norm(self) -> None:
        for name in ("dla", "resnet18"):
            network = bare(NetworkSettings(name, "tiny", norm="group"), 5)
            kinds = {type(m) for m in network.modules()}
            assert nn.GroupNorm in kinds
            assert nn.BatchNorm2d not in kinds
            x = torch.randn(3, 3, 32, 32)  # an image's answer does not depend on its company
            assert torch.allclose(network(x)[:1], network(x[:1]), atol=1e-4)

    @pytest.mark.parametrize("name", NETWORKS)
    def test_presets_grow(self, name: str) -> None:
        with torch.device("meta"):
            counts = [
                sum(p.numel() for p in bare(NetworkSettings(name, preset), 10).parameters())
                for preset in ("tiny", "small", "paper")
            ]
        assert counts == sorted(counts)
        assert counts[0] < counts[2] / 20

    def test_larger_images_get_the_imagenet_stem(self) -> None:
        small, large = (bare(NetworkSettings("resnet18", "tiny", size=s), 5) for s in (64, 65))
        assert [m.conv1.kernel_size for m in (small, large)] == [(3, 3), (7, 7)]  # type: ignore[union-attr]

    def test_unknown_names(self) -> None:
        with pytest.raises(IT3Error, match="there is no network 'vgg': take dla, resnet18"):
            NetworkSettings("vgg")
        with pytest.raises(IT3Error, match="a preset is tiny, small, paper, not 'huge'"):
            NetworkSettings(preset="huge")  # type: ignore[arg-type]
        with pytest.raises(IT3Error, match="no layer 'level9'; did you mean 'level"):
            build(NetworkSettings(layer="level9", preset="tiny"), Classification(3))
        with pytest.raises(IT3Error, match="these are no settings of a network"):
            NetworkSettings.from_description({"depth": 3})

    def test_a_rotation_head_changes_no_answer(self) -> None:
        adapter, x = Classification(5), torch.randn(2, 3, 32, 32)
        torch.manual_seed(0)
        plain = build(NetworkSettings(preset="tiny"), adapter).eval()
        torch.manual_seed(0)
        headed = build(NetworkSettings(preset="tiny"), adapter, rotation=True).eval()
        assert torch.equal(plain(x, adapter.neutral(x)), headed(x, adapter.neutral(x)))
