"""What a tracker has seen, in the form of the CUDA allocator's snapshot: what reads one reads the other."""

from __future__ import annotations

from collections.abc import Iterable
from types import CodeType
from typing import Any

from hfmem_widget.session.stacks import OPERATOR

Stack = tuple[tuple[CodeType, int], ...]
"""Code and line of each Python frame, innermost first."""

Event = tuple[str, int, int, float, str, Stack]
"""Action, address, bytes, seconds since the epoch, operator, stack; both empty where a block is freed."""

LiveBlock = tuple[int, int, str, Stack]
"""Address, bytes, operator and stack; the last two empty where they are not known."""

Frames = list[dict[str, Any]]


def as_snapshot(events: Iterable[Event], blocks: Iterable[LiveBlock]) -> dict[str, Any]:
    """Return events, and what is live after them, as `torch.cuda.memory._snapshot` returns a device's.

    Each block is a segment of its own: of how the host's allocator lays them out nothing is known.
    """
    named: dict[tuple[str, Stack], Frames] = {}

    def frames(operator: str, stack: Stack) -> Frames:
        # One list for all that share a stack, as the allocator's snapshot has it.
        if not operator:
            return []
        if (operator, stack) not in named:
            named[operator, stack] = _frames(operator, stack)
        return named[operator, stack]

    trace = [
        {
            "action": action,
            "addr": address,
            "size": size,
            "stream": 0,
            "time_us": int(when * 1e6),
            "frames": frames(operator, stack),
        }
        for action, address, size, when, operator, stack in events
    ]
    return {
        "segments": [_segment(one[0], one[1], frames(one[2], one[3])) for one in blocks],
        "device_traces": [trace],
        "allocator_settings": {},
        "external_annotations": [],
    }


def _frames(operator: str, stack: Stack) -> Frames:
    python = (
        {"filename": code.co_filename, "line": line, "name": code.co_qualname}
        for code, line in stack
    )
    return [{"filename": OPERATOR, "line": 0, "name": operator}, *python]


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
