"""The live blocks of a recorded history of allocations, at its highest moment and over time.

The history is a ring whose oldest events may be overwritten; it is exact for the events that it has. A block
that it frees, or that is live at its end, but that it does not allocate existed before.

A block is freed in two steps: first its tensor is destroyed (``free_requested``: no longer *allocated*), then
its last stream is done (``free_completed``: no longer *active*, nor *requested* in the allocator's counters).
Usually both come together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hfmem_widget.features.stacks.call_sites import place_of
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.session.segments import Block, Event, Frames, blocks_of, events_of
from hfmem_widget.session.stacks import BEFORE, BY, Band, By, LivePeak, OverTime, Site
from hfmem_widget.sources.heap.roots import cells_of
from hfmem_widget.view.front_end import running_shell

Snapshot = Mapping[str, Any]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Blocks:
    """All blocks of a history, a row each. A moment is a number of events."""

    sizes: Ints  # bytes, as requested
    stacks: Ints  # the positions of their stacks in `frames`
    born: Ints  # the moments of their allocation; 0 for blocks from before the history
    gone: Ints  # the moments of their release; after the last moment for blocks that stayed
    frames: Sequence[Frames | None]  # each stack once; the first is None, for an unknown one


@dataclass(frozen=True, slots=True)
class Replay:
    """A device's history and its highest moment; bytes, and microseconds since the epoch."""

    bytes: int  # allocated at the highest moment, as requested
    active: int  # the highest active bytes, which may be of another moment
    live: Ints  # the rows of `table` that were allocated at the highest moment
    time_us: int | None  # of the highest moment; None if unknown, or if it was the beginning
    allocated: Ints  # bytes at every moment, from before the first event to after the last
    table: Blocks
    times: Sequence[int | None]  # of the events that are retained


def replay(snapshot: Snapshot, device: int) -> Replay:
    """Return one device's history in a `torch.cuda.memory._snapshot`, and its highest moment."""
    traces = snapshot.get("device_traces", ())
    events = events_of(traces[device]) if device < len(traces) else ()
    segments = snapshot.get("segments", ())
    own = [blocks_of(segment) for segment in segments if segment.get("device", 0) == device]
    table = _table(events, [*chain.from_iterable(own)])
    allocated = _held(table, slice(None), len(events) + 1)
    position = int(np.argmax(allocated))
    pending = sum(block.requested for blocks in own for block in blocks if block.state == "pending")
    return Replay(
        bytes=int(allocated[position]),
        active=_most_active(events, int(allocated[-1]) + pending),
        live=np.flatnonzero((table.born <= position) & (table.gone > position)),
        time_us=events[position - 1].time_us if position else None,
        allocated=allocated,
        table=table,
        times=[event.time_us for event in events],
    )


def _table(events: Sequence[Event], at_the_end: Sequence[Block]) -> Blocks:
    # Equal stacks have the same frames: a snapshot has each once, but often a list of them for each block.
    known: dict[tuple[int, ...] | None, int] = {None: 0}
    frames: list[Frames | None] = [None]
    sizes: list[int] = []
    stacks: list[int] = []
    born: list[int] = []
    gone: list[int] = []
    live: dict[int, int] = {}
    never = len(events) + 1

    def add(size: int, stack: Frames | None, since: int, until: int) -> None:
        key = None if stack is None else tuple(map(id, stack))
        place = known.setdefault(key, len(frames))
        if place == len(frames):
            frames.append(stack)
        sizes.append(size)
        stacks.append(place)
        born.append(since)
        gone.append(until)

    for at, (action, address, size, _, stack) in enumerate(events, 1):
        if action == "alloc":
            row = live.pop(address, None)
            if row is not None:  # its release was not recorded
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
        # A live block has its stack even if its event was overwritten.
        if block.state == "allocated" and block.address not in live:
            add(block.requested, block.frames or None, 0, never)
    of_sizes, of_stacks, births, ends = (
        np.array(column, dtype=np.int64) for column in (sizes, stacks, born, gone)
    )
    return Blocks(of_sizes, of_stacks, births, ends, frames)


def _held(table: Blocks, rows: slice | NDArray[np.bool_], count: int) -> Ints:
    """Return the bytes of some of the blocks at each of the first `count` moments."""
    steps = np.zeros(count + 1, dtype=np.int64)
    np.add.at(steps, table.born[rows], table.sizes[rows])
    np.subtract.at(steps, table.gone[rows], table.sizes[rows])
    return np.cumsum(steps)[:-1]


def _most_active(events: Sequence[Event], at_the_end: int) -> int:
    """Return the highest active bytes, computed backwards from those at the end."""
    active = most = at_the_end
    for action, _, size, *_ in reversed(events):
        if action == "alloc":
            active -= size
        elif action == "free_completed":
            active += size
            most = max(most, active)
    return most


MOST_MOMENTS = 480
MOST_BANDS = 12  # including that of earlier memory and that of the rest
OTHERS = "others"


def live_peak(history: Replay, device: str) -> LivePeak:
    """Return the live memory at a device's peak and over time; seconds since the first event."""
    cells, at = cells_of(running_shell()), history.time_us
    first = next(iter(history.times), None)
    places = [place_of(frames, cells) for frames in history.table.frames]
    return LivePeak(
        device=device,
        bytes=history.bytes,
        highest=history.active,
        sites=sites_of(history, places),
        time=NOT_AVAILABLE if at is None or first is None else (at - first) / 1e6,
        entries=len(history.times),
        over_time=over_time(history, places) if history.times else None,
    )


def over_time(
    history: Replay, places: Sequence[Site], most_moments: int = MOST_MOMENTS
) -> OverTime:
    """Return the allocated bytes of a history by place of allocation; `places` are those of its stacks.

    The bands add up to the byte. If there are more moments than `most_moments`, the highest, lowest, first
    and last of each of equal stretches of time remain. Seconds are since the first event.
    """
    times, is_timed = _times(history)
    moments = _chosen(history.allocated, times, most_moments)
    allocated = history.allocated[moments]
    return OverTime(
        moments=tuple((times[moments] / (1e6 if is_timed else 1)).tolist()),
        is_timed=is_timed,
        allocated=tuple(allocated.tolist()),
        bands={by: _bands(history, places, by, moments) for by in BY},
    )


def _times(history: Replay) -> tuple[Ints, bool]:
    """Return the moments in microseconds since the first event, and True; or their numbers, and False."""
    known = [time for time in history.times if time is not None]
    if not known or len(known) < len(history.times) or max(known) <= min(known):
        return np.arange(len(history.allocated)), False
    since = np.maximum.accumulate(np.array(known, dtype=np.int64) - known[0])
    return np.concatenate((since[:1], since)), True


def _chosen(allocated: Ints, times: Ints, most: int) -> Ints:
    if len(allocated) <= most:
        return np.arange(len(allocated))
    columns = most // 4
    column = np.minimum(times * columns // max(1, int(times[-1])), columns - 1)
    starts = np.flatnonzero(np.diff(column, prepend=-1))
    chosen: set[int] = set()
    for start, stop in zip(starts, [*starts[1:], len(allocated)], strict=True):
        part = allocated[start:stop]
        chosen |= {int(start), int(stop) - 1}
        chosen |= {int(start + np.argmax(part)), int(start + np.argmin(part))}
    return np.array(sorted(chosen))


def _bands(history: Replay, places: Sequence[Site], by: By, moments: Ints) -> tuple[Band, ...]:
    names: dict[str, int] = {BEFORE: 0}
    group_of_place = [names.setdefault(getattr(place, by), len(names)) for place in places]
    groups = np.array(group_of_place, dtype=np.int64)[history.table.stacks]
    sources = dict(zip(group_of_place, (place.source for place in places), strict=True))
    known = []
    for name, group in names.items():
        held = _held(history.table, groups == group, len(history.allocated))
        source = sources[group] if by == "line" else ""
        known.append(Band(name, tuple(held[moments].tolist()), int(held.max()), source))
    earlier, *later = (band for band in known if band.highest or band.name == BEFORE)
    later.sort(key=lambda band: -band.highest)
    bands = [earlier] * bool(earlier.highest) + later[: MOST_BANDS - 2]
    rest = history.allocated[moments] - np.sum([band.sizes for band in bands], axis=0, dtype=int)
    if rest.any():
        bands.append(Band(OTHERS, tuple(rest.tolist()), int(rest.max())))
    return tuple(bands)


def sites_of(history: Replay, places: Sequence[Site]) -> tuple[Site, ...]:
    """Return the live memory at the peak by place of allocation, largest first."""
    sizes: dict[Site, list[int]] = defaultdict(list)
    for row in history.live.tolist():
        sizes[places[history.table.stacks[row]]].append(int(history.table.sizes[row]))
    sites = (replace(place, bytes=sum(own), blocks=len(own)) for place, own in sizes.items())
    return tuple(sorted(sites, key=lambda site: -site.bytes))
