"""A forecast out of what a dry run and the rules say."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from hfmem_widget.features.fit.dry_run import Inference, Step
from hfmem_widget.features.fit.model import Bound, Forecast, ForecastPart
from hfmem_widget.features.fit.optimizers import Needs
from hfmem_widget.text import format_bytes

FROM_SHAPES: Final = "shapes and types"
FROM_BITSANDBYTES: Final = "bitsandbytes' rule"
FROM_A_RULE: Final = "rule for shapes"
FROM_A_DRY_RUN: Final = "dry run on meta device"

ROUTED: Final = (
    "Each token is counted once per expert that it is routed to, and all experts are computed at once, as "
    "transformers does by default (grouped_mm)."
)


def whole(name: str, size: int, source: str, bound: Bound = "exact") -> ForecastPart:
    """Return a part that is there in full at the peak."""
    return ForecastPart(name, size, size, source, bound)


def of_training(held: Forecast, unpacked: int, step: Step, needed: Needs) -> Forecast:
    """Return the forecast of a training step.

    `held` has the weights and buffers, and `unpacked` are the bytes of the largest quantised weight when it
    is unpacked, or 0.
    """
    # Above weights, buffers and states: everything, and the gradients in it.
    above = {
        "forward": (step.forward.bytes + unpacked, step.forward.gradients),
        "backward": (step.backward.bytes + unpacked, step.backward.gradients),
        "optimizer": (step.gradients + needed.temporaries, step.gradients),
    }
    moment = max(above, key=lambda name: above[name][0])
    most, gradients = above[moment]
    by_rule = moment == "optimizer"
    parts = (
        ForecastPart(
            "optimizer", needed.states, needed.states + needed.paged, FROM_A_RULE, "exact"
        ),
        ForecastPart("gradients", gradients, step.gradients, FROM_SHAPES, "exact"),
        ForecastPart(
            "activations",
            most - gradients,
            max(total - complete for total, complete in above.values()),
            FROM_A_RULE if by_rule else FROM_A_DRY_RUN,
            "upper" if by_rule else _bound(held, unpacked, routes=step.routes),
        ),
    )
    notes = [f"{format_bytes(step.kept)} are saved by the forward pass for the backward pass."]
    if step.routes:
        notes.append(ROUTED)
    if needed.paged:
        notes.append(
            f"{format_bytes(needed.paged)} of optimizer states are paged: they move to the host's memory "
            "when the device is full."
        )
    base = sum(part.bytes for part in held.parts) + needed.states
    peaks = {name: base + total for name, (total, _) in above.items()}
    return _completed(held, parts, moment, peaks, tuple(notes))


def of_inference(held: Forecast, unpacked: int, run: Inference) -> Forecast:
    """Return the forecast of a forward pass."""
    rest = run.peak + unpacked - run.kv_cache
    bound = _bound(held, unpacked, routes=run.routes)
    parts = (
        whole("kv_cache", run.kv_cache, FROM_A_DRY_RUN),
        whole("activations", rest, FROM_A_DRY_RUN, bound),
    )
    total = sum(part.bytes for part in (*held.parts, *parts))
    return _completed(held, parts, "forward", {"forward": total}, (ROUTED,) * run.routes)


def of_what_is_held(held: Forecast, needed: Needs | None, gradients: int, why: str) -> Forecast:
    """Return the forecast of a model whose activations are unknown, and a sentence why.

    `needed` is of the optimizer; None where the model is not trained.
    """
    states = () if needed is None else (whole("optimizer", needed.states, FROM_A_RULE),)
    parts = (*states, whole("gradients", gradients, FROM_SHAPES))
    total = sum(part.bytes for part in (*held.parts, *parts))
    return replace(_completed(held, parts, "", {"": total}, (why,)), left_out=("activations",))


def _bound(held: Forecast, unpacked: int, *, routes: bool) -> Bound:
    """Return how a dry run is meant: kernels of a GPU, and of experts, take more."""
    is_sure = held.setting.device == "cpu" and not unpacked and not routes
    return "exact" if is_sure else "estimate"


def _completed(
    held: Forecast,
    parts: tuple[ForecastPart, ...],
    moment: str,
    peaks: dict[str, int],
    notes: tuple[str, ...],
) -> Forecast:
    parts = tuple(part for part in (*held.parts, *parts) if part.full)
    return replace(held, parts=parts, total=peaks[moment], moment=moment, peaks=peaks, notes=notes)
