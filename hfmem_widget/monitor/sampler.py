"""All sources as one row of values."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hfmem_widget.session import Device, Series
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.sources import Source
from hfmem_widget.sources.host import HostSource
from hfmem_widget.sources.torch_cuda import TorchCudaSource

READ_TIMEOUT = 0.05
"""Seconds to wait while another thread reads the same source, where that reading cannot hang."""

FINE_AGE = 0.1
"""Seconds: how old the host's figures may be at the edges of a step's parts, where a GPU's are fresh."""

FINE_SHARE = 0.005
"""Of the time: what reading may take at these edges where there is no GPU. In a process that trains,
walking the heap takes 0.15 ms (1,300 free pieces that are in no cache), and a step has six edges."""

FULLEST_SHARE = 0.05
"""The same where a step or one of its parts begins: a high of the part before it is not its own."""

BESIDE_PERIOD = 0.15
"""Seconds between looks at the host while CUDA is up: it is then the lesser of two, and a third of a tick."""

STALE_AFTER = 1.0
"""Seconds after which a reading no longer stands for now: what a hung source said last is not repeated."""

Known = Mapping[str, Sequence[float]]
"""By a source's name, the values of its series where somebody has just read them."""

NOTHING_KNOWN: Known = {}


@dataclass(slots=True)
class _Reader:
    """One source, and which columns of the row are its own."""

    source: Source
    columns: list[int] = field(default_factory=list)
    devices: tuple[Device, ...] = ()
    busy: threading.Lock = field(default_factory=threading.Lock)
    latest: Sequence[float] = ()
    latest_at: float = -1e300
    period: float = 0.0
    cost: float = 0.0
    failed: bool = False
    notes_taken: int = 0
    name: str = field(init=False)
    blocks: bool = field(init=False)

    def __post_init__(self) -> None:
        self.name, self.blocks = self.source.name, self.source.blocks


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
        self._order: tuple[int, ...] = ()
        """For each column of a row, where it stands among the values of one source after the other."""
        self._layout = threading.Lock()

    def poll(self, known: Known = NOTHING_KNOWN) -> tuple[float, ...]:
        """Read every source once; for the poller's thread. `known` is as in `edge`."""
        return self._read_all(known)

    def edge(
        self, known: Known = NOTHING_KNOWN, *, share: float | None = None
    ) -> tuple[float, ...]:
        """Read what never blocks, and take the rest as last polled; for the user's thread.

        Parameters
        ----------
        known : mapping of str to sequence of float, optional
            What need not be read again, by a source's name: the values of its series.
        share : float, optional
            Of the time, what reading may take at edges that are very many: what was read a moment ago is
            then not read again.
        """
        return self._read_all(known, at_edge=True, share=share)

    def replace_locks(self) -> None:
        """Forget who holds which lock: for a forked child, where those threads do not exist."""
        self._layout = threading.Lock()
        for reader in self._readers:
            reader.busy = threading.Lock()

    def close(self) -> None:
        """Give back what the sources opened."""
        for reader in self._readers:
            reader.source.close()

    def _read_all(
        self, known: Known, *, at_edge: bool = False, share: float | None = None
    ) -> tuple[float, ...]:
        now = self._clock()
        oldest = now - STALE_AFTER
        read: list[Sequence[float]] = []
        for reader in self._readers:
            values = known.get(reader.name)
            # Devices that its source has not seen yet come in by a reading of its own.
            if values is None or len(values) != len(reader.columns):
                if not at_edge:
                    is_due = now - reader.latest_at >= reader.period
                elif reader.blocks:
                    is_due = False
                else:
                    is_due = now - reader.latest_at >= _age_at_edge(reader, known, share)
                if is_due:
                    self._read(reader)
                values = values or (reader.latest if reader.latest_at >= oldest else ())
            read.append(values)
        # The poller and the user's thread may both come here while a device appears.
        with self._layout:
            self._follow_sources()
            row: list[float] = []
            for reader, values in zip(self._readers, read, strict=True):
                width = len(reader.columns)
                row += values if len(values) == width else _fitted(values, width)
            return tuple(map(row.__getitem__, self._order))

    def _read(self, reader: _Reader) -> None:
        # A call that hangs keeps its lock for as long: whoever comes next goes on without it.
        patience = 0 if reader.blocks else READ_TIMEOUT
        if reader.failed or not reader.busy.acquire(timeout=patience):
            return
        try:
            started = self._clock()
            reader.latest = reader.source.read(started)
            reader.latest_at = self._clock()
            reader.cost = reader.latest_at - started
        except Exception as error:  # noqa: BLE001  (a fault of ours must not reach the user's cell)
            reader.failed = True
            reader.latest = ()
            self._faults.append(
                f"Reading {reader.source.name} failed ({type(error).__name__}: {error}); "
                "the other figures are unaffected. Please report this."
            )
        finally:
            reader.busy.release()

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
        for reader in self._readers:
            if reader.name == HostSource.name and self._cuda_is_up():
                reader.period = BESIDE_PERIOD
        self.series = tuple(series)
        places = [column for reader in self._readers for column in reader.columns]
        self._order = tuple(sorted(range(len(places)), key=places.__getitem__))
        self.devices = merge_devices([reader.devices for reader in self._readers])

    def _cuda_is_up(self) -> bool:
        return any(one.devices and one.name == TorchCudaSource.name for one in self._readers)

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


def _age_at_edge(reader: _Reader, known: Known, share: float | None) -> float:
    """Return how old a reading may be that is taken for one of now."""
    if share is None:
        return 0.0
    is_gpu_known = TorchCudaSource.name in known
    return FINE_AGE if is_gpu_known else min(FINE_AGE, reader.cost / share)


def _fitted(values: Sequence[float], width: int) -> list[float]:
    return [*values[:width], *[NOT_AVAILABLE] * (width - len(values))]


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
