"""A forecast for one of several ranks, among which ZeRO, FSDP or tensor parallelism divide some parts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from hfmem_widget.features.fit.model import LABELS, Forecast, ForecastPart
from hfmem_widget.text import wrong_value

DIVIDED: Final[Mapping[str, tuple[str, ...]]] = {
    "zero1": ("optimizer",),
    "zero2": ("optimizer", "gradients"),
    "zero3": ("optimizer", "gradients", "weights"),
    "fsdp": ("optimizer", "gradients", "weights"),
    "tp": ("optimizer", "gradients", "weights", "kv_cache"),
}
"""The parts that each way divides."""


def parsed(text: str) -> tuple[str, int]:
    """Return the way and the ranks of a text such as ``zero3:8``, or raise OptionError."""
    way, _, ranks = text.partition(":")
    if way not in DIVIDED or not ranks.isdecimal() or int(ranks) < 1:
        allowed = f"one of {', '.join(DIVIDED)} and a number of ranks, such as zero3:8"
        raise wrong_value(text, "shards", allowed)
    return way, int(ranks)


def sharded(forecast: Forecast, gathered: int, share: float) -> Forecast:
    """Return the forecast of one rank.

    `gathered` are the bytes of parameters gathered at a time. `share` of the parameters can be divided.
    """
    way, ranks = parsed(forecast.setting.shards)
    left = 1.0 - share + share / ranks
    names = DIVIDED[way]

    def cut(size: int, name: str) -> int:
        return size - math.ceil(size * left) if name in names else 0

    # ZeRO-3 and FSDP gather parameters where they are used.
    gathered = gathered if way in {"zero3", "fsdp"} else 0
    always = sum(cut(part.full, part.name) for part in forecast.parts if part.name != "gradients")
    full = forecast.full("gradients")
    peaks: dict[str, int] = {}
    gradients: dict[str, int] = {}
    for phase, peak in forecast.peaks.items():
        at_peak = forecast.bytes("gradients") if phase == forecast.moment else 0
        gradients[phase] = full if phase == "optimizer" else at_peak
        cut_off = always + cut(gradients[phase], "gradients")
        peaks[phase] = peak - cut_off + (0 if phase == "optimizer" else gathered)
    moment = max(peaks, key=lambda phase: peaks[phase])
    parts = [
        replace(
            part,
            bytes=part.bytes - cut(part.bytes, part.name),
            full=part.full - cut(part.full, part.name),
            bound="estimate" if part.name in names else part.bound,
        )
        for part in forecast.parts
        if part.name not in {"gradients", "activations"}
    ]
    estimate = partial(ForecastPart, bound="estimate")
    if full:
        size = gradients[moment] - cut(gradients[moment], "gradients")
        whole = full - cut(full, "gradients")
        parts.append(estimate("gradients", size, whole, "shapes and types"))
    if gathered:
        held = 0 if moment == "optimizer" else gathered
        parts.append(estimate("gathered", held, gathered, "two layers, and what is in none"))
    rest = peaks[moment] - sum(part.bytes for part in parts)
    source = next((part.source for part in forecast.parts if part.name == "activations"), "")
    parts.append(estimate("activations", rest, max(rest, forecast.full("activations")), source))
    shared = ", ".join(LABELS[name] for name in names if forecast.full(name))
    has = (
        f"its share of {shared}" if shared else "everything, as there is nothing that this divides"
    )
    note = (
        f"Of {ranks} ranks ({way}), each has {has}; activations are not divided, and buckets "
        "for communication, and the full-precision weights that DeepSpeed keeps for half precision, are not "
        "counted."
    )
    forecast = replace(forecast, total=peaks[moment], moment=moment, peaks=peaks, reserved=0)
    return replace(forecast, parts=tuple(parts), notes=(*forecast.notes, note))
