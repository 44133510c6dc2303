"""What the process that logs adds of all ranks: read from the run's directory, without a collective."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping

from hfmem_widget.ranks.run import Run
from hfmem_widget.text import GIB

GROUP = "hfmem/ranks/"


def figures_of(run: Run) -> Mapping[str, float]:
    """Return entries for a log: the peaks of all ranks as last read; none before a rank has written a peak.

    Returns
    -------
    dict of str to float
        ``hfmem/ranks/peak_allocated_gib_max``, ``_median`` and ``_min`` over the ranks' highest peaks so
        far, in GiB, ``hfmem/ranks/worst_rank``, and ``hfmem/ranks/reporting``: how many there are.
    """
    peaks = {rank: row.peak / GIB for rank, row in run.ranks.items() if math.isfinite(row.peak)}
    if not peaks:
        return {}
    worst = max(peaks, key=lambda rank: peaks[rank])
    entries = {
        "peak_allocated_gib_max": peaks[worst],
        "peak_allocated_gib_median": statistics.median(peaks.values()),
        "peak_allocated_gib_min": min(peaks.values()),
        "worst_rank": float(worst),
        "reporting": float(len(peaks)),
    }
    return {f"{GROUP}{name}": value for name, value in entries.items()}
