"""The lines of a recording, which may come from anybody: a line is one of these types, or it is refused.

An invalid line is not an error: the reader counts it. Rules beyond types are in `__post_init__`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import reduce
from itertools import chain
from operator import or_
from typing import Annotated, Any, ClassVar, Literal, cast, get_origin, get_type_hints

import msgspec
import numpy as np
from msgspec import Meta, Struct, defstruct, field
from msgspec.structs import asdict

from hfmem_widget.recording import limits
from hfmem_widget.recording.lines import Fold
from hfmem_widget.session import (
    Certainty,
    Change,
    Contents,
    Device,
    Finding,
    Guide,
    Move,
    Peak,
    Phase,
    Polling,
    Sample,
    Series,
    Span,
    SpanKind,
)
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.session.rank_records import Rank
from hfmem_widget.session.stacks import KINDS, LivePeak, Site
from hfmem_widget.session.steps import CERTAINTIES, FIGURES, PER_DEVICE
from hfmem_widget.session.timeline import Floats
from hfmem_widget.text import DEVICE_KEY, plain

Count = Annotated[int, Meta(ge=0, lt=int(limits.LARGEST))]
RankNumber = Annotated[int, Meta(ge=0, lt=limits.MOST_RANKS)]
Figure = Annotated[float, Meta(gt=-limits.LARGEST, lt=limits.LARGEST)]
Figures = Annotated[list[Figure | None], Meta(max_length=limits.MOST_SERIES)]
"""A number; None where it is not available."""

DeviceKey = Annotated[str, Meta(pattern=f"^(?:{DEVICE_KEY.pattern})$")]
SeriesKey = Annotated[str, Meta(pattern=f"^(?:{DEVICE_KEY.pattern})/[a-z][a-z0-9_]{{0,63}}$")]


class Text(str):
    """A text that is made plain and shortened when it is read."""

    __slots__ = ()
    most: ClassVar[int] = limits.LONGEST_TEXT


class Name(Text):  # noqa: D101
    most = 40


class Host(Text):  # noqa: D101
    most = 64


class Sentence(Text):  # noqa: D101
    most = 4 * limits.LONGEST_TEXT


def _made_plain(kind: type[Text], value: object) -> Text:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return kind(plain(value, kind.most))


def decoder(of: Any) -> msgspec.json.Decoder[Any]:
    """Return a decoder for lines of some types; it raises `MsgspecError` or `RecursionError`."""
    return msgspec.json.Decoder(of, dec_hook=_made_plain)


def available(value: float | None) -> float:
    """Return a figure, NaN where it is not available."""
    return NOT_AVAILABLE if value is None else value


def require(holds: object, complaint: str) -> None:
    """Raise `ValueError` unless a rule holds that no type can express."""
    if not holds:
        raise ValueError(complaint)


_PEAK, _CERTAINTY, _WORST = (PER_DEVICE.index(name) for name in ("peak", "certainty", "worst"))

Texts = Annotated[list[Text], Meta(max_length=64)]
Counts = Annotated[dict[Text, Count], Meta(max_length=256)]
Software = Annotated[dict[Text, Name], Meta(max_length=256)]
ListPosition = Annotated[int, Meta(ge=0, lt=limits.MOST_OF_A_LIST)]
ColumnNumbers = Annotated[list[Annotated[int, Meta(ge=0)]], Meta(max_length=limits.MOST_SERIES)]


class RecordedLine(Struct, tag_field="k"):
    """A line of JSON; its fields have the names of the format, or a clearer name that is mapped to one."""

    def content(self) -> Any:
        """Return the object that the reader works with."""
        return self


class Head(RecordedLine, tag="head"):
    """The first line: the `version` of the format, and the id of the `run` that `rank` is part of."""

    format: Literal["hfmem"]
    version: Count
    started: Figure
    label: Text = Text()
    interval: Figure = 0.1
    software: Software = {}
    run: Host = Host()
    number: RankNumber | None = field(name="rank", default=None)
    local: RankNumber = 0
    world: Annotated[int, Meta(ge=0, le=limits.MOST_RANKS)] = 0
    attempt: RankNumber = 0
    host: Host = Host()
    pid: Count = 0
    engine: Name = Name()

    def __post_init__(self) -> None:
        require(self.number is None or self.number < self.world, "no rank of that world")

    @property
    def rank(self) -> Rank | None:
        """The rank of the process that wrote the recording, if it is part of a distributed run."""
        if self.number is None:
            return None
        where = self.local, self.world, self.attempt
        return Rank(self.number, *where, self.host, self.pid, self.engine)


@dataclass(frozen=True, slots=True)
class Item:
    """An entry of a list and its position; None if the list ends at that position."""

    kind: Literal["note", "finding", "guide", "move", "live"]
    place: int
    item: str | Finding | Guide | Move | LivePeak | None


_USUAL: dict[Any, Any] = {
    str: Text,
    bool: bool,
    int: Count,
    float: Figure,
    tuple[float, float]: tuple[Figure, Figure],
    tuple[str, ...]: Texts,
    Mapping[str, int]: Counts,
}
"""The type of a field in a recording, by the type of the dataclass's field."""

_NOT_TRIED = {"largest_batch": None, "longest": None, "tried": None}
_NULL = {
    "span_id": None,
    "over_time": None,
    "stop": math.inf,
    "shared": 0.0,
    "seconds": None,
    **_NOT_TRIED,
}
"""The meaning of null in these fields; in all others it is a figure that is not available."""


def _filled(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_filled(name, item) for item in value)
    if isinstance(value, dict):
        return _evidence(value)
    if isinstance(value, RecordedLine):
        return value.content()
    return _NULL.get(name, NOT_AVAILABLE) if value is None else value


def _recorded(data: Any, tag: Any = None, may_lack: Mapping[str, Any] = {}, /, **own: Any) -> Any:
    """Return the class that describes a dataclass in a recording; its `content` returns the dataclass.

    Its fields have the types of `_USUAL`, or those that `own` gives by name; a field in `may_lack` may be
    missing and then has the given value. With a tag it is a line of its own, and each such line except
    "contents" is an entry of a list.
    """
    types, is_entry = get_type_hints(data), tag not in {None, "contents"}
    known: list[Any] = [("i", ListPosition)] if is_entry else []
    for name, usual in types.items():
        kind = own.get(name) or (usual if get_origin(usual) is Literal else _USUAL[usual])
        known.append((name, kind, may_lack[name]) if name in may_lack else (name, kind))

    def content(line: Any) -> Any:
        filled = data(**{name: _filled(name, getattr(line, name)) for name in types})
        return Item(tag, line.i, filled) if is_entry else filled

    config: Any = {"bases": (RecordedLine,), "tag": tag or False, "kw_only": True}
    config["rename"] = {"span_id": "span"}
    return defstruct(f"_{data.__name__}", known, namespace={"content": content}, **config)


OrNull = Figure | None
_Evidence = Annotated[dict[str, Any], Meta(max_length=256)]
_Advice = Annotated[list[Sentence], Meta(max_length=64)]
_MAY_LACK = {"name": "", "uuid": "", "total": None, "provisional": False, "shared": 0.0}
_Device: Any = _recorded(Device, None, _MAY_LACK, key=DeviceKey, total=OrNull, shared=OrNull)
_Change: Any = _recorded(Change)
_Kind = Annotated[str, Meta(pattern=f"^(?:{'|'.join(KINDS)})$")]
_Site: Any = _recorded(Site, kind=_Kind)
_OF_DATACLASSES: tuple[Any, ...] = (
    _recorded(Finding, "finding", title=Sentence, evidence=_Evidence, advice=_Advice, span_id=Count | None),
    _recorded(Guide, "guide", device=DeviceKey, stop=OrNull),
    _recorded(
        Move, "move", {"spare": 0.0, "seconds": None, **_NOT_TRIED}, name=Sentence, cost=Sentence,
        changes=Annotated[list[_Change], Meta(max_length=16)],
        low=OrNull, high=OrNull, room=OrNull, spare=OrNull, seconds=OrNull,
        **dict.fromkeys(_NOT_TRIED, Count | None),
    ),
    _recorded(
        LivePeak, "live", {"over_time": None}, device=DeviceKey, over_time=type(None),
        sites=Annotated[list[_Site], Meta(max_length=limits.MOST_SITES)],
        time=OrNull, allocated=OrNull, requested=OrNull, span_id=Count | None,
    ),
    _recorded(Contents, "contents", {"libraries": {}}),
)  # fmt: skip


class Columns(RecordedLine, tag="series"):
    """All devices, and the series from column `first` onwards."""

    first: Count
    described: Annotated[list[_Device], Meta(max_length=limits.MOST_SERIES)] = field(name="devices")
    keys: list[SeriesKey] = field(name="series")
    labels: Annotated[list[Text], Meta(max_length=limits.MOST_SERIES)]

    def __post_init__(self) -> None:
        require(self.first + len(self.keys) <= limits.MOST_SERIES, "too many series")

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices."""
        return tuple(device.content() for device in self.described)

    @property
    def series(self) -> tuple[Series, ...]:
        """The new series."""
        return tuple(
            Series(device, metric, label)
            for (device, _, metric), label in zip(
                (key.partition("/") for key in self.keys), self.labels, strict=False
            )
        )


class Rows(RecordedLine, tag="rows"):
    """A block of samples as it is written: `times`, and the `changes` of some `columns`."""

    block: Count = field(name="n")
    wall: Figure = field(name="w")
    times: Annotated[list[Figure], Meta(max_length=limits.MOST_IN_BLOCK)] = field(name="t")
    columns: ColumnNumbers = field(name="s")
    changes: Annotated[list[Figures], Meta(max_length=limits.MOST_SERIES)] = field(name="v")

    def __post_init__(self) -> None:
        samples, columns = len(self.times), len(self.changes)
        most = max(len(self.columns), limits.MOST_FIGURES)
        fits = len(self.columns) == columns and columns * samples <= most
        require(fits, "too few columns, or too many")
        require(samples or not columns, "columns without samples")
        for column in self.changes:
            require(len(column) in {1, samples}, "columns of other lengths")

    def table(self) -> tuple[Floats, Floats]:
        """Return times, ``(samples,)``, and values, ``(samples, columns)``, or raise `ValueError`."""
        time, columns = np.array(self.times), self.changes
        require((np.diff(time) >= 0).all(), "times that run backwards")
        block = np.empty((len(time), len(columns)))
        still = [at for at, column in enumerate(columns) if len(column) == 1]
        moves = [at for at, column in enumerate(columns) if len(column) != 1]
        block[:, still] = _floats([columns[at][0] for at in still])
        if moves:  # each entry is the difference from the last available value
            differences = _floats([columns[at] for at in moves])
            is_missing = np.isnan(differences)
            values = np.where(is_missing, 0.0, differences).cumsum(axis=1)
            require((np.abs(values) < limits.LARGEST).all(), "a figure out of range")
            block[:, moves] = np.where(is_missing, np.nan, values).T
        return time, block


def _floats(figures: Sequence[object]) -> Floats:
    return np.array(figures, dtype=np.float64)


class FoldLine(RecordedLine, tag="fold"):
    """A fold: the lowest and highest value of each series over a while; all its lists have one length."""

    t: tuple[Figure, Figure]
    samples: Count
    low: Figures
    high: Figures
    last: Figures

    def __post_init__(self) -> None:
        is_fine = self.t[0] <= self.t[1] and len(self.low) == len(self.high) == len(self.last)
        require(is_fine, "extremes that do not match")

    def fold(self) -> Fold:
        """Return it as arrays; raise `ValueError` if a lowest is above a highest."""
        low, high, last = _floats([self.low, self.high, self.last])
        require(not np.count_nonzero(low > high), "extremes that do not match")
        return Fold(*self.t, self.samples, low, high, last)


class SpanLine(RecordedLine, tag="span"):
    """A span; the reader knows the columns, and so to which series its readings and peaks belong."""

    id: Count
    parent: Count | None
    kind: SpanKind
    label: Text
    start: Figure
    stop: Figure | None
    outcome: Text
    columns: ColumnNumbers = field(name="s")
    before: Figures
    after: Figures
    peak: Figures
    certainty: Annotated[list[Certainty | None], Meta(max_length=limits.MOST_SERIES)]
    counts_or_null: Annotated[dict[Text, Figure | None], Meta(max_length=256)] = field(
        name="counts"
    )

    def __post_init__(self) -> None:
        require(self.stop is None or self.stop >= self.start, "it ends before it begins")
        # The parent of a span was opened before it, so spans form no cycle.
        require(self.parent is None or self.parent < self.id, "within a later span")
        for peak, certainty in zip(self.peak, self.certainty, strict=True):
            require(peak is None or certainty is not None, "a peak of no certainty")

    @property
    def peaks(self) -> list[tuple[float, Certainty] | None]:
        """The peak of each column."""
        return [
            None if peak is None or certainty is None else (peak, certainty)
            for peak, certainty in zip(self.peak, self.certainty, strict=True)
        ]

    @property
    def counts(self) -> Mapping[str, float]:
        """The counts of the span, such as tokens."""
        return {name: available(value) for name, value in self.counts_or_null.items()}

    def span(self, series: tuple[Series, ...]) -> Span:
        """Return the span, with its peaks by the key of their series."""
        peaks = {
            series[column].key: Peak(*peak)
            for column, peak in zip(self.columns, self.peaks, strict=False)
            if peak is not None and column < len(series)
        }
        before, after = (tuple(map(available, each)) for each in (self.before, self.after))
        last = None if self.stop is None else Sample(self.stop, after)
        first = Sample(self.start, before)
        return Span(
            *(self.id, self.kind, self.label, self.start, first, self.stop, last, peaks),
            *(self.parent, self.outcome, self.counts),
        )


class StepsLine(RecordedLine, tag="steps"):
    """Rows of the table of steps, and the number of steps; without `devices` if these did not change."""

    count: Count
    rows_or_null: Annotated[list[list[Figure | None]], Meta(max_length=limits.MOST_IN_BLOCK)] = (
        field(name="rows")
    )
    devices: Annotated[list[DeviceKey], Meta(max_length=limits.MOST_SERIES)] | None = None

    def __post_init__(self) -> None:
        rows: Any = self.rows_or_null
        width = len(rows[0]) if rows else len(FIGURES)
        devices, left = divmod(width - len(FIGURES), len(PER_DEVICE))
        require(devices >= 0 and not left, "steps of a width that does not exist")
        begins = range(len(FIGURES), width, len(PER_DEVICE))
        for row in rows:  # null cannot be compared
            parent, first, last, start, stop, *_ = row
            is_in_order = parent >= 0 <= first <= last and start >= 0 <= stop
            require(len(row) == width and is_in_order, "steps out of order")
            for at in begins:
                is_known = row[at + _CERTAINTY] in range(len(CERTAINTIES))
                is_whole = row[at + _PEAK] is None or (is_known and row[at + _WORST] is not None)
                require(is_whole, "peaks of no step")
        if None in chain.from_iterable(rows):
            self.rows_or_null = [list(map(available, row)) for row in rows]

    @property
    def rows(self) -> list[list[float]]:
        """The figures of each step; NaN where one is not available."""
        return cast("list[list[float]]", self.rows_or_null)


class _Phase(Struct):
    kind: SpanKind
    label: Text
    count: Count
    seconds: Figure
    highest: Annotated[dict[Text, Count], Meta(max_length=limits.MOST_SERIES)]
    steps: Count = 0

    def phase(self, highest: dict[str, Span]) -> Phase:
        return Phase(self.kind, self.label, self.count, self.seconds, highest, self.steps)


class PhasesLine(RecordedLine, tag="phases"):
    """The phases of an outermost span; the highest span of each phase is given by its id."""

    root: Count
    phases: Annotated[list[_Phase], Meta(max_length=64)]
    spans: Annotated[list[SpanLine], Meta(max_length=limits.MOST_SERIES)]


class _Note(RecordedLine, tag="note"):
    i: ListPosition
    text: Sentence

    def content(self) -> Item:
        return Item("note", self.i, self.text)


class _NoItem(Struct, forbid_unknown_fields=True):
    k: Literal["note", "finding", "guide", "move", "live"]
    i: ListPosition


def _evidence(value: Any, depth: int = limits.DEEPEST) -> Any:
    require(depth, "evidence that is too deep")
    if isinstance(value, dict | list):
        require(len(value) <= limits.MOST_SERIES, "evidence that is too long")
    if isinstance(value, dict):
        return {plain(name, Text.most): _evidence(item, depth - 1) for name, item in value.items()}
    if isinstance(value, list):
        return [_evidence(item, depth - 1) for item in value]
    if isinstance(value, str):
        return plain(value, Sentence.most)
    require(value is None or abs(value) < limits.LARGEST, "a figure out of range")
    return value


class Gap(RecordedLine, tag="gap"):
    """A stretch without samples."""

    t: tuple[Figure, Figure]


class Recipe(RecordedLine, tag="recipe"):
    """What a dry run needs; the dry run validates it itself."""

    of: dict[str, Any]

    def __post_init__(self) -> None:
        self.of = _evidence(self.of)


class End(RecordedLine, tag="end"):
    """The last line: how the run ended and how sampling went; the interval is in the head."""

    time: Figure
    stopped: Figure | None = None
    broken_off: bool = False
    current_interval: Figure = 0.1
    ticks: Count = 0
    missed: Count = 0
    longest_gap: Figure | None = 0
    cost: Figure | None = None
    why: Text = Text()
    steps: Count = 0
    steps_with_phases: Count = 0
    groups: Count = 0
    share: Figure | None = None
    software: Software = {}

    @property
    def polling(self) -> Polling:
        """How sampling went."""
        values = asdict(self) | {"stopped": self.why}
        names = (each.name for each in fields(Polling))
        known: dict[str, Any] = {name: available(values[name]) for name in names if name in values}
        return Polling(**known)


_KNOWN: tuple[Any, ...] = (
    *(Head, Columns, Rows, FoldLine, SpanLine, StepsLine, PhasesLine, _Note, Gap, Recipe, End),
    *_OF_DATACLASSES,
)
_TAGS = {kind.__struct_config__.tag for kind in _KNOWN}


class _AnyLine(Struct):
    k: str


_LINE, _NO_ITEM, _ANY = decoder(reduce(or_, _KNOWN)), decoder(_NoItem), decoder(_AnyLine)


def parse(line: bytes) -> Any:
    """Return the content of a line, or None for an unknown kind; raise `ValueError` if it is invalid."""
    require(len(line) <= limits.LONGEST_LINE, "too long")
    try:
        try:
            return _LINE.decode(line).content()
        except msgspec.ValidationError:
            kind = _ANY.decode(line).k
            if kind in {"note", "finding", "guide", "move", "live"}:
                ended = _NO_ITEM.decode(line)
                return Item(ended.k, ended.i, None)
            if kind in _TAGS:
                raise
            return None
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from None
