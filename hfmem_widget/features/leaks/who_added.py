"""Which names hold what was added, by what they held before: in growth step by step, or after a cell."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from hfmem_widget.analysis.facts import NEXT_TO_NOTHING
from hfmem_widget.analysis.left_behind import EXPECTED, LeftBehind
from hfmem_widget.monitor.subjects import main_variables
from hfmem_widget.session import Finding
from hfmem_widget.session.series import TABLE
from hfmem_widget.sources.heap.model import Holder, Holders
from hfmem_widget.sources.heap.noted import NotedNames, first_name, joined
from hfmem_widget.sources.heap.paths import UNNAMED
from hfmem_widget.sources.heap.remedy import beyond_names
from hfmem_widget.sources.heap.roots import Root, kernel_roots
from hfmem_widget.text import format_bytes, format_count, format_counted
from hfmem_widget.view.front_end import running_shell

MOST_SECONDS = 1.0
MOST_OBJECTS = 500_000

LEAST_OF_GROWTH = 0.25  # the share of the growth that a name must have added to be mentioned
MOST_TIMES = 2.0  # the growth: who added more did most of that before
NEARLY_ALL = 0.9
MOST_NAMED = 3
MOST = 0.5  # of what is allocated

QUICK_SECONDS = 0.3  # and objects, of a search after a cell without a leak
QUICK_OBJECTS = 300_000
LONGER_AFTER_AN_ERROR = 5  # times as long: nobody waits for the cell's result
WORTH_NAMING = 0.1  # share of what was left behind that a name must hold to be named

KINDS = {TABLE[metric].label: metric for metric in EXPECTED}
"""The kinds of holders that are counted while the cell runs, as metrics."""

_SEVERAL = re.compile(r"[\[{][^\]}]*(?:\.\.|\u2026)")
_ITEMS = re.compile(r"\[[^\]]*\]")
_CONTAINERS = {"list", "dict", "set", "deque"}

NOT_NOTED = Holders((), bound="what was held before was not noted")

Sizes = dict[Holder, float]
"""Rows, each with how many bytes it added."""

Growers = Sequence[tuple[Holder, float]]
"""Names, each with the sums of its rows that grew, and how many bytes they added."""


class LastSearch:
    """What was held at the last search that was complete: texts and figures alone."""

    held = NOT_NOTED
    unexplained: Mapping[str, float] = MappingProxyType({})
    """The bytes that were allocated then and not attributed, by device."""
    names = NotedNames({})

    def held_before(self, left: LeftBehind) -> Holders:
        """Return what was held when a span began.

        That is known only if as much was allocated then as at this search.
        """
        then = self.unexplained.get(left.device, math.nan)
        is_as_then = abs(left.before - then) <= WORTH_NAMING * left.bytes
        return self.held if is_as_then else replace(self.held, bound=NOT_NOTED.bound)


@dataclass(frozen=True, slots=True)
class Before:
    """What is known of the time before a watch, in names and figures alone."""

    held: Holders = NOT_NOTED
    # Variables, outputs and errors that were not there, or another object.
    new: Collection[str] = ()
    # Of each list that was there, the share of its items that were not.
    added: Mapping[str, float] = field(default_factory=dict)
    # How many bytes less were allocated at some time since: who let them go may hold as many again.
    freed: float = 0.0
    # Names that came after what was held was noted, and were there when the watch began.
    unnoted: Collection[str] = ()
    # Lists that had their last length before the second half of the growth.
    idle: Collection[str] = ()


def names_now() -> tuple[Mapping[str, object], Sequence[Root]]:
    """Return the variables, and what else of the notebook has names."""
    return main_variables(), kernel_roots(running_shell())


def search(
    most_objects: int = MOST_OBJECTS,
    most_seconds: float = MOST_SECONDS,
    *,
    is_thorough: bool = False,
) -> Holders:
    """Return what is held now, as far as the bounds allow; if thorough, also by no name."""
    from hfmem_widget.sources.heap.scan import scan

    names, others = names_now()
    return scan(
        names,
        others=others,
        most_objects=most_objects,
        most_seconds=most_seconds,
        is_thorough=is_thorough,
    )


def added(holders: Holders, before: Before) -> tuple[Sizes, Sizes]:
    """Return how many bytes more each row has than before, and of those where that is unknown at most."""
    is_noted = not before.held.bound
    more = {(row.path, row.kind): row.bytes for row in holders.since(before.held).rows}
    known: Sizes = {}
    may: Sizes = {}
    for row in holders.rows:
        name, size = first_name(row.path), more.get((row.path, row.kind), 0)
        if name in before.new:
            known[row] = row.bytes
        # A list of as many numbers or texts as before weighs about as much, by a sample.
        elif name in before.added and (not is_noted or row.path == name):
            known[row] = row.bytes * before.added[name]
        else:
            (known if is_noted and name not in before.unnoted else may)[row] = size
    return known, may


def summed(sizes: Sizes, least: float, share: float) -> Growers:
    """Return the sums of the rows of each name that are at least so many bytes, biggest first.

    A row that has such a share of its sum stands for all of them.
    """
    names: dict[str, list[tuple[Holder, float]]] = defaultdict(list)
    for row, size in sorted(sizes.items(), key=lambda each: -each[1]):
        if size:
            names[first_name(row.path)].append((row, size))
    sums = []
    for name, rows in names.items():
        (first, most), grown = rows[0], sum(size for _, size in rows)
        if grown >= least:
            all_of_it = joined(name, [row for row, _ in rows])
            sums.append((first if most >= share * grown else all_of_it, grown))
    return sorted(sums, key=lambda of_name: -of_name[1])


def growers(holders: Holders, before: Before, growth: float) -> tuple[Growers, Growers]:
    """Return who added `growth` bytes on one device and, where nobody was seen to, who may have."""
    known, may = added(holders, before)
    for row in [row for row in (*known, *may) if first_name(row.path) in before.idle]:
        size = known.pop(row, 0.0) or may.pop(row, 0.0)
        if not _ITEMS.fullmatch(row.path, len(first_name(row.path))):
            may[row] = size  # items of its items may have been added
    growing = _growing(known | may, growth)
    fitting = [one for one in growing if one[1] <= MOST_TIMES * growth]
    seen = {first_name(row.path) for row in known}
    # Without any of these, the others cannot have added as much.
    others = sum(size for _, size in fitting) - NEARLY_ALL * growth
    sure = [one for one in fitting if one[1] > others and first_name(one[0].path) in seen]
    if sure:
        return sure[:MOST_NAMED], ()
    free = before.freed - holders.since(before.held).freed
    refilled = {row: min(free, row.bytes) for row in holders.rows if _SEVERAL.search(row.path)}
    return [], (fitting or growing or _growing(refilled, growth))[:MOST_NAMED]


def _growing(sizes: Sizes, growth: float) -> Growers:
    again = {}
    for row, size in sizes.items():
        # What came at once, such as the states of an optimizer, cannot have been added again and again.
        is_several = (
            _SEVERAL.search(row.path, len(first_name(row.path))) or row.dtype in _CONTAINERS
        )
        if size < row.bytes or row.graph_bytes or is_several:
            again[row] = size
    return summed(again, LEAST_OF_GROWTH * growth, NEARLY_ALL)


def named(
    left: LeftBehind, holders: Holders, before: Before, span_id: int, *, raised: bool = False
) -> Finding | None:
    """Return who holds what was left behind; None if a complete search found nobody."""
    from hfmem_widget.sources.heap.remedy import remedy

    there, enough = holders.of(left.device), WORTH_NAMING * left.bytes
    counted = {
        kind
        for kind, metric in KINDS.items()
        if left.attributed.get(metric, 0.0)
        >= sum(row.bytes for row in there.rows if row.kind == kind)
    }
    rows = tuple(row for row in there.rows if row.kind not in counted)
    if left.before >= enough:
        # One tensor with a name of its own that is not new is the same as before.
        grown = tuple(
            row
            for row in rows
            if row.tensors > 1
            or row.graph_bytes
            or row.path in before.new
            or row.path != first_name(row.path)
        )
        known, may = added(replace(there, rows=grown), before)
    else:  # nobody can have held it before
        known, may = {row: row.bytes for row in rows}, {}
    sure = summed(known, enough, NEARLY_ALL)
    held = {row: float(row.bytes) for row, more in may.items() if more}
    holding = sure or summed(held, enough, NEARLY_ALL)
    if not sure and sum(size for _, size in holding) <= MOST * left.allocated:
        return _not_found(left, holders, span_id, raised=raised)
    evidence = {
        "device": left.device,
        "left_behind": round(left.bytes),
        "holders": {row.path: round(size) for row, size in holding[:MOST_NAMED]},
        "seconds": holders.seconds,
        "objects": holders.objects,
    }
    if sure:
        evidence["holder"] = _listed([row.path for row, _ in sure[:MOST_NAMED]], len(sure))
        evidence["holder_grown"] = round(sum(size for _, size in sure))
    at_least = "at least " * bool(holders.bound)
    title = _title(left, holding, at_least, is_sure=bool(sure))
    # Of a guess nothing is said but how to free it.
    texts = [remedy(row) or (_stored(row) if sure else "") for row, _ in holding[:MOST_NAMED]]
    everything = _longer(holders) if holders.bound else "%memholders lists everything that is held."
    advice = (*dict.fromkeys(filter(None, texts)), everything)
    return Finding("left behind", "info", title, evidence, advice, span_id)


def _not_found(left: LeftBehind, holders: Holders, span_id: int, *, raised: bool) -> Finding | None:
    """Return that nobody was found before the search ended early; None if it was complete."""
    if not holders.bound:
        return None
    title = f"{_size(left)}; a quick search did not find what holds it"
    evidence = {"device": left.device, "left_behind": round(left.bytes), "seconds": holders.seconds}
    stored = (
        "The notebook stores the last error, and its traceback holds the variables of every function on its "
        "way: %memholders --free errors frees it."
    )
    advice = (stored, _longer(holders)) if raised else (_longer(holders),)
    return Finding("left behind", "info", title, evidence, advice, span_id)


def unnamed(left: LeftBehind, holders: Holders, span_id: int) -> Finding | None:
    """Return how much of what was left no variable leads to, by a thorough search; None if that is little."""
    rows = [row for row in holders.of(left.device).rows if row.path == UNNAMED]
    # As much of it as could be may have been there before.
    size = min(left.bytes, sum(row.bytes for row in rows) - left.before)
    if size < WORTH_NAMING * left.bytes:
        return None
    held = f"objects that no name of yours leads to hold at least {format_bytes(size)} of it"
    title = f"{_size(left)}; {held}"
    evidence = {"device": left.device, "left_behind": round(left.bytes), "unnamed": round(size)}
    return Finding("left behind", "info", title, evidence, (beyond_names(rows[0]),), span_id)


def _listed(names: Sequence[str], count: int) -> str:
    others = [format_counted(count - len(names), "other")] if count > len(names) else []
    *first, last = (*names, *others)
    return f"{', '.join(first)} and {last}" if first else last


def _size(left: LeftBehind) -> str:
    # Where memory of models or optimizers was freed beside it, it is more than the whole cell left behind.
    is_all = left.bytes <= left.net + NEXT_TO_NOTHING
    return f"{format_bytes(left.bytes)} {'left behind' if is_all else 'of new memory'}"


def _longer(holders: Holders) -> str:
    return f"%memholders searches longer ({holders.bound})."


def _title(left: LeftBehind, holding: Growers, at_least: str, *, is_sure: bool) -> str:
    held = sum(size for _, size in holding)
    is_alone = len(holding) == 1 and is_sure
    names = [_name(row, size, alone=is_alone) for row, size in holding[:MOST_NAMED]]
    holders = _listed(names, len(holding))
    size = _size(left)
    if not is_sure:
        return f"{size}; most of the allocated memory is held by {holders}"
    if held >= NEARLY_ALL * left.bytes:
        return f"{size} is held by {holders}"
    return f"{size}, of which {at_least}{format_bytes(held)} is held by {holders}"


def _stored(row: Holder) -> str:
    """Return what a name has, as a sentence; empty where it is one thing alone, or no tensor."""
    if row.kind != "tensors" or row.tensors < 2:
        return ""
    shape = " \N{MULTIPLICATION SIGN} ".join(map(format_count, row.shape))
    graphs = "" if row.graph_bytes else " without graphs"
    has = f"{row.path} has {format_count(row.tensors)} tensors{graphs}, the largest {shape} {row.dtype}"
    return f"{has}: store less in it, or delete it when it is no longer needed."


def _name(row: Holder, size: float, *, alone: bool) -> str:
    facts = [] if alone else [format_bytes(size)]
    if row.is_of_graphs:
        graphs = "graph" if row.graphs == 1 else "graphs"
        facts.append(f"the {graphs} of {format_counted(row.graphs, 'tensor')}")
    return f"{row.path} ({', '.join(facts)})" if facts else row.path
