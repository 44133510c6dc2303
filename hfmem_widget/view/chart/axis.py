"""Ticks at round figures, the same ones that the live chart has."""

from __future__ import annotations

import math
from dataclasses import dataclass

_TIME_STEPS = (
    1,
    2,
    5,
    10,
    15,
    20,
    30,
    60,
    120,
    300,
    600,
    900,
    1200,
    1800,
    3600,
    7200,
    10800,
    21600,
    43200,
)
_DAY = 86_400


@dataclass(frozen=True, slots=True)
class Ticks:
    """Where ticks stand, and what is written at them."""

    values: tuple[float, ...]
    texts: tuple[str, ...]


def value_ticks(top: float, unit: str, count: int = 5) -> Ticks:
    """Return about `count` ticks from 0 to `top`; the unit is said once, at the highest."""
    step = round_up(top / count, (1, 2, 2.5, 5, 10))
    decimals = max(0, math.ceil(-math.log10(step) - 1e-9) + (1 if _is_quarter(step) else 0))
    values = tuple(index * step for index in range(math.floor(top / step + 1e-9) + 1))
    texts = [f"{value:.{decimals}f}" for value in values]
    texts[-1] = f"{texts[-1]} {unit}"
    return Ticks(values, tuple(texts))


def time_ticks(stop: float, count: int = 6) -> Ticks:
    """Return at most `count` ticks, and the one at 0, at round times up to `stop` seconds."""
    step = _time_step(stop / count)
    values = tuple(index * step for index in range(math.floor(stop / step + 1e-9) + 1))
    return Ticks(values, tuple(time_text(value, step, stop) for value in values))


def time_text(seconds: float, step: float, end: float) -> str:
    """Return a time as its tick says it, on an axis up to `end` with a tick every `step` seconds.

    Such as ``400 ms``, ``2.5 s``, ``1:30``, ``10 min``, ``1 h 30``.
    """
    decimals = max(0, math.ceil(-math.log10(step) - 1e-9))
    if seconds == 0:
        return "0 s"
    if end < 1:
        return f"{seconds * 1000:.{max(0, decimals - 3)}f} ms"
    if step < 60:
        if seconds < 60:
            return f"{seconds:.{decimals}f} s"
        width = decimals + 3 if decimals else 2
        return f"{int(seconds // 60)}:{seconds % 60:0{width}.{decimals}f}"
    hours, minutes = divmod(round(seconds / 60), 60)
    if not hours:
        return f"{minutes} min"
    return f"{hours} h {minutes:02d}" if minutes else f"{hours} h"


def _time_step(least: float) -> float:
    if least < 1:
        return round_up(max(least, 1e-6), (1, 2, 5, 10))
    fits = (step for step in _TIME_STEPS if step >= least)
    return next(fits, math.ceil(least / _DAY) * _DAY)


def round_up(least: float, mantissas: tuple[float, ...]) -> float:
    """Return the smallest of some mantissas, times a power of ten, that is at least `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    fits = (mantissa * power for mantissa in mantissas if mantissa * power >= least * (1 - 1e-9))
    return next(fits, 10 * power)


def _is_quarter(step: float) -> bool:
    return math.isclose(step / 10.0 ** math.floor(math.log10(step) + 1e-9), 2.5)
