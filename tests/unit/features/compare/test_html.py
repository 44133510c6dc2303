"""The comparison as people see it: table, picture, text, and the list of what there is."""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from hfmem_widget.analysis.cell import Cell
from hfmem_widget.analysis.facts import NEXT_TO_NOTHING
from hfmem_widget.analysis.record import Record, record_of, whole
from hfmem_widget.features.compare.api import MOST_CELLS, of_runs
from hfmem_widget.features.compare.html import (
    frame_of,
    parts_of,
    step_ticks,
    stroke_of,
    svg,
    whole_bundle,
)
from hfmem_widget.features.compare.model import Comparison
from hfmem_widget.features.compare.text import change_text, part_columns, percent_text
from hfmem_widget.session import Peak
from hfmem_widget.text import GIB, MIB, format_bytes, format_rate
from hfmem_widget.view import palette
from hfmem_widget.view.line import peak_text
from tests.data.modules import loaded_by
from tests.data.parted import NAN
from tests.data.svg import Drawing
from tests.data.texts import seen
from tests.scenes import shared_run
from tests.unit.view.chart.test_still_svg import PLOT, check_run


def scaled(run: str, label: str, scale: float = 1.0, number: int = 1) -> Record:
    session = shared_run(run)
    record = record_of(session, whole(session), label=label, cell=Cell(number, "", ""))
    devices = []
    for device in record.devices:
        curve, steps = device.curve * np.float32(1), device.steps.copy()
        curve[1] *= scale
        steps[:, 2:4] *= scale
        peak = Peak(device.peak.value * scale, device.peak.certainty)
        parts = {name: value * scale for name, value in device.at_peak.items()}
        devices.append(replace(device, peak=peak, at_peak=parts, curve=curve, steps=steps))
    return replace(record, devices=tuple(devices))


def two_cells(run: str = "steps", **options: Any) -> Comparison:
    runs = {"base": [scaled(run, "base")], "smaller": [scaled(run, "smaller", 0.5, number=2)]}
    return of_runs(runs, **options)


def test_the_table_reads_without_any_markup() -> None:
    """Names, figures, differences and parts stand in their order."""
    assert seen(whole_bundle(two_cells())["text/html"]).startswith(
        "memcompare cuda:0 NVIDIA H200 compared with base "
        "smaller needs 3.51 GiB less memory at its peak (\u221250 %) than base. "
        "● base baseline · cell [1] ● smaller cell [2] "
        "allocated, peak 7.01 GiB exact 3.51 GiB exact \u22123.51 GiB · \u221250 % "
        "left behind +3.75 GiB +3.75 GiB ±0 "
    )


@pytest.mark.parametrize(
    ("make", "words", "absent"),
    [
        (
            lambda: of_runs({name: [scaled("steps", name)] for name in "abcdefgh"}),
            ("cell allocated, peak left behind",),
            (),
        ),
        (lambda: two_cells("short"), (), ("samples/s", "steps/s", "at the peak")),
        (lambda: two_cells("cpu"), ("private memory, peak", "resident, peak"), ()),
    ],
    ids=["many cells are rows", "no steps and no parts", "the host"],
)
def test_a_table_has_the_columns_that_cells_fill(
    make: Callable[[], Comparison], words: tuple[str, ...], absent: tuple[str, ...]
) -> None:
    """The longer side goes down the page; a host's memory is called private and resident."""
    shown = seen(whole_bundle(make())["text/html"])
    assert [word for word in words if word not in shown] == []
    assert [word for word in absent if word in shown] == []


def test_plain_text_has_the_same_figures() -> None:
    """In a terminal the table is aligned."""
    text = whole_bundle(two_cells())["text/plain"]
    lines = text.splitlines()

    assert lines[0] == "memcompare · cuda:0 NVIDIA H200 · compared with base"
    assert "7.01 GiB exact" in text
    assert "\u22123.51 GiB · \u221250 %" in text
    assert "optimizer" in text
    assert len({line.rindex("s") for line in lines[4:7] if line.endswith(" s")}) == 1


def test_repeats_show_their_range() -> None:
    """A cell has the median, the range, and the number of runs."""
    runs = [scaled("steps", "base", scale) for scale in (1.0, 1.1, 0.9)]
    text = seen(whole_bundle(of_runs({"base": runs}))["text/html"])

    assert "● base 3 runs allocated, peak 7.01 GiB exact 6.31\u20137.71 GiB" in text
    text = seen(whole_bundle(of_runs({"base": runs[:2]}))["text/html"])
    assert "● base 2 runs allocated, peak 7.36 GiB exact 7.01\u20137.71 GiB" in text


@pytest.mark.parametrize(
    ("run", "peak"),
    [("at least", "≥ 6.99 GiB"), ("training", "6.99 GiB exact"), ("cpu", "918.4 MiB sampled")],
)
def test_a_peak_says_how_it_is_known(run: str, peak: str) -> None:
    """The table and the bar have the same certainty."""
    comparison = of_runs({"a": [scaled(run, "a")]})
    picture = svg(comparison)
    assert peak in seen(whole_bundle(comparison)["text/html"].removesuffix(picture))
    assert peak in seen(picture)


@pytest.mark.parametrize("run", ["steps", "100,000 steps", "hour with gaps", "eight gpus"])
@pytest.mark.parametrize("by", ["step", "time"])
def test_the_output_stays_small(run: str, by: str) -> None:
    """It does with the most cells and with repeats of each."""
    base = scaled(run, "x" * 10_000)
    runs = {f"{at} {'x' * 10_000}": [base, base, base] for at in range(MOST_CELLS)}

    assert len(svg(of_runs(runs, by=by)).encode()) < 120_000


def test_nothing_drawn_for_the_notebook_imports_plotly_or_pandas() -> None:
    """Their import would cost a second at the end of the user's cell."""
    code = (
        "from tests.scenes import scripted_run; import hfmem_widget; "
        "from hfmem_widget.view.chart.figure import chart_bundle; s = scripted_run('steps'); "
        "assert chart_bundle(s, s.spans[0]) and hfmem_widget.compare(s, s)._repr_mimebundle_()"
    )
    assert loaded_by(code) & {"plotly", "pandas", "torch"} == set()


def test_a_note_is_shown_to_its_end() -> None:
    """A long label in it does not cut it."""
    label = "a long name " * 9
    noted = replace(two_cells(), notes=(f"{label}has nothing for the chart, which is without it.",))
    assert "which is without it." in whole_bundle(noted)["text/html"]


@pytest.mark.parametrize(
    ("value", "baseline", "text"),
    [
        (8 * MIB, 10 * MIB, "\u22122.00 MiB · \u221220 %"),
        (10.5 * MIB, 10 * MIB, "+0.50 MiB · +5.0 %"),
        (3 * MIB, 10 * MIB, "\u22127.00 MiB · \u221270 %"),
        (10 * MIB, 10 * MIB, "±0"),
        (10 * MIB + 1, 10 * MIB, "±0"),
        (2 * MIB, 0.0, "+2.00 MiB"),
        (2 * MIB, -MIB, "+3.00 MiB"),
        (2 * MIB, 1e-9, "+2.00 MiB"),
        (-3 * MIB, MIB, "\u22124.00 MiB"),
        (0.03 * MIB, 0.1 * MIB, "\u22120.07 MiB"),
        (NAN, 1.0, ""),
    ],
)
def test_a_difference_has_a_sign_and_a_percentage(value: float, baseline: float, text: str) -> None:
    """A difference below three digits is none; next to nothing there is no percentage."""
    assert change_text(value, baseline, format_bytes, NEXT_TO_NOTHING) == text


@pytest.mark.parametrize(
    ("before", "after", "cells"),
    [
        (2 * GIB, 3 * GIB, [("2.00 GiB", "", ""), ("3.00 GiB", "", "+1.00 GiB · +50 %")]),
        (0.0, 3 * GIB, [("0", "", ""), ("3.00 GiB", "", "+3.00 GiB")]),
        (2 * MIB, 3 * GIB, [("2.00 MiB", "", ""), ("3.00 GiB", "", "+3.00 GiB")]),
        (3 * GIB, 0.0, [("3.00 GiB", "", ""), ("0", "", "\u22123.00 GiB")]),
        (3 * GIB, None, [("3.00 GiB", "", ""), ("n/a", "", "")]),
        (None, 3 * GIB, [("n/a", "", ""), ("3.00 GiB", "", "")]),
    ],
)
def test_a_part_that_went_is_nothing_and_one_of_a_cell_without_parts_is_not_known(
    before: float | None, after: float | None, cells: list[tuple[str, str, str]]
) -> None:
    """There is no percentage of zero, and no difference to an unknown size."""
    compared = two_cells()
    parts_of_cells = [{} if size is None else {"weights": size} for size in (before, after)]
    changed = (
        replace(cell, usual=replace(cell.usual, at_peak=parts))
        for cell, parts in zip(compared.cells, parts_of_cells, strict=True)
    )
    (column,) = part_columns(replace(compared, cells=tuple(changed)))

    assert [*column.cells] == cells


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.0, "0.00"), (9.994, "9.99"), (34.84, "34.8"), (999.4, "999.4"), (999.5, "1,000"),
     (-999.5, "\u22121,000"), (2804.4, "2,804")],
)  # fmt: skip
def test_a_rate_has_three_digits_or_none_behind_the_point(value: float, expected: str) -> None:
    """From a thousand on, rates are whole numbers."""
    assert format_rate(value).replace("-", "\u2212") == expected


@pytest.mark.parametrize(
    ("percent", "expected"),
    [(NAN, ""), (0.0, "±0 %"), (0.04, "±0 %"), (0.06, "+0.1 %"), (-0.06, "\u22120.1 %"),
     (9.94, "+9.9 %"), (9.95, "+10 %"), (-9.95, "\u221210 %"), (156.4, "+156 %")],
)  # fmt: skip
def test_a_percentage_has_a_digit_behind_the_point_below_ten(percent: float, expected: str) -> None:
    """It has a sign, unless it reads as zero."""
    assert percent_text(percent) == expected


@pytest.mark.parametrize(
    ("first", "last", "texts"),
    [
        (1, 6, ["step 1", "2", "3", "4", "5", "6"]),
        (1, 60, ["step 1", "10", "20", "30", "40", "50", "60"]),
        (5, 60, ["step 10", "20", "30", "40", "50", "60"]),
        (4, 60, ["step 4", "10", "20", "30", "40", "50", "60"]),
        (1.5, 1.5, ["step 2"]),
        (0, 1, ["step 0", "1"]),
        (0, 30_000, ["step 0", "5,000", "10,000", "15,000", "20,000", "25,000", "30,000"]),
    ],
)
def test_steps_have_ticks_at_round_numbers(first: float, last: float, texts: list[str]) -> None:
    """The first step has a tick too, if the next one is more than half of their distance away."""
    assert list(step_ticks(first, last).texts) == texts


Make = Callable[[], Comparison]


def repeated() -> Comparison:
    runs = [scaled("steps", "base", scale, number=at) for at, scale in enumerate((0.9, 1.0, 1.2))]
    return of_runs({"base": runs, "smaller": [scaled("steps", "smaller", 0.5, number=4)]})


COMPARISONS: dict[str, Make] = {
    "by step": two_cells,
    "by time": lambda: two_cells(by="time"),
    "repeats": repeated,
    "no parts": lambda: two_cells("two gpus", by="time"),
    "with gaps": lambda: two_cells("hour with gaps", by="time"),
}
EACH = pytest.mark.parametrize("make", COMPARISONS.values(), ids=COMPARISONS)


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
    """It breaks where a reading is missing, and has its own colour and dash."""
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
    """The parts follow each other from zero, and the longest bar takes the whole width."""
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
    """It goes from the lowest to the highest of the runs, under the lines, in the line's own colour."""
    shown = shown_of(repeated)
    (area,) = [one for one in shown.drawing.frames()[0] if one.fill != "none"]
    line = shown.lines[0]
    low, high = line.low[::-1], line.high

    edge = [*zip(line.at, high, strict=True), *zip(line.at[::-1], low, strict=True)]
    (corners,) = area.runs
    check_run([(shown.x(at), shown.y(value)) for at, value in edge], corners)
    assert shown.drawing.frames()[0].index(area) == 0
    assert area.fill == stroke_of(0).colour
    assert not [one for one in shown_of(two_cells).drawing.frames()[0] if one.fill != "none"]


@EACH
def test_each_cell_has_its_row_below_the_lines(make: Make) -> None:
    """It has a piece of the cell's line, its name and its peak."""
    shown = shown_of(make)
    assert shown.rows
    for at, (cell, row) in enumerate(zip(shown.cells, shown.rows, strict=True)):
        peak = peak_text(Peak(cell.figures["peak"].middle, cell.certainty))
        assert f'stroke="{stroke_of(at).colour}"' in row.partition("<strong")[0]
        assert f">{cell.name}</strong>" in row
        assert f">{peak}</span>" in row


def test_the_picture_names_its_lines() -> None:
    """The name says whether they go by step or by time, and whether several runs are in them."""
    pictures = {name: shown_of(make).html for name, make in COMPARISONS.items()}

    assert ">allocated, highest of each step<" in pictures["by step"]
    assert ">allocated since the start of the cell<" in pictures["by time"]
    assert ">allocated, highest of each step, median and range<" in pictures["repeats"]
