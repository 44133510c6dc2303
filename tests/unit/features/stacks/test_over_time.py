"""Memory over time by place, compared with a plain simulation that remembers everything."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfmem_widget.features.stacks.call_sites import place_of
from hfmem_widget.features.stacks.live_at_peak import (
    MOST_BANDS,
    MOST_MOMENTS,
    OTHERS,
    over_time,
    replay,
)
from hfmem_widget.session.stacks import BEFORE, BY, OverTime
from tests.data.torch_snapshots import Allocations
from tests.unit.features.stacks.test_live_at_peak import Allocator, histories

WHOLE = 10**6


def drawn(snapshot: dict[str, Any], moments: int = WHOLE) -> OverTime:
    found = replay(snapshot, 0)
    return over_time(found, [place_of(frames, {}) for frames in found.table.frames], moments)


def sums(held: OverTime) -> list[list[int]]:
    """Return the sum of the bands at each moment, for each grouping."""
    return [
        [sum(sizes) for sizes in zip(*(band.sizes for band in held.bands[by]), strict=True)]
        or [0] * len(held.moments)
        for by in BY
    ]


@given(histories(), st.sampled_from([WHOLE, 8, 20]))
def test_the_bands_add_up_to_the_allocated_bytes(allocator: Allocator, most: int) -> None:
    """At every moment, to the byte, in every grouping; also at the peak."""
    truth = [sum(live.values()) for live, _ in allocator.retained]
    held = drawn(allocator.snapshot(), most)

    assert sums(held) == [list(held.allocated)] * len(BY)
    assert max(held.allocated) == max(truth)
    assert min(held.allocated) == min(truth)
    assert set(held.allocated) <= set(truth)
    assert len(held.moments) <= max(most, 4)
    if most == WHOLE:
        assert list(held.allocated) == truth


@given(histories())
def test_each_band_has_the_bytes_of_its_line(allocator: Allocator) -> None:
    """By a simulation that knows each block's line; earlier memory is a band of its own."""
    snapshot = allocator.snapshot()
    held, live, truth = drawn(snapshot), dict[int, str](), list[Counter[str]]()
    for at, (blocks, _) in enumerate(allocator.retained):
        if at:
            event = snapshot["device_traces"][0][at - 1]
            if event["action"] == "alloc":
                live[event["addr"]] = f"a.py:{event['frames'][0]['line']}"
            elif event["action"] == "free_requested":
                live.pop(event["addr"], None)
        now = Counter[str]()
        for address, size in blocks.items():
            now[live.get(address, BEFORE)] += size
        truth.append(now)

    for band in held.bands["line"]:
        if band.name != OTHERS:
            assert list(band.sizes) == [now[band.name] for now in truth]
            assert band.highest == max(band.sizes)


def many(lines: int, *, freed: bool = True) -> Allocations:
    made = Allocations()
    for number in range(lines):
        address = made.alloc((number + 1) * 1000, (f"/u/p{number}.py", 1, "f"))
        if freed and number % 3:
            made.free(address)
    return made


def test_bands_and_moments_are_limited() -> None:
    """The largest bands are kept; the rest is one band on top."""
    held = drawn(many(2000).snapshot(), MOST_MOMENTS)
    bands = held.bands["line"]

    assert len(bands) <= MOST_BANDS
    assert bands[-1].name == OTHERS
    assert len(held.moments) <= MOST_MOMENTS
    assert sums(held) == [list(held.allocated)] * len(BY)
    assert [band.highest for band in bands[:-1]] == sorted(
        (band.highest for band in bands[:-1]), reverse=True
    )


def test_a_spike_between_two_moments_is_kept() -> None:
    """However short, with its height to the byte."""
    made = many(3000)
    made.wait(100)
    made.free(made.alloc(123_456_789_123, ("/u/spike.py", 1, "f")))
    made.wait(100)
    for _ in range(2000):
        made.free(made.alloc(512, ("/u/calm.py", 1, "f")))
    held = drawn(made.snapshot(), MOST_MOMENTS)

    assert max(held.allocated) == replay(made.snapshot(), 0).bytes
    assert held.bands["line"][0].name == "u/spike.py:1"


def test_earlier_memory_is_at_the_bottom() -> None:
    """Blocks that were freed, or live at the end, without having been allocated."""
    made = many(4)
    made.forget()
    made.free(next(iter(made.live)))
    bands = drawn(made.snapshot()).bands["line"]

    assert [band.name for band in bands] == [BEFORE]
    assert bands[0].sizes == (5000, 4000, 4000)


def test_a_ring_that_lost_its_beginning_keeps_the_figures() -> None:
    """Memory of lost events has the line of its live block, or else counts as earlier memory."""
    made = many(40, freed=False)
    whole, ring = made.snapshot(), made.snapshot()
    ring["device_traces"] = [ring["device_traces"][0][-10:]]

    assert drawn(ring).allocated == drawn(whole).allocated[-11:]
    assert BEFORE not in {band.name for band in drawn(ring).bands["line"]}


def test_times_are_seconds_since_the_first_event() -> None:
    """Before torch 2.2, which has no times, they are numbers of events."""
    snapshot = many(4).snapshot()
    timed = drawn(snapshot)
    for event in snapshot["device_traces"][0]:
        del event["time_us"]
    untimed = drawn(snapshot)

    assert timed.is_timed
    assert timed.moments[:3] == pytest.approx((0, 0, 7e-6))
    assert not untimed.is_timed
    assert untimed.moments == tuple(range(9))
    assert timed.since(-2.0).moments[0] == 2.0
