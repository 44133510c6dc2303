"""``hfmem_widget.compare``: finished sessions, or watched cells of this notebook, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, count

from hfmem_widget.analysis.history import HISTORY
from hfmem_widget.analysis.record import Record
from hfmem_widget.analysis.record_of import record_of, whole
from hfmem_widget.errors import OptionError
from hfmem_widget.features.compare.model import Comparison
from hfmem_widget.features.compare.table import compare as compare_records
from hfmem_widget.session import Session
from hfmem_widget.text import plain

Subject = str | int | Session | Sequence[Session]


def compare(*subjects: Subject, by: str = "", device: str = "", baseline: str = "") -> Comparison:
    """Lay finished sessions, or watched cells of this notebook, side by side.

    Parameters
    ----------
    *subjects : Session, sequence of Session, str or int
        A session; several sessions, as runs of the same cell; or the label of what was watched in this
        process, or the number of a watched cell.
    by : {"step", "time"}, optional
        What the chart is aligned by; steps by default where all have some.
    device : str, optional
        Its key, such as ``"cuda:0"``; by default the one that most of them used.
    baseline : str, optional
        The label of the one that the others are compared with; the first by default.

    Returns
    -------
    Comparison
        Shows itself in a notebook; `Comparison.to_pandas` has the figures.

    Raises
    ------
    OptionError
        If there is nothing to compare, a session still runs, or a name is unknown; the message says what can
        be compared.

    Examples
    --------
    >>> with hfmem_widget.watch("base", quiet=True) as base:
    ...     trainer.train()
    >>> with hfmem_widget.watch("checkpointing", quiet=True) as checkpointing:
    ...     trainer_with_checkpointing.train()
    >>> hfmem_widget.compare(base, checkpointing).to_pandas()["peak/difference"]
    """
    runs: dict[str, tuple[Record, ...]] = {}
    for subject in subjects:
        records = _records(subject)
        runs[_free_name(_name(subject, records), runs)] = records
    return compare_records(runs, by=by, device=device, baseline=baseline)


def compare_named(
    names: Sequence[str], *, by: str = "", device: str = "", baseline: str = ""
) -> Comparison:
    """Lay watched cells side by side, by label or number; a cell that is named twice appears once."""
    runs: dict[str, tuple[Record, ...]] = {}
    base = ""
    for name in (*names, baseline) if baseline else names:
        records = HISTORY.find(name)
        base = _name(name, records)
        runs[base] = records
    return compare_records(runs, by=by, device=device, baseline=base if baseline else "")


def _records(subject: Subject) -> tuple[Record, ...]:
    if isinstance(subject, bool) or not isinstance(subject, (str, int, Session, Sequence)):
        message = f"compare() takes sessions, labels and cell numbers, not {type(subject).__name__}"
        raise OptionError(message)
    if isinstance(subject, (str, int)):
        return HISTORY.find(str(subject))
    sessions = [subject] if isinstance(subject, Session) else list(subject)
    if not sessions or not all(isinstance(session, Session) for session in sessions):
        raise OptionError(
            "several runs of one cell are passed as a sequence of sessions, with at least one in it"
        )
    return tuple(record_of(each, whole(each), label=each.label) for each in sessions)


def _name(subject: Subject, records: Sequence[Record]) -> str:
    newest = records[-1]
    of_number = isinstance(subject, (str, int)) and str(subject).strip("[]").isdigit()
    if of_number and plain(subject) != newest.label:
        return f"{newest.name} [{newest.number}]"
    return newest.name


def _free_name(name: str, names_in_use: Mapping[str, object]) -> str:
    names = chain([name], (f"{name} ({number})" for number in count(2)))
    return next(free for free in names if free not in names_in_use)
