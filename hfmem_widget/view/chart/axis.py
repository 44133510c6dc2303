"""Ticks at round figures, the same ones that the live chart has."""

from __future__ import annotations

import math
from dataclasses import dataclass

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_TIME_STEPS = (
    *(1, 2, 5, 10, 15, 20, 30),
    *(minutes * _MINUTE for minutes in (1, 2, 5, 10, 15, 20, 30)),
    *(hours * _HOUR for hours in (1, 2, 3, 6, 12)),
)


@dataclass(frozen=True, slots=True)
class Ticks:
    """The places of ticks, and their labels."""

    values: tuple[float, ...]
    texts: tuple[str, ...]


def value_ticks(top: float, unit: str, count: int = 5) -> Ticks:
    """Return about `count` ticks from 0 to `top`; only the highest names the unit."""
    step = round_up(top / count, (1, 2, 2.5, 5, 10))
    is_quarter = math.isclose(step / 10.0 ** math.floor(math.log10(step) + 1e-9), 2.5)
    values = _multiples(step, top)
    texts = [f"{value:,.{_decimals(step, is_quarter)}f}" for value in values]
    return Ticks(values, (*texts[:-1], f"{texts[-1]} {unit}"))


def time_ticks(stop: float, count: int = 6) -> Ticks:
    """Return at most `count` ticks, and the one at 0, at round times up to `stop` seconds."""
    least = stop / count
    if least < 1:
        step = round_up(max(least, 1e-6), (1, 2, 5, 10))
    else:
        fits = (step for step in _TIME_STEPS if step >= least)
        step = next(fits, math.ceil(least / _DAY) * _DAY)
    values = _multiples(step, stop)
    return Ticks(values, tuple(time_text(value, step, stop) for value in values))


def time_text(seconds: float, step: float, end: float) -> str:
    """Return the text of a tick, such as ``2.5 s`` or ``1:30``, of one every `step` seconds up to `end`."""
    decimals = _decimals(step)
    if seconds == 0:
        return "0 s"
    if end < 1:
        return f"{seconds * 1000:.{max(0, decimals - 3)}f} ms"
    if step < _MINUTE:
        if seconds < _MINUTE:
            return f"{seconds:.{decimals}f} s"
        width = decimals + 3 if decimals else 2
        return f"{int(seconds // 60)}:{seconds % 60:0{width}.{decimals}f}"
    hours, minutes = divmod(round(seconds / 60), 60)
    if not hours:
        return f"{minutes} min"
    return f"{hours} h {minutes:02d}" if minutes else f"{hours} h"


def round_up(least: float, mantissas: tuple[float, ...]) -> float:
    """Return the smallest of some mantissas, times a power of ten, that is at least `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    fits = (mantissa * power for mantissa in mantissas if mantissa * power >= least * (1 - 1e-9))
    return next(fits, 10 * power)


def _multiples(step: float, stop: float) -> tuple[float, ...]:
    return tuple(index * step for index in range(math.floor(stop / step + 1e-9) + 1))


def _decimals(step: float, more: int = 0) -> int:
    return max(0, math.ceil(-math.log10(step) - 1e-9) + more)
