"""What a training's figures are called in the logs of a Trainer, and in what unit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from hfmem_widget.text import GIB

IN_BYTES = ("peak_allocated", "peak_reserved", "allocated")


def logged(figures: Mapping[str, float], *, prefix: str = "") -> dict[str, float]:
    """Return entries for a log from `TrainingRun.take_figures`; what is not known is left out.

    Trackers group by an evaluation's prefix: transformers' callbacks for TensorBoard, W&B and others write
    ``eval_…`` as ``eval/…``, and all else as ``train/…``.

    Returns
    -------
    dict of str to float
        ``hfmem/peak_allocated_gib``, ``hfmem/peak_reserved_gib`` and ``hfmem/allocated_gib`` in GiB, and
        ``hfmem/tokens``; with a prefix ``eval_hfmem/peak_allocated_gib`` and so on.
    """
    group = f"{prefix}_hfmem/" if prefix else "hfmem/"
    entries = {f"{group}{name}_gib": figures[name] / GIB for name in IN_BYTES if name in figures}
    if "tokens" in figures:
        entries[f"{group}tokens"] = figures["tokens"]
    return {name: value for name, value in entries.items() if math.isfinite(value)}


def prefix_of(names: Iterable[str]) -> str:
    """Return what an evaluation's metrics begin with: ``eval``, ``eval_`` and a data set's name, ``test``."""
    # Every evaluation logs one such name. Metrics of the user's own may end alike; they begin with the prefix
    # as well, so theirs are longer.
    runtimes = [name for name in names if name.endswith("_runtime")]
    return min(runtimes, key=len, default="eval_runtime").removesuffix("_runtime")
