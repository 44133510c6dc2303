"""All sources as one row of values."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from hfmem_widget.session import Device, Series
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.sources import Source

READ_TIMEOUT = 0.05
"""Seconds to wait while another thread reads the same source, where that reading cannot hang."""

STALE_AFTER = 1.0
"""Seconds after which a reading no longer stands for now: what a hung source said last is not repeated."""


@dataclass(slots=True)
class _Reader:
    """One source, and which columns of the row are its own."""

    source: Source
    columns: list[int] = field(default_factory=list)
    devices: tuple[Device, ...] = ()
    busy: threading.Lock = field(default_factory=threading.Lock)
    latest: Sequence[float] = ()
    latest_at: float = -1e300
    failed: bool = False
    notes_taken: int = 0


class Sampler:
    """Reads sources into rows whose columns only ever grow, at the end.

    Parameters
    ----------
    sources : sequence of Source
    clock : callable, optional
        Monotonic seconds.
    """

    def __init__(
        self, sources: Sequence[Source], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.devices: tuple[Device, ...] = ()
        self.series: tuple[Series, ...] = ()
        self._faults: list[str] = []
        self._clock = clock
        self._readers = [_Reader(source) for source in sources]
        self._layout = threading.Lock()

    def poll(self) -> tuple[float, ...]:
        """Read every source once; for the poller's thread."""
        for reader in self._readers:
            self._read(reader)
        return self._row()

    def edge(self) -> tuple[float, ...]:
        """Read what never blocks, and take the rest as last polled; for the user's thread."""
        for reader in self._readers:
            if not reader.source.blocks:
                self._read(reader)
        return self._row()

    def replace_locks(self) -> None:
        """Forget who holds which lock: for a forked child, where those threads do not exist."""
        self._layout = threading.Lock()
        for reader in self._readers:
            reader.busy = threading.Lock()

    def close(self) -> None:
        """Give back what the sources opened."""
        for reader in self._readers:
            reader.source.close()

    def _read(self, reader: _Reader) -> None:
        # A call that hangs keeps its lock for as long: whoever comes next goes on without it.
        patience = 0 if reader.source.blocks else READ_TIMEOUT
        if reader.failed or not reader.busy.acquire(timeout=patience):
            return
        try:
            reader.latest = reader.source.read(self._clock())
            reader.latest_at = self._clock()
        except Exception as error:  # noqa: BLE001  (a fault of ours must not reach the user's cell)
            reader.failed = True
            reader.latest = ()
            self._faults.append(
                f"Reading {reader.source.name} failed ({type(error).__name__}: {error}); "
                "the other figures are unaffected. Please report this."
            )
        finally:
            reader.busy.release()

    def _row(self) -> tuple[float, ...]:
        # The poller and the user's thread may both come here while a device appears.
        with self._layout:
            self._follow_sources()
            oldest = self._clock() - STALE_AFTER
            row = [NOT_AVAILABLE] * len(self.series)
            for reader in self._readers:
                if reader.latest_at >= oldest:
                    for column, value in zip(reader.columns, reader.latest, strict=False):
                        row[column] = value
        return tuple(row)

    def _follow_sources(self) -> None:
        for reader in self._readers:
            source = reader.source
            if source.devices is not reader.devices or len(source.series) != len(reader.columns):
                break
        else:
            return
        series = list(self.series)
        for reader in self._readers:
            reader.devices = reader.source.devices
            for new in reader.source.series[len(reader.columns) :]:
                reader.columns.append(len(series))
                series.append(new)
        self.series = tuple(series)
        self.devices = merge_devices([reader.devices for reader in self._readers])

    def take_notes(self) -> list[str]:
        """Return what the sources have had to say since the last time."""
        new: list[str] = []
        for reader in self._readers:
            said = reader.source.notes
            if len(said) > reader.notes_taken:
                new += said[reader.notes_taken :]
                reader.notes_taken = len(said)
        if self._faults:
            new += self._faults
            self._faults = []
        return new


def merge_devices(known: Sequence[Sequence[Device]]) -> tuple[Device, ...]:
    """Join what several sources know of the same devices; the first to know a field is believed."""
    merged: dict[str, Device] = {}
    for devices in known:
        for device in devices:
            first = merged.get(device.key)
            merged[device.key] = device if first is None else _join(first, device)
    return tuple(sorted(merged.values(), key=lambda device: _order(device.key)))


def _join(first: Device, second: Device) -> Device:
    return replace(
        first,
        name=first.name or second.name,
        uuid=first.uuid or second.uuid,
        # torch tells the capacity without the driver's reserve, NVML with it; the reserve is a series.
        total=max(filter(math.isfinite, (first.total, second.total)), default=math.nan),
        provisional=first.provisional and second.provisional,
    )


def _order(key: str) -> tuple[bool, str, int]:
    kind, _, index = key.partition(":")
    # The host comes last: it is the one device without an index.
    return (not index, kind, int(index) if index.isdigit() else 0)
