"""What was watched in a notebook, for whoever asks about it afterwards: the newest session, and records."""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Iterable, Sequence
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

MOST_TOLD = 20
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
        self._latest: Session | None = None
        self._watched: list[_Watched] = []
        self._ended: deque[_Ended] = deque()
        self._records: deque[Record] = deque()
        self._lock = threading.Lock()

    @property
    def latest(self) -> Session | None:
        """The session that was begun last, running or finished; None before the first."""
        return self._latest

    @property
    def records(self) -> tuple[Record, ...]:
        """Every watched cell that has ended and still fits, in the order in which they ended."""
        self.settle()
        return tuple(self._records)

    def begins(self, session: Session, label: str = "") -> None:
        """Note that a session has begun.

        Parameters
        ----------
        session : Session
        label : str, optional
            What the user calls the cell that it watches, if anything.
        """
        self._latest = session
        self._watched.append(_Watched(session, plain(label)))

    def cell_ended(self, number: int | None, cell_id: str = "") -> bool:
        """Note that a cell has ended, watched or not, and return whether a record is left for `settle`.

        Parameters
        ----------
        number : int or None
            What stands beside it in brackets.
        cell_id : str, optional
            The same for every run of it, if the front end tells.
        """
        with interrupts_deferred():
            own: list[_Ended] = []
            among_others: list[_Ended] = []
            for watched in reversed(self._watched):
                found = own if not watched.session.running else among_others
                for span in _newly_ended(watched):
                    found.append(_Ended(watched.session, span, watched.label, number, cell_id))
            self._watched = [one for one in self._watched if one.session.running]
            # As with the cards: where a cell has a watch of its own, that one tells of it.
            self._ended.extend(own or among_others)
            are_quick = all(one.span.duration <= QUICK for one in self._ended)
            if are_quick and not self._lock.locked():  # by a thread that may be at a long one
                self.settle()
        return bool(self._ended)

    def settle(self) -> None:
        """Make the records of all cells that have ended."""
        with self._lock:
            while self._ended:
                harmless(self._keep, self._ended.popleft())

    def runs_of(self, label: str, cell_id: str = "") -> tuple[Record, ...]:
        """Return the runs so far of what has a label, or else of a cell, oldest first."""
        identity = plain(label) or cell_id
        return tuple(one for one in self.records if one.identity == identity)

    def find(self, name: str) -> tuple[Record, ...]:
        """Return all runs of a label, or the one run of a cell's number, oldest first.

        Parameters
        ----------
        name : str
            A label, the beginning of one if no other begins so, or a number.

        Raises
        ------
        OptionError
            If there is none; the message lists what there is.
        """
        wanted, records = plain(name), self.records
        exact = tuple(one for one in records if one.label and one.label == wanted)
        if exact:
            return exact
        number = _NUMBER.fullmatch(wanted)
        if number is not None:
            of_number = [one for one in records if one.number == int(number[1])]
            if of_number:
                return (of_number[-1],)
        labels = dict.fromkeys(one.label for one in records if one.label.startswith(wanted))
        labels.pop("", None)
        if len(labels) == 1:
            (label,) = labels
            return tuple(one for one in records if one.label == label)
        raise OptionError(self._not_found(wanted, tuple(labels), records))

    def _not_found(self, wanted: str, labels: Sequence[str], records: Sequence[Record]) -> str:
        if labels and wanted:
            return f"{wanted!r} may be {_listed(map(repr, labels))}; write more of it"
        if any(_is_called(open_label, wanted) for open_label in self._running()):
            return f"the cell {wanted!r} is still running; compare it after it has ended"
        if not records:
            return HOW_TO_WATCH
        return f"No watched cell {wanted!r}. Available: {_listed(_names(records))}."

    def _running(self) -> list[str]:
        return [
            span.label
            for watched in self._watched
            for span in watched.session.open_spans
            if span.parent is None
        ]

    def _keep(self, ended: _Ended) -> None:
        from hfmem_widget.analysis.record_of import record_of

        identity = ended.label or ended.cell_id or f"[{ended.number}]"
        runs = (one.run for one in self._records if one.identity == identity)
        record = record_of(
            ended.session,
            ended.span,
            label=ended.label,
            number=ended.number,
            run=max(runs, default=0) + 1,
            identity=identity,
        )
        self._records.append(record)
        size = sum(one.size for one in self._records)
        while len(self._records) > MOST_RECORDS or size > MOST_BYTES:
            size -= self._records.popleft().size


def _newly_ended(watched: _Watched) -> list[Span]:
    """Return the outermost spans of a session that have ended since somebody asked, oldest first."""
    new: list[Span] = []
    for span in reversed(watched.session.spans):
        if span.id <= watched.kept_to:
            break
        if span.parent is None and span.stop is not None:
            new.insert(0, span)
    if new:
        watched.kept_to = new[-1].id
    return new


def _is_called(open_label: str, wanted: str) -> bool:
    number = _NUMBER.fullmatch(wanted)
    in_brackets = "" if number is None else f"[{number[1]}]"
    return bool(wanted) and (
        open_label.startswith(wanted) or bool(in_brackets and in_brackets in open_label)
    )


def _names(records: Sequence[Record]) -> list[str]:
    """Return what records can be asked for by, each label once, newest first."""
    names = dict.fromkeys(repr(one.label) if one.label else str(one.number) for one in records)
    return list(reversed(names))


def _listed(names: Iterable[str]) -> str:
    told = list(names)
    more = f" and {len(told) - MOST_TOLD} more" if len(told) > MOST_TOLD else ""
    return ", ".join(told[:MOST_TOLD]) + more
