"""The peaks that the user would read, had only the user reset the counters: of a device, in nested dicts.

Most of them stand in families of pools, ``{"allocated_bytes": {"all": {"peak": ...}, ...}}``. Private pools
(CUDA graphs) come and go, and lie one level deeper. A function shows fewer of them than another may.
"""

from __future__ import annotations

from typing import Any

from hfmem_widget.sources.allocator import Stats

Shadow = dict[Any, Any]


def remember(shadow: Shadow, stats: Stats) -> None:
    """Keep the highest of every ``peak`` in some statistics, which are about to be reset."""
    for key, value in stats.items():
        if isinstance(value, dict):
            if "peak" not in value:
                remember(shadow.setdefault(key, {}), value)
            elif value["peak"] > shadow.get(key, -1):
                shadow[key] = value["peak"]


def show(shadow: Shadow, stats: Stats) -> None:
    """Raise every peak in some statistics to the one remembered."""
    for key, value in stats.items():
        if isinstance(value, dict) and key in shadow:
            if "peak" not in value:
                show(shadow[key], value)
            elif shadow[key] > value["peak"]:
                value["peak"] = shadow[key]
