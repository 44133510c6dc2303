"""The picture and the tables of the places that held memory over time."""

from __future__ import annotations

import base64
import gzip
import json
import re
from typing import Any

import pytest

from hfmem_widget.features.stacks.html import chart_html, colours_of, stacks_bundle
from hfmem_widget.features.stacks.live_at_peak import live_peak, replay
from hfmem_widget.session.stacks import BY, By, OverTime, StackRecording, Stacks
from tests.data.torch_snapshots import Allocations, training
from tests.scenes import scripted_run


def held(made: Allocations) -> OverTime:
    over_time = live_peak(replay(made.snapshot(), 0), "cuda:0").over_time
    assert over_time is not None
    return over_time


def stacks_of(made: Allocations) -> Stacks:
    """Return the stacks that a watch records of an allocator."""
    return Stacks((live_peak(replay(made.snapshot(), 0), "cuda:0"),), StackRecording("allocator"))


def carried(html: str) -> list[Any]:
    """Return the data that each picture has for the script."""
    found = re.findall(r'data-hfmem-moments="([^"]*)"', html)
    return [json.loads(gzip.decompress(base64.b64decode(text))) for text in found]


@pytest.mark.parametrize("by", BY)
def test_each_band_has_an_area_a_colour_of_its_own_and_a_name(by: By) -> None:
    """Its tooltip has the name, and the most that it held; the peak is marked."""
    over = held(training())
    drawn, bands = chart_html(over, by, "title"), over.bands[by]

    assert len({*colours_of(over, by).values()}) == len(bands) > 3
    assert len(re.findall(r'<path d="M0 [^"]+z" fill=', drawn)) == len(bands)
    assert all(drawn.count(colour) >= 2 for colour in colours_of(over, by).values())
    assert "before the recording: at most 108.0 MiB" in drawn
    assert "492.0 MiB at the peak" in drawn


def test_an_empty_history_has_no_picture() -> None:
    """A history without allocations."""
    made = Allocations()
    made.free(made.alloc(0, ("a.py", 1, "f")))

    assert chart_html(held(made), "line", "title") == ""


def test_a_table_also_has_lines_that_held_nothing_at_the_peak() -> None:
    """With the most that they held; plain text, which has no headings, has only the peak."""
    bundle = stacks_bundle(stacks_of(training()))
    modules = bundle["text/html"].split("by module")[-1]

    assert "most at any time" in modules
    assert re.search(r"autograd \(backward\).*?0\.00\sMiB.*?96\.0\sMiB", modules)
    assert "autograd (backward)" not in bundle["text/plain"]


def test_the_script_gets_the_bytes_of_each_band() -> None:
    """By line, module and operator, in this order and in the picture's colours; there is one script."""
    made = training()
    over, html = held(made), stacks_bundle(stacks_of(made))["text/html"]

    assert html.count("<script>") <= 1  # none where the front end was not built
    assert len(carried(html)) == len(BY)
    for by, data in zip(BY, carried(html), strict=True):
        names, sources, colours, sizes = zip(*data["bands"], strict=True)
        assert [*map(sum, zip(*sizes, strict=True))] == [*over.allocated]
        assert names == tuple(band.name for band in over.bands[by])
        assert sources == ("",) * len(names)
        assert colours == tuple(colours_of(over, by).values())
        assert data["moments"] == pytest.approx(over.moments, abs=1e-6)
        assert data["isTimed"]


def test_a_name_from_outside_cannot_end_the_scripts_data() -> None:
    """Nor the script itself, since the data are encoded."""
    hostile = '"><script>alert(1)</script>'
    made = Allocations()
    made.wait(1.0)
    made.alloc(1 << 20, (f"/u/{hostile}.py", 1, hostile))
    html = stacks_bundle(stacks_of(made))["text/html"]

    assert "<script>alert" not in html
    assert "alert(1)" in carried(html)[0]["bands"][0][0]


def test_a_report_has_no_second_script() -> None:
    """The page's own script draws it; a static page has the picture and the tables."""
    from hfmem_widget.features.report.page import page

    session = scripted_run("training")
    session.stacks = stacks_of(training())
    html = page(session, static=True)

    assert len(carried(html)) == len(BY)
    assert "<script" not in html
