"""Moments of a session that can be compared: what was allocated at the same edge of like spans."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from hfmem_widget.features.leaks.slope import Floats
from hfmem_widget.session import Session, Span
from hfmem_widget.session.model import SpanKind
from hfmem_widget.session.steps import MOST_GROUPS
from hfmem_widget.text import plain

AGAIN: Mapping[SpanKind, str] = {
    "train": "a training",
    "evaluate": "an evaluation",
    "predict": "a prediction",
    "save": "a save",
    "forward": "a forward pass",
    "block": "a block",
}
"""Kinds of spans that come again besides steps, and how one of them is called. A load is meant to stay."""

A_STEP = "a step"
A_SECOND = "a second"

MOST_RUNS = 8
"""Rows of moments looked at: the newest."""

MOST_SPANS = 400
"""Of one kind in one row: the newest."""

_LABEL = 40


@dataclass(frozen=True, slots=True)
class Moments:
    """What was allocated on a device at the same edge of like spans, in order of time.

    Attributes
    ----------
    device : str
    what : str
        What lies between two of them: "a step", "an evaluation", "a second".
    root : int
        The id of the outermost span that they lie in.
    number : array of shape (n,)
        Of the step, the evaluation; seconds since the session began where what recurs has no number.
    time : array of shape (n,)
        Seconds since the session began.
    allocated : array of shape (n,)
        Bytes.
    size : array of shape (n,)
        Tokens of what was at work; NaN if unknown.
    within : array of shape (n,)
        Bytes that came between the beginning and the end of each span; NaN if unknown.
    """

    device: str
    what: str
    root: int
    number: Floats
    time: Floats
    allocated: Floats
    size: Floats
    within: Floats

    def __len__(self) -> int:
        return len(self.number)

    def of(self, which: slice | Floats) -> Moments:
        """Return some of them."""
        return replace(
            self,
            number=self.number[which],
            time=self.time[which],
            allocated=self.allocated[which],
            size=self.size[which],
            within=self.within[which],
        )

    def known(self) -> Moments:
        """Return those with a reading."""
        return self.of(~np.isnan(self.allocated))


def moments_of(session: Session, within: Span | None = None) -> Iterator[Moments]:
    """Yield every row of comparable moments of a session, or of one of its outermost spans."""
    spans = {one.id: one for one in session.spans}
    start, stop = 0.0, math.inf
    if within is not None:
        start, stop = within.start, math.inf if within.stop is None else within.stop
    has_steps = False
    for row in _steps(session, spans, start, stop):
        has_steps = True
        yield row
    yield from _spans(session, spans, start, stop)
    if not has_steps:
        yield from _optimizer_steps(session, spans, start, stop)


def _steps(
    session: Session, spans: Mapping[int, Span], start: float, stop: float
) -> Iterator[Moments]:
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
    begun = {(one.start, one.stop): one for one in spans.values() if one.kind == "step"}
    for run in np.split(np.arange(len(table)), begins)[-MOST_RUNS:]:
        rows = table[run]
        count = rows[:, column["last"]] - rows[:, column["first"]] + 1
        edges = rows[:, [column["start"], column["stop"]]].tolist()
        kept = [begun[edge] for edge in map(tuple, edges) if edge in begun]
        for device in session.devices:
            after = column.get(f"{device.key}/after")
            if after is None or not len(rows):
                continue
            allocated = rows[:, after]
            if ":" not in device.key and len(kept) == len(rows):
                # The heap is read where every step begins, and where it ends only now and then.
                key = f"{device.key}/allocated"
                allocated = np.array([session.value(one.before, key) for one in kept])
            yield Moments(
                device=device.key,
                what=A_STEP,
                root=_root(int(rows[0, column["parent"]]), spans),
                number=rows[:, column["last"]],
                time=rows[:, column["stop"]],
                allocated=allocated,
                size=rows[:, column["tokens"]] / count,
                within=np.full(len(rows), np.nan),
            ).known()


def _spans(
    session: Session, spans: Mapping[int, Span], start: float, stop: float
) -> Iterator[Moments]:
    """Yield the ends of evaluations, trainings, blocks of one label; the beginnings of forward passes."""
    alike: dict[tuple[int, str, str], list[Span]] = {}
    for span in spans.values():
        if span.kind not in AGAIN or span.parent is None or span.after is None:
            continue
        if span.start < start or (span.stop or 0.0) > stop:
            continue
        if span.kind == "forward" and _is_in_step(span, spans):
            continue
        label = span.label if span.kind == "block" else ""
        alike.setdefault((_root(span.id, spans), span.kind, label), []).append(span)
    for (root, kind, label), group in list(alike.items())[-MOST_RUNS:]:
        newest = group[-MOST_SPANS:]
        what = f"per \u201c{plain(label, _LABEL)}\u201d" if label else AGAIN[newest[0].kind]
        for device in session.devices:
            key = f"{device.key}/allocated"
            before = np.array([session.value(one.before, key) for one in newest])
            after = np.array([session.value(one.after or one.before, key) for one in newest])
            yield Moments(
                device=device.key,
                what=what,
                root=root,
                number=np.arange(len(group) - len(newest) + 1.0, len(group) + 1.0),
                time=np.array([one.stop for one in newest], dtype=float),
                # While it runs, a forward pass makes what the backward pass needs.
                allocated=before if kind == "forward" else after,
                size=np.array([one.counts.get("tokens", math.nan) for one in newest]),
                within=after - before,
            ).known()


def _optimizer_steps(
    session: Session, spans: Mapping[int, Span], start: float, stop: float
) -> Iterator[Moments]:
    """Yield what was allocated after an optimizer's steps, gradients apart, where no span tells of steps.

    What nothing explains is measured anew after an optimizer's step, and stands until the next.
    """
    roots = [one for one in spans.values() if one.parent is None and one.start >= start]
    for root in roots[-MOST_RUNS:]:
        end = session.last_sample.time if root.stop is None else root.stop
        for device in session.devices if end <= stop else ():
            metrics = ("unattributed", "weights", "buffers", "optimizer")
            columns = [session.index(f"{device.key}/{metric}") for metric in metrics]
            there = [column for column in columns if column is not None]
            if columns[0] is None or not there:
                continue
            part = session.between(root.start, end, there)
            allocated = part.low[:, 0] + np.nan_to_num(part.low[:, 1:]).sum(axis=1)
            count = len(allocated)
            yield Moments(
                device=device.key,
                what=A_SECOND,
                root=root.id,
                number=part.time,
                time=part.time,
                allocated=allocated,
                size=np.full(count, np.nan),
                within=np.full(count, np.nan),
            ).known()


def _above(span_id: int, spans: Mapping[int, Span]) -> Iterator[Span]:
    """Yield a span and those around it, as far as they are still kept."""
    span = spans.get(span_id)
    while span is not None:
        yield span
        span = None if span.parent is None else spans.get(span.parent)


def _owner(parent: int, spans: Mapping[int, Span]) -> int:
    """Return the training that a step belongs to, else the outermost span."""
    around = list(_above(parent, spans))
    of_training = [one.id for one in around if one.kind == "train"]
    return of_training[0] if of_training else around[-1].id if around else parent


def _root(span_id: int, spans: Mapping[int, Span]) -> int:
    around = list(_above(span_id, spans))
    return around[-1].id if around else span_id


def _is_in_step(span: Span, spans: Mapping[int, Span]) -> bool:
    return any(one.kind == "step" for one in _above(span.id, spans))
