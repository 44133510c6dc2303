"""A snapshot of the CUDA allocator's blocks, summed up: nothing of the snapshot is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from hfmem_widget.features.oom.shortage import Blocks, LiveBlocks

SMALL_SEGMENT: Final = 2 * 2**20
"""What the allocator asks the driver for where a request goes to the pool of small ones."""

MOST_BIGGEST: Final = 5

_NO_POOL: Final = (0, 0)
_LIVE: Final = {"active_allocated"}
_NOT_THE_USERS: Final = ("site-packages", "dist-packages", "/lib/python", "<frozen", "<built-in")
_CELL: Final = ("ipykernel_", "<ipython-input-")


def summed_up(segments: Iterable[Mapping[str, Any]], device: int, asked: int) -> Blocks:
    """Return one device's blocks, as a request of so many bytes finds them.

    Parameters
    ----------
    segments : iterable of mapping
        As `torch.cuda.memory_snapshot` returns them.
    device : int
    asked : int
        Bytes, rounded up to a segment: small and large requests have pools of their own.
    """
    pool = "small" if asked <= SMALL_SEGMENT else "large"
    count, free, largest, private = 0, 0, 0, 0
    expandable = False
    streams: set[object] = set()
    live: Counter[tuple[int, str]] = Counter()
    for segment in segments:
        if segment["device"] != device:
            continue
        blocks = segment["blocks"]
        count += len(blocks)
        expandable = expandable or bool(segment.get("is_expandable"))
        is_private = tuple(segment.get("segment_pool_id", _NO_POOL)) != _NO_POOL
        serves = not is_private and segment.get("segment_type", pool) == pool
        for block in blocks:
            size = block["size"]
            if block["state"] == "inactive":
                if is_private:
                    private += size
                elif serves:
                    free += size
                    largest = max(largest, size)
                    streams.add(segment.get("stream"))
            elif block["state"] in _LIVE:
                live[size, _where(block.get("frames") or ())] += 1
    biggest = sorted(live.items(), key=lambda one: one[0][0] * one[1], reverse=True)
    return Blocks(
        count=count,
        largest_free=float(largest),
        free=float(free),
        private_free=float(private),
        streams=len(streams),
        expandable=expandable,
        biggest=tuple(
            LiveBlocks(float(size), number, where)
            for (size, where), number in biggest[:MOST_BIGGEST]
        ),
    )


def _where(frames: Sequence[Mapping[str, Any]]) -> str:
    """Return the innermost line of the user's own; of Python's, where all of it is a library's."""
    python = [one for one in frames if _is_python(str(one.get("filename", "")))]
    own = [one for one in python if not any(path in one["filename"] for path in _NOT_THE_USERS)]
    frame = next(iter(own or python), None)
    if frame is None:
        return ""
    filename = str(frame["filename"])
    is_cell = any(mark in filename for mark in _CELL)
    name = "a cell" if is_cell else filename.replace("\\", "/").rpartition("/")[2]
    return f"{name}, line {frame.get('line', '?')}, in {frame.get('name', '?')}"


def _is_python(filename: str) -> bool:
    # What is typed or handed over has a name in angle brackets; C++ has a library's, or none.
    return filename.endswith(".py") or filename.startswith("<")
