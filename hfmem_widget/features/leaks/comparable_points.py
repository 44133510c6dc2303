"""Comparable points of a run: what was allocated at the same edge of like spans."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from hfmem_widget.features.leaks.slope import Floats
from hfmem_widget.session import Session, Span
from hfmem_widget.session.model import SpanKind
from hfmem_widget.session.steps import MOST_GROUPS
from hfmem_widget.text import plain

RECURRING: Mapping[SpanKind, str] = {
    "train": "a training",
    "epoch": "an epoch",
    "evaluate": "an evaluation",
    "predict": "a prediction",
    "save": "a save",
    "forward": "a forward pass",
    "block": "a block",
}
"""Kinds of spans that recur besides steps, and what one is called. A load is meant to stay."""

A_STEP = "a step"
A_SECOND = "a second"

LEAST_SPANS = 6  # the least number of evaluations and other longer spans for a trend
MOST_RUNS = 8  # the number of series of points that are looked at: the newest
MOST_SPANS = 400  # the number of spans in a series: the newest

_ARRAYS = ("number", "time", "allocated", "size", "within")


@dataclass(frozen=True, slots=True)
class ComparablePoints:
    """What was allocated on a device at the same edge of like spans, as arrays in order of time."""

    device: str  # its key
    what: str  # what lies between two points: "a step", "an evaluation", "a second"
    root: int  # the id of the outermost span around them
    number: Floats  # of the step or evaluation; `time` where the points have no number
    time: Floats  # seconds since the session began
    allocated: Floats  # bytes
    size: Floats  # tokens in use; NaN if unknown
    within: Floats  # bytes added between the beginning and the end of each span; NaN if unknown
    is_outermost: bool = True  # whether no span that recurs is around them

    def __len__(self) -> int:
        return len(self.number)

    def of(self, which: slice | Floats) -> ComparablePoints:
        """Return some of the points."""
        return replace(self, **{name: getattr(self, name)[which] for name in _ARRAYS})


def comparable_points(session: Session, within: Span | None = None) -> Iterator[ComparablePoints]:
    """Yield every series of comparable points with a reading, of a session or one of its outermost spans."""
    spans = {span.id: span for span in session.spans}
    start, stop = 0.0, math.inf
    if within is not None:
        start, stop = within.start, math.inf if within.stop is None else within.stop
    of_steps = [*_steps(session, spans, start, stop)]
    others = () if of_steps else _optimizer_steps(session, spans, start, stop)
    # An epoch grows by its steps.
    kinds = RECURRING.keys() - {"epoch"} if of_steps else RECURRING.keys()
    for points in (*of_steps, *_spans(session, spans, start, stop, kinds), *others):
        yield points.of(~np.isnan(points.allocated))


def _steps(
    session: Session, spans: Mapping[int, Span], start: float, stop: float
) -> Iterator[ComparablePoints]:
    """Yield the steps of each training: those of another one begin anew."""
    table = session.folded_steps(MOST_GROUPS, start)
    columns = session.steps.columns
    # A device that appeared meanwhile has no columns in the table that was just copied.
    column = {name: at for at, name in enumerate(columns[: table.shape[1]])}
    if not len(table):
        return
    table = table[table[:, column["stop"]] <= stop]
    owners = {parent: _owner(int(parent), spans) for parent in set(table[:, column["parent"]])}
    owner = np.array([owners[parent] for parent in table[:, column["parent"]]])
    first, last = table[:, column["first"]], table[:, column["last"]]
    begins = np.flatnonzero((owner[1:] != owner[:-1]) | (first[1:] <= last[:-1])) + 1
    kept = {(span.start, span.stop): span for span in spans.values() if span.kind == "step"}
    for rows in np.split(table, begins)[-MOST_RUNS:]:
        edges = map(tuple, rows[:, [column["start"], column["stop"]]].tolist())
        steps = [kept[edge] for edge in edges if edge in kept]
        for device in session.devices if len(rows) else ():
            after = column.get(f"{device.key}/after")
            if after is None:
                continue
            allocated = rows[:, after]
            if ":" not in device.key and len(steps) == len(rows):
                # The host is read where every step begins, and where it ends only now and then.
                key = f"{device.key}/allocated"
                allocated = np.array([session.value(step.before, key) for step in steps])
            count = rows[:, column["last"]] - rows[:, column["first"]] + 1
            yield ComparablePoints(
                device=device.key,
                what=A_STEP,
                root=_around(int(rows[0, column["parent"]]), spans)[-1],
                number=rows[:, column["last"]],
                time=rows[:, column["stop"]],
                allocated=allocated,
                size=rows[:, column["tokens"]] / count,
                within=np.full(len(rows), np.nan),
            )


def _spans(
    session: Session,
    spans: Mapping[int, Span],
    start: float,
    stop: float,
    kinds: Collection[SpanKind],
) -> Iterator[ComparablePoints]:
    """Yield the ends of evaluations, trainings, blocks of one label; the beginnings of forward passes."""
    groups: dict[tuple[int, SpanKind, str], list[Span]] = {}
    for span in spans.values():
        if span.kind not in kinds or span.parent is None or span.after is None:
            continue
        if span.start < start or (span.stop or 0.0) > stop:
            continue
        around = _around(span.id, spans)
        if span.kind == "forward" and (
            # What is predicted is often collected, on purpose.
            span.name or any(spans[span_id].kind == "step" for span_id in around)
        ):
            continue
        groups.setdefault((around[-1], span.kind, span.name), []).append(span)
    recurring = {alike for alike, group in groups.items() if len(group) >= LEAST_SPANS}
    for (root, kind, label), group in list(groups.items())[-MOST_RUNS:]:
        every = -(-len(group) // MOST_SPANS)  # of a long run every n-th, the newest included
        chosen = group[::-every][::-1]
        outer = [spans[span_id] for span_id in _around(group[-1].id, spans)[1:]]
        is_nested = any((root, each.kind, each.name) in recurring for each in outer)
        for device in session.devices:
            key = f"{device.key}/allocated"
            before = np.array([session.value(span.before, key) for span in chosen])
            after = np.array([session.value(span.after or span.before, key) for span in chosen])
            yield ComparablePoints(
                device=device.key,
                what=f"per \u201c{plain(label, 40)}\u201d" if label else RECURRING[kind],
                root=root,
                number=np.arange(len(group), 0.0, -every)[::-1],
                time=np.array([span.stop for span in chosen], dtype=float),
                # While it runs, a forward pass makes what the backward pass needs.
                allocated=before if kind == "forward" else after,
                size=np.array([span.counts.get("tokens", math.nan) for span in chosen]),
                within=(after - before) * every,  # those between may have left as much
                is_outermost=not is_nested,
            )


def _optimizer_steps(
    session: Session, spans: Mapping[int, Span], start: float, stop: float
) -> Iterator[ComparablePoints]:
    """Yield what was allocated after an optimizer's steps, without gradients, where there are no step spans.

    Memory that is not attributed is measured after each step of an optimizer, and stands until the next.
    """
    roots = [span for span in spans.values() if span.parent is None and span.start >= start]
    for root in roots[-MOST_RUNS:]:
        end = session.last_sample.time if root.stop is None else root.stop
        for device in session.devices if end <= stop else ():
            metrics = ("unattributed", "before", "libraries", "weights", "buffers", "optimizer")
            first, *others = (session.index(f"{device.key}/{metric}") for metric in metrics)
            if first is None:
                continue
            there = [first, *(column for column in others if column is not None)]
            part = session.between(root.start, end, there)
            allocated = part.low[:, 0] + np.nan_to_num(part.low[:, 1:]).sum(axis=1)
            unknown = np.full(len(allocated), np.nan)
            yield ComparablePoints(
                device.key, A_SECOND, root.id, part.time, part.time, allocated, unknown, unknown
            )


def _around(span_id: int, spans: Mapping[int, Span]) -> list[int]:
    """Return the ids of a span and those around it, as far as they are still kept; its own if it is not."""
    around = []
    span = spans.get(span_id)
    while span is not None:
        around.append(span.id)
        span = None if span.parent is None else spans.get(span.parent)
    return around or [span_id]


def _owner(parent: int, spans: Mapping[int, Span]) -> int:
    """Return the training that a step belongs to, else the outermost span."""
    around = _around(parent, spans)
    trainings = (key for key in around if key in spans and spans[key].kind == "train")
    return next(trainings, around[-1])
