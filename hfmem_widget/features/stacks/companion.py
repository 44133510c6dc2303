"""Records stacks on request, for the live memory at the peak and the places of its allocation."""

import pickle
import sys
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hfmem_widget.features.stacks.dispatch_tracker import (
    OperatorTracker,
    Tracked,
    without_frames_of_ours,
)
from hfmem_widget.features.stacks.live_at_peak import Snapshot, live_peak, replay
from hfmem_widget.monitor.companion import Companion
from hfmem_widget.monitor.monitor import Monitor
from hfmem_widget.monitor.on_import import WhenImported
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import Recorder, Sample, Session, Span
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.session.stacks import LivePeak, StackRecording, Stacks
from hfmem_widget.sources import open_allocators
from hfmem_widget.sources.torch_history import Recorded
from hfmem_widget.text import format_bytes, format_duration

MOST_KEPT = 128 * 1024**2  # bytes of a compressed snapshot that a session keeps

TORCH_CAME_LATER = (
    "No stacks were recorded: the cell itself imported torch, too late to trace its CPU operators. Run the "
    "cell again."
)
WITHOUT_TORCH = "No stacks were recorded: torch was not imported."


class StacksCompanion(Companion):
    """Records while the code runs; follows operators until a device with a history of allocations is up."""

    def __init__(self, options: WatchOptions) -> None:
        devices = options.devices
        self._with_cpu = not devices or "cpu" in devices
        self._with_cuda = not devices or any(key != "cpu" for key in devices)
        self._tracker = OperatorTracker()
        histories = [(each, each.history(self._tracker.pause)) for each in open_allocators()]
        self._histories = [history for _, history in histories if history is not None]
        self._allocators = [allocator for allocator, history in histories if history is not None]
        # A tick may be too late: one line often imports torch and initialises CUDA.
        self._when_imported = WhenImported({"torch": lambda _: self._look(imported=True)})
        self._tracked: Tracked | None = None

    def begin(self, monitor: Monitor, recorder: Recorder, span: Span) -> None:
        """Begin to record on the devices that are up, and wait for the others."""
        if self._with_cuda:
            self._look()
            self._when_imported.begin()
            recorder.subscribe(self._on_tick)
        is_up = self._with_cuda and any(allocator.devices() for allocator in self._allocators)
        if self._with_cpu and not is_up:
            self._tracker.begin()

    def end(self, recorder: Recorder, span: Span, error: BaseException | None) -> None:
        """Stop following operators."""
        recorder.unsubscribe(self._on_tick)
        self._when_imported.end()
        self._tracked = self._tracker.end()
        if error is not None:
            without_frames_of_ours(error)

    def report(self, session: Session, span: Span) -> Mapping[str, str] | None:
        """Return the table and the picture; if nothing was recorded, only a note."""
        recorded = self._end_recording(session)
        if recorded is None:
            return None
        exact_peaks = tuple(_with_exact_peaks(peak, span) for peak in recorded.peaks)
        session.stacks = stacks = replace(recorded, peaks=exact_peaks)
        from hfmem_widget.features.stacks.html import stacks_bundle

        # Times on the card count from the start of this cell, not of the session.
        recording = replace(stacks.recording, began=max(0.0, stacks.recording.began - span.start))
        peaks = tuple(_since(peak, span.start) for peak in stacks.peaks)
        return stacks_bundle(replace(stacks, peaks=peaks, recording=recording))

    def _on_tick(self, session: Session, samples: Sequence[Sample]) -> None:
        self._look()

    def _look(self, *, imported: bool = False) -> None:
        for history in self._histories:
            history.look(imported=imported)

    def _end_recording(self, session: Session) -> Stacks | None:
        ended = [history.end() for history in self._histories] if self._with_cuda else []
        recorded = next(filter(None, ended), None)
        stacks = None
        if recorded is not None:
            stacks = _of_allocator(recorded, session)
        elif self._tracked is not None:
            stacks = _of_operators(self._tracked, session)
        note = next(filter(None, (history.obstacle for history in self._histories)), "")
        if not note and stacks is None:
            note = TORCH_CAME_LATER if "torch" in sys.modules else WITHOUT_TORCH
        if note and note not in session.notes:
            session.notes.append(note)
        return stacks


def _of_allocator(recorded: Recorded, session: Session) -> Stacks:
    began = time.perf_counter()
    snapshot, start = recorded.snapshot, max(0.0, recorded.began_at - session.started_at)
    peaks, stacks_walked = [], 0
    for device, trace in enumerate(snapshot["device_traces"]):
        key = f"{recorded.device_type}:{device}"
        if not trace or session.index(f"{key}/allocated") is None:
            continue
        stacks_walked += sum(event["action"] == "alloc" for event in trace)
        wrapped = len(trace) >= recorded.most
        peaks.append(_live_peak(snapshot, device, key, session, began=None if wrapped else start))
    seconds = stacks_walked * recorded.per_stack
    recording = StackRecording("allocator", start, seconds, snapshot=recorded.seconds)
    return _kept(snapshot, peaks, recording, began)


def _of_operators(tracked: Tracked, session: Session) -> Stacks:
    began = time.perf_counter()
    since = None if tracked.wrapped else 0.0
    peak = _live_peak(tracked.snapshot, 0, "cpu", session, began=since)
    lasted = format_duration(tracked.aside)
    note = f"torch.profiler ran for {lasted}. Operators were not traced meanwhile: they would count twice."
    notes = (note,) if tracked.aside else ()
    recording = StackRecording("operators", seconds=tracked.seconds, notes=notes)
    return _kept(tracked.snapshot, [peak], recording, began)


def _kept(
    snapshot: Snapshot, peaks: Sequence[LivePeak], recording: StackRecording, began: float
) -> Stacks:
    """Return what is kept of a recording, whose reading `began` then, in seconds of `time.perf_counter`."""
    pickled, notes = zlib.compress(pickle.dumps(snapshot, protocol=4), level=1), recording.notes
    if len(pickled) > MOST_KEPT:
        sizes = f"{format_bytes(len(pickled))} is more than {format_bytes(MOST_KEPT)}"
        pickled, notes = b"", (*notes, f"The snapshot was dropped: {sizes}.")
    seconds = recording.snapshot + time.perf_counter() - began
    by_size = tuple(sorted(peaks, key=lambda peak: -peak.bytes))
    return Stacks(by_size, replace(recording, snapshot=seconds, notes=notes), pickled)


def _live_peak(
    snapshot: Snapshot, device: int, key: str, session: Session, *, began: float | None
) -> LivePeak:
    """Return a device's peak; `began` is None if older events were overwritten."""
    history = replay(snapshot, device)
    peak = live_peak(history, key)
    if history.times and history.times[0] is not None:
        peak = _since(peak, session.started_at - history.times[0] / 1e6)
    return replace(peak, wrapped=True) if began is None else replace(peak, since=began)


def _since(peak: LivePeak, start: float) -> LivePeak:
    return replace(
        peak,
        time=max(peak.time - start, 0.0),  # NaN stays
        since=max(0.0, peak.since - start),
        over_time=peak.over_time and peak.over_time.since(start),
    )


def _with_exact_peaks(live: LivePeak, span: Span) -> LivePeak:
    def exact(metric: str) -> float:
        peak = span.peaks.get(f"{live.device}/{metric}")
        return peak.value if peak is not None and peak.certainty == "exact" else NOT_AVAILABLE

    allocated, requested = exact("allocated"), exact("requested")
    return replace(live, allocated=allocated, requested=requested, span_id=span.id)
