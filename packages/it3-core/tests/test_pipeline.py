"""The four verbs, on a small task that is defined here: no package's own task is needed."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import it3_core
from it3_core import IT3Error, Regression, condition, zigzag_loss
from it3_core.experiment import verbs
from it3_core.experiment.evaluate import evaluate, load_evaluation
from it3_core.experiment.folder import NETWORK, load
from it3_core.experiment.lines import AUTO, SECOND_PASS, SOURCE, VANILLA, gain_of
from it3_core.experiment.predict import as_json, in_words, predict
from it3_core.experiment.train import three_parts, train, trials
from it3_core.experiment.types import (
    Answers,
    Evaluation,
    Experiment,
    Extrapolation,
    Group,
    Instances,
    Item,
    Json,
    Problem,
    Quantity,
    Reader,
    Recipe,
    Restored,
    TestSet,
    TrainingData,
)
from it3_core.model.adapters import adapter_from

ANSWERS = Answers([Quantity("height", "m", 2)])


def truth(x: Tensor) -> Tensor:
    return 3 * x[:, 0] + torch.sin(2 * x[:, 1])


def noisy(x: Tensor, generator: torch.Generator) -> Tensor:
    return x + 0.1 * torch.randn(x.shape, generator=generator)


def make(adapter: Any) -> nn.Module:
    net = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1), adapter.rescale())
    return condition(net, adapter, layer="0")


def restore(settings: Json, adapter_json: Json) -> Restored:
    adapter = adapter_from(dict(adapter_json))
    return Restored(make(adapter), adapter, ANSWERS)


def read(rows: int) -> TrainingData:
    x = torch.rand(rows, 2, generator=torch.Generator().manual_seed(0))
    y = truth(x)
    kept, validation, calibration = three_parts(rows, 0.1, 0.5, 0, least=20)
    return TrainingData(
        adapter=Regression.fit(y[kept]),
        rows=kept,
        validation=validation,
        calibration=calibration,
        plain=lambda some: (x[list(some)], y[list(some)]),
        labels=y,
    )


def problem(seed: int = 0, epochs: int = 4, rows: int = 400) -> Problem:
    return Problem(
        settings={"task": "heights", "rows": rows},
        data=partial(read, rows),
        make=make,
        recipe=Recipe(epochs, 16, 1e-2, seed),
        answers=ANSWERS,
        loss=zigzag_loss,
        trials=trials({"noise": noisy}, batch_size=8),
        extrapolation=Extrapolation("upper", networks=1),
        restore=restore,
    )


def points_to_test() -> TestSet:
    x = torch.rand(40, 2, generator=torch.Generator().manual_seed(1))
    levels = {"inside": x, "near": x + 0.5, "far": x + 1}
    return TestSet(
        title="Heights",
        noun="point",
        levels={
            name: Instances(x, truth(x), [f"{name}-{row}" for row in range(40)])
            for name, x in levels.items()
        },
        in_distribution="inside",
        lines=[SOURCE, SECOND_PASS, AUTO, VANILLA],
        batch_sizes=(8, 4),
        measure=lambda p, y: {"error": (p[:, 0] - y).abs(), "bias": p[:, 0] - y},
        columns=[Quantity("error", "m"), Quantity("bias", "m")],
        headline=["outside"],
        groups=[Group("outside", ["near", "far"]), Group("far, first", ["far"], part=range(10))],
        scores={"input": lambda network: lambda x: x[:, 0]},
        identity={"points": 40},
        memory=True,
    )


def items(path: Path) -> Iterator[Item]:
    for number, line in enumerate(path.read_text().splitlines()):
        try:
            yield Item(f"{path.name}:{number}", [float(part) for part in line.split()])
        except ValueError:
            yield Item(f"{path.name}:{number}", problem="this is no point")


READER = Reader("point", items, lambda _, values: torch.tensor(values), str, batch_size=8)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    folder = tmp_path_factory.mktemp("pipeline") / "experiment"
    train(problem(), folder, vanilla=True, progress=False)
    return train(problem(seed=1), folder, vanilla=True, progress=False)


@pytest.fixture(scope="module")
def evaluated(trained: Experiment) -> Evaluation:
    return evaluate(trained, points_to_test(), progress=False)


def test_training_again_changes_nothing_and_other_settings_are_refused(trained: Experiment) -> None:
    path = trained.folder / "0" / NETWORK
    before = path.read_bytes()
    again = train(problem(), trained.folder, progress=False)
    assert path.read_bytes() == before
    assert [one.seed for one in again.networks] == [0, 1]
    for other in (problem(epochs=5), problem(rows=300)):
        with pytest.raises(IT3Error, match="was made with other settings"):
            train(other, trained.folder, progress=False)
    assert path.read_bytes() == before


def test_a_training_that_is_killed_goes_on_to_the_same_bytes_from_the_same_weights(
    trained: Experiment, tmp_path: Path
) -> None:
    def killed(*_: Any) -> Any:
        raise KeyboardInterrupt

    def other(adapter: Any) -> nn.Module:
        torch.rand(1)
        return make(adapter)

    with pytest.raises(KeyboardInterrupt):
        train(replace(problem(), trials=killed), tmp_path, progress=False)
    with pytest.raises(IT3Error, match="not finished: start it again"):
        load(tmp_path, "heights", restore)
    with pytest.raises(IT3Error, match="begun from other first weights"):
        train(replace(problem(), make=other), tmp_path, progress=False)
    train(problem(), tmp_path, progress=False)
    again, once = (folder / "0" / NETWORK for folder in (tmp_path, trained.folder))
    assert again.read_bytes() == once.read_bytes()


def test_what_is_frozen_keeps_its_weights_and_statistics(tmp_path: Path) -> None:
    def deep(adapter: Any) -> nn.Module:
        layers = [nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU()]
        layers += [nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1)]
        return condition(nn.Sequential(*layers, adapter.rescale()), adapter, layer="3")

    def restored(settings: Json, adapter_json: Json) -> Restored:
        adapter = adapter_from(dict(adapter_json))
        return Restored(deep(adapter), adapter, ANSWERS)

    recipe = Recipe(2, 16, 1e-2, freeze_until="3", refresh=100)  # whose statistics are taken anew
    plain = replace(problem(), trials=None, extrapolation=None, make=deep, restore=restored)
    data = replace(read(400), seen=range(60))
    network = train(replace(plain, data=data, recipe=recipe), tmp_path, progress=False).first
    torch.manual_seed(recipe.seed)
    first = deep(data.adapter).state_dict()
    moved = {n for n, v in network.model.state_dict().items() if not torch.equal(v, first[n])}
    assert {"model.3.weight", "model.4.running_mean", "model.6.bias", "embed.weight"} <= moved
    assert not [name for name in moved if name.split(".")[1] in "012"]
    still = {n for n, p in network.model.named_parameters() if not p.requires_grad}
    assert still == {n for n, _ in network.model.named_parameters() if n.split(".")[1] in "012"}
    other = replace(plain, data=data, recipe=replace(recipe, freeze_until=None))
    with pytest.raises(IT3Error, match=r"recipe\.freeze_until was 3 and is None"):
        train(other, tmp_path, progress=False)


def test_an_evaluation_compares_every_line_for_every_seed(evaluated: Evaluation) -> None:
    cells = {(r["seed"], r["level"], r["method"], r["batch_size"]) for r in evaluated.records}
    assert len(cells) == 2 * 3 * (3 + 2)  # three lines once, auto at two sizes
    rows = {(r["level"], r["method"], r["batch_size"]): r for r in evaluated.rows}
    pooled = rows["outside", "source", None]
    each = [rows[level, "source", None]["error"] for level in ("near", "far")]
    assert pooled["error"] == pytest.approx(sum(each) / 2)
    assert pooled["n"] == 160
    some = rows["far, first", "source", None]
    far = [r["errors"] for r in evaluated.records if (r["level"], r["method"]) == ("far", "source")]
    assert some["n"] == 20
    assert some["error"] == pytest.approx(sum(sum(errors[:10]) for errors in far) / 20)
    assert {"means", "bias"} <= set(evaluated.records[0])
    answers = evaluated.answers
    assert len(answers) == 2 * 3 * 40
    assert set(answers["level"]) == {"inside", "near", "far"}
    first = answers[(answers["seed"] == 0) & (answers["name"] == "far-3")].iloc[0]
    assert first["error"] == pytest.approx(abs(first["initial"] - first["truth"]), abs=1e-3)
    scores = {one["score"]: one for one in evaluated.summary["scores"]}
    assert scores["input"]["auroc_shifted"] > 0.8
    assert evaluated.summary["memory"]["source"] == 1.0


def test_an_evaluation_is_read_again_and_its_page_needs_its_folder_alone(
    trained: Experiment,
    evaluated: Evaluation,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(evaluated.folder, moved)
    again = load_evaluation(moved)
    assert list(again.rows) == list(evaluated.rows)
    verbs.report(moved, out=tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    printed = capsys.readouterr().out + verbs._trained(trained, 0) + verbs._trained(trained, 1)
    words = page + printed
    assert "single rows: " in words
    # A person reads it: no calls of constructors, such as IT3(lr=0.001) or AnswerStep(alpha=1.0).
    assert not re.findall(rf"\b(?:{'|'.join(it3_core.__all__)})\(|\(\w+=", words)
    compared = "Compared: 4 methods on 120 points of 3 levels, in batches of 4, 8, with 2 trained"
    result = page.split("<h2>Result</h2>")[1].split("</section>")[0]
    assert compared in result
    assert "Inside (in distribution): the mean error is" in result
    for text in (
        "Heights",
        "How far to believe it",
        "coverage",
        "What adaptation does",
        "outside",
        "vanilla net",
        "finds shifted",
    ):
        assert text in page


DAMAGE: list[tuple[str, str, object, str]] = [
    ("evaluation.json", "title", None, "title should be a text"),
    ("evaluation.json", "columns", [], "is empty"),
    ("evaluation.json", "networks", [], "is empty"),
    ("evaluation.json", "networks", [{"seed": 0}], r"networks\[0\].history is missing"),
    (
        "evaluation.json",
        "groups",
        [["all", "outside", True, []]],
        r"groups\[0\]\[1\] should be a list",
    ),
    ("evaluation.json", "memory", {"source": [1]}, "memory.source should be a number"),
    ("answers.jsonl", "flagged", "yes", "flagged should be true or false"),
    ("records.jsonl", "means", [1.0], "means should be an object"),
]


@pytest.mark.parametrize(("file", "key", "value", "problem"), DAMAGE)
def test_a_damaged_evaluation_says_what_is_wrong_and_where(
    evaluated: Evaluation, tmp_path: Path, file: str, key: str, value: object, problem: str
) -> None:
    folder = shutil.copytree(evaluated.folder, tmp_path / "copy")
    first, *rest = (folder / file).read_text().split("\n" if file.endswith("l") else "\0")
    damaged = json.dumps(json.loads(first) | {key: value})
    (folder / file).write_text("\n".join([damaged, *rest]))
    with pytest.raises(IT3Error, match=problem) as caught:
        load_evaluation(folder)
    assert file in str(caught.value)
    (folder / file).unlink()
    (folder / file).symlink_to(evaluated.folder / file)
    with pytest.raises(IT3Error, match="is a link out of the folder"):
        load_evaluation(folder)


def test_another_evaluation_in_the_same_folder_is_refused(
    trained: Experiment, evaluated: Evaluation
) -> None:
    before = (evaluated.folder / "records.jsonl").read_bytes()
    with pytest.raises(IT3Error, match="other settings"):
        evaluate(trained, points_to_test(), only=["second pass"], progress=False)
    with pytest.raises(IT3Error, match="no method is called nothing"):
        evaluate(trained, points_to_test(), only=["nothing"], progress=False)
    assert (evaluated.folder / "records.jsonl").read_bytes() == before


def test_predictions_come_in_order_from_a_folder_that_was_moved(
    trained: Experiment, tmp_path: Path
) -> None:
    place = tmp_path / "moved"
    shutil.copytree(trained.folder, place)
    points = tmp_path / "points.txt"
    points.write_text("".join(f"{i / 20} 0.5\n" for i in range(19)) + "nonsense\n9 9\n")
    found = list(predict(load(place, "heights", restore), READER, [points]))
    assert [one.item.name for one in found] == [f"points.txt:{i}" for i in range(21)]
    assert found[19].problem == "this is no point"
    assert as_json(found[19]) == {"name": "points.txt:19", "problem": "this is no point"}
    keys = {"name", "prediction", "initial", "lower", "upper", "percentile", "flagged", "adapted"}
    assert set(as_json(found[0])) == keys
    assert found[0].interval["lower"] < found[0].values["prediction"] < found[0].interval["upper"]
    wide = next(iter(predict(trained, READER, [points], coverage=0.95)))
    assert wide.interval["upper"] > found[0].interval["upper"]
    with pytest.raises(IT3Error, match="calibration rows, and there are"):
        next(iter(predict(trained, READER, [points], coverage=0.9999)))
    assert found[20].flagged
    one = replace(found[20], values={"prediction": 2.0}, initial={"prediction": 3.0}, adapted=True)
    one = replace(one, interval={"lower": 1.0, "upper": 4.0})
    said = in_words("{prediction:.1f} m".format_map, one)
    assert said == (
        "points.txt:20: 2.0 m (1.0 m to 4.0 m) (before adaptation 3.0 m); percentile 100.0, unusual"
    )
    found[20].truth, found[20].solver = {"prediction": 0.0}, "exact"  # which is no missing truth
    assert as_json(found[20])["truth"] == 0.0
    assert gain_of({"gain": None}) < gain_of({"gain": -1.0})  # a candidate that failed comes last
    for adapt in ("instance", "batch", "online", "none"):
        assert len(list(predict(trained, READER, [points], adapt=adapt))) == 21


@pytest.mark.parametrize(
    ("task", "message"), [("other", "is the output of 'heights train'"), ("heights", "damaged")]
)
def test_a_folder_of_another_task_or_a_damaged_one_is_refused(
    trained: Experiment, tmp_path: Path, task: str, message: str
) -> None:
    place = tmp_path / "copy"
    shutil.copytree(trained.folder, place)
    (place / "0" / "history.json").write_text('{"train": 3}')
    with pytest.raises(IT3Error, match=message):
        load(place, task, restore)


@pytest.mark.parametrize("name", [f"0/{NETWORK}", "0/vanilla.safetensors", "1"])
def test_links_are_not_followed_out_of_the_folder(
    trained: Experiment, tmp_path: Path, name: str
) -> None:
    place, link = tmp_path / "copy", tmp_path / "link"
    shutil.copytree(trained.folder, place)
    link.symlink_to(place)
    assert len(load(link, "heights", restore).networks) == 2  # the folder itself may be one
    (place / name).rename(tmp_path / "elsewhere")
    (place / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(IT3Error, match=f"{name}.* is a link out of the folder"):
        load(link, "heights", restore)


def test_the_pipeline_names_no_task_and_its_tests_import_none() -> None:
    tests = Path(__file__).parent
    names = re.compile(r"\b(wings?|cars?|classify|ages?|roads?|tabular)\b", re.IGNORECASE)
    for path in (tests.parent / "src" / "it3_core" / "experiment").glob("*.py"):
        assert not names.findall(path.read_text(encoding="utf-8")), path
    for name in ("test_pipeline.py", "test_experiment.py", "conftest.py"):
        text = (tests / name).read_text(encoding="utf-8")
        assert not re.findall(r"^\s*(?:from|import) it3_(?!core\b)", text, re.MULTILINE), name
