"""Warns once in each cell, while it runs, when tasks wait for memory that CPU and GPU share."""

from collections.abc import Sequence
from typing import Final

from hfmem_widget.monitor.companion import Companion
from hfmem_widget.monitor.monitor import Monitor
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import Finding, Recorder, Sample, Session, Span
from hfmem_widget.text import format_bytes

STALLED: Final = 10.0
"""Percent of ten seconds in which some task waited; systemd calls it pressure (200 ms in 2 s). After an idle
time, waiting for a third of the time gives 6 % after 2 s, and 11 % after 4."""

LITTLE: Final = 0.15
"""Share of the machine's memory. With more left, tasks wait for something else, such as a group's limit.
GB10s froze with 0.2 to 6 % left (vllm-ultimate-dgx-spark#9)."""

ADVICE: Final = (
    "CPU and GPU share this memory, so the machine may swap or stop responding before PyTorch raises an "
    "out-of-memory error. Close other programs, or lower the peak, for example with a smaller batch."
)


class Shortage(Companion):
    """Checks every sample until it has warned."""

    def __init__(self, options: WatchOptions) -> None:
        self._span_id: int | None = None

    def begin(self, monitor: Monitor, recorder: Recorder, span: Span) -> None:
        """Check samples from now on."""
        self._span_id = span.id
        recorder.subscribe(self._look)

    def end(self, recorder: Recorder, span: Span, error: BaseException | None) -> None:
        """Stop checking."""
        recorder.unsubscribe(self._look)

    def _look(self, session: Session, samples: Sequence[Sample]) -> None:
        stalled = session.value(samples[-1], "cpu/stalled") if samples else 0.0
        for device in session.devices if stalled >= STALLED and self._span_id is not None else ():
            left = device.total - session.value(samples[-1], f"{device.key}/device_used")
            if device.shared and left <= LITTLE * device.total:
                title = (
                    f"This machine ran short of memory: tasks waited for it {stalled:.0f} % of 10 s, with "
                    f"{format_bytes(left)} of {format_bytes(device.total)} left."
                )
                evidence = {"device": device.key, "stalled": round(stalled, 2), "left": round(left)}
                warning = Finding("shortage", "warn", title, evidence, (ADVICE,), self._span_id)
                session.findings.append(warning)
                self._span_id = None
                return
