"""What is judged where there is little to judge by: open spans, single steps, cells without a reading."""

from __future__ import annotations

import math
from typing import Any

import pytest

from hfmem_widget.features.memory_map.holes import holes
from hfmem_widget.features.stacks.live_at_peak import replay
from hfmem_widget.session import Peak
from hfmem_widget.text import GIB
from tests.data.recorders import KEY, read, recorder_of
from tests.unit.features.memory_map.test_fragmentation import found_in

NAN = math.nan


@pytest.mark.parametrize(
    ("before", "after", "retries"), [(1.0, 3.0, 2), (3.0, 3.0, 0), (3.0, 1.0, 0), (NAN, 3.0, 0)]
)
def test_retries_are_those_of_the_span(before: float, after: float, retries: int) -> None:
    """What the allocator had to do before it does not count."""
    found = found_in((5.0, 8.0, 0.0, after, 0), before=(0.0, 0.0, 0.0, before, 0.0))

    assert [one.evidence["retries"] for one in found] == ([retries] if retries else [])


def test_holes_after_the_span_are_not_its_own() -> None:
    """Though it was fuller then."""
    recorder = recorder_of((0.0,) * 3, metrics=("allocated", "reserved", "inactive_split"))
    span = recorder.open_span("cell", "cell", recorder.session.last_sample)
    within = read(recorder, 1.0, (5 * GIB, 8 * GIB, 2 * GIB))
    peaks = {KEY: Peak(5 * GIB, "exact"), "cuda:0/reserved": Peak(8 * GIB, "exact")}
    closed = recorder.close_span(span.id, within, peaks)
    read(recorder, 2.0, (7 * GIB, 8 * GIB, 0.0))
    (found,) = holes(recorder.session, closed)

    assert found.evidence["holes"] == 2 * GIB


def test_holes_that_were_never_read_are_none() -> None:
    """Though what was reserved rose."""
    assert found_in((NAN, 8.0, NAN, 0, 0), (NAN, 8.0, 3.0, 0, 0), (5.0, 8.0, NAN, 0, 0)) == []


def test_segments_of_other_devices_are_not_this_ones() -> None:
    """A snapshot has those of all; the first device is meant where it does not say."""

    def segment(size: int, **device: int) -> dict[str, Any]:
        block = {"address": size, "size": size, "requested_size": size, "state": "active_allocated"}
        return {"address": size, "blocks": [block], **device}

    found = {"segments": [segment(512), segment(1024, device=1)], "device_traces": [[], []]}

    assert replay(found, 0).bytes == 512
    assert replay(found, 1).bytes == 1024
    assert replay(found, 2).bytes == 0
