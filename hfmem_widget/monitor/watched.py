"""The sessions that a monitor watches, and what only it knows of them."""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Container, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Self

from hfmem_widget.errors import WatchStateError
from hfmem_widget.monitor.peaks import Window
from hfmem_widget.monitor.sampler import Row, Sampler
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import Device, Peak, Recorder, Sample, Series, Session, Span, SpanKind
from hfmem_widget.session.model import FINE_KINDS, NOT_AVAILABLE
from hfmem_widget.session.series import COUNTED
from hfmem_widget.sources.procfs import ResidentPeak

BASED_KINDS: frozenset[SpanKind] = frozenset({"step", "forward", "evaluate", "predict"})
BASED_BLOCKS = frozenset({"generate", "diffusion"})
"""Kinds of spans in which unexplained memory that came since they began is activations and temporaries."""

_IN_USE = ("requested", "allocated")
"""The metrics for the bytes in use on a device: the first that is known counts."""


@dataclass(frozen=True, slots=True)
class _Keys:
    """The series of a device, by key: bytes in use, bytes with a known holder, and the rest."""

    in_use: tuple[str, ...]
    untouched: str
    held: tuple[str, ...]
    before: str  # empty if the session has no such series
    since: str

    @classmethod
    def of(cls, device: str, session: Session) -> Self:
        in_use, held, computed = (
            tuple(f"{device}/{metric}" for metric in metrics)
            for metrics in (_IN_USE, COUNTED, ("before", "unattributed"))
        )
        computed = tuple("" if session.index(key) is None else key for key in computed)
        return cls(in_use, f"{device}/untouched", held, *computed)

    def used(self, row: Row) -> float:
        """Return the bytes in use, with those that are not written yet; 0 where they are not known.

        A tensor with a known holder counts whole from the beginning, so writing it adds nothing.
        """
        values = (row.get(key, NOT_AVAILABLE) for key in self.in_use)
        used = next((value for value in values if not math.isnan(value)), 0.0)
        return used + max(0.0, row.get(self.untouched, 0.0))


class Unexplained:
    """Computes the series *before* and *unattributed* of a session, which no source reads.

    Memory in use that no known tensor holds either was there before the session, or came later. The first
    part can only shrink, since memory that was freed or explained does not return to it. The second counts
    from the begin of a span that makes activations, and is known while that span is open.

    Call `adopt` before the first row. `based_on` is the span at whose begin the unexplained bytes are known,
    `bases` has these by series key.
    """

    def __init__(self) -> None:
        self.based_on: int | None = None
        self.bases: Row = {}
        self._before: Row = {}
        self._based_on_forward = False
        self._has_begun = False
        self._devices: tuple[_Keys, ...] = ()

    def adopt(self, session: Session) -> None:
        """Take over the devices and series of a session; values of earlier ones stay."""
        self._devices = tuple(_Keys.of(device.key, session) for device in session.devices)

    def fill(self, row: Row) -> Row:
        """Return a row with the computed series; unexplained bytes of the first row were there before."""
        if not self._has_begun:
            self._since(row)
        before = self._before
        for keys in self._devices:
            # Known holders were counted a while ago: it is certain only that there is no more than is in use.
            if before.get(keys.before, 0.0) > (in_use := keys.used(row)) > 0:
                before = self._before = {**before, keys.before: in_use}
        return {**row, **before, **self.bases}

    def base(self, span_id: int, kind: SpanKind, label: str, row: Row, *, is_inner: bool) -> None:
        """Keep the unexplained bytes at the begin of a span, if it makes activations."""
        # The label of a watch, and of a span in it, is the user's: it may be the same by chance. A model that
        # was not known when such a span began is known by now.
        is_block = label in BASED_BLOCKS and is_inner
        is_based = self.based_on is not None
        if (is_block and not self.bases) or (not is_based and (is_block or kind in BASED_KINDS)):
            self.rebase(row)
            self.based_on = span_id
            self._based_on_forward = kind == "forward"
        elif kind not in FINE_KINDS:
            self._since(row)

    def rebase(self, row: Row) -> None:
        """Keep the unexplained bytes of a reading; whatever comes on top of them is activations."""
        # Whole, for the poller goes through them on its own thread.
        self.bases = {**self.bases, **self._since(row)}

    def ended(self, span_id: int, *, was_last: bool) -> None:
        """Record that a span has ended, and whether it `was_last` of those that were open."""
        if span_id == self.based_on:
            self.based_on = None
            # What a separate forward pass leaves behind is kept for the backward pass.
            if not self._based_on_forward:
                self.bases = {}
        if was_last:
            # Steps known only from an optimizer end with the span that they were in.
            self.bases = {}

    def _since(self, row: Row) -> Row:
        """Return the unexplained bytes that came since the base, by series key."""
        before, since = dict(self._before), {}
        for keys in self._devices:
            total = keys.used(row)
            held = sum(value for key in keys.held if (value := row.get(key, 0.0)) > 0)
            remainder, there = max(0.0, total - held), 0.0
            if keys.before and (keys.before in before or not self._has_begun):
                there = min(remainder, before.get(keys.before, remainder))
                if total > 0:
                    before[keys.before] = there
            if keys.since:
                since[keys.since] = remainder - there
        self._before, self._has_begun = before, True
        return since


GAP = 3.0
"""Intervals without a sample that make a gap."""

_opened_here: ContextVar[tuple[weakref.ref[Watched], ...]] = ContextVar("opened_here", default=())
"""Those whose outermost span was opened in this context, a thread's or an asynchronous task's."""


HAS_ENDED = "this session has ended; start a new one with hfmem_widget.watch()"


@dataclass(eq=False, slots=True, weakref_slot=True)
class Watched:
    """The state that a monitor keeps for one session."""

    recorder: Recorder
    options: WatchOptions
    origin: float  # the monitor's clock at the session's time zero
    windows: dict[int, Window] = field(default_factory=dict)  # the ledger's, of each open span
    edges: threading.RLock = field(default_factory=threading.RLock)
    """Held while a span is opened or closed, since another thread may end the session meanwhile."""
    ending: bool = False  # no more spans are to be opened
    end_group: Callable[[], object] = bool
    """Ends the session's current group of steps, unless one of those steps does so itself."""
    thread: int | None = None  # where its outermost span was opened
    version: int = -1  # of the sampler's series and notes that were taken over
    unexplained: Unexplained = field(default_factory=Unexplained)
    echo: Watched | None = None
    """The state of a second session that gets the same inner spans: of this process as a rank."""
    _echoed: dict[int, int] = field(default_factory=dict)
    is_one_reading: bool = False  # there is no time before and after its beginning
    _keys: list[str] = field(default_factory=list)  # of the session's series
    _resident: dict[int, ResidentPeak] = field(default_factory=dict)

    @property
    def session(self) -> Session:
        """What is written."""
        return self.recorder.session

    def is_within(self, kinds: Container[SpanKind]) -> bool:
        """Return whether a span of some kind is open."""
        inner = self.session.open_within(next(iter(self.windows), 0))
        return any(span.kind in kinds for span in inner)

    def adopt(self, devices: tuple[Device, ...], series: tuple[Series, ...]) -> None:
        """Take over the wanted ones of the devices and series that have appeared."""
        wanted = self.options.devices
        if wanted:
            devices = tuple(device for device in devices if device.key in wanted)
        columns: list[Series] = []
        for each in series:
            if not wanted or each.device in wanted:
                columns.append(each)
                if each.metric == "allocated" and not self.is_one_reading:
                    columns.append(Series(each.device, "before"))
        if devices != self.session.devices or len(columns) != len(self.session.series):
            self.recorder.adopt(devices, columns)
            self.unexplained.adopt(self.session)
        # After the session has the series: what another thread appends meanwhile must not be wider.
        self._keys = [each.key for each in columns]

    def append(self, row: Row, time: float) -> Sample:
        """Add what was read at some second of the session."""
        sample = Sample(time, self._values(self.unexplained.fill(row)))
        session = self.recorder.session
        last, timeline = session.last_sample.time, session.timeline
        if timeline.samples and time - last > GAP * session.polling.current_interval:
            timeline.add_gap(last, time)
        return self.recorder.append(sample)

    def open(
        self, span_id: int, kind: SpanKind, label: str, before: Sample, window: Window
    ) -> Span:
        """Open a span at a sample."""
        is_outermost = not self.windows
        self.windows[span_id] = window
        span = self.recorder.open_span(kind, label, before, span_id)
        if not is_outermost and (echo := self._echo_running()) is not None:
            sample = echo.take(self, before)
            self._echoed[span_id] = echo.recorder.open_span(kind, label, sample).id
        if self.options.resident_peak and not self._resident:
            self._resident[span_id] = ResidentPeak()
        return span

    def close(
        self,
        span_id: int,
        after: Sample,
        peaks: Mapping[str, Peak],
        outcome: str,
        counts: Mapping[str, float],
    ) -> Span:
        """Close a span at a sample, with the peaks of its window."""
        self.unexplained.ended(span_id, was_last=not self.windows)
        if any(peak.certainty != "exact" for peak in peaks.values()):
            highs = self.session.highs_in(span_id)
            peaks = {
                key: peak
                if peak.certainty == "exact"
                else Peak(max(peak.value, highs.get(key, peak.value)), peak.certainty)
                for key, peak in peaks.items()
            }
        resident = self._resident.pop(span_id, None)
        if resident is not None and not math.isnan(highest := resident.read()):
            peaks = {**peaks, "cpu/reserved": Peak(highest, "exact")}
        span = self.recorder.close_span(span_id, after, self.wanted(peaks), outcome, counts)
        if (echo := self._echo_running()) is not None:
            sample = echo.take(self, after)
            if span_id in self._echoed:
                # Steps that nobody has numbered are numbered in each session.
                given = {k: v for k, v in span.counts.items() if k != "step" or k in counts}
                echoed, recorder = self._echoed.pop(span_id), echo.recorder
                for inner in echo.session.open_within(echoed):
                    recorder.close_span(inner.id, sample, {}, outcome)
                with suppress(WatchStateError):  # it may have ended
                    recorder.close_span(echoed, sample, echo.wanted(peaks), outcome, given)
        return span

    def take(self, other: Watched, sample: Sample) -> Sample:
        """Add a sample of another session that is written in parallel, with its activations."""
        keys = [series.key for series in other.session.series]
        values = self._values(dict(zip(keys, sample.values, strict=False)))
        self.unexplained.bases = other.unexplained.bases
        return self.recorder.append(Sample(sample.time + other.origin - self.origin, values))

    def _echo_running(self) -> Watched | None:
        return self.echo if self.echo is not None and self.echo.session.running else None

    def _values(self, row: Row) -> tuple[float, ...]:
        return tuple([row.get(key, NOT_AVAILABLE) for key in self._keys])

    def wanted(self, peaks: Mapping[str, Peak]) -> Mapping[str, Peak]:
        """Return the peaks of the devices that are watched."""
        wanted = self.options.devices
        if not wanted:
            return peaks
        return {key: peak for key, peak in peaks.items() if key.partition("/")[0] in wanted}


class Register:
    """The sessions that are watched, in the order in which they were begun."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._watched: dict[int, Watched] = {}
        self._echo: Watched | None = None
        self._lock = threading.RLock()

    def add(self, watched: Watched, if_first: Callable[[], None]) -> None:
        """Add a session; call `if_first` first where no other is watched."""
        with self._lock:
            if not self._watched:
                if_first()
            watched.echo = self._echo
            self._watched[id(watched.session)] = watched

    def echo_in(self, session: Session) -> None:
        """From now on, also add the spans of all other sessions to this one, until it ends."""
        with self._lock:
            self._echo = self.find(session)
            for watched in self._watched.values():
                watched.echo = None if watched is self._echo else self._echo

    def opens_here(self, watched: Watched) -> None:
        """Note that a session's outermost span is opened in this thread, or asynchronous task."""
        with self._lock:
            all_watched = self._watched.values()
            others = (other for other in _opened_here.get() if other() in all_watched)
            _opened_here.set((*others, weakref.ref(watched)))
        watched.thread = threading.get_ident()

    def remove(self, session: Session) -> None:
        """Remove a session."""
        with self._lock:
            gone = self._watched.pop(id(session), None)
            if gone is not None and gone is self._echo:
                self._echo = None

    def get(self, session: Session) -> Watched | None:
        """Return the state of a session; None once it has ended."""
        with self._lock:
            return self._watched.get(id(session))

    def find(self, session: Session) -> Watched:
        """Return the state of a session; raise `WatchStateError` if it has ended."""
        watched = self.get(session)
        if watched is None:
            raise WatchStateError(HAS_ENDED)
        return watched

    def around_here(self) -> list[Watched]:
        """Return all that were opened in this thread or asynchronous task, and are open."""
        here = {reference() for reference in _opened_here.get()}
        return [watched for watched in self.listening() if watched in here]

    def current(self) -> Watched | None:
        """Return the session to which further spans belong: that of the watch around them.

        A thread without a watch, such as autograd's, adds to the open session, of several the main thread's.
        """
        listening = self.listening()
        if len(listening) < 2:
            return listening[0] if listening else None
        if len({watched.thread for watched in listening}) > 1:
            main = threading.main_thread().ident
            listening = [watched for watched in listening if watched.thread == main]
        innermost = self.around_here() or listening
        return innermost[-1] if innermost else None

    def all(self) -> list[Watched]:
        """Return all of them."""
        with self._lock:
            return list(self._watched.values())

    def listening(self) -> list[Watched]:
        """Return the sessions with an open span; every tick is added to them."""
        return [watched for watched in self.all() if watched.windows]

    def take_over(self, watched: Watched) -> None:
        """Add the devices and series that have appeared to a session, and the notes of the sources."""
        version = self._sampler.version
        if watched.version == version:
            return
        watched.version = version
        watched.adopt(self._sampler.devices, self._sampler.series)
        # Only the current sessions show the sentence; later ones do not repeat it.
        for sentence in self._sampler.take_notes():
            self.note(sentence, watched)

    def note(self, sentence: str, *also: Watched) -> None:
        """Note a sentence once in every open session, and in others."""
        for watched in (*also, *self.listening()):
            watched.recorder.note(sentence)

    def replace_locks(self) -> None:
        """Make new locks: for a forked child, where the threads that hold them do not exist."""
        self._lock = threading.RLock()
        for watched in self._watched.values():
            watched.edges = threading.RLock()
            watched.recorder.replace_lock()
