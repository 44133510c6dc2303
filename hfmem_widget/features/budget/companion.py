"""``--budget``: a warning, once, when more is allocated on a device than was meant; ``--stop`` acts on it."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from hfmem_widget.monitor import ending
from hfmem_widget.monitor.companion import Companion
from hfmem_widget.monitor.monitor import Monitor
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import Device, Finding, Guide, Recorder, Sample, Session, Span
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
    """When a device was first above its budget.

    Attributes
    ----------
    device : str
    seen : {"at the start", "in a sample", "between samples"}
        The last, where only an exact peak shows it.
    allocated : float
        Bytes: what was read, or the exact peak.
    seconds : float
        Since the watch began; NaN where that is not known.
    where : str
        Such as "step 41 (forward)"; empty where nothing was told apart.
    """

    device: str
    seen: Seen
    allocated: float
    seconds: float = math.nan
    where: str = ""


class Budget(Companion):
    """Notes the first crossing, on whichever thread sees it first.

    Parameters
    ----------
    options : WatchOptions
        With a budget.
    """

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
        self._told_before: frozenset[str] = frozenset()
        self._held_back: Crossing | None = None
        self._was_asked = False
        self._alone = True
        self._ended_after = 0

    def begin(self, monitor: Monitor, recorder: Recorder, span: Span) -> None:
        """Look at every sample, and at every step's peak, from now on."""
        del monitor
        self._session = session = recorder.session
        self._root, self._began = span.id, span.start
        self._told_before = frozenset(self._above_since_earlier(session, span))
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
        """Complete the warning by what is known now: the exact peak, and whether a training was ended."""
        if self._ended_after and self._crossing is None and self._held_back is not None:
            # An earlier cell has warned, but nobody has told yet what that came to here.
            self._told_before = frozenset()
            self._cross(session, self._held_back)
        for device, peak in self._peaks(session, span):
            self._cross(session, Crossing(device.key, "between samples", peak))
        before, crossing = self._finding, self._crossing
        if before is not None and crossing is not None:
            peaks = {device.key: peak for device, peak in self._peaks(session, span)}
            highest = max(crossing.allocated, peaks.get(crossing.device, 0.0))
            session.findings[session.findings.index(before)] = self._told(crossing, highest)
        return {}

    def _look(self, session: Session, samples: Sequence[Sample]) -> None:
        """Compare the newest sample."""
        for sample in samples[-1:]:
            self._compare(session, sample, "in a sample")

    def _compare(self, session: Session, sample: Sample, seen: Seen) -> None:
        for device in self._devices(session):
            self._draw(session, device)
            allocated = session.value(sample, f"{device.key}/allocated")
            if allocated > self._budget:
                where = self._where(session) if self._crossing is None else ""
                seconds = sample.time - self._began
                self._cross(session, Crossing(device.key, seen, allocated, seconds, where))

    def _step_ended(self, step: Span) -> None:
        """Compare a step's peak, which no sample need have shown."""
        session = self._session
        for device, peak in self._peaks(session, step) if session is not None else ():
            seconds = step.start + step.duration - self._began
            crossing = Crossing(device.key, "between samples", peak, seconds, step.label)
            self._cross(session, crossing)

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
            if crossing.device in self._told_before:
                self._held_back = self._held_back or crossing
                return
            if self._crossing is not None:
                return
            self._crossing = crossing
        self._finding = self._told(crossing, math.nan)
        session.findings.append(self._finding)

    def _above_since_earlier(self, session: Session, span: Span) -> Iterator[str]:
        """Yield the devices that are above it still, of which an earlier cell of the session has warned."""
        for one in session.findings:
            device = str(one.evidence.get("device"))
            is_same = one.kind == "budget" and one.evidence.get("budget") == round(self._budget)
            if is_same and session.value(span.before, f"{device}/allocated") > self._budget:
                yield device

    def _peaks(self, session: Session, span: Span) -> list[tuple[Device, float]]:
        keys = ((device, f"{device.key}/allocated") for device in self._devices(session))
        return [(device, span.peaks[key].value) for device, key in keys if key in span.peaks]

    def _devices(self, session: Session) -> list[Device]:
        """Return the devices that have the budget: those asked for, else the GPUs, else the host."""
        devices = [one for one in session.devices if not self._wanted or one.key in self._wanted]
        return [one for one in devices if ":" in one.key] or devices

    def _draw(self, session: Session, device: Device) -> None:
        """Draw the budget over a device's chart, once."""
        line = Guide(
            device.key,
            "budget",
            f"budget {format_bytes(self._budget)}",
            start=self._began,
            stop=math.inf,
            first=self._budget,
            last=self._budget,
        )
        drawn = ((one.device, one.kind, one.first) for one in session.guides)
        if (line.device, line.kind, line.first) not in drawn:
            session.guides.append(line)

    def _where(self, session: Session) -> str:
        inside = session.open_within(self._root)
        step = next((one for one in inside if one.kind == "step"), None)
        phase = next((one.kind for one in inside if one.kind in PHASES), "")
        if step is not None:
            return f"{step.label} ({phase})" if phase else step.label
        return (inside[0].label or inside[0].kind) if inside else ""

    def _told(self, crossing: Crossing, highest: float) -> Finding:
        """Return the warning; `highest` is NaN as long as it is not over."""
        budget, device = format_bytes(self._budget), crossing.device
        if crossing.seen == "at the start":
            title = f"{device} exceeded its budget of {budget} from the start"
        else:
            title = f"{device} exceeded its budget of {budget}"
            if crossing.seen == "between samples":
                title += " between two samples"
            elif math.isfinite(crossing.seconds):
                title += f" after {format_duration(crossing.seconds)}"
            title += f", in {crossing.where}" if crossing.where else ""
        if math.isnan(highest):
            title += f": {format_bytes(crossing.allocated)} allocated"
        else:
            title += f", by {format_bytes(highest - self._budget)} at its peak"
        if self._ended_after:
            title += f"; training was ended after step {self._ended_after}, with a checkpoint"
        evidence: dict[str, object] = {
            "device": device,
            "budget": round(self._budget),
            "allocated": round(crossing.allocated),
            "seconds": crossing.seconds,
            "where": crossing.where,
            "seen": crossing.seen,
        }
        if math.isfinite(highest):
            evidence["peak"] = round(highest)
        if self._ended_after:
            evidence["ended_after_step"] = self._ended_after
        is_over = math.isfinite(highest)
        return Finding(
            "budget", "warn", title, evidence, self._advice() if is_over else (), self._root
        )

    def _advice(self) -> tuple[str, ...]:
        """Return why nothing was ended, where it was to be."""
        if not self._stop or self._ended_after:
            return ()
        if not self._was_asked:
            return (NONE_TO_STOP,)
        return (NO_STEP_LEFT if self._alone else NOT_ALONE,)
