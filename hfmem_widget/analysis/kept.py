"""The parts of the allocated bytes over time, with those that a search found names to keep."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from hfmem_widget.session import Part, Session, Span, outermost
from hfmem_widget.session.series import PARTS
from hfmem_widget.session.timeline import Floats
from hfmem_widget.text import plain

STACK = tuple(name for name, row in PARTS.items() if row.stacked)
"""The parts of a stack; rounding is too little to be seen."""

UPWARDS = tuple(sorted(STACK, key=lambda name: name != "before"))
"""The same from the bottom to the top of the chart; *here before* is at the bottom."""

LEVELS = 16
HOLDERS = 40  # letters of the names that keep memory, at most

TOLERANCE = 0.1
"""The share by which unattributed memory may exceed what stayed, or fall short of what names keep."""


def heights_of(
    session: Session, key: str, rows: Floats, kept: Floats | float = 0.0
) -> dict[str, Floats]:
    """Return the bytes of each part of a device in rows of values.

    They are cut to the allocated bytes, the uppermost first. Where activations or unattributed memory are
    unknown, they take all the remaining bytes. Up to `kept` of the bytes not attributed are kept by names.
    """

    def read(metric: str, otherwise: Floats | float) -> Floats:
        at = session.index(f"{key}/{metric}")
        known = np.full(len(rows), math.nan) if at is None or at >= rows.shape[1] else rows[:, at]
        return np.where(np.isnan(known), otherwise, known)

    room, heights = read("allocated", math.nan), {}
    for name in UPWARDS:
        otherwise = room if name in {"unattributed", "activations"} else 0.0
        heights[name] = np.clip(read(name, otherwise), 0.0, room)
        room = room - heights[name]
    heights["kept"] = np.minimum(kept, heights["unattributed"])
    heights["unattributed"] = heights["unattributed"] - heights["kept"]
    return heights


def kept_since(session: Session, span: Span, key: str, grown: float) -> list[tuple[float, float]]:
    """Return since when names have kept the `grown` bytes that a search found at a span's end.

    The result has seconds and the bytes kept by then, at most two points for each of `LEVELS`; it is empty if
    fewer bytes were not attributed. Memory freed before the search does not count, and neither does any from
    before a large drop: its holder is unknown.
    """
    part = session.between(span.start, math.inf)
    level = heights_of(session, key, part.low)["unattributed"]
    stays = np.fmin.accumulate(level[::-1])[::-1]
    if not len(level) or not 0 < grown <= (1 + TOLERANCE) * stays[-1]:
        return []
    was_more = np.flatnonzero(level - stays > TOLERANCE * stays[-1])
    kept = np.nan_to_num(stays - level[0]).clip(0.0, grown)
    kept[: was_more[-1] + 1 if len(was_more) else 0] = 0.0
    (rises,) = np.diff(kept // (grown / LEVELS)).nonzero()
    rows = np.unique([0, *rises, *(rises + 1), len(kept) - 1])
    points = np.column_stack([part.time[rows], kept[rows]]).round(3)
    return [(seconds, size) for seconds, size in points.tolist()]


def points_of(evidence: Mapping[str, object]) -> Floats:
    """Return the points of `kept_since` in a finding, shape ``(points, 2)``; none if a file has bad ones."""
    try:
        points = np.array(evidence.get("kept"), np.float64)
    except (TypeError, ValueError):
        points = np.empty(0)
    is_fine = points.ndim == 2 and points.shape[1] == 2 and ((points >= 0) & (points < 2**60)).all()
    return points if is_fine else np.empty((0, 2))


def kept_at(session: Session, key: str, times: Sequence[float] | Floats) -> tuple[Floats, str]:
    """Return the bytes of a device that names kept at some seconds, and the names of the last of them."""
    kept, holders = np.zeros(len(times)), ""
    starts = [span.start for span in outermost(session.spans)]
    for evidence in (finding.evidence for finding in session.findings):
        seconds, sizes = points_of(evidence).T
        if evidence.get("device") != key or not len(seconds):
            continue
        # They may have been freed once the next cell begins.
        until = min((start for start in starts if start >= seconds[-1]), default=math.inf)
        more = np.where(np.less(times, until), np.interp(times, seconds, sizes, left=0.0), 0.0)
        if more.any():
            kept, holders = kept + more, str(evidence.get("holder", ""))
    return kept, holders


def with_kept(parts: Iterable[Part], kept: Floats, holders: str) -> tuple[Part, ...]:
    """Return the parts, with the bytes that names keep split off those that are not attributed."""
    split = []
    for part in parts:
        size = min(float(kept[0]), part.bytes) if part.name == "unattributed" else 0.0
        named = Part("kept", f"kept by {plain(holders, HOLDERS)}", size)
        split += [each for each in (named, replace(part, bytes=part.bytes - size)) if each.bytes]
    return tuple(split)
