"""The differences between two peaks by the line or module that allocated the memory.

Lines are the same if file, function and text (without a text, the number) are equal. Remaining lines that
are unique on each side match by file name, function and text, by file name and text, or by similar text.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from difflib import get_close_matches
from itertools import starmap

from hfmem_widget.analysis.facts import NEXT_TO_NOTHING
from hfmem_widget.features.compare.model import Change, Compared, Places
from hfmem_widget.session.stacks import NO_NAMES, Row
from hfmem_widget.text import format_bytes, plain

ALMOST = 0.75  # the least similarity of two texts of one line, from 0 to 1, by `difflib`
SHARE = 0.5  # the least share of all bytes added, or of all removed, for a line to be named

_LINE_NUMBER = re.compile(r"(?: line |:)\d+$")
_CELL = re.compile(r"cell \[\d+\]|a cell's")
_NONE = Row("", 0, 0, 0.0, "")


def with_changes(cell: Compared, baseline: Compared, by: Places) -> Compared:
    """Return a cell with its changes since the baseline, if both have stacks."""
    before, after = baseline.usual.live, cell.usual.live
    if cell is baseline or before is None or after is None:
        return cell
    return replace(cell, changes=changes_of(before.rows(by), after.rows(by)))


def changes_of(before: Iterable[Row], after: Iterable[Row]) -> tuple[Change, ...]:
    """Return the differences between the rows of two peaks, the largest first."""
    old, new = _by_line(before), _by_line(after)
    pairs = []
    for key in _KEYS:
        was, now = _by(key, old.values()), _by(key, new.values())
        for value in was.keys() & now.keys() - {None}:
            if len(was[value]) == len(now[value]) == 1:
                pairs += [(old.pop(_line(*was[value])), new.pop(_line(*now[value])))]
    was, now = _by(_function, old.values()), _by(_function, new.values())
    for place in was.keys() & now.keys():
        texts, others = (
            {row.source: _line(row) for row in rows[place] if row.source} for rows in (was, now)
        )
        for text, line in others.items():
            for near in get_close_matches(text, texts, 1, ALMOST):
                if get_close_matches(near, others, 1, ALMOST) == [text]:
                    pairs += [(old.pop(texts[near]), new.pop(line))]
    pairs += [(row, _NONE) for row in old.values()] + [(_NONE, row) for row in new.values()]
    changes = [change for change in starmap(_change, pairs) if change.bytes]
    return tuple(sorted(changes, key=lambda change: (-abs(change.bytes), change.name)))


def _change(old: Row, new: Row) -> Change:
    row = old if new is _NONE else new
    was = "" if old.source == row.source else old.source
    return Change(row.name, old.bytes, new.bytes, row.source, row.function, was)


def _by_line(rows: Iterable[Row]) -> dict[Hashable, Row]:
    lines = _by(_line, rows).items()
    return {line: replace(same[0], bytes=sum(row.bytes for row in same)) for line, same in lines}


def _by(key: Callable[[Row], Hashable], rows: Iterable[Row]) -> dict[Hashable, list[Row]]:
    groups: dict[Hashable, list[Row]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return groups


def _file(name: str) -> str:
    return _CELL.sub("cell", _LINE_NUMBER.sub("", name))


def _line(row: Row) -> Hashable:
    number = _LINE_NUMBER.search(row.name)
    return _file(row.name), row.function, row.source or (number and number[0])


def _function(row: Row) -> tuple[str, str]:
    return _file(row.name).rpartition("/")[2], row.function


_KEYS: tuple[Callable[[Row], Hashable], ...] = (
    _line,
    lambda row: (*_function(row), row.source),
    lambda row: (_function(row)[0], row.source) if row.source else None,
)
"""What must be equal for two rows to match, the strictest first."""


def sentence(cell: Compared, baseline: Compared) -> str:
    """Return how much a cell holds above or below the baseline, and by which lines; empty if not compared."""
    if cell.changes is None or cell.usual.live is None:
        return ""
    # The measured peak of the host is another one: tensors are only a part of its memory.
    alive = "alive at the tensors' peak" if cell.usual.live.device == "cpu" else "alive at the peak"
    name, other = plain(cell.name), plain(baseline.name)
    change = sum(each.bytes for each in cell.changes)
    if abs(change) < NEXT_TO_NOTHING:
        return f"{name}: within 1 MiB of {other}, {alive}."
    how = "more" if change > 0 else "less"
    same = [each for each in cell.changes if (each.bytes > 0) == (change > 0)]
    most, whole = same[0], f"{format_bytes(abs(change))} {how}"
    if most.name in NO_NAMES or abs(most.bytes) < SHARE * abs(sum(each.bytes for each in same)):
        return f"{name}: {whole} than in {other}, {alive}."
    size, place = f"{format_bytes(abs(most.bytes))} {how}", most.name
    if most.function and not most.function.startswith("<"):
        place = f"{most.function}() of {_LINE_NUMBER.sub('', place).rpartition('/')[2]}"
    in_all = "" if size == whole else f" In all it is {whole} than in {other}."
    return f"{name}: {size}, allocated in {place}, {alive}.{in_all}"


def notes_of(cells: Sequence[Compared], by: Places, device: str) -> Iterator[str]:
    """Yield notes on cells without stacks, and on peaks that are not exact."""
    if names := [plain(cell.name) for cell in cells if cell.usual.live is None]:
        yield (
            f"Nothing is compared by {by} with {', '.join(names)}: no stacks of {device} were recorded. "
            "Watch with %%memwatch --stacks or watch(stacks=True)."
        )
    inexact: dict[str, list[str]] = defaultdict(list)
    for cell in cells:
        if cell.usual.live is not None and not cell.usual.live.exact:
            inexact[cell.usual.live.certainty].append(plain(cell.name))
    yield from (f"{', '.join(names)}: {certainty}" for certainty, names in inexact.items())
