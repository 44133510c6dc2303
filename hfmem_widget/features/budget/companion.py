"""``--budget``: a warning, once, when a device exceeds its budget; ``--stop`` ends the training."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from hfmem_widget.monitor import ending
from hfmem_widget.monitor.companion import Companion
from hfmem_widget.monitor.monitor import Monitor
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import Finding, Guide, Recorder, Sample, Session, Span
from hfmem_widget.session.steps import PHASES
from hfmem_widget.text import format_bytes, format_duration
from hfmem_widget.view.screen import Screen

NONE_TO_STOP = (
    "--stop can only end the training of a Trainer, at the end of a step; no Trainer was training."
)
NOT_ALONE = "--stop does not end training in several processes: the others would wait for this one."
NO_STEP_LEFT = "--stop did nothing: no step ended after the budget was exceeded."

Seen = Literal["at the start", "in a sample", "between samples"]


@dataclass(frozen=True, slots=True)
class Crossing:
    """When a device was first above its budget."""

    device: str
    seen: Seen  # "between samples" if only an exact peak shows it
    allocated: float  # bytes that were read, or the exact peak
    seconds: float = math.nan  # since the watch began; NaN if unknown
    where: str = ""  # such as "step 41 (forward)"; empty if unknown


class Budget(Companion):
    """Notes the first crossing, on whichever thread sees it first."""

    def __init__(self, options: WatchOptions, screen: Screen | None = None) -> None:
        del screen
        self._budget = math.inf if options.budget is None else options.budget
        self._stop = options.stop
        self._wanted = options.devices
        self._session: Session | None = None
        self._root = 0
        self._began = 0.0
        self._crossing: Crossing | None = None
        self._finding: Finding | None = None
        # A sample is compared on the poller's thread, a step's peak on the training's.
        self._lock = threading.Lock()
        self._over = False
        self._warned_before: frozenset[str] = frozenset()
        self._held_back: Crossing | None = None
        self._was_asked = False
        self._alone = True
        self._ended_after = 0

    def begin(self, monitor: Monitor, recorder: Recorder, span: Span) -> None:
        """Look at every sample, and at every step's peak, from now on."""
        del monitor
        self._session = session = recorder.session
        self._root, self._began = span.id, span.start
        # Devices that are still above it, of which an earlier cell of the session has warned.
        warned = {
            str(finding.evidence.get("device"))
            for finding in session.findings
            if finding.kind == "budget" and finding.evidence.get("budget") == round(self._budget)
        }
        self._warned_before = frozenset(
            device
            for device in warned
            if session.value(span.before, f"{device}/allocated") > self._budget
        )
        self._compare(session, span.before, "at the start")
        recorder.subscribe(self._look)
        recorder.on_step(self._step_ended)
        if self._stop:
            ending.listen(self._should_end)

    def end(self, recorder: Recorder, span: Span, error: BaseException | None) -> None:
        """Look no longer."""
        del span, error
        recorder.unsubscribe(self._look)
        recorder.off_step(self._step_ended)
        ending.forget(self._should_end)
        self._session = None

    def report(self, session: Session, span: Span) -> Mapping[str, str]:
        """Complete the warning with what is known now: the exact peak, and whether a training was ended."""
        if self._ended_after and self._crossing is None and self._held_back is not None:
            # An earlier cell has warned, but nothing has said yet what that led to here.
            self._warned_before = frozenset()
            self._cross(session, self._held_back)
        peaks = self._peaks(session, span)
        for device, peak in peaks.items():
            self._cross(session, Crossing(device, "between samples", peak))
        before, crossing = self._finding, self._crossing
        if before is not None and crossing is not None:
            highest = max(crossing.allocated, peaks.get(crossing.device, 0.0))
            session.findings[session.findings.index(before)] = self._warning(crossing, highest)
        return {}

    def _look(self, session: Session, samples: Sequence[Sample]) -> None:
        for sample in samples[-1:]:
            self._compare(session, sample, "in a sample")

    def _compare(self, session: Session, sample: Sample, seen: Seen) -> None:
        for device in self._devices(session):
            self._draw(session, device)
            allocated = session.value(sample, f"{device}/allocated")
            if allocated > self._budget:
                where = self._where(session) if self._crossing is None else ""
                seconds = sample.time - self._began
                self._cross(session, Crossing(device, seen, allocated, seconds, where))

    def _step_ended(self, step: Span) -> None:
        """Compare a step's peak, which no sample need have shown."""
        session = self._session
        for device, peak in self._peaks(session, step).items() if session is not None else ():
            seconds = step.start + step.duration - self._began
            self._cross(session, Crossing(device, "between samples", peak, seconds, step.label))

    def _should_end(self, step: int, *, alone: bool, is_last: bool = False) -> bool:
        session = self._session
        if session is None:
            return False
        # Steps may be entered a little later; whoever asks for spans has them entered now.
        _ = session.open_spans
        over, self._over = self._over, False
        self._was_asked, self._alone = True, self._alone and alone
        if not over or not alone or is_last:
            return False
        self._ended_after = self._ended_after or step
        return True

    def _cross(self, session: Session | None, crossing: Crossing) -> None:
        if session is None or not crossing.allocated > self._budget:
            return
        self._over = True
        with self._lock:
            if crossing.device in self._warned_before:
                self._held_back = self._held_back or crossing
                return
            if self._crossing is not None:
                return
            self._crossing = crossing
        self._finding = self._warning(crossing, math.nan)
        session.findings.append(self._finding)

    def _peaks(self, session: Session, span: Span) -> dict[str, float]:
        keys = {device: f"{device}/allocated" for device in self._devices(session)}
        return {device: span.peaks[key].value for device, key in keys.items() if key in span.peaks}

    def _devices(self, session: Session) -> list[str]:
        """Return the devices that have the budget: those wanted, else the GPUs, else the host."""
        devices = [device.key for device in session.devices]
        devices = [key for key in devices if not self._wanted or key in self._wanted]
        return [key for key in devices if ":" in key] or devices

    def _draw(self, session: Session, device: str) -> None:
        """Draw the budget over a device's chart, once."""
        budget = self._budget
        drawn = {(guide.device, guide.kind, guide.first) for guide in session.guides}
        if (device, "budget", budget) not in drawn:
            label = f"budget {format_bytes(budget)}"
            line = Guide(device, "budget", label, self._began, math.inf, budget, budget)
            session.guides.append(line)

    def _where(self, session: Session) -> str:
        inside = session.open_within(self._root)
        step = next((span for span in inside if span.kind == "step"), None)
        phase = next((span.kind for span in inside if span.kind in PHASES), "")
        if step is not None:
            return f"{step.label} ({phase})" if phase else step.label
        return (inside[0].label or inside[0].kind) if inside else ""

    def _warning(self, crossing: Crossing, highest: float) -> Finding:
        """Return the warning; `highest` is NaN until the watch has ended."""
        budget, device = format_bytes(self._budget), crossing.device
        is_over = math.isfinite(highest)
        title = f"{device} exceeded its budget of {budget}"
        if crossing.seen == "at the start":
            title += " from the start"
        elif crossing.seen == "between samples":
            title += " between two samples"
        elif math.isfinite(crossing.seconds):
            title += f" after {format_duration(crossing.seconds)}"
        if crossing.where and crossing.seen != "at the start":
            title += f", in {crossing.where}"
        if is_over:
            title += f", by {format_bytes(highest - self._budget)} at its peak"
        else:
            title += f": {format_bytes(crossing.allocated)} allocated"
        evidence: dict[str, object] = {
            "device": device,
            "budget": round(self._budget),
            "allocated": round(crossing.allocated),
            "seconds": crossing.seconds,
            "where": crossing.where,
            "seen": crossing.seen,
        }
        if is_over:
            evidence["peak"] = round(highest)
        if self._ended_after:
            title += f"; training was ended after step {self._ended_after}, with a checkpoint"
            evidence["ended_after_step"] = self._ended_after
        advice = self._advice() if is_over else ()
        return Finding("budget", "warn", title, evidence, advice, self._root)

    def _advice(self) -> tuple[str, ...]:
        """Return why nothing was ended, if it was to be."""
        if not self._stop or self._ended_after:
            return ()
        if not self._was_asked:
            return (NONE_TO_STOP,)
        return (NO_STEP_LEFT if self._alone else NOT_ALONE,)
