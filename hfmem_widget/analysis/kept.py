"""What malloc keeps of freed memory, as a sentence."""

from __future__ import annotations

from hfmem_widget.analysis.parts import Read
from hfmem_widget.text import MIB, format_bytes

LEAST = 64 * MIB
"""Bytes from which on it is worth a sentence."""


def kept_text(read: Read) -> str:
    """Return what malloc keeps of the host's memory, and how to return it; empty if that is little.

    Of what malloc calls free, ``malloc_trim`` has returned pages that it still counts: it keeps no more than
    what is resident and not in use.
    """
    kept = min(read("cached"), read("reserved") - read("allocated"))
    if not kept >= LEAST:
        return ""
    return f"malloc keeps {format_bytes(kept)} that nobody uses; %memfree garbage --trim returns what it can."
