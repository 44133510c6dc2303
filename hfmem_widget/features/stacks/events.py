"""The newest of many allocations and frees, and the same in the form of the CUDA allocator's snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct
from types import CodeType
from typing import Any

from hfmem_widget.session.stacks import OPERATOR

ACTIONS = ("alloc", "free_requested", "free_completed")

Stack = tuple[tuple[CodeType, int], ...]
"""Code and line of each Python frame, innermost first."""

Made = tuple[str, Stack]
"""An operator, and the stack that led to it; both empty where a block is freed."""

Event = tuple[str, int, int, float, Made]
"""Action, address, bytes, seconds since the epoch, and what made the block."""

LiveBlock = tuple[int, int, Made]
"""Address, bytes, and what made the block, if known."""

Frames = list[dict[str, Any]]

NOWHERE: Made = ("", ())

_EVENT = Struct("<BQQdI")


class EventRing:
    """Keeps the newest events; the oldest make room.

    They are packed. A tuple for each would be an object that Python's garbage collector goes through: it
    would collect far more often than the user's code alone makes it, and an interrupt that comes while it
    collects can get lost.
    """

    def __init__(self, most: int) -> None:
        self.seen = 0  # how many there were
        self._most = most
        self._packed = bytearray()
        self._places: dict[Made, int] = {NOWHERE: 0}
        self._made: list[Made] = [NOWHERE]

    def __len__(self) -> int:
        """Return how many are kept."""
        return min(self.seen, self._most)

    def __iter__(self) -> Iterator[Event]:
        """Yield those that are kept, oldest first."""
        for number in range(self.seen - len(self), self.seen):
            at = number % self._most * _EVENT.size
            action, address, size, time, place = _EVENT.unpack_from(self._packed, at)
            yield ACTIONS[action], address, size, time, self._made[place]

    def place(self, operator: str, stack: Stack) -> int:
        """Return the number of an operator and a stack, the same for equal ones."""
        made = (operator, stack)
        number = self._places.setdefault(made, len(self._made))
        if number == len(self._made):
            self._made.append(made)
        return number

    def made(self, place: int) -> Made:
        """Return the operator and the stack that a number stands for."""
        return self._made[place]

    def add(self, action: int, address: int, size: int, time: float, place: int = 0) -> None:
        """Add an event, by the position of its action in `ACTIONS`."""
        at = self.seen % self._most * _EVENT.size
        if at == len(self._packed):
            self._packed += bytes(_EVENT.size)
        _EVENT.pack_into(self._packed, at, action, address, size, time, place)
        self.seen += 1


def as_snapshot(events: Iterable[Event], blocks: Iterable[LiveBlock]) -> dict[str, Any]:
    """Return events, and what is live after them, as `torch.cuda.memory._snapshot` returns a device's.

    Each block is a segment of its own: how the host's allocator lays them out is unknown.
    """
    frames_of: dict[Made, Frames] = {NOWHERE: []}

    def frames(made: Made) -> Frames:
        # One list for all that share a stack, as the allocator's snapshot has it.
        if made not in frames_of:
            operator, stack = made
            frames_of[made] = [{"filename": OPERATOR, "line": 0, "name": operator}] + [
                {"filename": code.co_filename, "line": line, "name": code.co_qualname}
                for code, line in stack
            ]
        return frames_of[made]

    trace = [
        {
            "action": action,
            "addr": address,
            "size": size,
            "stream": 0,
            "time_us": int(time * 1e6),
            "frames": frames(made),
        }
        for action, address, size, time, made in events
    ]
    return {
        "segments": [_segment(address, size, frames(made)) for address, size, made in blocks],
        "device_traces": [trace],
        "allocator_settings": {},
        "external_annotations": [],
    }


def _segment(address: int, size: int, frames: Frames) -> dict[str, Any]:
    block = {
        "address": address,
        "size": size,
        "requested_size": size,
        "state": "active_allocated",
        "frames": frames,
    }
    return {
        "device": 0,
        "address": address,
        "total_size": size,
        "allocated_size": size,
        "active_size": size,
        "requested_size": size,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": [block],
    }
