"""The largest batch and the longest rows that fit some bytes, by forecasts at other sizes."""

import math
from collections.abc import Callable

from hfmem_widget.errors import OptionError
from hfmem_widget.features.fit.model import MOST_ROWS, Forecast

MOST_TOKENS = 1 << 20  # the longest rows that are tried
TRIES = 6  # dry runs for the longest rows, and for the largest batch
CLOSE = 64  # the search ends within 1/64 of the size
STEEP = 8  # a further token or row costs at least 1/8 of the average


def largest_batch(
    at: Callable[[int], Forecast], room: float, known: dict[int, float]
) -> int | None:
    """Return how many rows fit into `room` bytes, by forecasts at other batches; None if one is incomplete.

    `known` maps each batch that was forecast to its total; this search adds its own. The first guess is
    extrapolated from one row and two rows. A guess of more than `MOST_TOKENS` tokens has no forecast:
    its batch would take too much of the host's memory.
    """

    def total(rows: int) -> float:
        forecast = at(rows)
        if forecast.bound == "lower":
            raise OptionError("a batch of that size has no complete forecast")
        known[rows] = forecast.total
        return forecast.total

    one_row, two_rows = at(1), at(2)
    known |= {1: one_row.total, 2: two_rows.total}
    rows, bytes_a_row = MOST_ROWS, 0.0
    # Forward and backward grow with the batch; the optimizer's step does not.
    for phase, first in one_row.peaks.items():
        row = two_rows.peaks[phase] - first
        if first > room:
            return 0
        if row > 0:
            rows = min(rows, 1 + math.floor((room - first) / row))
            bytes_a_row = max(bytes_a_row, row)
    if not bytes_a_row:  # the cost of a row was not seen
        return None
    low = max((size for size, needed in known.items() if needed <= room), default=0)
    high = min((size for size, needed in known.items() if needed > room), default=MOST_ROWS + 1) - 1
    rows = min(max(rows, low), high)
    if high <= low or rows * one_row.setting.length > MOST_TOKENS:
        return rows
    try:
        return most_that_fit(total, rows, bytes_a_row, room, high, low=low)
    except OptionError:
        return None


def most_that_fit(
    at: Callable[[int], float],
    size: int,
    slope: float,
    room: float,
    high: int,
    *,
    low: int = 0,
    next_too: bool = True,
) -> int:
    """Return the largest size from `low` to `high` that fits into `room` bytes: one forecast, or `low`.

    The search begins at `size`, above which each further row or token takes `slope` bytes. Without `next_too`
    it ends where the slope says that the next size is too large.
    """
    total = at(size)
    for _ in range(TRIES):
        if total <= room:
            low = max(low, size)
        else:
            high = min(high, size - 1)
        aimed = size + math.floor((room - total) / slope)
        if aimed <= low and total > room:
            aimed = math.isqrt(max(low, 1) * max(high, 1))
        elif aimed <= low and not next_too:
            break
        following = min(max(aimed, low + 1), high)
        if following <= low or following - low < low // CLOSE:
            break
        before, size, last = total, following, size
        total = at(size)
        slope = max((total - before) / (size - last), total / size / STEEP)
    return max(low, size) if total <= room else low
