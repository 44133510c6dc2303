"""The steps of a run of any length in a fixed amount of memory; the worst step stays exact."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hfmem_widget.session.model import NOT_AVAILABLE, Certainty, Span, data_frame
from hfmem_widget.session.timeline import GrowingTable
from hfmem_widget.text import format_counted

if TYPE_CHECKING:
    import pandas as pd

MOST_GROUPS = 2048
CELLS = 100_000
"""Figures kept at most, over all groups: the more devices there are, the fewer groups."""

PHASES = ("forward", "backward", "optimizer")
"""The parts of a step that have peaks of their own."""

CERTAINTIES: tuple[Certainty, ...] = ("exact", "at least", "sampled")

Table = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class DeviceSteps:
    """The allocated memory of one device in a group of steps, in bytes; NaN if unknown."""

    peak: float  # the highest of a step
    certainty: Certainty  # of `peak`
    lowest: float  # the lowest peak of a step
    worst: int  # the number of the step with the highest peak; 0 if several share it
    worst_tokens: float  # tokens of that step's largest batch, padding included
    after: float  # allocated after the last step
    phases: Mapping[str, float]
    """The highest peak of each of `PHASES` over the steps on which it was measured."""


@dataclass(frozen=True, slots=True)
class StepGroup:
    """One step, or neighbouring steps of one training that were folded."""

    parent: int  # the id of the span around the steps; 0 if there is none
    first: int
    last: int
    start: float  # seconds since the session began
    stop: float
    samples: float  # sum over the steps, like tokens; NaN if unknown
    longest: float  # the longest sequence in tokens
    tokens: float  # with padding
    content_tokens: float  # without
    devices: Mapping[str, DeviceSteps]  # by key


FIGURES = tuple(each.name for each in fields(StepGroup))[:-1]
PER_DEVICE = (*[each.name for each in fields(DeviceSteps)][:-1], *PHASES)

IN_A_FRAME = {"peak": "peak_allocated", **{phase: f"{phase}_phase_peak" for phase in PHASES}}
"""Columns of `PER_DEVICE` that are renamed in a data frame, because series have the same names."""

_PARENT, _FIRST, _LAST, _START, _STOP, _SAMPLES, _LONGEST, _TOKENS, _CONTENT = range(len(FIGURES))
_PEAK, _CERTAINTY, _LOWEST, _WORST, _WORST_TOKENS, _AFTER, *_ = range(len(PER_DEVICE))
_PHASE = PER_DEVICE.index(PHASES[0])
_LATER = [_LAST, _STOP]
_SUMS = [_SAMPLES, _TOKENS, _CONTENT]
_NO_DEVICE = (NOT_AVAILABLE,) * len(PER_DEVICE)


def size_of(counts: Mapping[str, float]) -> int:
    """Return the number of steps in a span with these counts."""
    last = counts.get("step", 0.0)
    return int(last - counts.get("first", last)) + 1


def figures_of_step(step: Span) -> list[float]:
    """Return the `FIGURES` of a finished step, or of steps that share a span."""
    counts = step.counts
    edges = step.parent or 0, counts.get("first", counts["step"]), counts["step"], step.start
    sizes = (counts.get(name, NOT_AVAILABLE) for name in FIGURES[_SAMPLES:])
    return [*edges, step.start + step.duration, *sizes]


def device_figures_of_step(
    step: Span, key: str, column: int | None, phases: Mapping[str, float]
) -> list[float] | None:
    """Return the `PER_DEVICE` of a finished step by the series of its peak; None without one."""
    peak = step.peaks.get(key)
    if peak is None or peak.value <= 0:
        return None
    counts, high = step.counts, peak.value
    tokens = counts.get("largest_batch", counts.get("tokens", NOT_AVAILABLE))
    after = () if step.after is None else step.after.values
    left = NOT_AVAILABLE if column is None or not after else after[column]
    own = (phases.get(kind, NOT_AVAILABLE) for kind in PHASES)
    certainty = CERTAINTIES.index(peak.certainty)
    worst = counts["step"] if size_of(counts) == 1 else 0.0
    return [high, certainty, high, worst, tokens, left, *own]


class Steps(GrowingTable):
    """Finished steps as rows of figures; neighbours of one training are folded if there are many.

    Parameters
    ----------
    most_groups, cells : int
        Most rows and figures kept.

    Attributes
    ----------
    devices : tuple of str
        The keys of the devices whose peaks are kept.
    count : int
        Number of finished steps.
    """

    _compared = ("devices", "count", "table")

    def __init__(self, most_groups: int = MOST_GROUPS, cells: int = CELLS) -> None:
        super().__init__()
        self.devices: tuple[str, ...] = ()
        self.count = 0
        self._most, self._cells = most_groups, cells
        self._size = 1
        self._rows = 0
        self._table: Table = np.empty((64, len(FIGURES)))

    def __repr__(self) -> str:
        steps, rows = format_counted(self.count, "step"), format_counted(len(self), "row")
        return f"<Steps: {steps} in {rows}; devices: {', '.join(self.devices) or 'none'}>"

    def __len__(self) -> int:
        self._settle()
        return self._rows

    def __iter__(self) -> Iterator[StepGroup]:
        # Devices are read before the table: another thread may add one, and a table can have more columns.
        devices = self.devices
        return iter([group_of(row, devices) for row in self.table.tolist()])

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns of `table`: `FIGURES`, then ``device/name`` for each of `PER_DEVICE`."""
        return (*FIGURES, *(f"{device}/{name}" for device in self.devices for name in PER_DEVICE))

    @property
    def table(self) -> Table:
        """All groups, shape ``(groups, columns)``, in order; a view."""
        self._settle()
        return self._table[: self._rows]

    @property
    def ended_at(self) -> float:
        """The end of the newest step, in seconds since the session began; -inf before the first."""
        newest = self.table[-1:, _STOP].tolist()
        return newest[0] if newest else -math.inf

    def peaks_of(self, key: str) -> list[float]:
        """Return the highest peak of each group of a series such as ``cuda:0/allocated``; NaN if unknown."""
        device, _, metric = key.partition("/")
        if metric != "allocated" or device not in self.devices:
            return []
        at = len(FIGURES) + self.devices.index(device) * len(PER_DEVICE) + _PEAK
        peaks: list[float] = self.table[:, at].tolist()
        return peaks

    def add(self, figures: Sequence[float], devices: Mapping[str, Sequence[float]]) -> None:
        """Add a finished step as its `FIGURES`, and by key of a device those `PER_DEVICE`."""
        self.widen(devices)
        self.count += int(figures[_LAST] - figures[_FIRST]) + 1
        row = [*figures]
        for device in self.devices:
            row += devices.get(device, _NO_DEVICE)
        self._wait(row)

    def extend(self, table: Table) -> None:
        """Add finished steps as rows of the present `columns`; the first replaces rows of the same steps."""
        self._settle()
        parent, first, last = table[0, [_PARENT, _FIRST, _LAST]]
        with self._lock:
            while (newest := self._table[self._rows - 1 : self._rows]).size and (
                newest[0, _PARENT] == parent
                and first <= newest[0, _FIRST]
                and newest[0, _LAST] <= last
            ):
                self._rows -= 1
                self.count -= int(sizes_of(newest)[0])
            self.count += int(sizes_of(table).sum())
            self._enter(table)

    def _enter(self, block: Table) -> None:
        # Only the newest group may grow: what is before it has all the steps that it can have.
        first = max(0, self._rows - 1)
        rows = np.concatenate([self._table[first : self._rows], block])
        rows, _ = fitted(rows, len(rows), self._size)
        most = min(self._most, max(8, self._cells // self._table.shape[1]))
        if first + len(rows) > most:
            rows, first = np.concatenate([self._table[:first], rows]), 0
        while len(rows) > most:
            folded, size = fitted(rows, most, self._size)
            if len(folded) <= most:
                rows, self._size = folded, size
            else:  # there are as many trainings: drop the oldest
                rows = rows[most // 2 :]
        while first + len(rows) > len(self._table):
            self._table = np.concatenate([self._table, np.empty_like(self._table)])
        self._rows = first + len(rows)
        self._table[first : self._rows] = rows

    def folded(self, most: int, after: float = -math.inf) -> Table:
        """Return a copy of the groups that ended after `after` seconds, folded to about `most` rows."""
        table = self.table[self.table[:, _STOP] > after].copy()
        if len(table) <= most:
            return table
        # The newest group is not folded: it may still grow, and its reader then replaces the last row.
        folded, _ = fitted(table[:-1], most - 1, self._size)
        return np.concatenate([folded, table[-1:]])[-most:]

    def to_pandas(self) -> pd.DataFrame:
        """Return the table as a data frame, one row a group, one column for each of `columns`.

        The column of a peak is ``cuda:0/peak_allocated``, that of a phase's ``cuda:0/forward_phase_peak``:
        series have the names ``peak`` and ``forward``, and other figures.
        """
        frame = data_frame(self.table.copy(), self.columns)
        frame = frame.astype(dict.fromkeys(("parent", "first", "last"), int))
        new: dict[str, str] = {}
        for device in self.devices:
            certainty = frame[f"{device}/certainty"].map(dict(enumerate(CERTAINTIES)))
            frame[f"{device}/certainty"] = certainty
            new |= {f"{device}/{old}": f"{device}/{name}" for old, name in IN_A_FRAME.items()}
        return frame.rename(columns=new)

    def widen(self, devices: Iterable[str]) -> None:
        """Add the columns of devices that are new."""
        new = tuple(device for device in devices if device not in self.devices)
        if not new:
            return
        self._settle()
        unknown = np.full((len(self._table), len(new) * len(PER_DEVICE)), np.nan)
        # The columns come first: where there is no memory for them, the names stay as they were.
        self._table = np.concatenate([self._table, unknown], axis=1)
        self.devices += new


def _begins(table: Table, size: int) -> NDArray[np.intp]:
    """Return the rows that begin a group: of one training, and of the same `size` steps by their numbers."""
    parent, first, last = (table[:, at] for at in (_PARENT, _FIRST, _LAST))
    part = (first - 1) // size
    is_new = (parent[1:] != parent[:-1]) | (part[1:] != part[:-1]) | (first[1:] <= last[:-1])
    return np.flatnonzero(np.append(True, is_new)[: len(table)])


def fitted(table: Table, most: int, size: int = 1) -> tuple[Table, int]:
    """Return a table in at most `most` groups, or one for each training, and the steps of a group.

    These are `size`, or as many times twice as many as are needed.
    """
    begins, highest = _begins(table, size), table[:, _LAST].max(initial=0.0)
    while len(begins) > most and size < highest:
        size *= 2
        begins = _begins(table, size)
    return (merged(table, begins) if len(begins) < len(table) else table), size


def sizes_of(table: Table) -> Table:
    """Return the number of steps in each row."""
    sizes: Table = table[:, _LAST] - table[:, _FIRST] + 1
    return sizes


def group_of(row: Sequence[float], devices: Sequence[str]) -> StepGroup:
    """Return a row of a table with these devices as a group."""
    parent, first, last, start, stop, samples, longest, tokens, content = row[: len(FIGURES)]
    by_device = {}
    for at, device in enumerate(devices):
        begin = len(FIGURES) + at * len(PER_DEVICE)
        of_device = row[begin : begin + len(PER_DEVICE)]
        peak, certainty, lowest, worst, worst_tokens, after, *highs = of_device
        if math.isnan(peak):
            continue
        peaks = zip(PHASES, highs, strict=True)
        phases = {phase: high for phase, high in peaks if not math.isnan(high)}
        certain, step = CERTAINTIES[int(certainty)], int(worst)
        by_device[device] = DeviceSteps(peak, certain, lowest, step, worst_tokens, after, phases)
    numbers = int(parent), int(first), int(last)
    return StepGroup(*numbers, start, stop, samples, longest, tokens, content, by_device)


def merged(table: Table, begins: NDArray[np.intp]) -> Table:
    """Merge the rows from each of `begins` up to the next; `steps.ts` has the same rules."""
    ends = np.append(begins[1:], len(table)) - 1
    groups: Table = table[begins]
    groups[:, _LATER] = table[ends][:, _LATER]
    groups[:, _SUMS] = np.add.reduceat(table[:, _SUMS], begins)
    groups[:, _LONGEST] = np.fmax.reduceat(table[:, _LONGEST], begins)
    figures = table[:, len(FIGURES) :].reshape(len(table), -1, len(PER_DEVICE))
    peaks = figures[..., _PEAK]
    highest = np.repeat(np.fmax.reduceat(peaks, begins), ends - begins + 1, axis=0)
    at = np.where(peaks == highest, np.arange(len(table))[:, None], len(table))
    worst = np.minimum(np.minimum.reduceat(at, begins), ends[:, None])
    new = np.take_along_axis(figures, worst[..., None], axis=0)
    new[..., _LOWEST] = np.fmin.reduceat(figures[..., _LOWEST], begins)
    new[..., _AFTER] = figures[ends, :, _AFTER]
    new[..., _PHASE:] = np.fmax.reduceat(figures[..., _PHASE:], begins)
    groups[:, len(FIGURES) :] = new.reshape(len(begins), -1)
    return groups
