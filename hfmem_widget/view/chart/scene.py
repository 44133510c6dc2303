"""The contents of a chart, before it is painted as SVG or Plotly; a pure function of a session."""

import math
from dataclasses import dataclass, replace

import numpy as np

from hfmem_widget.analysis.curve import (
    LEAST_SAMPLES,
    Gap,
    Points,
    curve,
    joined,
    runs_of,
    visible_gaps,
)
from hfmem_widget.analysis.facts import active_devices, end_of, label_of, peak_of
from hfmem_widget.analysis.others import METRIC, movement
from hfmem_widget.session import Device, Peak, Session, Span
from hfmem_widget.session.series import (
    HOST,
    LINES,
    OVERVIEW,
    SINGLY,
    SeriesLook,
    is_charted,
    over_ranks,
    row_of,
)
from hfmem_widget.text import MIB, format_bytes, format_duration, unit_for
from hfmem_widget.view import palette
from hfmem_widget.view.chart.fold import fold_of, folded
from hfmem_widget.view.chart.guides import DrawnGuide, guides_in
from hfmem_widget.view.chart.lanes import lay_lanes
from hfmem_widget.view.chart.layers import layers
from hfmem_widget.view.chart.shapes import (
    Bar,
    Curve,
    Frame,
    PointMark,
    Stroke,
    Ticks,
    Word,
    time_ticks,
    value_ticks,
)
from hfmem_widget.view.line import peak_name

CAPACITY_FROM = 0.6  # share of the capacity: where the data reach it, the capacity is drawn
DEVICE_USED_UP_TO = 2.0  # times the process's own data: up to there, memory in use is drawn
LABEL_ROOM, CLEARANCE = 0.11, 0.03  # shares of the height: room for a label, its distance to a line
AS_HIGH = 0.99  # share of the peak from which on a sample counts as equally high
TIME_UNITS = ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (0.001, "ms"))
_EDGE = 0.25  # closer to a side than this share of the width, the peak's label turns inwards
_EDGE_OF_MARK = 0.4  # the same for the word at a mark, which is longer
_REACH_OF_WORD = 0.7  # share of the width that a mark's word may cover in a narrow notebook
_LOW = 0.25  # below this share of the height there is no room for a word below a mark


@dataclass(frozen=True, slots=True)
class Line:
    """One series as it is drawn."""

    device: str
    metric: str
    label: str
    points: Points

    @property
    def is_aside(self) -> bool:
        """Whether the line is hidden until a click in the legend; the axis does not make room for it."""
        return self.device == HOST and self.row.aside_on_host

    @property
    def row(self) -> SeriesLook:
        """The look of the series."""
        return row_of(self.device, self.metric)


@dataclass(frozen=True, slots=True)
class PeakMark:
    """The highest point: seconds of the scene, and the height of its label's foot in bytes."""

    time: float
    peak: Peak
    text: str
    label_at: float


@dataclass(frozen=True, slots=True)
class Scene:
    """The contents of a chart: times in seconds since its left end, heights in bytes."""

    duration: float
    device: Device  # shown in full; each other device has its allocated line alone
    lines: tuple[Line, ...]  # in order of drawing
    peak: PeakMark | None
    capacity: float | None  # only where the data come near it
    ceiling: float  # the highest point drawn; labels stand between it and the top
    top: float  # the upper end of the vertical axis
    bars: tuple[Bar, ...]
    gaps: tuple[Gap, ...]
    layers: tuple[Curve, ...] = ()  # the known parts below the allocated line
    guides: tuple[DrawnGuide, ...] = ()  # near budgets, trends, out-of-memory errors
    times: Ticks | None = None  # with the time of day, for cells drawn end to end
    paused: float = 0.0  # seconds of pauses between cells that are not drawn

    @property
    def frame(self) -> Frame:
        """The axes."""
        unit, ticks = unit_for(self.top), self.times or time_ticks(self.duration)
        levels = value_ticks(self.ceiling / unit[0], unit[1])
        fits = (unit for unit in TIME_UNITS if self.duration >= 2 * unit[0])
        across = next(fits, TIME_UNITS[-1])
        return Frame(0.0, self.duration, self.top, unit, ticks, levels, across)

    @property
    def highest_aside(self) -> float:
        """The highest point of the lines that are hidden until a click; NaN without any."""
        return _highest_point([line for line in self.lines if line.is_aside])

    @property
    def lanes(self) -> int:
        """The number of lanes that the bars need."""
        return max((bar.lane + 1 for bar in self.bars), default=0)

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that have a line, the one shown in full first."""
        return tuple(dict.fromkeys((self.device.key, *(line.device for line in self.lines))))

    def name(self, line: Line) -> str:
        """Return the name of a line in the legend."""
        is_own, is_one_of_many = line.device == self.device.key, len(self.devices) > 1
        # Short, since the legend's columns are as wide as its longest name.
        if not is_own or (is_one_of_many and line.metric == "allocated"):
            return line.device
        names_both = is_one_of_many and all(each.metric == METRIC for each in self.lines)
        return f"{line.device} {line.label}" if names_both else line.label

    @property
    def budgets(self) -> list[DrawnGuide]:
        """The budgets, each a level line with its name at one end."""
        return [guide for guide in self.guides if guide.kind == "budget"]

    @property
    def ooms(self) -> list[DrawnGuide]:
        """The out-of-memory errors, in order of time; the last one has a word."""
        ooms = [guide for guide in self.guides if guide.kind == "oom"]
        return sorted(ooms, key=lambda oom: oom.stop)

    @property
    def line_curves(self) -> list[Curve]:
        """The lines and the layers below them, in order of drawing."""
        curves = ((curve, line) for line in self.lines for curve in _curves_of(line, self))
        return [replace(curve, is_aside=line.is_aside) for curve, line in curves]

    @property
    def guide_curves(self) -> list[Curve]:
        """The lines of budgets, and those of trends with their ranges."""
        return [
            curve for guide in self.guides if guide.kind != "oom" for curve in _guide_curves(guide)
        ]

    @property
    def marks(self) -> list[PointMark]:
        """The crossings of budgets, the peak, and the out-of-memory errors, in order of drawing."""
        marks = [
            PointMark("triangle", at, budget.last, "crossed", _tip(budget, "crossed at", at))
            for budget in self.budgets
            if (at := budget.crossed_at) is not None
        ]
        if self.peak is not None:
            marks.append(PointMark("dot", self.peak.time, self.peak.peak.value, "peak"))
        for oom in self.ooms:
            allocated = f"with {format_bytes(oom.last)} allocated, at"
            tip = _tip(oom, allocated, oom.stop)
            marks.append(PointMark("cross", oom.stop, oom.last, "out of memory", tip))
        return marks

    @property
    def words(self) -> list[Word]:
        """The names of level lines, of the peak, and of the newest out-of-memory error."""
        peak, capacity, ooms = self.peak, self.capacity, self.ooms
        # A level line has its name at the end that the peak's label leaves free.
        side = "right" if peak is not None and peak.time > self.duration / 2 else "left"
        # The heading has the capacity's figure anyway, so its name may give way to a budget's.
        names_it = capacity is not None and all(
            abs(capacity - budget.last) >= LABEL_ROOM * self.top for budget in self.budgets
        )
        words = [Word("capacity", capacity, side)] if capacity is not None and names_it else []
        for budget in self.budgets:
            # Otherwise the capacity's line would run through it.
            is_above = capacity is None or names_it or budget.last >= capacity
            is_boxed = budget.is_crossed
            words.append(Word(budget.label, budget.last, side, None, is_above, is_boxed))
        if peak is not None:
            side, level = _side(peak.time / self.duration, _EDGE), peak.peak.value
            words.append(Word(peak.text, peak.label_at, side, peak.time, points_at=level))
        if ooms:
            # Below the mark and its neighbours where there is room, since the peak's label stands above.
            time, reach = ooms[-1].stop, _REACH_OF_WORD * self.duration
            near = [oom.last for oom in ooms if time - oom.stop <= reach]
            is_above = min(near) < _LOW * self.top
            side, level = _side(time / self.duration, _EDGE_OF_MARK), (min, max)[is_above](near)
            text = ooms[-1].label
            words.append(Word(text, level, side, time, is_above, is_boxed=True, is_off=True))
        return words


def _side(share: float, edge: float) -> str:
    return "right" if share < edge else "left" if share > 1 - edge else ""


def build_scene(session: Session, span: Span | None = None, *, columns: int) -> Scene | None:
    """Return the scene of a span, or of the whole session; None with too few samples for a line.

    Each line has at most about two points for each of the picture's `columns`.
    """
    fold = None if span else fold_of(session)
    times, paused = (fold.ticks(session), fold.paused) if fold else (None, 0.0)
    session = folded(session, fold) if fold else session
    ends = [end_of(session, each) for each in ([span] if span else session.spans)]
    start, stop = span.start if span else 0.0, max(ends, default=session.last_sample.time)
    devices = active_devices(session, span)
    part = session.between(start, stop)
    if len(part) < LEAST_SAMPLES or stop <= start or not devices:
        return None
    # Where this process has used no device, the chart is about those that other processes filled.
    others_use = movement(session, span)
    moved = others_use.devices if others_use.leads else ()
    metric = METRIC if moved else "allocated"
    devices = tuple(facts.device for facts in moved) or devices
    peaks = {device.key: _highest(session, span, f"{device.key}/{metric}") for device in devices}
    heights = {key: -1.0 if peak is None else peak.value for key, peak in peaks.items()}
    primary = max(devices, key=lambda device: heights[device.key])
    peak = peaks[primary.key]

    def line(device: Device, metric: str) -> Line:
        index = session.index(f"{device.key}/{metric}")
        points = [] if index is None else curve(part, index, start, stop, columns=columns)
        return Line(device.key, metric, label_of(session, device, metric), points)

    metrics = [each for each in LINES if each != METRIC and is_charted(primary.key, each)]
    if primary.key == OVERVIEW:
        worst = session.ranks.worst if session.ranks is not None else None
        of_overview = (series.metric for series in session.series if series.device == OVERVIEW)
        metrics = over_ranks(of_overview, None if worst is None else worst.rank)
    lines = [] if moved else [line(primary, each) for each in metrics]
    lines = [each for each in lines if not each.row.least > _highest_point([each])]
    others = [line(device, metric) for device in devices if device.key != primary.key]
    used = line(primary, METRIC)
    in_sight = [each for each in lines if not each.is_aside]
    data = _highest_point([*in_sight, *others, *([used] if moved else [])], peak)
    if math.isnan(data):
        return None
    if _highest_point([used]) <= DEVICE_USED_UP_TO * data:
        lines.insert(0, used)
    lines = [each for each in (*lines, *others) if each.points]
    capacity = primary.total if data >= CAPACITY_FROM * primary.total else None
    other_keys = dict.fromkeys(each.device for each in lines if each.device != primary.key)
    highest = peak.value if peak else data
    guides = guides_in(session, primary.key, (start, stop), highest, other_keys)
    # An out-of-memory error reports the bytes that a sampled peak may have missed.
    oom_levels = [guide.last for guide in guides if guide.kind == "oom"]
    in_sight = [each for each in lines if not each.is_aside]
    ceiling = max([_highest_point(in_sight, peak), *oom_levels]) or float(MIB)
    levels = [guide.last for guide in guides if guide.kind == "budget"]
    levels += [] if capacity is None else [capacity]
    label_at, top = _layout(ceiling, levels)
    key = f"{primary.key}/{metric}"
    return Scene(
        stop - start,
        primary,
        tuple(lines),
        None if peak is None else _mark(session, key, peak, (start, stop), label_at),
        capacity,
        ceiling,
        top,
        tuple(lay_lanes(session, primary.key, start, stop)),
        tuple((one - start, two - start) for one, two in visible_gaps(part, start, stop, columns)),
        layers(session, primary, part, (start, stop), columns=columns),
        guides,
        times,
        paused,
    )


def _highest(session: Session, span: Span | None, key: str) -> Peak | None:
    """Return the peak of a span; of a session, the highest of its spans and its samples."""
    peaks = [peak_of(session, each, key) for each in (session.spans if span is None else [span])]
    if span is None:
        peaks.append(Peak(session.peak(key), "sampled"))
    known_peaks = [peak for peak in peaks if not math.isnan(peak.value)]
    # max() returns the first of equals: a span's own peak comes before that of the samples.
    return max(known_peaks, key=lambda peak: peak.value, default=None)


def _highest_point(lines: list[Line], peak: Peak | None = None) -> float:
    heights = [value for line in lines for _, value in line.points if not math.isnan(value)]
    return max([*heights, *([peak.value] if peak else [])], default=math.nan)


def _layout(ceiling: float, levels: list[float]) -> tuple[float, float]:
    """Return the height of the peak's label, clear of every level line, and the top of the axis; bytes."""
    top = max(ceiling / (1 - LABEL_ROOM - CLEARANCE), max(levels, default=0.0) / (1 - LABEL_ROOM))
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
    """Place the peak in the shortest span or step that has it; in a cell, at the first sample as high."""
    device, _, metric = key.partition("/")
    stretches = [
        (span.start, end_of(session, span), peak_of(session, span, key).value, span.parent is None)
        for span in session.spans
    ]
    if metric == "allocated":
        stretches += [
            (group.start, group.stop, group.devices[device].peak, False)
            for group in session.steps
            if device in group.devices
        ]
    inside = [
        (stop - start, start, stop, is_cell)
        for start, stop, highest, is_cell in stretches
        if view[0] <= start and stop <= view[1] and highest == peak.value
    ]
    _, start, stop, is_cell = min(inside, default=(0.0, *view, True))
    time, index = (start + stop) / 2, session.index(key)
    part = session.between(start, stop)
    if index is not None and not np.isnan(part.high[:, index]).all():
        time = min(max(float(part.time[np.nanargmax(part.high[:, index])]), start), stop)
        before = session.between(view[0] if is_cell else time, time)
        near = before.time[before.high[:, index] >= AS_HIGH * peak.value]
        time = min([time, *(max(at, view[0]) for at in near[:1].tolist())])
    text = peak_name(session.ranks if device == OVERVIEW else None, peak)
    return PeakMark(time - view[0], peak, text, label_at)


_OPACITY = {"haze": 0.22, "area": 0.28, "band": 0.4}

BAND = "lowest to highest rank"


def _tip(guide: DrawnGuide, happened: str, at: float) -> str:
    return f"{guide.label}, {happened} {format_duration(at)}"


def _guide_curves(guide: DrawnGuide) -> list[Curve]:
    start, stop, first, last, name = guide.start, guide.stop, guide.first, guide.last, guide.label
    line, (low, high) = [(start, first), (stop, last)], guide.band
    if guide.kind == "budget":
        return [Curve(line, Stroke(palette.PEAK, 1, "6 4"), name=name, tip=name, is_key=False)]
    lower = [(stop, max(0.0, last - high)), (start, max(0.0, first - low))]
    outline = [(start, first + low), (stop, last + high), *lower]
    band = Curve(outline, fill=palette.PEAK, opacity=0.2, is_closed=True, name=name, is_key=False)
    return [
        *([band] if low or high else []),
        Curve(line, Stroke(palette.CASING, 3.4), name=name, is_key=False),
        Curve(line, Stroke(palette.PEAK, 1.6), name=name, tip=name, is_key=False),
    ]


def _curves_of(line: Line, scene: Scene) -> list[Curve]:
    points, name = line.points, scene.name(line)
    if line.device != scene.device.key:
        strokes = palette.DEVICES
        colour, dash = strokes[scene.devices.index(line.device) % len(strokes)]
        return [Curve(points, Stroke(colour, 1.2, dash), name=name, tip=name)]
    fill, drawn = line.row.color, line.row.drawn
    if drawn == "dashes":
        return [Curve(points, Stroke(fill, 1, "4 3", faint=0.55), name=name, tip=name)]
    if drawn == "area" and scene.layers:
        # From the top down, each layer over the one above it: side by side, the page would shine through.
        top = Stroke(palette.INK, 1, faint=0.6)
        return [*reversed(scene.layers), Curve(points, top, name=name, tip=name)]
    if drawn == "line":
        place = SINGLY.index(line.metric) + 1 if line.metric in SINGLY else 0
        return [Curve(points, Stroke(fill, 1.4, line.row.dash), name=name, tip=name, rank=place)]
    if drawn == "band":
        edge = Curve(points, Stroke(fill, 0.8), name=name, tip=name, is_key=False)
        return [*_band(line, scene), edge]
    stroke = Stroke(fill, 1.3) if drawn == "area" else None
    return [Curve(points, stroke, fill, _OPACITY[drawn], name=name, tip=name)]


def _band(lowest: Line, scene: Scene) -> list[Curve]:
    highest = [runs_of(line.points) for line in scene.lines if line.metric == "allocated"]
    low_runs = runs_of(lowest.points)
    if not highest or len(highest[0]) != len(low_runs):
        return []
    pairs = zip(highest[0], low_runs, strict=True)
    outline = joined([*high, *reversed(low)] for high, low in pairs)
    colour = lowest.row.color
    return [Curve(outline, fill=colour, opacity=_OPACITY["band"], is_closed=True, name=BAND)]
