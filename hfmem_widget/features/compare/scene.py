"""The scene of a comparison: lines by step or time, and a bar of parts for each cell."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hfmem_widget.analysis.curve import Points
from hfmem_widget.analysis.parts import OF_ALLOCATED
from hfmem_widget.features.compare.align import AlignedLine
from hfmem_widget.features.compare.model import Comparison
from hfmem_widget.features.compare.text import name_of
from hfmem_widget.session import Peak
from hfmem_widget.text import MIB, unit_for
from hfmem_widget.view import palette
from hfmem_widget.view.chart.axis import Ticks, round_up, time_ticks, value_ticks
from hfmem_widget.view.chart.shapes import Curve, Frame, Stroke
from hfmem_widget.view.line import peak_text

ALL_ALLOCATED = "#7D8794"
"""The colour of a bar without parts."""

NAME_LENGTH = 24  # characters that fit beside a peak on a page of 360 pixels

_ROOM_ABOVE = 1.06


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """One cell: name and peak as plain text, its line with colour and dash, and the parts of its bar.

    The parts are pairs of name and bytes, from left to right; one part without a name where they are unknown.
    """

    name: str
    peak: str
    colour: str
    dash: str
    line: AlignedLine | None
    parts: tuple[tuple[str, float], ...]

    @property
    def stroke(self) -> Stroke:
        """The stroke of its line."""
        return Stroke(self.colour, 1.6, self.dash)


@dataclass(frozen=True, slots=True, eq=False)
class ComparisonScene:
    """What is drawn of a comparison."""

    cells: tuple[Drawn, ...]
    frame: Frame  # of the lines; its unit is that of the bars too
    longest: float  # the upper end of the bars' axis, in bytes
    what: str  # a title of the lines, such as "allocated, highest of each step"

    @property
    def part_names(self) -> tuple[str, ...]:
        """The parts of all bars, in order."""
        there = {name for cell in self.cells for name, _ in cell.parts}
        return tuple(name for name in OF_ALLOCATED if name in there)

    @property
    def curves(self) -> list[Curve]:
        """The ranges of the cells' runs, and over them their lines."""
        bands, lines = [], []
        for cell in self.cells:
            line = cell.line
            if line is None:
                continue
            if (line.high > line.low).any():
                edge = [*_points(line.at, line.high), *reversed(_points(line.at, line.low))]
                band = Curve(edge, fill=cell.colour, opacity=0.2, is_closed=True, is_key=False)
                bands.append(band)
            middle = _points(line.at, line.middle)
            lines.append(Curve(middle, cell.stroke, name=cell.name, tip=cell.name))
        return bands + lines

    @property
    def has_lines(self) -> bool:
        """Whether there are lines above the bars."""
        return any(cell.line is not None for cell in self.cells)


def build_scene(comparison: Comparison) -> ComparisonScene:
    """Return the scene of a comparison."""
    cells = tuple(
        Drawn(
            name_of(cell, NAME_LENGTH),
            peak_text(Peak(cell.figures["peak"].middle, cell.certainty)),
            *palette.DEVICES[at % len(palette.DEVICES)],
            line=cell.line,
            parts=_parts(cell.at_peak, cell.figures["peak"].middle),
        )
        for at, cell in enumerate(comparison.cells)
    )
    lines = [cell.line for cell in cells if cell.line is not None]
    heights = [float(np.nanmax(line.high)) for line in lines if not np.isnan(line.high).all()]
    highest = max(heights, default=0.0) or MIB
    longest = max((sum(size for _, size in cell.parts) for cell in cells), default=1.0) or 1.0
    by_step = comparison.by == "step"
    start = min((float(line.at[0]) for line in lines), default=0.0) if by_step else 0.0
    stop = max((float(line.at[-1]) for line in lines), default=1.0)
    top = _ROOM_ABOVE * highest
    divisor, unit = unit_for(max(top, longest))
    ticks = step_ticks(start, stop) if by_step else time_ticks(max(stop, 1e-3))
    levels = value_ticks(highest / divisor, unit)
    frame = Frame(start, max(stop, start + 1e-3), top, (divisor, unit), ticks, levels)
    return ComparisonScene(cells, frame, longest, _what(comparison))


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


def _parts(sizes: Mapping[str, float], peak: float) -> tuple[tuple[str, float], ...]:
    parts = tuple((name, sizes[name]) for name in OF_ALLOCATED if sizes.get(name, 0.0) > 0)
    return parts or ((("", peak),) if peak > 0 else ())


def _what(comparison: Comparison) -> str:
    spread = ", median and range" if any(cell.runs > 1 for cell in comparison.cells) else ""
    if comparison.by == "time":
        return f"{comparison.allocated_label} since the start of the cell{spread}"
    point = "step" if comparison.steps_a_point == 1 else f"{comparison.steps_a_point} steps"
    return f"{comparison.allocated_label}, highest of each {point}{spread}"
