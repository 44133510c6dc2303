"""``--budget``: a warning, once in each cell, when a device exceeds it; ``--stop`` ends the training."""

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hfmem_widget.monitor.companion import Companion, begun
from hfmem_widget.monitor.monitor import Monitor
from hfmem_widget.options import Limit, WatchOptions, limit_of
from hfmem_widget.session import Finding, Guide, Recorder, Sample, Session, Span
from hfmem_widget.session.steps import PHASES
from hfmem_widget.text import format_bytes, format_duration

# Words for the metric of a budget; none for the usual one.
OF_WHAT = {"allocated": "", "reserved": "reserved", "device_used": "in use on the device"}

Seen = Literal["at the start", "in a sample", "between samples"]

NONE_TO_STOP = (
    "--stop can only end the training of a Trainer, at the end of a step; no Trainer was training."
)
NOT_ALONE = "--stop does not end training in several processes: the others would wait for this one."
NO_STEP_LEFT = "--stop did nothing: no step ended after the budget was exceeded."


@dataclass(frozen=True, slots=True)
class Crossing:
    """When a device was first above its budget."""

    device: str
    seen: Seen  # "between samples" if only an exact peak shows it
    allocated: float  # bytes that were read, or the exact peak
    seconds: float = math.nan  # since the watch began; NaN if unknown
    where: str = ""  # such as "step 41 (forward)"; empty if unknown


class Budget(Companion):
    """Warns once, at the first crossing that any thread sees."""

    def __init__(self, options: WatchOptions) -> None:
        self._limit = limit_of(options.budget) or Limit(math.inf)
        self._stop = options.stop
        self._wanted = options.devices
        self._session: Session | None = None
        self._root = 0
        self._began = 0.0
        self._crossing: Crossing | None = None
        self._finding: Finding | None = None
        # Samples are compared on the poller's thread, the peaks of steps on the training's.
        self._lock = threading.Lock()
        self._is_over = False
        self._training_has_asked = False
        self._is_alone = True
        self._ended_after = 0

    def begin(self, monitor: Monitor, recorder: Recorder, span: Span) -> None:
        """Compare every sample and every step's peak from now on."""
        self._session = session = recorder.session
        self._root, self._began = span.id, span.start
        self._compare(session, span.before, "at the start")
        recorder.subscribe(self._look)
        recorder.on_step(self._step_ended)
        if self._stop:
            begun(Budget).append(self)

    def end(self, recorder: Recorder, span: Span, error: BaseException | None) -> None:
        """Stop comparing."""
        recorder.unsubscribe(self._look)
        recorder.unsubscribe(self._step_ended)
        if self in begun(Budget):
            begun(Budget).remove(self)
        self._session = None

    def report(self, session: Session, span: Span) -> None:
        """Complete the warning with the exact peak, and whether the training was ended."""
        peaks = self._peaks(session, span)
        for device, peak in peaks.items():
            self._cross(session, Crossing(device, "between samples", peak))
        finding, crossing = self._finding, self._crossing
        if finding is not None and crossing is not None:
            highest = max(crossing.allocated, peaks.get(crossing.device, 0.0))
            complete = self._warning(session, crossing, highest)
            session.findings[session.findings.index(finding)] = complete

    def _look(self, session: Session, samples: Sequence[Sample]) -> None:
        for sample in samples[-1:]:
            self._compare(session, sample, "in a sample")

    def _compare(self, session: Session, sample: Sample, seen: Seen) -> None:
        for device in self._devices(session):
            self._draw(session, device)
            allocated = session.value(sample, f"{device}/{self._limit.metric}")
            if allocated > self._on(session, device):
                where = self._where(session) if self._crossing is None else ""
                seconds = sample.time - self._began
                self._cross(session, Crossing(device, seen, allocated, seconds, where))

    def _step_ended(self, step: Span) -> None:
        """Compare the peaks of a step, which samples may have missed."""
        session = self._session
        if session is None:
            return
        seconds, where = step.start + step.duration - self._began, _name_of(step, session)
        for device, peak in self._peaks(session, step).items():
            self._cross(session, Crossing(device, "between samples", peak, seconds, where))

    def should_end(self, step: int, *, alone: bool, is_last: bool = False) -> bool:
        """Return whether a training is to end after a step; `alone` if it has one process."""
        session = self._session
        if session is None:
            return False
        over, self._is_over = self._is_over, False
        self._training_has_asked, self._is_alone = True, self._is_alone and alone
        if not over or not alone or is_last:
            return False
        self._ended_after = self._ended_after or step
        return True

    def _cross(self, session: Session, crossing: Crossing) -> None:
        if not crossing.allocated > self._on(session, crossing.device):
            return
        self._is_over = True
        with self._lock:
            if self._crossing is not None:
                return
            self._crossing = crossing
        self._finding = self._warning(session, crossing)
        session.findings.append(self._finding)

    def _peaks(self, session: Session, span: Span) -> dict[str, float]:
        metric = self._limit.metric
        keys = {device: f"{device}/{metric}" for device in self._devices(session)}
        return {device: span.peaks[key].value for device, key in keys.items() if key in span.peaks}

    def _devices(self, session: Session) -> list[str]:
        devices = [device.key for device in session.devices]
        devices = [key for key in devices if not self._wanted or key in self._wanted]
        return [key for key in devices if ":" in key] or devices

    def _draw(self, session: Session, device: str) -> None:
        budget = self._on(session, device)
        if math.isnan(budget):
            return
        drawn = {(guide.device, guide.kind, guide.first) for guide in session.guides}
        if (device, "budget", budget) not in drawn:
            of_what = OF_WHAT[self._limit.metric]
            label = f"budget {format_bytes(budget)}{of_what and f' {of_what}'}"
            line = Guide(device, "budget", label, self._began, math.inf, budget, budget)
            session.guides.append(line)

    def _where(self, session: Session) -> str:
        inside = session.open_within(self._root)
        step = next((span for span in inside if span.kind == "step"), None)
        phase = next((span.kind for span in inside if span.kind in PHASES), "")
        if step is not None:
            name = _name_of(step, session)
            return f"{name} ({phase})" if phase else name
        return (inside[0].label or inside[0].kind) if inside else ""

    def _on(self, session: Session, device: str) -> float:
        """Return the budget of a device in bytes; NaN if it is a share of an unknown total."""
        total = next((each.total for each in session.devices if each.key == device), math.nan)
        return self._limit.on(total)

    def _warning(self, session: Session, crossing: Crossing, highest: float = math.nan) -> Finding:
        """Return the warning; `highest` is the peak in bytes, NaN while the watch runs."""
        budget, metric = self._on(session, crossing.device), self._limit.metric
        of_what = OF_WHAT[metric]
        title = f"{crossing.device} exceeded its budget of {format_bytes(budget)}{of_what and f' {of_what}'}"
        when = {"at the start": "from the start", "between samples": "between two samples"}
        title += f" {when.get(crossing.seen, f'after {format_duration(crossing.seconds)}')}"
        if crossing.where and crossing.seen != "at the start":
            title += f", in {crossing.where}"
        if math.isfinite(highest):
            title += f", by {format_bytes(highest - budget)} at its peak"
        else:
            title += f": {format_bytes(crossing.allocated)} {of_what or 'allocated'}"
        evidence: dict[str, object] = {"device": crossing.device, "budget": round(budget)}
        evidence |= {metric: round(crossing.allocated), "seconds": crossing.seconds}
        evidence |= {"where": crossing.where, "seen": crossing.seen}
        if math.isfinite(crossing.seconds):
            evidence["time"] = self._began + crossing.seconds
        if math.isfinite(highest):
            evidence["peak"] = round(highest)
        if self._ended_after:
            title += f"; training was ended after step {self._ended_after}, with a checkpoint"
            evidence["ended_after_step"] = self._ended_after
        advice = self._advice() if math.isfinite(highest) else ()
        return Finding("budget", "warn", title, evidence, advice, self._root)

    def _advice(self) -> tuple[str, ...]:
        if not self._stop or self._ended_after:
            return ()
        if not self._training_has_asked:
            return (NONE_TO_STOP,)
        return (NO_STEP_LEFT if self._is_alone else NOT_ALONE,)


def _name_of(step: Span, session: Session) -> str:
    number = step.counts.get("step", session.steps.count + 1)
    return f"step {number:.0f}" if step.label == "step" else step.label


def should_end(step: int, *, alone: bool, is_last: bool = False) -> bool:
    """Return whether any watch asks for the end of a training after a step; each of them notes the step."""
    budgets = tuple(begun(Budget))
    answers = [each.should_end(step, alone=alone, is_last=is_last) for each in budgets]
    return any(answers)
