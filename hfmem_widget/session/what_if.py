"""The memory of a training at other batches and lengths, by coefficients from its dry runs."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Moment:
    """Bytes at a moment of a step: a fixed part, one for each token, and one for each pair of tokens."""

    gradients: float  # bytes of it that are complete gradients
    fixed: float
    per_token: float
    per_pair: float

    def bytes(self, rows: int, length: int) -> float:
        """Return the bytes above the held parts."""
        tokens = rows * length
        return self.fixed + self.per_token * tokens + self.per_pair * tokens * length


@dataclass(frozen=True, slots=True)
class Variant:
    """A training with or without checkpointing, in one precision."""

    checkpointing: bool
    precision: str
    held: Mapping[str, float]  # bytes of the parts that no batch changes
    moments: tuple[Moment, ...]  # the largest is the peak
    low: float  # the real peak is expected between these two shares of the figure
    high: float
    off: float  # largest relative difference to a dry run, also to those left out of the fit

    def peak(self, rows: int, length: int) -> float:
        """Return the bytes at the peak."""
        return sum(self.parts(rows, length).values())

    def parts(self, rows: int, length: int) -> dict[str, float]:
        """Return the bytes of each part at the peak."""
        peak = max(self.moments, key=lambda moment: moment.bytes(rows, length))
        size = peak.bytes(rows, length)
        gradients = min(peak.gradients, size)
        return {**self.held, "gradients": gradients, "activations": size - gradients}


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A training at other batches and lengths."""

    batch: int  # its own rows
    length: int  # its own tokens
    rows: tuple[int, int]  # the least and the most for which figures are known
    lengths: tuple[int, int]
    room: float  # bytes that it may take; NaN if unknown
    spare: float  # further bytes that may be free by now
    margin: float  # the factor by which it may exceed its peak
    variants: tuple[Variant, ...]  # its own first

    def knows(self, rows: int, length: int) -> bool:
        """Return whether dry runs were made around a size."""
        (few, many), (short, long) = self.rows, self.lengths
        return few <= rows <= many and short <= length <= long

    def fits(self, low: float, high: float) -> bool | None:
        """Return whether a peak between these bounds fits; None if that is unsure."""
        if high * self.margin <= self.room:
            return True
        return False if low > self.room + self.spare else None
