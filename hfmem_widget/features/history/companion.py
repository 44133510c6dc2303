"""Adds each watch that has ended to the history, and compares it with the last run of the same cell."""

from __future__ import annotations

from collections.abc import Mapping

from hfmem_widget.analysis.cell import Cell
from hfmem_widget.analysis.history import HISTORY, History
from hfmem_widget.analysis.record import UNNAMED, DeviceRecord, Record, record_of
from hfmem_widget.monitor.companion import NOTHING, Companion
from hfmem_widget.monitor.monitor import Monitor
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import Recorder, Session, Span
from hfmem_widget.text import MIB, MINUS, format_bytes, format_share
from hfmem_widget.view.front_end import running_cell

LEAST_OF_SAMPLED = 0.02
"""Share of a sampled peak by which two runs of the same code differ by chance."""

LEAST_OF_TIME = 0.05
"""The same of the time of a step, or of a cell."""

LEAST_SECONDS = 1.0
"""Seconds below which the time of a cell without steps says nothing."""


class Historian(Companion):
    """Notes one watch."""

    def __init__(self, options: WatchOptions | None = None, *, history: History = HISTORY) -> None:
        self._history = history
        self._cell: Cell | None = None

    def begin(self, monitor: Monitor, recorder: Recorder, span: Span) -> None:
        """Note which cell it is in."""
        self._cell = running_cell()

    def conclude(self, session: Session, span: Span) -> Mapping[str, str]:
        """Add it."""
        record = record_of(session, span, cell=self._cell)
        # Blocks without a label are not known to be the same code.
        is_known = span.kind == "cell" or record.label not in UNNAMED
        if is_known and (earlier := self._history.runs_of(record.identity)):
            remarks = since_text(earlier[-1], record), session.remarks.get(span.id, "")
            session.remarks[span.id] = " ".join(filter(None, remarks))
        self._history.add(record)
        return NOTHING


def since_text(before: Record, now: Record) -> str:
    """Return how a run differs from the one before; empty where they cannot be compared."""
    if now.outcome != "done" or not before.devices or not now.devices:
        return ""
    highest = max(now.devices, key=lambda device: device.peak.value)
    earlier = next((device for device in before.devices if device.key == highest.key), None)
    if earlier is None or not earlier.peak.value > 0:
        return ""
    if before.outcome.startswith("raised"):
        return f"The last run {before.outcome}, at a peak of {format_bytes(earlier.peak.value)}."
    if before.outcome != "done":
        return ""
    texts = [_peak_text(earlier, highest), _pace_text(before, now)]
    return f"Since the last run: {', '.join(filter(None, texts))}."


def _peak_text(before: DeviceRecord, now: DeviceRecord) -> str:
    change = now.peak.value - before.peak.value
    is_exact = {before.peak.certainty, now.peak.certainty} == {"exact"}
    least = 1.0 if is_exact else max(MIB, LEAST_OF_SAMPLED * before.peak.value)
    if abs(change) < least:
        return "the same peak" if is_exact else "about the same peak"
    share = format_share(abs(change) / before.peak.value)
    return f"peak {format_bytes(change, signed=True)} ({MINUS if change < 0 else '+'}{share})"


def _pace_text(before: Record, now: Record) -> str:
    """Return how much slower or quicker a step was; without steps, all of the cell."""
    seconds = [
        1 / each.pace.steps_per_second if each.pace.steps_per_second > 0 else each.duration
        for each in (before, now)
    ]
    has_steps = {each.pace.steps_per_second > 0 for each in (before, now)}
    if len(has_steps) > 1 or not (True in has_steps or min(seconds) >= LEAST_SECONDS):
        return ""
    ratio = seconds[1] / seconds[0]
    if abs(ratio - 1) < LEAST_OF_TIME:
        return ""
    return f"{format_share(abs(ratio - 1))} {'slower' if ratio > 1 else 'faster'}"
