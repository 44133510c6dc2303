"""Everything known about one watch. A running and a finished session are the same type."""

from __future__ import annotations

import difflib
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, NoReturn

from hfmem_widget.display import Shown, resolve
from hfmem_widget.errors import OptionError, WatchStateError
from hfmem_widget.session.highs import NOTHING, Highs
from hfmem_widget.session.model import (
    FINE_KINDS,
    NOT_AVAILABLE,
    ROLES,
    Anatomy,
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
from hfmem_widget.session.phases import Phases
from hfmem_widget.session.series import HELD
from hfmem_widget.session.steps import PHASES, DeviceSteps, StepGroup, Steps, Table, with_old_names
from hfmem_widget.session.timeline import Timeline
from hfmem_widget.text import DEVICE_KEY, format_counted, plain

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from hfmem_widget.session.stacks import Stacks

MAY_COME = frozenset({*ROLES, *HELD})
"""The metrics that any device may yet have a series for."""

NO_COUNTS: Mapping[str, float] = MappingProxyType({})

BROKEN_OFF = "not watched to its end"
"""How a span ended that a fault of ours kept from being watched."""

OF_THE_MONITOR = frozenset(
    {
        *(
            "adopt",
            "append",
            "break_off",
            "close_span",
            "count",
            "next_span_id",
            "note",
            "off_step",
        ),
        *("on_step", "open_span", "progress", "read_after", "replace_lock", "stop"),
        *("subscribe", "subscribers", "unsubscribe"),
    }
)
"""What fills a session, and is not offered to those who read one."""

RECENT_SAMPLES = 64
"""Samples kept as they came, for who reads them tick by tick."""

SPAN_READINGS = 40_000
"""Readings kept in spans, over all of them: the more series there are, the fewer spans."""


class Session(Shown):
    """Devices, series, their timeline, and the spans of one watch.

    Parameters
    ----------
    label : str
        What the user calls it.
    started_at : float
        Wall clock at time zero, seconds since the epoch.
    timeline : Timeline, optional
        Where samples go.

    Attributes
    ----------
    devices : tuple of Device
    series : tuple of Series
        Only ever grows, at the end.
    timeline : Timeline
    steps : Steps
        Every step that has ended, folded where there are very many.
    polling : Polling
        How the poller did.
    contents : Contents
        What the models and optimizers that were found consist of.
    notes : list of str
        What a person must know to read the numbers right, one plain sentence each.
    findings : list of Finding
        Judgements made while it ran, or at its end. `analysis.findings` adds those that the data tell.
    guides : list of Guide
        Lines that are drawn over the chart.
    stacks : Stacks or None
        What was live at the peak, by where it was allocated; None where no stacks were recorded.
    stopped_at : float or None
        Wall clock at the end; None while the session runs.
    broken_off : bool
        Whether a fault of ours ended it.
    """

    _shown_by: ClassVar[str] = "hfmem_widget.view.session:session_bundle"

    def __init__(
        self, label: str = "", *, started_at: float = 0.0, timeline: Timeline | None = None
    ) -> None:
        self.label = plain(label)
        self.started_at = started_at
        self.stopped_at: float | None = None
        self.broken_off = False
        self.devices: tuple[Device, ...] = ()
        self.series: tuple[Series, ...] = ()
        self.timeline = timeline if timeline is not None else Timeline(0)
        self.steps = Steps()
        self.polling = Polling()
        self.contents = Contents()
        self.notes: list[str] = []
        self.findings: list[Finding] = []
        self.guides: list[Guide] = []
        self.stacks: Stacks | None = None
        self._index: dict[str, int] = {}
        self._spans: dict[int, Span] = {}
        self._open: Highs[int] = Highs()
        self._spans_opened = 0
        self._phases = Phases()
        self._phase_peaks: dict[int, dict[str, dict[str, float]]] = {}
        self._latest = Sample(0.0, ())
        self._recent: deque[Sample] = deque(maxlen=RECENT_SAMPLES)
        self._subscribers: list[Callable[[Session], None]] = []
        self._step_listeners: list[Callable[[Span], None]] = []
        self._catch_up: Callable[[], None] = _nothing
        self._lock = threading.RLock()

    def __reduce__(self) -> NoReturn:
        message = (
            "a session belongs to its process and cannot be pickled or copied; its "
            "figures are in session.to_pandas()"
        )
        raise TypeError(message)

    def __repr__(self) -> str:
        state = "running" if self.running else "finished"
        return (
            f"<Session {self.label!r} {state}: {format_counted(self.timeline.samples, 'sample')} of "
            f"{len(self.series)} series, {format_counted(len(self._spans), 'span')}>"
        )

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in OF_THE_MONITOR]

    @property
    def running(self) -> bool:
        """True until the session is stopped."""
        return self.stopped_at is None

    @property
    def spans(self) -> tuple[Span, ...]:
        """All spans in order of opening; the oldest closed ones go once there are very many."""
        self._catch_up()
        with self._lock:
            return tuple(self._spans.values())

    @property
    def open_spans(self) -> tuple[Span, ...]:
        """The spans that have not ended, outermost first."""
        self._catch_up()
        with self._lock:
            return tuple(self._spans[span_id] for span_id in self._open)

    def open_within(self, span_id: int) -> tuple[Span, ...]:
        """Return the open spans that were opened in an open span, innermost first."""
        with self._lock:
            if self._open.newest() in {None, span_id}:
                return ()
            inside: dict[int, Span] = {}
            for one in self._open:
                parent = self._spans[one].parent
                if parent == span_id or parent in inside:
                    inside[one] = self._spans[one]
            return tuple(reversed(inside.values()))

    @property
    def last_sample(self) -> Sample:
        """The newest sample."""
        return self._latest

    def since(self, time: float) -> list[Sample]:
        """Return the samples taken after some second, as far as the newest `RECENT_SAMPLES` tell."""
        with self._lock:
            return [sample for sample in self._recent if sample.time > time]

    def index(self, key: str) -> int | None:
        """Return the column of a series, such as ``"cuda:0/allocated"``; None if there is none."""
        return self._index.get(key)

    def value(self, sample: Sample, key: str) -> float:
        """Return one series' value in a sample; NaN where it has none."""
        index = self._index.get(key)
        if index is None or index >= len(sample.values):
            return NOT_AVAILABLE
        return sample.values[index]

    def latest(self, key: str) -> float:
        """Return the newest value of a series, such as ``"cuda:0/allocated"``, in bytes.

        NaN where it is not available, also where it may still come: a GPU has nothing allocated before CUDA
        is initialised, and while the session runs the driver may not have named its devices yet.

        Raises
        ------
        OptionError
            If there cannot be such a series; the message says what there is.
        """
        self._check_series(key)
        return self.value(self._latest, key)

    def peak(self, key: str) -> float:
        """Return the highest value of a series over the whole session in bytes, as well as it is known.

        The spans' peaks, which are the allocator's own where it keeps one, and the samples
        are taken together, so that the result is never below either.

        Raises
        ------
        OptionError
            If there cannot be such a series, as for `latest`; the message says what there is.
        """
        self._check_series(key)
        with self._lock:
            index = self._index.get(key)
            known = [span.peaks[key].value for span in self._spans.values() if key in span.peaks]
            if index is not None:
                known.extend(self.timeline.high[:, index].tolist())
        known = [value for value in known if not math.isnan(value)]
        return max(known, default=NOT_AVAILABLE)

    def span(self, span_id: int) -> Span:
        """Return one span by its id."""
        self._catch_up()
        with self._lock:
            if span_id not in self._spans:
                message = f"this session has no span {span_id}"
                raise WatchStateError(message)
            return self._spans[span_id]

    def between(self, start: float, stop: float, columns: Sequence[int] | None = None) -> Timeline:
        """Return the part of the timeline that touches the seconds from `start` to `stop`, as a copy.

        Parameters
        ----------
        start, stop : float
        columns : sequence of int, optional
            Take only these series.
        """
        with self._lock:
            return self.timeline.between(start, stop, columns)

    def adopt(self, devices: Sequence[Device], series: Sequence[Series]) -> None:
        """Take over what is read; series may be added at the end, devices may be replaced by key."""
        with self._lock:
            self.devices = tuple(devices)
            self.series = tuple(series)
            self._index = {one.key: position for position, one in enumerate(self.series)}
            self.timeline.widen(len(self.series))

    def append(self, sample: Sample) -> Sample:
        """Add a sample and return it as kept: time never runs backwards."""
        with self._lock:
            missing = len(self.series) - len(sample.values)
            if missing > 0:
                values = (*sample.values, *[NOT_AVAILABLE] * missing)
                sample = replace(sample, values=values)
            if sample.time < self._latest.time:
                sample = replace(sample, time=self._latest.time)
            self._latest = sample
            self._recent.append(sample)
            self.timeline.append(sample.time, sample.values)
            self._open.note(sample.values)
        return sample

    def folded_steps(self, most: int, after: float = -math.inf) -> Table:
        """Return the steps that ended after some second as at most about `most` rows, as a copy."""
        self._catch_up()
        with self._lock:
            return self.steps.folded(most, after)

    def phases(self, root: int) -> tuple[Phase, ...]:
        """Return what was told apart within an outermost span, by kind; its own kind comes last."""
        self._catch_up()
        with self._lock:
            return self._phases.within(root)

    def count(self, span_id: int, counts: Mapping[str, float]) -> None:
        """Set what is counted in an open span; harmless if it has ended."""
        with self._lock:
            if span_id in self._open:
                span = self._spans[span_id]
                self._spans[span_id] = replace(span, counts={**span.counts, **counts})

    def next_span_id(self) -> int:
        """Take the id of a span that is about to be opened."""
        with self._lock:
            self._spans_opened += 1
            return self._spans_opened

    def open_span(
        self, kind: SpanKind, label: str, before: Sample, span_id: int | None = None
    ) -> Span:
        """Begin a span at a sample that has been appended."""
        with self._lock:
            parent = self._open.newest()
            number = self.next_span_id() if span_id is None else span_id
            span = Span(number, kind, plain(label), before.time, before, parent=parent)
            self._spans[span.id] = span
            self._open.open(span.id, before.values)
            self._forget_old_spans()
        return span

    def close_span(
        self,
        span_id: int,
        after: Sample,
        peaks: Mapping[str, Peak],
        outcome: str = "done",
        counts: Mapping[str, float] = NO_COUNTS,
    ) -> Span:
        """End a span at a sample; where `peaks` has no entry for a series, the samples give one."""
        with self._lock:
            if span_id not in self._open:
                message = f"span {span_id} is not open"
                raise WatchStateError(message)
            highs = zip(self._index, self.series, self._open.close(span_id), strict=False)
            known = dict(peaks)
            for key, series, high in highs:
                if key not in known and series.metric in ROLES and high != NOTHING:
                    known[key] = Peak(high, "sampled")
            span = self._spans[span_id]
            counts = {**span.counts, **counts}
            if span.kind == "step":
                counts.setdefault("step", float(self.steps.count + 1))
            span = replace(
                span,
                stop=after.time,
                after=after,
                peaks=known,
                outcome=outcome,
                counts=counts,
            )
            self._spans[span_id] = span
            self._account(span)
        return span

    def highest_in(self, span_id: int, key: str) -> float:
        """Return the highest sample of a series within an open span so far; NaN if there is none."""
        with self._lock:
            highs = dict(zip(self._index, self._open.since(span_id), strict=False))
        highest = highs.get(key, NOTHING)
        return NOT_AVAILABLE if highest == NOTHING else highest

    def progress(self, span_id: int, peaks: Mapping[str, Peak]) -> None:
        """Set the peaks of an open span as they are known so far."""
        with self._lock:
            if span_id in self._open and self._spans[span_id].peaks != peaks:
                self._spans[span_id] = replace(self._spans[span_id], peaks=dict(peaks))

    def read_after(self, catch_up: Callable[[], None]) -> None:
        """Have something done before spans are read, by whoever may be behind with them."""
        self._catch_up = catch_up

    def on_step(self, listener: Callable[[Span], None]) -> None:
        """Call `listener(span)` for each step that has ended, on any thread; it must be quick."""
        self._step_listeners.append(listener)

    def off_step(self, listener: Callable[[Span], None]) -> None:
        """Call it no longer; harmless if it was not called."""
        if listener in self._step_listeners:
            self._step_listeners.remove(listener)

    def subscribe(self, listener: Callable[[Session], None]) -> None:
        """Call `listener(session)` after each tick, on the poller's thread."""
        self._subscribers.append(listener)

    def unsubscribe(self, listener: Callable[[Session], None]) -> None:
        """Call it no longer; harmless if it was not called."""
        if listener in self._subscribers:
            self._subscribers.remove(listener)

    @property
    def subscribers(self) -> tuple[Callable[[Session], None], ...]:
        """Who is called after each tick."""
        return tuple(self._subscribers)

    def note(self, sentence: str) -> None:
        """Add a sentence that a person must know, once."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    def stop(self, stopped_at: float) -> None:
        """End the session at a wall-clock time; nothing is appended afterwards."""
        self.stopped_at = stopped_at

    def break_off(self, stopped_at: float, why: str) -> None:
        """End the session where a fault of ours keeps it from going on; open spans end as they are known."""
        self.stopped_at = stopped_at
        self.broken_off = True
        self.note(why)
        with self._lock:
            for span_id, span in self._spans.items():
                if span.stop is None:
                    self._spans[span_id] = replace(
                        span, stop=self._latest.time, after=self._latest, outcome=BROKEN_OFF
                    )

    def replace_lock(self) -> None:
        """Forget who holds the lock: for a forked child, where that thread does not exist."""
        self._lock = threading.RLock()
        self.timeline.replace_lock()

    def to_pandas(self, fold: str = "high", *, old_names: bool = False) -> pd.DataFrame:
        """Return the timeline as a data frame, one column a series, indexed by seconds.

        Columns have the keys of their series, but for ``peak``: that is ``cpu/resident_peak`` of the host and
        ``cuda:0/allocator_peak`` of a GPU, its counter's, which is not the peak of anything watched.

        Parameters
        ----------
        fold : {"high", "low"}
            Which extreme of a row to take, once rows stand for more than one sample.
        old_names : bool, optional
            Name these ``peak`` as well, as before 0.1.
        """
        if fold not in {"high", "low"}:
            message = f"fold must be 'high' or 'low', not {fold!r}"
            raise ValueError(message)
        try:
            import pandas as pd
        except ImportError as error:
            message = "to_pandas() needs pandas: pip install pandas"
            raise ImportError(message) from error
        with self._lock:
            values = (self.timeline.high if fold == "high" else self.timeline.low).copy()
            time = self.timeline.time.copy()
        columns = [series.key if old_names else _column_of(series) for series in self.series]
        frame = pd.DataFrame(values, index=pd.Index(time, name="time"), columns=columns)
        return with_old_names(frame) if old_names else frame

    def figure(self) -> go.Figure:
        """Return the session as a `plotly.graph_objects.Figure`."""
        drawn: go.Figure = resolve("hfmem_widget.view.chart.figure:figure")(self)
        return drawn

    def anatomy(self, at: str | int = "now", device: str = "") -> Anatomy:
        """Return what a device's memory is, or was, made of; see `hfmem_widget.Anatomy`.

        Parameters
        ----------
        at : "now", "peak" or int, optional
            The newest reading, the highest allocated of the session, or the peak of a step by its number.
        device : str, optional
            Its key; by default the one on which most was allocated.

        Raises
        ------
        OptionError
            If there is no such moment or device.
        """
        found: Anatomy = resolve("hfmem_widget.analysis.anatomy:anatomy")(self, at, device)
        return found

    def _check_series(self, key: str) -> None:
        if key in self._index:
            return
        if self.broken_off and not self.devices:
            return
        device, _, metric = key.partition("/")
        metrics = [one.metric for one in self.series if one.device == device]
        if metrics and not metric:
            own = ", ".join(f"{device}/{one}" for one in metrics)
            message = f"{plain(device)!r} is a device; name one of its series: {own}"
            raise OptionError(message)
        if device not in {one.key for one in self.devices}:
            if self.running and DEVICE_KEY.fullmatch(device) and metric in MAY_COME:
                return
            there = f"device {plain(device)!r}", [one.key for one in self.devices]
        elif metric not in MAY_COME:
            there = f"{plain(metric)!r} of {device}", metrics
        else:
            return
        raise OptionError(_no_series(key, *there, self._index))

    def _account(self, span: Span) -> None:
        """Take a finished span into the phases and the steps, which outlive it."""
        root, step, within_its_like = span.id, None, False
        parent = span.parent
        while parent in self._spans:
            root, around = parent, self._spans[parent]
            if around.kind == "step" and step is None:
                step = parent
            if around.kind == span.kind and (span.kind != "block" or around.label == span.label):
                within_its_like = True
            parent = around.parent
        if not within_its_like:  # else its seconds would count twice
            self._phases.add(root, span)
        if span.kind == "step":
            self.steps.append(self._step(span, self._phase_peaks.pop(span.id, {})))
            for listener in tuple(self._step_listeners):
                try:
                    listener(span)
                except Exception as error:  # noqa: BLE001  (a listener must not end what it listens to)
                    self.off_step(listener)
                    self.note(
                        f"A listener for steps was disconnected ({type(error).__name__}: {plain(error)})."
                    )
        elif span.kind in PHASES and step is not None:
            peaks = self._phase_peaks.setdefault(step, {}).setdefault(span.kind, {})
            for key, peak in span.peaks.items():
                peaks[key] = max(peak.value, peaks.get(key, peak.value))

    def _step(self, span: Span, phases: Mapping[str, Mapping[str, float]]) -> StepGroup:
        number = int(span.counts["step"])
        tokens = span.counts.get("tokens", NOT_AVAILABLE)
        devices = {}
        for device in self.devices:
            key = f"{device.key}/allocated"
            peak = span.peaks.get(key)
            if peak is not None and peak.value > 0:
                devices[device.key] = DeviceSteps(
                    peak=peak.value,
                    certainty=peak.certainty,
                    lowest=peak.value,
                    worst=number,
                    worst_tokens=span.counts.get("largest_batch", tokens),
                    after=NOT_AVAILABLE if span.after is None else self.value(span.after, key),
                    phases={kind: peaks[key] for kind, peaks in phases.items() if key in peaks},
                )
        return StepGroup(
            parent=span.parent or 0,
            first=number,
            last=number,
            start=span.start,
            stop=span.start + span.duration,
            samples=span.counts.get("samples", NOT_AVAILABLE),
            longest=span.counts.get("longest", NOT_AVAILABLE),
            tokens=tokens,
            content_tokens=span.counts.get("content_tokens", NOT_AVAILABLE),
            devices=devices,
        )

    def _forget_old_spans(self) -> None:
        if len(self._spans) * max(1, len(self.series)) <= SPAN_READINGS:
            return
        closed = [one for one in self._spans if one not in self._open]
        fine = [one for one in closed if self._spans[one].kind in FINE_KINDS]
        # An eighth at once: looking for them takes as long as there are spans.
        for span_id in (fine or closed)[: max(1, len(closed) // 8)]:
            del self._spans[span_id]


def _column_of(series: Series) -> str:
    """Return a series' name in a data frame: its key, but where that would be another figure's name too."""
    if series.metric != "peak":
        return series.key
    return f"{series.device}/{'resident' if series.device == 'cpu' else 'allocator'}_peak"


def _no_series(key: str, what: str, there: Sequence[str], known: Iterable[str]) -> str:
    near = difflib.get_close_matches(plain(key), list(known), n=3, cutoff=0.7)
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
    return f"this session has no {what}; it has {', '.join(there) or 'read nothing yet'}{hint}"


def _nothing() -> None:
    """Nobody is behind."""
