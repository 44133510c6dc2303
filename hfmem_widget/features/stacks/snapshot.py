"""A snapshot of torch's allocator in a file: read as mere data, and shown by the places that held memory."""

import mmap
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hfmem_widget.errors import OptionError
from hfmem_widget.features.stacks.call_sites import READ_AS
from hfmem_widget.features.stacks.html import peaks_shown
from hfmem_widget.features.stacks.live_at_peak import live_peak, replay
from hfmem_widget.recording.file import open_regular
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.session.segments import NO_POOL, Event, MemoryMap, segments_of
from hfmem_widget.session.stacks import NO_NAMES, LivePeak, Snapshot, StackRecording, Stacks
from hfmem_widget.sources.plain_pickle import NotPlainError, load
from hfmem_widget.text import format_bytes, format_counted, format_duration, format_share, plain
from hfmem_widget.view import html as kit
from hfmem_widget.view.explained import MOST_ITEMS, ExplainedDevice, Explanation

LARGEST = 4 << 30  # bytes of a file
MOST_DEVICES = 256
PACKAGES = sysconfig.get_path("purelib")
NOT_TORCHS = "it is not a snapshot of torch's allocator"


def open_snapshot(path: Path) -> Snapshot:
    """Read a file of ``torch.cuda.memory._dump_snapshot``, or of segments alone, or raise `OptionError`.

    None of its code is run, and none of the files that it names is opened.
    """
    try:
        return _read(path)
    except (NotPlainError, MemoryError) as error:
        raise OptionError(f"{plain(path)} cannot be opened: {str(error) or 'too large'}") from None


def _read(path: Path) -> Snapshot:
    with open_regular(path) as file:
        size = file.seek(0, 2)
        if size > LARGEST:
            raise NotPlainError(f"it has more than {format_bytes(LARGEST)}")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            loaded = load(data)
    try:
        snapshot = _checked({"segments": loaded} if isinstance(loaded, list) else loaded, size)
        segments = segments_of(snapshot["segments"])
    except (KeyError, TypeError, ValueError, AttributeError):
        raise NotPlainError(NOT_TORCHS) from None
    own = {each["device"] for each in snapshot["segments"]}
    own |= {at for at, trace in enumerate(snapshot["device_traces"]) if trace}
    peaks = sorted((_live_peak(snapshot, at) for at in own), key=lambda peak: -peak.bytes)
    devices = tuple(f"cuda:{device}" for device in sorted(own))
    stacks = Stacks(tuple(peaks), StackRecording("allocator"))
    return Snapshot(plain(path.name), stacks, MemoryMap(devices, segments))


def _live_peak(snapshot: Mapping[str, Any], device: int) -> LivePeak:
    history = replay(snapshot, device)
    # A block from before the history with a stack was recorded: its event was overwritten.
    is_cut = bool(history.times) and bool(history.table.stacks[history.table.born == 0].any())
    return replace(live_peak(history, f"cuda:{device}"), wrapped=is_cut)


def _checked(snapshot: Mapping[str, Any], size: int) -> Mapping[str, Any]:
    """Return the shown parts of a snapshot; raise `ValueError` if its figures or frames are impossible.

    References would let a small file list more entries than it has bytes; `size` is that of the file.
    """
    segments, traces = _list(snapshot["segments"]), _list(snapshot.get("device_traces", []))
    listed = [_list(each["blocks"]) for each in segments] + [_list(trace) for trace in traces]
    _need(sum(map(len, listed)) <= size and len(traces) <= MOST_DEVICES)
    stacks: dict[int, Any] = {}
    for trace in traces:
        _need(set(map(type, trace)) <= {Event})
        _need(_are_amounts(*{event.size for event in trace}))
        _need(_are_amounts(*{event.address for event in trace}, bits=64))
        _need(
            _are_amounts(*(event.time_us for event in trace if event.time_us is not None), bits=62)
        )
        stacks |= {id(event.frames): event.frames for event in trace}
    for segment in segments:
        _need(_are_amounts(segment["address"], segment.get("stream", 0), bits=64))
        _need(
            _are_amounts(segment["total_size"]) and segment.setdefault("device", 0) < MOST_DEVICES
        )
        pool = segment.get("segment_pool_id", NO_POOL)
        _need(len(pool) == len(NO_POOL) and _are_amounts(segment["device"], *pool))
        for block in segment["blocks"]:
            _need(_are_amounts(block["size"], block.get("requested_size") or 0))
            _need(_are_amounts(block.get("address", 0), bits=64))
            stacks[id(block.get("frames"))] = block.get("frames") or []
    frames = {id(frame): frame for stack in stacks.values() for frame in _list(stack or [])}
    for frame in frames.values():
        _look(frame)
    return {"segments": segments, "device_traces": traces}


def _need(holds: bool) -> None:  # noqa: FBT001
    if not holds:
        raise ValueError


def _list(value: Any) -> list[Any]:
    _need(isinstance(value, list))
    return value  # type: ignore[no-any-return]


def _are_amounts(*amounts: Any, bits: int = 52) -> bool:
    kinds = set(map(type, amounts))
    return kinds <= {int} and (not amounts or (min(amounts) >= 0 and max(amounts) < 1 << bits))


def _look(frame: dict[str, Any]) -> None:
    name = frame["filename"]
    _need(isinstance(name, str) and isinstance(frame["name"], str) and _are_amounts(frame["line"]))
    _, is_library, tail = name.rpartition("-packages/")
    here = Path(PACKAGES, tail)
    is_here = is_library and tail.endswith(".py") and ".." not in here.parts and "\0" not in tail
    frame[READ_AS] = str(here) if is_here and here.is_file() else ""


def snapshot_bundle(snapshot: Snapshot) -> dict[str, str]:
    """Return each device's memory over time, at the peak and by segments, by MIME type."""
    peaks = [peak for peak in snapshot.stacks.peaks if peak.bytes or peak.entries]
    map_bundle = snapshot.memory_map._repr_mimebundle_()
    heading = kit.headed(
        snapshot.name, format_counted(sum(peak.entries for peak in peaks), "event")
    )
    notes = kit.notes(snapshot.notes)
    shown = kit.bundle(
        heading, kit.line(_lead(peaks)), *peaks_shown(peaks), *notes, title=snapshot.name
    )
    return kit.below(shown, map_bundle["text/html"], [map_bundle["text/plain"]])


def _lead(peaks: Sequence[LivePeak]) -> str:
    rows = peaks[0].rows() if peaks else ()
    if not rows:
        return "Nothing was allocated."
    most = peaks[0]
    allocated = f"{format_bytes(most.bytes)} was allocated on {most.device} {most.moment}"
    lines = (
        f"; the most from one line is {format_bytes(row.bytes)} ({format_share(row.share)}): {row.name}"
        for row in rows
        if row.name not in NO_NAMES
    )
    return f"{allocated}{next(lines, '')}."


def history_text(peak: LivePeak) -> str:
    """Return the length of a device's history, such as ``433 events over 2.4 s``."""
    over_time = peak.over_time
    lasted = over_time.moments[-1] if over_time is not None and over_time.is_timed else 0.0
    over = f" over {format_duration(lasted)}" if lasted else ""
    older = "; older ones are gone" if peak.wrapped else ""
    return f"{format_counted(peak.entries, 'event')}{over}{older}" if peak.entries else "no events"


def explained(snapshot: Snapshot) -> Explanation:
    """Return where the memory was at the peak of the history, or else when the snapshot was taken."""
    peaks = snapshot.stacks.peaks
    segments = snapshot.memory_map.fragmentation(peaks[0].device if peaks else "")
    free, reserved = sum(pool.free for pool in segments.places), format_bytes(segments.reserved)
    held = f"{reserved} was reserved there when it was taken, {format_bytes(free)} of it free."
    return Explanation(
        label=snapshot.name,
        outcome=f"a snapshot with {history_text(peaks[0]) if peaks else 'no events'}",
        sentence=" ".join((_lead(peaks), *([held] if peaks else []), *snapshot.notes)),
        devices=tuple(map(_explained, peaks)),
        lines=snapshot.stacks.rows()[:MOST_ITEMS],
    )


def _explained(peak: LivePeak) -> ExplainedDevice:
    unknown, allocated = NOT_AVAILABLE, peak.over_time and peak.over_time.allocated
    before, after = (allocated[0], allocated[-1]) if allocated else (unknown, peak.bytes)
    known = peak.peak.value, peak.peak.certainty, unknown, before, after
    return ExplainedDevice(peak.device, "", unknown, *known, unknown, ())
