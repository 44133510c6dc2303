"""The KV caches that were seen, and their bytes; none is kept alive.

A cache object is referred to weakly; a tuple cannot be, so of a cache that is one each tensor is. What was
read of a cache counts until it is read again, or is gone: then the reference says so itself, wherever the
last one to it was dropped, and nothing has to look.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

from hfmem_widget.monitor.holdings import ByDevice
from hfmem_widget.monitor.subjects import is_elsewhere
from hfmem_widget.sources.caches import storages_in
from hfmem_widget.sources.heap.tensors import unnoticed
from hfmem_widget.sources.storages import MANAGED, Storage, tensors_in

_Entries = dict[int, tuple[weakref.ref[Any], int, tuple[Storage, ...]]]
"""By `id`: the cache, the thread that uses it, and its storages as they were read last."""


class Caches:
    """Counts the caches that it is shown."""

    def __init__(self) -> None:
        self._entries: _Entries = {}
        self._gone: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._entries)

    @property
    def changed(self) -> bool:
        """True once one of them is gone, until they are counted again."""
        return bool(self._gone)

    def see(self, cache: object) -> None:
        """Read a cache, which this thread is using."""
        with unnoticed():
            if isinstance(cache, (list, tuple)):
                for tensor in tensors_in(cache):
                    self._read(tensor)
            elif cache is not None:
                self._read(cache)

    def see_again(self) -> None:
        """Read all of them again, but those that another thread uses."""
        with unnoticed():
            for reference, thread, _ in list(self._entries.values()):
                cache = None if is_elsewhere(thread) else reference()
                if cache is not None:
                    self._read(cache)

    def held(self) -> ByDevice:
        """Return the bytes by device, each storage counted once; no cache is touched for it."""
        self._gone.clear()
        entries = list(self._entries.values())
        storages = {
            storage[0]: storage
            for _, _, storages_of_cache in entries
            for storage in storages_of_cache
        }
        held: ByDevice = {}
        for _, device, size, _ in storages.values():
            if device != MANAGED:
                parts = held.setdefault(device, {"kv_cache": 0.0})
                parts["kv_cache"] += size
        return held

    def _read(self, cache: Any) -> None:
        key = id(cache)
        entry = self._entries.get(key)
        if entry is None or entry[0]() is not cache:
            try:
                reference = weakref.ref(cache, _forgetting(key, self._entries, self._gone))
            except TypeError:  # of a class with slots: it would have to be kept
                return
        else:
            reference = entry[0]
        self._entries[key] = reference, threading.get_ident(), storages_in(cache)


def _forgetting(key: int, entries: _Entries, gone: list[int]) -> Callable[[weakref.ref[Any]], None]:
    def forget(reference: weakref.ref[Any]) -> None:
        # Wherever the last reference is dropped, also in the middle of the collector: no lock, no call.
        if key in entries and entries[key][0] is reference:
            del entries[key]
            gone.append(key)

    return forget
