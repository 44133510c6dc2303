"""What an allocator's segments are made of, to the byte, and fragmentation found in samples."""

import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfmem_widget.features import judge
from hfmem_widget.features.memory_map.holes import holes
from hfmem_widget.features.memory_map.html import sentences
from hfmem_widget.session import Finding, Peak
from hfmem_widget.session.segments import (
    LABELS,
    NO_POOL,
    Block,
    BlockState,
    MemoryMap,
    Segment,
    SegmentKind,
    pieces,
)
from hfmem_widget.text import GIB
from tests.data.recorded import NAMES, recorded, recorded_map
from tests.data.recorders import KEY, cell_of, read, recorder_of
from tests.data.segments import segment

M = 2**20
ROOM = st.sampled_from([512, 1024, 4096, M, 2 * M, 7 * M, 20 * M, 30 * M, 64 * M])
STATES: st.SearchStrategy[BlockState] = st.sampled_from(["allocated", "pending", "free"])


def segment_of(
    *blocks: tuple[int, BlockState],
    stream: int = 0,
    pool: tuple[int, int] = NO_POOL,
    expandable: bool = False,
    small: bool = False,
    share: float = 1.0,
) -> Segment:
    """Return a segment of blocks of such sizes; `share` of the allocated bytes was requested."""
    listed, address = [], 20 * M
    for size, state in blocks:
        listed.append(Block(address, size, int(share * size) if state == "allocated" else 0, state))
        address += size
    kind: SegmentKind = "small" if small else "large"
    size = address - 20 * M
    return Segment("cuda:0", 20 * M, size, kind, tuple(listed), stream, pool, expandable)


def map_of(*segments: Segment) -> MemoryMap:
    return MemoryMap(("cuda:0",), segments)


@st.composite
def segments(draw: st.DrawFn) -> Segment:
    blocks = draw(st.lists(st.tuples(ROOM, STATES), min_size=1, max_size=12))
    return segment_of(
        *blocks,
        stream=draw(st.sampled_from([0, 0, 77])),
        pool=draw(st.sampled_from([NO_POOL, NO_POOL, (0, 3)])),
        expandable=draw(st.booleans()),
        small=draw(st.booleans()),
        share=draw(st.floats(0.1, 1.0)),
    )


@pytest.mark.parametrize("name", NAMES)
def test_sums_of_a_real_snapshot_are_the_allocators_own(name: str) -> None:
    """Reserved, allocated, active and requested bytes are exact."""
    counted, _ = recorded(name)
    found = recorded_map(name).fragmentation("cuda:0")
    assert found.reserved == counted["reserved_bytes"]
    allocated = found.bytes("used") + found.bytes("rounding")
    assert allocated == counted["allocated_bytes"]
    assert allocated + found.bytes("pending") == counted["active_bytes"]
    assert found.bytes("used") == counted["requested_bytes"]


@pytest.mark.parametrize("name", ["native", "mixed", "fragmented"])
def test_what_lies_in_partly_used_segments_is_what_the_allocator_counts(name: str) -> None:
    """Over all streams and pools the sum equals inactive_split."""
    counted, _ = recorded(name)
    split = sum(
        block.size
        for segment in recorded_map(name).segments
        if segment.in_use
        for block in segment.blocks
        if block.state == "free"
    )
    assert split == counted["inactive_split_bytes"]


def test_expandable_segments_are_counted_though_the_allocators_counter_is_nothing() -> None:
    """Partly used pages have holes; whole pages can be given back."""
    counted, _ = recorded("expandable")
    found = recorded_map("expandable").fragmentation("cuda:0")
    assert counted["inactive_split_bytes"] == 0
    assert found.expandable
    assert found.bytes("hole") > 100 * M
    assert found.bytes("whole") == 200 * M
    assert "inactive_split" in sentences(found)[-1]


@given(st.lists(segments(), max_size=8))
def test_every_byte_is_one_part(drawn: list[Segment]) -> None:
    """For any segments, the parts add up, and none is negative."""
    found = map_of(*drawn).fragmentation("cuda:0")
    assert found.reserved == sum(one.size for one in drawn) == sum(one.bytes for one in found.parts)
    assert all(size >= 0 for place in found.places for size in place.sums.values())
    for one in drawn:
        parts = list(pieces(one))
        assert sum(size for _, size in parts) == one.size
        assert all(size > 0 and name in LABELS for name, size in parts)


@given(st.lists(segments(), max_size=8))
def test_what_is_said_to_fit_does(drawn: list[Segment]) -> None:
    """A free block of the default stream outside of private pools is at least as large."""
    fits = map_of(*drawn).fragmentation("cuda:0").fits
    sizes = [
        block.size
        for one in drawn
        if one.stream == 0 and one.pool == NO_POOL
        for block in one.blocks
        if block.state == "free" and (one.kind == "large" or fits <= M)
    ]
    assert fits <= max(sizes, default=0)


def test_who_can_use_what_is_free() -> None:
    """Free memory is between tensors, in whole segments, on another stream, or in a private pool."""
    found = map_of(
        segment_of((30 * M, "allocated"), (10 * M, "free")),
        segment_of((20 * M, "free")),
        segment_of((21 * M, "free"), stream=9),
        segment_of((5 * M, "allocated"), (22 * M, "free"), pool=(0, 1)),
        segment_of((23 * M, "pending")),
        segment_of((24 * M, "allocated"), share=0.5),
    ).fragmentation("cuda:0")
    assert {one.name: one.bytes / M for one in found.parts} == {
        "used": 47, "rounding": 12, "pending": 23, "hole": 10, "whole": 20, "stream": 21, "pool": 22,
    }  # fmt: skip
    assert found.fits == 20 * M
    assert [place.is_common for place in found.places] == [True, False, False]


def test_small_requests_have_segments_of_their_own() -> None:
    """If only those have room, no more than 1 MiB fits."""
    small = segment_of((M // 2, "allocated"), (3 * M // 2, "free"), small=True)
    assert map_of(small).fragmentation("cuda:0").fits == M
    assert map_of(small, segment_of((3 * M, "free"))).fragmentation("cuda:0").fits == 3 * M


def test_only_whole_pages_of_an_expandable_segment_can_be_given_back() -> None:
    """Pages are 20 MiB in segments of large blocks, 2 MiB in those of small ones."""
    large = segment_of(
        (10 * M, "allocated"), (40 * M, "free"), (10 * M, "allocated"), expandable=True
    )
    assert list(pieces(large))[1:-1] == [("hole", 10 * M), ("whole", 20 * M), ("hole", 10 * M)]
    small = segment_of((M, "allocated"), (5 * M, "free"), expandable=True, small=True)
    assert list(pieces(small)) == [("used", M), ("hole", M), ("whole", 4 * M)]
    within = segment_of(
        (10 * M, "allocated"), (30 * M, "free"), (20 * M, "allocated"), expandable=True
    )
    assert list(pieces(within))[1:3] == [("hole", 10 * M), ("whole", 20 * M)]


def test_sentences_have_their_figures() -> None:
    """They have what cannot be given back, and the largest request that still fits."""
    texts = sentences(recorded_map("fragmented").fragmentation("cuda:0"))
    assert texts[0].endswith("the driver: 29.0 MiB.")
    assert texts[1].startswith("1.42 GiB (73 % of reserved memory) lies between tensors")
    assert "no request above 29.0 MiB" in texts[1]
    assert len(texts) == 2


def test_full_segments_need_one_sentence() -> None:
    """A healthy device is not commented on, nor is one that has nothing."""
    found = MemoryMap(("cuda:0",)).fragmentation("cuda:0")
    assert (found.reserved, found.parts, sentences(found)) == (0, (), ())
    texts = sentences(map_of(segment_of((64 * M, "allocated"))).fragmentation("cuda:0"))
    assert texts == (
        "No cached memory is free for ordinary code: the next request goes to the driver.",
    )


def test_a_map_without_a_device_is_of_the_fullest() -> None:
    """By default the figures are those of the device with most reserved memory."""
    empty = MemoryMap(("cuda:1", "cuda:0"), (segment_of((M, "free")),))
    assert empty.fragmentation().device == "cuda:0"


def test_places_come_by_size() -> None:
    """The common place is first, then other streams, then private pools."""
    places = recorded_map("mixed").fragmentation("cuda:0").places
    assert [(one.is_common, one.is_private) for one in places] == [
        (True, False), (False, False), (False, False), (False, True), (False, True),
    ]  # fmt: skip
    assert all(first.size >= second.size for first, second in pairwise(places[0].segments))


POOLS = [segment(("used", 300), at=at, pool=(0, at)) for at in (1, 2)]
HALF_FREE = segment(("used", 300), ("free", 1), at=1, pool=(0, 1))
STREAMS = [segment(("used", 40), ("free", 60), at=at, stream=at) for at in (7, 8)]


@pytest.mark.parametrize(
    ("others", "sentence"),
    [
        (POOLS[:1], "300.0 MiB is reserved in a private pool (CUDA graph or torch.cuda.MemPool)."),
        (POOLS, "600.0 MiB is reserved in 2 private pools (CUDA graph or torch.cuda.MemPool)."),
        ([HALF_FREE], "torch.cuda.MemPool); 1.00 MiB of that is free, for its owner only."),
        (STREAMS[:1], "60.0 MiB is free for stream 0x7 alone"),
        (STREAMS, "120.0 MiB is free for 2 streams, for each alone"),
    ],
)
def test_what_only_others_can_use_is_counted(others: list[Segment], sentence: str) -> None:
    """Free memory of private pools counts from a MiB on; a single other stream has its name."""
    memory = map_of(segment(("used", 100)), *others)
    texts = sentences(memory.fragmentation("cuda:0"))

    assert [one for one in texts if sentence in one] != [], texts


METRICS = ("allocated", "reserved", "inactive_split", "alloc_retries", "ooms")
Row = tuple[float, ...]


def findings_in(
    *rows: Row, before: Row = (0.0, 0.0, 0.0, 0.0, 0.0), allocated: float | None = None
) -> list[Finding]:
    """Return the findings on a span of samples: allocated, reserved and holes in GiB, and counts.

    `allocated` is the exact peak in GiB, where no sample saw it.
    """
    read = [(*(value * GIB for value in row[:3]), *row[3:]) for row in (before, *rows)]
    peaks = {
        f"cuda:0/{metric}": max(row[at] for row in read) for at, metric in enumerate(METRICS[:2])
    }
    if allocated is not None:
        peaks[KEY] = allocated * GIB
    session, closed = cell_of(*read, metrics=METRICS, peaks=peaks, total=140 * GIB, every=0.1)
    assert list(holes(session, closed)) == [
        one for one in judge(session, closed).findings if one.kind == "fragmentation"
    ]
    return list(holes(session, closed))


def test_holes_at_the_fullest_moment_are_a_finding() -> None:
    """Its title has the figure, its advice says what that would save."""
    (finding,) = findings_in((5.0, 8.0, 2.5, 0, 0), (2.0, 8.0, 5.0, 0, 0))
    assert finding.title == (
        "2.50 GiB (31 %) of reserved memory on cuda:0 lay in holes between tensors when most was reserved."
    )
    assert finding.evidence["holes"] == 2.5 * GIB  # bytes, exact
    assert "expandable_segments:True" in finding.advice[0]
    assert "2.50 GiB" in finding.advice[0]


HEALTHY: dict[str, tuple[list[Row], dict[str, Any]]] = {
    "holes that are filled later": ([(7.5, 8.0, 0.4, 0, 0), (2.0, 8.0, 6.0, 0, 0)], {}),
    "less than 15 % of what is reserved": ([(30.0, 33.0, 3.0, 0, 0)], {}),
    "less than 512 MiB": ([(1.0, 1.4, 0.4, 0, 0)], {}),
    "an allocator that does not count holes": ([(5.0, 8.0, math.nan, 0, 0)], {}),
    "whole segments that are free": ([(5.0, 8.0, 0.0, 0, 0)], {}),
    "reserved before": ([(2.0, 8.0, 5.0, 0, 0)], {"before": (1.0, 8.0, 6.0, 0, 0)}),
    "a peak that no sample saw": ([(2.0, 8.0, 6.0, 0, 0)], {"allocated": 7.8}),
    "the retry of a request that failed": ([(7.0, 8.0, 0.0, 1, 1)], {}),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_span_has_no_finding(name: str) -> None:
    """Small, filled or earlier holes, free segments, and errors with a finding of their own have none."""
    rows, options = HEALTHY[name]
    assert findings_in(*rows, **options) == []


def test_retries_are_a_finding_without_holes() -> None:
    """The allocator ran out, emptied its cache and went on, which waits for the GPU."""
    (finding,) = findings_in((7.0, 8.0, 0.0, 2, 0))
    assert finding.title.startswith("On cuda:0 the allocator ran out of memory 2 times")
    assert "smaller batch" in finding.advice[0]


def test_holes_and_retries_are_one_finding() -> None:
    """If holes made the allocator run out, one sentence has both."""
    (finding,) = findings_in((5.0, 8.0, 2.5, 1, 0))
    assert "reserved, and the allocator ran out of memory once" in finding.title
    assert finding.evidence["retries"] == 1


NAN = math.nan


@pytest.mark.parametrize(
    ("rows", "holes"),
    [
        ([(5.0, 8.0, 2.5, 0, 0), (6.0, 8.0, NAN, 0, 0)], 2.0),
        ([(5.0, 8.0, 2.5, 0, 0), (NAN, 8.0, 7.0, 0, 0)], 2.5),
        ([(5.0, 8.0, 2.5, 0, 0), (5.5, 8.0, 2.2, 0, 0)], 2.2),
    ],
)
def test_holes_are_those_of_the_fullest_moment(rows: list[tuple[float, ...]], holes: float) -> None:
    """A moment without one of the figures is passed over."""
    (finding,) = findings_in(*rows)

    assert finding.evidence["holes"] == pytest.approx(holes * GIB)


@pytest.mark.parametrize(
    ("before", "after", "retries"), [(1.0, 3.0, 2), (3.0, 3.0, 0), (3.0, 1.0, 0), (NAN, 3.0, 0)]
)
def test_retries_are_those_of_the_span(before: float, after: float, retries: int) -> None:
    """Earlier retries do not count."""
    findings = findings_in((5.0, 8.0, 0.0, after, 0), before=(0.0, 0.0, 0.0, before, 0.0))

    assert [finding.evidence["retries"] for finding in findings] == ([retries] if retries else [])


def test_holes_after_the_span_are_not_its_own() -> None:
    """Later readings with more reserved memory do not count."""
    recorder = recorder_of((0.0,) * 3, metrics=("allocated", "reserved", "inactive_split"))
    span = recorder.open_span("cell", "cell", recorder.session.last_sample)
    within = read(recorder, 1.0, (5 * GIB, 8 * GIB, 2 * GIB))
    peaks = {KEY: Peak(5 * GIB, "exact"), "cuda:0/reserved": Peak(8 * GIB, "exact")}
    closed = recorder.close_span(span.id, within, peaks)
    read(recorder, 2.0, (7 * GIB, 8 * GIB, 0.0))
    (finding,) = holes(recorder.session, closed)

    assert finding.evidence["holes"] == 2 * GIB


def test_holes_that_were_never_read_are_none() -> None:
    """There is no finding without a reading of them, though reserved memory rose."""
    assert findings_in((NAN, 8.0, NAN, 0, 0), (NAN, 8.0, 3.0, 0, 0), (5.0, 8.0, NAN, 0, 0)) == []
