"""What one rank has written, kept as its newest figures: a few kilobytes, however long it runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from hfmem_widget.analysis.parts import allocated_parts
from hfmem_widget.recording.check import (
    Columns,
    End,
    FoldLine,
    Head,
    Item,
    Rows,
    SpanLine,
    StepsLine,
    parse,
    require,
)
from hfmem_widget.recording.limits import VERSION
from hfmem_widget.recording.lines import Fold
from hfmem_widget.recording.reader import LineReader
from hfmem_widget.session import FINE_KINDS, Certainty, Device, Finding, Guide, Peak, Rank, SpanKind
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.session.series import PARTS
from hfmem_widget.session.steps import CERTAINTIES, FIGURES, PER_DEVICE, PHASES
from hfmem_widget.session.timeline import Floats

STEP_FIGURES = ("stop", "peak", "certainty", *PHASES)
STOP, PEAK, CERTAINTY = range(3)
IN_PHASES = slice(3, None)
"""The figures that are kept of a step, and their places."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Readings of all columns, by the rank's own clock: shapes ``(samples,)`` and ``(samples, columns)``."""

    time: Floats
    values: Floats


@dataclass(slots=True)
class Finished:
    """Steps that have ended; a line has few."""

    first: list[int]
    last: list[int]  # the same number where a row is one step
    start: list[float]  # by the rank's own clock
    figures: list[list[float]]
    """Of each the `STEP_FIGURES`: when it ended, its peak, how that is known, and the peaks of its phases, on
    the device that counts."""


News = Samples | Fold | Finished | SpanLine
"""The last is a coarse span that was opened or, if it has a `stop`, closed; by the rank's own clock."""

MOST_COLUMNS = 1024
"""Series of one rank."""

MOST_BAD = 100
"""Lines in a row that cannot be read, after which a stream is left alone."""

MOST_OPEN = 16
"""Spans of one rank that are open at once."""

_FIRST, _LAST, _START, _STOP = map(FIGURES.index, ("first", "last", "start", "stop"))
_PEAK, _CERTAINTY = PER_DEVICE.index("peak"), PER_DEVICE.index("certainty")
_FIGURES_READ = [PER_DEVICE.index(name) for name in STEP_FIGURES[PEAK:]]

HOST = "cpu"
_FLAT = (str, int, float, bool)
_NOTHING = Peak(NOT_AVAILABLE, "sampled")
NOBODY = Rank(-1)


class RankStream(LineReader):
    """Reads the lines of one process, in any pieces, and returns what is new, by its own clock."""

    _longest = 1 << 18  # a rank writes every second, and all of them are held at once

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.head: Head | None = None
        self.rank, self._started = NOBODY, 0.0  # before the head was read
        self._device = ""
        self.refused = ""  # why no more of it is read; empty if all is well
        self.reached = -math.inf  # the newest reading
        self.heard = -math.inf  # when it was last heard of, by the reader's clock
        self.fed_at = NOT_AVAILABLE
        """When what came since the last look was written, by the reader's clock; NaN if that was just now."""
        self.looked_at = math.inf
        """Up to when all was read that it has, by the reader's clock; inf where nothing waits to be read."""
        self.is_over = False  # it has an end
        self.is_gone = False  # its process is known to be gone, although it has none
        self.newest_step, self.step_stop = 0, -math.inf
        self.step_seconds = NOT_AVAILABLE  # that the newest finished step took
        self.within: SpanLine | None = None
        """The innermost span of a step that has been open for long: the step hangs, or is a long one."""
        self.outcome = ""  # of its outermost span
        self.raised, self._raised_at = "", -math.inf  # the phase in which it raised an error
        self.oom: Finding | None = None  # that it ran out of memory, if it did
        self.oom_at = NOT_AVAILABLE
        self._bad = 0
        self._devices: dict[str, Device] = {}
        self._columns: dict[str, dict[str, int]] = {}
        self._keys: list[tuple[str, str]] = []
        self.open: dict[int, SpanLine] = {}  # the coarse spans within the watch, outermost first
        self._peaks: dict[str, Peak] = {}
        self._allocated: list[tuple[str, int]] = []
        self._at_peak: dict[str, Floats] = {}
        self._phase_peaks: dict[tuple[SpanKind, str], Peak] = {}
        self._host_counts = False

    @property
    def device(self) -> str:
        """The key of the device that counts: the GPU with the highest peak; the host if it has none.

        Before a GPU was used it is the GPU that counts, unless steps were made without: what a process loads
        into its own memory first is not what the run is about.
        """
        if not self._device:
            gpus = [key for key in self._devices if key != HOST] or [HOST]
            used = [key for key in gpus if self.peak_of(key).value > 0]
            if not used and self._host_counts:
                used = [HOST]
            self._device = max(used, key=lambda key: self.peak_of(key).value, default=gpus[0])
        return self._device

    @property
    def described(self) -> Device:
        """The device that counts, as it describes itself."""
        return self._devices.get(self.device) or Device(self.device, "")

    @property
    def peak(self) -> Peak:
        """The highest allocated on the device that counts so far, and how it is known."""
        return self.peak_of(self.device)

    @property
    def activations(self) -> float:
        """What the peak has beyond what was held and not known before the step; NaN if that is not known."""
        values = self._at_peak.get(self.device, ())

        def read(metric: str) -> float:
            if metric == "allocated":
                return self.peak.value
            at = self.column(metric) if metric in PARTS else None  # the rest is of another instant
            # The peak may be older than the column.
            return NOT_AVAILABLE if at is None or at >= len(values) else float(values[at])

        return allocated_parts(read)["activations"] if read("weights") > 0 else NOT_AVAILABLE

    def peak_of(self, device: str) -> Peak:
        """Return the highest allocated on a device so far."""
        return self._peaks.get(device, _NOTHING)

    def span_peak(self, kind: SpanKind) -> Peak:
        """Return the peak of the newest finished span of a kind, on the device that counts."""
        return self._phase_peaks.get((kind, self.device), _NOTHING)

    def column(self, metric: str) -> int | None:
        """Return the column of a metric of the device that counts."""
        return self._columns.get(self.device, {}).get(metric)

    def latest(self, metric: str) -> float:
        """Return the newest reading of a metric of the device that counts; NaN if it is not available."""
        at = self.column(metric)
        return NOT_AVAILABLE if at is None else float(self._values[at])

    def feed(self, data: bytes) -> list[News]:
        """Read the next bytes, and return what they say; a line counts once its end is there."""
        news_of_lines: list[News] = []
        for line in self._lines(data):
            if self.refused:
                return []
            if (news := self._take(line)) is not None:
                news_of_lines.append(news)
        return [] if self.refused else news_of_lines

    def refuse(self, why: str) -> None:
        """Read no more of it."""
        self.refused, self._rest = why, b""

    def _take(self, line: bytes) -> News | None:
        try:
            require(len(line) <= self._longest, "too long")
            parsed = parse(line)
            require(self.head is not None or parsed is None or isinstance(parsed, Head), "no head")
            enter = self._ENTER.get(type(parsed))  # of the other kinds nothing is kept
            news = None if enter is None else enter(self, parsed)
        except Exception:  # noqa: BLE001  (a fault of ours costs the line)
            self.dropped += 1
            self._bad += 1
            if self._bad >= MOST_BAD:
                self.refuse("damaged")
            return None
        self._bad = 0
        return news

    def _enter_head(self, head: Head) -> None:
        if self.head is not None:
            self.dropped += 1
        elif head.version > VERSION:
            self.refuse(f"version {head.version}")
        elif head.rank is None:
            self.refuse("no rank")
        else:
            self.head, self.rank, self._started = head, head.rank, head.started
            self.last_sign = max(self.last_sign, head.started)

    def _enter_columns(self, columns: Columns) -> None:
        series, width = columns.series, len(self._keys) + len(columns.series)
        is_next = columns.first == len(self._keys)
        require(is_next and max(width, len(columns.described)) <= MOST_COLUMNS, "other columns")
        self._device = ""
        self._devices = {device.key: device for device in columns.devices}
        for described in series:
            if described.metric == "allocated":
                self._allocated.append((described.device, len(self._keys)))
            self._columns.setdefault(described.device, {})[described.metric] = len(self._keys)
            self._keys.append((described.device, described.metric))
        self._widen(len(series))

    def _enter_rows(self, rows: Rows) -> News | None:
        samples = self._samples(rows)
        if samples is None:
            return None
        time, block = self._started + samples[0], samples[1]
        self.reached = max(self.reached, float(time[-1]))
        self._note_highs(np.fmax.reduce(block))
        return Samples(time, block)

    def _enter_fold(self, line: FoldLine) -> News | None:
        line.t = self._started + line.t[0], self._started + line.t[1]
        fold = line.fold()
        require(len(fold.last) <= len(self._values), "a fold of other columns")
        if fold.stop <= self.reached:
            return None  # its samples were read one by one
        self.reached = fold.stop
        self.last_sign = max(self.last_sign, fold.stop)
        self._values[: len(fold.last)] = fold.last
        self._note_highs(fold.high)
        return fold

    def _enter_span(self, line: SpanLine) -> News | None:
        line.start += self._started
        line.stop = None if line.stop is None else self._started + line.stop
        self._note_peaks(line)
        is_within = line.parent is not None  # around it is the watch of the rank, which has no name
        if is_within and line.outcome.startswith("raised") and line.start >= self._raised_at:
            is_named = line.kind == "block" and line.label
            self._raised_at, self.raised = line.start, line.label if is_named else line.kind
        if line.parent is None and line.outcome:
            self.outcome = line.outcome
        if line.kind in FINE_KINDS:
            if line.stop is None:
                self.within = line
            elif self.within is not None and self.within.id == line.id:
                self.within = None
            return None
        if line.stop is not None:
            self.open.pop(line.id, None)
        elif is_within and (len(self.open) < MOST_OPEN or line.id in self.open):
            self.open[line.id] = line
        return line if is_within else None

    def _enter_steps(self, line: StepsLine) -> News | None:
        rows = line.rows
        self._note_devices(line)
        if not rows:
            return None
        devices = self._steps_of
        begins = range(len(FIGURES), len(rows[0]), len(PER_DEVICE))
        for device, at in zip(devices, begins, strict=True):
            highest = self.peak_of(device).value
            for row in rows:
                peak = row[at + _PEAK]
                if not peak < highest and not math.isnan(peak):
                    highest = peak
                    self._note_peak(device, peak, CERTAINTIES[int(row[at + _CERTAINTY])])
        if devices == (HOST,) and not self._host_counts:
            self._host_counts, self._device = True, ""
        zero = self._started
        first = [int(row[_FIRST]) for row in rows]
        last = [int(row[_LAST]) for row in rows]
        start = [zero + row[_START] for row in rows]
        if self.device in devices:
            begin = begins[devices.index(self.device)]
            read = [begin + at for at in _FIGURES_READ]
            figures = [[zero + row[_STOP], *(row[at] for at in read)] for row in rows]
        else:
            figures = [[zero + row[_STOP], *[NOT_AVAILABLE] * len(_FIGURES_READ)] for row in rows]
        if (stop := figures[-1][STOP]) >= self.step_stop:
            self.newest_step, self.step_stop = last[-1], stop
            self.step_seconds = (stop - start[-1]) / (last[-1] - first[-1] + 1)
            self.within = None  # an older one, whose end was not written
        return Finished(first, last, start, figures)

    def _enter_item(self, line: Item) -> None:
        item = line.item
        if isinstance(item, Finding) and item.kind == "oom" and item.severity != "info":
            # Figures and words, and no lists: it is kept for every rank.
            flat = {name: each for name, each in item.evidence.items() if isinstance(each, _FLAT)}
            self.oom = replace(item, evidence=flat, advice=item.advice[:4])
        elif isinstance(item, Guide) and item.kind == "oom":
            self.oom_at = self._started + item.start

    def _enter_end(self, end: End) -> None:
        self.is_over = True
        self.last_sign = max(self.last_sign, end.stopped or self.last_sign)
        if end.broken_off and not self.outcome:
            self.outcome = "broken off"

    def _note_highs(self, high: Floats) -> None:
        for device, at in self._allocated:
            # The column may have come while it was folded.
            if at < len(high) and high[at] > 0:
                self._note_peak(device, float(high[at]), "sampled")

    def _note_peaks(self, line: SpanLine) -> None:
        for column, peak in zip(line.columns, line.peaks, strict=False):
            if peak is not None and column < len(self._keys):
                device, metric = self._keys[column]
                if metric == "allocated":
                    self._note_peak(device, *peak)
                    if line.stop is not None:
                        self._phase_peaks[line.kind, device] = Peak(*peak)

    def _note_peak(self, device: str, value: float, certainty: Certainty) -> None:
        before, order = self.peak_of(device), CERTAINTIES.index
        is_surer = value == before.value and order(certainty) < order(before.certainty)
        if is_surer or not value <= before.value:
            self._peaks[device] = Peak(value, certainty)
            self._at_peak[device] = self._values.copy()
            if device != self._device:
                self._device = ""

    _ENTER: ClassVar[Mapping[type, Callable[[RankStream, Any], News | None]]] = {
        Head: _enter_head,
        Columns: _enter_columns,
        Rows: _enter_rows,
        FoldLine: _enter_fold,
        SpanLine: _enter_span,
        StepsLine: _enter_steps,
        Item: _enter_item,
        End: _enter_end,
    }


def order_of(stream: RankStream) -> tuple[int, float, int, str]:
    """Return what streams of one rank are ordered by."""
    head, rank = stream.head, stream.rank
    return rank.attempt, 0.0 if head is None else head.started, rank.pid, stream.name
