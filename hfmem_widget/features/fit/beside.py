"""Compares forecasts with measured peaks: those from before a training, and those of its live model.

If they differ, later forecasts are scaled: each constant part by its own factor, all others by one factor.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
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
"""The share of a forecast above which other allocated memory makes forecast and peak incomparable."""

HOW_TO_RECORD = (
    "a Trainer records it by itself, and a loop of yours with "
    "span('step', tokens=..., longest=...) around each step"
)

CONSTANT: Final = ("weights", "buffers", "optimizer")
CERTAIN: Final = ("gradients", "libraries")  # known from the weights and from the device

TOLERANCE: Final = 0.02
"""The share up to which a measured peak may differ from a forecast that is not scaled."""


class Forecasts(list[Forecast]):
    """The newest forecasts of this process, the oldest first."""


class LastTraining:
    """The session that watched a training last, if any."""

    session: Session | None = None


def remember(forecast: Forecast) -> None:
    """Keep a forecast for the cards of later trainings."""
    kept = process_state(Forecasts)
    kept.append(forecast)
    del kept[:-8]


def beside_text(session: Session, span: Span, forecast: Forecast) -> str:
    """Return a sentence with a forecast and the exact peak of a step of its size; empty without one."""
    setting, step = forecast.setting, measured_step(session, span, forecast, session.devices)
    if step is None:
        return ""
    peak, at = step
    differs = abs(peak / forecast.total - 1) >= 0.001
    options = [setting.precision, plain(setting.optimizer), "checkpointing" * setting.checkpointing]
    size = f"{size_text(setting.batch, setting.length)} ({', '.join(filter(None, options))})"
    return (
        f"%memfit forecast {format_bytes(forecast.total)} for a step with batch {size}; "
        f"step {at:.0f} had {format_bytes(peak)}{f' ({_off(peak, forecast)})' if differs else ''}."
    )


def _off(peak: float, forecast: Forecast) -> str:
    percent = 100 * (peak / forecast.total - 1)
    return f"{number(abs(percent), 1)} % {'more' if percent > 0 else 'less'}"


def measured_step(
    session: Session, span: Span, forecast: Forecast, devices: Sequence[Device]
) -> tuple[float, float] | None:
    """Return the highest exact peak in bytes, and its step, of the steps of a forecast's model and size.

    A first step does not count: it has no optimizer states yet.
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

    "made" is the factor for all memory that a step itself allocates: only its sum was measured.
    """

    text: str = ""
    scales: Mapping[str, float] = field(default_factory=dict)

    def of(self, forecast: Forecast, ran: Forecast) -> Forecast:
        """Return a scaled forecast, except the parts that had another size in the training that `ran`."""
        if not self.scales:
            return forecast
        setting, measured = forecast.setting, ran.setting
        unmeasured: set[str] = set()
        if (setting.precision, setting.lora) != (measured.precision, measured.lora):
            unmeasured = {*CONSTANT}
        elif setting.optimizer != measured.optimizer:
            unmeasured = {"optimizer"}
        parts = tuple(
            part if part.name in unmeasured else self._scaled(part) for part in forecast.parts
        )
        total = sum(part.bytes for part in parts)
        factor = total / max(1, forecast.total)
        return replace(
            forecast,
            parts=parts,
            total=total,
            peaks={name: round(factor * size) for name, size in forecast.peaks.items()},
            reserved=round(factor * forecast.reserved),
            replay=None,  # its requests have the sizes of the dry run
        )

    def _scaled(self, part: ForecastPart) -> ForecastPart:
        factor = self.scales.get(part.name, 1.0 if part.name in CONSTANT else self.scales["made"])
        sizes = {name: round(factor * getattr(part, name)) for name in ("bytes", "full")}
        return replace(part, **sizes, bound="estimate" if factor != 1.0 else part.bound)


UNCALIBRATED: Final = Calibration()


def calibration_of(session: Session, root: Span, device: Device, forecast: Forecast) -> Calibration:
    """Return the factors between a training's forecast and the exact peak of a step of its size.

    There are none if the two agree, or if such a step or its parts were not measured.
    """
    measured = measured_step(session, root, forecast, [device])
    if measured is None or abs(measured[0] / forecast.total - 1) <= TOLERANCE:
        return UNCALIBRATED
    peak, step = measured
    text = f"Step {step:.0f} took {format_bytes(peak)}, {_off(peak, forecast)} than forecast"
    at_peak = session.anatomy(int(step), device.key)
    held = {name: at_peak.bytes(name) for name in CONSTANT if forecast.bytes(name)}
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


def others_of(session: Session, span: Span, device: Device) -> float:
    """Return the bytes that were allocated at a span's beginning besides models and their optimizers.

    If the models were still unknown, as in a function of a script, return the least since they are known.
    """

    def value(sample: Sample, name: str) -> float:
        return session.value(sample, f"{device.key}/{name}")

    def beside_models(sample: Sample) -> float:
        allocated, *held = (known_of(value(sample, name), 0.0) for name in ("allocated", *HELD))
        return max(0.0, allocated - sum(held))

    if not value(span.before, "weights") >= 0:
        later = (each.before for each in session.spans if each.id > span.id)
        known = (beside_models(sample) for sample in later if value(sample, "weights") >= 0)
        return min(known, default=beside_models(span.before))
    return beside_models(span.before)


def _is_of(step: StepGroup, device: Device, forecast: Forecast) -> bool:
    """Return whether a group is one step of a forecast's rows and tokens whose peak is exact."""
    rows, length = forecast.setting.batch, forecast.setting.length
    memory = step.devices.get(device.key)
    is_exact = memory is not None and memory.certainty == "exact"
    has_length = (step.longest, step.tokens) == (length, rows * length)
    is_size = step.samples == rows and (has_length or (length == 1 and math.isnan(step.longest)))
    return is_exact and step.first == step.last and is_size


def live_model(session: Session) -> tuple[Any, Any]:
    """Return the largest model that was trained in a session, and its newest optimizer.

    Raise OptionError if they no longer exist.
    """
    from hfmem_widget.monitor.shared import shared_monitor

    modules, optimizers = shared_monitor().attribution.subjects.all()
    weights = {id(each): _weights(each) for each in (*modules, *optimizers)}
    if session.trained:
        existing = [one for reference in session.trained if (one := reference()) is not None]
        own = set().union(*map(_weights, existing))
        modules = [module for module in modules if own & weights[id(module)]]
        optimizers = [each for each in optimizers if own & weights[id(each)]]
    if not modules or not optimizers:
        raise OptionError(
            "the model or its optimizer no longer exists; keep the Trainer in a variable and run the cell "
            "again"
            if session.trained
            else "no training was watched"
        )
    stepped = set().union(*(weights[id(each)] for each in optimizers))
    trained = [module for module in modules if stepped & weights[id(module)]] or modules
    model = max(trained, key=lambda module: sum(each.numel() for each in module.parameters()))
    of_model = [each for each in optimizers if weights[id(model)] & weights[id(each)]]
    return model, (of_model or optimizers)[-1]


def others_that_ran(session: Session, model: Any) -> str:
    """Return the classes of other models that ran while a session's model trained; empty without others."""
    ran: Iterator[Any] = (each() for each in (*session.trained, *session.beside))
    subjects = [each for each in ran if hasattr(each, "modules")]  # not optimizers
    own = _weights(model)
    others = [each for each in subjects if (weights := _weights(each)) and not weights & own]
    within = {id(part) for each in others for part in [*each.modules()][1:]}
    names = (plain(type(each).__name__) for each in others if id(each) not in within)
    return " and ".join(dict.fromkeys(names))


def _weights(subject: Any) -> set[int]:
    """Return the identities of a model's or an optimizer's parameters."""
    groups = getattr(subject, "param_groups", None)
    lists = [subject.parameters()] if groups is None else [group["params"] for group in groups]
    return {*map(id, chain(*lists))}


def shape_of(session: Session, device: str, since: float = 0.0) -> dict[str, float]:
    """Return the shape of the largest batch of the worst step on a device that began after `since` seconds.

    Only steps with known batches count: a loop's short steps that share a span have none.
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
    """Return the number of batches in a step, by the counts of steps and substeps."""
    for root in session.spans:
        phases = {phase.kind: phase for phase in session.phases(root.id)}
        if "step" in phases and "substep" in phases:
            batches = phases["substep"]
            return max(1.0, round(batches.count / (batches.steps or phases["step"].count or 1)))
    return 1.0
