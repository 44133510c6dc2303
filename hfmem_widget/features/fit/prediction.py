"""What a watched training should have needed, by a forecast of the very model, beside what it took."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hfmem_widget.errors import OptionError
from hfmem_widget.session import Session
from hfmem_widget.text import plain

HOW_TO_RECORD = (
    "a Trainer records it by itself, and a loop of yours with "
    "span('step', tokens=..., longest=...) around each step"
)

KEPT = ("weights", "optimizer", "gradients")
"""What a training keeps for every parameter."""

OTHERS = 1.05
"""Of the predicted weights: where more than that was held, some of it is of other models."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """A forecast as the anatomy of one device is told.

    Attributes
    ----------
    parts : mapping of str to float
        Bytes at the peak of a step by the name of a part, and of a GPU ``allocated``, their sum.
    per_parameter : str
        What is kept for every parameter, measured beside predicted, as one sentence; predicted alone, where
        other models were held as well.
    """

    parts: dict[str, float] = field(default_factory=dict)
    per_parameter: str = ""


def prediction(session: Session, device: str) -> Prediction:
    """Return what the worst step on a device should have needed; a dry run of the live model tells.

    Raises
    ------
    OptionError
        If there is no telling; the message says why.
    """
    from hfmem_widget.features.fit.predict import forecast_of, parts_at_the_peak
    from hfmem_widget.monitor.shared import shared_monitor

    modules, optimizers = shared_monitor().attribution.subjects.all()
    if not modules or not optimizers:
        message = (
            "the model or its optimizer no longer exists; keep the Trainer in a variable and run the cell "
            "again"
        )
        raise OptionError(message)
    model = max(modules, key=_size)
    optimizer = _optimizer_of(model, optimizers)
    forecast = forecast_of(model, optimizer, _worst(session, device), device.partition(":")[0])
    parts = {name: float(size) for name, size in parts_at_the_peak(forecast).items()}
    full = {name: float(forecast.full(name)) for name in KEPT}
    told = per_parameter(session, full, forecast.parameters, plain(type(model).__name__))
    if device != "cpu":  # whose heap holds much that is no model's
        parts["allocated"] = sum(parts.values())
    return Prediction(parts, told)


def per_parameter(
    session: Session, predicted: dict[str, float], parameters: int, model: str
) -> str:
    """Return what is kept for every parameter, such as ``16.0 bytes a parameter``, and what was predicted."""
    if not parameters:
        return ""
    highest = {name: _highest(session, name) for name in KEPT}
    expected = sum(predicted.values()) / parameters
    if highest["weights"] > OTHERS * predicted["weights"]:
        return (
            f"The prediction covers {model} alone, {expected:.2f} bytes per parameter; other models were in "
            "memory as well."
        )
    measured = {name: value / parameters for name, value in highest.items()}
    total = sum(measured.values())
    each = ", ".join(f"{name} {value:.2f}" for name, value in measured.items())
    return f"Bytes per parameter: {total:.2f} measured ({each}), {expected:.2f} predicted."


def _optimizer_of(model: Any, optimizers: Sequence[Any]) -> Any:
    """Return the newest optimizer that steps a model's parameters; the newest of all where none does."""
    own = {id(one) for one in model.parameters()}
    newest_first = optimizers[::-1]
    stepped = (
        one
        for one in newest_first
        if any(id(each) in own for group in one.param_groups for each in group["params"])
    )
    return next(stepped, newest_first[0])


def _worst(session: Session, device: str) -> dict[str, float]:
    """Return the shape of the largest batch of the worst step on a device."""
    groups = [group for group in session.steps if device in group.devices]
    if not groups:
        message = f"no steps were recorded, so the batch shape is unknown; {HOW_TO_RECORD}"
        raise OptionError(message)
    worst = max(groups, key=lambda group: group.devices[device].peak)
    tokens = worst.devices[device].worst_tokens
    if math.isnan(tokens) or math.isnan(worst.longest):
        message = f"no batch shape was recorded; {HOW_TO_RECORD}"
        raise OptionError(message)
    counts = {"largest_batch": tokens, "longest": worst.longest}
    return counts | {"batches": _batches(session)}


def _batches(session: Session) -> float:
    """Return how many batches a step has, by what was told apart."""
    for root in session.spans:
        counted = {phase.kind: phase.count for phase in session.phases(root.id)}
        if counted.get("step") and counted.get("substep"):
            return max(1.0, round(counted["substep"] / counted["step"]))
    return 1.0


def _highest(session: Session, metric: str) -> float:
    known = [session.peak(f"{device.key}/{metric}") for device in session.devices]
    return sum(value for value in known if not math.isnan(value))


def _size(module: Any) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
