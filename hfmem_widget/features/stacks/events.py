"""The newest of many allocations and frees, and the same in the form of the CUDA allocator's snapshot."""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from types import CodeType
from typing import Any

from hfmem_widget.session.stacks import OPERATOR

ACTIONS = ("alloc", "free_requested", "free_completed")

Stack = tuple[tuple[CodeType, int], ...]
"""Code and line of each Python frame, innermost first."""

Frames = list[dict[str, Any]]

NOWHERE = 0  # the place of a block of which neither operator nor stack is known

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
        # The numbers of operators with the stacks that led to them, in their order.
        self._places: dict[tuple[str, Stack], int] = {("", ()): NOWHERE}

    def __len__(self) -> int:
        """Return how many are kept."""
        return min(self.seen, self._most)

    def place(self, operator: str, stack: Stack) -> int:
        """Return the number of an operator and a stack, the same for equal ones."""
        return self._places.setdefault((operator, stack), len(self._places))

    def add(self, action: int, address: int, size: int, time: float, place: int = NOWHERE) -> None:
        """Add an event, by the position of its action in `ACTIONS`."""
        at = self.seen % self._most * _EVENT.size
        if at == len(self._packed):
            self._packed += bytes(_EVENT.size)
        _EVENT.pack_into(self._packed, at, action, address, size, time, place)
        self.seen += 1

    def snapshot(self, live: Iterable[tuple[int, int, int]]) -> dict[str, Any]:
        """Return what is kept as `torch.cuda.memory._snapshot` returns a device's.

        `live` are the blocks that are live after it: address, bytes and place of each. Each is a segment of
        its own: how the host's allocator lays them out is unknown.
        """
        # One list for all that share a stack, as the allocator's snapshot has it.
        frames = [_frames(operator, stack) for operator, stack in self._places]
        trace = []
        for number in range(self.seen - len(self), self.seen):
            at = number % self._most * _EVENT.size
            action, address, size, time, place = _EVENT.unpack_from(self._packed, at)
            event = {"action": ACTIONS[action], "addr": address, "size": size, "stream": 0}
            trace.append(event | {"time_us": int(time * 1e6), "frames": frames[place]})
        return {
            "segments": [_segment(address, size, frames[place]) for address, size, place in live],
            "device_traces": [trace],
            "allocator_settings": {},
            "external_annotations": [],
        }


def _frames(operator: str, stack: Stack) -> Frames:
    innermost = [{"filename": OPERATOR, "line": 0, "name": operator}] if operator else []
    return innermost + [
        {"filename": code.co_filename, "line": line, "name": code.co_qualname}
        for code, line in stack
    ]


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
