"""Every block of a recorded history of allocations, and what was live at its highest moment.

The history is a ring: its oldest events may be gone. A block that was freed in it but never allocated, and
one that is there at its end but was never allocated in it, were there before; what it retains is exact.

A block leaves twice: when its tensor is gone (``free_requested``: no longer *allocated*), and when no stream
uses it any more (``free_completed``: no longer *active*, nor *requested* as the allocator counts that).
Usually both come together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hfmem_widget.session.segments import Block, Event, Frames, blocks_of, events_of

Snapshot = Mapping[str, Any]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Blocks:
    """All blocks of a history, a row each. A moment is a number of events."""

    sizes: Ints  # bytes, as requested
    stacks: Ints  # the positions of their stacks in `frames`
    born: Ints  # the moment it was there; 0 for those from before
    gone: Ints  # the moment it was not there any more; behind the last for those that stayed
    frames: Sequence[Frames | None]  # each stack once; the first is None, that of the unknown


@dataclass(frozen=True, slots=True)
class Replay:
    """A device's history and its highest moment; bytes, and microseconds since the epoch."""

    bytes: int  # allocated then, as requested
    active: int  # the most that was active at any moment, which may be another
    live: Ints  # the rows of `table` that were allocated then
    time_us: int | None  # of that moment; None if unknown, or if it was at the beginning
    allocated: Ints  # bytes at every moment, from before the first event to after the last
    table: Blocks
    times: Sequence[int | None]  # of the events that are retained


def replay(snapshot: Snapshot, device: int) -> Replay:
    """Return what was live on one device at the highest moment of a `torch.cuda.memory._snapshot`."""
    traces = snapshot.get("device_traces", ())
    events = events_of(traces[device]) if device < len(traces) else ()
    segments = snapshot.get("segments", ())
    own = [blocks_of(each) for each in segments if each.get("device", 0) == device]
    table = _table(events, [*chain.from_iterable(own)])
    steps = np.zeros(len(events) + 2, dtype=np.int64)
    np.add.at(steps, table.born, table.sizes)
    np.subtract.at(steps, table.gone, table.sizes)
    allocated = np.cumsum(steps)[:-1]
    position = int(np.argmax(allocated))
    pending = sum(block.requested for blocks in own for block in blocks if block.state == "pending")
    time = events[position - 1].time_us if position else None
    return Replay(
        bytes=int(allocated[position]),
        active=_most_active(events, int(allocated[-1]) + pending),
        live=np.flatnonzero((table.born <= position) & (table.gone > position)),
        time_us=time,
        allocated=allocated,
        table=table,
        times=[event.time_us for event in events],
    )


class _Stacks:
    """Each stack once: a snapshot has each frame once, but may have as many lists of them as blocks."""

    def __init__(self) -> None:
        self.frames: list[Frames | None] = [None]
        self._by_frames: dict[tuple[int, ...], int] = {}
        self._by_list: dict[int, int] = {id(None): 0}

    def place(self, stack: Frames | None) -> int:
        """Return the position of a stack in `frames`."""
        place = self._by_list.get(id(stack), -1)
        if place < 0 and stack is not None:
            key = tuple(map(id, stack))
            place = self._by_frames.setdefault(key, len(self.frames))
            self._by_list[id(stack)] = place
            if place == len(self.frames):
                self.frames.append(stack)
        return place


def _table(events: Sequence[Event], at_the_end: Sequence[Block]) -> Blocks:
    known = _Stacks()
    sizes: list[int] = []
    stacks: list[int] = []
    born: list[int] = []
    gone: list[int] = []
    live: dict[int, int] = {}
    never = len(events) + 1

    def add(size: int, stack: Frames | None, since: int, until: int) -> None:
        sizes.append(size)
        stacks.append(known.place(stack))
        born.append(since)
        gone.append(until)

    for at, (action, address, size, _, stack) in enumerate(events, 1):
        if action == "alloc":
            row = live.pop(address, None)
            if row is not None:  # that it went was not recorded
                gone[row] = at
            live[address] = len(sizes)
            add(size, stack, at, never)
        elif action == "free_requested":
            row = live.pop(address, None)
            if row is None:
                add(size, None, 0, at)
            else:
                gone[row] = at
    for block in at_the_end:
        # A block that is still there keeps its stack, even where its event has made room for others.
        if block.state == "allocated" and block.address not in live:
            add(block.requested, block.frames or None, 0, never)
    of_sizes, of_stacks, births, ends = (
        np.array(column, dtype=np.int64) for column in (sizes, stacks, born, gone)
    )
    return Blocks(of_sizes, of_stacks, births, ends, known.frames)


def _most_active(events: Sequence[Event], at_the_end: int) -> int:
    """Return the most that was active, from what was at the end: each event is undone."""
    active = most = at_the_end
    for action, _, size, *_ in reversed(events):
        if action == "alloc":
            active -= size
        elif action == "free_completed":
            active += size
            most = max(most, active)
    return most
