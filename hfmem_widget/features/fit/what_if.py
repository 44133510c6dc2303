"""The memory of a training at other batches and lengths, from a handful of dry runs of its model."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, combinations
from typing import Any, Final

import numpy as np

from hfmem_widget.errors import OptionError
from hfmem_widget.features.fit.inputs import positions_of
from hfmem_widget.features.fit.model import Forecast
from hfmem_widget.features.fit.setting import Setting
from hfmem_widget.features.fit.training import Training, margin_on
from hfmem_widget.session.what_if import Moment, Variant, WhatIf
from hfmem_widget.text import MIB

CLOSE: Final = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03)
"""Shares of a peak by which a dry run may differ from the moment that explains it.

An allocator's blocks do not grow as smoothly as their tensors. The share with the best fit is taken.
"""

LEAST_OFF: Final = 0.005  # the share of error that is assumed even where all dry runs agree
MOST_OFF: Final = 0.05  # the share of error above which nothing is offered
LEAST: Final = 8  # the shortest rows for which something is offered, in tokens

Size = tuple[int, int]
"""Rows of a batch, and tokens of a row."""


def what_if(training: Training, dry: Callable[[Setting], Forecast]) -> WhatIf | None:
    """Return the memory of a training at other sizes, by `dry` runs.

    None without tokens, beside other models, on replicas, or where time is short. An interrupt ends only the
    dry runs.
    """
    setting, seen = training.setting, training.seen
    is_unlike = training.others or training.is_replicated
    if is_unlike or setting.length < LEAST or (seen is not None and not seen.length):
        return None
    sizes, checks = _sizes(setting, positions_of(getattr(training.model, "config", None)))
    known: list[Variant] = []
    with suppress(TimeoutError, KeyboardInterrupt):
        for changed in _settings(training.model, setting):
            with suppress(OptionError):
                variant = _variant(dry, changed, sizes, checks)
                known += [variant] if variant is not None else []
            if not known:
                return None
    if not known:
        return None
    rows, lengths = (
        sorted(each) for each in zip((setting.batch, setting.length), *sizes, strict=True)
    )
    return WhatIf(
        setting.batch,
        setting.length,
        (rows[0], rows[-1]),
        (lengths[0], lengths[-1]),
        training.room,
        training.spare,
        margin_on(training.device),
        tuple(known),
    )


def _settings(model: Any, own: Setting) -> Iterator[Setting]:
    """Yield the training's own setting, and those with checkpointing and in bfloat16 if they can be had."""
    checkpointing, precisions = [own.checkpointing], [own.precision]
    if not own.checkpointing and getattr(model, "supports_gradient_checkpointing", False):
        checkpointing.append(True)
    types = {str(each.dtype) for each in model.parameters()}
    if own.precision == "fp32" and types <= {"torch.float32"}:
        precisions.append("bf16")
    for precision in precisions:
        for is_on in checkpointing:
            yield replace(own, checkpointing=is_on, precision=precision)


def _sizes(setting: Setting, positions: int | None) -> tuple[list[Size], list[Size]]:
    """Return the sizes for the fit, and others for its check."""
    some, middle = max(2, setting.batch), setting.length
    most = min(2 * middle, positions or 2 * middle)
    short = middle // 2
    if most < 2 * middle:
        short, middle = most // 4, most // 2
    many = 2 * some
    fitted = [(1, short), (some, short), (some, middle), (many, middle), (some, most), (many, most)]
    fitted.append((max(1, some // 4), most))
    between = (some + many) // 2, (middle + most) // 2
    return fitted, [(1, most), (max(1, some // 2), middle), between]


def _variant(
    dry: Callable[[Setting], Forecast],
    setting: Setting,
    sizes: Sequence[Size],
    checks: Sequence[Size],
) -> Variant | None:
    """Return the memory of a setting at any size; None where dry runs differ too much from it."""
    runs = {
        (rows, length): dry(replace(setting, batch=rows, length=length))
        for rows, length in (*sizes, *checks)
    }
    if any(run.left_out for run in runs.values()):
        return None
    first = runs[sizes[0]]
    held = {
        part.name: float(part.bytes)
        for part in first.parts
        if part.name not in {"gradients", "activations"}
    }
    fitted = {size: runs[size] for size in sizes}
    possible = []
    for close in CLOSE:
        by_phase = [_moments(phase, fitted, sum(held.values()), close) for phase in first.peaks]
        if all(by_phase):
            moments = tuple(chain.from_iterable(by_phase))
            possible.append(
                Variant(setting.checkpointing, setting.precision, held, moments, 1.0, 1.0, 0.0)
            )
    if not possible:
        return None
    variant = min(possible, key=lambda each: _off(each, runs))  # a close fit may be wrong elsewhere
    off = max(LEAST_OFF, _off(variant, runs))
    if off > MOST_OFF:
        return None
    low = min(run.interval[0] / run.total for run in runs.values())
    high = max(run.interval[1] / run.total for run in runs.values())
    return replace(variant, low=low / (1 + off), high=high / (1 - off), off=off)


def _off(variant: Variant, runs: Mapping[Size, Forecast]) -> float:
    return max(abs(variant.peak(*size) / run.total - 1) for size, run in runs.items())


def _moments(phase: str, runs: Mapping[Size, Forecast], held: float, close: float) -> list[Moment]:
    """Return moments of a phase; at each size, the highest of them explains the peak.

    No moment is above a peak anywhere. Of the moments through some peaks, those that explain most are taken.
    """
    peaks = {size: run.peaks[phase] - held for size, run in runs.items()}
    near = {size: close * run.total for size, run in runs.items()}
    complete = {size: run.bytes("gradients") for size, run in runs.items() if run.moment == phase}
    flat = Moment(0.0, min(peaks.values()), 0.0, 0.0)
    # Peaks with other gradients belong to other moments.
    planes = (
        _through([(size, peaks[size]) for size in some])
        for some in chain.from_iterable(
            combinations(peaks, many) for many in range(3, 1 + len(peaks))
        )
        if len({complete[size] // MIB for size in some if size in complete}) <= 1
    )
    possible = [
        moment
        for moment in (flat, *planes)
        if all(moment.bytes(*size) <= peak + near[size] for size, peak in peaks.items())
    ]
    moments, left = [], set(peaks)
    while left and possible:
        explains = {
            moment: {size for size in left if abs(peaks[size] - moment.bytes(*size)) <= near[size]}
            for moment in possible
        }
        best = max(possible, key=lambda moment: len(explains[moment]))
        if not explains[best]:
            break
        own = [complete[size] for size in explains[best] if size in complete]
        moments.append(replace(best, gradients=float(min(own, default=0))))
        left -= explains[best]
    return moments


def _through(points: Sequence[tuple[Size, float]]) -> Moment:
    """Return the moment closest to some peaks, relative to their size, that never shrinks with the size."""
    counts = np.array([(1.0, rows * length, rows * length**2) for (rows, length), _ in points])
    peaks = np.array([peak for _, peak in points])
    scale = np.maximum(peaks, 1.0)
    for columns in ([0, 1, 2], [0, 1], [0, 2]):
        fitted = np.linalg.lstsq(counts[:, columns] / scale[:, None], peaks / scale)[0]
        if min(fitted[1:]) >= 0:
            break
    else:
        return Moment(0.0, float(min(peaks)), 0.0, 0.0)
    by_column = dict(zip(columns, map(float, fitted), strict=True))
    return Moment(0.0, *(by_column.get(at, 0.0) for at in range(3)))
