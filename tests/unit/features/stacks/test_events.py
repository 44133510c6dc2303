"""The ring of events keeps the newest, in order."""

from __future__ import annotations

import gc

import pytest

from hfmem_widget.features.stacks.events import EventRing


@pytest.mark.parametrize("count", [0, 3, 4, 5, 8, 11])
def test_the_newest_are_kept_oldest_first(count: int) -> None:
    """However often it went round."""
    ring = EventRing(4)
    for number in range(count):
        ring.add(0, number, 10 * number, float(number))
    kept = range(max(0, count - 4), count)
    (trace,) = ring.snapshot(())["device_traces"]
    assert [(one["addr"], one["size"], one["time_us"]) for one in trace] == [
        (number, 10 * number, number * 1_000_000) for number in kept
    ]
    assert (ring.seen, len(ring)) == (count, len(kept))


def test_equal_places_are_one() -> None:
    """A loop has the same few."""
    ring = EventRing(4)
    code = (test_equal_places_are_one.__code__, 1)
    first, again = ring.place("aten::mm", (code,)), ring.place("aten::mm", (code,))
    assert first == again
    ring.add(0, 1, 2, 3.0, first)
    ((event,),) = ring.snapshot(())["device_traces"]
    assert event["action"] == "alloc"
    assert [frame["name"] for frame in event["frames"]] == ["aten::mm", code[0].co_qualname]


def test_an_event_is_no_work_for_the_garbage_collector() -> None:
    """It would collect far more often than without us."""
    ring = EventRing(100_000)
    gc.collect()
    before = len(gc.get_objects())
    for number in range(10_000):
        ring.add(number % 3, number, number, 0.0)
    assert len(gc.get_objects()) - before < 100
