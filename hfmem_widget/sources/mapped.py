"""Which of this process' memory is mapped from files, such as safetensors' weights, and not malloc's.

It stays so when it is written to: the kernel then makes a copy of the page.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path

from hfmem_widget.sources.procfs import kibibytes

MAPS, STATUS = Path("/proc/self/maps"), Path("/proc/self/status")

FRESH = 10
"""The list is valid for new addresses for so many times as long as reading it took."""

MOST_REMEMBERED = 100_000


def shared_memory(status: Path = STATUS) -> int:
    """Return the bytes of memory shared with other processes that this one has in use; 0 where unknown."""
    try:
        shared = kibibytes(status.read_bytes(), b"RssShmem:")
    except OSError:
        return 0
    return 0 if math.isnan(shared) else int(shared)


class MappedFiles:
    """Tells whether addresses lie in mapped files; where the kernel has no list of them, none does."""

    def __init__(self, maps: Path = MAPS, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._maps = maps
        self._clock = clock
        self._read_at = self._good_until = -math.inf
        self._starts: list[int] = []
        self._stops: list[int] = []
        self._is_mapped: dict[tuple[int, int], bool] = {}
        self._seen_at: dict[tuple[int, int], float] = {}

    def hold(self, address: int, owner: int) -> bool:
        """Return whether an address lies in a mapped file; remembered as long as its owner has it."""
        key = address, owner
        is_mapped = self._is_mapped.get(key)
        if is_mapped is not None:
            return is_mapped
        now = self._clock()
        if len(self._is_mapped) + len(self._seen_at) >= MOST_REMEMBERED:
            self._is_mapped.clear()
            self._seen_at.clear()
        seen_at = self._seen_at.setdefault(key, now)
        if self._read_at < seen_at and now >= self._good_until:
            self._read()
        index = bisect_right(self._starts, address) - 1
        lies_within = index >= 0 and address < self._stops[index]
        if self._read_at >= seen_at:  # else it may have been mapped since
            self._is_mapped[key] = lies_within
            del self._seen_at[key]
        return lies_within

    def _read(self) -> None:
        self._read_at = self._clock()
        self._starts, self._stops = [], []
        try:
            lines = self._maps.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            lines = []
        for line in lines:
            # start-stop rights offset device inode path; other memory has no path, or a name in brackets
            addresses, _, _, _, _, *path = line.split(maxsplit=5)
            if path and path[0].startswith("/"):
                start, _, stop = addresses.partition("-")
                self._starts.append(int(start, 16))
                self._stops.append(int(stop, 16))
        ended = self._clock()
        self._good_until = ended + FRESH * (ended - self._read_at)
