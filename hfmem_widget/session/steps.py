"""The steps of a run of any length in a fixed amount of memory, the worst of them exact."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hfmem_widget.session.model import NOT_AVAILABLE, Certainty

if TYPE_CHECKING:
    import pandas as pd

MOST_GROUPS = 2048
CELLS = 100_000
"""Figures kept at most, over all groups: the more devices there are, the fewer groups."""

PHASES = ("forward", "backward", "optimizer")
"""The parts of a step whose peaks are told apart."""

CERTAINTIES: tuple[Certainty, ...] = ("exact", "at least", "sampled")

FIGURES = (
    "parent",
    "first",
    "last",
    "start",
    "stop",
    "samples",
    "longest",
    "tokens",
    "content_tokens",
)
PER_DEVICE = ("peak", "certainty", "lowest", "worst", "worst_tokens", "after", *PHASES)

IN_A_FRAME: Mapping[str, str] = MappingProxyType(
    {"peak": "peak_allocated", **{phase: f"{phase}_phase_peak" for phase in PHASES}}
)
"""What columns of a data frame are called, where that is not as in `PER_DEVICE`: series have those names."""

_PARENT, _FIRST, _LAST, _START, _STOP, _SAMPLES, _LONGEST, _TOKENS, _CONTENT = range(len(FIGURES))
_PEAK, _CERTAINTY, _LOWEST, _WORST, _WORST_TOKENS, _AFTER, *_ = range(len(PER_DEVICE))
_PHASE = PER_DEVICE.index(PHASES[0])
_ALL = np.zeros(1, dtype=np.intp)
"""Where the one run begins that all rows are."""

_LATER = [_LAST, _STOP]
_SUMS = [_SAMPLES, _TOKENS, _CONTENT]

Table = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class DeviceSteps:
    """What a group of steps did to the allocated memory of one device, in bytes; NaN if unknown.

    Attributes
    ----------
    peak : float
        The highest peak of its steps, and `certainty` how it is known.
    lowest : float
        The lowest peak of its steps.
    worst : int
        The number of the step that had the highest.
    worst_tokens : float
        Tokens of that step's largest batch, padding included.
    after : float
        Allocated after the last of its steps.
    phases : mapping of str to float
        The highest peak of each of `PHASES`.
    """

    peak: float
    certainty: Certainty
    lowest: float
    worst: int
    worst_tokens: float
    after: float
    phases: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class StepGroup:
    """One step, or neighbouring steps of one run that were folded together.

    Attributes
    ----------
    parent : int
        The id of the span the steps were made in; 0 if there is none.
    first, last : int
        Their numbers.
    start, stop : float
        Seconds since the session began.
    samples, tokens, content_tokens : float
        Sums over the steps; `tokens` with padding, `content_tokens` without. NaN if unknown.
    longest : float
        Longest sequence in tokens.
    devices : mapping of str to DeviceSteps
        By device key.
    """

    parent: int
    first: int
    last: int
    start: float
    stop: float
    samples: float
    longest: float
    tokens: float
    content_tokens: float
    devices: Mapping[str, DeviceSteps]


class Steps:
    """Finished steps as rows of figures; neighbours of one run fold together when there are many.

    Parameters
    ----------
    most_groups : int
        Most rows kept.

    Attributes
    ----------
    devices : tuple of str
        Whose peaks are kept, by key.
    count : int
        Steps made.
    """

    def __init__(self, most_groups: int = MOST_GROUPS) -> None:
        self.devices: tuple[str, ...] = ()
        self.count = 0
        self._most = most_groups
        self._size = 1
        self._in_last = 0
        self._rows = 0
        self._table: Table = np.empty((64, len(FIGURES)))

    @classmethod
    def from_table(
        cls, devices: Sequence[str], table: ArrayLike, count: int, most_groups: int = MOST_GROUPS
    ) -> Self:
        """Return the steps of a table that there is already, with these devices' columns; it is copied.

        Parameters
        ----------
        devices : sequence of str
        table : array-like, shape (groups, columns)
            As the property.
        count : int
            Steps made.
        most_groups : int, optional
        """
        made = cls(most_groups)
        made.devices, made.count = tuple(devices), count
        rows = np.array(table, dtype=np.float64).reshape(-1, len(made.columns))
        made._rows = len(rows)
        made._table = np.concatenate([rows, np.empty((64, len(made.columns)))])
        in_each = rows[:, _LAST] - rows[:, _FIRST] + 1
        made._size = int(in_each.max(initial=1))
        made._in_last = int(in_each[-1]) if len(rows) else 0
        return made

    def __len__(self) -> int:
        return self._rows

    def __iter__(self) -> Iterator[StepGroup]:
        # The names before the figures: another thread may add a device, and then its columns are there.
        devices = self.devices
        return iter([group_of(row, devices) for row in self.table.tolist()])

    def __eq__(self, other: object) -> bool:
        """Whether both have the same groups; how many more they take is no matter."""
        if not isinstance(other, Steps):
            return NotImplemented
        return (self.devices, self.count) == (other.devices, other.count) and np.array_equal(
            self.table, other.table, equal_nan=True
        )

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_table": self._table.copy()}

    @property
    def columns(self) -> tuple[str, ...]:
        """What each column of `table` is: `FIGURES`, then ``device/name`` for each of `PER_DEVICE`."""
        return (*FIGURES, *(f"{device}/{name}" for device in self.devices for name in PER_DEVICE))

    @property
    def table(self) -> Table:
        """All groups, shape ``(groups, columns)``, in order; a view."""
        table: Table = self._table[: self._rows]
        return table

    @property
    def ended_at(self) -> float:
        """When the newest step ended, in seconds since the session began; -inf before the first."""
        return float(self._table[self._rows - 1, _STOP]) if self._rows else -math.inf

    def append(self, group: StepGroup) -> None:
        """Add a finished step."""
        self._widen(group.devices)
        row = row_of(group, self.devices)
        self.count += 1
        last = self._table[self._rows - 1 : self._rows]
        if self._rows and self._in_last < self._size and last[0, _PARENT] == group.parent:
            last[:] = _merged(np.stack([last[0], row]), _ALL)
            self._in_last += 1
            return
        if self._rows >= min(self._most, max(8, CELLS // self._table.shape[1])):
            self._make_room()
        if self._rows == len(self._table):
            self._table = np.concatenate([self._table, np.empty_like(self._table)])
        self._table[self._rows] = row
        self._rows += 1
        self._in_last = 1

    def folded(self, most: int, after: float = -math.inf) -> Table:
        """Return the groups that ended after some second as at most about `most` rows, as a copy.

        The newest stays apart: it may still grow, and whoever holds it replaces it by what it became.
        """
        table = self.table[self.table[:, _STOP] > after].copy()
        while len(table) > most:
            shorter = np.concatenate([self._fold(table[:-1]), table[-1:]])
            if len(shorter) == len(table):
                return table[-most:]
            table = shorter
        return table

    def to_pandas(self, *, old_names: bool = False) -> pd.DataFrame:
        """Return the table as a data frame, one row a group, one column for each of `columns`.

        Parameters
        ----------
        old_names : bool, optional
            Name columns as before 0.1: ``cuda:0/peak`` for ``cuda:0/peak_allocated``, and ``cuda:0/forward``
            for ``cuda:0/forward_phase_peak``. Series have these names too, for other figures.
        """
        import pandas as pd

        frame = pd.DataFrame(self.table.copy(), columns=list(self.columns))
        numbers = [FIGURES[column] for column in (_PARENT, _FIRST, _LAST)]
        frame = frame.astype(dict.fromkeys(numbers, int))
        for device in self.devices:
            known = frame[f"{device}/certainty"].map(dict(enumerate(CERTAINTIES)))
            frame[f"{device}/certainty"] = known
        new = {
            f"{device}/{old}": f"{device}/{name}"
            for device in self.devices
            for old, name in IN_A_FRAME.items()
        }
        return with_old_names(frame) if old_names else frame.rename(columns=new)

    def _make_room(self) -> None:
        folded = self._fold(self.table)
        if len(folded) == self._rows:  # every step in a run of its own: the oldest go
            folded = folded[self._rows // 2 :]
        else:
            self._size *= 2
        self._rows = len(folded)
        self._table[: self._rows] = folded

    def _fold(self, table: Table) -> Table:
        """Merge neighbours that have the same parent, two by two."""
        at = np.arange(len(table))
        begins = np.concatenate([[True], table[1:, _PARENT] != table[:-1, _PARENT]])
        place = at - np.maximum.accumulate(np.where(begins, at, 0))
        return _merged(table, at[place % 2 == 0])

    def _widen(self, devices: Mapping[str, DeviceSteps]) -> None:
        new = tuple(device for device in devices if device not in self.devices)
        if new:
            unknown = np.full((len(self._table), len(new) * len(PER_DEVICE)), np.nan)
            # The names once there are columns for them: there may be no memory for these.
            self._table = np.concatenate([self._table, unknown], axis=1)
            self.devices += new


def joined(groups: Sequence[StepGroup]) -> StepGroup:
    """Return neighbouring groups as one, by the rules that a table folds by."""
    if len(groups) == 1:
        return groups[0]
    devices = tuple(dict.fromkeys(device for group in groups for device in group.devices))
    table = np.array([row_of(group, devices) for group in groups])
    return group_of(_merged(table, _ALL)[0].tolist(), devices)


def row_of(group: StepGroup, devices: Sequence[str]) -> Table:
    """Return a group as a row of a table of some devices."""
    row: list[float] = [getattr(group, name) for name in FIGURES]
    for device in devices:
        known = group.devices.get(device)
        row += [NOT_AVAILABLE] * len(PER_DEVICE) if known is None else _figures(known)
    return np.array(row, dtype=np.float64)


def group_of(row: Sequence[float], devices: Sequence[str]) -> StepGroup:
    """Return the group that a row of a table of some devices is."""
    parent, first, last, start, stop, samples, longest, tokens, content = row[: len(FIGURES)]
    known = {}
    for at, device in enumerate(devices):
        begin = len(FIGURES) + at * len(PER_DEVICE)
        of_device = row[begin : begin + len(PER_DEVICE)]
        if not math.isnan(of_device[_PEAK]):
            known[device] = _device_steps(of_device)
    numbers = int(parent), int(first), int(last)
    return StepGroup(*numbers, start, stop, samples, longest, tokens, content, known)


def _merged(table: Table, begins: NDArray[np.intp]) -> Table:
    """Merge the rows from each of `begins` up to the next one's; the live chart's rules are in `steps.ts`."""
    ends = np.append(begins[1:], len(table)) - 1
    merged: Table = table[begins]
    merged[:, _LATER] = table[ends][:, _LATER]
    merged[:, _SUMS] = np.add.reduceat(table[:, _SUMS], begins)
    merged[:, _LONGEST] = np.fmax.reduceat(table[:, _LONGEST], begins)
    figures = table[:, len(FIGURES) :].reshape(len(table), -1, len(PER_DEVICE))
    peaks = figures[..., _PEAK]
    highest = np.repeat(np.fmax.reduceat(peaks, begins), ends - begins + 1, axis=0)
    at = np.where(peaks == highest, np.arange(len(table))[:, None], len(table))
    worst = np.minimum(np.minimum.reduceat(at, begins), ends[:, None])
    new = np.take_along_axis(figures, worst[..., None], axis=0)
    new[..., _LOWEST] = np.fmin.reduceat(figures[..., _LOWEST], begins)
    new[..., _AFTER] = figures[ends, :, _AFTER]
    new[..., _PHASE:] = np.fmax.reduceat(figures[..., _PHASE:], begins)
    merged[:, len(FIGURES) :] = new.reshape(len(begins), -1)
    return merged


def with_old_names(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a data frame whose columns have the names that go with the next release, and say so."""
    message = "old_names=True will be removed in the next release; docs/README.md lists all columns"
    warnings.warn(message, FutureWarning, stacklevel=3)
    return frame


def _figures(known: DeviceSteps) -> list[float]:
    phases = [known.phases.get(phase, NOT_AVAILABLE) for phase in PHASES]
    certainty = float(CERTAINTIES.index(known.certainty))
    worst = (float(known.worst), known.worst_tokens)
    return [known.peak, certainty, known.lowest, *worst, known.after, *phases]


def _device_steps(figures: Sequence[float]) -> DeviceSteps:
    peak, certainty, lowest, worst, worst_tokens, after, *phases = figures
    return DeviceSteps(
        peak,
        CERTAINTIES[int(certainty)],
        lowest,
        int(worst),
        worst_tokens,
        after,
        {
            phase: value
            for phase, value in zip(PHASES, phases, strict=True)
            if not math.isnan(value)
        },
    )
