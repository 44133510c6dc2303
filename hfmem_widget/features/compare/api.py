"""``hfmem_widget.compare``: finished sessions, or watched cells of this notebook, side by side."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, count
from statistics import median
from types import MappingProxyType

import numpy as np

from hfmem_widget.analysis.facts import NEXT_TO_NOTHING
from hfmem_widget.analysis.history import HISTORY
from hfmem_widget.analysis.record import (
    UNUSED,
    DeviceRecord,
    Floats,
    Record,
    as_in_a_snapshot,
    of_stacks,
    record_of,
    whole,
)
from hfmem_widget.errors import OptionError
from hfmem_widget.features.compare.by_line import notes_of, with_changes
from hfmem_widget.features.compare.model import (
    FIGURES,
    RANKS,
    AlignedLine,
    By,
    Compared,
    Comparison,
    Figure,
    Places,
)
from hfmem_widget.session import Session
from hfmem_widget.session.stacks import Snapshot
from hfmem_widget.session.steps import CERTAINTIES
from hfmem_widget.text import format_bytes, plain

Subject = str | int | Session | Snapshot | Sequence[Session]

MOST_CELLS = 8  # more lines could not be distinguished
POINTS = 1200  # the number of points of all lines together

# Share of the bytes at the start from which a difference is reported: a heap varies by itself.
LEAST_OF_START = 0.01

OF_SNAPSHOTS = (
    "Sizes are the bytes requested while the histories were recorded. A snapshot has line numbers but no "
    "source text, so a line that has moved may not be matched."
)


def compare(*subjects: Subject, by: str = "", device: str = "", baseline: str = "") -> Comparison:
    """Compare finished sessions, watched cells of this notebook, or snapshots of torch.

    Parameters
    ----------
    *subjects : Session, Snapshot, sequence of Session, str or int
        A session; several sessions, as runs of the same cell; a snapshot that `open` has read; or the label
        of what was watched in this process, or the number of a watched cell.
    by : {"step", "time", "line", "module"}, optional
        "step" or "time" aligns the chart; by default steps if all cells have some. "line" or "module" lists
        the differences in live memory at the peak by the line or module that allocated it, and needs
        recorded stacks; by default lines if all cells have stacks.
    device : str, optional
        A device key such as ``"cuda:0"``; by default the device that most cells used.
    baseline : str, optional
        The label of the cell that the others are compared with; the first by default.

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
    snapshots: dict[str, Snapshot] = {}
    for subject in subjects:
        records = _records(subject)
        name = _name(subject, records)
        if runs.get(name) != records:  # a subject that is given twice is listed once
            names = chain([name], (f"{name} ({number})" for number in count(2)))
            name = next(free for free in names if free not in runs)
        runs[name] = records
        baseline = name if subject == baseline else baseline
        if isinstance(subject, Snapshot):
            snapshots[name] = subject
    return of_runs(runs, by=by, device=device, baseline=baseline, snapshots=snapshots)


def _records(subject: Subject) -> tuple[Record, ...]:
    if isinstance(subject, Snapshot):
        return (of_stacks(subject.stacks.peaks, subject.name),)
    if isinstance(subject, bool) or not isinstance(subject, (str, int, Session, Sequence)):
        raise OptionError(
            "compare() takes sessions, snapshots, labels and cell numbers, not "
            f"{type(subject).__name__}"
        )
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


def of_runs(
    runs: Mapping[str, Sequence[Record]],
    *,
    by: str = "",
    device: str = "",
    baseline: str = "",
    snapshots: Mapping[str, Snapshot] = MappingProxyType({}),
) -> Comparison:
    """Compare cells by name, each with its runs, oldest first; `of_stacks` has made the `snapshots`."""
    if not runs:
        raise OptionError("nothing to compare: name at least one cell")
    if snapshots:
        runs = _beside_snapshots(runs, snapshots, by)
    if len(runs) > MOST_CELLS:
        raise OptionError(f"{len(runs)} cells are too many; compare at most {MOST_CELLS}")
    if baseline and baseline not in runs:
        raise OptionError(
            f"{plain(baseline)!r} is not one of the compared cells: {', '.join(map(repr, runs))}"
        )
    key = _device(runs, device)
    used_by_name = {
        name: [used for record in records if (used := record.device(key))]
        for name, records in runs.items()
    }
    have_stacks = all(used and all(each.live for each in used) for used in used_by_name.values())
    wanted = by or ("line" if have_stacks else "")
    places: Places | None = "line" if wanted == "line" else "module" if wanted == "module" else None
    how = _by("" if places else by, used_by_name)
    first = baseline or next(iter(runs))
    lines, width = _lines(used_by_name, how)
    sample = next(used for devices in used_by_name.values() for used in reversed(devices))
    cells = tuple(_compared(name, tuple(runs[name]), key, lines.get(name)) for name in runs)
    base = cells[list(runs).index(first)]
    return Comparison(
        cells=tuple(with_changes(each, base, places) for each in cells) if places else cells,
        baseline=cells.index(base),
        device=key,
        device_name=sample.name,
        allocated_label=sample.allocated_label,
        reserved_label=sample.reserved_label,
        by=how,
        steps_a_point=width,
        notes=(
            *(_earlier(used_by_name, first) if key != RANKS else ()),
            *_versions(runs, first),
            *_notes(runs, used_by_name, key),
            *(notes_of(cells, places, key) if places else ()),
            *([OF_SNAPSHOTS] if snapshots else []),
            *(f"{name}: {note}" for name, each in snapshots.items() for note in each.notes),
        ),
    )


def _beside_snapshots(
    runs: Mapping[str, Sequence[Record]], snapshots: Mapping[str, Snapshot], by: str
) -> dict[str, tuple[Record, ...]]:
    bare = len(snapshots) < len(runs)
    if bare and by == "module":
        raise OptionError(
            "a snapshot does not name classes, so it can be compared with a recording only --by line"
        )
    if by in {"step", "time"}:
        raise OptionError(f"a snapshot has no samples to align by {by}")
    reduced = {}
    for name, records in runs.items():
        missing, own = "history of allocations", tuple(records)
        if name not in snapshots:
            missing, own = "stacks (--stacks)", tuple(map(_stacks_of, records))
        if not all(run.devices for run in own):
            raise OptionError(f"{name} has no {missing}, so what was live at its peak is unknown")
        reduced[name] = tuple(map(as_in_a_snapshot, own)) if bare else own
    return reduced


def _stacks_of(run: Record) -> Record:
    peaks = (device.live for device in run.devices if device.live is not None)
    return replace(of_stacks(peaks, run.label), outcome=run.outcome)


def _device(runs: Mapping[str, Sequence[Record]], wanted: str) -> str:
    used: dict[str, list[float]] = {}
    for records in runs.values():
        for key in dict.fromkeys(device.key for record in records for device in record.devices):
            devices = (record.device(key) for record in records)
            used.setdefault(key, []).append(max(device.peak.value for device in devices if device))
    if wanted and wanted not in used:
        raise OptionError(
            f"these cells did not use {plain(wanted)!r}; they used {', '.join(used) or 'none'}"
        )
    if not used:
        raise OptionError("no memory was read while these cells ran")
    return wanted or max(
        used, key=lambda key: (len(used[key]), key == RANKS, ":" in key, max(used[key]))
    )


def _by(wanted: str, used_by_name: Mapping[str, Sequence[DeviceRecord]]) -> By:
    if wanted not in {"", "step", "time"}:
        raise OptionError(
            "cells are compared by 'line' or by 'module', and aligned by 'step' or by 'time', not by "
            f"{plain(wanted)!r}"
        )
    has_steps = [any(len(used.steps) > 1 for used in devices) for devices in used_by_name.values()]
    if wanted == "step" and not any(has_steps):
        raise OptionError("none of these cells has steps; align them by 'time'")
    return "step" if wanted == "step" or (not wanted and all(has_steps)) else "time"


def _compared(
    name: str, records: tuple[Record, ...], key: str, line: AlignedLine | None
) -> Compared:
    devices = [record.device(key) or UNUSED for record in records]
    used = [device for device in devices if device is not UNUSED]
    used.sort(key=lambda device: device.peak.value)
    certainties = {device.peak.certainty for device in used} or {"sampled"}
    return Compared(
        name=plain(name),
        records=records,
        figures={
            figure: _figure([read(*run) for run in zip(records, devices, strict=True)])
            for figure, read in FIGURES.items()
        },
        certainty=next(each for each in reversed(CERTAINTIES) if each in certainties),
        # Medians of parts would not add up to the peak.
        usual=used[(len(used) - 1) // 2] if used else UNUSED,
        line=line,
    )


def _figure(values: Sequence[float]) -> Figure:
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return Figure()
    return Figure(median(finite), min(finite), max(finite), len(finite))


def _lines(
    used_by_name: Mapping[str, Sequence[DeviceRecord]], by: By
) -> tuple[dict[str, AlignedLine], int]:
    most = POINTS // len(used_by_name)
    arrays: dict[str, list[Floats]] = {}
    for name, devices in used_by_name.items():
        if by == "time":
            arrays[name] = [used.curve for used in devices if used.curve.shape[1] > 1]
        else:
            arrays[name] = [used.steps for used in devices if len(used.steps)]
    if by == "time":
        return {name: by_time(curves, most) for name, curves in arrays.items() if curves}, 1
    width = steps_a_point(list(chain(*arrays.values())), most)
    return {name: by_step(tables, width) for name, tables in arrays.items() if tables}, width


def _earlier(used_by_name: Mapping[str, Sequence[DeviceRecord]], baseline: str) -> Iterator[str]:
    starts = {
        name: _figure([used.before for used in devices]) for name, devices in used_by_name.items()
    }
    for name, start in starts.items():
        more = start.middle - starts[baseline].middle
        # False for unknown figures, which are NaN.
        if abs(more) >= max(NEXT_TO_NOTHING, LEAST_OF_START * start.high):
            size = f"{format_bytes(abs(more))} {'more' if more > 0 else 'less'}"
            began = f"{plain(name)} began with {size} allocated than {plain(baseline)}"
            yield f'{began}. "above the start" leaves that out.'


def _versions(runs: Mapping[str, Sequence[Record]], baseline: str) -> Iterator[str]:
    before = runs[baseline][-1].software
    for name, records in runs.items():
        others = (
            f"{library} {version} ({before[library]})"
            for library, version in records[-1].software.items()
            if before.get(library, version) != version
        )
        if different := ", ".join(others):
            yield f"{plain(name)} ran with other versions than {plain(baseline)}: {different}."


def _notes(
    runs: Mapping[str, Sequence[Record]],
    used_by_name: Mapping[str, Sequence[DeviceRecord]],
    key: str,
) -> Iterator[str]:
    records_of_all = chain(*runs.values())
    if others := sorted({each.key for record in records_of_all for each in record.devices} - {key}):
        names = ", ".join(others) if len(others) < 3 else f"{others[0]} to {others[-1]}"
        yield f"Also used: {names}."
    kinds = {name: devices[-1].name for name, devices in used_by_name.items() if devices}
    if len(set(kinds.values())) > 1:
        cells = (f"{plain(name)} on {kind}" for name, kind in kinds.items())
        yield f"Different devices: {', '.join(cells)}."
    worst = [(name, records[-1].worst_rank) for name, records in runs.items() if used_by_name[name]]
    if key == RANKS:
        worst_ranks = (f"rank {rank} of {plain(name)}" for name, rank in worst if rank is not None)
        yield f"The ranks' peaks are compared. The worst: {', '.join(worst_ranks)}."
    for name, records in runs.items():
        if not used_by_name[name]:
            yield f"{plain(name)} did not use {key}."
        if failed := [record.outcome for record in records if record.outcome != "done"]:
            which = "" if len(records) == 1 else f" in {len(failed)} of {len(records)} runs"
            # A run that was killed has no outcome.
            yield f"{plain(name)}: {plain(failed[-1]) or 'broken off'}{which}."


def steps_a_point(tables: Sequence[Floats], most: int) -> int:
    """Return the steps that a point must cover for at most `most` points and no finer than any row."""
    longest = max(float(table[-1, 1] - table[0, 0] + 1) for table in tables)
    rows = max(float((table[:, 1] - table[:, 0]).max() + 1) for table in tables)
    return max(1, math.ceil(longest / most), int(rows))


def by_step(tables: Sequence[Floats], width: int) -> AlignedLine:
    """Return the line of runs aligned by step number; a point is the highest peak of `width` steps.

    A row of several steps may span two points. Its highest peak counts in the point of its worst step, its
    lowest in the other, so that no peak is shown at a step without it.
    """
    last = max(int(table[-1, 1]) for table in tables)
    first = min(int(table[0, 0]) for table in tables)
    begin = (first - 1) // width
    points = (last - 1) // width - begin + 1
    runs = np.array([_points(table, width, begin, points) for table in tables])
    return _over((np.arange(points) + begin) * width + (width + 1) / 2, runs)


def by_time(curves: Sequence[Floats], columns: int) -> AlignedLine:
    """Return the line of runs aligned by time since their start; of several runs, in `columns` maxima."""
    if len(curves) == 1:
        at, values = curves[0]
        return AlignedLine(at, values, values, values)
    longest = max((float(curve[0, -1]) for curve in curves if curve.shape[1]), default=0.0)
    width = longest / columns or 1.0
    runs = np.array([_columns(curve, width, columns) for curve in curves])
    return _over((np.arange(columns) + 0.5) * width, runs)


def _points(table: Floats, width: int, begin: int, points: int) -> Floats:
    highest = np.full(points, np.nan)
    numbers = table[:, (0, 1, 4)].T
    # If several steps share a peak, the last one counts as the worst.
    numbers[2] = np.where(numbers[2] > 0, numbers[2], numbers[1])
    first, last, worst = ((numbers - 1) // width - begin).astype(int)
    for at, heights in ((first, table[:, 2]), (last, table[:, 2]), (worst, table[:, 3])):
        np.fmax.at(highest, at, heights)
    return highest


def _columns(curve: Floats, width: float, columns: int) -> Floats:
    at, values = curve.astype(np.float64)
    is_read = ~np.isnan(values)
    at, values = at[is_read], values[is_read]
    if not len(at):
        return np.full(columns, np.nan)
    centres = (np.arange(columns) + 0.5) * width
    highest = np.interp(centres, at, values, right=np.nan)
    place = np.minimum((at / width).astype(int), columns - 1)
    top = np.full(columns, np.nan)
    np.fmax.at(top, place, values)
    # A column without readings is interpolated between its neighbours.
    return np.where(np.isnan(top), highest, top)


def _over(at: Floats, runs: Floats) -> AlignedLine:
    is_read = ~np.isnan(runs).all(axis=0)
    at, runs = at[is_read], runs[:, is_read]
    # Only where at least one run has a value: shorter runs end with NaN.
    return AlignedLine(
        at, np.nanmedian(runs, axis=0), np.nanmin(runs, axis=0), np.nanmax(runs, axis=0)
    )
