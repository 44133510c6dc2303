"""What was live at the highest moment of a recorded history of allocations.

The history is a ring: its oldest events may be gone. So it is walked backwards from the state at its end, and
each event is undone; what it retains is exact.

A block leaves twice: when its tensor is gone (``free_requested``: no longer *allocated*), and when no stream
uses it any more (``free_completed``: no longer *active*, nor *requested* as the allocator counts that).
Usually both come together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Event = Mapping[str, Any]
Frames = Sequence[Mapping[str, Any]]
Snapshot = Mapping[str, Any]

_PENDING = {"active_pending_free", "active_awaiting_free"}


@dataclass(frozen=True, slots=True)
class LiveBlock:
    """One block that was live at the peak."""

    address: int
    size: int  # bytes, as requested
    frames: Frames  # filename, line and name of each, innermost first; empty if none were recorded
    # False if it is older than the first event that is retained, and its stack is unknown.
    seen: bool


@dataclass(frozen=True, slots=True)
class Replay:
    """The highest moment of a device's history; bytes, and microseconds since the epoch."""

    bytes: int  # allocated then, as requested: the sum of `blocks`
    active: int  # the most that was active at any moment, which may be another
    blocks: tuple[LiveBlock, ...]
    time_us: int | None  # of that moment; None if unknown, or if it was at the beginning
    first_us: int | None  # of the first event that is retained
    events: int


def replay(snapshot: Snapshot, device: int) -> Replay:
    """Return what was live on one device at the first of the highest moments that a snapshot retains.

    The snapshot is as `torch.cuda.memory._snapshot` returns it.
    """
    traces = snapshot.get("device_traces", ())
    events: Sequence[Event] = traces[device] if device < len(traces) else ()
    segments = snapshot.get("segments", ())
    own = (segment["blocks"] for segment in segments if segment.get("device", 0) == device)
    blocks = {block["address"]: block for each in own for block in each}  # those at the end
    highest, active, position = _highest(events, blocks)
    live = _live_after(events, blocks, position)
    times = [event.get("time_us") for event in events[position - 1 : position]]
    return Replay(
        bytes=highest,
        active=active,
        blocks=_with_stacks(events, position, live, blocks),
        time_us=times[0] if times else None,
        first_us=events[0].get("time_us") if events else None,
        events=len(events),
    )


def _size_of(block: Mapping[str, Any]) -> int:
    return int(block.get("requested_size") or block["size"])


def _highest(
    events: Sequence[Event], blocks: Mapping[int, Mapping[str, Any]]
) -> tuple[int, int, int]:
    """Return the most allocated, the most active, and after how many events the former was reached."""
    states = [(block["state"], _size_of(block)) for block in blocks.values()]
    allocated = sum(size for state, size in states if state == "active_allocated")
    active = allocated + sum(size for state, size in states if state in _PENDING)
    highest, most_active, position = allocated, active, len(events)
    for at in range(len(events) - 1, -1, -1):
        action, size = events[at]["action"], events[at].get("size", 0)
        if action == "alloc":
            allocated -= size
            active -= size
        elif action == "free_requested":
            allocated += size
        elif action == "free_completed":
            active += size
        else:
            continue
        most_active = max(most_active, active)
        if allocated >= highest:
            highest, position = allocated, at
    return highest, most_active, position


def _live_after(
    events: Sequence[Event], blocks: Mapping[int, Mapping[str, Any]], position: int
) -> dict[int, int]:
    """Return sizes by address of what was allocated after so many events."""
    live = {
        address: _size_of(block)
        for address, block in blocks.items()
        if block["state"] == "active_allocated"
    }
    for event in reversed(events[position:]):
        if event["action"] == "alloc":
            live.pop(event["addr"], None)
        elif event["action"] == "free_requested":
            live[event["addr"]] = event["size"]
    return live


def _with_stacks(
    events: Sequence[Event],
    position: int,
    live: Mapping[int, int],
    blocks: Mapping[int, Mapping[str, Any]],
) -> tuple[LiveBlock, ...]:
    """Return the live blocks with the stacks that allocated them: each one's last event before the peak."""
    sought = dict(live)
    live_blocks: list[LiveBlock] = []
    for event in reversed(events[:position]):
        if not sought:
            break
        if event["action"] == "alloc" and event["addr"] in sought:
            size = sought.pop(event["addr"])
            live_blocks.append(LiveBlock(event["addr"], size, event.get("frames") or (), seen=True))
    reused = {event["addr"] for event in events[position:] if event["action"] == "alloc"}
    for address, size in sought.items():
        # A block that is still there keeps its stack, even where its event has made room for others.
        kept = {} if address in reused else blocks.get(address, {})
        frames = kept.get("frames") or ()
        live_blocks.append(LiveBlock(address, size, frames, seen=bool(frames)))
    return tuple(live_blocks)
