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
from numpy.typing import NDArray

from hfmem_widget.recording.limits import (
    DEEPEST,
    FORMAT,
    LARGEST,
    LONGEST_LINE,
    LONGEST_TEXT,
    MOST_FIGURES,
    MOST_IN_BLOCK,
    MOST_OF_A_LIST,
    MOST_SERIES,
)
from hfmem_widget.session import (
    Certainty,
    Contents,
    Device,
    Finding,
    Guide,
    Peak,
    Phase,
    Sample,
    Series,
    Span,
    SpanKind,
)
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.session.steps import CERTAINTIES, FIGURES, PER_DEVICE
from hfmem_widget.text import DEVICE_KEY, plain

Floats = NDArray[np.float64]

_METRIC = re.compile(r"[a-z][a-z0-9_]{0,63}")
_FIGURES = frozenset({int, float, type(None)})
_BRACKETS = re.compile(rb"[][{}]")
_SHORT = 1 << 16
"""Bytes of a line that the parser may take as it is: its own limit of depth holds."""


class Wrong(Exception):
    """What a line says is not what such a line may say."""


@dataclass(frozen=True, slots=True)
class Head:
    """What a recording is of; `version` is the format's."""

    version: int
    started: float
    label: str
    interval: float
    software: Mapping[str, str]


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


@dataclass(frozen=True, slots=True)
class StepsLine:
    """Rows of the table of steps, and how many steps there were; no `devices` if they are those before."""

    devices: tuple[str, ...] | None
    count: int
    rows: Floats


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
    """How the run ended, and how the poller did."""

    time: float
    stopped: float | None
    broken_off: bool
    ticks: int
    missed: int
    longest_gap: float
    cost: float
    current_interval: float
    why: str
    software: Mapping[str, str]


Line = (
    Head | Columns | Rows | Fold | SpanLine | StepsLine | PhasesLine | Item | Gap | Contents | End
)


def parse(line: bytes) -> Line | None:
    """Return what a line says; None where it says nothing that we know.

    Parameters
    ----------
    line : bytes
        Without its end.

    Raises
    ------
    ValueError
        If it is not what a recording may have.
    """
    if len(line) > LONGEST_LINE or (len(line) > _SHORT and _is_deep(line)):
        message = "too long or too deep"
        raise ValueError(message)
    try:
        fields = json.loads(line, parse_constant=_no_constant)
        read = _READERS.get(_text(fields["k"]))
        return None if read is None else read(fields)
    except (Wrong, RecursionError, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(str(error)) from None


def _is_deep(line: bytes) -> bool:
    depth = 0
    for bracket in _BRACKETS.finditer(line):
        depth += 1 if bracket[0] in b"[{" else -1
        if depth > DEEPEST:
            return True
    return False


def _no_constant(name: str) -> float:
    raise Wrong(name)


def _number(value: object) -> float:
    """Return a figure; NaN for null."""
    if value is None:
        return NOT_AVAILABLE
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < LARGEST:
        message = "not a figure"
        raise Wrong(message)
    return float(value)


def _known(value: object) -> float:
    number = _number(value)
    if math.isnan(number):
        message = "a figure is missing"
        raise Wrong(message)
    return number


def _count(value: object, most: float = LARGEST) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < most:
        message = "not a count"
        raise Wrong(message)
    return value


def _places(value: object) -> tuple[int, ...]:
    """Return numbers of columns."""
    places = _list(value)
    if not {int}.issuperset(map(type, places)) or (places and min(places) < 0):
        message = "not a column"
        raise Wrong(message)
    return tuple(places)


def _text(value: object, limit: int = LONGEST_TEXT) -> str:
    if not isinstance(value, str):
        message = "not a text"
        raise Wrong(message)
    return plain(value, limit)


def _list(value: object, most: int = MOST_SERIES) -> list[Any]:
    if not isinstance(value, list) or len(value) > most:
        message = "not a list, or too long"
        raise Wrong(message)
    return value


def _mapping(value: object, of: Callable[[Any], Any], most: int = 256) -> dict[str, Any]:
    if not isinstance(value, dict) or len(value) > most:
        message = "not a mapping, or too large"
        raise Wrong(message)
    return {_text(name): of(one) for name, one in value.items()}


def _floats(value: object, most: int = MOST_SERIES) -> Floats:
    figures = _list(value, most)
    return _array(figures, figures)


def _table(rows: list[Any], width: int) -> Floats:
    table = _array(rows, chain.from_iterable(rows))
    if rows and table.shape != (len(rows), width):
        message = "rows of other lengths"
        raise Wrong(message)
    return table.reshape(-1, width)


def _array(value: list[Any], figures: Iterable[object]) -> Floats:
    """Return lists of figures as an array, NaN for null: checked together, since there are so many."""
    if not _FIGURES.issuperset(map(type, figures)):
        message = "not a figure"
        raise Wrong(message)
    return _within_range(np.array(value, dtype=np.float64))


def _within_range(values: Floats) -> Floats:
    if (np.abs(values) >= LARGEST).any():
        message = "a figure out of range"
        raise Wrong(message)
    return values


def _choice(value: object, choices: Any) -> Any:
    if value not in choices:
        message = "not one of those"
        raise Wrong(message)
    return value


def _device_key(value: object) -> str:
    key = _text(value)
    if not DEVICE_KEY.fullmatch(key):
        message = "not a device"
        raise Wrong(message)
    return key


def _head(fields: Mapping[str, Any]) -> Head:
    _choice(fields["format"], (FORMAT,))
    return Head(
        _count(fields["version"]),
        _known(fields["started"]),
        _text(fields.get("label", "")),
        _known(fields.get("interval", 0.1)),
        _software(fields),
    )


def _software(fields: Mapping[str, Any]) -> Mapping[str, str]:
    return _mapping(fields.get("software", {}), lambda version: _text(version, 40))


def _series(key: object, label: object) -> Series:
    device, _, metric = _text(key).partition("/")
    if not _METRIC.fullmatch(metric):
        message = "not a series"
        raise Wrong(message)
    return Series(_device_key(device), metric, _text(label))


def _device(fields: Mapping[str, Any]) -> Device:
    return Device(
        _device_key(fields["key"]),
        _text(fields.get("name", "")),
        _text(fields.get("uuid", "")),
        _number(fields.get("total")),
        bool(fields.get("provisional", False)),
    )


def _columns(fields: Mapping[str, Any]) -> Columns:
    series, labels = _list(fields["series"]), _list(fields["labels"])
    first = _count(fields["first"], MOST_SERIES - len(series) + 1)
    return Columns(
        first,
        tuple(map(_device, _list(fields["devices"]))),
        tuple(map(_series, series, labels)),
    )


def _rows(fields: Mapping[str, Any]) -> Rows:
    time = _floats(fields["t"], MOST_IN_BLOCK)
    columns, values = _places(fields["s"]), _list(fields["v"])
    if len(columns) != len(values) or len(columns) * len(time) > max(len(columns), MOST_FIGURES):
        message = "too few columns, or too many"
        raise Wrong(message)
    if np.isnan(time).any() or (np.diff(time) < 0).any() or (columns and not len(time)):
        message = "times that run backwards"
        raise Wrong(message)
    block = np.empty((len(time), len(columns)))
    stands = [len(column) == 1 for column in values]
    still, moves = np.flatnonzero(stands), np.flatnonzero(np.logical_not(stands))
    block[:, still] = _table([values[at] for at in still], 1).T
    block[:, moves] = _added_up(_table([values[at] for at in moves], len(time) or 1)).T
    return Rows(_count(fields["n"]), _known(fields["w"]), time, columns, block)


def _added_up(differences: Floats) -> Floats:
    """Return the values of columns, each written as the difference from the last that was available."""
    is_missing = np.isnan(differences)
    values = _within_range(np.where(is_missing, 0.0, differences).cumsum(axis=1))
    return np.where(is_missing, np.nan, values)


def _fold(fields: Mapping[str, Any]) -> Fold:
    start, stop = map(_known, _list(fields["t"], 2))
    parts = [_list(fields[name]) for name in ("low", "high", "last")]
    low, high, last = _table(parts, len(parts[0]))
    if stop < start or (low > high).any():
        message = "extremes that do not go together"
        raise Wrong(message)
    return Fold(start, stop, _count(fields["samples"]), low, high, last)


def _span(fields: Mapping[str, Any]) -> SpanLine:
    start, stop, parent = _known(fields["start"]), fields["stop"], fields["parent"]
    if stop is not None and _known(stop) < start:
        message = "it ends before it begins"
        raise Wrong(message)
    peaks = [
        None if peak is None else (_known(peak), _choice(certainty, CERTAINTIES))
        for peak, certainty in zip(_list(fields["peak"]), _list(fields["certainty"]), strict=True)
    ]
    span_id = _count(fields["id"])
    return SpanLine(
        id=span_id,
        # A span lies in one that was opened before it: there is no circle.
        parent=None if parent is None else _count(parent, span_id),
        kind=_choice(fields["kind"], get_args(SpanKind)),
        label=_text(fields["label"]),
        start=start,
        stop=None if stop is None else _known(stop),
        outcome=_text(fields["outcome"]),
        columns=_places(fields["s"]),
        before=tuple(_floats(fields["before"]).tolist()),
        after=tuple(_floats(fields["after"]).tolist()),
        peaks=tuple(peaks),
        counts=_mapping(fields["counts"], _number),
    )


def _steps(fields: Mapping[str, Any]) -> StepsLine:
    devices = tuple(map(_device_key, _list(fields["devices"]))) if "devices" in fields else None
    rows = _list(fields["rows"], MOST_IN_BLOCK)
    width = len(rows[0]) if rows else len(FIGURES)
    table = _table(rows, width)
    count, left = divmod(width - len(FIGURES), len(PER_DEVICE))
    numbers = table[:, :5]  # parent, first, last, start, stop
    per_device = table[:, len(FIGURES) :].reshape(len(table), max(0, count), len(PER_DEVICE))
    peaks, certainties, _, worst, *_ = np.moveaxis(per_device, -1, 0)
    is_certain = np.equal.outer(certainties, range(len(CERTAINTIES))).any(axis=-1)
    if (
        count < 0
        or left
        or not (numbers >= 0).all()
        or (numbers[:, 1] > numbers[:, 2]).any()
        or not (np.isnan(peaks) | (is_certain & ~np.isnan(worst))).all()
    ):
        message = "steps that cannot be"
        raise Wrong(message)
    return StepsLine(devices, _count(fields["count"]), table)


def _phases(fields: Mapping[str, Any]) -> PhasesLine:
    rows = []
    for row in _list(fields["phases"], 64):
        kind = _choice(row["kind"], get_args(SpanKind))
        phase = Phase(kind, _text(row["label"]), _count(row["count"]), _known(row["seconds"]))
        rows.append((phase, _mapping(row["highest"], _count, MOST_SERIES)))
    spans = tuple(map(_span, _list(fields["spans"])))
    return PhasesLine(_count(fields["root"]), tuple(rows), spans)


def _item(of: Callable[[Mapping[str, Any]], str | Finding | Guide], field: str) -> Any:
    def read(fields: Mapping[str, Any]) -> Item:
        item = of(fields) if field in fields else None
        return Item(fields["k"], _count(fields["i"], MOST_OF_A_LIST), item)

    return read


def _finding(fields: Mapping[str, Any]) -> Finding:
    span = fields["span"]
    return Finding(
        _text(fields["kind"]),
        _choice(fields["severity"], ("info", "warn", "critical")),
        _text(fields["title"], 4 * LONGEST_TEXT),
        _mapping(fields["evidence"], _evidence),
        tuple(_text(advice, 4 * LONGEST_TEXT) for advice in _list(fields["advice"], 64)),
        None if span is None else _count(span),
    )


def _evidence(value: object, depth: int = DEEPEST) -> object:
    if depth == 0:
        message = "evidence that is too deep"
        raise Wrong(message)
    if isinstance(value, dict):
        return _mapping(value, lambda one: _evidence(one, depth - 1), MOST_SERIES)
    if isinstance(value, list):
        return [_evidence(one, depth - 1) for one in _list(value)]
    if isinstance(value, str):
        return _text(value, 4 * LONGEST_TEXT)
    if value is None or isinstance(value, bool):
        return value
    number = _number(value)
    return int(number) if isinstance(value, int) else number


def _guide(fields: Mapping[str, Any]) -> Guide:
    stop = fields["stop"]
    low, high = map(_known, _list(fields["band"], 2))
    return Guide(
        _device_key(fields["device"]),
        _choice(fields["kind"], ("budget", "trend", "oom")),
        _text(fields["label"]),
        _known(fields["start"]),
        math.inf if stop is None else _known(stop),
        _known(fields["first"]),
        _known(fields["last"]),
        (low, high),
    )


def _gap(fields: Mapping[str, Any]) -> Gap:
    start, stop = map(_known, _list(fields["t"], 2))
    return Gap(start, max(start, stop))


def _contents(fields: Mapping[str, Any]) -> Contents:
    return Contents(
        tuple(map(_text, _list(fields["modules"], 64))),
        tuple(map(_text, _list(fields["optimizers"], 64))),
        _count(fields["parameters"]),
        _count(fields["trainable"]),
        _mapping(fields["dtypes"], _count),
        _count(fields["tensors"]),
        _count(fields["optimizer_bytes"]),
    )


def _end(fields: Mapping[str, Any]) -> End:
    stopped = fields.get("stopped")
    return End(
        _known(fields["time"]),
        None if stopped is None else _known(stopped),
        bool(fields.get("broken_off", False)),
        _count(fields.get("ticks", 0)),
        _count(fields.get("missed", 0)),
        _number(fields.get("longest_gap", 0)),
        _number(fields.get("cost")),
        _known(fields.get("current_interval", 0.1)),
        _text(fields.get("why", "")),
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
    "note": _item(lambda fields: _text(fields["text"], 4 * LONGEST_TEXT), "text"),
    "finding": _item(_finding, "title"),
    "guide": _item(_guide, "device"),
    "gap": _gap,
    "contents": _contents,
    "end": _end,
}
