"""What a training's figures are called in the logs of a Trainer, and in what unit."""

from __future__ import annotations

import math
from collections.abc import Mapping

from hfmem_widget.units import GIB

IN_BYTES = ("peak_allocated", "peak_reserved", "allocated")


def logged(figures: Mapping[str, float], *, evaluating: bool) -> dict[str, float]:
    """Return entries for a log from `TrainingRun.take_figures`; what is not known is left out.

    Returns
    -------
    dict of str to float
        ``hfmem/peak_allocated_gib``, ``hfmem/peak_reserved_gib`` and ``hfmem/allocated_gib`` in GiB, and
        ``hfmem/tokens``; of an evaluation ``hfmem/eval_peak_allocated_gib`` and so on.
    """
    prefix = "hfmem/eval_" if evaluating else "hfmem/"
    entries = {f"{prefix}{name}_gib": figures[name] / GIB for name in IN_BYTES if name in figures}
    if "tokens" in figures:
        entries[f"{prefix}tokens"] = figures["tokens"]
    return {name: value for name, value in entries.items() if math.isfinite(value)}
