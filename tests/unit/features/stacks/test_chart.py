"""The picture and the tables of what held memory over time."""

from __future__ import annotations

import re

import pytest

from hfmem_widget.features.stacks.chart import chart_html, colours_of
from hfmem_widget.features.stacks.html import stacks_bundle
from hfmem_widget.features.stacks.live_at_peak import replay
from hfmem_widget.features.stacks.over_time import live_peak
from hfmem_widget.session.stacks import BY, By, OverTime, StackRecording, Stacks
from tests.data.torch_snapshots import Allocations, training


def held(made: Allocations) -> OverTime:
    over_time = live_peak(replay(made.snapshot(), 0), "cuda:0").over_time
    assert over_time is not None
    return over_time


@pytest.mark.parametrize("by", BY)
def test_each_band_has_an_area_a_colour_of_its_own_and_a_name(by: By) -> None:
    """Also in words that hovering says, with the most that it held; and the peak is marked."""
    over = held(training())
    drawn, bands = chart_html(over, by, "title"), over.bands[by]

    assert len({*colours_of(over, by).values()}) == len(bands) > 3
    assert len(re.findall(r'<path d="M0 [^"]+z" fill=', drawn)) == len(bands)
    assert all(drawn.count(colour) >= 2 for colour in colours_of(over, by).values())
    assert "before the recording: at most 108.0 MiB" in drawn
    assert "492.0 MiB at the peak" in drawn


def test_nothing_has_no_picture() -> None:
    """A history in which nothing was allocated."""
    made = Allocations()
    made.free(made.alloc(0, ("a.py", 1, "f")))

    assert chart_html(held(made), "line", "title") == ""


def test_a_table_has_what_was_gone_at_the_peak() -> None:
    """With the most it held; plain text, which has no heads, has the peak alone."""
    peak = live_peak(replay(training().snapshot(), 0), "cuda:0")
    bundle = stacks_bundle(Stacks((peak,), StackRecording("allocator")))
    modules = bundle["text/html"].split("by module")[-1]

    assert "most at any time" in modules
    assert re.search(r"autograd \(backward\).*?0\.00 MiB.*?96\.0 MiB", modules)
    assert "autograd (backward)" not in bundle["text/plain"]
