"""Adds each watch that has ended to the history, and compares it with the last run of the same cell."""

from hfmem_widget.analysis.cell import Cell
from hfmem_widget.analysis.history import HISTORY, History
from hfmem_widget.analysis.record import UNNAMED, DeviceRecord, Record, record_of
from hfmem_widget.monitor.companion import Companion
from hfmem_widget.monitor.monitor import Monitor
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import Recorder, Session, Span
from hfmem_widget.text import MIB, MINUS, format_bytes, format_share
from hfmem_widget.view.front_end import running_cell

LEAST_OF_SAMPLED = 0.02  # share of a sampled peak by which runs of the same code differ by chance
LEAST_OF_TIME = 0.05  # the same for the duration of a step or a cell
LEAST_SECONDS = 1.0  # shorter cells without steps are not compared


class Historian(Companion):
    """Adds one watch to the history."""

    def __init__(self, options: WatchOptions | None = None, *, history: History = HISTORY) -> None:
        self._history = history
        self._cell: Cell | None = None

    def begin(self, monitor: Monitor, recorder: Recorder, span: Span) -> None:
        """Note the cell that runs."""
        self._cell = running_cell()

    def conclude(self, session: Session, span: Span) -> None:
        """Add the watch, with a remark on how it differs from the last run."""
        record = record_of(session, span, cell=self._cell)
        # Blocks without a label may be different code.
        is_known = span.kind == "cell" or record.label not in UNNAMED
        if is_known and (earlier := self._history.runs_of(record.identity)):
            remarks = since_text(earlier[-1], record), session.remarks.get(span.id, "")
            session.remarks[span.id] = " ".join(filter(None, remarks))
        self._history.add(record)


def since_text(before: Record, now: Record) -> str:
    """Return a sentence on how a run differs from the one before; empty if they cannot be compared."""
    if now.outcome != "done" or not before.devices or not now.devices:
        return ""
    highest = max(now.devices, key=lambda device: device.peak.value)
    earlier = before.device(highest.key)
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
    seconds = [
        1 / each.pace.steps_per_second if each.pace.steps_per_second > 0 else each.duration
        for each in (before, now)
    ]
    has_steps = now.pace.steps_per_second > 0
    if (before.pace.steps_per_second > 0) != has_steps:
        return ""
    change = seconds[1] / seconds[0] - 1 if has_steps or min(seconds) >= LEAST_SECONDS else 0.0
    if abs(change) < LEAST_OF_TIME:
        return ""
    return f"{format_share(abs(change))} {'slower' if change > 0 else 'faster'}"
