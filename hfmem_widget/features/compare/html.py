"""A comparison as an output of a notebook: tables, lines by step or time, and a bar for each cell."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np

from hfmem_widget.analysis.curve import Points
from hfmem_widget.analysis.parts import OF_ALLOCATED
from hfmem_widget.features.compare.model import AlignedLine, Compared, Comparison
from hfmem_widget.features.compare.text import (
    NOTE_LENGTH,
    FigureRow,
    about,
    change_tables,
    figure_columns,
    heading,
    name_of,
    part_columns,
    part_label,
    text,
    verdicts,
)
from hfmem_widget.session import Peak
from hfmem_widget.text import MIB, plain, unit_for
from hfmem_widget.view import html as kit
from hfmem_widget.view import palette
from hfmem_widget.view.chart import svg as paint
from hfmem_widget.view.chart.shapes import (
    Curve,
    Frame,
    Stroke,
    Ticks,
    round_up,
    time_ticks,
    value_ticks,
)
from hfmem_widget.view.line import peak_text
from hfmem_widget.view.table import Column, TableRow, table

AT_THE_PEAK = "at the peak"
LETTERS = 18  # characters of a figure's name in a line
ALL_ALLOCATED = "#7D8794"  # the colour of a bar without parts
NAME_LENGTH = 24  # characters that fit beside a peak on a page of 360 pixels

_ROOM_ABOVE = 1.06  # times the highest value
_HEIGHT, _BAR_HEIGHT = 170, 12  # pixels: of the lines together, and of each bar


def frame_of(comparison: Comparison) -> Frame:
    """Return the frame of the lines; its unit also fits the bars."""
    lines = [cell.line for cell in comparison.cells if cell.line is not None]
    heights = [float(np.nanmax(line.high)) for line in lines if not np.isnan(line.high).all()]
    highest = max(heights, default=0.0) or MIB
    by_step = comparison.by == "step"
    start = min((float(line.at[0]) for line in lines), default=0.0) if by_step else 0.0
    stop = max((float(line.at[-1]) for line in lines), default=1.0)
    top = _ROOM_ABOVE * highest
    divisor, unit = unit_for(max(top, _longest(comparison)))
    ticks = step_ticks(start, stop) if by_step else time_ticks(max(stop, 1e-3))
    levels = value_ticks(highest / divisor, unit)
    return Frame(start, max(stop, start + 1e-3), top, (divisor, unit), ticks, levels)


def _longest(comparison: Comparison) -> float:
    return max((sum(parts_of(cell).values()) for cell in comparison.cells), default=0.0) or 1.0


def stroke_of(at: int) -> Stroke:
    """Return the stroke of a cell's line."""
    colour, dash = palette.DEVICES[at % len(palette.DEVICES)]
    return Stroke(colour, 1.6, dash)


def _band(line: AlignedLine, colour: str) -> Curve:
    outline = [*_points(line.at, line.high), *reversed(_points(line.at, line.low))]
    return Curve(outline, fill=colour, opacity=0.2, is_closed=True)


def _points(at: np.ndarray, values: np.ndarray) -> Points:
    return list(zip(at.tolist(), values.tolist(), strict=True))


def step_ticks(first: float, last: float) -> Ticks:
    """Return about six ticks at round numbers of steps; the first has the word "step"."""
    width = int(round_up(max(1.0, (last - first) / 6), (1, 2, 5)))
    numbers = [step for step in range(0, math.floor(last) + 1, width) if step >= first]
    if not numbers or numbers[0] > first + width / 2:
        numbers.insert(0, math.ceil(first))
    texts = [f"{step:,}" for step in numbers]
    texts[0] = f"step {texts[0]}"
    return Ticks(tuple(map(float, numbers)), tuple(texts))


def parts_of(cell: Compared) -> dict[str, float]:
    """Return the bytes of a bar's parts from left to right; if unknown, one part without a name."""
    parts = {name: size for name in OF_ALLOCATED if (size := cell.usual.at_peak.get(name, 0.0)) > 0}
    peak = cell.figures["peak"].middle
    return parts or ({"": peak} if peak > 0 else {})


def _what(comparison: Comparison) -> str:
    spread = ", median and range" if any(cell.runs > 1 for cell in comparison.cells) else ""
    if comparison.by == "time":
        return f"{comparison.allocated_label} since the start of the cell{spread}"
    point = "step" if comparison.steps_a_point == 1 else f"{comparison.steps_a_point} steps"
    return f"{comparison.allocated_label}, highest of each {point}{spread}"


def svg(comparison: Comparison) -> str:
    """Return the lines with axes, and below them a bar for each cell."""
    longest = _longest(comparison)
    rows = "".join(_bar(at, cell, longest) for at, cell in enumerate(comparison.cells))
    present = {name for cell in comparison.cells for name in parts_of(cell)}
    names = (name for name in OF_ALLOCATED if name in present)
    parts = (kit.marked(palette.PARTS[name], part_label(name)) for name in names)
    keys = kit.keys(parts, ";margin:6px 4px 0").html
    return f"{kit.CHART}{_lines(comparison)}{rows}{keys}</div>"


def _lines(comparison: Comparison) -> str:
    drawn = [
        (stroke_of(at), cell.line, name_of(cell, NAME_LENGTH))
        for at, cell in enumerate(comparison.cells)
        if cell.line is not None
    ]
    if not drawn:
        return ""
    bands = [
        _band(line, stroke.colour) for stroke, line, _ in drawn if (line.high > line.low).any()
    ]
    lines = [Curve(_points(line.at, line.middle), stroke) for stroke, line, _ in drawn]
    frame, title = frame_of(comparison), _what(comparison)
    inside = paint.axes(frame, _HEIGHT)
    inside += paint.stretched(_HEIGHT, paint.curves_svg([*bands, *lines], frame, _HEIGHT))
    label = f"{title}: {', '.join(name for *_, name in drawn)}"
    return (
        f"{kit.block('opacity:.8;margin:2px 4px 4px', title).html}"
        f'<div style="padding:2px 20px 0 {paint.GUTTER}px">'
        f"{paint.picture(label, _HEIGHT + paint.FOOT, inside)}</div>"
    )


def _bar(at: int, cell: Compared, longest: float) -> str:
    pieces = (
        (palette.PARTS.get(name, ALL_ALLOCATED), size, part_label(name) if name else "allocated")
        for name, size in parts_of(cell).items()
    )
    bar = kit.bar(pieces, longest, "", height=_BAR_HEIGHT)
    words = kit.words(
        kit.Fragment(paint.swatch(stroke_of(at), 22)),
        kit.strong(name_of(cell, NAME_LENGTH)),
        kit.faint(peak_text(Peak(cell.figures["peak"].middle, cell.certainty))),
    )
    return f'<div style="margin:5px 4px 0">{words.html}{bar}</div>'


def whole_bundle(comparison: Comparison) -> dict[str, str]:
    """Return the figures and the picture as one output, by MIME type."""
    # Not among the comparison's notes: plain text has no chart.
    chartless = (
        f"{plain(cell.name)} has no data for the chart."
        for cell in comparison.cells
        if cell.line is None and cell.figures["peak"].runs
    )
    figures = kit.bundle(
        kit.headed("memcompare", *heading(comparison)),
        *map(kit.line, verdicts(comparison)),
        *_tables(comparison),
        *kit.notes(plain(note, NOTE_LENGTH) for note in (*comparison.notes, *chartless)),
    )
    return kit.below(figures, svg(comparison), ()) | {"text/plain": text(comparison)}


def _tables(comparison: Comparison) -> Iterator[kit.Fragment]:
    names = [_cell_head(comparison, at) for at in range(len(comparison.cells))]
    wholes, parts = figure_columns(comparison), part_columns(comparison)
    if len(names) < len(wholes):
        title = TableRow((kit.faint(AT_THE_PEAK, style=kit.TINY),), is_ruled=True)
        yield _table(
            "", names, [*map(_row, wholes), *([title] if parts else []), *map(_row, parts)]
        )
    else:
        by_cell = zip(names, *(column.cells for column in wholes), strict=True)
        yield _table("cell", map(_figure_head, wholes), map(TableRow, by_cell))
        yield _table(AT_THE_PEAK, names, map(_row, parts))
    for each in change_tables(comparison):
        yield table(*each, scrolls="changes")


def _table(first: str, heads: Iterable[kit.Content], rows: Iterable[TableRow]) -> kit.Fragment:
    of_names = kit.faint(first, style=kit.TINY) if first else kit.NOTHING
    columns = [Column(of_names, LETTERS, is_bold=True), *map(Column, heads)]
    return table(columns, [*rows], scrolls="figures")


def _row(column: FigureRow) -> TableRow:
    return TableRow((_figure_head(column), *column.cells))


def _figure_head(column: FigureRow) -> kit.Content:
    title = kit.faint(column.title, style=f"{kit.TINY};font-weight:normal")
    return kit.marked(palette.PARTS[column.part], title) if column.part else title


def _cell_head(comparison: Comparison, at: int) -> kit.Content:
    cell = comparison.cells[at]
    name = kit.marked(palette.DEVICES[at % len(palette.DEVICES)][0], name_of(cell), kit.BULLET)
    bold = kit.faint(name, style="font-size:13px;font-weight:600")
    below = kit.block(f"{kit.TINY};font-weight:normal", about(comparison, cell))
    return kit.Fragment(bold.html + below.html, bold.text)
