"""A forecast beside what was measured: of a training before it is watched, or later of its live model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hfmem_widget.analysis.parts import known_of
from hfmem_widget.errors import OptionError
from hfmem_widget.features.fit.model import Forecast
from hfmem_widget.monitor.process import process_state
from hfmem_widget.session import HELD, Device, Finding, Sample, Session, Span
from hfmem_widget.session.steps import StepGroup
from hfmem_widget.text import format_bytes, number, plain

MOST_KEPT = 8

LEAST_OF_OTHERS = 0.005
"""Share of a forecast: where more than that was allocated for something else, the two cannot be compared."""


HOW_TO_RECORD = (
    "a Trainer records it by itself, and a loop of yours with "
    "span('step', tokens=..., longest=...) around each step"
)


class Forecasts(list[Forecast]):
    """The newest forecasts of this process, the oldest first."""


class LastTraining:
    """The session that watched a training last, if any."""

    session: Session | None = None


def remember(forecast: Forecast) -> None:
    """Keep a forecast for the cards of trainings to come."""
    kept = process_state(Forecasts)
    kept.append(forecast)
    del kept[:-MOST_KEPT]


def beside_text(session: Session, span: Span, forecast: Forecast) -> str:
    """Return a forecast and the exact peak of a step of that model and size; empty where there was none."""
    setting, found = forecast.setting, measured_step(session, span, forecast, session.devices)
    if found is None:
        return ""
    peak, at = found
    off = 100 * (peak - forecast.total) / forecast.total
    differs = (
        f" ({number(abs(off), 1)} % {'more' if off > 0 else 'less'})" if abs(off) >= 0.1 else ""
    )
    options = [setting.precision, plain(setting.optimizer), "checkpointing" * setting.checkpointing]
    what = f"{setting.batch} \u00d7 {setting.length} ({', '.join(filter(None, options))})"
    return (
        f"%memfit forecast {format_bytes(forecast.total)} for a step of {what}; "
        f"step {at:.0f} had {format_bytes(peak)}{differs}."
    )


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


def ran_out(finding: Finding) -> bool:
    """Return whether a finding is about an out-of-memory error that ended the code."""
    return (finding.kind, finding.severity) == ("oom", "critical")


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
    sizes = step.samples, step.longest, step.tokens
    is_exact = memory is not None and memory.certainty == "exact"
    return is_exact and step.first == step.last and sizes == (rows, length, rows * length)


def live_model() -> tuple[Any, Any]:
    """Return the largest model that is being trained, and its optimizer, or raise OptionError."""
    from hfmem_widget.monitor.shared import shared_monitor

    modules, optimizers = shared_monitor().attribution.subjects.all()
    if not modules or not optimizers:
        raise OptionError(
            "the model or its optimizer no longer exists; keep the Trainer in a variable and run the cell "
            "again"
        )
    stepped = {
        id(each) for one in optimizers for group in one.param_groups for each in group["params"]
    }

    def rank(module: Any) -> tuple[bool, int]:
        parameters = list(module.parameters())
        is_trained = any(id(each) in stepped for each in parameters)
        return is_trained, sum(each.numel() for each in parameters)

    model = max(modules, key=rank)
    return model, _optimizer_of(model, optimizers)


def _optimizer_of(model: Any, optimizers: Sequence[Any]) -> Any:
    """Return the newest optimizer that steps a model's parameters; the newest of all where none does."""
    own = {id(parameter) for parameter in model.parameters()}
    for optimizer in reversed(optimizers):
        if any(id(each) in own for group in optimizer.param_groups for each in group["params"]):
            return optimizer
    return optimizers[-1]


def shape_of(session: Session, device: str, since: float = 0.0) -> dict[str, float]:
    """Return the shape of the largest batch of the worst step on a device, since some second."""
    groups = [group for group in session.steps if device in group.devices and group.start >= since]
    if not groups:
        raise OptionError(f"no steps were recorded, so the batch shape is unknown; {HOW_TO_RECORD}")
    worst = max(groups, key=lambda group: group.devices[device].peak)
    tokens = worst.devices[device].worst_tokens
    if math.isnan(tokens) or math.isnan(worst.longest):
        raise OptionError(f"no batch shape was recorded; {HOW_TO_RECORD}")
    return {"largest_batch": tokens, "longest": worst.longest, "batches": batches_of(session)}


def batches_of(session: Session) -> float:
    """Return how many batches a step has, by the counts of steps and substeps."""
    for root in session.spans:
        phases = {phase.kind: phase for phase in session.phases(root.id)}
        if "step" in phases and "substep" in phases:
            batches = phases["substep"]
            return max(1.0, round(batches.count / (batches.steps or phases["step"].count or 1)))
    return 1.0
