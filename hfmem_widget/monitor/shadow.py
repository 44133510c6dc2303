"""The peaks that the user would read, had only the user reset the counters."""

from __future__ import annotations

from itertools import chain
from operator import itemgetter
from typing import Any

from hfmem_widget.sources.allocator import Stats

MOST_WAITING = 64
"""Readings that wait until somebody looks: many at once cost hardly more than one."""

_PEAK = itemgetter("peak")


class Shadow:
    """The highest of every ``peak`` in one device's statistics since the user's own reset.

    Most of them stand in families of pools, ``{"allocated_bytes": {"all": {"peak": ...}, ...}}``. What is
    in families never changes, so these are gone through as one list: this is done at every edge.
    """

    def __init__(self) -> None:
        self._families: list[str] = []
        self._pools: list[str] = []
        self._of_no_family: list[str] = []
        self._peaks: list[list[int]] = []
        self._others: dict[Any, Any] = {}
        self._first: Stats = {}

    def remember(self, stats: Stats) -> None:
        """Keep the peaks of some statistics, which are about to be reset."""
        if not self._families:
            nested = {name: value for name, value in stats.items() if isinstance(value, dict)}
            self._first = nested
            self._families = [name for name, value in nested.items() if _is_family(value)]
            self._pools = [name for name, value in nested.items() if "peak" in value]
            counted = {*self._families, *self._pools}
            self._of_no_family = [name for name in nested if name not in counted]
        self._peaks.append([*map(_PEAK, self._nested_families(stats))])
        if len(self._peaks) >= MOST_WAITING:
            self._highest()
        if any(map(stats.get, self._of_no_family)):
            _raise_to(self._others, self._beside_families(stats))

    def show(self, stats: Stats) -> None:
        """Raise every peak in some statistics to the one remembered."""
        # `torch.xpu` shows fewer of them than `torch.accelerator` does.
        whole = self._first | stats
        for pool, peak in zip(self._nested_families(whole), self._highest(), strict=False):
            pool["peak"] = max(pool["peak"], peak)
        _raise_shown(self._beside_families(stats), self._others)

    def _nested_families(self, stats: Stats) -> list[Stats]:
        families = map(stats.__getitem__, self._families)
        return [
            *chain.from_iterable(map(dict.values, families)),
            *map(stats.__getitem__, self._pools),
        ]

    def _highest(self) -> list[int]:
        if len(self._peaks) > 1:
            self._peaks = [list(map(max, *self._peaks))]
        return self._peaks[0] if self._peaks else []

    def _beside_families(self, stats: Stats) -> Stats:
        # Private pools (CUDA graphs) come and go, and lie one level deeper.
        return {name: stats[name] for name in self._of_no_family if name in stats}


def _is_family(value: object) -> bool:
    return (
        isinstance(value, dict)
        and bool(value)
        and all(isinstance(pool, dict) and "peak" in pool for pool in value.values())
    )


def _raise_to(highest: dict[Any, Any], stats: Stats) -> None:
    for key, value in stats.items():
        if isinstance(value, dict):
            if "peak" not in value:
                _raise_to(highest.setdefault(key, {}), value)
            elif value["peak"] > highest.get(key, -1):
                highest[key] = value["peak"]


def _raise_shown(stats: Stats, highest: dict[Any, Any]) -> None:
    for key, value in stats.items():
        if isinstance(value, dict) and key in highest:
            if "peak" not in value:
                _raise_shown(value, highest[key])
            elif highest[key] > value["peak"]:
                value["peak"] = highest[key]
