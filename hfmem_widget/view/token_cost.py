"""The sentence about what a token takes at the peak of a step, where the steps of a training tell it."""

from __future__ import annotations

import numpy as np

from hfmem_widget.analysis.facts import end_of
from hfmem_widget.session import Device, Session, Span
from hfmem_widget.text import KIB, MIB, format_bytes, format_count, number

FEWEST_STEPS = 6
LEAST_SPREAD = 1.3
"""How many times the tokens of the smallest step those of the largest are, at least."""

MOST_OFF = 0.02
"""Share of a peak by which it may lie off the line: farther off, something else counts as well."""


def token_cost_text(session: Session, span: Span, device: Device, capacity: float) -> str:
    """Return what each token of a step adds to its exact peak, and what twice the most would need.

    Empty unless the peaks of the steps lie on a line over their tokens.
    """
    points = np.array(
        [
            (memory.worst_tokens, memory.peak)
            for step in session.steps
            if span.start <= step.start <= end_of(session, span)
            and (memory := step.devices.get(device.key)) is not None
            and memory.certainty == "exact"
            and memory.worst_tokens > 0
        ]
    )
    if len(points) < FEWEST_STEPS:
        return ""
    tokens, peaks = points.T
    fewest, most = float(tokens.min()), float(tokens.max())
    if most < LEAST_SPREAD * fewest:
        return ""
    slope, base = np.polyfit(tokens, peaks, 1)
    is_line = bool((np.abs(base + slope * tokens - peaks) <= MOST_OFF * peaks).all())
    # A slope within what may lie off the line is no cost of tokens.
    if not is_line or slope * (most - fewest) < 5 * MOST_OFF * float(peaks.max()):
        return ""
    each = format_bytes(slope) if slope >= MIB else f"{number(slope, KIB)} KiB"
    twice = float(base + 2 * slope * most)
    room = f", of {format_bytes(capacity)}" if capacity > 0 else ""
    return (
        f"Each token adds {each} to the peak of a step, from {format_count(fewest)} to "
        f"{format_count(most)} tokens; if that goes on, {format_count(2 * most)} would need about "
        f"{format_bytes(twice)}{room}."
    )
