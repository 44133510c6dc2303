"""How memory is read: one file for each way, all of the same shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from hfmem_widget.session import Device, Series
from hfmem_widget.sources.host import HostSource
from hfmem_widget.sources.nvml import NvmlSource
from hfmem_widget.sources.tensors import TensorSource
from hfmem_widget.sources.torch_cuda import TorchCudaSource


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

    def close(self) -> None:
        """Give back what was opened; called once, after the last `read`."""
        ...


SOURCES: tuple[type[Source], ...] = (TorchCudaSource, NvmlSource, HostSource, TensorSource)
"""All there are, in the order of reading: where two know a device, the earlier knows it better."""


def open_sources(environ: Mapping[str, str]) -> tuple[Source, ...]:
    """Return one of each of `SOURCES`, which open what they need at their first reading.

    Parameters
    ----------
    environ : mapping of str to str
        Where `CUDA_VISIBLE_DEVICES` stands, such as `os.environ`.
    """
    torch_cuda = TorchCudaSource()
    return (
        torch_cuda,
        NvmlSource(torch_cuda.uuids, environ, reserved=torch_cuda.reserved),
        HostSource(),
        TensorSource(),
    )
