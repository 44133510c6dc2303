"""A forecast for one of several ranks, among which ZeRO, FSDP or tensor parallelism divide some parts."""

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

from hfmem_widget.analysis.parts import LABELS
from hfmem_widget.features.fit.model import Bound, Forecast, ForecastPart
from hfmem_widget.text import format_list, wrong_value

DIVIDED: Final[Mapping[str, tuple[str, ...]]] = {
    "ddp": (),
    "zero1": ("optimizer",),
    "zero2": ("optimizer", "gradients"),
    "zero3": ("optimizer", "gradients", "weights"),
    "fsdp": ("optimizer", "gradients", "weights"),
    "tp": ("optimizer", "gradients", "weights", "kv_cache"),
}
"""The parts that each way divides."""

UNCOUNTED: Final = "gathered parameters, buckets, and DeepSpeed's full-precision copies of weights"


def parsed(text: str) -> tuple[str, int]:
    """Return the way and the ranks of a text such as ``zero3:8``, or raise OptionError."""
    way, _, ranks = text.partition(":")
    if way not in DIVIDED or not ranks.isdecimal() or int(ranks) < 1:
        allowed = f"one of {', '.join(DIVIDED)} and a number of ranks, such as zero3:8"
        raise wrong_value(text, "shards", allowed)
    return way, int(ranks)


def layers_of(model: Any) -> list[str]:
    """Return the classes of a transformers model that FSDP gathers one by one; [] where it names none.

    Accelerate gathers embeddings by themselves, and fails where it has to do so twice.
    """
    embeddings = None
    with suppress(AttributeError, NotImplementedError):  # of images, for example
        embeddings = model.get_input_embeddings()
    holders = {
        type(module).__name__
        for module in model.modules()
        if any(inner is embeddings for inner in module.modules())
    }
    return sorted(set(getattr(model, "_no_split_modules", None) or ()) - holders)


def sharded(forecast: Forecast, share: float) -> Forecast:
    """Return the forecast of one rank; `share` of the parameters can be divided.

    What ZeRO and FSDP gather, and their buckets, depend on how a model is wrapped: with two layers counted as
    gathered, real peaks of FSDP on the CPU were 0.91 to 1.40 of a forecast. So theirs is a lower bound, until
    `OneRank` makes real steps.
    """
    way, ranks = parsed(forecast.setting.shards)
    if way == "ddp":
        return with_buckets(forecast)
    left = 1.0 - share + share / ranks
    names = DIVIDED[way]

    def cut(size: int, name: str) -> int:
        return size - math.ceil(size * left) if name in names else 0

    always = sum(cut(part.full, part.name) for part in forecast.parts if part.name != "gradients")
    full = forecast.full("gradients")
    peaks: dict[str, int] = {}
    gradients: dict[str, int] = {}
    for phase, peak in forecast.peaks.items():
        at_peak = forecast.bytes("gradients") if phase == forecast.moment else 0
        gradients[phase] = full if phase == "optimizer" else at_peak
        cut_off = always + cut(gradients[phase], "gradients")
        peaks[phase] = peak - cut_off
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
    rest = peaks[moment] - sum(part.bytes for part in parts)
    source = next((part.source for part in forecast.parts if part.name == "activations"), "")
    if "activations" not in forecast.left_out:
        parts.append(estimate("activations", rest, max(rest, forecast.full("activations")), source))
    divided = [LABELS[name] for name in names if forecast.full(name)]
    share_of = f"its share of {format_list(divided, len(names))}" if divided else ""
    has = share_of or f"a full copy, as {way} divides nothing here"
    note = (
        f"Of {ranks} ranks ({way}), each has {has}; activations are not divided, and {UNCOUNTED} are not "
        "counted."
    )
    left_out = forecast.left_out if way == "tp" else (*forecast.left_out, UNCOUNTED)
    forecast = replace(
        forecast, total=peaks[moment], moment=moment, peaks=peaks, reserved=0, replay=None
    )
    notes = (*forecast.notes, note)
    return replace(forecast, parts=tuple(parts), notes=notes, left_out=left_out)


def with_buckets(forecast: Forecast) -> Forecast:
    """Return the forecast of one rank of DistributedDataParallel, which keeps gradients again in buckets.

    With checkpointing a Trainer lets it make them anew in the second step, when a GPU may still have the
    first. Where the forward pass has the peak, the copies of its results that DDP may make are left out.
    """
    setting, whole = forecast.setting, forecast.full("gradients")
    if not whole:
        return forecast
    if forecast.moment == "forward":
        left_out = "copies of the model's results"
        note = f"Which {left_out} DDP makes is unknown."
        notes = (note, *forecast.notes)
        forecast = replace(forecast, left_out=(*forecast.left_out, left_out), notes=notes)
    sets = 2 if setting.device == "cuda" and setting.checkpointing else 1
    libraries = [part for part in forecast.parts if part.name == "libraries"]
    others = [part for part in forecast.parts if part.name != "libraries"]
    added = sets * whole
    size = added + sum(part.bytes for part in libraries)
    sources = ", ".join((*(part.source for part in libraries), "DDP's gradient buckets"))
    bound: Bound = "upper" if sets > 1 else libraries[0].bound if libraries else "exact"
    return replace(
        forecast,
        parts=(*others, ForecastPart("libraries", size, size, sources, bound)),
        total=forecast.total + added,
        peaks={name: peak + added for name, peak in forecast.peaks.items()},
        reserved=forecast.reserved and forecast.reserved + added,
        replay=forecast.replay
        and forecast.replay._replace(held=(*forecast.replay.held, *[whole] * sets)),
    )
