"""A forecast beside what was measured: of a training before it is watched, or later of its live model.

Where the two differ, others are scaled: each part that stays by itself, the rest as one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Final

from hfmem_widget.analysis.facts import ran_out
from hfmem_widget.analysis.parts import known_of
from hfmem_widget.errors import OptionError
from hfmem_widget.features.fit.model import Forecast, ForecastPart, size_text
from hfmem_widget.monitor.process import process_state
from hfmem_widget.session import HELD, Device, Finding, Sample, Session, Span
from hfmem_widget.session.steps import StepGroup
from hfmem_widget.text import format_bytes, number, plain

LEAST_OF_OTHERS = 0.005
"""Share of a forecast: where more than that was allocated for something else, the two cannot be compared."""

HOW_TO_RECORD = (
    "a Trainer records it by itself, and a loop of yours with "
    "span('step', tokens=..., longest=...) around each step"
)


GONE: Final = (
    "the model or its optimizer no longer exists; keep the Trainer in a variable and run the cell "
    "again"
)

STAYS: Final = ("weights", "buffers", "optimizer")
CERTAIN: Final = ("gradients", "libraries")  # follow from the weights, and from the device

TOLERANCE: Final = 0.02
"""Share of a forecast by which a measured peak may differ from it before others are scaled."""


class Forecasts(list[Forecast]):
    """The newest forecasts of this process, the oldest first."""


class LastTraining:
    """The session that watched a training last, if any."""

    session: Session | None = None


def remember(forecast: Forecast) -> None:
    """Keep a forecast for the cards of trainings to come."""
    kept = process_state(Forecasts)
    kept.append(forecast)
    del kept[:-8]


def beside_text(session: Session, span: Span, forecast: Forecast) -> str:
    """Return a forecast and the exact peak of a step of that model and size; empty where there was none."""
    setting, found = forecast.setting, measured_step(session, span, forecast, session.devices)
    if found is None:
        return ""
    peak, at = found
    differs = abs(peak / forecast.total - 1) >= 0.001
    options = [setting.precision, plain(setting.optimizer), "checkpointing" * setting.checkpointing]
    what = f"{size_text(setting.batch, setting.length)} ({', '.join(filter(None, options))})"
    return (
        f"%memfit forecast {format_bytes(forecast.total)} for a step with batch {what}; "
        f"step {at:.0f} had {format_bytes(peak)}{f' ({_off(peak, forecast)})' if differs else ''}."
    )


def _off(peak: float, forecast: Forecast) -> str:
    off = 100 * (peak / forecast.total - 1)
    return f"{number(abs(off), 1)} % {'more' if off > 0 else 'less'}"


def measured_step(
    session: Session, span: Span, forecast: Forecast, devices: Sequence[Device]
) -> tuple[float, float] | None:
    """Return the highest exact peak in bytes of a step of that model and size, and its number.

    A first step has no optimizer states yet.
    """
    setting, contents = forecast.setting, session.contents
    is_whole = setting.training and not forecast.left_out
    is_same = (contents.modules, contents.parameters) == ((forecast.model,), forecast.parameters)
    if not (is_whole and is_same) or setting.device == "cpu" or setting.accumulation > 1:
        return None
    steps = (
        (step.devices[device.key].peak, step.first)
        for device in devices
        if others_of(session, span, device) <= LEAST_OF_OTHERS * forecast.total
        for step in session.steps
        if step.start >= span.start and step.first > 1 and _is_of(step, device, forecast)
    )
    return max(steps, default=None)


@dataclass(frozen=True, slots=True)
class Calibration:
    """The factor for each part of a training's forecasts, and a sentence about it.

    Of what a step itself allocates only the sum is known at its peak: that is "made".
    """

    text: str = ""
    scales: Mapping[str, float] = field(default_factory=dict)

    def of(self, forecast: Forecast, ran: Forecast) -> Forecast:
        """Return a forecast, scaled; parts that were another size when the training `ran` stay."""
        if not self.scales:
            return forecast
        setting, was = forecast.setting, ran.setting
        unmeasured: set[str] = set()
        if (setting.precision, setting.lora) != (was.precision, was.lora):
            unmeasured = {*STAYS}
        elif setting.optimizer != was.optimizer:
            unmeasured = {"optimizer"}
        parts = tuple(
            part if part.name in unmeasured else self._scaled(part) for part in forecast.parts
        )
        total = sum(part.bytes for part in parts)
        times = total / max(1, forecast.total)
        return replace(
            forecast,
            parts=parts,
            total=total,
            peaks={name: round(times * size) for name, size in forecast.peaks.items()},
            reserved=round(times * forecast.reserved),
            replay=None,  # its requests are those of the dry run
        )

    def _scaled(self, part: ForecastPart) -> ForecastPart:
        times = self.scales.get(part.name, 1.0 if part.name in STAYS else self.scales["made"])
        sizes = {name: round(times * getattr(part, name)) for name in ("bytes", "full")}
        return replace(part, **sizes, bound="estimate" if times != 1.0 else part.bound)


UNCALIBRATED: Final = Calibration()


def calibration_of(session: Session, root: Span, device: Device, forecast: Forecast) -> Calibration:
    """Return how a training's forecast compares with the exact peak of a step of its size.

    Nothing is scaled where they agree, where no such step was measured, or not its parts.
    """
    found = measured_step(session, root, forecast, [device])
    if found is None or abs(found[0] / forecast.total - 1) <= TOLERANCE:
        return UNCALIBRATED
    peak, step = found
    text = f"Step {step:.0f} took {format_bytes(peak)}, {_off(peak, forecast)} than forecast"
    at_peak = session.anatomy(int(step), device.key)
    held = {name: at_peak.bytes(name) for name in STAYS if forecast.bytes(name)}
    made = forecast.total - sum(map(forecast.bytes, (*held, *CERTAIN)))
    left = peak - sum(held.values()) - sum(map(forecast.bytes, CERTAIN))
    is_measured = at_peak.allocated == peak and all(size > 0 for size in held.values())
    if not is_measured or left <= 0 or made <= 0:
        return Calibration(f"{text}; its parts were not measured, so what would fit is not scaled.")
    scales = {name: size / forecast.bytes(name) for name, size in held.items()}
    return Calibration(
        f"{text}: what would fit is scaled by that, part by part.",
        {**scales, **dict.fromkeys(CERTAIN, 1.0), "made": left / made},
    )


def error_of(session: Session, root: Span) -> Finding | None:
    """Return the newest out-of-memory error of a watched span; None without one."""
    errors = (each for each in reversed(session.findings) if each.span_id == root.id)
    return next(filter(ran_out, errors), None)


def room_before(error: Finding) -> float:
    """Return the bytes that this process could have had when memory ran out; NaN if unknown."""
    figures = (error.evidence.get(name) for name in ("room", "allocated"))
    return sum(float(value) if isinstance(value, int) else math.nan for value in figures)


def failed_spans(session: Session, root: Span) -> list[Span]:
    """Return the spans that an error has ended, the watched one first."""
    return [span for span in session.spans if span.id >= root.id and span.outcome == root.outcome]


def others_of(session: Session, span: Span, device: Device) -> float:
    """Return what was allocated when a span began, beside models and their optimizers.

    Of models that nobody knew by then, as in a function of a script, that is the least since they are known.
    """
    within = (each.before for each in session.spans if each.id > span.id)
    known = (each for each in within if session.value(each, f"{device.key}/weights") >= 0)
    edges = (span.before,) if session.value(span.before, f"{device.key}/weights") >= 0 else known
    beside = (_beside_models(session, each, device) for each in edges)
    return min(beside, default=_beside_models(session, span.before, device))


def _beside_models(session: Session, sample: Sample, device: Device) -> float:
    allocated, *held = (
        known_of(session.value(sample, f"{device.key}/{name}"), 0.0)
        for name in ("allocated", *HELD)
    )
    return max(0.0, allocated - sum(held))


def _is_of(step: StepGroup, device: Device, forecast: Forecast) -> bool:
    """Return whether it is one step, of as many rows and tokens, whose peak is exact."""
    rows, length = forecast.setting.batch, forecast.setting.length
    memory = step.devices.get(device.key)
    is_exact = memory is not None and memory.certainty == "exact"
    has_length = (step.longest, step.tokens) == (length, rows * length)
    is_size = step.samples == rows and (has_length or (length == 1 and math.isnan(step.longest)))
    return is_exact and step.first == step.last and is_size


def live_model(session: Session) -> tuple[Any, Any]:
    """Return the largest model that a session's watch has trained, and its newest optimizer.

    Raise OptionError where they no longer exist.
    """
    from hfmem_widget.monitor.shared import shared_monitor

    modules, optimizers = shared_monitor().attribution.subjects.all()
    weights = {id(each): _weights(each) for each in (*modules, *optimizers)}
    if session.trained:
        seen = [one for reference in session.trained if (one := reference()) is not None]
        own = set().union(*map(_weights, seen))
        modules = [module for module in modules if own & weights[id(module)]]
        optimizers = [one for one in optimizers if own & weights[id(one)]]
    if not modules or not optimizers:
        raise OptionError(GONE if session.trained else "no training was watched")
    stepped = set().union(*(weights[id(each)] for each in optimizers))
    trained = [module for module in modules if stepped & weights[id(module)]] or modules
    model = max(trained, key=lambda module: sum(each.numel() for each in module.parameters()))
    steps = [one for one in optimizers if weights[id(model)] & weights[id(one)]]
    return model, (steps or optimizers)[-1]


def others_that_ran(session: Session, model: Any) -> str:
    """Return the classes of other models that ran while a session watched one; empty if there were none."""
    ran = (*(each() for each in session.trained), *(each.model() for each in session.evaluated))
    subjects = [each for each in ran if hasattr(each, "modules")]  # not optimizers
    own = _weights(model)
    others = [each for each in subjects if (has := _weights(each)) and not has & own]
    within = {id(part) for each in others for part in [*each.modules()][1:]}
    names = (plain(type(each).__name__) for each in others if id(each) not in within)
    return " and ".join(dict.fromkeys(names))


def _weights(subject: Any) -> set[int]:
    """Return the identities of the parameters that a model has, or an optimizer changes."""
    groups = getattr(subject, "param_groups", None)
    each = subject.parameters() if groups is None else chain(*(one["params"] for one in groups))
    return {*map(id, each)}


def shape_of(session: Session, device: str, since: float = 0.0) -> dict[str, float]:
    """Return the shape of the largest batch of the worst step on a device, since some second.

    Of the steps whose batches are known: those of a loop that share a window have none.
    """
    groups = [group for group in session.steps if device in group.devices and group.start >= since]
    if not groups:
        raise OptionError(f"no steps were recorded, so the batch shape is unknown; {HOW_TO_RECORD}")
    known = [each for each in groups if each.devices[device].worst_tokens > 0 and each.longest > 0]
    if not known:
        raise OptionError(f"no batch shape was recorded; {HOW_TO_RECORD}")
    worst = max(known, key=lambda group: group.devices[device].peak)
    tokens = worst.devices[device].worst_tokens
    return {"largest_batch": tokens, "longest": worst.longest, "batches": batches_of(session)}


def batches_of(session: Session) -> float:
    """Return how many batches a step has, by the counts of steps and substeps."""
    for root in session.spans:
        phases = {phase.kind: phase for phase in session.phases(root.id)}
        if "step" in phases and "substep" in phases:
            batches = phases["substep"]
            return max(1.0, round(batches.count / (batches.steps or phases["step"].count or 1)))
    return 1.0
