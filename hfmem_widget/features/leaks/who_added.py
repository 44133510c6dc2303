"""Which names hold added memory, found by comparing two searches: during growth, or after a cell."""

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
from hfmem_widget.sources.heap.model import UNNAMED, Holder, Holders, first_name, joined
from hfmem_widget.sources.heap.roots import NotedNames, Root, beyond_names, kernel_roots, remedy
from hfmem_widget.text import format_bytes, format_count, format_counted, format_list
from hfmem_widget.view.front_end import running_shell

MOST_SECONDS = 1.0
MOST_OBJECTS = 500_000

LEAST_OF_GROWTH = 0.25  # share of the growth that a name must have added to be mentioned
MOST_TIMES = 2.0  # times the growth: a name that added more did most of that before the growth
NEARLY_ALL = 0.9  # share of a size
MOST_NAMED = 3
MOST = 0.5  # share of the allocated bytes

QUICK_SECONDS = 0.3  # bounds of a search after a cell without a leak
QUICK_OBJECTS = 300_000
LONGER_AFTER_AN_ERROR = 5  # factor for these bounds: nobody waits for the cell's result
WORTH_NAMING = 0.1  # share of the bytes left behind that a name must hold to be named

# The kinds of holders that are counted while a cell runs, with the metric of each.
KINDS = {TABLE[metric].label: metric for metric in EXPECTED}

_SEVERAL = re.compile(r"[\[{][^\]}]*(?:\.\.|\u2026)")
_ITEMS = re.compile(r"\[[^\]]*\]")
_CONTAINERS = {"list", "dict", "set", "deque"}

NOT_NOTED = Holders((), bound="what was held before was not noted")

Sizes = dict[Holder, float]  # the bytes that each row added
Growers = Sequence[tuple[Holder, float]]  # one row for each name, and the bytes that it added


class LastSearch:
    """The result of the last complete search: texts and figures only."""

    held = NOT_NOTED
    unexplained: Mapping[str, float] = MappingProxyType({})  # unattributed bytes by device
    names = NotedNames({})

    def held_before(self, left: LeftBehind) -> Holders:
        """Return what was held when a span began; unknown if the allocated bytes have changed since."""
        unexplained = self.unexplained.get(left.device, math.nan)
        is_unchanged = abs(left.before - unexplained) <= WORTH_NAMING * left.bytes
        return self.held if is_unchanged else replace(self.held, bound=NOT_NOTED.bound)


@dataclass(frozen=True, slots=True)
class Before:
    """What was noted before a watch, and how it has changed since: names and figures only."""

    held: Holders = NOT_NOTED
    # Variables, outputs and errors that are new, or refer to another object than before.
    new: Collection[str] = ()
    # By the name of an older list: the share of its items that are new.
    added: Mapping[str, float] = field(default_factory=dict)
    # Bytes by which allocated memory fell meanwhile: a name that freed them may hold as many again.
    freed: float = 0.0
    # Names that appeared between the noting of `held` and the beginning of the watch.
    unnoted: Collection[str] = ()
    # Lists that did not grow during the second half of the growth.
    idle: Collection[str] = ()


def names_now() -> tuple[Mapping[str, object], Sequence[Root]]:
    """Return the variables, and the notebook's other roots, such as outputs and the last error."""
    return main_variables(), kernel_roots(running_shell())


def search(
    most_objects: int = MOST_OBJECTS,
    most_seconds: float = MOST_SECONDS,
    *,
    is_thorough: bool = False,
) -> Holders:
    """Return what is held now, within the bounds; a thorough search includes objects without a name."""
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
    """Return the bytes that each row has added, and upper bounds for rows where these are unknown."""
    is_noted = not before.held.bound
    more = {(row.path, row.kind): row.bytes for row in holders.since(before.held).rows}
    known: Sizes = {}
    may: Sizes = {}
    for row in holders.rows:
        name, size = first_name(row.path), more.get((row.path, row.kind), 0)
        if name in before.new:
            known[row] = row.bytes
        # The size of a list of numbers or texts is estimated from a sample of its items.
        elif name in before.added and (not is_noted or row.path == name):
            known[row] = row.bytes * before.added[name]
        else:
            (known if is_noted and name not in before.unnoted else may)[row] = size
    return known, may


def summed(sizes: Sizes, least: float, share: float) -> Growers:
    """Return each name whose rows add up to at least `least` bytes, biggest first.

    A name's largest row represents the name where it has at least the `share` of the sum.
    """
    names: dict[str, list[tuple[Holder, float]]] = defaultdict(list)
    for row, size in sorted(sizes.items(), key=lambda pair: -pair[1]):
        if size:
            names[first_name(row.path)].append((row, size))
    sums = []
    for name, rows in names.items():
        (first, most), grown = rows[0], sum(size for _, size in rows)
        if grown >= least:
            all_of_it = joined(name, [row for row, _ in rows])
            sums.append((first if most >= share * grown else all_of_it, grown))
    return sorted(sums, key=lambda pair: -pair[1])


def growers(holders: Holders, before: Before, growth: float) -> tuple[Growers, Growers]:
    """Return the names that added `growth` bytes on one device; if none is certain, possible ones."""
    known, may = added(holders, before)
    for row in [row for row in (*known, *may) if first_name(row.path) in before.idle]:
        size = known.pop(row, 0.0) or may.pop(row, 0.0)
        if not _ITEMS.fullmatch(row.path, len(first_name(row.path))):
            may[row] = size  # items of its items may have been added
    growing = _growing(known | may, growth)
    fitting = [grower for grower in growing if grower[1] <= MOST_TIMES * growth]
    seen = {first_name(row.path) for row in known}
    # Without any of these, the others cannot have added as much.
    others = sum(size for _, size in fitting) - NEARLY_ALL * growth
    sure = [(row, size) for row, size in fitting if size > others and first_name(row.path) in seen]
    if sure:
        return sure[:MOST_NAMED], ()
    free = before.freed - holders.since(before.held).freed
    refilled = {row: min(free, row.bytes) for row in holders.rows if _SEVERAL.search(row.path)}
    return [], (fitting or growing or _growing(refilled, growth))[:MOST_NAMED]


def _growing(sizes: Sizes, growth: float) -> Growers:
    # What came at once, such as the states of an optimizer, has not been added step by step.
    repeated = {
        row: size
        for row, size in sizes.items()
        if size < row.bytes
        or row.graph_bytes
        or _SEVERAL.search(row.path, len(first_name(row.path)))
        or row.dtype in _CONTAINERS
    }
    return summed(repeated, LEAST_OF_GROWTH * growth, NEARLY_ALL)


def named(
    left: LeftBehind, holders: Holders, before: Before, span_id: int, *, raised: bool = False
) -> Finding | None:
    """Return a finding with the names that hold what was left; None if a complete search found no name."""
    present, enough = holders.of(left.device), WORTH_NAMING * left.bytes
    counted = {
        kind
        for kind, metric in KINDS.items()
        if left.attributed.get(metric, 0.0)
        >= sum(row.bytes for row in present.rows if row.kind == kind)
    }
    rows = tuple(row for row in present.rows if row.kind not in counted)
    if left.before >= enough:
        # One tensor with a name of its own that is not new is the same as before.
        grown = tuple(row for row in rows if not _is_single(row) or row.path in before.new)
        known, may = added(replace(present, rows=grown), before)
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
        evidence["holder"] = format_list((row.path for row, _ in sure), MOST_NAMED)
        evidence["holder_grown"] = round(sum(size for _, size in sure))
    at_least = "at least " * bool(holders.bound)
    title = _title(left, holding, at_least, is_sure=bool(sure))
    # Of a guess nothing is said but how to free it.
    texts = [remedy(row) or (_stored(row) if sure else "") for row, _ in holding[:MOST_NAMED]]
    everything = _longer(holders) if holders.bound else "%memholders lists everything that is held."
    advice = (*dict.fromkeys(filter(None, texts)), everything)
    return Finding("left behind", "info", title, evidence, advice, span_id)


def _is_single(row: Holder) -> bool:
    return row.tensors <= 1 and not row.graph_bytes and row.path == first_name(row.path)


def _not_found(left: LeftBehind, holders: Holders, span_id: int, *, raised: bool) -> Finding | None:
    """Return a finding that the search ended early without a result; None if the search was complete."""
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


def unnamed(
    left: LeftBehind, holders: Holders, span_id: int, beside: Finding | None = None
) -> Finding | None:
    """Return a finding for bytes that no variable leads to, from a thorough search; `beside` if they are few.

    It also says what is in `beside`, the finding with the names that hold some of what was left.
    """
    rows = [row for row in holders.of(left.device).rows if row.path == UNNAMED]
    evidence = {"device": left.device, "left_behind": round(left.bytes)}
    known = beside or Finding("left behind", "info", _size(left), evidence, (), span_id)
    # As much of it as could be may have been there before.
    size = sum(row.bytes for row in rows) - left.before
    size = min(left.bytes - float(str(known.evidence.get("holder_grown", 0))), size)
    if size < WORTH_NAMING * left.bytes:
        return beside
    held = f"objects that no name of yours leads to hold at least {format_bytes(size)} of it"
    evidence = {**known.evidence, "unnamed": round(size)}
    advice = *known.advice, beyond_names(rows[0])
    return replace(known, title=f"{known.title}; {held}", evidence=evidence, advice=advice)


def _size(left: LeftBehind) -> str:
    # Where memory of models or optimizers was freed beside it, it is more than the whole cell left behind.
    is_all = left.bytes <= left.net + NEXT_TO_NOTHING
    return f"{format_bytes(left.bytes)} {'left behind' if is_all else 'of new memory'}"


def _longer(holders: Holders) -> str:
    return f"%memholders searches longer ({holders.bound})."


def _title(left: LeftBehind, holding: Growers, at_least: str, *, is_sure: bool) -> str:
    held = sum(size for _, size in holding)
    is_alone = len(holding) == 1 and is_sure
    names = (_name(row, size, alone=is_alone) for row, size in holding)
    holders = format_list(names, MOST_NAMED)
    size = _size(left)
    if not is_sure:
        return f"{size}; most of the allocated memory is held by {holders}"
    if held >= NEARLY_ALL * left.bytes:
        return f"{size} is held by {holders}"
    return f"{size}, of which {at_least}{format_bytes(held)} is held by {holders}"


def _stored(row: Holder) -> str:
    """Return a sentence about the tensors of a name; empty for a single tensor or other objects."""
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
