"""Whether a cell that is run again and again leaves more each time."""

from __future__ import annotations

from collections.abc import Sequence

from hfmem_widget.analysis.record import DeviceRecord, Record
from hfmem_widget.session import Device, Finding, Session, Span
from hfmem_widget.text import MIB, format_bytes

LEAST_RUNS = 3
"""Runs one after the other that left more, and one before them: the first may leave what stays for good."""

LEAST_LEFT = MIB
LEAST_LEFT_ON_THE_HOST = 16 * MIB

LEAST_KEPT = 0.5
"""Of what a run left: what must still be there when the next one ends."""

EVEN = 0.5
"""Of the most that one of the runs left: the least that another must have left."""


def reruns(session: Session, span: Span, earlier: Sequence[Record]) -> tuple[Finding, ...]:
    """Find devices on which each of a cell's last runs left more than the one before.

    Parameters
    ----------
    session, span
        The run that has just ended.
    earlier : sequence of Record
        Those before it, oldest first.
    """
    found = []
    for device in session.devices:
        key = f"{device.key}/allocated"
        if span.after is None:
            continue
        edges = [
            (one.before, one.after)
            for record in earlier
            if (one := _of(record, device)) is not None
        ]
        edges.append((session.value(span.before, key), session.value(span.after, key)))
        left = _left_by_last(edges, device)
        if len(left) >= LEAST_RUNS:
            found.append(_finding(device, span, len(earlier) + 1, left))
    return tuple(found)


def _of(record: Record, device: Device) -> DeviceRecord | None:
    return next((one for one in record.devices if one.key == device.key), None)


def _left_by_last(edges: Sequence[tuple[float, float]], device: Device) -> list[float]:
    """Return what each of the last runs left on top of the one before, newest first, as long as all did."""
    least = LEAST_LEFT if ":" in device.key else LEAST_LEFT_ON_THE_HOST
    rises: list[float] = []
    for (_, ended), (before, after) in zip(reversed(edges[:-1]), reversed(edges), strict=False):
        left, rise = after - before, after - ended
        # What is not known is a NaN, and no comparison with it holds.
        if not (left >= least and rise >= LEAST_KEPT * left):
            break
        if rises and not EVEN * max(rise, *rises) <= min(rise, *rises):
            break
        rises.append(rise)
    return rises


def _finding(device: Device, span: Span, runs: int, left: Sequence[float]) -> Finding:
    each = sum(left) / len(left)
    return Finding(
        kind="rerun",
        severity="warn",
        title=(
            f"This cell has run {runs} times, and each of the last {len(left)} runs left "
            f"{format_bytes(each)} more on {device.key}: {format_bytes(sum(left))} in total."
        ),
        evidence={
            "device": device.key,
            "runs": runs,
            "last": len(left),
            "each": round(each),
            "left": round(sum(left)),
        },
        advice=(
            "%memholders lists what holds it; after the next run, %memholders --since shows what was added.",
            "Objects of an earlier run stay alive as long as a variable, Out or an error refers to them.",
        ),
        span_id=span.id,
    )
