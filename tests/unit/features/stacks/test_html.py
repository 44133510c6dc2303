"""The pictures and the tables of the live memory at the peak, and of the places that held it over time."""

import base64
import gzip
import json
import math
import re
from dataclasses import replace
from typing import Any

import pytest

from hfmem_widget.features.stacks.html import MOST_ROWS, chart_html, colours_of, stacks_bundle
from hfmem_widget.features.stacks.live_at_peak import live_peak, replay
from hfmem_widget.session.stacks import BY, By, LivePeak, OverTime, Site, StackRecording, Stacks
from tests.data.torch_snapshots import Allocations, training
from tests.scenes import scripted_run

MIB = 1024**2
HOSTILE = "<img src=x onerror=alert(1)>$\\href{javascript:x}$"


def sites(count: int) -> tuple[Site, ...]:
    return tuple(
        Site(f"cell [1] line {n}", f"Net{n}", f"aten::op{n}", "forward", (count - n) * MIB, 1, "y")
        for n in range(count)
    )


def peak(count: int = 3, device: str = "cuda:0") -> LivePeak:
    places = sites(count)
    size = sum(site.bytes for site in places)
    whole, requested = float(size + 512), float(size)
    known = LivePeak(device, size, size, places, time=1.5, entries=12)
    return replace(known, allocated=whole, requested=requested)


def text(*peaks: LivePeak, **recording: Any) -> str:
    cost = replace(StackRecording("allocator", seconds=0.5, snapshot=0.2), **recording)
    return stacks_bundle(Stacks(peaks or (peak(),), cost, b"x"))["text/plain"]


def html(*peaks: LivePeak) -> str:
    return stacks_bundle(Stacks(peaks or (peak(),), StackRecording("allocator"), b"x"))["text/html"]


OFF = {"requested": peak().bytes + 2.0 * MIB}
WRAPPED = {"wrapped": True, "since": 3.0}


@pytest.mark.parametrize(
    ("changed", "recording", "words", "absent"),
    [
        ({}, {}, "Matches the allocator's own peak to the byte", "Differs"),
        (OFF, {}, "Differs from the allocator's own peak by 2.00 MiB", "Matches"),
        ({"requested": math.nan, "allocated": math.nan}, {}, "cannot be checked", "rounded up"),
        (OFF | WRAPPED, {}, "beginning 3.0 s after the start", "Matches"),
        # The oldest events went, and the peak is among those that were kept.
        (WRAPPED, {}, "Matches", "beginning 3.0 s"),
        ({}, {}, "slowed the cell down by about 500 ms; reading the record took 200 ms", "began"),
        ({}, {"seconds": math.nan}, "Matches", "slowed"),
        ({}, {"way": "operators"}, "slowed the cell down by at least 500 ms", "about"),
        ({}, {"began": 2.0}, "began when CUDA was initialised, 2.0 s after the start", "Differs"),
        ({}, {"began": 0.04}, "Matches", "was initialised"),
    ],
)
def test_accuracy_and_cost_are_given(
    changed: dict[str, Any], recording: dict[str, Any], words: str, absent: str
) -> None:
    """The text has equality to the byte or the difference; unknown figures are left out."""
    shown = text(replace(peak(), **changed), **recording)

    assert words in shown
    assert absent not in shown


def test_rounding_is_a_row_of_its_own() -> None:
    """It leads from the requested bytes to the allocator's figure."""
    lines = text().splitlines()
    assert any("512 B" in line and "rounded up to whole blocks" in line for line in lines)
    assert any("peak allocated" in line for line in lines)


def test_rows_beyond_the_longest_table_are_one_row() -> None:
    """The row has their sum, so that nothing is left out."""
    shown = text(peak(MOST_ROWS + 3))
    assert "everything else (3)" in shown
    assert f"cell [1] line {MOST_ROWS}" not in shown
    assert f"{sum(range(1, 4)):.2f} MiB" in shown


def test_several_devices_follow_each_other() -> None:
    """Each device has its own sentence."""
    shown = text(peak(), replace(peak(), device="cuda:1"))
    assert shown.index("peak on cuda:0") < shown.index("peak on cuda:1")
    assert "cuda:1: Matches" in shown


def test_nothing_recorded_is_one_sentence() -> None:
    """It replaces the tables, and names what is not traced on the CPU."""
    assert text(LivePeak("cuda:0", 0, 0, ())) == "No allocation was recorded"
    assert text(LivePeak("cpu", 0, 0, ()), way="operators") == (
        "No torch operator of this thread allocated a tensor; allocations of NumPy, Python and other "
        "threads are not traced"
    )


def test_text_from_outside_stays_text() -> None:
    """Lines, sources and modules come from the user's files."""
    hostile = Site(HOSTILE, HOSTILE, HOSTILE, "forward", 5 * MIB, 1, HOSTILE)
    assert "<img" not in html(replace(peak(), sites=(hostile,), bytes=5 * MIB))


def test_the_note_on_saving_is_shown_only_with_a_snapshot() -> None:
    """It also says that no file was written."""
    assert "session.stacks.save" in html()
    stacks = Stacks((peak(),), StackRecording("allocator"))
    assert "session.stacks.save" not in stacks_bundle(stacks)["text/html"]


def rows_of(table: str) -> list[list[str]]:
    cells = [re.findall(r"<t[hd].*?</t[hd]>", row) for row in re.findall(r"<tr.*?</tr>", table)]
    return [[" ".join(re.sub(r"<[^>]+>", " ", one).split()) for one in row] for row in cells]


def test_tables_and_text_have_the_same_rows() -> None:
    """Each grouping has name, line, count, bytes and share, then their sum; one table is open."""
    places = tuple(replace(place, blocks=number + 1) for number, place in enumerate(sites(3)))
    first = replace(peak(), sites=places)
    page = html(first, peak(device="cuda:1"))
    tables = re.findall(r"<details.*?</details>", page, re.DOTALL)
    blocks = text(first).split("\n\n")[1:4]

    assert len(tables) == 2 * 3
    assert [one.startswith("<details open") for one in tables] == [True, *[False] * 5]
    for table, block in zip(tables[:3], blocks, strict=True):
        head, *lines = block.splitlines()
        rows = rows_of(table)
        assert head in table
        assert len([line for line in lines if not line.endswith(".")]) >= len(rows) == 6
        for (name, size, share), line in zip(rows, lines, strict=False):
            assert " ".join(f"{size} {share} {name}".split()) == " ".join(line.split())
    assert rows_of(tables[0])[:2] == [
        ["cell [1] line 0 y", "3.00 MiB", "50 %"],
        ["cell [1] line 1 y \u00d7 2", "2.00 MiB", "33 %"],
    ]


def held(memory: Allocations) -> OverTime:
    over_time = live_peak(replay(memory.snapshot(), 0), "cuda:0").over_time
    assert over_time is not None
    return over_time


def stacks_of(memory: Allocations) -> Stacks:
    return Stacks((live_peak(replay(memory.snapshot(), 0), "cuda:0"),), StackRecording("allocator"))


def carried(html: str) -> list[Any]:
    matches = re.findall(r'data-hfmem-moments="([^"]*)"', html)
    return [json.loads(gzip.decompress(base64.b64decode(text))) for text in matches]


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
    """A history of no bytes draws nothing."""
    memory = Allocations()
    memory.free(memory.alloc(0, ("a.py", 1, "f")))

    assert chart_html(held(memory), "line", "title") == ""


def test_a_table_also_has_lines_that_held_nothing_at_the_peak() -> None:
    """The table has the most that each line held; plain text, without headings, has only the peak."""
    bundle = stacks_bundle(stacks_of(training()))
    modules = bundle["text/html"].split("by module")[-1]

    assert "most at any time" in modules
    assert re.search(r"autograd \(backward\).*?0\.00\sMiB.*?96\.0\sMiB", modules)
    assert "autograd (backward)" not in bundle["text/plain"]


def test_the_script_gets_the_bytes_of_each_band() -> None:
    """The data are by line, module and operator, in the picture's colours; there is one script."""
    memory = training()
    over, html = held(memory), stacks_bundle(stacks_of(memory))["text/html"]

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
    """The data are encoded, so a name cannot end the script either."""
    hostile = '"><script>alert(1)</script>'
    memory = Allocations()
    memory.wait(1.0)
    memory.alloc(1 << 20, (f"/u/{hostile}.py", 1, hostile))
    html = stacks_bundle(stacks_of(memory))["text/html"]

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
