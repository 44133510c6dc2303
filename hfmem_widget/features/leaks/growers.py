"""Which names hold what has grown, by what they held when the watch began."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from hfmem_widget.monitor.subjects import main_variables
from hfmem_widget.sources.heap.model import Holder, Holders
from hfmem_widget.sources.heap.noted import first_name, joined
from hfmem_widget.sources.heap.roots import Root, kernel_roots
from hfmem_widget.view.front_end import running_shell

MOST_SECONDS = 1.0
MOST_OBJECTS = 500_000

LEAST_SHARE = 0.25  # the share of the growth that a name must have added to be mentioned
MOST_TIMES = 2.0  # the growth: who added more did most of that before
NEARLY_ALL = 0.9
MOST_NAMED = 3

_SEVERAL = re.compile(r"[\[{][^\]}]*(?:\.\.|\u2026)")
_CONTAINERS = {"list", "dict", "set", "deque"}

NOT_NOTED = Holders((), bound="what was held before was not noted")

Growers = Sequence[tuple[Holder, float]]
"""Names, each with the sums of its rows that grew, and how many bytes they added."""


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


def names_now() -> tuple[Mapping[str, object], Sequence[Root]]:
    """Return the variables, and what else of the notebook has names."""
    return main_variables(), kernel_roots(running_shell())


def search(most_objects: int = MOST_OBJECTS, most_seconds: float = MOST_SECONDS) -> Holders:
    """Return what is held now, as far as the bounds allow."""
    from hfmem_widget.sources.heap.scan import scan

    names, others = names_now()
    return scan(names, others=others, most_objects=most_objects, most_seconds=most_seconds)


def growers(holders: Holders, before: Before, growth: float) -> tuple[Growers, Growers]:
    """Return who added `growth` bytes on one device and, where nobody was seen to, who may have."""
    since, is_partial = holders.since(before.held), before.held.bound != ""
    more = {(row.path, row.kind): row.bytes for row in since.rows}

    def added(row: Holder) -> float:
        name = first_name(row.path)
        if name in before.new:
            return row.bytes
        # A list of as many numbers or texts as before weighs about as much, by a sample.
        if name in before.added and (is_partial or row.path == name):
            return row.bytes * before.added[name]
        return more.get((row.path, row.kind), 0)

    def refilled(row: Holder) -> float:
        return min(before.freed - since.freed, row.bytes) if _SEVERAL.search(row.path) else 0

    growing = _by_name(holders, added, LEAST_SHARE * growth)
    fitting = [one for one in growing if one[1] <= MOST_TIMES * growth]
    seen = {first_name(row.path) for row, _ in fitting}
    if is_partial:
        seen &= {*before.new, *before.added}
    # Without any of these, the others cannot have added as much.
    others = sum(size for _, size in fitting) - NEARLY_ALL * growth
    sure = [one for one in fitting if one[1] > others and first_name(one[0].path) in seen]
    may = fitting or growing or _by_name(holders, refilled, LEAST_SHARE * growth)
    return sure[:MOST_NAMED], () if sure else may[:MOST_NAMED]


def _by_name(holders: Holders, added: Callable[[Holder], float], least: float) -> Growers:
    names: dict[str, list[tuple[float, Holder]]] = defaultdict(list)
    for row in holders.rows:
        name, size = first_name(row.path), added(row)
        # What came at once, such as the states of an optimizer, cannot have been added again and again.
        is_several = _SEVERAL.search(row.path, len(name)) or row.dtype in _CONTAINERS
        if size < row.bytes or row.graph_bytes or is_several:
            names[name].append((size, row))
    summed = []
    for name, rows in names.items():
        grown = sum(size for size, _ in rows)
        most, row = max(rows, key=lambda each: each[0])
        if grown >= least and grown:
            joined_row = joined(name, [row for size, row in rows if size])
            summed.append((row if most >= NEARLY_ALL * grown else joined_row, grown))
    return sorted(summed, key=lambda joined_row: -joined_row[1])
