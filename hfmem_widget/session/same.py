"""Whether two pieces of data say the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass

import numpy as np


def same(one: object, other: object) -> bool:
    """Return whether two pieces of data are equal, where "not available" equals itself.

    NaN does not, and so neither does a dataclass with one in it: since Python 3.13 not even to itself.
    """
    if one is other:
        return True
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.array_equal(one, other, equal_nan=True)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if is_dataclass(one) and type(one) is type(other):
        names = (field.name for field in fields(one))
        return all(same(getattr(one, name), getattr(other, name)) for name in names)
    return bool(one == other) or (one != one and other != other)  # noqa: PLR0124  (NaN alone is not itself)
