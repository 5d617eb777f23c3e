"""Networks of other libraries × every method: `nox -s zoo` writes docs/zoo.md of it3-core."""

import copy
import tempfile
import warnings
from collections import UserDict
from collections.abc import Callable
from functools import partial
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any

import rtdl_revisiting_models as rtdl
import torch
import torch_geometric.nn as pyg
import transformers
from e3nn.o3 import Linear, TensorSquare
from mlp_mixer_pytorch import MLPMixer
from monai.networks import nets as monai
from neuralop.models import FNO, UNO
from pytorch_tabnet.tab_network import TabNet
from tab_transformer_pytorch import FTTransformer
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from x_transformers import Encoder, ViTransformerWrapper

import it3_core as it3

OURS = ("torch.", "__main", "einops")  # modules whose classes are no network of a library
PAGE = Path(__file__).parent.parent / "packages/it3-core/docs/zoo.md"
HEAD = """# Networks of other libraries

`nox -s zoo` makes this table: {} small networks of random weights, given a batch of eight, from {}.
It says whether a method runs and leaves the network as it was, not whether it helps.
✓: it runs, and its answers are finite. –: refused, in the sentence of that number below. ✗: fails.
The last column: after all methods every weight and buffer is bit for bit what it was.
"""
IMAGE, TABLE, CELLS = torch.randn(8, 3, 32, 32), torch.randn(8, 6), torch.arange(8)[:, None] % 3
WORDS = UserDict(input_ids=torch.randint(5, 50, (8, 12)), attention_mask=torch.ones(8, 12))
EDGES = torch.tensor([[0, 1, 2, 3, 1, 2, 3, 0], [1, 2, 3, 0, 0, 1, 2, 3]])
SHAPE = {"edge_index": EDGES, "z": torch.arange(1, 5), "pos": torch.randn(4, 3)}
GRAPHS = Batch.from_data_list([Data(x=torch.randn(4, 6), **SHAPE) for _ in range(8)])
CLASSES = (it3.Classification(3), torch.arange(8) % 3)  # an adapter, and labels
NUMBER, MAP = (it3.Regression(), torch.randn(8)), (it3.DenseMap(), torch.ones(8, 32, 32).long())


class OnGraphs(nn.Module):
    """A network of torch-geometric takes nodes and edges, not a batch."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net, self.head = net, nn.Linear(16, 1)

    def forward(self, batch: Any) -> Any:
        if isinstance(self.net, pyg.SchNet):
            return self.net(batch.z, batch.pos, batch.batch)
        return self.head(pyg.global_mean_pool(self.net(batch.x, batch.edge_index), batch.batch))


def near(pos: Tensor, batch: Tensor) -> Any:  # SchNet's own way needs a compiled package
    edges = ((batch[:, None] == batch) & ~torch.eye(len(batch), dtype=torch.bool)).nonzero().T
    return edges, (pos[edges[0]] - pos[edges[1]]).norm(dim=1)


def hugging(family: str, layer: str, x: Any = WORDS, channels: int = 16, **own: Any) -> Any:
    task = "ForImageClassification" if "pixel_values" in x else "ForSequenceClassification"
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 60,
             "intermediate_size": 32, "pad_token_id": 0, "num_labels": 3, "image_size": 32,
             "patch_size": 8} | own  # fmt: skip
    config = getattr(transformers, f"{family}Config")(**sizes)
    make = partial(getattr(transformers, family + task), config)
    return make, layer, x, CLASSES, {"output": "logits", "channels": channels}


# fmt: off
PIXELS, TWO = UserDict(pixel_values=IMAGE), [1, 1]
# How each is made, a layer, its input, the kind of answer, options of condition().
NETWORKS: list[Any] = [
    hugging("Bert", "bert.encoder.layer.0"),
    hugging("DistilBert", "distilbert.transformer.layer.0", dim=16, n_heads=2, n_layers=2),
    hugging("Roberta", "roberta.encoder.layer.0"),
    hugging("Albert", "albert.encoder", embedding_size=16),
    hugging("Electra", "electra.encoder.layer.0", embedding_size=16),
    hugging("GPT2", "transformer.h.0", n_embd=16, n_layer=2, n_head=2),
    hugging("Llama", "model.layers.0"),
    hugging("ModernBert", "model.layers.0"),
    hugging("ViT", "vit.layers.0", PIXELS),
    hugging("DeiT", "deit.layers.0", PIXELS),
    hugging("Beit", "beit.layers.0", PIXELS),
    hugging("Swin", "swin.encoder.layers.0", PIXELS, 32, embed_dim=16, depths=TWO, patch_size=2,
            num_attention_heads=[2, 2], window_size=4),
    hugging("ConvNextV2", "convnextv2.encoder.stages.0", PIXELS, hidden_sizes=[16] * 4,
            depths=[1] * 4),
    hugging("ResNet", "resnet.embedder", PIXELS, embedding_size=16, hidden_sizes=[16, 16],
            depths=TWO, layer_type="basic"),
    hugging("MobileNetV2", "mobilenet_v2.conv_stem", PIXELS),
    (lambda: monai.DenseNet121(2, 3, 3), "features.denseblock1", IMAGE, CLASSES, {"channels": 256}),
    (lambda: monai.EfficientNetBN("efficientnet-b0", False, num_classes=3), "_blocks.0", IMAGE,
     CLASSES),
    (lambda: monai.UNet(2, 3, 1, (8, 16), (2,)), "model.0", IMAGE, MAP),
    (lambda: monai.AttentionUnet(2, 3, 1, (8, 16), (2,)), "model.0", IMAGE, MAP),
    (lambda: monai.SegResNet(2, 8, 3, 1), "convInit", IMAGE, MAP),
    (lambda: monai.BasicUNet(2, 3, 1, (8,) * 6), "conv_0", IMAGE, MAP),
    *[(lambda net=net: OnGraphs(net(6, 16, 2, 16)), "net.convs.0", GRAPHS, NUMBER)
      for net in (pyg.GCN, pyg.GAT, pyg.GIN, pyg.GraphSAGE)],
    (lambda: OnGraphs(pyg.SchNet(16, 16, 2, 8, interaction_graph=near)), "net.interactions.0",
     GRAPHS, NUMBER),
    (lambda: rtdl.MLP(d_in=6, d_out=1, n_blocks=2, d_block=16, dropout=0.1), "blocks.0", TABLE,
     NUMBER),
    (lambda: rtdl.ResNet(d_in=6, d_out=1, n_blocks=2, d_block=16, d_hidden=16, dropout1=0.1,
     d_hidden_multiplier=None, dropout2=0.0), "blocks.0", TABLE, NUMBER, {"channels": 16}),
    (lambda: TabNet(6, 1, 4, 4, 2, group_attention_matrix=torch.eye(6)),
     "tabnet.encoder.initial_bn", TABLE, NUMBER, {"output": 0}),
    (lambda: FTTransformer(categories=(3,), num_continuous=6, dim=8, depth=1, heads=2, dim_head=4),
     "embedding", {"x_categ": CELLS, "x_numer": TABLE}, NUMBER,
     {"channels": 8, "channel_dim": -1}),
    (lambda: MLPMixer(image_size=32, channels=3, patch_size=8, dim=16, depth=2, num_classes=3), "2",
     IMAGE, CLASSES, {"channels": 16, "channel_dim": -1}),
    (lambda: ViTransformerWrapper(image_size=32, patch_size=8, num_classes=3, attn_layers=Encoder(
     dim=16, depth=2, heads=2)), "patch_to_embedding", IMAGE, CLASSES),
    (lambda: nn.Sequential(Linear("2x1o", "8x0e+8x1o"), TensorSquare("8x0e+8x1o", "8x0e"),
     Linear("8x0e", "1x0e")), "1", TABLE, NUMBER, {"channels": 8}),
    (lambda: FNO((4, 4), 3, 1, 16), "lifting", IMAGE, MAP, {"channels": 16}),
    (lambda: UNO(3, 1, 16, n_layers=2, uno_out_channels=[16, 16], channel_mlp_skip="linear",
     uno_n_modes=[[4, 4]] * 2, uno_scalings=[[1.0, 1.0]] * 2), "lifting", IMAGE, MAP,
     {"channels": 16}),
]
METHODS: dict[str, Callable[..., Any]] = {
    "Source": it3.Source, "batch statistics": it3.BatchStatistics, "answer step": it3.AnswerStep,
    "IT³": partial(it3.IT3, anchor_gradient=True, steps=2), "online IT³": it3.OnlineIT3,
    "IT³ above": partial(it3.IT3, parameters="above"), "Tent": it3.Tent, "ETA": it3.ETA,
    "IT³ per instance": partial(it3.IT3, per_instance=True),
    "stream statistics": partial(
        it3.StreamStatistics, gate=it3.StreamGate(-1.0, 0.0, of="statistics")
    ),
}
# fmt: on


def tried(said: list[str], net: nn.Module, layer: str, x: Any, answer: Any, how: Any = None) -> Any:
    """A mark for each column; what was refused, or why it failed, is added to `said`."""
    (adapter, labels), marks = answer, {}

    def mark(name: str, call: Callable[[], Any]) -> Any:
        marks[name] = "✓"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return call()
        except Exception as problem:
            refused = isinstance(problem, it3.IT3Error)
            why = " ".join(f"{'' if refused else type(problem).__name__} {problem}".split())
            if why not in said:
                said.append(why)
            marks[name] = f"{'–' if refused else '✗'} {said.index(why) + 1}"

    def stored() -> None:
        with tempfile.TemporaryDirectory() as folder:
            it3.save(Path(folder, "net"), model, adapter=adapter, settings={})
            it3.load(Path(folder, "net")).restore(copy.deepcopy(model))

    def actmad(model: Any, adapter: Any) -> Any:
        seen = it3.Activations.collect(model, adapter, [x], [f"model.{layer}"])
        return it3.ActMAD(model, adapter, seen)

    def answered(make: Callable[..., Any]) -> None:
        method = make(model, adapter)
        for found in (method(x), method(x)):
            if not bool((found.prediction + found.error_after.mean()).isfinite().all()):
                raise ArithmeticError("an answer is not finite")

    model = mark("condition", lambda: it3.condition(net, adapter, layer, **(how or {})))
    if model is None:
        return marks
    nn.init.normal_(model.embed.weight, std=0.1)
    mark("fit", lambda: it3.fit(model, adapter, (x, labels), epochs=1, progress=False))
    before = copy.deepcopy(model).state_dict()
    mark("save, load", stored)
    for name, method in {**METHODS, "ActMAD": actmad}.items():
        mark(name, partial(answered, method))
    pairs = zip(before.values(), model.state_dict().values(), strict=True)
    same = all(torch.equal(one, two) for one, two in pairs if isinstance(one, Tensor))
    return {**marks, "unchanged": "✓" if same else "✗"}


def main() -> None:
    torch.manual_seed(0)
    said: list[str] = []
    rows, used = [], {}
    for make, *rest in NETWORKS:
        net = make()
        inner = next(m for m in net.modules() if not type(m).__module__.startswith(OURS))
        package = packages_distributions()[type(inner).__module__.split(".")[0]][0]
        used[package] = f"{package} {version(package)}"
        marks = tried(said, net, *rest)
        print(f"{package}: {type(inner).__name__}", [m for m in marks.items() if m[1] != "✓"])
        rows.append((f"{package}: {type(inner).__name__}", marks))
    columns = list(rows[0][1])
    lines = [HEAD.format(len(rows), ", ".join(used.values()))]
    lines += [f"| network | {' | '.join(columns)} |", "|" + " --- |" * (len(columns) + 1)]
    for name, marks in rows:
        lines.append(f"| {name} | {' | '.join(marks.get(column, '') for column in columns)} |")
    lines += ["", *(f"{number}. {why}" for number, why in enumerate(said, 1)), ""]
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
