"""How much this process may map, where somebody set a limit (ulimit), and how much it has mapped."""

from __future__ import annotations

import os
from pathlib import Path

from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.sources.procfs import PROC

_MAPPED, _DATA = 0, 5
"""Where ``/proc/self/statm`` has the pages that are mapped, and those of them that are the process' own."""


def address_space(proc: Path = PROC) -> tuple[float, float, str]:
    """Return the limit that is nearest, what it counts, in bytes, and the command that sets it.

    NaN where there is no limit, or no way to know what is mapped.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limits
        return NOT_AVAILABLE, NOT_AVAILABLE, ""
    found = [
        (float(limit), _pages(proc, field), command)
        for kind, field, command in (
            (resource.RLIMIT_AS, _MAPPED, "ulimit -v"),
            (resource.RLIMIT_DATA, _DATA, "ulimit -d"),
        )
        if (limit := resource.getrlimit(kind)[0]) != resource.RLIM_INFINITY
    ]
    nothing = (NOT_AVAILABLE, NOT_AVAILABLE, "")
    return min(found, key=lambda limit: limit[0] - limit[1], default=nothing)


def _pages(proc: Path, field: int) -> float:
    try:
        pages = int((proc / "self" / "statm").read_text().split()[field])
    except (OSError, ValueError, IndexError):
        return NOT_AVAILABLE
    return float(pages * os.sysconf("SC_PAGE_SIZE"))
