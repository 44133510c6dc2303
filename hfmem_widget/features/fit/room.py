"""The memory of each device that this process could still take, also for ``device_map="auto"``."""

import math
import os
import sys
import time
from functools import cache
from typing import Final

from hfmem_widget.analysis.parts import known_of
from hfmem_widget.features.fit.model import Room
from hfmem_widget.features.fit.setting import headroom_of
from hfmem_widget.guard import warn
from hfmem_widget.session import Device
from hfmem_widget.sources import Source, open_allocators, open_sources
from hfmem_widget.sources.host import HostSource
from hfmem_widget.text import MIB

CONTEXT: Final = 680 * MIB
"""The bytes of CUDA and its libraries before it is initialised: a context of 610 MiB and workspaces of 66 MiB
on an H200; older cards take less."""


def max_memory(headroom: float = 0.10, *, quantized: bool = False) -> dict[int | str, int | str]:
    """Return how much a model may take of each device, for ``from_pretrained(…, max_memory=…)``.

    For each visible GPU, in CUDA's order: what the driver calls free, plus what PyTorch's allocator has
    cached, minus what CUDA itself will take if it is not initialised, minus the headroom. For the host: what
    is available, within the control group. CUDA is not initialised. Where CPU and GPU share memory there is
    one entry for both, the GPU's.

    transformers and accelerate use a `max_memory` as it is given, so the headroom is taken once. Where the
    model is quantised while it is loaded, transformers' quantisers leave a tenth of it unused themselves:
    with `quantized`, that tenth is not taken here.

    Parameters
    ----------
    headroom : float
        Share of the free memory to leave unused, from 0 to below 1: for everything that is not weights.
    quantized : bool
        Whether the model is quantised while it is loaded (bitsandbytes, torchao, quanto).

    Returns
    -------
    dict of (int or str) to (int or str)
        Bytes by the index of a GPU, and "cpu".

    Raises
    ------
    OptionError
        If the headroom is no such share.
    """
    share = 1.0 - headroom_of(headroom)
    if quantized:  # transformers' quantisers take 0.9 of it (HfQuantizer.adjust_max_memory)
        share = min(1.0, share / 0.9)
    all_rooms, note = rooms()
    if note:
        warn(note)
    readable = {room.device: room.available for room in all_rooms if math.isfinite(room.available)}
    return {
        int(key.removeprefix("cuda:")) if key.startswith("cuda:") else key: int(available * share)
        for key, available in readable.items()
    }


def rooms() -> tuple[tuple[Room, ...], str]:
    """Return the room of every visible GPU, in CUDA's order, and of the host, and a note on unknown ones.

    Only NVML is initialised.
    """
    cuda, nvml, *others = opened_sources()
    host = next(source for source in others if isinstance(source, HostSource))
    readings: dict[str, float] = {}
    for source in (cuda, nvml, host):
        values = source.read(time.monotonic())
        readings |= zip((series.key for series in source.series), values, strict=True)

    def reading(device: Device, metric: str) -> float:
        return readings.get(f"{device.key}/{metric}", math.nan)

    limits = {device.key: device.shared for device in cuda.devices if device.shared}

    def free(device: Device) -> float:
        left = device.total - reading(device, "device_used")
        limit = limits.get(device.key, math.inf) - known_of(reading(device, "reserved"), 0.0)
        return min(left, limit, known_of(reading(device, "mappable"), math.inf))

    gpus = [
        Room(
            device.key,
            device.name,
            device.total,
            free(device) - known_of(reading(device, "driver_reserved"), 0.0),
            cached=known_of(reading(device, "reserved") - reading(device, "allocated"), 0.0),
            context=0.0 if cuda.devices else CONTEXT,
        )
        for device in nvml.devices
    ]
    hosts = [Room(device.key, device.name, device.total, free(device)) for device in host.devices]
    if any(device.shared for device in nvml.devices):
        hosts = []  # it is the same memory
    unknown = [room.device for room in (*gpus, *hosts) if math.isnan(room.free)]
    note = " ".join(nvml.notes[:1])
    if unknown:
        note = f"Free memory of {', '.join(unknown)} is unknown. {note}".strip()
    elif gpus or getattr(getattr(sys.modules.get("torch"), "version", None), "cuda", None) is None:
        note = ""  # a torch that is not built for CUDA needs no GPU
    return (*gpus, *hosts), note


@cache
def opened_sources() -> tuple[Source, ...]:
    """Return the sources, opened once: opening NVML repeatedly has been trouble."""
    return open_sources(os.environ, open_allocators()[:1])
