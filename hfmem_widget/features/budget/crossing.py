"""The sentences for a device that exceeds its budget."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from hfmem_widget.session import Finding
from hfmem_widget.text import format_bytes, format_duration

OF_WHAT = {"allocated": "", "reserved": "reserved", "device_used": "in use on the device"}
"""Words for the metric of a budget; none for the usual one."""

Seen = Literal["at the start", "in a sample", "between samples"]


@dataclass(frozen=True, slots=True)
class Crossing:
    """When a device was first above its budget."""

    device: str
    seen: Seen  # "between samples" if only an exact peak shows it
    allocated: float  # bytes that were read, or the exact peak
    seconds: float = math.nan  # since the watch began; NaN if unknown
    where: str = ""  # such as "step 41 (forward)"; empty if unknown


def finding_of(
    crossing: Crossing,
    budget: float,
    span_id: int,
    *,
    metric: str = "allocated",
    began: float = 0.0,
    highest: float = math.nan,
    ended_after: int = 0,
    advice: tuple[str, ...] = (),
) -> Finding:
    """Return the warning.

    The watch `began` so many seconds after its session. `highest` is the peak in bytes once it has ended, and
    `ended_after` the step after which a training was ended for it.
    """
    of_what = OF_WHAT[metric]
    title = f"{crossing.device} exceeded its budget of {format_bytes(budget)}{of_what and f' {of_what}'}"
    if crossing.seen == "at the start":
        title += " from the start"
    elif crossing.seen == "between samples":
        title += " between two samples"
    elif math.isfinite(crossing.seconds):
        title += f" after {format_duration(crossing.seconds)}"
    if crossing.where and crossing.seen != "at the start":
        title += f", in {crossing.where}"
    if math.isfinite(highest):
        title += f", by {format_bytes(highest - budget)} at its peak"
    else:
        title += f": {format_bytes(crossing.allocated)} {of_what or 'allocated'}"
    evidence: dict[str, object] = {
        "device": crossing.device,
        "budget": round(budget),
        metric: round(crossing.allocated),
        "seconds": crossing.seconds,
        "where": crossing.where,
        "seen": crossing.seen,
    }
    if math.isfinite(crossing.seconds):
        evidence["time"] = began + crossing.seconds
    if math.isfinite(highest):
        evidence["peak"] = round(highest)
    if ended_after:
        title += f"; training was ended after step {ended_after}, with a checkpoint"
        evidence["ended_after_step"] = ended_after
    return Finding("budget", "warn", title, evidence, advice, span_id)
