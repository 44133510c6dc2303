"""The pictures of a comparison, read back: SVG and figure have what was compared, where it belongs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from hfmem_widget.features.compare.api import of_runs
from hfmem_widget.features.compare.html import chart_bundle
from hfmem_widget.features.compare.model import Comparison
from hfmem_widget.features.compare.picture import ComparisonScene, build_scene
from hfmem_widget.features.compare.text import part_label
from hfmem_widget.view import palette
from hfmem_widget.view.chart.figure import PLOTLY_MIME
from tests.data.plotly_words import plain_words
from tests.data.svg import Drawing
from tests.unit.features.compare.test_html import kept, two
from tests.unit.view.chart.test_figure import unpacked
from tests.unit.view.chart.test_still_svg import PLOT, check_run

Make = Callable[[], Comparison]


def repeated() -> Comparison:
    """Return three runs of one cell against one of another."""
    runs = [kept("steps", "base", scale, number=at) for at, scale in enumerate((0.9, 1.0, 1.2))]
    return of_runs({"base": runs, "smaller": [kept("steps", "smaller", 0.5, number=4)]})


MADE: dict[str, Make] = {
    "by step": two,
    "by time": lambda: two(by="time"),
    "repeats": repeated,
    "no parts": lambda: two("two gpus", by="time"),
    "with gaps": lambda: two("hour with gaps", by="time"),
}
EACH = pytest.mark.parametrize("make", MADE.values(), ids=MADE)


class Shown:
    """A comparison, its scene, and both its pictures."""

    def __init__(self, comparison: Comparison) -> None:
        bundle = chart_bundle(comparison)
        self.scene: ComparisonScene = build_scene(comparison)
        self.lines = [one.line for one in comparison.cells if one.line is not None]
        self.html: str = bundle["text/html"]
        self.drawing = Drawing(self.html)
        self.figure = plain_words(bundle[PLOTLY_MIME])
        self.layout: dict[str, Any] = self.figure["layout"]

    def x(self, at: float) -> float:
        scene = self.scene
        return (
            self.drawing.width * (at - scene.frame.start) / (scene.frame.stop - scene.frame.start)
        )

    def y(self, value: float) -> float:
        return PLOT * (1 - value / self.scene.frame.top)

    def traces(self, kind: str) -> list[dict[str, Any]]:
        return [one for one in self.figure["data"] if one["type"] == kind]


@cache
def shown_of(make: Make) -> Shown:
    """Return the pictures of a comparison, drawn once for all tests, none of which changes it."""
    return Shown(make())


def broken(at: Any, values: Any) -> list[list[tuple[float, float]]]:
    """Return the runs of a line between its missing values."""
    runs: list[list[tuple[float, float]]] = [[]]
    for x, y in zip(at.tolist(), values.tolist(), strict=True):
        if math.isnan(y):
            runs.append([])
        else:
            runs[-1].append((x, y))
    return [run for run in runs if run]


@EACH
def test_each_cells_line_goes_through_its_readings(make: Make) -> None:
    """In the SVG, a break as a break; in its own colour and dash."""
    shown = shown_of(make)
    drawn = [one for one in shown.drawing.frames()[0] if one.fill == "none"]
    assert len(drawn) == 2
    for cell, line, path in zip(shown.scene.cells, shown.lines, drawn, strict=True):
        assert (path.stroke, path.dash) == (cell.stroke.colour, palette.STROKES[cell.stroke.dash])
        runs = broken(line.at, line.middle)
        assert len(path.runs) == len(runs)
        for run, corners in zip(runs, path.runs, strict=True):
            check_run([(shown.x(at), shown.y(value)) for at, value in run], corners)


@EACH
def test_plotly_has_the_same_lines(make: Make) -> None:
    """With all their points, in the unit of the axis; a point alone is a mark."""
    shown = shown_of(make)
    lines = [one for one in shown.traces("scatter") if "fill" not in one]
    divisor, unit = shown.scene.frame.unit

    assert [one["name"] for one in lines] == [cell.name for cell in shown.scene.cells]
    for cell, line, one in zip(shown.scene.cells, shown.lines, lines, strict=True):
        assert unpacked(one["x"]) == pytest.approx(line.at, rel=1e-5)
        assert np.allclose(unpacked(one["y"]) * divisor, line.middle, rtol=1e-5, equal_nan=True)
        assert one["line"]["color"] == cell.stroke.colour
        assert one["line"]["dash"] == cell.stroke.dash
        assert one["mode"] == "lines"
        assert f" {unit}<" in one["hovertemplate"]
        assert one["showlegend"] is False


@EACH
def test_each_bar_is_as_long_as_its_parts(make: Make) -> None:
    """One part after the other, from zero; the longest bar takes the whole width, in both pictures."""
    shown = shown_of(make)
    scene = shown.scene
    divisor, _ = scene.frame.unit
    rows = [
        [
            (float(left), float(width), colour)
            for left, width, colour in re.findall(
                r'<rect x="([\d.]+)%" width="([\d.]+)%" height="12" fill="([^"]+)"', row
            )
        ]
        for row in shown.html.split('<div style="margin:5px 4px 0')[1:]
    ]
    bars = {one["name"]: one for one in shown.traces("bar")}

    assert len(rows) == len(scene.cells)
    assert max(left + width for row in rows for left, width, _ in row) == pytest.approx(
        100, abs=0.1
    )
    for at, (cell, row) in enumerate(zip(scene.cells, rows, strict=True)):
        assert len(row) == len(cell.parts) > 0
        end = 0.0
        for (name, size), (left, width, colour) in zip(cell.parts, row, strict=True):
            assert left == pytest.approx(end, abs=0.02)
            assert width == pytest.approx(100 * size / scene.longest, abs=0.01)
            assert colour == palette.PARTS.get(name, "#7D8794")
            end = left + width
            label = next(one for one in bars if bars[one]["marker"]["color"] == colour)
            assert label == (part_label(name) if name else "allocated")
            assert bars[label]["x"][at] * divisor == pytest.approx(size, rel=1e-4)
            assert bars[label]["showlegend"] is bool(name)
    assert all(one["y"] == list(range(len(scene.cells))) for one in bars.values())
    assert shown.layout["xaxis2"]["range"] == pytest.approx([0, scene.longest / divisor], rel=1e-4)


def test_only_repeats_have_a_band_about_their_line() -> None:
    """From the lowest to the highest of the runs, under the lines, in the line's own colour."""
    shown = shown_of(repeated)
    (band,) = [one for one in shown.traces("scatter") if one.get("fill") == "toself"]
    area, *_ = [one for one in shown.drawing.frames()[0] if one.fill != "none"]
    cell, line = shown.scene.cells[0], shown.lines[0]
    low, high = line.low[::-1], line.high

    assert unpacked(band["x"]) == pytest.approx([*line.at, *line.at[::-1]])
    assert unpacked(band["y"]) * shown.scene.frame.unit[0] == pytest.approx([*high, *low], rel=1e-5)
    assert shown.figure["data"].index(band) == 0
    assert area.fill == cell.stroke.colour
    assert not [one for one in shown_of(two).figure["data"] if one.get("fill") == "toself"]
    assert not [one for one in shown_of(two).drawing.frames()[0] if one.fill != "none"]


@EACH
def test_each_cell_has_its_row_below_the_lines(make: Make) -> None:
    """With its name and peak behind a piece of its line, in both pictures; the legend is below all."""
    shown = shown_of(make)
    layout, cells = shown.layout, shown.scene.cells
    rows = shown.html.split('<div style="margin:5px 4px 0')[1:]
    words = layout["annotations"][: len(cells)]

    assert layout["yaxis2"]["domain"][1] < layout["yaxis"]["domain"][0]
    assert layout["legend"]["y"] < 0
    for cell, row, word, piece in zip(cells, rows, words, layout["shapes"], strict=True):
        assert f'stroke="{cell.stroke.colour}"' in row.partition("<strong")[0]
        assert f">{cell.name}</strong>" in row
        assert f">{cell.peak}</span>" in row
        assert word["text"] == f"<b>{cell.name}</b>  {cell.peak}"
        assert (piece["line"]["color"], piece["y0"]) == (cell.stroke.colour, word["y"])
        assert word["xshift"] > piece["x1"]


def test_what_the_lines_are_is_said() -> None:
    """By step or since the beginning, one run or several."""
    said = {name: build_scene(make()).what for name, make in MADE.items()}

    assert said["by step"] == "allocated, highest of each step"
    assert said["by time"] == "allocated since the start of the cell"
    assert said["repeats"] == "allocated, highest of each step, median and range"
