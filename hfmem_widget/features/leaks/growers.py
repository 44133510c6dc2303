"""Which names hold what has grown, by what they held when the watch began."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence

from hfmem_widget.sources.heap.model import Holder, Holders
from hfmem_widget.sources.heap.noted import first_name, joined

LEAST_SHARE = 0.25  # the share of the growth that a name must have added to be mentioned
MOST_TIMES = 2.0  # the growth: who added more did most of that before
NEARLY_ALL = 0.9
MOST_NAMED = 3

_SEVERAL = re.compile(r"[\[{][^\]}]*(?:\.\.|\u2026)")

Growers = Sequence[tuple[Holder, float]]
"""Names, each with the sums of its rows that grew, and how many bytes they added."""


def growers(
    found: Holders, before: Holders, new: Collection[str], growth: float, let_go: float = 0.0
) -> tuple[Growers, Growers]:
    """Return who added `growth` bytes on a device and, where nobody was seen to, who may have.

    `before` is what was held when the watch began, `new` are the names bound since, and `let_go` is how much
    less than then was allocated at some time since: a container may have let it go and got it again.
    """
    since = found.since(before)
    more = {(row.path, row.kind): row.bytes for row in since.rows}

    def added(row: Holder) -> float:
        return row.bytes if first_name(row.path) in new else more.get((row.path, row.kind), 0)

    def got_again(row: Holder) -> float:
        return min(let_go - since.freed, row.bytes) if _SEVERAL.search(row.path) else 0

    known = _by_name(found, added, LEAST_SHARE * growth)
    fitting = [one for one in known if one[1] <= MOST_TIMES * growth]
    total = sum(size for _, size in fitting)
    sure = [
        (row, size)
        for row, size in fitting
        # Without it, the others cannot have added as much.
        if total - size < NEARLY_ALL * growth and (first_name(row.path) in new or not before.bound)
    ]
    may = fitting or known or _by_name(found, got_again, LEAST_SHARE * growth)
    return sure[:MOST_NAMED], () if sure else may[:MOST_NAMED]


def _by_name(found: Holders, added: Callable[[Holder], float], least: float) -> Growers:
    """Return who added at least so many bytes, most first."""
    names: dict[str, list[tuple[float, Holder]]] = defaultdict(list)
    for row in found.rows:
        name, size = first_name(row.path), added(row)
        # What came at once, such as the states of an optimizer, cannot have been added again and again.
        if size < row.bytes or row.graph_bytes or _SEVERAL.search(row.path, len(name)):
            names[name].append((size, row))
    summed = []
    for name, rows in names.items():
        grown = sum(size for size, _ in rows)
        most, row = max(rows, key=lambda each: each[0])
        if grown >= least and grown:
            alone = most >= NEARLY_ALL * grown
            summed.append(
                (row if alone else joined(name, [row for size, row in rows if size]), grown)
            )
    return sorted(summed, key=lambda one: -one[1])
