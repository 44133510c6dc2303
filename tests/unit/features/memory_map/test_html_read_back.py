"""The memory map read back: its headings, its strip of characters, its table of segments."""

from __future__ import annotations

import re
from typing import Any

import pytest

from hfmem_widget.features.memory_map.fragmentation import Piece
from hfmem_widget.features.memory_map.html import (
    NONE,
    STRIP,
    _size,
    live_bundle,
    memory_map_bundle,
    moments_bundle,
)
from hfmem_widget.features.memory_map.model import MemoryMap
from hfmem_widget.features.memory_map.rows import merged
from hfmem_widget.features.memory_map.segments import Block, BlockState, Segment
from hfmem_widget.features.memory_map.svg import STEP
from hfmem_widget.text import GIB, MIB
from tests.unit.features.memory_map.test_html import scattered

M = int(MIB)
USED, HOLE, WHOLE, POOL, STREAM, ROUNDING, PENDING = "█░·ps▓▒"


def segment(*blocks: tuple[str, int], at: int = 0, **about: Any) -> Segment:
    """Return a segment of blocks given as state and MiB; what is rounded is half used."""
    made, address = [], at << 40
    for state, size in blocks:
        asked = {"used": size * M, "half": size * M // 2}.get(state, 0)
        kind: BlockState = "allocated" if asked else "pending" if state == "pending" else "free"
        made.append(Block(address, size * M, asked, kind))
        address += size * M
    size = address - (at << 40)
    return Segment("cuda:0", at << 40, size, "large", tuple(made), **about)


def lines(*segments: Segment) -> list[str]:
    found = MemoryMap(("cuda:0",), segments, 0.01)
    return memory_map_bundle(found)["text/plain"].splitlines()


@pytest.mark.parametrize(
    ("segments", "strip"),
    [
        ([[("used", 64)]], USED * 64),
        ([[("used", 32), ("free", 32)]], USED * 32 + HOLE * 32),
        ([[("free", 16), ("used", 48)]], HOLE * 16 + USED * 48),
        ([[("used", 1), ("free", 62), ("used", 1)]], USED + HOLE * 62 + USED),
        ([[("free", 64)], [("used", 128)]], USED * 43 + WHOLE * 21),
        ([[("used", 63), ("pending", 1)]], USED * 63 + PENDING),
        ([[("half", 128)]], USED * 32 + ROUNDING * 32),
        ([[("used", 640)], [("free", 1), ("used", 639)]], USED * 64),
        ([[("used", 6), ("free", 4)] * 64], USED * 64),
        ([[("used", 4), ("free", 6)] * 64], HOLE * 64),
    ],
)
def test_each_character_is_what_most_of_its_bytes_are(
    segments: list[list[tuple[str, int]]], strip: str
) -> None:
    """End to end, the largest segment first, each byte where it lies."""
    made = [segment(*blocks, at=at) for at, blocks in enumerate(segments)]

    assert lines(*made)[1] == strip
    assert len(strip) == STRIP


def test_what_only_others_can_use_has_a_sign_of_its_own() -> None:
    """What is free for other streams, and what is free in private pools, behind what serves everyone."""
    told = lines(
        segment(("used", 32)),
        segment(("free", 16), at=1, stream=7),
        segment(("free", 16), at=2, pool=(0, 1)),
    )

    assert told[1] == USED * 32 + STREAM * 16 + POOL * 16


@pytest.mark.parametrize(
    ("count", "heading"),
    [
        (1, "cuda:0 10.0 MiB reserved in 1 segment"),
        (2, "cuda:0 20.0 MiB reserved in 2 segments"),
        (1200, "cuda:0 11.7 GiB reserved in 1,200 segments"),
    ],
)
def test_the_heading_counts_segments(count: int, heading: str) -> None:
    """One is not told as several."""
    assert lines(*(segment(("used", 10), at=at) for at in range(count)))[0] == heading


def heap(note: str = "") -> MemoryMap:
    blocks = (Block(0, 300 * M, 300 * M, "allocated"), Block(300 * M, 100 * M, 0, "free"))
    one = Segment("cpu", 0, 400 * M, "heap", blocks)
    return MemoryMap(("cpu",), (one,), 0.01, {"cpu": note} if note else {})


def test_a_heap_is_called_one() -> None:
    """It has no segments to count, and no table of them."""
    bundle = memory_map_bundle(heap())

    assert bundle["text/plain"].splitlines()[0] == "cpu heap of 400.0 MiB"
    assert "heap of 400.0 MiB" in bundle["text/html"]
    assert "largest segments" not in bundle["text/html"]


@pytest.mark.parametrize(
    ("note", "heading"), [("", "cpu nothing is reserved"), ("it cannot be read", "cpu")]
)
def test_a_device_without_a_segment_says_why_or_that_there_is_none(note: str, heading: str) -> None:
    """A note stands in the place of that nothing is reserved, in a line of its own."""
    found = MemoryMap(("cpu",), (), 0.01, {"cpu": note} if note else {})
    told = memory_map_bundle(found)["text/plain"].splitlines()

    assert told[0] == heading
    assert told[1:-1] == ([note] if note else [])


def rows(html: str) -> list[list[str]]:
    """Return the cells of the table of segments, row by row."""
    table = html.rpartition("<table")[2]
    found = re.findall(r"<tr[^>]*>(.*?)</tr>", table)
    return [re.findall(r"<t[hd][^>]*>(?:<code[^>]*>)?([^<]*)<", one) for one in found]


def test_the_table_has_the_largest_segments_and_what_is_free_in_them() -> None:
    """Eight of them at most, by size; of one without a hole there is a dash."""
    made = [segment(("used", 10 * at), at=at) for at in range(1, 11)]
    made.append(segment(("used", 500), ("free", 3), ("used", 10), ("free", 4), at=11))
    head, first, second, *more = rows(
        memory_map_bundle(MemoryMap(("cuda:0",), tuple(made), 0.01))["text/html"]
    )

    assert head == ["largest segments", "size", "free", "largest hole", "blocks"]
    assert first == [f"{11 << 40:#x}", "517.0 MiB", "7.00 MiB", "4.00 MiB", "4"]
    assert second == [f"{10 << 40:#x}", "100.0 MiB", NONE, NONE, "1"]
    assert [row[1] for row in more] == [f"{size}.0 MiB" for size in (90, 80, 70, 60, 50, 40)]


def test_heads_of_figures_stand_over_their_figures() -> None:
    """At the right; the names of segments and their head at the left."""
    html = memory_map_bundle(scattered(3, 5))["text/html"].rpartition("<table")[2]
    aligned = re.findall(r"<t[hd][^>]*text-align:(left|right)", html)

    assert aligned == ["left", *["right"] * 4] * 4


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0.0, "<0.01 MiB"),
        (1000.0, "<0.01 MiB"),
        (0.0049 * MIB, "<0.01 MiB"),
        (0.0051 * MIB, "0.01 MiB"),
        (MIB, "1.00 MiB"),
        (3 * GIB, "3.00 GiB"),
    ],
)
def test_a_few_bytes_are_not_told_as_none(size: float, text: str) -> None:
    """What would be rounded to nothing is told as less than the least."""
    assert _size(size) == text


@pytest.mark.parametrize("live", [False, True])
def test_what_changes_keeps_its_height(*, live: bool) -> None:
    """While a cell runs: as high as a few rows more; a heap's four."""
    bundle = live_bundle if live else memory_map_bundle
    heights = [
        re.findall(r"min-height:(\d+)px", bundle(found)["text/html"])
        for found in (scattered(3, 5), heap())
    ]

    assert heights == ([[str(10 * STEP)], [str(4 * STEP)]] if live else [[], []])


def test_the_live_legend_names_each_part_with_its_bytes() -> None:
    """In one line, in the order of the picture's."""
    html = live_bundle(MemoryMap(("cuda:0",), (segment(("used", 30), ("free", 2)),), 0.01))
    told = re.findall(r"</span>([^<]*)</span>", html["text/html"])

    assert told == ["\u00a0in use 30.0 MiB", "\u00a0free, in partly used segments 2.00 MiB"]


def test_a_map_of_several_moments_says_what_all_of_them_cost() -> None:
    """Blocks and seconds of all moments, together."""
    one = MemoryMap(("cuda:0",), (segment(("used", 1), ("free", 1)),), 0.25)
    text = moments_bundle((("before", one), ("after", one)))["text/plain"]

    assert text.splitlines()[-1] == "4 blocks read in 500 ms"
    assert "cuda:0 before · 2.00 MiB reserved in 1 segment" in text


@pytest.mark.parametrize(
    ("found", "drawn"),
    [
        ([("used", 10), ("used", 5)], [("used", 15)]),
        ([("used", 10), ("hole", 10)], [("used", 10), ("hole", 10)]),
        ([("used", 4), ("hole", 4), ("used", 4)], [("used", 8), ("hole", 4)]),
        ([("used", 4), ("hole", 4)], [("used", 4), ("hole", 4)]),
        (
            [("used", 4), ("hole", 4), ("used", 4), ("hole", 20), ("used", 4)],
            [("used", 8), ("hole", 4), ("hole", 20), ("used", 4)],
        ),
        ([("used", 9), ("hole", 1), ("used", 50)], [("used", 9), ("hole", 1), ("used", 50)]),
    ],
)
def test_small_pieces_wait_until_they_can_be_seen(found: list[Piece], drawn: list[Piece]) -> None:
    """Ten bytes together, in the order of the legend."""
    assert list(merged(found, 10)) == drawn


def test_a_map_shows_itself_as_the_last_value_of_a_cell() -> None:
    """As its picture, and as text where there is no page."""
    found = MemoryMap(("cuda:0",), (segment(("used", 30), ("free", 2)),), 0.01)

    assert found._repr_mimebundle_() == memory_map_bundle(found)
