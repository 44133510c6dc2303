"""A forecast out of what a dry run and the rules say."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from hfmem_widget.features.fit.dry_run import Inference, Step
from hfmem_widget.features.fit.model import Bound, Forecast, ForecastPart, Setting
from hfmem_widget.features.fit.optimizers import Needs
from hfmem_widget.text import format_bytes

FROM_SHAPES: Final = "shapes and types"
FROM_A_RULE: Final = "rule for shapes"
FROM_A_DRY_RUN: Final = "dry run on meta device"

ROUTED: Final = (
    "Each token is counted once per expert that it is routed to, and all experts are computed at once, as "
    "transformers does by default (grouped_mm)."
)


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a model before it is run.

    Attributes
    ----------
    name : str
    setting : Setting
    weights, buffers : int
        Bytes.
    unpacked : int
        Bytes of the largest quantised weight when it is unpacked; 0 without such.
    parameters, trainable : int
        Elements.
    gradients : int
        Bytes of the gradients of all that is trained.
    """

    name: str
    setting: Setting
    weights: int
    buffers: int
    unpacked: int
    parameters: int
    trainable: int
    gradients: int = 0

    @property
    def held(self) -> tuple[ForecastPart, ...]:
        """The parts that are there from the beginning."""
        source = "bitsandbytes' rule" if self.setting.quantized else FROM_SHAPES
        return (
            _part("weights", self.weights, source),
            _part("buffers", self.buffers, FROM_SHAPES),
        )

    def bound(self, *, routes: bool) -> Bound:
        """Return how a dry run of it is meant: kernels of a GPU, and of experts, take more."""
        is_sure = self.setting.device == "cpu" and not self.unpacked and not routes
        return "exact" if is_sure else "estimate"


def of_training(known: Known, step: Step, needed: Needs) -> Forecast:
    """Return the forecast of a training step."""
    # Above weights, buffers and states: what there is in all, and what of it is gradients.
    above = {
        "forward": (step.forward.bytes + known.unpacked, step.forward.gradients),
        "backward": (step.backward.bytes + known.unpacked, step.backward.gradients),
        "optimizer": (step.gradients + needed.temporaries, step.gradients),
    }
    moment = max(above, key=lambda name: above[name][0])
    most, gradients = above[moment]
    by_rule = moment == "optimizer"
    parts = (
        *known.held,
        ForecastPart(
            "optimizer", needed.states, needed.states + needed.paged, FROM_A_RULE, "exact"
        ),
        ForecastPart("gradients", gradients, step.gradients, FROM_SHAPES, "exact"),
        ForecastPart(
            "activations",
            most - gradients,
            max(total - complete for total, complete in above.values()),
            FROM_A_RULE if by_rule else FROM_A_DRY_RUN,
            "upper" if by_rule else known.bound(routes=step.routes),
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
    base = known.weights + known.buffers + needed.states
    peaks = {name: base + total for name, (total, _) in above.items()}
    return _forecast(known, parts, moment, peaks, tuple(notes))


def of_inference(known: Known, run: Inference) -> Forecast:
    """Return the forecast of a forward pass."""
    rest = run.peak + known.unpacked - run.kv_cache
    parts = (
        *known.held,
        _part("kv_cache", run.kv_cache, FROM_A_DRY_RUN),
        _part("activations", rest, FROM_A_DRY_RUN, known.bound(routes=run.routes)),
    )
    notes = (ROUTED,) if run.routes else ()
    return _forecast(known, parts, "forward", {"forward": sum(part.bytes for part in parts)}, notes)


def of_what_is_held(known: Known, needed: Needs | None, why: str) -> Forecast:
    """Return what is there whatever runs: the forecast of a model whose activations are not known.

    Parameters
    ----------
    needed : Needs, optional
        Of the optimizer; none where it is not trained.
    why : str
        A sentence.
    """
    states = () if needed is None else (_part("optimizer", needed.states, FROM_A_RULE),)
    parts = (*known.held, *states, _part("gradients", known.gradients, FROM_SHAPES))
    peaks = {"": sum(part.bytes for part in parts)}
    return replace(_forecast(known, parts, "", peaks, (why,)), left_out=("activations",))


def _part(name: str, size: int, source: str, bound: Bound = "exact") -> ForecastPart:
    return ForecastPart(name, size, size, source, bound)


def _forecast(
    known: Known,
    parts: tuple[ForecastPart, ...],
    moment: str,
    peaks: dict[str, int],
    notes: tuple[str, ...] = (),
) -> Forecast:
    return Forecast(
        model=known.name,
        setting=known.setting,
        parts=tuple(part for part in parts if part.full),
        total=peaks[moment],
        moment=moment,
        peaks=peaks,
        parameters=known.parameters,
        trainable=known.trainable,
        notes=notes,
    )
