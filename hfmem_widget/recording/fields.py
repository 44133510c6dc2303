"""The fields of a line of JSON that a stranger may have written: data of ours, or `Wrong`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from hfmem_widget.recording.limits import LARGEST, LONGEST_TEXT, MOST_SERIES
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.text import DEVICE_KEY, plain


class Wrong(ValueError):
    """What a line says is not what such a line may say."""


FAULTS = (ValueError, RecursionError, LookupError, TypeError, AttributeError, OverflowError)
"""What reading a line may raise."""


def require(holds: object, complaint: str) -> None:
    """Raise `Wrong` unless something holds."""
    if not holds:
        raise Wrong(complaint)


def number(value: object) -> float:
    """Return a figure; NaN for null."""
    if value is None:
        return NOT_AVAILABLE
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < LARGEST:
        raise Wrong("not a figure")
    return float(value)


def known(value: object) -> float:
    """Return a figure that must be there."""
    require(not math.isnan(figure := number(value)), "a figure is missing")
    return figure


def count(value: object, most: float = LARGEST) -> int:
    """Return a whole number below `most`."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < most:
        raise Wrong("not a count")
    return value


def text(value: object, limit: int = LONGEST_TEXT) -> str:
    """Return a text, plain and shortened."""
    if not isinstance(value, str):
        raise Wrong("not a text")
    return plain(value, limit)


def items(value: object, most: int = MOST_SERIES) -> list[Any]:
    """Return a list."""
    if not isinstance(value, list) or len(value) > most:
        raise Wrong("not a list, or too long")
    return value


def mapping(value: object, of: Callable[[Any], Any], most: int = 256) -> dict[str, Any]:
    """Return a mapping of texts to what `of` makes of its values."""
    if not isinstance(value, dict) or len(value) > most:
        raise Wrong("not a mapping, or too large")
    return {text(name): of(one) for name, one in value.items()}


def choice(value: object, choices: Any) -> Any:
    """Return one of some values."""
    require(value in choices, "not one of those")
    return value


def device_key(value: object) -> str:
    """Return the key of a device."""
    key = text(value)
    require(DEVICE_KEY.fullmatch(key), "not a device")
    return key
