"""What malloc keeps that nobody uses, and what it handed out and nobody has written, as sentences."""

from __future__ import annotations

import math

from hfmem_widget.analysis.facts import uses_a_gpu
from hfmem_widget.analysis.parts import Read
from hfmem_widget.session import Session, Span
from hfmem_widget.text import MIB, format_bytes

LEAST_KEPT = 64 * MIB
LEAST_UNTOUCHED = 16 * MIB
"""Bytes from which on it is worth a sentence."""


def kept_text(read: Read) -> str:
    """Return what malloc keeps of the host's memory, and how to return it; empty if that is little."""
    kept = read("cached")
    if not kept >= LEAST_KEPT:
        return ""
    return f"malloc keeps {format_bytes(kept)} that nobody uses; %memfree garbage --trim returns what it can."


def untouched_text(session: Session, span: Span) -> str:
    """Return what was asked of malloc within a span and not written yet; empty if that is little."""
    if session.ranks is not None or uses_a_gpu(session, span):
        return ""
    before, after = (
        session.value(sample, "cpu/untouched")
        for sample in (span.before, span.after or session.last_sample)
    )
    more = after - (0.0 if math.isnan(before) else before)
    if not more >= LEAST_UNTOUCHED:
        return ""
    size = format_bytes(more)
    return f"At least {size} was allocated and not written yet: it takes memory once it is written."
