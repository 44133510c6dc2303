"""What was watched in a notebook: the newest session, and a record of every cell that has ended."""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hfmem_widget.errors import OptionError
from hfmem_widget.guard import harmless, interrupts_deferred
from hfmem_widget.text import plain

if TYPE_CHECKING:
    from hfmem_widget.analysis.record import Record
    from hfmem_widget.session import Session, Span

MOST_RECORDS = 200
MOST_BYTES = 16 * 1024**2
QUICK = 1.0
"""Seconds up to which the record of a cell is made at once: it has few samples, and a thread costs more."""

MOST_LISTED = 20
"""Names that a message lists."""

HOW_TO_WATCH = (
    "No watched cell has ended yet. Start a cell with %%memwatch --label NAME, or watch every later "
    "cell with %memwatch on."
)

_NUMBER = re.compile(r"\[?(\d{1,9})\]?")


@dataclass(slots=True)
class _Watched:
    """A session that may still bring cells."""

    session: Session
    label: str
    kept_to: int = 0
    """The id of its newest outermost span that was noticed."""

    def newly_ended(self) -> list[Span]:
        """Return the outermost spans that have ended since somebody asked, oldest first."""
        spans = self.session.spans
        new = [span for span in spans if span.id > self.kept_to and span.parent is None]
        new = [span for span in new if span.stop is not None]
        self.kept_to = max((span.id for span in new), default=self.kept_to)
        return new


@dataclass(frozen=True, slots=True)
class _Ended:
    """A cell whose record is still to be made."""

    session: Session
    span: Span
    label: str
    number: int | None
    cell_id: str


class History:
    """The watched cells of one notebook: as many as fit, the oldest go.

    A record of a long run takes milliseconds to make, so that one is made when somebody asks for it, or by
    `settle` on a thread that nobody waits for.
    """

    def __init__(self) -> None:
        self.latest: Session | None = None
        """The session that was begun last, running or finished; None before the first."""
        self._watched: list[_Watched] = []
        self._ended: deque[_Ended] = deque()
        self._records: deque[Record] = deque()
        self._lock = threading.Lock()

    @property
    def records(self) -> tuple[Record, ...]:
        """Every watched cell that has ended and still fits, in the order in which they ended."""
        self.settle()
        return tuple(self._records)

    def begins(self, session: Session, label: str = "") -> None:
        """Note that a session has begun, with the label of the cell that it watches, if any."""
        self.latest = session
        self._watched.append(_Watched(session, plain(label)))

    def cell_ended(self, number: int | None, cell_id: str = "") -> bool:
        """Note that a cell has ended, watched or not, and return whether a record is left for `settle`.

        `number` stands beside it in brackets; `cell_id` is the same for every run, if the front end has one.
        """
        with interrupts_deferred():
            ended = [
                _Ended(watched.session, span, watched.label, number, cell_id)
                for watched in reversed(self._watched)
                for span in watched.newly_ended()
            ]
            self._watched = [watched for watched in self._watched if watched.session.running]
            # As with the cards: where a cell has a watch of its own, the record is of that one.
            self._ended.extend([cell for cell in ended if not cell.session.running] or ended)
            are_quick = all(cell.span.duration <= QUICK for cell in self._ended)
            if are_quick and not self._lock.locked():  # by a thread that may be at a long one
                self.settle()
        return bool(self._ended)

    def settle(self) -> None:
        """Make the records of all cells that have ended."""
        with self._lock:
            while self._ended:
                harmless(self._keep, self._ended.popleft())

    def runs_of(self, label: str, cell_id: str = "") -> tuple[Record, ...]:
        """Return the runs so far of a label, or else of a cell, oldest first."""
        identity = plain(label) or cell_id
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
        elif wanted and self._is_running(wanted):
            message = f"the cell {wanted!r} is still running; compare it after it has ended"
        elif not records:
            message = HOW_TO_WATCH
        else:
            # What records can be asked for by, each label once, newest first.
            names = dict.fromkeys(
                repr(each.label) if each.label else str(each.number) for each in records
            )
            message = f"No watched cell {wanted!r}. Available: {_listed(reversed(names))}."
        raise OptionError(message)

    def _is_running(self, wanted: str) -> bool:
        """Return whether an open span's label begins with a name, or has its number in brackets."""
        number = _NUMBER.fullmatch(wanted)
        return any(
            span.label.startswith(wanted) or (number is not None and f"[{number[1]}]" in span.label)
            for watched in self._watched
            for span in watched.session.open_spans
            if span.parent is None
        )

    def _keep(self, ended: _Ended) -> None:
        from hfmem_widget.analysis.record_of import record_of

        identity = ended.label or ended.cell_id or f"[{ended.number}]"
        runs = (record.run for record in self._records if record.identity == identity)
        record = record_of(
            ended.session,
            ended.span,
            label=ended.label,
            number=ended.number,
            run=max(runs, default=0) + 1,
            identity=identity,
        )
        self._records.append(record)
        size = sum(record.size for record in self._records)
        while len(self._records) > MOST_RECORDS or size > MOST_BYTES:
            size -= self._records.popleft().size


def _listed(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - MOST_LISTED} more" if len(listed) > MOST_LISTED else ""
    return ", ".join(listed[:MOST_LISTED]) + more
