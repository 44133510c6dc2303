"""The forecast beside the measured peak, where a training was forecast before it was watched."""

from __future__ import annotations

import math
from collections.abc import Mapping

from hfmem_widget.features.fit.model import Forecast
from hfmem_widget.monitor.companion import NOTHING, Companion
from hfmem_widget.monitor.process import process_state
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import HELD, Device, Session, Span
from hfmem_widget.session.steps import StepGroup
from hfmem_widget.text import format_bytes, number, plain

MOST_KEPT = 8

LEAST_OF_OTHERS = 0.005
"""Share of a forecast: where more than that was allocated for something else, the two cannot be compared."""


class Forecasts(list[Forecast]):
    """The newest forecasts of this process, the oldest first."""


def remember(forecast: Forecast) -> None:
    """Keep a forecast for the cards of trainings to come."""
    kept = process_state(Forecasts)
    kept.append(forecast)
    del kept[:-MOST_KEPT]


class BesideForecast(Companion):
    """Says at the end of a watch what was forecast for one of its steps."""

    def __init__(self, options: WatchOptions | None = None) -> None:
        pass

    def report(self, session: Session, span: Span) -> Mapping[str, str]:
        """Add a sentence to the remarks on the span, for the newest forecast that one of its steps is of."""
        texts = (beside_text(session, span, each) for each in reversed(process_state(Forecasts)))
        if text := next(filter(None, texts), ""):
            session.remarks[span.id] = text
        return NOTHING


def beside_text(session: Session, span: Span, forecast: Forecast) -> str:
    """Return a forecast and the exact peak of a step of that model and size; empty where there was none.

    A first step has no optimizer states yet.
    """
    setting, contents = forecast.setting, session.contents
    is_whole = setting.training and not forecast.left_out
    is_same = (contents.modules, contents.parameters) == ((forecast.model,), forecast.parameters)
    if not (is_whole and is_same) or setting.device == "cpu" or setting.accumulation > 1:
        return ""
    steps = [
        (step.devices[device.key].peak, step.first)
        for device in session.devices
        if _others(session, span, device) <= LEAST_OF_OTHERS * forecast.total
        for step in session.steps
        if step.start >= span.start and step.first > 1 and _is_of(step, device, forecast)
    ]
    if not steps:
        return ""
    peak, at = max(steps)
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


def _others(session: Session, span: Span, device: Device) -> float:
    """Return what was allocated when a span began, beside models and their optimizers."""
    began, *held = (
        0.0 if math.isnan(value := session.value(span.before, f"{device.key}/{name}")) else value
        for name in ("allocated", *HELD)
    )
    return max(0.0, began - sum(held))


def _is_of(step: StepGroup, device: Device, forecast: Forecast) -> bool:
    """Return whether it is one step, of as many rows and tokens, whose peak is exact."""
    rows, length = forecast.setting.batch, forecast.setting.length
    memory = step.devices.get(device.key)
    sizes = step.samples, step.longest, step.tokens
    is_exact = memory is not None and memory.certainty == "exact"
    return is_exact and step.first == step.last and sizes == (rows, length, rows * length)
