"""Freeing, collecting, emptying: the one file that does so, because the user asked for it by name."""

from __future__ import annotations

import ctypes
import gc
import sys
from dataclasses import dataclass

from hfmem_widget.features.free.request import Request
from hfmem_widget.sources import loaded_allocator
from hfmem_widget.sources.allocator import Allocator
from hfmem_widget.sources.heap.kept import GONE
from hfmem_widget.text import format_counted, plain


@dataclass(frozen=True, slots=True)
class Done:
    """What was done, one phrase each; sentences about it; whether a KeyboardInterrupt ended it early."""

    steps: tuple[str, ...]
    notes: tuple[str, ...] = ()
    interrupted: bool = False


def carry_out(request: Request, allocator: Allocator | None = None) -> Done:
    """Free what was named, and then collect, empty and trim as requested.

    The cache is by default that of the torch that is loaded.
    """
    allocator = allocator or loaded_allocator()
    steps: list[str] = []
    try:
        for name, slots in request.items.items():
            for slot in slots:
                if slot.empty is GONE:
                    slot.fields.pop(slot.key, None)
                else:
                    slot.fields[slot.key] = slot.empty
            steps.append(f"{name} freed")
        if request.collect:
            # What lies in a cycle goes now, and what the allocator got back can be returned next.
            steps.append(f"{format_counted(gc.collect(), 'unreachable object')} collected")
        if request.empty_cache and allocator.devices():
            allocator.empty_cache()
            steps.append(f"{allocator.device_type.upper()}'s cache emptied")
        if request.trim:
            steps.append(_trimmed())
    except KeyboardInterrupt:
        items = request.items.items()
        left = [name for name, slots in items if not all(slot.is_empty() for slot in slots)]
        note = (
            f"Interrupted: {plain(', '.join(left))} was not freed, or only in part."
            if left
            else "Interrupted after everything named was freed."
        )
        return Done(tuple(steps), (note,), interrupted=True)
    except Exception as error:  # noqa: BLE001  (such as a CUDA error, which every call repeats)
        note = f"%memholders --free ended early ({type(error).__name__}: {error})."
        return Done(tuple(steps), (plain(note, 300),))
    return Done(tuple(steps))


def _trimmed() -> str:
    # Missing where nobody has imported it, or is about to.
    if pool := getattr(sys.modules.get("pyarrow"), "default_memory_pool", None):
        pool().release_unused()
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return "heap not trimmed: this needs glibc"
    return "heap trimmed" if trim(0) else "heap trimmed, nothing to return"
