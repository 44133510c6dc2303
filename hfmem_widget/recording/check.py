"""One line of a recording, taken apart: data of ours, or nothing. Lines may come from strangers.

All limits are applied here, and texts are made plain. A line that fails is no error: whoever reads counts it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, get_args

import numpy as np

from hfmem_widget.recording import limits
from hfmem_widget.recording.fields import (
    FAULTS,
    Wrong,
    choice,
    count,
    device_key,
    items,
    known,
    mapping,
    number,
    require,
    text,
)
from hfmem_widget.session import (
    Certainty,
    Contents,
    Device,
    Finding,
    Guide,
    Peak,
    Phase,
    Polling,
    Sample,
    Series,
    Span,
    SpanKind,
)
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.session.ranks import Rank
from hfmem_widget.session.steps import CERTAINTIES, FIGURES, PER_DEVICE
from hfmem_widget.session.timeline import Floats

_PEAK, _CERTAINTY, _WORST = (PER_DEVICE.index(name) for name in ("peak", "certainty", "worst"))
_CERTAIN = frozenset(range(len(CERTAINTIES)))
_METRIC = re.compile(r"[a-z][a-z0-9_]{0,63}")
_FIGURES = frozenset({int, float, type(None)})
_BRACKETS = re.compile(rb"[][{}]")
_SHORT = 1 << 16
"""Bytes of a line that the parser may take as it is: its own limit of depth holds."""


@dataclass(frozen=True, slots=True)
class Head:
    """What a recording is of; `version` is the format's, `run` the id of what `rank` is one of."""

    version: int
    started: float
    label: str
    interval: float
    software: Mapping[str, str]
    rank: Rank | None = None
    run: str = ""


@dataclass(frozen=True, slots=True)
class Columns:
    """All devices, and the series from column `first` on."""

    first: int
    devices: tuple[Device, ...]
    series: tuple[Series, ...]


@dataclass(frozen=True, slots=True)
class Rows:
    """A block of samples: `time` has shape ``(samples,)``, `values` ``(samples, columns)``."""

    block: int
    wall: float
    time: Floats
    columns: tuple[int, ...]
    values: Floats


@dataclass(frozen=True, slots=True)
class Fold:
    """The extremes of `samples` samples, each of shape ``(series,)``."""

    start: float
    stop: float
    samples: int
    low: Floats
    high: Floats
    last: Floats


@dataclass(frozen=True, slots=True)
class SpanLine:
    """A span; which columns its readings and peaks belong to is known by whoever knows the columns."""

    id: int
    parent: int | None
    kind: SpanKind
    label: str
    start: float
    stop: float | None
    outcome: str
    columns: tuple[int, ...]
    before: tuple[float, ...]
    after: tuple[float, ...]
    peaks: tuple[tuple[float, Certainty] | None, ...]
    counts: Mapping[str, float]

    def span(self, series: tuple[Series, ...]) -> Span:
        """Return the span, its peaks by the keys of their series."""
        peaks = {
            series[column].key: Peak(*peak)
            for column, peak in zip(self.columns, self.peaks, strict=False)
            if peak is not None and column < len(series)
        }
        after = None if self.stop is None else Sample(self.stop, self.after)
        before = Sample(self.start, self.before)
        return Span(
            *(self.id, self.kind, self.label, self.start, before, self.stop, after, peaks),
            *(self.parent, self.outcome, self.counts),
        )


@dataclass(slots=True)  # frozen, to make one would take three times as long
class StepsLine:
    """Rows of the table of steps, and how many steps there were; no `devices` if they are those before.

    The rows are of one width. A line has few of them, for which arrays take longer than lists.
    """

    devices: tuple[str, ...] | None
    count: int
    rows: list[list[float]]


@dataclass(frozen=True, slots=True)
class PhasesLine:
    """What was told apart within an outermost span: phases whose highest spans are named by their ids."""

    root: int
    rows: tuple[tuple[Phase, Mapping[str, int]], ...]
    spans: tuple[SpanLine, ...]


@dataclass(frozen=True, slots=True)
class Item:
    """A note, a finding or a guide and its place in the list; None where the list ends there."""

    kind: Literal["note", "finding", "guide"]
    place: int
    item: str | Finding | Guide | None


@dataclass(frozen=True, slots=True)
class Gap:
    """A stretch without samples."""

    start: float
    stop: float


@dataclass(frozen=True, slots=True)
class End:
    """How the run ended, and how the poller did, of which the head has the interval."""

    time: float
    stopped: float | None
    broken_off: bool
    polling: Polling
    software: Mapping[str, str]


Line = (
    Head | Columns | Rows | Fold | SpanLine | StepsLine | PhasesLine | Item | Gap | Contents | End
)


def parse(line: bytes) -> Line | None:
    """Return what a line, without its end, says; None where it says nothing that we know.

    Raises `ValueError` if it is not what a recording may have.
    """
    is_fine = len(line) <= limits.LONGEST_LINE and (len(line) <= _SHORT or not _is_deep(line))
    require(is_fine, "too long or too deep")
    try:
        words = line.decode().strip()
        fields, end = _SCAN(words, 0)
        require(end == len(words), "more than one value")
        read = _READERS.get(fields["k"])
        return None if read is None else read(fields)
    except (*FAULTS, StopIteration) as error:
        raise Wrong(str(error)) from None


def _is_deep(line: bytes) -> bool:
    depth = 0
    for bracket in _BRACKETS.finditer(line):
        depth += 1 if bracket[0] in b"[{" else -1
        if depth > limits.DEEPEST:
            return True
    return False


def _no_constant(name: str) -> float:
    raise Wrong(name)


_JSON: Any = json.JSONDecoder(parse_constant=_no_constant)
_SCAN = _JSON.scan_once
"""Made once: it takes as long as to read a short line."""


def _places(value: object) -> tuple[int, ...]:
    """Return numbers of columns."""
    places = items(value)
    is_number = {int}.issuperset(map(type, places)) and (not places or min(places) >= 0)
    require(is_number, "not a column")
    return tuple(places)


def _floats(value: object, most: int = limits.MOST_SERIES) -> Floats:
    figures = items(value, most)
    return _array(figures, figures)


def _table(rows: list[Any], width: int) -> Floats:
    table = _array(rows, chain.from_iterable(rows))
    require(not rows or table.shape == (len(rows), width), "rows of other lengths")
    return table.reshape(-1, width)


def _array(value: list[Any], figures: Iterable[object]) -> Floats:
    """Return lists of figures as an array, NaN for null: checked together, since there are so many."""
    require(_FIGURES.issuperset(map(type, figures)), "not a figure")
    return _within_range(np.array(value, dtype=np.float64))


def _within_range(values: Floats) -> Floats:
    # `any` takes as long as all the rest of a short line.
    require(not np.count_nonzero(np.abs(values) >= limits.LARGEST), "a figure out of range")
    return values


def _head(fields: Mapping[str, Any]) -> Head:
    choice(fields["format"], (limits.FORMAT,))
    return Head(
        count(fields["version"]),
        known(fields["started"]),
        text(fields.get("label", "")),
        known(fields.get("interval", 0.1)),
        _software(fields),
        _rank(fields) if "rank" in fields else None,
        text(fields.get("run", ""), 64),
    )


def _rank(fields: Mapping[str, Any]) -> Rank:
    world = count(fields["world"], limits.MOST_RANKS + 1)
    return Rank(
        count(fields["rank"], world),
        count(fields.get("local", 0), limits.MOST_RANKS),
        world,
        count(fields.get("attempt", 0), limits.MOST_RANKS),
        text(fields.get("host", ""), 64),
        count(fields.get("pid", 0)),
        text(fields.get("engine", ""), 40),
    )


def _software(fields: Mapping[str, Any]) -> Mapping[str, str]:
    return mapping(fields.get("software", {}), lambda version: text(version, 40))


def _series(key: object, label: object) -> Series:
    device, _, metric = text(key).partition("/")
    require(_METRIC.fullmatch(metric), "not a series")
    return Series(device_key(device), metric, text(label))


def _device(fields: Mapping[str, Any]) -> Device:
    return Device(
        device_key(fields["key"]),
        text(fields.get("name", "")),
        text(fields.get("uuid", "")),
        number(fields.get("total")),
        bool(fields.get("provisional", False)),
        shared=number(fields.get("shared") or 0),
    )


def _columns(fields: Mapping[str, Any]) -> Columns:
    series, labels = items(fields["series"]), items(fields["labels"])
    first = count(fields["first"], limits.MOST_SERIES - len(series) + 1)
    devices = tuple(map(_device, items(fields["devices"])))
    return Columns(first, devices, tuple(map(_series, series, labels)))


def _rows(fields: Mapping[str, Any]) -> Rows:
    time = _floats(fields["t"], limits.MOST_IN_BLOCK)
    columns, values = _places(fields["s"]), items(fields["v"])
    most = max(len(columns), limits.MOST_FIGURES)
    fits = len(columns) == len(values) and len(columns) * len(time) <= most
    require(fits, "too few columns, or too many")
    require((np.diff(time) >= 0).all() and not np.isnan(time).any(), "times that run backwards")
    require(len(time) or not columns, "columns without samples")
    block = np.empty((len(time), len(columns)))
    stands = [len(column) == 1 for column in values]
    still, moves = np.flatnonzero(stands), np.flatnonzero(np.logical_not(stands))
    block[:, still] = _table([values[at] for at in still], 1).T
    block[:, moves] = _added_up(_table([values[at] for at in moves], len(time) or 1)).T
    return Rows(count(fields["n"]), known(fields["w"]), time, columns, block)


def _added_up(differences: Floats) -> Floats:
    """Return the values of columns, each written as the difference from the last that was available."""
    is_missing = np.isnan(differences)
    values = _within_range(np.where(is_missing, 0.0, differences).cumsum(axis=1))
    return np.where(is_missing, np.nan, values)


def _fold(fields: Mapping[str, Any]) -> Fold:
    start, stop = map(known, items(fields["t"], 2))
    parts = [items(fields[name]) for name in ("low", "high", "last")]
    low, high, last = _table(parts, len(parts[0]))
    is_fine = start <= stop and not np.count_nonzero(low > high)
    require(is_fine, "extremes that do not go together")
    return Fold(start, stop, count(fields["samples"]), low, high, last)


def _span(fields: Mapping[str, Any]) -> SpanLine:
    start, stop, parent = known(fields["start"]), fields["stop"], fields["parent"]
    require(stop is None or known(stop) >= start, "it ends before it begins")
    peaks = [
        None if peak is None else (known(peak), choice(certainty, CERTAINTIES))
        for peak, certainty in zip(items(fields["peak"]), items(fields["certainty"]), strict=True)
    ]
    return SpanLine(
        id=count(fields["id"]),
        # A span lies in one that was opened before it: there is no circle.
        parent=None if parent is None else count(parent, fields["id"]),
        kind=choice(fields["kind"], get_args(SpanKind)),
        label=text(fields["label"]),
        start=start,
        stop=None if stop is None else known(stop),
        outcome=text(fields["outcome"]),
        columns=_places(fields["s"]),
        before=tuple(_floats(fields["before"]).tolist()),
        after=tuple(_floats(fields["after"]).tolist()),
        peaks=tuple(peaks),
        counts=mapping(fields["counts"], number),
    )


def _steps(fields: Mapping[str, Any]) -> StepsLine:
    devices = tuple(map(device_key, items(fields["devices"]))) if "devices" in fields else None
    rows = items(fields["rows"], limits.MOST_IN_BLOCK)
    width = len(rows[0]) if rows else len(FIGURES)
    figures = list(chain.from_iterable(rows))
    kinds = set(map(type, figures))
    require(kinds <= _FIGURES, "not a figure")
    is_known = type(None) not in kinds
    told = figures if is_known else [one for one in figures if one is not None]
    in_range = not told or (max(told) < limits.LARGEST and min(told) > -limits.LARGEST)
    require(in_range, "a figure out of range")
    devices_told, left = divmod(width - len(FIGURES), len(PER_DEVICE))
    require(devices_told >= 0 and not left, "steps of no width that there is")
    begins = range(len(FIGURES), width, len(PER_DEVICE))
    for row in rows:  # what is null cannot be compared
        require(len(row) == width, "rows of other lengths")
        parent, first, last, start, stop, *_ = row
        is_in_order = parent >= 0 <= first <= last and start >= 0 <= stop
        require(is_in_order, "steps out of order")
        for at in begins:
            is_told = row[at + _CERTAINTY] in _CERTAIN and row[at + _WORST] is not None
            require(row[at + _PEAK] is None or is_told, "peaks of no step")
    if not is_known:
        rows = [[NOT_AVAILABLE if one is None else one for one in row] for row in rows]
    return StepsLine(devices, count(fields["count"]), rows)


def _phases(fields: Mapping[str, Any]) -> PhasesLine:
    rows = []
    for row in items(fields["phases"], 64):
        kind = choice(row["kind"], get_args(SpanKind))
        times = count(row["count"]), known(row["seconds"])
        phase = Phase(kind, text(row["label"]), *times, steps=count(row.get("steps", 0)))
        rows.append((phase, mapping(row["highest"], count, limits.MOST_SERIES)))
    spans = tuple(map(_span, items(fields["spans"])))
    return PhasesLine(count(fields["root"]), tuple(rows), spans)


def _item(of: Callable[[Mapping[str, Any]], str | Finding | Guide], field: str) -> Any:
    def read(fields: Mapping[str, Any]) -> Item:
        item = of(fields) if field in fields else None
        return Item(fields["k"], count(fields["i"], limits.MOST_OF_A_LIST), item)

    return read


def _finding(fields: Mapping[str, Any]) -> Finding:
    span = fields["span"]
    return Finding(
        text(fields["kind"]),
        choice(fields["severity"], ("info", "warn", "critical")),
        text(fields["title"], 4 * limits.LONGEST_TEXT),
        mapping(fields["evidence"], _evidence),
        tuple(text(advice, 4 * limits.LONGEST_TEXT) for advice in items(fields["advice"], 64)),
        None if span is None else count(span),
    )


def _evidence(value: object, depth: int = limits.DEEPEST) -> object:
    require(depth, "evidence that is too deep")
    if isinstance(value, dict):
        return mapping(value, lambda one: _evidence(one, depth - 1), limits.MOST_SERIES)
    if isinstance(value, list):
        return [_evidence(one, depth - 1) for one in items(value)]
    if isinstance(value, str):
        return text(value, 4 * limits.LONGEST_TEXT)
    if value is None or isinstance(value, bool):
        return value
    figure = number(value)
    return int(figure) if isinstance(value, int) else figure


def _guide(fields: Mapping[str, Any]) -> Guide:
    stop = fields["stop"]
    low, high = map(known, items(fields["band"], 2))
    return Guide(
        device_key(fields["device"]),
        choice(fields["kind"], ("budget", "trend", "oom")),
        text(fields["label"]),
        known(fields["start"]),
        math.inf if stop is None else known(stop),
        known(fields["first"]),
        known(fields["last"]),
        (low, high),
    )


def _gap(fields: Mapping[str, Any]) -> Gap:
    start, stop = map(known, items(fields["t"], 2))
    return Gap(start, max(start, stop))


def _contents(fields: Mapping[str, Any]) -> Contents:
    return Contents(
        tuple(map(text, items(fields["modules"], 64))),
        tuple(map(text, items(fields["optimizers"], 64))),
        count(fields["parameters"]),
        count(fields["trainable"]),
        mapping(fields["dtypes"], count),
        count(fields["tensors"]),
        count(fields["optimizer_bytes"]),
        mapping(fields.get("libraries", {}), count),
    )


def _end(fields: Mapping[str, Any]) -> End:
    stopped = fields.get("stopped")
    return End(
        known(fields["time"]),
        None if stopped is None else known(stopped),
        bool(fields.get("broken_off", False)),
        Polling(
            current_interval=known(fields.get("current_interval", 0.1)),
            ticks=count(fields.get("ticks", 0)),
            missed=count(fields.get("missed", 0)),
            longest_gap=number(fields.get("longest_gap", 0)),
            cost=number(fields.get("cost")),
            stopped=text(fields.get("why", "")),
            steps=count(fields.get("steps", 0)),
            steps_with_phases=count(fields.get("steps_with_phases", 0)),
            share=number(fields.get("share")),
        ),
        _software(fields),
    )


_READERS: Mapping[str, Callable[[Mapping[str, Any]], Line]] = {
    "head": _head,
    "series": _columns,
    "rows": _rows,
    "fold": _fold,
    "span": _span,
    "steps": _steps,
    "phases": _phases,
    "note": _item(lambda fields: text(fields["text"], 4 * limits.LONGEST_TEXT), "text"),
    "finding": _item(_finding, "title"),
    "guide": _item(_guide, "device"),
    "gap": _gap,
    "contents": _contents,
    "end": _end,
}
