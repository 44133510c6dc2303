"""The picture before it is drawn: ranges, lines, the peak, bars, gaps. A pure function of a session."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from hfmem_widget.analysis.curve import (
    LEAST_SAMPLES,
    Gap,
    Points,
    curve,
    joined,
    runs_of,
    thinned,
    visible_gaps,
)
from hfmem_widget.analysis.facts import active_devices, end_of, label_of, peak_of
from hfmem_widget.analysis.moved import METRIC, moved_devices
from hfmem_widget.session import Device, Peak, Session, Span
from hfmem_widget.session.series import LINES, TABLE, Row
from hfmem_widget.text import unit_for
from hfmem_widget.view.chart.axis import time_ticks, value_ticks
from hfmem_widget.view.chart.bar import Bar
from hfmem_widget.view.chart.guides import DrawnGuide, guides_in, marks_in
from hfmem_widget.view.chart.lanes import lay_lanes
from hfmem_widget.view.chart.layers import Layer, layers
from hfmem_widget.view.chart.shapes import Frame
from hfmem_widget.view.line import peak_text

_One = TypeVar("_One")

CAPACITY_FROM = 0.6
DEVICE_USED_UP_TO = 2.0

LABEL_ROOM = 0.11
CLEARANCE = 0.03
"""Shares of the plot's height: what a label needs, and how far it keeps from a line."""

TIME_UNITS = ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (0.001, "ms"))
LEAST_OF_UNIT = 2
"""As long in a unit a scene is at least, for times to be said in it."""

_EDGE = 0.25
"""Closer to a side than this share of the width, the peak's label turns inwards."""

_EDGE_OF_MARK = 0.4
"""The same of a mark's word, which is longer."""

_REACH_OF_WORD = 0.7
"""Of the width: as far a mark's word may reach, in a narrow notebook."""

_LOW = 0.25
"""Below this share of the height there is no room for a word below a mark."""


@dataclass(frozen=True, slots=True)
class Line:
    """One series as it is drawn."""

    device: str
    metric: str
    label: str
    points: Points

    @property
    def row(self) -> Row:
        """How it is drawn."""
        return TABLE[self.metric]

    @property
    def runs(self) -> list[Points]:
        """The points between breaks."""
        return runs_of(self.points)


@dataclass(frozen=True, slots=True)
class PeakMark:
    """Where the highest point stands, in seconds of the scene and bytes, and its label's foot."""

    time: float
    peak: Peak
    text: str
    label_at: float


@dataclass(frozen=True, slots=True)
class MarkWord:
    """Where a mark's word stands: on which side of it ("left", "right" or ""), above or below which bytes."""

    mark: DrawnGuide
    side: str
    level: float
    is_above: bool


@dataclass(frozen=True, slots=True)
class Scene:
    """What is to be drawn. Times are seconds since its own beginning, heights are bytes.

    Attributes
    ----------
    duration : float
    device : Device
        The one shown in full; the others only have their allocated line.
    lines : tuple of Line
        In order of drawing.
    peak : PeakMark or None
    capacity : float or None
        Where the data come near it.
    ceiling, top : float
        The highest of what is drawn, and the upper end of the vertical axis; labels stand between.
    bars : tuple of Bar
    gaps : tuple of (float, float)
    layers : tuple of Layer
        What stands below the allocated line of the device shown in full, where it is known.
    guides : tuple of DrawnGuide
        Its budgets, where the data come near them, its trends, and where any of the devices ran out.
    """

    duration: float
    device: Device
    lines: tuple[Line, ...]
    peak: PeakMark | None
    capacity: float | None
    ceiling: float
    top: float
    bars: tuple[Bar, ...]
    gaps: tuple[Gap, ...]
    layers: tuple[Layer, ...] = ()
    guides: tuple[DrawnGuide, ...] = ()

    @property
    def budgets(self) -> list[DrawnGuide]:
        """The level lines with a word at one end."""
        return [one for one in self.guides if one.kind == "budget"]

    @property
    def marks(self) -> list[DrawnGuide]:
        """The instants at which memory ran out; the last is the one with a word."""
        return sorted((one for one in self.guides if one.kind == "oom"), key=lambda one: one.time)

    @property
    def words_at_left(self) -> bool:
        """Whether lines are named at their left end: the one that the peak's label leaves free."""
        return self.peak is not None and self.peak.time > self.duration / 2

    @property
    def names_capacity(self) -> bool:
        """Whether the word for the capacity has room; its figure is among the headings anyway."""
        return self.capacity is not None and not any(
            abs(self.capacity - one.level) < LABEL_ROOM * self.top for one in self.budgets
        )

    @property
    def unit(self) -> tuple[float, str]:
        """Divisor and name of the unit that suits the picture."""
        return unit_for(self.top)

    @property
    def time_unit(self) -> tuple[float, str]:
        """Divisor, of seconds, and name of the unit in which instants read well."""
        fits = (one for one in TIME_UNITS if self.duration >= one[0] * LEAST_OF_UNIT)
        return next(fits, TIME_UNITS[-1])

    def coarser(self, columns: int) -> Scene:
        """Return the same picture with its lines in fewer points, as `build_scene` chooses them."""

        def stay(runs: Iterable[Points]) -> list[list[int]]:
            return [thinned(run, self.duration, columns) for run in runs]

        lines = [
            replace(line, points=joined(_at(line.runs, stay(line.runs)))) for line in self.lines
        ]
        # The top of the stack decides for all of it, so that what stands above each other was there at once.
        rows = stay(self.layers[-1].runs) if self.layers else []
        layers = [
            Layer(layer.name, tuple(_at(layer.runs, rows)), tuple(_at(layer.heights, rows)))
            for layer in self.layers
        ]
        return replace(self, lines=tuple(lines), layers=tuple(layers))

    @property
    def frame(self) -> Frame:
        """What the lines are drawn in."""
        divisor, unit = self.unit
        levels = value_ticks(self.ceiling / divisor, unit)
        return Frame(
            0.0,
            self.duration,
            self.top,
            self.unit,
            time_ticks(self.duration),
            levels,
            self.time_unit,
        )

    @property
    def peak_side(self) -> str:
        """Which side of its point the peak's label stands on: "left", "right", or "" for above it."""
        share = 0.5 if self.peak is None else self.peak.time / self.duration
        return "right" if share < _EDGE else "left" if share > 1 - _EDGE else ""

    @property
    def mark_word(self) -> MarkWord | None:
        """The word of the newest mark: below it and those near it, for the peak's label stands above."""
        if not self.marks:
            return None
        newest = self.marks[-1]
        near = [
            one.level
            for one in self.marks
            if newest.time - one.time <= _REACH_OF_WORD * self.duration
        ]
        is_above = min(near) < _LOW * self.top
        share = newest.time / self.duration
        side = "right" if share < _EDGE_OF_MARK else "left" if share > 1 - _EDGE_OF_MARK else ""
        return MarkWord(newest, side, max(near) if is_above else min(near), is_above=is_above)

    def name(self, line: Line) -> str:
        """Return what a line is called in the legend."""
        if line.device != self.device.key:
            return line.device
        # As the others' lines; the legend's columns are as wide as its longest name.
        if len(self.devices) > 1 and line.metric == "allocated":
            return line.device
        told = len(self.devices) > 1 and all(one.metric == METRIC for one in self.lines)
        return f"{line.device} {line.label}" if told else line.label

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that have a line, the one shown in full first."""
        return tuple(dict.fromkeys((self.device.key, *(line.device for line in self.lines))))


def _at(runs: Sequence[list[_One]], rows: Sequence[list[int]]) -> list[list[_One]]:
    return [[run[at] for at in kept] for run, kept in zip(runs, rows, strict=True)]


def build_scene(session: Session, span: Span | None = None, *, columns: int) -> Scene | None:
    """Return what to draw of a span, or of the whole session; None where there is too little for it.

    Parameters
    ----------
    columns : int
        How finely time is resolved; each line has about two points a column at most.
    """
    start, stop = (span.start, end_of(session, span)) if span else (0.0, _session_end(session))
    devices = active_devices(session, span)
    part = session.between(start, stop)
    if len(part) < LEAST_SAMPLES or stop <= start or not devices:
        return None
    # Where this process has used no device, those that others filled are what there is to see.
    moved = moved_devices(session, span)
    metric = METRIC if moved else "allocated"
    devices = tuple(one.device for one in moved) or devices
    primary = _most_used(session, span, devices, metric)

    def line(device: Device, metric: str) -> Line:
        index = session.index(f"{device.key}/{metric}")
        points = [] if index is None else curve(part, index, start, stop, columns=columns)
        return Line(device.key, metric, label_of(session, device, metric), points)

    lines = [] if moved else [line(primary, one) for one in LINES if one != METRIC]
    others = [line(device, metric) for device in devices if device.key != primary.key]
    peak = _highest(session, span, primary, metric)
    used = line(primary, METRIC)
    data = _highest_point([*lines, *others, *([used] if moved else [])], peak)
    if math.isnan(data):
        return None
    if _highest_point([used]) <= DEVICE_USED_UP_TO * data:
        lines.insert(0, used)
    lines = [one for one in (*lines, *others) if one.points]
    capacity = primary.total if data >= CAPACITY_FROM * primary.total else None
    guides = guides_in(session, primary.key, (start, stop), peak.value if peak else data)
    also = {line.device: None for line in lines if line.device != primary.key}
    guides += marks_in(session, also, (start, stop))
    # What a sampled peak missed, the allocator told as it ran out.
    heights = [one.level for one in guides if one.kind == "oom"]
    ceiling = max([_highest_point(lines, peak), *heights]) or 1.0
    levels = [one.level for one in guides if one.kind == "budget"]
    label_at, top = _layout(ceiling, [*levels, *([] if capacity is None else [capacity])])
    return Scene(
        stop - start,
        primary,
        tuple(lines),
        None
        if peak is None
        else _mark(session, f"{primary.key}/{metric}", peak, (start, stop), label_at),
        capacity,
        ceiling,
        top,
        tuple(lay_lanes(session, primary.key, start, stop)),
        tuple((one - start, two - start) for one, two in visible_gaps(part, start, stop, columns)),
        layers(session, primary, part, (start, stop), columns=columns),
        guides,
    )


def _session_end(session: Session) -> float:
    return max((end_of(session, span) for span in session.spans), default=session.last_sample.time)


def _most_used(
    session: Session, span: Span | None, devices: tuple[Device, ...], metric: str
) -> Device:
    def height(device: Device) -> float:
        peak = _highest(session, span, device, metric)
        return -1.0 if peak is None else peak.value

    return max(devices, key=height)


def _highest(session: Session, span: Span | None, device: Device, metric: str) -> Peak | None:
    """Return the peak of a span; of a session, that of the span that rose highest, or of the samples."""
    key = f"{device.key}/{metric}"
    if span is not None:
        known = [peak_of(session, span, key)]
    else:
        known = [peak_of(session, one, key) for one in session.spans]
        known.append(Peak(session.peak(key), "sampled"))
    known = [peak for peak in known if not math.isnan(peak.value)]
    # max() returns the first of equals: a span's own peak stands before the samples'.
    return max(known, key=lambda peak: peak.value, default=None)


def _highest_point(lines: list[Line], peak: Peak | None = None) -> float:
    heights = [value for line in lines for _, value in line.points if not math.isnan(value)]
    return max([*heights, *([peak.value] if peak else [])], default=math.nan)


def _layout(ceiling: float, levels: list[float]) -> tuple[float, float]:
    """Return where the peak's label stands, clear of every line, and how high the axis must reach."""
    highest = max([0.0, *levels])
    top = max(ceiling / (1 - LABEL_ROOM - CLEARANCE), highest / (1 - LABEL_ROOM))
    foot = ceiling
    for level in sorted(level for level in levels if level > ceiling):
        if level - foot > (LABEL_ROOM + 2 * CLEARANCE) * top:
            break
        foot = level
        top = max(top, foot / (1 - LABEL_ROOM - CLEARANCE))
    return foot + CLEARANCE * top, top


def _mark(
    session: Session, key: str, peak: Peak, view: tuple[float, float], label_at: float
) -> PeakMark:
    """Place the peak: in the shortest span or step that has it, where the samples are highest."""
    start, stop = view
    device, _, metric = key.partition("/")
    inside = [
        (end_of(session, one) - one.start, one.start, end_of(session, one))
        for one in session.spans
        if start <= one.start
        and end_of(session, one) <= stop
        and peak_of(session, one, key).value == peak.value
    ]
    inside += [
        (one.stop - one.start, one.start, one.stop)
        for one in session.steps
        if start <= one.start
        and one.stop <= stop
        and metric == "allocated"
        and device in one.devices
        and one.devices[device].peak == peak.value
    ]
    _, start, stop = min(inside, default=(0.0, start, stop))
    time = (start + stop) / 2
    index = session.index(key)
    part = session.between(start, stop)
    if index is not None:
        column = part.high[:, index]
        if not all(math.isnan(value) for value in column):
            row = max(range(len(column)), key=lambda at: (not math.isnan(column[at]), column[at]))
            time = min(max(float(part.time[row]), start), stop)
    return PeakMark(time - view[0], peak, f"peak {peak_text(peak)}", label_at)
