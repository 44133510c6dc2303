"""How memory is read: one file for each way, all of the same shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from hfmem_widget.session import Device, Series
from hfmem_widget.sources.allocator import Allocator, Instant
from hfmem_widget.sources.counters import AllocatorSource
from hfmem_widget.sources.host import HostSource
from hfmem_widget.sources.nvml import NvmlSource
from hfmem_widget.sources.tensors import TensorSource
from hfmem_widget.sources.torch_cuda import CudaAllocator


class Source(Protocol):
    """One way of reading memory.

    `read` is called on every tick, on the poller's thread; a source that does not block is also read
    on the user's thread at a span's edges. A source never raises from `read`: what it cannot read is
    NaN, and the reason, in one plain sentence with its remedy, is put into `notes` once.

    Attributes
    ----------
    name : str
        Short, for messages.
    blocks : bool
        True where a reading may hang (a driver call): it is then never made on the user's thread.
    secondary : bool
        True where the figures matter less while another source that does not block has devices: they are
        then read more rarely.
    devices : tuple of Device
        What this source knows of each device it reads, best knowledge so far. Where two sources know
        the same key, a field that one of them leaves empty ("" or NaN) is taken from the other.
    series : tuple of Series
        What it reads; only ever grows, at the end.
    notes : list of str
        Sentences for the user, each added once and never removed.
    """

    name: str
    blocks: bool
    secondary: bool
    devices: tuple[Device, ...]
    series: tuple[Series, ...]
    notes: list[str]

    def read(self, now: float) -> Sequence[float]:
        """Return the values of `series`, aligned with it, in bytes.

        Parameters
        ----------
        now : float
            Monotonic seconds, for what is read less often than every tick.
        """
        ...

    @property
    def at(self) -> Callable[[Instant], Sequence[float] | None] | None:
        """A function that returns the values of `series` at an instant, from what was read of it already.

        It returns None where that does not tell, and `read` must; most sources have no such function.
        """
        ...

    def close(self) -> None:
        """Give back what was opened; called once, after the last `read`."""
        ...


ALLOCATORS: tuple[Callable[[], Allocator], ...] = (CudaAllocator,)
"""All caching allocators there are; torch is built for one of them at most."""


def open_allocators() -> tuple[Allocator, ...]:
    """Return one of each of `ALLOCATORS`, which do nothing until the user's code has imported torch."""
    return tuple(make() for make in ALLOCATORS)


def loaded_allocator() -> Allocator:
    """Return the one that the torch of this process is built for; the first where there is none."""
    found = open_allocators()
    return next((one for one in found if one.supported()), found[0])


def open_sources(environ: Mapping[str, str], allocators: Sequence[Allocator]) -> tuple[Source, ...]:
    """Return one source of each kind, which open what they need at their first reading.

    They come in the order of reading: where two know a device, the earlier knows it better.

    Parameters
    ----------
    environ : mapping of str to str
        Where `CUDA_VISIBLE_DEVICES` stands, such as `os.environ`.
    allocators : sequence of Allocator
        Of which the first is CUDA's.
    """
    types = [one.device_type for one in allocators]
    cuda, *others = (AllocatorSource(one, types) for one in allocators)
    driver = NvmlSource(cuda.uuids, environ, reserved=cuda.reserved)
    return (cuda, *others, driver, HostSource(), TensorSource())
