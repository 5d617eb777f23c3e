"""Plots: the artists are there, the files are valid, and nothing global is touched."""

from __future__ import annotations

import builtins
import itertools
import math
import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch

import it3_core
from it3_core import IT3Error
from it3_core.evaluation import Record
from it3_core.plots import (
    _colours,
    box_by_level,
    difference_by_level,
    error_against_accuracy,
    error_histograms,
)
from it3_core.summary import Row, summarise

matplotlib = pytest.importorskip("matplotlib")

SOURCE = str(Path(it3_core.__file__).parents[1])
LEVELS = ("clean", "5 %", "20 %")
SERIES = (("source", None), ("IT3", 1), ("IT3", 4), ("IT3", 16), ("ActMAD", 16), ("online", 16))


def records(seeds: int = 2) -> list[Record]:
    torch.manual_seed(0)
    made = []
    for seed, (place, level), (method, size) in itertools.product(
        range(seeds), enumerate(LEVELS), SERIES
    ):
        errors = (torch.rand(20) + place).tolist()
        differences = [0.0] * 20 if method == "source" else (torch.randn(20) / 10).tolist()
        made.append(
            {
                "seed": seed,
                "level": level,
                "method": method,
                "batch_size": size,
                "reference": "source",
                "in_distribution": place == 0,
                "n": 20,
                "error": sum(errors) / 20,
                "difference": sum(differences) / 20,
                "errors": errors,
                "differences": differences,
                "cost": 1.0,
                "problem": None,
            }
        )
    return made


def rows() -> list[Row]:
    return summarise(records(), resamples=100)


def drawings() -> dict[str, Any]:
    torch.manual_seed(0)
    return {
        "box": lambda path: box_by_level(records(), path=path),
        "difference": lambda path: difference_by_level(rows(), path=path),
        "histograms": lambda path: error_histograms(
            torch.rand(99) + 1, torch.rand(99), torch.rand(99) / 2, path=path
        ),
        "scatter": lambda path: error_against_accuracy(torch.rand(9), torch.rand(9), path=path),
    }


def texts(legend: Any) -> list[str]:
    return [text.get_text() for text in legend.get_texts()]


def pixels_are_whole(data: bytes) -> bool:
    """Reads a PNG chunk by chunk: signature, checksums, and as many bytes as its size says."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    place, packed, size, last = 8, b"", (0, 0), b""
    while place < len(data):
        (length,) = struct.unpack(">I", data[place : place + 4])
        last, body = data[place + 4 : place + 8], data[place + 8 : place + 8 + length]
        (checksum,) = struct.unpack(">I", data[place + 8 + length : place + 12 + length])
        assert zlib.crc32(last + body) == checksum
        if last == b"IHDR":
            size = struct.unpack(">II", body[:8])
        packed += body if last == b"IDAT" else b""
        place += 12 + length
    pixels = zlib.decompress(packed)
    return last == b"IEND" and len(pixels) == size[1] * (size[0] * 4 + 1) and len(set(pixels)) > 9


class TestGolden:
    def test_boxes_show_the_errors_of_their_cells(self) -> None:
        made = records()
        axes = box_by_level(made, error="MAE").axes[0]
        boxes = [p for p in axes.patches if p.get_facecolor() != "none"]
        assert len(boxes) == len(LEVELS) * len(SERIES)
        assert axes.get_ylabel() == "MAE"
        assert [label.get_text() for label in axes.get_xticklabels()] == list(LEVELS)
        own = [r["errors"] for r in made if r["method"] == "source" and r["level"] == "clean"]
        pooled = [*own[0], *own[1]]
        extent = boxes[0].get_path().get_extents()
        low, high = torch.tensor(pooled).quantile(torch.tensor([0.25, 0.75])).tolist()
        assert (extent.y0, extent.y1) == pytest.approx((low, high), rel=1e-5)
        means = [line.get_ydata()[0] for line in axes.lines if line.get_marker() == "D"]
        assert means[0] == pytest.approx(sum(pooled) / len(pooled))

    def test_boxes_of_a_level_stand_beside_each_other(self) -> None:
        boxes = box_by_level(records()).axes[0].patches
        spans = sorted(
            (b.get_path().get_extents().x0, b.get_path().get_extents().x1) for b in boxes
        )
        assert all(first[1] <= second[0] + 1e-9 for first, second in itertools.pairwise(spans))
        assert all(round(x0) == round(x1) for x0, x1 in spans)

    def test_each_seed_may_be_what_a_box_is_made_of(self) -> None:
        made = [{k: v for k, v in r.items() if k != "errors"} for r in records(3)]
        axes = box_by_level(made, each="seed").axes[0]
        own = [r["error"] for r in made if r["method"] == "source" and r["level"] == "clean"]
        medians = [line.get_ydata()[0] for line in axes.lines if line.get_linewidth() == 1.5]
        assert medians[0] == pytest.approx(sorted(own)[1])

    def test_differences_and_intervals_are_the_rows(self) -> None:
        summary = rows()
        axes = difference_by_level(summary, error="MAE").axes[0]
        assert axes.get_ylabel() == "MAE minus source"
        assert "95 %" in axes.get_xlabel()
        assert len(axes.containers) == len(SERIES) - 1  # all but the reference
        own = [row for row in summary if (row["method"], row["batch_size"]) == ("IT3", 4)]
        points, _, (bars,) = axes.containers[1]
        assert points.get_ydata().tolist() == [row["difference"] for row in own]
        for segment, row in zip(bars.get_segments(), own, strict=True):
            assert segment[:, 1].tolist() == pytest.approx([row["low"], row["high"]])
        zero = [line for line in axes.lines if list(line.get_ydata()) == [0, 0]]
        assert len(zero) == 1

    def test_histograms_hold_every_instance(self) -> None:
        before = torch.cat([torch.rand(400) + 1, torch.tensor([1e6])])  # one far outside
        figure = error_histograms(before, torch.rand(50), torch.rand(70) / 2)
        assert texts(figure.legends[0]) == ["in distribution", "shifted, before", "shifted, after"]
        for polygon in figure.axes[0].patches:
            x, y = polygon.get_xy().T
            top = len(x) // 2 + 1
            heights = {(a, b): h for a, b, h in zip(x[:top], x[1:top], y[1:top], strict=False)}
            assert sum(h for (a, b), h in heights.items() if b > a) == pytest.approx(100)
        medians = [line.get_xdata()[0] for line in figure.axes[0].lines]
        assert medians[1] == pytest.approx(float(before.median()))

    def test_histograms_over_decades_have_a_logarithmic_axis(self) -> None:
        torch.manual_seed(0)
        wide = error_histograms(torch.randn(200).exp(), torch.randn(200).exp() / 1000)
        narrow = error_histograms(torch.rand(200) + 1, torch.rand(200))
        assert wide.axes[0].get_xscale() == "log"
        assert narrow.axes[0].get_xscale() == "linear"
        assert narrow.axes[0].get_xlim()[0] <= 0

    def test_the_title_says_how_closely_error_and_accuracy_go_together(self) -> None:
        x, y = [1.0, 2.0, 3.0, 4.0], [8.0, 6.0, 5.0, 1.0]
        axes = error_against_accuracy(x, y, title="CIFAR").axes[0]
        assert axes.get_title(loc="left") == "CIFAR: Pearson −0.96, n = 4"
        assert axes.collections[0].get_offsets().tolist() == [[a, b] for a, b in zip(x, y)]  # noqa: B905
        # least squares: slope −2.2 through (2.5, 5)
        assert axes.lines[0].get_ydata() == pytest.approx([8.3, 1.7])
        constant = error_against_accuracy([1.0, 2.0], [1.0, 1.0]).axes[0]
        assert not constant.lines


class TestInvariants:
    def test_colours_are_the_papers(self) -> None:
        colours = _colours(records())
        assert list(colours) == list(SERIES)
        channels = {series: _rgb(colour) for series, colour in colours.items()}
        red, green, blue = channels["source", None]
        assert green == max(red, green, blue)
        for size in (1, 4, 16):  # purples, lighter with the batch size
            red, green, blue = channels["IT3", size]
            assert green < min(red, blue)
        lightness = [sum(channels["IT3", size]) for size in (1, 4, 16)]
        assert lightness == sorted(lightness)
        red, green, blue = channels["ActMAD", 16]
        assert blue > green > red

    @pytest.mark.parametrize("blindness", ["none", "protan", "deutan", "tritan"])
    def test_colours_can_be_told_apart_with_any_colour_vision(self, blindness: str) -> None:
        others = [
            {"method": name, "batch_size": None, "reference": "source"} for name in ("TENT", "TTT")
        ]
        colours = _colours([*records(), *others]).values()
        assert len(set(colours)) == len(SERIES) + 2
        for first, second in itertools.combinations(colours, 2):
            gap = math.dist(_seen(first, blindness), _seen(second, blindness))
            assert gap > 20, (first, second)  # in CIELAB units; 2 is just noticeable

    def test_a_colour_stays_with_its_series_and_many_still_differ(self) -> None:
        many = [
            {"method": "IT3", "batch_size": 2**power, "reference": "source"} for power in range(8)
        ]
        colours = list(_colours(many).values())
        assert len(set(colours)) == 8
        assert _colours(many[::-1]) == dict(zip(_colours(many), colours, strict=True))

    def test_nothing_global_is_touched(self, tmp_path: Path) -> None:
        before = dict(matplotlib.rcParams)
        for name, draw in drawings().items():
            draw(tmp_path / f"{name}.png")
        assert dict(matplotlib.rcParams) == before

    def test_importing_the_package_imports_no_matplotlib(self) -> None:
        code = (
            "import sys, it3_core, it3_core.evaluation, it3_core.summary, it3_core.plots\n"
            "assert 'matplotlib' not in sys.modules\n"
            "it3_core.plots.error_against_accuracy([1, 2], [2, 1])\n"
            "assert 'matplotlib' in sys.modules and 'matplotlib.pyplot' not in sys.modules"
        )
        environment = {**os.environ, "PYTHONPATH": SOURCE}
        subprocess.run([sys.executable, "-c", code], env=environment, check=True)


class TestRobustness:
    def test_without_matplotlib_the_error_says_what_to_install(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = builtins.__import__

        def fake(name: str, *args: Any, **kwargs: Any) -> Any:
            if name.startswith("matplotlib"):
                raise ModuleNotFoundError(name)
            return real(name, *args, **kwargs)

        monkeypatch.setattr(builtins, "__import__", fake)
        for draw in drawings().values():
            with pytest.raises(IT3Error, match=r'pip install "it3-core\[plots\]"'):
                draw(None)

    def test_what_can_not_be_drawn_is_told(self, tmp_path: Path) -> None:
        bare = [{k: v for k, v in r.items() if k != "errors"} for r in records()]
        reference = [row for row in rows() if row["method"] == "source"]
        for message, call in (
            ("nothing to draw", lambda: box_by_level([])),
            ("instances=True", lambda: box_by_level(bare)),
            ("besides the reference", lambda: difference_by_level(reference)),
            ("NaN or Inf", lambda: error_histograms([math.nan], [1.0])),
            ("no value", lambda: error_histograms([1.0], [])),
            ("NaN or Inf", lambda: error_against_accuracy([1.0, math.inf], [1.0, 2.0])),
            ("can't save", lambda: error_against_accuracy([1, 2], [1, 2], path="x.jpgg")),
            ("No such file", lambda: box_by_level(records(), path=tmp_path / "no" / "x.png")),
        ):
            with pytest.raises(IT3Error, match=message):
                call()

    def test_cells_that_failed_leave_a_gap(self) -> None:
        made = records()
        for record in made:
            if record["method"] == "ActMAD" and record["level"] == "5 %":
                record |= {"problem": "it broke", "error": None, "difference": None}
                del record["errors"], record["differences"]
        full = len(LEVELS) * len(SERIES)
        assert len(box_by_level(made).axes[0].patches) == full - 1
        drawn = difference_by_level(summarise(made, resamples=50)).axes[0].containers
        assert sum(len(points.get_ydata()) for points, _, _ in drawn) == full - len(LEVELS) - 1

    def test_rows_without_intervals_are_drawn_without_bars(self) -> None:
        row = {"level": "a", "method": "IT3", "batch_size": 1, "reference": "source",
               "difference": 1.0, "low": None, "high": None, "confidence": 0.95}  # fmt: skip
        ((_, _, (bars,)),) = difference_by_level([row]).axes[0].containers
        assert bars.get_segments()[0][:, 1].tolist() == [1.0, 1.0]

    def test_long_names_of_many_levels_do_not_overlap(self) -> None:
        made = [
            record | {"level": f"{record['level']} elastic transform {number}"}
            for record in records(1)
            for number in range(5)
        ]
        figure = box_by_level(made)
        figure.draw_without_rendering()
        labels = figure.axes[0].get_xticklabels()
        assert len(labels) == 15
        assert {label.get_rotation() for label in labels} == {40.0}
        flat = box_by_level(records())
        flat.draw_without_rendering()
        boxes = [label.get_window_extent() for label in flat.axes[0].get_xticklabels()]
        assert all(a.x1 < b.x0 for a, b in itertools.pairwise(boxes))


class TestEntryPoints:
    @pytest.mark.parametrize("name", sorted(drawings()))
    def test_files_are_valid(self, name: str, tmp_path: Path) -> None:
        draw = drawings()[name]
        figure = draw(tmp_path / "x.png")
        assert pixels_are_whole((tmp_path / "x.png").read_bytes())
        figure.savefig(tmp_path / "x.svg")
        figure.savefig(tmp_path / "x.pdf")
        assert (tmp_path / "x.svg").read_text().rstrip().endswith("</svg>")
        assert (tmp_path / "x.pdf").read_bytes().rstrip().endswith(b"%%EOF")

    def test_the_legend_names_every_series_and_lies_outside_the_axes(self) -> None:
        for figure, count in (
            (box_by_level(records()), len(SERIES)),
            (difference_by_level(rows()), len(SERIES) - 1),
        ):
            figure.draw_without_rendering()
            names = texts(figure.legends[0])
            assert len(names) == count
            assert names[-1] == "online, batch 16"
            legend, axes = figure.legends[0].get_window_extent(), figure.axes[0].bbox
            assert legend.y0 >= axes.y1
            assert 0 <= legend.x0 < legend.x1 <= figure.bbox.x1


def _rgb(colour: str) -> tuple[float, float, float]:
    red, green, blue = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    return red, green, blue


# Machado, Oliveira and Fernandes (2009), complete dichromacy, on linear RGB.
_VISION = {
    "none": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protan": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deutan": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritan": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}


def _seen(colour: str, blindness: str) -> tuple[float, float, float]:
    """A colour in CIELAB, as an eye with this kind of colour vision sees it."""
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in _rgb(colour)]
    red, green, blue = (
        min(1.0, max(0.0, sum(a * b for a, b in zip(row, linear, strict=True))))
        for row in _VISION[blindness]
    )
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.95047
    y = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.08883
    a, b, c = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x, y, z))
    return 116 * b - 16, 500 * (a - b), 200 * (b - c)
