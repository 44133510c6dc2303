"""A snapshot of the CUDA allocator's blocks, summed up: nothing of the snapshot is kept."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from hfmem_widget.features.oom.model import Blocks, LiveBlocks

SMALL_SEGMENT: Final = 2 * 2**20
"""The size of the segments in the pool of small requests."""

MOST_BIGGEST: Final = 5

_NO_POOL: Final = (0, 0)
_LIBRARIES: Final = ("site-packages", "dist-packages", "/lib/python", "<frozen", "<built-in")
_PYTHON: Final = re.compile(r"<.*|.*\.py", re.DOTALL)
_CELL: Final = ("ipykernel_", "<ipython-input-")


def summed_up(segments: Iterable[Mapping[str, Any]], device: int, asked: int) -> Blocks:
    """Return one device's blocks, as a request of so many bytes (rounded up to a segment) finds them.

    Small and large requests have pools of their own. The segments are as `torch.cuda.memory_snapshot`
    returns them.
    """
    pool = "small" if asked <= SMALL_SEGMENT else "large"
    count, private, expandable = 0, 0, False
    free: list[int] = []
    live: Counter[tuple[int, str]] = Counter()
    for segment in segments:
        if segment["device"] != device:
            continue
        count += len(segment["blocks"])
        expandable = expandable or bool(segment.get("is_expandable"))
        is_private = tuple(segment.get("segment_pool_id", _NO_POOL)) != _NO_POOL
        for block in segment["blocks"]:
            size = block["size"]
            if block["state"] == "active_allocated":
                live[size, _where(block.get("frames") or ())] += 1
            elif block["state"] == "inactive" and is_private:
                private += size
            elif block["state"] == "inactive" and segment.get("segment_type", pool) == pool:
                free.append(size)
    biggest = sorted(live.items(), key=lambda item: item[0][0] * item[1], reverse=True)
    return Blocks(
        count=count,
        largest_free=float(max(free, default=0)),
        free=float(sum(free)),
        private_free=float(private),
        expandable=expandable,
        biggest=tuple(
            LiveBlocks(float(size), number, where)
            for (size, where), number in biggest[:MOST_BIGGEST]
        ),
    )


def _where(frames: Sequence[Mapping[str, Any]]) -> str:
    """Return the innermost line of the user's code, or of any Python code if there is none."""
    # Typed or generated code has a name in angle brackets; C++ has a library's, or none.
    python = [frame for frame in frames if _PYTHON.fullmatch(str(frame.get("filename", "")))]
    own = [frame for frame in python if not any(part in frame["filename"] for part in _LIBRARIES)]
    frame = next(iter(own or python), None)
    if frame is None:
        return ""
    filename = str(frame["filename"])
    is_cell = any(mark in filename for mark in _CELL)
    name = "a cell" if is_cell else filename.replace("\\", "/").rpartition("/")[2]
    return f"{name}, line {frame.get('line', '?')}, in {frame.get('name', '?')}"
