"""Who holds what a cell left behind, if that is much and its models and optimizers do not explain it."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hfmem_widget.analysis.facts import QUICK, active_devices, findings_of
from hfmem_widget.analysis.parts import known_of
from hfmem_widget.features.leaks.growers import NEARLY_ALL, NOT_NOTED, Before, names_now, search
from hfmem_widget.monitor.process import process_state
from hfmem_widget.session import HELD, Finding, Session, Span
from hfmem_widget.session.series import TABLE
from hfmem_widget.sources.heap.model import Growth, Holder, Holders
from hfmem_widget.sources.heap.noted import NotedNames, first_name, joined
from hfmem_widget.text import MIB, format_bytes, format_counted

LEAST = 64 * MIB  # bytes, and share of the device, of which a holder is worth naming
LEAST_SHARE = 0.01
MOST_SECONDS = 0.3
MOST_OBJECTS = 300_000
LONGER_AFTER_AN_ERROR = 5  # times as long: nobody waits for the cell's result
MOST_NAMED = 3
WORTH_NAMING = 0.1  # share of what was left behind that a name must hold to be named

EXPECTED = tuple(metric for metric in HELD if metric != "kv_cache")
"""What stays after a training; a KV cache is of use only while tokens are generated."""

KINDS = {TABLE[metric].label: metric for metric in EXPECTED}
"""The kinds of holders that are counted while the cell runs, as metrics."""

Holding = Sequence[tuple[Holder, int]]
"""Rows, each with how many of its bytes the cell left."""

_ERROR = re.compile(r"the error of cell \[\d+\]")


class LastSearch(dict[str, Holders]):
    """What was held at the last search, by device: texts and figures alone."""


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """What a span left on a device that is no weight, gradient or optimizer state it knows of; bytes."""

    device: str
    before: float  # allocated and not attributed when the span began
    after: float  # and when it ended
    total: float  # the device's capacity
    attributed: Mapping[str, float]  # when it ended, by metric

    @property
    def bytes(self) -> float:
        """How much was left behind."""
        return self.after - self.before

    @property
    def is_much(self) -> bool:
        """Whether it is worth a search."""
        share = LEAST_SHARE * self.total if math.isfinite(self.total) else 0.0
        return self.bytes >= max(LEAST, share)


def name_holders(session: Session, span: Span, names: NotedNames, *, raised: bool) -> None:
    """Add who holds what a span left behind to the findings, if that is much and not a leak's holder.

    The `names` are of its beginning. An error that it has `raised` may hold it, so the search is longer.
    """
    if session.running and span.duration < QUICK:  # it is shown in one line
        return
    leaks = [each for each in findings_of(session, span) if each.kind == "leak"]
    named_already = {leak.evidence.get("device") for leak in leaks if "holder" in leak.evidence}
    much = [left for left in left_behind(session, span) if left.is_much]
    much = [left for left in much if left.device not in named_already]
    if not much:
        return
    longer = LONGER_AFTER_AN_ERROR if raised else 1
    holders = search(MOST_OBJECTS * longer, MOST_SECONDS * longer)
    new, last = names.new(*names_now()), process_state(LastSearch)
    for left in much:
        before = Before(last.get(left.device, NOT_NOTED), new)
        finding = named(left, holders, before, span.id, raised=raised)
        if finding is not None:
            session.findings.append(finding)
        if not holders.bound:
            last[left.device] = holders.of(left.device)


def left_behind(session: Session, span: Span) -> Iterator[LeftBehind]:
    """Yield what a span left on each device in use."""
    if span.after is None:
        return
    for device in active_devices(session, span):
        keys = {metric: f"{device.key}/{metric}" for metric in ("allocated", *EXPECTED)}
        before, after = (
            {metric: known_of(session.value(sample, key), 0.0) for metric, key in keys.items()}
            for sample in (span.before, span.after)
        )
        then, now = (held.pop("allocated") - sum(held.values()) for held in (before, after))
        yield LeftBehind(device.key, then, now, device.total, after)


def named(
    left: LeftBehind, holders: Holders, before: Before, span_id: int, *, raised: bool = False
) -> Finding | None:
    """Return who holds what was left behind; None if a complete search found nobody."""
    of_device = holders.of(left.device)
    there = of_device.rows
    more = None if before.held is NOT_NOTED else of_device.since(before.held)
    rows = _errors_as_one([row for row in there if not _is_attributed(row, there, left)])
    enough = WORTH_NAMING * left.bytes
    # If little was there before, nobody can have held it.
    grown = {row: _grown(row, before.new, more, is_all_new=left.before < enough) for row in rows}
    holding = [(row, size) for row, size in grown.items() if size is not None and size >= enough]
    is_sure = bool(holding)
    if not is_sure:
        unknown = [row for row, size in grown.items() if size is None]
        holding = [(row, row.bytes) for row in unknown if row.bytes >= enough]
    if not holding:
        return _not_found(left, holders, span_id, raised=raised)
    holding = sorted(holding, key=lambda held: -held[1])[:MOST_NAMED]
    evidence = {
        "device": left.device,
        "left_behind": round(left.bytes),
        "holders": {row.path: size for row, size in holding},
        "seconds": holders.seconds,
        "objects": holders.objects,
    }
    if is_sure:
        evidence |= {"holder": holding[0][0].path, "holder_grown": holding[0][1]}
    title = _title(left.bytes, holding, is_sure=is_sure)
    return Finding("left behind", "info", title, evidence, _advice(holding), span_id)


def _not_found(left: LeftBehind, holders: Holders, span_id: int, *, raised: bool) -> Finding | None:
    """Return that nobody was found before the search ended early; None if it was complete."""
    if not holders.bound:
        return None
    title = f"{format_bytes(left.bytes)} left behind; a quick search did not find what holds it"
    evidence = {"device": left.device, "left_behind": round(left.bytes), "seconds": holders.seconds}
    stored = (
        "The notebook stores the last error, and its traceback holds the variables of every function on its "
        "way: %memholders --free errors frees it."
    )
    longer = f"%memholders searches longer ({holders.bound})."
    advice = (stored, longer) if raised else (longer,)
    return Finding("left behind", "info", title, evidence, advice, span_id)


def _errors_as_one(rows: Sequence[Holder]) -> list[Holder]:
    """Return the rows with all that one error holds as one: `%memholders --free errors` frees it together."""
    errors: dict[str, list[Holder]] = defaultdict(list)
    for row in rows:
        if match := _ERROR.match(row.path):
            errors[match[0]].append(row)
    held = [row for row in rows if not _ERROR.match(row.path)]
    held += (joined(name, of) if len(of) > 1 else of[0] for name, of in errors.items())
    return held


def _title(left: float, holding: Holding, *, is_sure: bool) -> str:
    held = sum(size for _, size in holding)
    names = [_name(row, size, alone=len(holding) == 1 and is_sure) for row, size in holding]
    *first, last = names
    holders = f"{', '.join(first)} and {last}" if first else last
    size = format_bytes(left)
    if not is_sure:
        return f"{size} left behind; most of the allocated memory is held by {holders}"
    if held >= NEARLY_ALL * left:
        return f"{size} left behind is held by {holders}"
    return f"{size} left behind, of which {format_bytes(held)} is held by {holders}"


def _name(row: Holder, size: int, *, alone: bool) -> str:
    facts = [] if alone else [format_bytes(size)]
    if 2 * row.graph_bytes >= row.bytes:
        graphs = "graph" if row.graphs == 1 else "graphs"
        facts.append(f"the {graphs} of {format_counted(row.graphs, 'tensor')}")
    return f"{row.path} ({', '.join(facts)})" if facts else row.path


def _grown(
    row: Holder, new: Collection[str], more: Growth | None, *, is_all_new: bool
) -> int | None:
    """Return by how much a row has more than before; None if unknown."""
    name = first_name(row.path)
    if is_all_new or name in new:
        return row.bytes
    if name == row.path and row.tensors == 1 and not row.graph_bytes:
        return 0  # the same tensor as before, which cannot grow
    if more is None:
        return None
    return sum(each.bytes for each in more.rows if (each.path, each.kind) == (row.path, row.kind))


def _is_attributed(row: Holder, rows: Sequence[Holder], left: LeftBehind) -> bool:
    """Return whether a row's bytes were counted while the cell ran."""
    metric = KINDS.get(row.kind)
    if metric is None:
        return False
    return left.attributed[metric] >= sum(other.bytes for other in rows if other.kind == row.kind)


def _advice(holding: Holding) -> tuple[str, ...]:
    from hfmem_widget.sources.heap.remedy import remedy

    advice = filter(None, (remedy(row) for row, _ in holding))
    return (*dict.fromkeys(advice), "%memholders lists everything that is held.")
