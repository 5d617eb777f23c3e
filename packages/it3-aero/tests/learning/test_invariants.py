"""What must hold whatever the numbers are."""

from __future__ import annotations

import warnings
from importlib import import_module
from pathlib import Path

import pytest
import torch

from it3_aero.cars.task import CARS
from it3_aero.learning import NetworkSettings, fitting
from it3_aero.learning import model as model_module
from it3_aero.learning.evaluate import Evaluation
from it3_aero.learning.model import Training, train_vanilla
from it3_aero.learning.predict import Adapt, answer
from it3_aero.learning.runs import Run
from it3_aero.learning.shapes import Levels, Shapes
from it3_aero.learning.task import Later, Task
from it3_aero.wings import naca
from it3_aero.wings.baselines import gaussian_process
from it3_aero.wings.model import SHIFTS, load_run, train
from it3_aero.wings.network import OutlineTrunk, build
from it3_aero.wings.task import PRESETS, WINGS
from it3_core import IT3, Regression, Source, sensitivity
from it3_core.checkpoint import load, save


def test_presets_are_the_papers_network() -> None:
    assert {name: recipe.network.layers for name, recipe in PRESETS.items()} == {
        "small": 25,
        "paper": 25,
    }
    assert PRESETS["paper"].network.channels == 64


@pytest.mark.parametrize("task", [WINGS, CARS], ids=["wings", "cars"])
def test_what_a_task_imports_later_is_there(task: Task) -> None:
    later = [part for part in vars(task).values() if isinstance(part, Later)]
    assert len(later) >= 4
    for part in later:
        assert callable(getattr(import_module(part.module), part.name))


@pytest.mark.parametrize("entrance", ["head", "nodes"])
def test_untrained_network_ignores_the_signal(entrance: str) -> None:
    adapter, x = Regression(30.0, 10.0), torch.rand(3, 20, 2)
    settings = NetworkSettings(layers=2, channels=4, entrance=entrance)  # type: ignore[arg-type]
    net = build(settings, adapter)
    told = adapter.encode(torch.tensor([[10.0], [20.0], [60.0]]))
    assert torch.equal(net(x, adapter.neutral(x)), net(x, told))


def test_where_the_ring_begins_does_not_matter(tiny: NetworkSettings) -> None:
    torch.manual_seed(0)
    trunk = OutlineTrunk(NetworkSettings(layers=4, channels=6, stride=1)).double()
    x = torch.rand(2, 30, 2, dtype=torch.double)
    torch.testing.assert_close(trunk(x.roll(7, 1)), trunk(x))


def test_batch_order_does_not_matter(run: Run, levels: Levels) -> None:
    x = levels.test["far"].x[:8]
    order = torch.randperm(8, generator=torch.Generator().manual_seed(0))
    source = Source(run.model, run.adapter)
    torch.testing.assert_close(source(x[order]).prediction, source(x).prediction[order])


def test_every_shape_on_its_own_is_what_a_loop_gives(run: Run, levels: Levels) -> None:
    x = levels.test["far"].x[:5]
    together = IT3(run.model, run.adapter, lr=1e-3, per_instance=True, trust_region=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it says so where it can't map over rows
        got = together(x).prediction
    alone = IT3(run.model, run.adapter, lr=1e-3, trust_region=False)
    wanted = torch.cat([alone(x[row : row + 1]).prediction for row in range(5)])
    assert not torch.allclose(got, Source(run.model, run.adapter)(x).prediction, atol=1e-3)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


def test_cheap_mode_runs_the_gmm_layers_once(
    run: Run, levels: Levels, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = []
    plain = OutlineTrunk.forward

    def counted(self: OutlineTrunk, pos: torch.Tensor) -> torch.Tensor:
        passes.append(1)
        return plain(self, pos)

    monkeypatch.setattr(OutlineTrunk, "forward", counted)
    counts = {}
    for name, method in {
        "cheap": IT3(run.model, run.adapter, parameters="above"),
        "paper": IT3(run.model, run.adapter, anchor_gradient=True),
    }.items():
        method(levels.test["far"].x[:4])  # the first time it proves to itself that sharing is right
        passes.clear()
        method(levels.test["far"].x[:4])
        counts[name] = len(passes)
    assert counts == {"cheap": 1, "paper": 2}


def test_network_has_learnt_and_listens(run: Run, levels: Levels) -> None:
    spread = float((levels.train.y - levels.train.y.mean()).abs().mean())
    assert run.settings["held_out_error"] < 0.6 * spread
    assert sensitivity(run.model, run.adapter, levels.train.x) > 1e-3


def test_a_loaded_run_is_the_run(run: Run, levels: Levels) -> None:
    again, x = load_run(run.folder), levels.test["near"].x
    assert torch.equal(
        Source(again.model, again.adapter)(x).prediction,
        Source(run.model, run.adapter)(x).prediction,
    )
    assert again.tuning.describe() == run.tuning.describe()
    assert again.trust.describe() == run.trust.describe()
    assert again.activations.layers == run.activations.layers
    assert len(again.history["train"]) == 60
    assert again.card == {"n": 160}


def test_killed_training_goes_on(
    tiny: NetworkSettings, levels: Levels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class KilledError(Exception):
        pass

    def killed(*args: object, **kwargs: object) -> None:
        raise KilledError

    training = Training(epochs=4, network=tiny)
    run = train(levels.train, tmp_path / "whole", training, progress=False)
    with monkeypatch.context() as patched:
        patched.setattr(model_module, "tune", killed)  # trained, but nothing was written down
        with pytest.raises(KilledError):
            train(levels.train, tmp_path / "killed", training, progress=False)
    assert not (tmp_path / "killed" / "model.safetensors").exists()

    def must_not(*args: object, **kwargs: object) -> None:
        raise AssertionError("it was trained already")

    monkeypatch.setattr(torch.optim.Adam, "step", must_not)
    again = train(levels.train, tmp_path / "killed", training, progress=False)
    x = levels.test["near"].x
    assert torch.equal(
        Source(again.model, again.adapter)(x).prediction,
        Source(run.model, run.adapter)(x).prediction,
    )


def test_finished_training_is_not_done_again(
    copy_of_run: Path, levels: Levels, tiny: NetworkSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = (copy_of_run / "model.safetensors").read_bytes()
    monkeypatch.setattr(fitting, "fit", None)
    training = Training(epochs=60, network=tiny)
    train(levels.train, copy_of_run, training, progress=False)
    assert (copy_of_run / "model.safetensors").read_bytes() == written
    with pytest.raises(TypeError):  # other labels are another training
        train(Shapes(levels.train.x, levels.train.y + 1, levels.train.names), copy_of_run, training)


def test_a_run_from_before_there_were_cars_is_one_of_wings(
    copy_of_run: Path, levels: Levels, tiny: NetworkSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = load(copy_of_run / "model.safetensors")
    model = found.restore(build(tiny, Regression()))
    settings = {name: value for name, value in found.settings.items() if name != "task"}
    save(
        *(copy_of_run / "model.safetensors", model),
        adapter=found.adapter,
        settings=settings,
        trust=found.trust,
        tuning=found.tuning,
        tensors=found.tensors,
    )
    assert "task" not in load_run(copy_of_run).settings
    monkeypatch.setattr(fitting, "fit", None)  # it is finished, so nothing is fitted
    again = train(levels.train, copy_of_run, Training(epochs=60, network=tiny), progress=False)
    assert again.folder == copy_of_run


def test_another_seed_is_trained_like_the_first(run: Run, tiny: NetworkSettings) -> None:
    told = Training.of({**run.settings, "second": 0.25}, seed=5)
    assert told.recipe(WINGS).second == 0.25
    assert (told.seed, told.epochs, told.network) == (5, 60, tiny)
    before = {name: value for name, value in run.settings.items() if name != "second"}
    assert Training.of(before, seed=5).recipe(WINGS).second == WINGS.recipe("small").second


def test_vanilla_net_never_saw_a_signal(copy_of_run: Path, levels: Levels) -> None:
    run = load_run(copy_of_run)
    vanilla = train_vanilla(run, levels.train, progress=False)
    assert sensitivity(vanilla, run.adapter, levels.train.x) == 0.0
    again = train_vanilla(run, levels.train, progress=False)
    assert torch.equal(
        Source(again, run.adapter)(levels.train.x).prediction,
        Source(vanilla, run.adapter)(levels.train.x).prediction,
    )


def test_shifts_are_small_and_repeatable(made_up: Shapes) -> None:
    for shift in SHIFTS.values():
        first = shift(made_up.x, generator=torch.Generator().manual_seed(1))
        second = shift(made_up.x, generator=torch.Generator().manual_seed(1))
        assert torch.equal(first, second)
        assert 0 < float((first - made_up.x).abs().max()) < 0.1


@pytest.mark.parametrize("adapt", ["auto", "instance", "batch", "none"])
def test_no_way_of_adapting_changes_the_first_answer(run: Run, adapt: Adapt) -> None:
    shapes = [naca("2412"), naca("4415"), naca("6409")]
    plain = [one.before for one in answer(run, shapes, "none")]
    found = answer(run, shapes, adapt)
    assert [one.before for one in found] == pytest.approx(plain, rel=1e-5)
    if adapt == "none":
        assert [one.after for one in found] == plain


def test_evaluation_has_every_line_and_pairs_them(evaluation: Evaluation) -> None:
    names = {record["method"] for record in evaluation.records}
    assert names == {
        "source", "second pass", "vanilla net", "ActMAD", "IT³ paper", "IT³ cheap", "IT³ auto",
        "online IT³", "Gaussian process",
    }  # fmt: skip
    for record in evaluation.records:
        assert record["problem"] is None
        assert len(record["errors"]) == record["n"] == 12
    stored = (evaluation.folder / "records.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(stored) == len(evaluation.records)
    for name in ("boxes.png", "differences.png", "errors.png", "table.md", "summary.json"):
        assert (evaluation.folder / name).stat().st_size > 500


def test_stream_is_sorted_by_label(levels: Levels) -> None:
    labels = torch.cat([shapes.y for shapes in levels.drawn(12).test.values()])
    assert torch.equal(labels, labels.sort().values)


def test_test_shapes_are_not_trained_on(levels: Levels) -> None:
    trained = set(levels.train.names)
    for shapes in levels.test.values():
        assert not trained & set(shapes.names)


def test_gaussian_process_interpolates(levels: Levels) -> None:
    tested = list(levels.test.values())
    process = gaussian_process(levels.train, tested)
    within = tested[0]
    assert float((process(within.x).flatten() - within.y).abs().mean()) < 0.5
