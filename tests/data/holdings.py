"""What a person keeps, by kind: an expression, the bytes that it takes by construction, and who is named.

The bytes are what CPython's allocator takes: every small object is rounded up to 16 bytes.
"""

from __future__ import annotations

import array
import dataclasses
import io
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any, NamedTuple

MIB = 2**20
_WORD, _FLOAT = 8, 32


@dataclasses.dataclass
class Record:
    name: str
    values: list[float]


@dataclasses.dataclass(slots=True)
class Slotted:
    name: str


class Sized(list[Any]):
    """A list whose own figure is wrong, and must not be asked for."""

    def __sizeof__(self) -> int:
        raise AssertionError


class Kept(NamedTuple):
    """One kind: what makes it, and its bytes."""

    name: str
    make: Callable[[], Any]
    bytes: int


def floats(count: int) -> list[float]:
    return [index + 0.5 for index in range(count)]


KINDS = (
    Kept("bytes", lambda: bytes(4 * MIB), 4 * MIB),
    Kept("bytearray", lambda: bytearray(4 * MIB), 4 * MIB),
    Kept("a text", lambda: "x" * (4 * MIB), 4 * MIB),
    Kept("array.array", lambda: array.array("d", [0.5]) * (MIB // 2), 4 * MIB),
    Kept("a memoryview of bytes", lambda: memoryview(bytes(4 * MIB)), 4 * MIB),
    Kept("a buffer in memory", lambda: io.BytesIO(bytes(4 * MIB)), 4 * MIB),
    Kept("images as bytes", lambda: [bytes(200_000) for _ in range(40)], 8_000_000),
    Kept("a dict of bytes", lambda: {k: bytes(200_000) for k in range(40)}, 8_000_000),
    Kept("few keys", lambda: {k: bytes(2_000_000) for k in "abcd"}, 8_000_000),
    Kept("numbers", lambda: floats(200_000), 200_000 * (_WORD + _FLOAT)),
    Kept("a deque", lambda: deque(floats(200_000)), 200_000 * (_WORD + _FLOAT)),
    Kept("pairs", lambda: [(x, x + 1) for x in floats(50_000)], 50_000 * (_WORD + 64 + 2 * _FLOAT)),
    Kept("texts", lambda: [f"{k:0100d}" for k in range(50_000)], 50_000 * (_WORD + 160)),
    Kept("a set of texts", lambda: {f"{k:0100d}" for k in range(40_000)}, 40_000 * 160 + 2_097_152),
    Kept("lists", lambda: [floats(100) for _ in range(1_000)], 1_000 * (904 + 100 * _FLOAT + 32)),
    Kept("the same text", lambda: ["x" * 1000] * 500_000, 500_000 * _WORD),
    Kept("a user's list", lambda: Sized(floats(100_000)), 100_000 * (_WORD + _FLOAT)),
    Kept(
        "slots", lambda: [Slotted(f"{k:0100d}") for k in range(40_000)], 40_000 * (_WORD + 48 + 160)
    ),
)
"""Each has one row, by its own name."""

NESTED = (
    lambda: [{"id": k, "text": f"{k:050d}", "values": floats(4)} for k in range(10_000)],
    lambda: [Record(f"{k:050d}", floats(8)) for k in range(10_000)],
    lambda: {"train": {k: floats(8) for k in range(10_000)}, "best": None},
    lambda: defaultdict(list, {k: floats(8) for k in range(10_000)}),
    lambda: OrderedDict((k, floats(8)) for k in range(10_000)),
    lambda: Counter({f"{k:050d}": k * 10**6 for k in range(20_000)}),
    lambda: tuple({"a": floats(4), "b": (f"{k:050d}",)} for k in range(10_000)),
)
"""Containers in one another, whose bytes a walk over all objects tells."""
