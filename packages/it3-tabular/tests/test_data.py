"""Loaders: real layouts are read, and what is wrong with a file is said in one sentence."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from it3_core import IT3Error
from it3_tabular import load_boston, load_energy, load_uci
from it3_tabular.tables import read_chunks, read_table

UCI_FILES = {
    "data": "1 2 3\n4 5 6\n7 8 9\n\n",
    "index_features": "0\n1\n",
    "index_target": "2\n",
    "index_train_0": "0\n2\n",
    "index_test_0": "1\n",
}


def uci(folder, **changes):
    for name, text in (UCI_FILES | changes).items():
        if text is not None:
            (folder / f"{name}.txt").write_text(text)
    return folder


def test_energy_is_the_published_set() -> None:
    x, y = load_energy()
    assert x.shape == (768, 8)
    assert (y.min(), y.max()) == (6.01, 43.1)
    assert x[0].tolist() == [0.98, 514.5, 294.0, 110.25, 7.0, 2.0, 0.0, 0.0]


def test_a_uci_folder_with_its_splits(tmp_path) -> None:
    x, y, x_test, y_test = load_uci(uci(tmp_path)).split(0)
    assert x.tolist() == [[1, 2], [7, 8]]
    assert (y.tolist(), x_test.tolist(), y_test.tolist()) == ([3, 9], [[4, 5]], [6])
    with pytest.raises(IT3Error, match="splits 0 to 0, not 1"):
        load_uci(tmp_path).split(1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": None}, "can't read"),
        ({"data": "1 x\n"}, "no table of numbers"),
        ({"data": ""}, "is empty"),
        ({"index_features": "0\n7\n"}, "columns from 0 to 2"),
        ({"index_target": "1\n2\n"}, "2 columns instead of one"),
        ({"index_train_0": None}, "no split to use"),
        ({"index_test_0": "0\n"}, "tests on rows that it trains on"),
    ],
)
def test_broken_uci_folders(tmp_path, changes, message) -> None:
    with pytest.raises(IT3Error, match=message):
        load_uci(uci(tmp_path, **changes))


def test_boston_comes_from_a_folder_or_when_asked_from_openml(tmp_path, monkeypatch) -> None:
    assert load_boston(uci(tmp_path))[1].tolist() == [3, 6, 9]
    given = SimpleNamespace(data=np.ones((2, 13)), target=np.array(["24.0", "21.6"]))
    monkeypatch.setattr("sklearn.datasets.fetch_openml", lambda **_: given)
    assert load_boston(openml=True)[1].tolist() == [24.0, 21.6]

    def fail(**_):
        raise OSError("no network")

    monkeypatch.setattr("sklearn.datasets.fetch_openml", fail)
    with pytest.raises(IT3Error, match="no network"):
        load_boston(openml=True)


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_tables_in_the_wild(tmp_path, delimiter) -> None:
    file = tmp_path / "t.csv"
    rows = ["\ufeffa, b c ,y", '1,"2.5",3', "", " 4 ,?,6", "N/A,-1e3, 9"]
    file.write_text("\r\n".join(rows).replace(",", delimiter), encoding="utf-8")
    table = read_table(file, "y")
    assert table.names == ("a", "b c")
    assert np.array_equal(table.x, [[1, 2.5], [4, np.nan], [np.nan, -1000]], equal_nan=True)
    assert table.y.tolist() == [3, 6, 9]


def test_chunks_hold_no_more_than_asked(tmp_path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("a,b\n" + "1,2\n" * 1000)
    sizes = [chunk.rows for chunk in read_chunks(file, 300)]
    assert sizes == [300, 300, 300, 100]
    assert [chunk.lines[0] for chunk in read_chunks(file, 300)] == [2, 302, 602, 902]


def test_what_is_no_text_or_no_parquet(tmp_path) -> None:
    (tmp_path / "t.csv").write_bytes(b"a,b\n\xff\xfe,1\n")
    with pytest.raises(IT3Error, match="no text in UTF-8"):
        read_table(tmp_path / "t.csv", "b")
    (tmp_path / "t.parquet").write_text("a,b\n1,2\n")
    with pytest.raises(IT3Error, match="no Parquet file"):
        read_table(tmp_path / "t.parquet", "b")


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(IT3Error, match=r"it3-tabular\[parquet\]"):
        read_table(tmp_path / "t.parquet", "b")
