"""Forecasts scaled by a step that was measured: each part that stays by itself, the rest as one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from hfmem_widget.features.fit.beside import measured_step
from hfmem_widget.features.fit.model import Forecast, ForecastPart
from hfmem_widget.session import Device, Session, Span
from hfmem_widget.text import format_bytes, number

STAYS: Final = ("weights", "buffers", "optimizer")
CERTAIN: Final = ("gradients", "libraries")  # follow from the weights, and from the device

TOLERANCE: Final = 0.02
"""Share of a forecast by which a measured peak may differ from it before others are scaled."""


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
    off = 100 * (peak / forecast.total - 1)
    text = (
        f"Step {step:.0f} took {format_bytes(peak)}, {number(abs(off), 1)} % {'more' if off > 0 else 'less'} "
        "than forecast"
    )
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
