"""The limits that a test's markers set."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import pytest

from hfmem_widget.errors import OptionError
from hfmem_widget.options import device_keys
from hfmem_widget.text import parse_bytes, plain, wrong_value

EXAMPLE = 'limit_vram("6 GiB", left="1 MiB")'


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """What a test may allocate, in bytes; infinite where there is no limit."""

    peak: float = math.inf  # above what was allocated at the start
    left: float = math.inf  # allocated at the end above that
    device: str = ""  # the key of the device it is for; empty for each GPU


def limits_of(markers: Iterable[pytest.Mark]) -> tuple[MemoryLimit, ...]:
    """Return the limits of a test, the closest marker first: for each device the closest holds.

    Raises `OptionError` for a marker that cannot be read.
    """
    limits: dict[str, MemoryLimit] = {}
    for marker in markers:
        limit = _limit(marker)
        limits.setdefault(limit.device, limit)
    return tuple(limits.values())


def default_limit(size: str) -> tuple[MemoryLimit, ...]:
    """Return the limit of the settings, for tests without a marker; raises `OptionError`."""
    return (MemoryLimit(parse_bytes(size, of="hfmem_limit_vram")),) if size else ()


def _limit(marker: pytest.Mark) -> MemoryLimit:
    unknown = [plain(name) for name in marker.kwargs if name not in {"peak", "left", "device"}]
    if unknown:
        message = f"limit_vram takes peak, left and device, not {unknown[0]}, such as in {EXAMPLE}"
        raise OptionError(message)
    peaks = [*marker.args, *([marker.kwargs["peak"]] if "peak" in marker.kwargs else [])]
    left = marker.kwargs.get("left")
    if len(peaks) > 1:
        raise OptionError(f"limit_vram takes one peak, not {len(peaks)}, such as in {EXAMPLE}")
    if not peaks and left is None:
        raise OptionError(f"limit_vram needs a limit, such as in {EXAMPLE}")
    devices = device_keys(marker.kwargs.get("device", ""))
    if len(devices) > 1:
        raise OptionError("limit_vram takes one device; add a marker for each")
    return MemoryLimit(
        _size(peaks[0], "peak of limit_vram") if peaks else math.inf,
        math.inf if left is None else _size(left, "left of limit_vram"),
        "".join(devices),
    )


def _size(given: object, of: str) -> float:
    size = parse_bytes(given, of=of) if isinstance(given, str) else given
    if isinstance(size, bool) or not isinstance(size, int | float) or not 0 <= size < 2**63:
        raise wrong_value(given, of, "a size with its unit, such as '6 GiB', or a number of bytes")
    return float(size)
