"""Reads all sources into one row of values by series."""

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from hfmem_widget.errors import is_limit
from hfmem_widget.session import Device, Series
from hfmem_widget.sources import Source
from hfmem_widget.sources.allocator import Instant

Row = Mapping[str, float]
"""Values by series key; a series is missing if its source has no value now."""

READ_TIMEOUT = 0.05
"""Seconds to wait while another thread reads the same source, where that reading cannot hang."""

CLOSE_TIMEOUT = 1.0
"""Seconds to wait for another thread's reading before its source is closed."""

FINE_AGE = 0.1
"""Seconds up to which a reading may be old at the edges of a step's parts, at any cost."""

FINE_SHARE = 0.005
"""Share of the time that reading may take at these edges where there is no GPU. In a process that trains,
walking the heap takes 0.15 ms (1,300 free pieces that are in no cache), and a step has six edges."""

FULLEST_SHARE = 0.05
"""The same where a step or one of its parts begins, so that it does not get a high of the part before."""

BESIDE_PERIOD = 0.45
"""Seconds between looks at what is secondary (the host) while an allocator has devices."""

STALE_AFTER = 1.0
"""Seconds after which a reading is too old: the last values of a hung source are not repeated."""


@dataclass(slots=True)
class _Reader:
    source: Source
    devices: Sequence[Device] = ()  # those that were taken over from it
    series: Sequence[Series] = ()
    keys: Sequence[str] = ()  # of the series
    busy: threading.Lock = field(default_factory=threading.Lock)
    latest: Sequence[float] = ()
    latest_at: float = -1e300
    period: float = 0.0
    cost: float = 0.0
    failed: bool = False
    notes_taken: int = 0


class Sampler:
    """Reads sources into rows with the values of its `series`, which are only added at the end.

    Its `version` rises whenever `devices` or `series` have changed, or a source has added a note.
    """

    def __init__(
        self, sources: Sequence[Source], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.devices: tuple[Device, ...] = ()
        self.series: tuple[Series, ...] = ()
        self.version = 0
        self._notes: list[str] = []
        self._clock = clock
        self._readers = [_Reader(source) for source in sources]
        self._adopting = threading.Lock()

    def poll(self, instant: Instant | None = None) -> Row:
        """Read every source once; for the poller's thread. `instant` is as in `edge`."""
        return self.edge(instant, is_tick=True)

    def edge(
        self,
        instant: Instant | None = None,
        *,
        share: float | None = None,
        is_fine: bool = False,
        is_tick: bool = False,
    ) -> Row:
        """Read what never blocks, and take the rest as last polled; for the user's thread.

        With `is_tick` everything is read: `poll`. What an `instant` has is not read again. Nor is what was
        read a moment ago, if edges are very many and reading may take a `share` of the time only. If the edge
        `is_fine`, of a step or its parts, what is secondary is left to the poller beside a GPU.
        """
        now = self._clock()
        read: list[Sequence[float]] = []
        for reader in self._readers:
            source = reader.source
            values = None if instant is None else source.at(instant)
            # Devices that its source has not seen yet come in by a reading of its own.
            if values is None or len(values) != len(reader.series):
                if is_tick:
                    age = reader.period
                elif is_fine and reader.period:
                    age = STALE_AFTER
                else:
                    age = 0.0 if share is None else min(FINE_AGE, reader.cost / share)
                if (
                    now >= source.due
                    and (is_tick or not source.blocks)
                    and now - reader.latest_at >= age
                ):
                    self._read(reader)
                is_recent = reader.latest_at >= now - STALE_AFTER
                values = values or (reader.latest if is_recent else ())
            read.append(values)
        for reader in self._readers:
            source = reader.source
            if source.series is not reader.series or source.devices is not reader.devices:
                self._adopt()
                break
        row: dict[str, float] = {}
        for reader, values in zip(self._readers, read, strict=True):
            row.update(zip(reader.keys, values, strict=False))
        return row

    def refresh(self) -> None:
        """Have the next reading include what is usually a few seconds old."""
        for reader in self._readers:
            reader.source.refresh()

    def take_notes(self) -> list[str]:
        """Return the notes of the sources since the last time."""
        notes, self._notes = self._notes, []
        return notes

    def try_again(self) -> None:
        """Read again what has failed."""
        for reader in self._readers:
            reader.failed = False

    def replace_locks(self) -> None:
        """Make new locks: for a forked child, where the threads that hold them do not exist."""
        self._adopting = threading.Lock()
        for reader in self._readers:
            reader.busy = threading.Lock()

    def close(self) -> None:
        """Close the sources, except one whose reading hangs."""
        for reader in self._readers:
            # Shutting down the driver's library during a call crashes the process (nvitop#222).
            if reader.busy.acquire(timeout=CLOSE_TIMEOUT):
                reader.source.close()
                reader.busy.release()

    def _read(self, reader: _Reader) -> None:
        if reader.failed:
            return
        # A call that hangs keeps its lock; the next reading goes on without that source.
        busy = reader.busy
        if not busy.acquire(blocking=False) and (
            reader.source.blocks or not busy.acquire(timeout=READ_TIMEOUT)
        ):
            return
        try:
            started = self._clock()
            reader.latest = reader.source.read(started)
            reader.latest_at = self._clock()
            reader.cost = reader.latest_at - started
            notes = reader.source.notes
            if len(notes) > reader.notes_taken:
                self._note(*notes[reader.notes_taken :])
                reader.notes_taken = len(notes)
        except Exception as error:  # noqa: BLE001  (a fault of ours must not reach the user's cell)
            reader.latest = ()
            if not is_limit(error):
                reader.failed = True
                self._note(
                    f"Reading {reader.source.name} failed ({type(error).__name__}: {error}); "
                    "the other figures are unaffected. Please report this."
                )
        finally:
            busy.release()

    def _note(self, *sentences: str) -> None:
        self._notes += sentences
        self.version += 1

    def _adopt(self) -> None:
        # The poller and the user's thread may both come here while a device appears.
        with self._adopting:
            sources = [reader.source for reader in self._readers]
            found = [(source.devices, source.series) for source in sources]
            every = chain(self.series, *(series for _, series in found))
            self.series = tuple({each.key: each for each in every}.values())
            self.devices = merge_devices([devices for devices, _ in found])
            self.version += 1
            for reader, (devices, series) in zip(self._readers, found, strict=True):
                reader.devices, reader.series = devices, series
                reader.keys = [each.key for each in series]
            # Beside an allocator that has devices, which is read at every edge.
            if any(
                source.devices and not (source.blocks or source.secondary) for source in sources
            ):
                for reader, source in zip(self._readers, sources, strict=True):
                    reader.period = BESIDE_PERIOD if source.secondary else 0.0
                    source.is_beside = source.secondary


def merge_devices(devices_of_sources: Sequence[Sequence[Device]]) -> tuple[Device, ...]:
    """Join what several sources know of the same devices; the first to know a field is believed."""
    merged: dict[str, Device] = {}
    for device in chain.from_iterable(devices_of_sources):
        first = merged.setdefault(device.key, device)
        merged[device.key] = replace(
            first,
            name=first.name or device.name,
            uuid=first.uuid or device.uuid,
            # The capacity lacks the driver's reserve in torch, and has it in NVML; the reserve is a series.
            total=max(filter(math.isfinite, (first.total, device.total)), default=math.nan),
            provisional=first.provisional and device.provisional,
            shared=first.shared or device.shared,
        )
    return tuple(sorted(merged.values(), key=_place))


def _place(device: Device) -> tuple[bool, str, int]:
    kind, _, index = device.key.partition(":")
    # The host comes last: it is the one device without an index.
    return (not index, kind, int(index) if index.isdigit() else 0)
