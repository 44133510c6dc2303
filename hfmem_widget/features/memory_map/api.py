"""``hfmem_widget.memory_map``: how an allocator's memory lies, in pictures and in plain words."""

from __future__ import annotations

from hfmem_widget.errors import OptionError
from hfmem_widget.features.memory_map.model import MemoryMap
from hfmem_widget.features.memory_map.reader import SegmentReader
from hfmem_widget.text import plain


def memory_map(device: str = "") -> MemoryMap:
    """Read which segments an allocator has taken, and which blocks lie in them.

    Nothing is allocated on a device, freed or waited for. Without a GPU, or before CUDA is initialised, the
    map is that of this process's C heap, of which only sums are known.

    Parameters
    ----------
    device : str, optional
        Such as "cuda:0", or "cpu" for the heap; by default all GPUs.

    Returns
    -------
    MemoryMap
        In a notebook, one picture a device.

    Raises
    ------
    OptionError
        If there is no such device.

    Examples
    --------
    >>> hfmem_widget.memory_map("cuda:0").fragmentation().bytes("hole")
    734003200
    """
    reader = SegmentReader()
    available = reader.devices()
    if device and device not in available:
        raise OptionError(f"no memory map for {plain(device)!r}; available: {', '.join(available)}")
    return reader.read(device)
