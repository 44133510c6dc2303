"""Everything known about one watch, as data. A running and a finished session are the same type."""

from __future__ import annotations

import copy
import difflib
import math
import platform
import sys
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

from hfmem_widget.display import Shown, resolve
from hfmem_widget.errors import OptionError, WatchStateError
from hfmem_widget.session.model import (
    NOT_AVAILABLE,
    ROLES,
    Anatomy,
    Contents,
    Device,
    Finding,
    Guide,
    KVCache,
    LocalNote,
    Phase,
    Polling,
    Sample,
    Series,
    Size,
    Span,
    data_frame,
    same,
)
from hfmem_widget.session.moves import Move
from hfmem_widget.session.series import HELD
from hfmem_widget.session.spans import NOTHING, Phases, Spans, SpanTuple, highest_of
from hfmem_widget.session.steps import Steps, Table
from hfmem_widget.session.timeline import Timeline
from hfmem_widget.session.what_if import WhatIf
from hfmem_widget.text import DEVICE_KEY, format_counted, plain

if TYPE_CHECKING:
    import os
    from pathlib import Path

    import pandas as pd
    import plotly.graph_objects as go

    from hfmem_widget.session.rank_records import Ranks
    from hfmem_widget.session.stacks import Stacks


UNWRITTEN = nullcontext()
"""In place of the lock of a session that has ended, was copied, or was built from data."""

LIBRARIES = (
    *("hfmem_widget", "torch", "transformers", "accelerate", "peft", "trl", "bitsandbytes"),
    *("deepspeed", "numpy"),
)

_OF_HERE = {"beside", "evaluated", "lock", "remarks", "run", "trained", "what_if"}
"""Attributes that no copy has."""


class Session(Shown):
    """Everything recorded by one watch: devices, series, their timeline, and spans.

    While it runs, a `Recorder` writes it on other threads. Most attributes hold values that never change:
    the recorder replaces them whole, so they can be read directly. The spans, the timeline and the steps
    grow in place, so that a tick costs the same however long the run: the methods hold its lock.

    Two sessions are equal if their contents are equal. A copy, also by `pickle`, has what was known at that
    moment, and never changes. All parameters are optional, and have the meaning of the attributes.

    Attributes
    ----------
    label : str
        The user's name for it.
    started_at : float
        Wall clock at time zero, seconds since the epoch.
    lock : context manager
        Held during every write, and during reads of data that changes in place.
    stopped_at : float or None
        Wall clock at the end; None while the session runs.
    broken_off : bool
        Whether a fault of ours ended it.
    devices : tuple of Device
    series : tuple of Series
        New series are added at the end; none is removed.
    last_sample : Sample
        The newest.
    timeline : Timeline
        Grows in place; `between` returns a copy, which does not.
    steps : Steps
        Every finished step, folded if there are very many; `folded_steps` is a copy.
    polling : Polling
        Statistics of the sampling.
    contents : Contents
        The models and optimizers that were found.
    notes : list of str
        Caveats for the numbers, one plain sentence each.
    findings : list of Finding
        Judgements, made during the session and at its end.
    guides : list of Guide
        Lines over the chart.
    stacks : Stacks or None
        What was live at the peak, by where it was allocated; None if no stacks were recorded.
    software : mapping of str to str
        Versions of Python and some libraries where it was recorded; equality ignores them.
    ranks : Ranks or None
        The state of all ranks, if this is the overview of a distributed run.
    remarks : dict of int to str
        By the id of an outermost span, the remark of its card that compares it with others. A copy has none.
    moves : list of Move
        Changes that make a training fit that ran out of memory, best first.
    recipe : mapping of str to object
        Plain data for dry runs of the training on another machine, or only ``refused``, the reason why there
        is none. Empty without a training.
    what_if : WhatIf or None
        The training's memory at other batches and lengths, if that was forecast. A copy has none.
    trained : list of weakref
        The optimizers of the newest training, and models that had batches with gradients in it. A copy has
        none.
    beside : list of weakref
        Models that ran without gradients between that training's steps or within. A copy has none.
    evaluated : list of SeenBatch
        The batches of models that ran without gradients during the session, the newest last. A copy has none.
    run : Run or None
        The distributed run that was started during the session. A copy has none.
    """

    _shown_by: ClassVar[str] = "hfmem_widget.view.card:session_bundle"

    def __init__(
        self,
        label: str = "",
        *,
        started_at: float = 0.0,
        stopped_at: float | None = None,
        broken_off: bool = False,
        devices: Iterable[Device] = (),
        series: Iterable[Series] = (),
        last_sample: Sample | None = None,
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
        software: Mapping[str, str] | None = None,
    ) -> None:
        self.label = plain(label)
        self.started_at = started_at
        self.stopped_at = stopped_at
        self.broken_off = broken_off
        self.devices = tuple(devices)
        self.series = tuple(series)
        self.last_sample = last_sample or Sample(0.0, ())
        self.timeline = Timeline(len(self.series)) if timeline is None else timeline
        self.steps = Steps() if steps is None else steps
        self.polling = polling or Polling()
        self.contents = contents or Contents()
        self.notes = list(notes)
        self.findings = list(findings)
        self.guides = list(guides)
        self.stacks = stacks
        self.ranks: Ranks | None = None
        self.remarks: dict[int, str] = {}
        self.moves: list[Move] = []
        self.recipe: Mapping[str, Any] = {}
        self.what_if: WhatIf | None = None
        self.trained: list[weakref.ref[Any]] = []
        self.beside: list[weakref.ref[Any]] = []
        self.evaluated: list[Any] = []
        self.run: Any = None  # a `ranks.run.Run`: of a room above this one
        self._software = software
        self._spans = Spans() if spans is None else spans
        self._phases = Phases() if phases is None else phases
        self.lock: AbstractContextManager[object] = UNWRITTEN

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Session):
            return NotImplemented
        # The two locks are held in turn: two threads that compare the same sessions could deadlock otherwise.
        mine, others = self.__getstate__(), other.__getstate__()
        del mine["_software"], others["_software"]
        return self is other or same(mine, others)

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __getstate__(self) -> dict[str, Any]:
        with self.lock:
            fields = {name: value for name, value in vars(self).items() if name not in _OF_HERE}
            copied = {name: copy.copy(value) for name, value in fields.items()}
            return {**copied, "_software": dict(self.software)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(vars(Session()) | state)

    def __repr__(self) -> str:
        state = "running" if self.running else "finished"
        return (
            f"<Session {self.label!r} {state}: {format_counted(self.timeline.samples, 'sample')} of "
            f"{len(self.series)} series, {format_counted(len(self._spans), 'span')}>"
        )

    @property
    def portable_notes(self) -> list[str]:
        """The notes without local paths, for recordings and reports."""
        return [note for note in self.notes if not isinstance(note, LocalNote)]

    @property
    def is_of_here(self) -> bool:
        """Whether this process records it, or did; False for copies."""
        return self._software is None

    @property
    def running(self) -> bool:
        """True until the session is stopped."""
        return self.stopped_at is None

    @property
    def software(self) -> Mapping[str, str]:  # noqa: D102  (an attribute, described there)
        return loaded_software() if self._software is None else self._software

    @property
    def series(self) -> tuple[Series, ...]:  # noqa: D102  (an attribute, described there)
        return self._series

    @series.setter
    def series(self, series: tuple[Series, ...]) -> None:
        self._index = {each.key: position for position, each in enumerate(series)}
        self._series = series

    @property
    def spans(self) -> SpanTuple:
        """All spans in order of opening; the oldest closed ones are dropped if there are very many."""
        with self.lock:
            return SpanTuple(self._spans)

    @property
    def coarse_spans(self) -> tuple[Span, ...]:
        """The `spans` except those within trainings and calls of ``generate``; they are few."""
        with self.lock:
            return tuple(self._spans.coarse.values())

    @property
    def open_spans(self) -> tuple[Span, ...]:
        """The spans that have not ended, outermost first."""
        with self.lock:
            return self._spans.open

    def open_within(self, span_id: int) -> tuple[Span, ...]:
        """Return the open spans that were opened within an open span, innermost first."""
        with self.lock:
            return self._spans.within(span_id)

    def span(self, span_id: int) -> Span:
        """Return one span by its id."""
        with self.lock:
            span = self._spans.get(span_id)
        if span is None:
            raise WatchStateError(f"this session has no span {span_id}")
        return span

    def highest_in(self, span_id: int, key: str) -> float:
        """Return the highest sample of a series within an open span so far; NaN if there is none."""
        return self.highs_in(span_id).get(key, NOT_AVAILABLE)

    def highs_in(self, span_id: int) -> dict[str, float]:
        """Return the highest sample within an open span so far, of each series that has one."""
        with self.lock:
            highest = self._spans.highs.since(span_id)
            if highest and self.lock is UNWRITTEN:
                # Read from a file: the highs have only the span's `before`, the samples all later values.
                start = self._spans.get(span_id)
                since = self.timeline.between(0.0 if start is None else start.start, math.inf).high
                highest = highest_of([highest, *since.tolist()])
            highs = zip(self._index, highest, strict=False)
            return {key: high for key, high in highs if high != NOTHING}

    def phases(self, root: int) -> tuple[Phase, ...]:
        """Return the finished spans within an outermost span, by kind; its own kind comes last."""
        with self.lock:
            return self._phases.within(root)

    def folded_steps(self, most: int, after: float = -math.inf) -> Table:
        """Return a copy of the steps that ended after `after` seconds, folded to about `most` rows."""
        with self.lock:
            return self.steps.folded(most, after)

    def between(self, start: float, stop: float, columns: Sequence[int] | None = None) -> Timeline:
        """Return a copy of the timeline from `start` to `stop` seconds, of all series or of some columns."""
        with self.lock:
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

        NaN if it is not available, or not yet: before CUDA is initialised a GPU has nothing allocated, and
        the driver may not have named its devices yet.

        Raises
        ------
        OptionError
            If the session cannot have such a series; the message lists those that it has.
        """
        self._check(key)
        return self.value(self.last_sample, key)

    def peak(self, key: str = "") -> float:
        """Return the highest known value of a series over the whole session in bytes.

        It is the highest of the samples and of the peaks of spans and steps, which are the allocator's own
        counters where it has them.

        Parameters
        ----------
        key : str, optional
            Such as ``cuda:0/allocated``. By default the memory allocated on the GPU where that was highest;
            without a used GPU, the host's.

        Raises
        ------
        OptionError
            If the session cannot have such a series; the message lists those that it has.
        """
        if not key:
            peaks = {each.key: self.peak(f"{each.key}/allocated") for each in self.devices}
            gpus = [peak for device, peak in peaks.items() if ":" in device and peak > 0]
            known = gpus or [peak for peak in peaks.values() if not math.isnan(peak)]
            return max(known, default=Size(NOT_AVAILABLE))
        self._check(key)
        with self.lock:
            index = self._index.get(key)
            highs = [span.peaks[key].value for span in self._spans if key in span.peaks]
            if index is not None:
                highs.extend(self.timeline.high[:, index].tolist())
            highs.extend(self.steps.peaks_of(key))
        return Size(max((high for high in highs if not math.isnan(high)), default=NOT_AVAILABLE))

    def _check(self, key: str) -> None:
        """Raise `OptionError` for the key of a series that the session neither has nor may get."""
        # If a fault of ours ended the session before the first reading, the key may well be right.
        if key in self._index or (self.broken_off and not self.devices):
            return
        device, _, metric = key.partition("/")
        devices = [each.key for each in self.devices]
        metrics = [each.metric for each in self.series if each.device == device]
        may_come = metric in {*ROLES, *HELD}
        if metrics and not metric:
            keys = ", ".join(f"{device}/{each}" for each in metrics)
            raise OptionError(f"{plain(device)!r} is a device; name one of its series: {keys}")
        if may_come and (device in devices or (self.running and DEVICE_KEY.fullmatch(device))):
            return
        if device in devices:
            missing, present = f"{plain(metric)!r} of {device}", metrics
        else:
            missing, present = f"device {plain(device)!r}", devices
        near = difflib.get_close_matches(plain(key), self._index, n=3, cutoff=0.7)
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        available = ", ".join(present) or "read nothing yet"
        raise OptionError(f"this session has no {missing}; it has {available}{hint}")

    def to_pandas(self, fold: str = "high") -> pd.DataFrame:
        """Return the timeline as a data frame, one column a series, indexed by seconds.

        A column has the key of its series, except ``peak``, which is ``cpu/resident_peak`` of the host and
        ``cuda:0/allocator_peak`` of a GPU: a counter of the process, not the peak of a span.

        Parameters
        ----------
        fold : {"high", "low"}
            The extreme to take of a row that stands for several samples.
        """
        if fold not in {"high", "low"}:
            raise ValueError(f"fold must be 'high' or 'low', not {fold!r}")
        with self.lock:
            values = (self.timeline.high if fold == "high" else self.timeline.low).copy()
            time = self.timeline.time.copy()
            series = self.series
        return data_frame(values, [_column_of(each) for each in series], time, "time")

    def figure(self) -> go.Figure:
        """Return the session as a `plotly.graph_objects.Figure`."""
        drawn: go.Figure = resolve("hfmem_widget.view.chart.figure:figure")(self)
        return drawn

    def save(
        self, path: str | os.PathLike[str], *, table: str = "samples", resolution: float = 1.0
    ) -> Path:
        """Write what is known to a new file, and return where it is.

        Parameters
        ----------
        path : path-like
            Ending in ``.hfmem.jsonl`` or ``.hfmem.jsonl.gz``: everything, for `hfmem_widget.open`. Ending in
            ``.csv`` or ``.parquet``: a table. Ending in ``.perfetto.json`` or ``.trace.json``: a trace for
            ui.perfetto.dev or chrome://tracing.
        table : {"samples", "steps", "spans"}, optional
            The table to write: that of `to_pandas`, that of ``steps.to_pandas``, or a row for each span.
        resolution : float, optional
            Seconds between two points of a trace's curves; each is the highest sample up to the next point.

        Raises
        ------
        OptionError
            If the file exists, its name has another ending, or it cannot be written.
        """
        written: Path = resolve("hfmem_widget.recording.api:save")(self, path, table, resolution)
        return written

    def report(self, path: str | os.PathLike[str], *, static: bool = False) -> Path:
        """Write a page for a browser, complete in one new file, and return where it is.

        It has the card, the interactive chart, findings, phases, steps, and the memory at the peak part by
        part. It loads nothing from anywhere.

        Parameters
        ----------
        path : path-like
            Ending in ``.html``.
        static : bool, optional
            With only the still chart: some 100 kB instead of up to 1.5 MB, and without JavaScript.

        Raises
        ------
        OptionError
            If the file exists, its name has another ending, or it cannot be written.
        """
        written: Path = resolve("hfmem_widget.features.report.page:report")(
            self, path, static=static
        )
        return written

    def explain(self) -> Any:
        """Return where the memory went, as a `hfmem_widget.view.explained.Explanation`.

        It shows itself as text of at most 40 lines, and its ``to_dict()`` has the same as data.
        """
        return resolve("hfmem_widget.view.explained:explain")(self)

    def anatomy(self, at: str | int = "now", device: str = "") -> Anatomy:
        """Return the parts of a device's memory; see `hfmem_widget.Anatomy`.

        Parameters
        ----------
        at : "now", "peak" or int, optional
            At the newest reading, at the session's peak of allocated memory, or at the peak of a step.
        device : str, optional
            Its key; by default the one on which most was allocated.

        Raises
        ------
        OptionError
            If there is no such moment or device.
        """
        anatomy: Anatomy = resolve("hfmem_widget.analysis.anatomy:anatomy")(self, at, device)
        return anatomy

    def kv_cache(self) -> KVCache | None:
        """Return the KV cache of the call of ``generate`` with the highest peak; None without one."""
        kv_cache: KVCache | None = resolve("hfmem_widget.analysis.kv_cache:kv_cache")(self)
        return kv_cache


def _column_of(series: Series) -> str:
    if series.metric != "peak":
        return series.key
    return f"{series.device}/{'resident' if series.device == 'cpu' else 'allocator'}_peak"


def loaded_software() -> dict[str, str]:
    """Return the versions of Python and of those of `LIBRARIES` that are imported; imports nothing."""
    versions = {name: getattr(sys.modules.get(name), "__version__", "") for name in LIBRARIES}
    plain_versions = {name: plain(version, 40) for name, version in versions.items() if version}
    return {"python": platform.python_version(), **plain_versions}
