"""What the host's memory is made of besides tensors, as sentences: child processes, and malloc's own."""

from __future__ import annotations

import math

from hfmem_widget.analysis.facts import end_of, uses_a_gpu
from hfmem_widget.analysis.parts import Read
from hfmem_widget.session import Session, Span
from hfmem_widget.text import MIB, format_bytes, format_counted

LEAST_OF_CHILDREN = 256 * MIB
LEAST_KEPT = 64 * MIB
LEAST_UNTOUCHED = 16 * MIB
"""Bytes from which on each is worth a sentence."""

METRICS = ("children", "child_processes", "data_workers", "children_shared")


def children_words(session: Session, read: Read) -> tuple[str, str]:
    """Return which child processes there were, and how their memory is counted.

    Such as "4 DataLoader workers and 1 other process" and "(PSS)".
    """
    count, workers = (0 if math.isnan(n := read(name)) else int(n) for name in METRICS[1:3])
    others, which = count - workers, "other" if workers else "child"
    kinds = [format_counted(workers, "DataLoader worker")] if workers else []
    kinds += [f"{others} {which} process{'es' * (others > 1)}"] if others > 0 else []
    column = session.index("cpu/children")
    label = "" if column is None else session.series[column].label
    return " and ".join(kinds), label.removeprefix("child processes").strip()


def children_text(session: Session, span: Span) -> str:
    """Return what child processes held at most within a span; empty if that was little."""
    columns = [session.index(f"cpu/{name}") for name in METRICS]
    present = [column for column in columns if column is not None]
    if session.ranks is not None or len(present) < len(METRICS):
        return ""  # ranks report their own children
    rows = session.between(span.start, end_of(session, span), present).high
    rows = rows[rows[:, 0] >= LEAST_OF_CHILDREN]
    if not len(rows):
        return ""
    highest = dict(zip(METRICS, rows[rows[:, 0].argmax()].tolist(), strict=True))
    (children, how), shared = (
        children_words(session, highest.__getitem__),
        highest["children_shared"],
    )
    held = f"{'hold' if span.stop is None else 'held up to'} {format_bytes(highest['children'])}"
    of_it = f", {format_bytes(shared)} of it shared memory" if shared >= MIB else ""
    return f"{children} {held} {how}".rstrip() + f"{of_it}."


def kept_text(read: Read) -> str:
    """Return what malloc keeps of the host's memory, and how to return it; empty if that is little."""
    kept = read("cached")
    if not kept >= LEAST_KEPT:
        return ""
    return (
        f"malloc keeps {format_bytes(kept)} that nobody uses; %memholders --free garbage --trim returns "
        "what it can."
    )


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
