"""What the process that logs adds of all ranks: read from the run's directory, without a collective."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from pathlib import Path

from hfmem_widget.ranks.run import Run
from hfmem_widget.text import GIB

GROUP = "hfmem/ranks/"


class RankLogs:
    """The peaks of all ranks, as they were a second ago.

    Parameters
    ----------
    run : Run
        One that is followed on a thread of its own.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    @classmethod
    def of(cls, directory: Path) -> RankLogs:
        """Return what logs the run in a directory, which is followed from now on.

        Raises
        ------
        OptionError
            If there is none.
        """
        run = Run(directory)
        run.start()
        return cls(run)

    def figures(self) -> Mapping[str, float]:
        """Return entries for a log; none before a rank has written a peak.

        Returns
        -------
        dict of str to float
            ``hfmem/ranks/peak_allocated_gib_max``, ``_median`` and ``_min`` over the ranks' highest peaks so
            far, in GiB, ``hfmem/ranks/worst_rank``, and ``hfmem/ranks/reporting``: how many there are.
        """
        peaks = {
            rank: row.peak / GIB for rank, row in self._run.ranks.items() if math.isfinite(row.peak)
        }
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

    def close(self) -> None:
        """Read no more."""
        self._run.close()
