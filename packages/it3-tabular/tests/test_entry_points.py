"""What a user calls: the import, the version and the command line, with good and bad input."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow
import pytest
from pyarrow import parquet

import it3_tabular
from it3_core import IT3Error
from it3_core.io.tensors import read_tensors, write_tensors
from it3_tabular import Full
from it3_tabular.__main__ import main
from it3_tabular.cli import MODEL


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def call(capfd, *arguments: object) -> tuple[int, str, str]:
    code = main([str(argument) for argument in arguments])
    shown = capfd.readouterr()
    return code, shown.out, shown.err


def refused(capfd, folder: Path, *arguments: object) -> str:
    """What the command says when it refuses: one line, exit code 2, and no file is changed."""

    def everything() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    before = everything()
    code, out, err = call(capfd, *arguments)
    assert code == 2, out + err
    assert err.count("\n") == 1
    assert everything() == before
    return err


def test_version_is_the_metadata_s() -> None:
    assert it3_tabular.__version__ == version("it3-tabular")
    done = run(str(Path(sys.executable).with_name("it3-tabular")), "--version")
    assert done.stdout == f"it3-tabular {it3_tabular.__version__}\n", done.stderr


def test_help_loads_neither_torch_nor_pandas() -> None:
    code = (
        "import sys; from it3_tabular.__main__ import main; main(['train', '--help']); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'pandas', 'pyarrow', 'sklearn')))"
    )
    assert run(sys.executable, "-c", code).returncode == 0


def test_without_the_extra_the_estimators_work_and_the_command_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('cyclopts', 'pandas', 'pyarrow', 'rich')))\n"
        "from it3_tabular import IT3Regressor, __main__, load_energy\n"
        "IT3Regressor(max_iter=1, adapt=None).fit(*load_energy()).predict(load_energy()[0])\n"
        "__main__.find_spec = sys.modules.get\n"
        "sys.exit(__main__.main(['--help']))"
    )
    done = run(sys.executable, "-c", code)
    assert done.returncode == 2, done.stderr
    assert 'pip install "it3-tabular[cli]"' in done.stderr
    assert done.stderr.count("\n") == 1


def test_bad_usage_exits_with_2(tmp_path, capfd) -> None:
    assert "no-such-command" in refused(capfd, tmp_path, "no-such-command")
    code, out, _ = call(capfd)
    assert (code, "Example: it3-tabular" in out) == (2, True)  # shows the help


def test_train_and_predict(table, trained, tmp_path, capfd) -> None:
    code, out, _ = call(capfd, "predict", trained, table, "--out", tmp_path / "p.csv", "--quiet")
    assert code == 0
    assert "128 rows" in out
    assert "columns not used: load" in out
    rows = pd.read_csv(tmp_path / "p.csv")
    fields = [name for name in Full._fields if name not in ("prediction_set", "probability")]
    assert [*rows] in (fields, [name for name in fields if name not in ("lower", "upper")])
    expected = it3_tabular.load(trained / MODEL).predict_full(
        pd.read_csv(table)[["height", "glazing", "compactness"]]
    )
    assert np.allclose(rows["prediction"], expected.prediction, rtol=1e-6)
    assert rows["flagged"].tolist() == expected.flagged.tolist()


def test_a_stream_goes_on_over_chunks(table, trained, tmp_path, monkeypatch) -> None:
    turned, common = tmp_path / "turned.csv", ["predict", str(trained), "--adapt", "online"]
    columns = ["compactness", "height", "glazing"]
    pd.read_csv(table)[columns].to_csv(turned, sep=";", index=False)
    for out, file, chunk in (("a", table, 10**6), ("b", table, 24), ("c", turned, 24)):
        monkeypatch.setattr("it3_tabular.tables.CHUNK", chunk)
        keep = [] if file == turned else ["--keep"]
        assert main([*common, *keep, str(file), "--out", str(tmp_path / f"{out}.csv")]) == 0
    fields = ["prediction", "initial", "percentile", "flagged", "adapted"]
    a, c = (pd.read_csv(tmp_path / name)[fields] for name in ("a.csv", "c.csv"))
    assert a["adapted"].tolist() == (a["prediction"] != a["initial"]).astype(int).tolist()
    assert np.allclose(a, c, rtol=1e-6)  # the order of columns does not matter
    text = (tmp_path / "a.csv").read_text()
    assert text == (tmp_path / "b.csv").read_text()
    assert text.startswith(
        "height,glazing,compactness,load,prediction,initial,percentile,flagged,adapted\n7.0,0.0,0.98,15.55,"
    )


def test_classes_and_parquet(energy, tmp_path, capfd) -> None:
    x, y = energy
    columns = {"height": [None if i % 7 == 0 else v for i, v in enumerate(x[:, 4])],
               "area": x[:, 1], "load": np.where(y > 20, "high", "low")}  # fmt: skip
    file, folder, out = (tmp_path / name for name in ("t.parquet", "run", "p.csv"))
    parquet.write_table(pyarrow.table(columns), file, row_group_size=100)
    arguments = ["train", file, "--target", "load", "--out", folder, "--epochs", 5, "--quiet"]
    assert "classes" in call(capfd, *arguments)[1]
    assert call(capfd, "predict", folder, file, "--out", out)[0] == 0
    rows = pd.read_csv(out)
    assert set(rows["prediction"]) <= {"high", "low"}
    assert len(rows) == 768


BAD_TRAINING = {
    "missing target column": ("a,b\n1,2\n", "has no column 'load'; it has 'a', 'b'"),
    "text column": ("town,load\nBern,1\n" * 1 + "Zug,2\n" * 20, "column 'town' of"),
    "all-NaN column": ("a,b,load\n" + "1,,2\n2,NA,3\n" * 10, "column 'b' of"),
    "one row": ("a,load\n1,2\n", "has 1 rows"),
    "constant target": ("a,load\n" + "1,2\n2,2\n" * 10, "is 2.0 in every row"),
    "empty file": ("", "is empty"),
    "no rows": ("a,load\n", "has 0 rows"),
    "huge": ("a,load\n1,2\ninf,3\n" + "1,2\n2,3\n" * 10, "'inf' in line 3"),
    "infinite target": ("a,load\n" + "1,2\n2,inf\n" * 10, "huge"),
    "missing target value": ("a,load\n1,2\n1,\n" + "1,2\n" * 10, "missing in line 3"),
    "ragged row": ("a,load\n1,2\n1,2,3\n", "line 3 of"),
    "short row": ("a,load\n1,2\n1\n", "line 3 of"),
    "same name twice": ("a,a,load\n1,2,3\n", "several columns called 'a'"),
    "numbers beyond squares": ("a,load\n" + "1,1e300\n2,3\n" * 10, "huge values"),
    "only the target": ("load\n1\n2\n", "0 columns besides"),
    "NUL": ("a,load\n" + "1,2\n2,3\n" * 9 + "\0,3\n", r"'\x00' in line 20"),
    "UTF-16": ("a,load\n1,2\n".encode("utf-16"), "no text in UTF-8"),
    "blank lines, quoted newlines": ('a,load\n\n"1\n",2\n\nx,3\n', "'x' in line 6"),
    "control characters": ("a\x1b[2J,load\n" + "\x1b,2\n" * 20, r"'a\x1b[2J'"),
    "a cell too long": ("a,load\n" + "1,2\n2,3\n" * 9 + "x" * 200_000 + ",3\n", "field limit"),
    "no Parquet": ("a,load\n1,2\n", "no Parquet file"),
    "a million columns": (",".join(map(str, range(10**6))) + ",load\n", "1 to 20,000"),
}


@pytest.mark.parametrize("case", BAD_TRAINING)
def test_bad_training_data_is_refused(case, tmp_path, capfd) -> None:
    text, message = BAD_TRAINING[case]
    file = tmp_path / ("t.parquet" if case == "no Parquet" else "t.csv")
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    arguments = ("--target", "load", "--out", tmp_path / "run", "--quiet")
    assert message in refused(capfd, tmp_path, "train", file, *arguments)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [("height,glass,compactness\n1,2,3\n", "lacks 'glazing', which the model was trained on; it "),
     ("height,glazing,compactness\n7,inf,1\n", "'inf' in line 2"),
     ("height,glazing,compactness\n7,x,1\n", "'x' in line 2"),
     ("height,glazing,compactness\n", "has a header but no rows")],
)  # fmt: skip
def test_bad_rows_to_predict_are_refused(text, message, trained, tmp_path, capfd) -> None:
    (tmp_path / "t.csv").write_text(text)
    arguments = ("predict", trained, tmp_path / "t.csv", "--out", tmp_path / "p.csv")
    assert message in refused(capfd, tmp_path, *arguments)
    (tmp_path / "t.csv").write_text("height,glazing,compactness\n7,0.1,\n")
    assert call(capfd, *arguments)[0] == 0  # one row is enough


@pytest.mark.parametrize(
    ("key", "value"),
    [("settings.history", ...), ("settings.history.train", 1), ("settings.columns", ["a"]),
     ("settings.parameters.max_iter", []), ("settings.parameters.unknown", 1),
     ("settings.parameters.hidden_layer_sizes", [10**9]), ("settings.classes", {"a": 1}),
     ("settings.validation_error", "low"), ("settings.estimator", "IT3Classifier"),
     ("trust", None), ("trust.size", []), ("trust.quantiles", [[0.0], [1.0]]),
     ("tuning", ...), ("tuning", None), ("adapter", []), ("adapter.std", {})],
)  # fmt: skip
def test_wrong_json_in_a_model_is_refused(key, value, table, trained, tmp_path, capfd) -> None:
    stored = read_tensors(trained / MODEL, kind="checkpoint", metadata=dict)
    *folders, last = key.split(".")
    part = stored.metadata
    for name in folders:
        part = part[name]
    part.pop(last, None)
    if value is not ...:
        part[last] = value
    write_tensors(trained / MODEL, stored.tensors, stored.metadata, kind="checkpoint")
    refused(capfd, tmp_path, "predict", trained, table, "--out", tmp_path / "p.csv")


@pytest.mark.parametrize(
    ("out", "message"),
    [("run/model.safetensors", "the input"), ("run/p.csv", "part of the experiment"),
     ("energy.csv", "the input"), ("mine.csv", "--overwrite"), ("nowhere/p.csv", "no folder"),
     ("own", "is a folder"), ("alias.csv", "the input"), ("link.csv", "is a link")],
)  # fmt: skip
def test_what_predict_must_not_replace(out, message, table, trained, tmp_path, capfd) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "mine.csv").write_text("mine")
    (tmp_path / "alias.csv").symlink_to(table)
    (tmp_path / "link.csv").symlink_to(tmp_path / "mine.csv")
    arguments = ("predict", trained, table, "--out", tmp_path / out)
    assert message in refused(capfd, tmp_path, *arguments)
    if out == "mine.csv":
        assert call(capfd, *arguments, "--overwrite")[0] == 0
    else:
        refused(capfd, tmp_path, *arguments, "--overwrite")


def test_what_train_must_not_replace(table, trained, tmp_path, capfd) -> None:
    def training(target: str = "load", out: Path = trained, seed: int = 0) -> list[object]:
        options = ["--target", target, "--out", out, "--seed", seed, "--epochs", 5, "--quiet"]
        return ["train", table, *options]

    assert "target was load" in refused(capfd, tmp_path, *training("glazing"))
    refused(capfd, tmp_path, *training(seed=1))
    assert call(capfd, *training())[0] == 0  # the same again
    assert call(capfd, *training(seed=1), "--overwrite")[0] == 0
    marker = '{"task": "wings train", "settings": {}, "files": {}}'
    for name, text in (("it3-output.json", marker), ("notes.txt", "mine")):
        folder = tmp_path / Path(name).stem
        folder.mkdir()
        (folder / name).write_text(text)
        refused(capfd, tmp_path, *training(out=folder), "--overwrite")
    refused(capfd, tmp_path, *training(out=table))
    (trained / MODEL).rename(tmp_path / "elsewhere")
    (trained / MODEL).symlink_to(tmp_path / "elsewhere")
    assert "is a link" in refused(capfd, tmp_path, *training(seed=1))
    predict = ("predict", trained, table, "--out", tmp_path / "p.csv")
    assert "is a link out of the folder" in refused(capfd, tmp_path, *predict)
    with pytest.raises(IT3Error, match="is a link"):
        it3_tabular.load(trained / MODEL).save(trained / MODEL)


def test_evaluate_writes_records_table_and_pictures(energy, tmp_path, capfd, monkeypatch) -> None:
    x, y = energy
    folder, results = tmp_path / "uci" / "energy", tmp_path / "results"
    folder.mkdir(parents=True)
    np.savetxt(folder / "data.txt", np.column_stack([x, y]))
    np.savetxt(folder / "index_features.txt", np.arange(8), fmt="%d")
    np.savetxt(folder / "index_target.txt", [8], fmt="%d")
    for split in range(2):
        np.savetxt(folder / f"index_train_{split}.txt", np.arange(split, 768, 4), fmt="%d")
        np.savetxt(folder / f"index_test_{split}.txt", np.arange(2 + split, 80, 4), fmt="%d")

    def evaluating(out: Path = results, sets: str = "energy", epochs: int = 3) -> list[object]:
        return ["evaluate", "--sets", sets, "--epochs", epochs, "--quiet", "--out", out]

    monkeypatch.delenv("IT3_DATA", raising=False)
    assert "IT3_DATA" in refused(capfd, tmp_path, *evaluating())
    monkeypatch.setenv("IT3_DATA", str(tmp_path))
    assert "there is no folder" in refused(capfd, tmp_path, *evaluating(sets="nothing"))
    assert "the input" in refused(capfd, tmp_path, *evaluating(folder / "results"))
    assert "share an output" in refused(capfd, tmp_path, *evaluating(sets="energy,./energy"))
    assert not results.exists()
    code, first, err = call(capfd, *evaluating())
    assert code == 0, err
    for name in ("energy.jsonl", "energy-trust.jsonl", "table.md", "energy-boxes.png"):
        assert (results / name).stat().st_size > 100
    for method in ("vanilla", "second pass", "IT³ (paper)", "online IT³ (paper)", "ActMAD", "auto"):
        assert f"| {method} |" in first
    trust = results / "energy-trust.jsonl"
    trust.write_bytes(trust.read_bytes()[:-20])  # a kill: the last split is measured again
    code, again, _ = call(capfd, *evaluating())
    assert (code, again) == (0, first)
    assert "epochs was 3" in refused(capfd, tmp_path, *evaluating(epochs=4))
    (results / "table.md").write_text("mine now")
    assert "somebody else" in refused(capfd, tmp_path, *evaluating())
    (results / "table.md").unlink()
    trust.write_text('{"seed": [], "level": "clean"}\n')
    assert "energy-trust.jsonl is damaged" in refused(capfd, tmp_path, *evaluating())
