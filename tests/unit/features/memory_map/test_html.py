"""The picture of a memory map, and its figures."""

import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import strategies as st

from hfmem_widget.features.memory_map.html import (
    NONE,
    STRIP,
    live_bundle,
    memory_map_bundle,
    moments_bundle,
)
from hfmem_widget.features.memory_map.picture import WIDTH, layout
from hfmem_widget.session.segments import LABELS, Block, MemoryMap, Piece, Segment
from hfmem_widget.view import palette
from tests.data.recorded import NAMES, recorded_map
from tests.data.segments import heap, segment
from tests.unit.view.test_hostile_text import Strict

M = 2**20
KILOBYTE = 1000
PIECES = st.lists(st.tuples(st.sampled_from(list(LABELS)), st.integers(1, 10**6)), max_size=60)
PATH = re.compile(r'stroke="([^"]+)" stroke-width="13" d="([^"]+)"')


def scattered(segments: int, blocks: int, *, seed: int = 1) -> MemoryMap:
    """Return segments full of blocks of all sizes, some of them free."""
    chance, listed = random.Random(seed), []
    for at in range(segments):
        inside, address = [], at << 32
        for _ in range(blocks):
            size, free = 512 * chance.randint(1, 4000), chance.random() < 0.4
            requested = 0 if free else size - chance.randint(0, 500)
            inside.append(Block(address, size, requested, "free" if free else "allocated"))
            address += size
        listed.append(Segment("cuda:0", at << 32, address - (at << 32), "large", tuple(inside)))
    return map_of(*listed)


def map_of(*segments: Segment) -> MemoryMap:
    return MemoryMap(("cuda:0",), segments, 0.01)


def text_of(memory: MemoryMap) -> list[str]:
    return memory_map_bundle(memory)["text/plain"].splitlines()


def html_of(memory: MemoryMap) -> str:
    return memory_map_bundle(memory)["text/html"]


def sums(pieces: Sequence[Piece]) -> Counter[str]:
    return sum((Counter({name: size}) for name, size in pieces), Counter())


@pytest.mark.parametrize("most", [50, 700, 2400])
@pytest.mark.parametrize("memory", [scattered(20, 500), scattered(600, 16), scattered(1, 9)])
def test_bars_stand_for_every_byte(memory: MemoryMap, most: int) -> None:
    """With few pieces or many, the sums of what is drawn are those of the device."""
    whole = memory.fragmentation("cuda:0")
    laid = layout(whole.places, most)
    drawn = Counter(dict.fromkeys(LABELS, 0))
    for _, bars in laid.places:
        for bar in bars:
            drawn.update(dict(sums(list(bar.pieces))))
    assert {name: size for name, size in drawn.items() if size} == {
        one.name: int(one.bytes) for one in whole.parts
    }
    assert sum(len(bar.pieces) for _, bars in laid.places for bar in bars) <= max(
        most, 4 * sum(len(bars) for _, bars in laid.places)
    )


@pytest.mark.parametrize("name", NAMES)
def test_bars_of_a_row_do_not_overlap_and_stay_within_it(name: str) -> None:
    """The bars of a row have room between them and end within the picture."""
    laid = layout(recorded_map(name).fragmentation("cuda:0").places, 2000)
    assert any(bars for _, bars in laid.places)
    for _, bars in laid.places:
        rows: dict[int, list[tuple[float, float]]] = {}
        for bar in bars:
            end = bar.left + sum(size for _, size in bar.pieces) * WIDTH / laid.full
            rows.setdefault(bar.row, []).append((bar.left, end))
        for spans in rows.values():
            assert all(first[1] < second[0] for first, second in pairwise(sorted(spans)))
            assert max(end for _, end in spans) < WIDTH + 0.1


@pytest.mark.parametrize("name", NAMES)
def test_lengths_of_colour_are_bytes(name: str) -> None:
    """What is drawn in a colour is as long as its part has bytes, to a thousandth."""
    whole = recorded_map(name).fragmentation("cuda:0")
    html = html_of(recorded_map(name))
    lengths = dict.fromkeys(palette.BLOCKS.values(), 0.0)
    for colour, path in PATH.findall(html):
        lengths[colour] += sum(float(one) for one in re.findall(r"h([\d.]+)", path))
    unit = layout(whole.places, 2000).full / WIDTH
    assert whole.parts
    for part in whole.parts:
        assert lengths[palette.BLOCKS[part.name]] * unit == pytest.approx(
            part.bytes, rel=1e-3, abs=whole.reserved * 1e-3
        )


def on_eight_devices(memory: MemoryMap) -> MemoryMap:
    keys = tuple(f"cuda:{at}" for at in range(8))
    return MemoryMap(
        keys, tuple(replace(one, device=key) for key in keys for one in memory.segments)
    )


@pytest.mark.parametrize(
    ("memory", "kilobytes", "live"),
    [
        (scattered(1, 5), 6, 20),
        (scattered(50, 200), 60, 20),
        (scattered(500, 20), 60, 20),
        (scattered(5, 2000), 60, 20),
        (on_eight_devices(scattered(20, 250)), 90, 26),
    ],
)
def test_a_map_stays_small(memory: MemoryMap, kilobytes: int, live: int) -> None:
    """Ten thousand blocks, or those of eight devices, take little more room than a few."""
    assert len(html_of(memory)) < kilobytes * KILOBYTE
    assert sum(len(text.encode()) for text in live_bundle(memory).values()) < live * KILOBYTE


@pytest.mark.parametrize("name", NAMES)
def test_it_needs_no_script_and_no_style_sheet(name: str) -> None:
    """It has only tags that saved notebooks keep, and each is closed."""
    Strict(html_of(recorded_map(name)))


def test_plain_text_has_a_picture_too() -> None:
    """Each character stands for equally many bytes, marked as in the legend."""
    lines = text_of(recorded_map("fragmented"))
    assert lines[0] == "cuda:0 1.96 GiB reserved in 51 segments"
    assert len(lines[1]) == STRIP
    assert set(lines[1]) <= {"\u2588", "\u2591"}
    assert lines[2].split("  ") == ["\u2588 550.0 MiB", "", "27 %", "in use"]
    assert lines[-1] == "102 blocks read in 2.3 ms"


def test_an_unused_gpu_beside_a_used_one_is_left_out() -> None:
    """A GPU without any segment has no map where another has one."""
    both = MemoryMap(("cuda:0", "cuda:1"), recorded_map("native").segments)
    assert "cuda:1" not in memory_map_bundle(both)["text/plain"]


def test_places_have_headings_where_there_are_several() -> None:
    """A heading says whose requests the bars below it serve."""
    html = html_of(recorded_map("mixed"))
    assert "the default stream: 636.0 MiB reserved, 301.0 MiB free" in html
    assert "private pool 0.1: 20.0 MiB reserved, 13.0 MiB free" in html
    assert "the default stream:" not in html_of(recorded_map("fragmented")).replace(
        'aria-label="the default stream:', ""
    )  # fmt: skip


USED, HOLE, WHOLE, POOL, STREAM, ROUNDING, PENDING = "█░·ps▓▒"


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
        ([[("used", 32)], [("free", 16)], [("free", 16)]], USED * 32 + STREAM * 16 + POOL * 16),
    ],
)
def test_each_character_is_what_most_of_its_bytes_are(
    segments: list[list[tuple[str, int]]], strip: str
) -> None:
    """Segments follow each other, the largest first; memory for others alone is last."""
    listed = [segment(*blocks, at=at) for at, blocks in enumerate(segments)]
    if len(listed) == 3:
        listed[1:] = replace(listed[1], stream=7), replace(listed[2], pool=(0, 1))

    assert text_of(map_of(*listed))[1] == strip
    assert len(strip) == STRIP


def full(segments: int) -> MemoryMap:
    return map_of(*(segment(("used", 10), at=at) for at in range(segments)))


@pytest.mark.parametrize(
    ("memory", "lines"),
    [
        (full(1), ["cuda:0 10.0 MiB reserved in 1 segment"]),
        (full(1200), ["cuda:0 11.7 GiB reserved in 1,200 segments"]),
        (heap(), ["cpu heap of 400.0 MiB"]),
        (MemoryMap(("cpu",)), ["cpu nothing is reserved"]),
        # A note stands in the place of that, in a line of its own.
        (MemoryMap(("cpu",), notes={"cpu": "it cannot be read"}), ["cpu", "it cannot be read"]),
    ],
)
def test_the_heading_has_size_and_number_of_segments(memory: MemoryMap, lines: list[str]) -> None:
    """One segment is singular, and a heap has no segments."""
    assert text_of(memory)[: len(lines)] == lines


def test_a_heap_has_parts_and_no_segments() -> None:
    """Its bars are called parts, and there is no table."""
    assert "one bar per part," in html_of(heap())
    assert "largest segments" not in html_of(heap())


def rows(html: str) -> list[list[str]]:
    table = html.rpartition("<table")[2]
    lines = re.findall(r"<tr[^>]*>(.*?)</tr>", table)
    return [
        re.findall(r"<t[hd][^>]*>(?:<code[^>]*>)?([^<]*)<", line.replace("\u00a0", " "))
        for line in lines
    ]


def test_the_table_has_the_largest_segments_and_what_is_free_in_them() -> None:
    """It has at most eight, by size; one without a hole has a dash."""
    listed = [segment(("used", 10 * at), at=at) for at in range(1, 11)]
    listed.append(segment(("used", 500), ("free", 3), ("used", 10), ("free", 4), at=11))
    head, first, second, *more = rows(
        memory_map_bundle(MemoryMap(("cuda:0",), tuple(listed), 0.01))["text/html"]
    )

    assert head == ["largest segments", "size", "free", "largest hole", "blocks"]
    assert first == [f"{11 << 40:#x}", "517.0 MiB", "7.00 MiB", "4.00 MiB", "4"]
    assert second == [f"{10 << 40:#x}", "100.0 MiB", NONE, NONE, "1"]
    assert [row[1] for row in more] == [f"{size}.0 MiB" for size in (90, 80, 70, 60, 50, 40)]


def test_a_map_of_several_moments_says_what_all_of_them_cost() -> None:
    """It has the sum of their blocks and of their seconds."""
    one = MemoryMap(("cuda:0",), (segment(("used", 1), ("free", 1)),), 0.25)
    text = moments_bundle((("before", one), ("after", one)))["text/plain"]

    assert text.splitlines()[-1] == "4 blocks read in 500 ms"
    assert "cuda:0 before · 2.00 MiB reserved in 1 segment" in text


def test_a_map_of_some_devices_has_theirs_alone() -> None:
    """It has their segments and notes, and the reading time of all."""
    notes = {"cuda:0": "a", "cuda:1": "b"}
    memory = MemoryMap(("cuda:0", "cuda:1"), (segment(("used", 1)),), 0.5, notes)

    assert memory.only({"cuda:0"}) == MemoryMap(("cuda:0",), memory.segments, 0.5, {"cuda:0": "a"})
    assert memory.only({"cuda:1"}) == MemoryMap(("cuda:1",), (), 0.5, {"cuda:1": "b"})
