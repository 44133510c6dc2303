"""Everything known about one watch, as data. A running and a finished session are the same type."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from hfmem_widget.display import Shown, resolve
from hfmem_widget.errors import WatchStateError
from hfmem_widget.session.highs import NOTHING
from hfmem_widget.session.lookup import check_series
from hfmem_widget.session.model import (
    NOT_AVAILABLE,
    Anatomy,
    Contents,
    Device,
    Finding,
    Guide,
    Phase,
    Polling,
    Sample,
    Series,
    Span,
)
from hfmem_widget.session.phases import Phases
from hfmem_widget.session.same import same
from hfmem_widget.session.spans import Spans
from hfmem_widget.session.steps import Steps, Table, with_old_names
from hfmem_widget.session.timeline import Timeline
from hfmem_widget.session.writer import NOBODY, Writer
from hfmem_widget.text import format_counted, plain

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from hfmem_widget.session.stacks import Stacks

NOT_ANY = Sample(0.0, ())
"""The newest sample before the first."""


class Session(Shown):
    """Devices, series, their timeline, and the spans of one watch: plain data.

    While it runs, a `Recorder` writes it, on other threads. Most attributes hold values that never change;
    the recorder replaces them whole, so they can be read directly. The spans, the timeline and the steps grow
    in place, because a copy at each tick would cost more the longer the run. Read them through the methods:
    these let the recorder enter what it left for later, and hold its lock. That is right with and without
    the interpreter's own lock, and only a read pays for it. A session that nobody writes holds no lock.

    Two sessions are equal if their contents are equal. A copy, also by `pickle`, is what was known at that
    moment; nobody writes it further.

    Parameters
    ----------
    label : str
        What the user calls it.
    started_at, stopped_at, broken_off, devices, series, last_sample, timeline, steps : optional
    polling, contents, notes, findings, guides, stacks : optional
        As the attributes.
    spans : Spans, optional
    phases : Phases, optional
    writer : Writer, optional
        Who goes on writing it.

    Attributes
    ----------
    started_at : float
        Wall clock at time zero, seconds since the epoch.
    stopped_at : float or None
        Wall clock at the end; None while the session runs.
    broken_off : bool
        Whether a fault of ours ended it.
    devices : tuple of Device
    series : tuple of Series
        Only ever grows, at the end.
    last_sample : Sample
        The newest.
    timeline : Timeline
        While the session runs, `between` is a copy of it that stands still.
    steps : Steps
        Every step that has ended, folded where there are very many; `folded_steps` is a copy.
    polling : Polling
        How the poller did.
    contents : Contents
        What the models and optimizers that were found consist of.
    notes : list of str
        What a person must know to read the numbers right, one plain sentence each.
    findings : list of Finding
        What was found while it ran, and what its data told when its outermost spans had ended.
    guides : list of Guide
        Lines that are drawn over the chart.
    stacks : Stacks or None
        What was live at the peak, by where it was allocated; None where no stacks were recorded.
    """

    _shown_by: ClassVar[str] = "hfmem_widget.view.session:session_bundle"

    def __init__(
        self,
        label: str = "",
        *,
        started_at: float = 0.0,
        stopped_at: float | None = None,
        broken_off: bool = False,
        devices: Iterable[Device] = (),
        series: Iterable[Series] = (),
        last_sample: Sample = NOT_ANY,
        timeline: Timeline | None = None,
        steps: Steps | None = None,
        spans: Spans | None = None,
        phases: Phases | None = None,
        polling: Polling | None = None,
        contents: Contents | None = None,
        notes: Iterable[str] = (),
        findings: Iterable[Finding] = (),
        guides: Iterable[Guide] = (),
        stacks: Stacks | None = None,
        writer: Writer = NOBODY,
    ) -> None:
        self.label = plain(label)
        self.started_at = started_at
        self.stopped_at = stopped_at
        self.broken_off = broken_off
        self.devices = tuple(devices)
        self.series = tuple(series)
        self.last_sample = last_sample
        self.timeline = Timeline(len(self.series)) if timeline is None else timeline
        self.steps = Steps() if steps is None else steps
        self.polling = Polling() if polling is None else polling
        self.contents = Contents() if contents is None else contents
        self.notes = list(notes)
        self.findings = list(findings)
        self.guides = list(guides)
        self.stacks = stacks
        self._spans = Spans() if spans is None else spans
        self._phases = Phases() if phases is None else phases
        self._writer = writer

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Session):
            return NotImplemented
        # One after the other: two threads that compare the same two would else wait for each other's lock.
        return self is other or same(self.__getstate__(), other.__getstate__())

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __getstate__(self) -> dict[str, Any]:
        self._writer.catch_up()
        with self._writer.lock:
            known = {name: value for name, value in vars(self).items() if name != "_writer"}
            return {name: copy.copy(value) for name, value in known.items()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _writer=NOBODY)

    def __repr__(self) -> str:
        state = "running" if self.running else "finished"
        return (
            f"<Session {self.label!r} {state}: {format_counted(self.timeline.samples, 'sample')} of "
            f"{len(self.series)} series, {format_counted(len(self._spans), 'span')}>"
        )

    @property
    def running(self) -> bool:
        """True until the session is stopped."""
        return self.stopped_at is None

    @property
    def series(self) -> tuple[Series, ...]:  # noqa: D102  (an attribute, described there)
        return self._series

    @series.setter
    def series(self, series: tuple[Series, ...]) -> None:
        self._index = {one.key: position for position, one in enumerate(series)}
        self._series = series

    @property
    def spans(self) -> tuple[Span, ...]:
        """All spans in order of opening; the oldest closed ones go once there are very many."""
        self._writer.catch_up()
        with self._writer.lock:
            return tuple(self._spans)

    @property
    def open_spans(self) -> tuple[Span, ...]:
        """The spans that have not ended, outermost first."""
        self._writer.catch_up()
        with self._writer.lock:
            return self._spans.open

    def open_within(self, span_id: int) -> tuple[Span, ...]:
        """Return the open spans that were opened in an open span, innermost first, as far as entered."""
        with self._writer.lock:
            return self._spans.within(span_id)

    def span(self, span_id: int) -> Span:
        """Return one span by its id."""
        self._writer.catch_up()
        with self._writer.lock:
            span = self._spans.get(span_id)
        if span is None:
            message = f"this session has no span {span_id}"
            raise WatchStateError(message)
        return span

    def highest_in(self, span_id: int, key: str) -> float:
        """Return the highest sample of a series within an open span so far; NaN if there is none."""
        with self._writer.lock:
            highs = dict(zip(self._index, self._spans.highs(span_id), strict=False))
        highest = highs.get(key, NOTHING)
        return NOT_AVAILABLE if highest == NOTHING else highest

    def phases(self, root: int) -> tuple[Phase, ...]:
        """Return what was told apart within an outermost span, by kind; its own kind comes last."""
        self._writer.catch_up()
        with self._writer.lock:
            return self._phases.within(root)

    def folded_steps(self, most: int, after: float = -math.inf) -> Table:
        """Return the steps that ended after some second as at most about `most` rows, as a copy."""
        self._writer.catch_up()
        with self._writer.lock:
            return self.steps.folded(most, after)

    def between(self, start: float, stop: float, columns: Sequence[int] | None = None) -> Timeline:
        """Return the part of the timeline that touches the seconds from `start` to `stop`, as a copy.

        Parameters
        ----------
        start, stop : float
        columns : sequence of int, optional
            Take only these series.
        """
        with self._writer.lock:
            return self.timeline.between(start, stop, columns)

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
        self._check(key)
        return self.value(self.last_sample, key)

    def peak(self, key: str) -> float:
        """Return the highest value of a series over the whole session in bytes, as well as it is known.

        The spans' peaks, which are the allocator's own where it keeps one, and the samples
        are taken together, so that the result is never below either.

        Raises
        ------
        OptionError
            If there cannot be such a series, as for `latest`; the message says what there is.
        """
        self._check(key)
        self._writer.catch_up()
        with self._writer.lock:
            index = self._index.get(key)
            known = [span.peaks[key].value for span in self._spans if key in span.peaks]
            if index is not None:
                known.extend(self.timeline.high[:, index].tolist())
        known = [value for value in known if not math.isnan(value)]
        return max(known, default=NOT_AVAILABLE)

    def _check(self, key: str) -> None:
        # Where a fault of ours came before anything was read, a slip cannot be told from what would be there.
        if key not in self._index and (self.devices or not self.broken_off):
            check_series(key, self.devices, self.series, running=self.running)

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
        with self._writer.lock:
            values = (self.timeline.high if fold == "high" else self.timeline.low).copy()
            time = self.timeline.time.copy()
            series = self.series
        columns = [one.key if old_names else _column_of(one) for one in series]
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


def _column_of(series: Series) -> str:
    """Return a series' name in a data frame: its key, but where that would be another figure's name too."""
    if series.metric != "peak":
        return series.key
    return f"{series.device}/{'resident' if series.device == 'cpu' else 'allocator'}_peak"
