"""The record of a watched cell or block, which outlives its session: figures, parts, steps and a curve."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace

import numpy as np
from numpy.typing import NDArray

from hfmem_widget.analysis import anatomy
from hfmem_widget.analysis.cell import Cell
from hfmem_widget.analysis.curve import LEAST_SAMPLES, curve
from hfmem_widget.analysis.facts import (
    NEXT_TO_NOTHING,
    Facts,
    SpanCost,
    end_of,
    facts_of,
    findings_of,
)
from hfmem_widget.errors import OptionError
from hfmem_widget.guard import warn
from hfmem_widget.session import HELD, Anatomy, Peak, Session, Span, outermost
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.session.stacks import LivePeak, Site
from hfmem_widget.session.steps import MOST_GROUPS, Table
from hfmem_widget.text import plain

Floats = NDArray[np.floating]

UNLABELLED = "cell "
"""How the identity of a cell without a label begins."""

MOST_POINTS = 400
"""Points of a curve at most."""

MOST_STEP_ROWS = 300
"""Rows of a table of steps at most; of more, neighbours are merged."""

STEP_COLUMNS = ("first", "last", "lowest", "highest", "worst")
"""The columns of `DeviceRecord.steps`."""


NO_POINTS: Floats = np.empty((2, 0), dtype=np.float32)
NO_STEPS: Floats = np.empty((0, len(STEP_COLUMNS)))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class DeviceRecord(SpanCost):
    """What one watched cell did to one device. Bytes; NaN where not known."""

    key: str = ""
    name: str = ""
    at_peak: Mapping[str, float] = field(default_factory=dict)
    at_end: Mapping[str, float] = field(default_factory=dict)
    """The parts then, by name; empty where no tensors of models or optimizers were found."""
    made: Mapping[str, float] = field(default_factory=dict)
    """What may be among the activations at the peak, as in `Anatomy`."""
    at_start: Mapping[str, float] = field(default_factory=dict)
    """What tensors were for then, as far as it was known."""
    curve: Floats = field(default_factory=lambda: NO_POINTS)
    """Seconds since the cell began, and allocated, of shape (2, at most `MOST_POINTS`); none where there are
    too few samples. NaN breaks it."""
    steps: Floats = field(default_factory=lambda: NO_STEPS)
    """At most `MOST_STEP_ROWS` rows, for one step or for neighbours, with `STEP_COLUMNS`: the first and the
    last of them, counted on where the numbers begin anew; the lowest and the highest of their peaks, and
    which has the highest."""
    live: LivePeak | None = None
    """What was live at the peak, without its course; None where no stacks were recorded."""


UNUSED = DeviceRecord()
"""What a cell did to a device that it did not use."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How quick the steps were, without a first one that warms up; NaN if unknown. Tokens include padding."""

    steps: int = 0  # the first included
    steps_per_second: float = NOT_AVAILABLE
    samples_per_second: float = NOT_AVAILABLE
    tokens_per_second: float = NOT_AVAILABLE


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Record:
    """One run of a watched cell, or of a watched block."""

    label: str = ""  # the user's name for it; empty if there is none
    title: str = ""  # its name without that: its first line, or such as "cell [7]"
    identity: str  # the same for all runs of this cell, or of this label
    kind: str = "cell"  # or "block"
    number: int | None = None  # the cell's; None outside a notebook
    outcome: str = "done"  # or "interrupted", or "raised TypeName"
    started_at: float = 0.0  # seconds since the epoch
    duration: float  # seconds
    # Those on which anything was allocated; of the ranks of a run "ranks", and each that is shown by itself.
    devices: tuple[DeviceRecord, ...] = ()
    findings: tuple[tuple[str, str], ...] = ()  # the kind and the sentence of each
    pace: Pace = Pace()
    # Of these ranks the "median" and the "lowest" peak, and the highest of each phase, in bytes.
    ranks: Mapping[str, float] = field(default_factory=dict)
    worst_rank: int | None = None  # which of them had the highest peak
    software: Mapping[str, str] = field(default_factory=dict)  # versions, by name

    @property
    def name(self) -> str:
        """Its name on the screen."""
        return self.label or self.title

    @property
    def moved(self) -> tuple[DeviceRecord, ...]:
        """The devices that it changed, or else the one with the highest peak; of ranks that of them all."""
        if self.worst_rank is not None:
            return self.devices[:1]
        moved = tuple(
            device
            for device in self.devices
            if abs(device.left_behind) >= NEXT_TO_NOTHING or device.above_start >= NEXT_TO_NOTHING
        )
        return moved or tuple(sorted(self.devices, key=lambda device: device.peak.value)[-1:])

    @property
    def peak(self) -> float:
        """The highest peak of its devices."""
        return max((device.peak.value for device in self.moved), default=NOT_AVAILABLE)

    @property
    def left_behind(self) -> float:
        """What it left behind on all devices together."""
        return sum(device.left_behind for device in self.moved)

    @property
    def size(self) -> int:
        """Bytes of its curves, steps and live memory."""
        places = sum(len(device.live.sites) for device in self.devices if device.live)
        arrays = sum(device.curve.nbytes + device.steps.nbytes for device in self.devices)
        return arrays + 500 * places  # about

    def device(self, key: str) -> DeviceRecord | None:
        """Return the record of a device; None if the cell did not use it."""
        return next((device for device in self.devices if device.key == key), None)

    def without_curves(self) -> Record:
        """Return the same with figures alone."""
        bare = [replace(one, curve=NO_POINTS, steps=NO_STEPS, live=None) for one in self.devices]
        return replace(self, devices=tuple(bare))


UNNAMED = ("block", "training")
"""What watches are called that were given no label."""

MOST_FINDINGS = 16
SENTENCE = 300

_COLUMNS = (MOST_POINTS - 2) // 3
"""A curve's columns: each has two points at most, and one that breaks the line."""


def record_of(session: Session, span: Span, *, label: str = "", cell: Cell | None = None) -> Record:
    """Return what is kept of an outermost span that has ended, or of what `whole` made."""
    label, title, identity = names_of(span, plain(label), cell)
    read, over = measured_in(session, span)
    ranks = read.ranks
    spread = {} if ranks is None else {"median": ranks.median, "lowest": ranks.lowest}
    phases = {} if ranks is None else {phase.kind: phase.high for phase in ranks.phases}
    findings = [finding for finding in findings_of(session, span) if finding.span_id == span.id]
    findings = findings if ranks is None else [*read.findings, *findings]
    return Record(
        label=label,
        title=title,
        identity=identity,
        kind=span.kind,
        number=None if cell is None else cell.number,
        outcome=plain(span.outcome),
        started_at=session.started_at + span.start,
        duration=span.duration,
        devices=tuple(_device_record(read, over, facts) for facts in facts_of(read, over)),
        findings=tuple(
            (finding.kind, plain(finding.title, SENTENCE)) for finding in findings[:MOST_FINDINGS]
        ),
        pace=pace_of(read, over),
        ranks=spread | phases,
        worst_rank=ranks.worst.rank if ranks is not None and ranks.worst is not None else None,
        software=dict(session.software),
    )


def of_stacks(peaks: Iterable[LivePeak], label: str) -> Record:
    """Return what stacks alone tell of a run: of each device with events the peak, as requested."""
    devices = tuple(
        DeviceRecord(
            allocated_label="requested memory",
            peak=each.peak,
            key=each.device,
            live=replace(each, over_time=None),
        )
        for each in peaks
        if each.peak.value >= 0
    )
    return Record(label=plain(label), identity="", duration=NOT_AVAILABLE, devices=devices)


def as_in_a_snapshot(run: Record) -> Record:
    """Return a record of `of_stacks` whose lines have neither source text nor classes."""

    def bare(site: Site) -> Site:
        return replace(site, source="", function=site.function.rpartition(".")[2])

    devices = (
        replace(each, live=replace(each.live, sites=tuple(map(bare, each.live.sites))))
        for each in run.devices
        if each.live is not None
    )
    return replace(run, devices=tuple(devices))


def names_of(span: Span, label: str, cell: Cell | None) -> tuple[str, str, str]:
    """Return a watch's label, what else to call it, and what it has in common with its other runs."""
    title = plain(span.label) or span.kind
    own = "" if cell is None else cell.id
    # As cells are called that have no label, one by one and under `%memwatch on`.
    if (
        cell is not None
        and span.kind == "cell"
        and title.startswith((f"cell [{cell.number}]", f"[{cell.number}]"))
    ):
        return "", cell.first_line or title, f"{UNLABELLED}{own or title}"
    label = label or title
    # Blocks without a label are all called the same: what they are in distinguishes them.
    where = f" in {own}" if own and span.kind != "cell" and label in UNNAMED else ""
    return label, title, f"label {label}{where}"


def measured_in(session: Session, span: Span) -> tuple[Session, Span]:
    """Return where an outermost span's memory is: in the overview of its ranks, or else in itself."""
    if session.ranks is not None:
        return session, whole(session)
    overview: Session | None = None if session.run is None else session.run.overview
    if overview is None or overview.ranks is None or overview.running:
        return session, span
    return overview, whole(overview)


def whole(session: Session) -> Span:
    """Return a finished session's outermost span, or one made of several; raise `OptionError` without one."""
    name = plain(session.label) or "this session"
    if session.running:
        raise OptionError(f"{name!r} is still running; compare it after it has ended")
    roots = outermost(session.spans)
    if not roots:
        raise OptionError(f"{name!r} has no watched cell or block")
    if len(roots) == 1:
        return roots[0]
    last = max(roots, key=lambda root: root.stop or 0.0)
    peaks: dict[str, Peak] = {}
    for root in roots:
        for key, peak in root.peaks.items():
            if key not in peaks or peak.value > peaks[key].value:
                peaks[key] = peak
    return replace(roots[0], stop=last.stop, after=last.after, peaks=peaks, label=session.label)


def _device_record(session: Session, span: Span, facts: Facts) -> DeviceRecord:
    device = facts.device
    at_peak: Mapping[str, float] = {}
    at_end: Mapping[str, float] = {}
    made: Mapping[str, float] = {}
    # Parts take long to find, and need a series of weights or the like: seldom are there any.
    if any(session.index(f"{device.key}/{metric}") is not None for metric in HELD):
        at_peak, made = _by_name(lambda: anatomy.peak_of(session, span, device))
        at_end, _ = _by_name(lambda: anatomy.end_of(session, span, device))
    return DeviceRecord(
        key=plain(device.key),
        name=plain(device.name),
        **{figure.name: getattr(facts, figure.name) for figure in fields(SpanCost)},
        at_peak=at_peak,
        made=made,
        at_start={
            part: value
            for part in HELD
            if not math.isnan(value := session.value(span.before, f"{device.key}/{part}"))
        },
        at_end=at_end,
        curve=_curve(session, span, device.key),
        steps=_steps(session, span, device.key),
        live=_live(session, span, device.key),
    )


def _by_name(anatomy_of: Callable[[], Anatomy]) -> tuple[Mapping[str, float], Mapping[str, float]]:
    """Return parts and `Anatomy.made` by name, if any tensors were found; a fault costs no more than them."""
    try:
        breakdown = anatomy_of()
    except Exception as error:  # noqa: BLE001  (the record's other figures are there)
        warn(f"the breakdown was lost ({type(error).__name__}: {error})")
        return {}, {}
    sizes = {part.name: part.bytes for part in breakdown.parts}
    return (sizes, breakdown.made) if any(name in sizes for name in HELD) else ({}, {})


def _curve(session: Session, span: Span, device: str) -> Floats:
    index = session.index(f"{device}/allocated")
    if index is None:
        return NO_POINTS
    stop = end_of(session, span)
    part = session.between(span.start, stop, [index])
    if len(part) < LEAST_SAMPLES:
        return NO_POINTS
    points = curve(part, 0, span.start, stop, columns=_COLUMNS)
    return np.array(points, dtype=np.float32).reshape(-1, 2).T


def _live(session: Session, span: Span, device: str) -> LivePeak | None:
    peaks = () if session.stacks is None else session.stacks.peaks
    # A span that was made of several has another end.
    own = any((each.id, each.stop) == (span.id, span.stop) for each in session.coarse_spans)
    here = (peak for peak in peaks if own and (peak.device, peak.span_id) == (device, span.id))
    return next((replace(peak, over_time=None) for peak in here), None)


def _step_table(session: Session, span: Span, most: int) -> Table:
    table = session.folded_steps(most, after=span.start)
    return table[table[:, session.steps.columns.index("stop")] <= end_of(session, span)]


def _steps(session: Session, span: Span, device: str) -> Floats:
    if device not in session.steps.devices:
        return NO_STEPS
    columns = session.steps.columns
    of_device = [f"{device}/{name}" for name in ("lowest", "peak", "worst")]
    wanted = [columns.index(name) for name in ("first", "last", *of_device)]
    rows = _step_table(session, span, MOST_STEP_ROWS)[:, wanted]
    rows = rows[~np.isnan(rows[:, 3])]
    return _counted_on(rows) if len(rows) else NO_STEPS


def _counted_on(rows: Floats) -> Floats:
    """Return rows whose numbers go on where they begin anew, as in a second training of the same cell."""
    begins_anew = np.concatenate([[False], rows[1:, 0] <= rows[:-1, 1]])
    before = np.concatenate([[0.0], rows[:-1, 1]])
    shift = np.cumsum(np.where(begins_anew, before, 0.0))
    counted = rows.copy()
    counted[:, [0, 1, 4]] += shift[:, None]
    return counted


def pace_of(session: Session, span: Span) -> Pace:
    """Return how quick the steps of an outermost span were."""
    roots, stop = outermost(session.spans), end_of(session, span)
    within = [each for each in roots if span.start <= each.start and end_of(session, each) <= stop]
    roots = within or roots
    steps = [phase for root in roots for phase in session.phases(root.id) if phase.kind == "step"]
    count, seconds = sum(step.count for step in steps), sum(step.seconds for step in steps)
    table = _step_table(session, span, MOST_GROUPS)
    if not count or not len(table):
        return Pace()
    names = ("first", "last", "start", "stop", "samples", "tokens")
    table = table[:, [session.steps.columns.index(name) for name in names]]
    counted, (samples, tokens) = count, table[:, 4:].sum(axis=0).tolist()
    first, last, began, ended, *of_first = table[0].tolist()
    if first == last:
        counted -= 1
        seconds -= ended - began
        samples -= of_first[0]
        tokens -= of_first[1]
    if counted < 1 or seconds <= 0:
        return Pace(count)
    return Pace(count, counted / seconds, samples / seconds, tokens / seconds)
