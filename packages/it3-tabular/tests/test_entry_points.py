"""What a user calls: the import, the version and the command line, with good and bad input."""

import csv
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

import it3_tabular
from it3_tabular.__main__ import main
from it3_tabular.commands import MODEL


def run(command: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=120, check=False
    )


def call(capfd, *arguments: object) -> tuple[int, str, str]:
    code = main([str(argument) for argument in arguments])
    shown = capfd.readouterr()
    return code, shown.out, shown.err


@pytest.fixture
def trained(table, tmp_path) -> Path:
    assert main(["train", str(table), "--target", "load", "--out", str(tmp_path / "run"),
                 "--epochs", "5", "--quiet"]) == 0  # fmt: skip
    return tmp_path / "run"


def test_version_is_the_metadata_s() -> None:
    assert it3_tabular.__version__ == version("it3-tabular")


def test_the_script_is_there() -> None:
    done = run([str(Path(sys.executable).with_name("it3-tabular"))], "--version")
    assert done.stdout == f"it3-tabular {it3_tabular.__version__}\n", done.stderr


def test_bad_usage_exits_with_2() -> None:
    done = run([sys.executable, "-m", "it3_tabular"], "no-such-command")
    assert done.returncode == 2
    assert "no-such-command" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", [[], ["demo"], ["train"], ["predict"], ["evaluate"]])
def test_help_teaches(capfd, command) -> None:
    code, out, _ = call(capfd, *command, "--help")
    assert code == 0
    assert "it3-tabular" in out
    assert len(out) > 300


def test_without_arguments_it_helps(capfd) -> None:
    code, out, _ = call(capfd)
    assert code == 0
    assert "demo" in out


def test_train_and_predict(table, trained, tmp_path, capfd) -> None:
    code, out, _ = call(capfd, "predict", trained, table, "--out", tmp_path / "p.csv", "--quiet")
    assert code == 0
    assert "128 rows" in out
    assert "ignored: load" in out
    with (tmp_path / "p.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["prediction", "before", "error", "flag"]
    assert len(rows) == 128
    model = it3_tabular.load(trained / MODEL)
    x = np.genfromtxt(table, delimiter=",", skip_header=1)[:, :3]
    expected = model.predict_detailed(pd_frame(x))
    assert np.allclose([float(row["prediction"]) for row in rows], expected.after, rtol=1e-6)
    assert [int(row["flag"]) for row in rows] == expected.flag.astype(int).tolist()


def pd_frame(x: np.ndarray):
    import pandas as pd

    return pd.DataFrame(x, columns=["height", "glazing", "compactness"])


def test_order_of_columns_and_chunks_don_t_matter(table, trained, tmp_path, monkeypatch) -> None:
    with table.open() as file:
        rows = list(csv.DictReader(file))
    turned = tmp_path / "turned.csv"
    with turned.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["compactness", "height", "glazing"],
                                extrasaction="ignore", delimiter=";")  # fmt: skip
        writer.writeheader()
        writer.writerows(rows)
    assert main(["predict", str(trained), str(table), "--out", str(tmp_path / "a.csv")]) == 0
    monkeypatch.setattr("it3_tabular.commands.CHUNK", 24)
    assert main(["predict", str(trained), str(turned), "--out", str(tmp_path / "b.csv")]) == 0
    first, second = (np.genfromtxt(tmp_path / name, delimiter=",", skip_header=1)
                     for name in ("a.csv", "b.csv"))  # fmt: skip
    assert np.allclose(first, second, rtol=1e-6)


def test_a_stream_goes_on_over_chunks(table, trained, tmp_path, monkeypatch) -> None:
    common = ["predict", str(trained), str(table), "--adapt", "online", "--out"]
    assert main([*common, str(tmp_path / "a.csv")]) == 0
    monkeypatch.setattr("it3_tabular.commands.CHUNK", 24)
    assert main([*common, str(tmp_path / "b.csv")]) == 0
    assert (tmp_path / "a.csv").read_text() == (tmp_path / "b.csv").read_text()


def test_keep_copies_the_columns(table, trained, tmp_path) -> None:
    out = tmp_path / "p.csv"
    assert main(["predict", str(trained), str(table), "--out", str(out), "--keep"]) == 0
    assert out.read_text().startswith(
        "height,glazing,compactness,load,prediction,before,error,flag\n7.0,0.0,0.98,15.55,"
    )


def test_classes_and_parquet(energy, tmp_path, capfd) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    x, y = energy
    columns = {"height": [None if i % 7 == 0 else v for i, v in enumerate(x[:, 4])],
               "area": x[:, 1], "load": np.where(y > 20, "high", "low")}  # fmt: skip
    parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    code, out, _ = call(capfd, "train", tmp_path / "t.parquet", "--target", "load", "--out",
                        tmp_path / "run", "--epochs", 5, "--quiet")  # fmt: skip
    assert code == 0
    assert "classes" in out
    assert main(["predict", str(tmp_path / "run"), str(tmp_path / "t.parquet"),
                 "--out", str(tmp_path / "p.csv")]) == 0  # fmt: skip
    with (tmp_path / "p.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["prediction"] for row in rows} <= {"high", "low"}
    assert len(rows) == 768


BAD_TRAINING = {
    "missing target column": ("a,b\n1,2\n", "has no column 'load'; it has 'a', 'b'"),
    "text column": ("town,load\nBern,1\n" * 1 + "Zug,2\n" * 20, "column 'town' of"),
    "all-NaN column": ("a,b,load\n" + "1,,2\n2,NA,3\n" * 10, "column 'b' of"),
    "one row": ("a,load\n1,2\n", "has one row"),
    "constant target": ("a,load\n" + "1,2\n2,2\n" * 10, "is 2.0 in every row"),
    "empty file": ("", "is empty"),
    "no rows": ("a,load\n", "has a header but no rows"),
    "infinities": ("a,load\n1,2\ninf,3\n" + "1,2\n2,3\n" * 10, "is infinite in line 3"),
    "infinite target": ("a,load\n" + "1,2\n2,inf\n" * 10, "infinities"),
    "missing target value": ("a,load\n1,2\n1,\n" + "1,2\n" * 10, "missing in line 3"),
    "ragged row": ("a,load\n1,2\n1,2,3\n", "line 3 of"),
    "same name twice": ("a,a,load\n1,2,3\n", "several columns called 'a'"),
    "only the target": ("load\n1\n2\n", "no column besides"),
}


@pytest.mark.parametrize("case", BAD_TRAINING)
def test_bad_training_data_gets_one_line_and_2(case, tmp_path, capfd) -> None:
    text, message = BAD_TRAINING[case]
    (tmp_path / "t.csv").write_text(text)
    code, out, err = call(capfd, "train", tmp_path / "t.csv", "--target", "load",
                          "--out", tmp_path / "run", "--quiet")  # fmt: skip
    assert code == 2, out + err
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_different_columns_at_predict_are_named(trained, tmp_path, capfd) -> None:
    (tmp_path / "t.csv").write_text("height,glass,compactness\n1,2,3\n")
    code, _, err = call(capfd, "predict", trained, tmp_path / "t.csv", "--out", tmp_path / "p.csv")
    assert code == 2
    assert "lacks 'glazing'" in err
    assert "it has 'glass'" in err
    assert not (tmp_path / "p.csv").exists()


@pytest.mark.parametrize("damage", ["cut", "flipped", "text", "absent"])
def test_a_corrupted_model_gets_one_line_and_2(damage, table, trained, tmp_path, capfd) -> None:
    file = trained / MODEL
    content = bytearray(file.read_bytes())
    if damage == "cut":
        file.write_bytes(content[: len(content) // 2])
    elif damage == "flipped":
        content[-20] ^= 0xFF
        file.write_bytes(content)
    elif damage == "text":
        file.write_text("not a model")
    else:
        file.unlink()
    code, _, err = call(capfd, "predict", trained, table, "--out", tmp_path / "p.csv")
    assert code == 2, err
    assert err.count("\n") == 1
    assert not (tmp_path / "p.csv").exists()


def test_one_row_can_be_predicted_and_errors_leave_no_file(trained, tmp_path, capfd) -> None:
    file, out = tmp_path / "t.csv", tmp_path / "p.csv"
    file.write_text("height,glazing,compactness\n7,0.1,\n")
    assert call(capfd, "predict", trained, file, "--out", out)[0] == 0
    out.unlink()
    for row, message in (("7,inf,1", "is infinite in line 2"), ("7,x,1", "is text ('x' in line 2)"),
                         ("", "has a header but no rows")):  # fmt: skip
        file.write_text(f"height,glazing,compactness\n{row}\n")
        code, _, err = call(capfd, "predict", trained, file, "--out", out)
        assert code == 2
        assert message in err
    assert {path.name for path in tmp_path.iterdir()} == {"energy.csv", "run", "t.csv"}


def test_evaluate_needs_data(tmp_path, capfd, monkeypatch) -> None:
    monkeypatch.delenv("IT3_DATA", raising=False)
    code, _, err = call(capfd, "evaluate", "--out", tmp_path / "r")
    assert code == 2
    assert "IT3_DATA" in err
    code, _, err = call(capfd, "evaluate", "--out", tmp_path / "r", "--data", tmp_path)
    assert code == 2
    assert "is no folder" in err


def test_evaluate_writes_records_table_and_pictures(energy, tmp_path, capfd) -> None:
    pytest.importorskip("matplotlib")
    x, y = energy
    folder = tmp_path / "energy"
    folder.mkdir()
    np.savetxt(folder / "data.txt", np.column_stack([x, y]))
    np.savetxt(folder / "index_features.txt", np.arange(8), fmt="%d")
    np.savetxt(folder / "index_target.txt", [8], fmt="%d")
    for split in range(2):
        np.savetxt(folder / f"index_train_{split}.txt", np.arange(split, 768, 4), fmt="%d")
        np.savetxt(folder / f"index_test_{split}.txt", np.arange(2 + split, 80, 4), fmt="%d")
    arguments = ["evaluate", "--data", tmp_path, "--sets", "energy", "--out", tmp_path / "results",
                 "--epochs", 3, "--quiet"]  # fmt: skip
    code, first, err = call(capfd, *arguments)
    assert code == 0, err
    for name in ("energy.jsonl", "energy-trust.jsonl", "table.md", "energy-boxes.png"):
        assert (tmp_path / "results" / name).stat().st_size > 100
    for method in ("vanilla", "second pass", "IT³, batch 1", "online IT³", "ActMAD", "auto"):
        assert f"| {method}" in first
    code, again, _ = call(capfd, *arguments)  # finished: nothing is measured again
    assert code == 0
    assert again == first
