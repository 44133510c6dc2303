"""The output of `torch.cuda.memory_snapshot`, and the allocator's counters, on an H200 with torch 2.11."""

import json
from pathlib import Path
from typing import Any

from hfmem_widget.session.segments import MemoryMap, segments_of

FOLDER = Path(__file__).parent / "snapshots"
NAMES = ("native", "expandable", "mixed", "fragmented")
"""Interleaved frees with a side stream, without and with expandable segments; besides these a `MemPool`, a
CUDA graph and 3,000 small blocks; the memory of an out-of-memory error with segments cut into pieces."""

_STATES = {"+": "active_allocated", "-": "inactive", "~": "active_pending_free"}


def recorded(name: str) -> tuple[dict[str, int], list[dict[str, Any]]]:
    """Return the counters' current values by name, and the segments as torch lists them."""
    read = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return read["stats"], [{**one, "blocks": _blocks(one)} for one in read["segments"]]


def recorded_map(name: str) -> MemoryMap:
    """Return the same as a map of cuda:0."""
    return MemoryMap(("cuda:0",), segments_of(recorded(name)[1]), seconds=0.0023)


def _blocks(segment: dict[str, Any]) -> list[dict[str, Any]]:
    blocks, address = [], segment["address"]
    for text in segment["blocks"].split():
        size, _, requested = text[:-1].partition(":")
        block = {"address": address, "size": int(size), "state": _STATES[text[-1]]}
        blocks.append(block | {"requested_size": int(requested or size)})
        address += int(size)
    return blocks
