"""Who holds what a cell left behind, where that is much and its models and optimizers do not explain it."""

from __future__ import annotations

import math
import re
import sys
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, compress
from operator import not_
from typing import Any

from hfmem_widget.analysis.facts import QUICK, active_devices
from hfmem_widget.monitor.companion import Companion
from hfmem_widget.monitor.monitor import Monitor
from hfmem_widget.monitor.subjects import main_variables
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import HELD, Finding, Recorder, Sample, Session, Span
from hfmem_widget.session.series import TABLE
from hfmem_widget.sources.heap import Holder, Holders, kernel_roots, scan
from hfmem_widget.sources.heap.paths import ATOMS
from hfmem_widget.sources.heap.remedy import remedy
from hfmem_widget.text import MIB, format_bytes, format_count, format_counted, format_duration
from hfmem_widget.view.screen import Screen

LEAST = 64 * MIB
LEAST_SHARE = 0.01
"""Bytes, and share of the device, from which on somebody is to be named."""

MOST_SECONDS = 0.3
MOST_OBJECTS = 300_000
LONGER_AFTER_AN_ERROR = 5
"""Times as long where a cell failed: nobody waits for its result, and who holds it is what is asked next."""

MOST_NAMED = 3
WORTH_NAMING = 0.1
"""Share of what was left behind that a name must hold to be named."""

NEARLY_ALL = 0.9

KINDS = {TABLE[metric].label: metric for metric in HELD}
"""What holders' kinds are called as metrics, where they are counted while the cell runs."""

Holding = Sequence[tuple[Holder, int]]
"""Rows, each with how many bytes of it are told."""

_ERROR = re.compile(r"the error of cell \[\d+\]")
_FIRST_NAME = re.compile(r"Out\[\d+\]|the error of cell \[\d+\]|\w+")

_seen: dict[str, dict[str, int]] = {}
"""What each path held at the last look, by device: texts and figures alone."""


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """What a span left on a device that is no weight, gradient or optimizer state it knows of; bytes.

    Attributes
    ----------
    device : str
    before, after : float
        Allocated and not attributed at the span's edges.
    total : float
        The device's capacity.
    attributed : mapping of str to float
        At its end, by metric.
    """

    device: str
    before: float
    after: float
    total: float
    attributed: Mapping[str, float]

    @property
    def bytes(self) -> float:
        """How much was left behind."""
        return self.after - self.before

    @property
    def is_much(self) -> bool:
        """Return whether it is worth a search."""
        share = LEAST_SHARE * self.total if math.isfinite(self.total) else 0.0
        return self.bytes >= max(LEAST, share)


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of the time before a span, in names and figures alone.

    Attributes
    ----------
    new : collection of str
        Variables, outputs and errors that were not there, or were another object.
    seen : mapping of str to int, optional
        What each path held when somebody looked last; None where nobody has.
    raised : bool
        Whether the span ended with an error.
    """

    new: Collection[str] = ()
    seen: Mapping[str, int] | None = None
    raised: bool = False


class LeftBehindHolders(Companion):
    """Looks after the span has ended, for 0.3 s at most (1.5 after an error), where much was left."""

    def __init__(self, options: WatchOptions | None = None, screen: Screen | None = None) -> None:
        del options, screen
        self._noted = array("q")
        self._raised = False

    def begin(self, monitor: Monitor, recorder: Recorder, span: Span) -> None:
        """Note which names there are."""
        del monitor, recorder, span
        # What is kept here is held while the cell is measured: eight bytes for each name.
        self._noted = array("q", map(hash, _names_now()))

    def end(self, recorder: Recorder, span: Span, error: BaseException | None) -> None:
        """Note whether it failed: its error then is the first to be blamed, and the last to be looked at."""
        del recorder, span
        self._raised = error is not None

    def report(self, session: Session, span: Span) -> Mapping[str, str]:
        """Name who holds what was left behind, as a finding on the card."""
        if _is_told_in_one_line(session, span):
            return {}
        told = {
            one.evidence.get("device")
            for one in session.findings
            if one.kind == "leak" and one.span_id == span.id and "holder" in one.evidence
        }
        left = [one for one in left_behind(session, span) if one.is_much and one.device not in told]
        if left:
            longer = LONGER_AFTER_AN_ERROR if self._raised else 1
            found = scan(
                main_variables(),
                others=kernel_roots(_shell()),
                most_objects=MOST_OBJECTS * longer,
                most_seconds=MOST_SECONDS * longer,
            )
            noted = set(self._noted)
            new = {one[0] for one in list(_names_now()) if hash(one) not in noted}
            for one in left:
                known = Known(new, _seen.get(one.device), raised=self._raised)
                finding = named(one, found, known, span.id)
                if finding is not None:
                    session.findings.append(finding)
                if not found.bound:
                    _seen[one.device] = _sizes(found.of(one.device).rows)
        return {}


def _names_now() -> Iterator[tuple[str, int]]:
    """Return the names that a path can begin with, each with the address of its object.

    An address tells the same object from another, as far as a figure can. What holds nothing is left out: in
    a notebook with a hundred thousand names that is most of it.
    """
    variables = main_variables()
    outputs = variables.get("Out")
    numbered = list(_bound(outputs)) if type(outputs) is dict else []
    return chain(
        _bound(variables),
        [(f"Out[{number}]", at) for number, at in numbered],
        [(root.name, id(root.value)) for root in kernel_roots(_shell())],
    )


def _bound(names: Mapping[Any, object]) -> Iterator[tuple[Any, int]]:
    # In C from end to end: nothing is copied, and no other thread comes in between.
    holds = map(not_, map(ATOMS.__contains__, map(type, names.values())))
    return compress(zip(names, map(id, names.values()), strict=False), holds)


def _is_told_in_one_line(session: Session, span: Span) -> bool:
    """Return whether a span is a quick cell of a session that goes on."""
    return session.running and span.duration < QUICK


def left_behind(session: Session, span: Span) -> Iterator[LeftBehind]:
    """Yield what a span left on each device in use."""
    if span.after is None:
        return
    for device in active_devices(session, span):
        held = {metric: _at(session, span.after, f"{device.key}/{metric}") for metric in HELD}
        held_before = (_at(session, span.before, f"{device.key}/{metric}") for metric in HELD)
        allocated = f"{device.key}/allocated"
        yield LeftBehind(
            device.key,
            _at(session, span.before, allocated) - sum(held_before),
            _at(session, span.after, allocated) - sum(held.values()),
            device.total,
            held,
        )


def named(left: LeftBehind, found: Holders, known: Known, span_id: int) -> Finding | None:
    """Return who holds what was left behind, or None where it was looked for to the end and no name does.

    Parameters
    ----------
    left : LeftBehind
    found : Holders
        Who holds what now.
    known : Known
    span_id : int
    """
    rows = _errors_as_one(
        [row for row in found.of(left.device).rows if not _is_attributed(row, found, left)]
    )
    enough = WORTH_NAMING * left.bytes
    # Where little was there before, nobody can have held it.
    grown = {row: _grown(row, known, is_all_new=left.before < enough) for row in rows}
    holding = [(row, size) for row, size in grown.items() if size is not None and size >= enough]
    is_sure = bool(holding)
    if not is_sure:
        holding = [(row, row.bytes) for row, size in grown.items() if size is None]
        holding = [(row, size) for row, size in holding if size >= enough]
    if not holding:
        return _not_found(left, found, known, span_id)
    holding = sorted(holding, key=lambda one: -one[1])[:MOST_NAMED]
    evidence = {
        "device": left.device,
        "left_behind": round(left.bytes),
        "holders": {row.path: size for row, size in holding},
        "seconds": found.seconds,
        "objects": found.objects,
    }
    title = _title(left.bytes, holding, is_sure=is_sure)
    return Finding("left behind", "info", title, evidence, _advice(holding, found), span_id)


def _not_found(left: LeftBehind, found: Holders, known: Known, span_id: int) -> Finding | None:
    """Return that nobody was found before the search ended early; None where it went to its end."""
    if not found.bound:
        return None
    title = f"{format_bytes(left.bytes)} left behind; a quick search did not find what holds it"
    evidence = {"device": left.device, "left_behind": round(left.bytes), "seconds": found.seconds}
    advice = [f"%memholders searches longer ({found.bound})."]
    if known.raised:
        advice.insert(
            0,
            "The notebook stores the last error, and its traceback holds the variables of every function on "
            "its way: %memfree errors frees it.",
        )
    return Finding("left behind", "info", title, evidence, tuple(advice), span_id)


def _errors_as_one(rows: Sequence[Holder]) -> list[Holder]:
    """Return the rows with all that one error keeps as one: it goes together, by one word."""
    groups: dict[str, list[Holder]] = {}
    for row in rows:
        match = _ERROR.match(row.path)
        groups.setdefault(row.path if match is None else match[0], []).append(row)
    return [
        one
        for name, group in groups.items()
        for one in ([_together(name, group)] if len(group) > 1 and _ERROR.match(name) else group)
    ]


def _together(name: str, rows: Sequence[Holder]) -> Holder:
    return replace(
        rows[0],
        path=name,
        bytes=sum(row.bytes for row in rows),
        tensors=sum(row.tensors for row in rows),
        graph_bytes=sum(row.graph_bytes for row in rows),
        graphs=sum(row.graphs for row in rows),
    )


def _title(left: float, holding: Holding, *, is_sure: bool) -> str:
    told = sum(size for _, size in holding)
    names = [_name(row, size, alone=len(holding) == 1 and is_sure) for row, size in holding]
    size = format_bytes(left)
    if not is_sure:
        return f"{size} left behind; most of the allocated memory is held by {_listed(names)}"
    if told >= NEARLY_ALL * left:
        return f"{size} left behind is held by {_listed(names)}"
    return f"{size} left behind, of which {format_bytes(told)} is held by {_listed(names)}"


def _grown(row: Holder, known: Known, *, is_all_new: bool) -> int | None:
    """Return by how much a row has more than before; None where nobody knows."""
    begins = _FIRST_NAME.match(row.path)
    if is_all_new or (begins is not None and begins[0] in known.new):
        return row.bytes
    if begins is not None and begins[0] == row.path and row.tensors == 1 and not row.graph_bytes:
        return 0  # the same tensor as before: it has not come, and it does not grow
    return None if known.seen is None else row.bytes - known.seen.get(_key(row), 0)


def _sizes(rows: Sequence[Holder]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for row in rows:
        sizes[_key(row)] = sizes.get(_key(row), 0) + row.bytes
    return sizes


def _key(row: Holder) -> str:
    """Return what tells a row from others, however many elements or cells there are by then."""
    return re.sub(r"\d[\d.,]*", "#", f"{row.kind} {row.path}")


def _is_attributed(row: Holder, found: Holders, left: LeftBehind) -> bool:
    """Return whether a row's bytes are among those that were counted while the cell ran."""
    metric = KINDS.get(row.kind)
    if metric is None:
        return False
    rows = (one.bytes for one in found.of(left.device).rows if one.kind == row.kind)
    return left.attributed[metric] >= sum(rows)


def _name(row: Holder, size: int, *, alone: bool) -> str:
    told = [] if alone else [format_bytes(size)]
    if 2 * row.graph_bytes >= row.bytes:
        graphs = (
            "the graph of 1 tensor"
            if row.graphs == 1
            else f"the graphs of {format_count(row.graphs)} tensors"
        )
        told.append(graphs)
    return f"{row.path} ({', '.join(told)})" if told else row.path


def _listed(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _advice(holding: Holding, found: Holders) -> tuple[str, ...]:
    advice = filter(None, (remedy(row) for row, _ in holding))
    objects = format_counted(found.objects, "object")
    looked = f"inspected {objects} in {format_duration(found.seconds)}"
    return (*dict.fromkeys(advice), f"%memholders lists everything that is held ({looked}).")


def _at(session: Session, sample: Sample, key: str) -> float:
    """Return a reading, and nothing where there was none yet."""
    value = session.value(sample, key)
    return 0.0 if math.isnan(value) else value


def _shell() -> Any:
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return None if get_ipython is None else get_ipython()
