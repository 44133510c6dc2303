"""How much of each device this process could still take, also as `device_map="auto"` wants it."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Mapping
from functools import cache
from typing import Final

from hfmem_widget.errors import OptionError
from hfmem_widget.features.fit.model import Room
from hfmem_widget.guard import warn
from hfmem_widget.sources import Source, open_allocators, open_sources
from hfmem_widget.text import MIB, plain

CONTEXT: Final = 680 * MIB
"""What CUDA and its libraries take in a process that has not begun: a context of 610 MiB, and workspaces of
66, as seen on an H200; older cards take less."""

KEPT_FOR_QUANTIZING: Final = 0.9
"""The share that transformers' quantisers leave of a `max_memory` (HfQuantizer.adjust_max_memory)."""


def max_memory(headroom: float = 0.10, *, quantized: bool = False) -> dict[int | str, int | str]:
    """Return how much a model may take of each device, for ``from_pretrained(…, max_memory=…)``.

    Of each visible GPU: what the driver calls free, and what PyTorch's allocator has taken and nobody uses,
    less what CUDA itself will take if it is not up, less the headroom. Of the host: what is available, within
    the control group. CUDA is not initialised. GPUs count as CUDA counts them.

    transformers and accelerate leave a `max_memory` that they are given as it is, so the headroom is taken
    once. Of a model that is quantised while it is loaded transformers' quantisers take a tenth of it on their
    own, so with `quantized` that tenth is left in.

    Parameters
    ----------
    headroom : float
        Share of what is there that is left alone, from 0 up to but not including 1: for activations, and for
        whatever is not weights.
    quantized : bool
        Whether the model is quantised while it is loaded (bitsandbytes, torchao, quanto).

    Returns
    -------
    dict of (int or str) to (int or str)
        Bytes by the index of a GPU, and "cpu".

    Raises
    ------
    OptionError
        If the headroom is none.
    """
    check_headroom(headroom)
    share = 1.0 - headroom
    if quantized:
        share = min(1.0, share / KEPT_FOR_QUANTIZING)
    found, note = rooms()
    if note:
        warn(note)
    return {
        _index(room.device): int(room.available * share)
        for room in found
        if math.isfinite(room.available)
    }


def check_headroom(headroom: object) -> None:
    """Raise OptionError unless it is a share that can be left alone."""
    if isinstance(headroom, bool) or not isinstance(headroom, int | float) or not 0 <= headroom < 1:
        message = f"headroom must be a share from 0 to below 1, not {plain(headroom)!r}"
        raise OptionError(message)


def rooms() -> tuple[tuple[Room, ...], str]:
    """Return the room of every visible GPU, in CUDA's order, and last the host's; and what to know of it.

    The sentence is empty where all is well. Nothing is initialised but NVML.
    """
    cuda, nvml, host, _ = _sources()
    return read_rooms(cuda, nvml, host, time.monotonic())


def read_rooms(
    cuda: Source, nvml: Source, host: Source, now: float
) -> tuple[tuple[Room, ...], str]:
    """Return the rooms that these sources tell of."""
    ours = _read(cuda, now)
    driver = _read(nvml, now)
    machine = _read(host, now)
    found = [
        Room(
            device.key,
            device.name,
            device.total,
            device.total
            - _known(driver, f"{device.key}/device_used")
            - _or_zero(driver, f"{device.key}/driver_reserved"),
            cached=_or_zero(ours, f"{device.key}/reserved")
            - _or_zero(ours, f"{device.key}/allocated"),
            context=0.0 if cuda.devices else CONTEXT,
        )
        for device in nvml.devices
    ]
    found += [
        Room(
            device.key,
            device.name,
            device.total,
            device.total - _known(machine, f"{device.key}/device_used"),
        )
        for device in host.devices
    ]
    unknown = [room.device for room in found if math.isnan(room.free)]
    note = ""
    if unknown:
        why = " ".join(nvml.notes[:1])
        note = f"Free memory of {', '.join(unknown)} is unknown. {why}".strip()
    elif not nvml.devices and _has_cuda():
        note = " ".join(nvml.notes[:1])
    return tuple(found), note


@cache
def _sources() -> tuple[Source, ...]:
    """Return what is kept open, since opening NVML again and again has been trouble."""
    return open_sources(os.environ, open_allocators()[:1])


def _read(source: Source, now: float) -> Mapping[str, float]:
    values = source.read(now)
    return dict(zip((one.key for one in source.series), values, strict=True))


def _known(values: Mapping[str, float], key: str) -> float:
    return values.get(key, math.nan)


def _or_zero(values: Mapping[str, float], key: str) -> float:
    value = values.get(key, 0.0)
    return 0.0 if math.isnan(value) else value


def _index(device: str) -> int | str:
    return int(device.removeprefix("cuda:")) if device.startswith("cuda:") else device


def _has_cuda() -> bool:
    """Return whether the torch that is loaded is built for CUDA."""
    version = getattr(sys.modules.get("torch"), "version", None)
    return getattr(version, "cuda", None) is not None
