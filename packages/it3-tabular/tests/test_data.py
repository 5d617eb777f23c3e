"""Loaders: real layouts are read, and what is wrong with a file is said in one sentence."""

import os

import numpy as np
import pytest

from it3_core import IT3Error
from it3_tabular import load_uci
from it3_tabular.tables import read_table

UCI_FILES = {"data": "1 2 3\n4 5 6\n7 8 9\n\n", "index_features": "0\n1\n", "index_target": "2\n",
             "index_train_0": "0\n2\n", "index_test_0": "1\n"}  # fmt: skip


def uci(folder, **changes):
    for name, text in (UCI_FILES | changes).items():
        if text is not None:
            (folder / f"{name}.txt").write_text(text)
    return folder


def test_a_uci_folder_with_its_splits(tmp_path) -> None:
    x, y, x_test, y_test = load_uci(uci(tmp_path)).split(0)
    assert x.tolist() == [[1, 2], [7, 8]]
    assert (y.tolist(), x_test.tolist(), y_test.tolist()) == ([3, 9], [[4, 5]], [6])
    (tmp_path / "data.txt").unlink()
    os.mkfifo(tmp_path / "data.txt")  # it would be waited for
    with pytest.raises(IT3Error, match="is not a file"):
        load_uci(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": None}, "can't read"),
        ({"data": "1 x\n"}, "no table of numbers"),
        ({"data": ""}, "is empty"),
        ({"data": "1 2 nan\n"}, "NaN"),
        ({"index_features": "0\n7\n"}, "columns from 0 to 2"),
        ({"index_target": "1\n2\n"}, "2 columns instead of one"),
        ({"index_train_0": None}, "no split to use"),
        ({"index_test_0": "0\n"}, "tests on rows that it trains on"),
    ],
)
def test_broken_uci_folders(tmp_path, changes, message) -> None:
    with pytest.raises(IT3Error, match=message):
        load_uci(uci(tmp_path, **changes))


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_tables_in_the_wild(tmp_path, delimiter) -> None:
    file = tmp_path / "t.csv"
    rows = ["\ufeffa, b c ,y", *['1,"2.5",3', "", " 4 ,?,6", "N/A,-1e3, 9"] * 4]
    file.write_text("\r\n".join(rows).replace(",", delimiter), encoding="utf-8")
    names, x, y, _ = read_table(file, "y")
    assert names == ["a", "b c"]
    assert np.array_equal(x[:3], [[1, 2.5], [4, np.nan], [np.nan, -1000]], equal_nan=True)
    assert y[:3].tolist() == [3, 6, 9]
