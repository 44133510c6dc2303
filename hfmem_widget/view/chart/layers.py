"""What the allocated bytes were made of over time, stacked: every instant's parts together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hfmem_widget.analysis.curve import Points, chosen_rows
from hfmem_widget.session import HELD, Device, Session, Timeline
from hfmem_widget.session.series import PARTS

STACK = tuple(name for name, row in PARTS.items() if row.stacked)
"""From the bottom to the top. What rounding adds is too little to be seen."""

_ON_HOST = tuple(sorted(STACK, key=lambda name: name != "unattributed"))
"""There what is not attributed is the process itself, and as good as constant."""

SLIVER = 0.002
"""A layer that is never as high as this share of the stack is not drawn."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Layer:
    """One part of the stack.

    Attributes
    ----------
    name : str
        One of `STACK`.
    runs : tuple of list
        Its upper edge between breaks.
    heights : tuple of list of float
        The bytes of the part itself at each of these points.
    """

    name: str
    runs: tuple[Points, ...]
    heights: tuple[list[float], ...]

    @property
    def label(self) -> str:
        """What people read."""
        return PARTS[self.name].label

    @property
    def short_label(self) -> str:
        """What people read in a legend, whose columns are all as wide as its longest name."""
        return PARTS[self.name].short or self.label


def layers_of(session: Session) -> int:
    """Return how many layers a stack of a session may have at most."""
    metrics = {series.metric for series in session.series} & set(HELD)
    return len(metrics) + len(STACK) - len(HELD) if metrics else 0


def stack_of(device: str) -> tuple[str, ...]:
    """Return the parts of a device from the bottom to the top, by the device's key."""
    return STACK if ":" in device else _ON_HOST


def layers(
    session: Session, device: Device, part: Timeline, view: tuple[float, float], *, columns: int
) -> tuple[Layer, ...]:
    """Return the stack of a device's parts, from the bottom to the top; empty where none is known.

    The rows that the allocated line is drawn by decide for all parts, so that what stands above each
    other was there at once. The top of the stack is always the allocated line.

    Parameters
    ----------
    part : Timeline
        The rows within `view`, which is from when to when.
    columns : int
        How finely time is resolved.
    """
    start, stop = view

    def index(metric: str) -> int | None:
        at = session.index(f"{device.key}/{metric}")
        return at if at is not None and at < part.width else None

    held = {name: at for name in HELD if (at := index(name)) is not None}
    own = index("allocated")
    if own is None or not any((part.high[:, at] > 0).any() for at in held.values()):
        return ()
    order = stack_of(device.key)
    runs: dict[str, list[Points]] = {name: [] for name in order}
    heights: dict[str, list[list[float]]] = {name: [] for name in order}
    for chosen in chosen_rows(part, own, start, stop, columns=columns):
        rows, is_high = np.array(chosen).T
        read = np.where(is_high[:, None], part.high[rows], part.low[rows])
        found = {name: np.nan_to_num(read[:, at]) for name, at in held.items()}
        before = index("unattributed")
        unattributed = np.full(len(rows), np.nan) if before is None else read[:, before]
        time = part.time[rows].clip(start, stop) - start
        edge = np.zeros(len(rows))
        known = heights_of(read[:, own], found, unattributed)
        for name in order:
            edge = edge + known[name]
            runs[name].append(list(zip(time.tolist(), edge.tolist(), strict=True)))
            heights[name].append(known[name].tolist())
    least = SLIVER * max((edge for run in runs[order[-1]] for _, edge in run), default=0.0)
    return tuple(
        Layer(name, tuple(runs[name]), tuple(heights[name]))
        for name in order
        if max(map(max, heights[name]), default=0.0) > least
    )


def heights_of(
    allocated: Floats, found: dict[str, Floats], unattributed: Floats
) -> dict[str, Floats]:
    """Return how high each layer is; of what exceeds the allocated bytes the last of `STACK` is cut first."""
    room = allocated
    heights = {}
    for name in STACK:
        if name == "unattributed":
            wanted = np.where(np.isnan(unattributed), room, unattributed)
        else:
            wanted = room if name == "activations" else found.get(name, np.zeros(len(room)))
        heights[name] = np.clip(wanted, 0.0, room)
        room = room - heights[name]
    return heights
