"""``hfmem_widget.history``: what was watched in this process so far."""

from __future__ import annotations

import os

from hfmem_widget.features.history.keep import KEPT_HISTORY
from hfmem_widget.features.history.model import CellHistory


def history(
    *, sort: str = "cell", last: int | None = None, keep: str | os.PathLike[str] | None = None
) -> CellHistory:
    """Return every cell, block and training that was watched in this process so far.

    Parameters
    ----------
    sort : {"cell", "peak", "left", "time"}, optional
        The order of the cells: as they ran last; or by the newest run's peak, by what it left behind, or by
        its duration, highest first.
    last : int, optional
        Only so many cells, those that ran last.
    keep : path-like, optional
        From now on, add a line for each run to this file, and show the runs that are in it already, of
        earlier kernels.

    Returns
    -------
    CellHistory
        Shows itself in a notebook; `CellHistory.to_pandas` and `CellHistory.save` have all figures.

    Raises
    ------
    OptionError
        If a value is not allowed, or the file cannot be used.

    Examples
    --------
    >>> hfmem_widget.history(sort="peak", last=10)
    >>> hfmem_widget.history().to_pandas().groupby("name")["left_behind"].sum()
    """
    table = KEPT_HISTORY.table(sort=sort, last=last)
    if keep is None:
        return table
    KEPT_HISTORY.keep(keep)
    return KEPT_HISTORY.table(sort=sort, last=last)
