"""What was watched in this process: a record of every cell and block that has ended."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from hfmem_widget.errors import OptionError
from hfmem_widget.text import plain

if TYPE_CHECKING:
    from hfmem_widget.analysis.record import Record
    from hfmem_widget.session import Session

MOST_RECORDS = 2_000
MOST_BYTES = 16 * 1024**2
"""Bytes of all curves at most; the oldest records then keep only their figures."""

MOST_LISTED = 20
"""Names that a message lists."""

HOW_TO_WATCH = (
    "No watched cell has ended yet. Start a cell with %%memwatch --label NAME, or watch every later "
    "cell with %memwatch on."
)

_NUMBER = re.compile(r"\[?(\d{1,9})\]?")


class History:
    """The newest `most` records, in the order in which the watches ended."""

    def __init__(self, most: int = MOST_RECORDS) -> None:
        self.latest: Session | None = None
        """The session that a magic began last, running or finished; None before the first."""
        self.records: list[Record] = []
        self.forgotten = 0
        """How many records have gone, as there were too many."""
        self._most = most

    def add(self, record: Record) -> None:
        """Add a record, unless a watch within it has one."""
        # A cell with a watch of its own under `%memwatch on`: as with the cards, its own counts.
        if any(_is_around(record, earlier) for earlier in self.records[-8:]):
            return
        self.records.append(record)
        too_many = max(0, len(self.records) - self._most)
        self.forgotten += too_many
        del self.records[:too_many]
        excess = sum(record.size for record in self.records) - MOST_BYTES
        for at, kept in enumerate(self.records):
            if excess <= 0:
                break
            if kept.size:
                excess -= kept.size
                self.records[at] = kept.without_curves()

    def clear(self) -> None:
        """Forget all records."""
        self.records = []
        self.forgotten = 0

    def runs_of(self, identity: str) -> tuple[Record, ...]:
        """Return the runs of a label, or of a cell, so far, oldest first."""
        return tuple(record for record in self.records if record.identity == identity)

    def find(self, name: str) -> tuple[Record, ...]:
        """Return all runs of a label, or the one run of a cell's number, oldest first.

        A name is a label, the beginning of one if no other begins so, or a number. Raises `OptionError` if
        there is none; the message lists what there is.
        """
        wanted, records = plain(name), self.records
        by_label: dict[str, list[Record]] = {}
        for record in records:
            by_label.setdefault(record.label, []).append(record)
        by_label.pop("", None)
        if wanted in by_label:
            return tuple(by_label[wanted])
        number = _NUMBER.fullmatch(wanted)
        for record in reversed(records):
            if number is not None and record.number == int(number[1]):
                return (record,)
        labels = [label for label in by_label if label.startswith(wanted)]
        if len(labels) == 1:
            return tuple(by_label[labels[0]])
        if labels and wanted:
            message = f"{wanted!r} may be {_listed(map(repr, labels))}; write more of it"
        elif not records:
            message = HOW_TO_WATCH
        else:
            # What records can be asked for by, each label once, newest first.
            names = dict.fromkeys(
                repr(each.label) if each.label else str(each.number) for each in records
            )
            message = f"No watched cell {wanted!r}. Available: {_listed(reversed(names))}."
        raise OptionError(message)


HISTORY = History()
"""What was watched in this process."""


def _is_around(record: Record, inner: Record) -> bool:
    """Return whether two records are of one run of a cell, and `inner`, which ended first, began last."""
    are_cells = record.kind == inner.kind == "cell"
    is_one_cell = are_cells and inner.number == record.number is not None
    return is_one_cell and inner.started_at >= record.started_at


def _listed(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - MOST_LISTED} more" if len(listed) > MOST_LISTED else ""
    return ", ".join(listed[:MOST_LISTED]) + more
