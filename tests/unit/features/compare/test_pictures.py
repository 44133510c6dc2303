"""The picture of a comparison, read back: it has what was compared, where it belongs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from hfmem_widget.features.compare.api import of_runs
from hfmem_widget.features.compare.html import frame_of, parts_of, stroke_of, svg
from hfmem_widget.features.compare.model import Comparison
from hfmem_widget.session import Peak
from hfmem_widget.view import palette
from hfmem_widget.view.line import peak_text
from tests.data.svg import Drawing
from tests.unit.features.compare.test_html import kept, two
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
    """A comparison and its picture."""

    def __init__(self, comparison: Comparison) -> None:
        self.cells, self.frame = comparison.cells, frame_of(comparison)
        self.lines = [one.line for one in comparison.cells if one.line is not None]
        self.html = svg(comparison)
        self.drawing = Drawing(self.html)
        self.rows = self.html.split('<div style="margin:5px 4px 0')[1:]

    def x(self, at: float) -> float:
        return self.drawing.width * self.frame.share(at)

    def y(self, value: float) -> float:
        return PLOT * (1 - value / self.frame.top)


@cache
def shown_of(make: Make) -> Shown:
    """Return the picture of a comparison, drawn once for all tests, none of which changes it."""
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
    """A break as a break; in its own colour and dash."""
    shown = shown_of(make)
    drawn = [one for one in shown.drawing.frames()[0] if one.fill == "none"]
    assert len(drawn) == 2
    for at, (line, path) in enumerate(zip(shown.lines, drawn, strict=True)):
        stroke = stroke_of(at)
        assert (path.stroke, path.dash) == (stroke.colour, palette.STROKES[stroke.dash])
        runs = broken(line.at, line.middle)
        assert len(path.runs) == len(runs)
        for run, corners in zip(runs, path.runs, strict=True):
            check_run([(shown.x(x), shown.y(value)) for x, value in run], corners)


@EACH
def test_each_bar_is_as_long_as_its_parts(make: Make) -> None:
    """One part after the other, from zero; the longest bar takes the whole width."""
    shown = shown_of(make)
    rows = [
        [
            (float(left), float(width), colour)
            for left, width, colour in re.findall(
                r'<rect x="([\d.]+)%" width="([\d.]+)%" height="12" fill="([^"]+)"', row
            )
        ]
        for row in shown.rows
    ]

    longest = max(sum(parts_of(cell).values()) for cell in shown.cells)
    assert max(left + width for row in rows for left, width, _ in row) == pytest.approx(
        100, abs=0.1
    )
    for cell, row in zip(shown.cells, rows, strict=True):
        end, parts = 0.0, parts_of(cell)
        assert parts
        for (name, size), (left, width, colour) in zip(parts.items(), row, strict=True):
            assert left == pytest.approx(end, abs=0.02)
            assert width == pytest.approx(100 * size / longest, abs=0.01)
            assert colour == palette.PARTS.get(name, "#7D8794")
            end = left + width


def test_only_repeats_have_a_band_about_their_line() -> None:
    """From the lowest to the highest of the runs, under the lines, in the line's own colour."""
    shown = shown_of(repeated)
    (area,) = [one for one in shown.drawing.frames()[0] if one.fill != "none"]
    line = shown.lines[0]
    low, high = line.low[::-1], line.high

    edge = [*zip(line.at, high, strict=True), *zip(line.at[::-1], low, strict=True)]
    (corners,) = area.runs
    check_run([(shown.x(at), shown.y(value)) for at, value in edge], corners)
    assert shown.drawing.frames()[0].index(area) == 0
    assert area.fill == stroke_of(0).colour
    assert not [one for one in shown_of(two).drawing.frames()[0] if one.fill != "none"]


@EACH
def test_each_cell_has_its_row_below_the_lines(make: Make) -> None:
    """With its name and peak behind a piece of its line."""
    shown = shown_of(make)
    assert shown.rows
    for at, (cell, row) in enumerate(zip(shown.cells, shown.rows, strict=True)):
        peak = peak_text(Peak(cell.figures["peak"].middle, cell.certainty))
        assert f'stroke="{stroke_of(at).colour}"' in row.partition("<strong")[0]
        assert f">{cell.name}</strong>" in row
        assert f">{peak}</span>" in row


def test_what_the_lines_are_is_said() -> None:
    """By step or since the beginning, one run or several."""
    said = {name: shown_of(make).html for name, make in MADE.items()}

    assert ">allocated, highest of each step<" in said["by step"]
    assert ">allocated since the start of the cell<" in said["by time"]
    assert ">allocated, highest of each step, median and range<" in said["repeats"]
