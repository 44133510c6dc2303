"""Live memory at the peak and over time, compared with a simulation that remembers the whole history."""

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfmem_widget.features.stacks.call_sites import place_of
from hfmem_widget.features.stacks.live_at_peak import (
    MOST_BANDS,
    MOST_MOMENTS,
    OTHERS,
    Replay,
    over_time,
    replay,
)
from hfmem_widget.session.segments import Frames
from hfmem_widget.session.stacks import BEFORE, BY, OverTime
from tests.data import DATA
from tests.data.torch_snapshots import Allocations


@dataclass
class Allocator:
    """Blocks, their trace in a ring, and the live blocks at the highest moment."""

    most: int
    before: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.allocated = dict(self.before)
        self.pending: dict[int, int] = {}
        self.events: list[dict[str, Any]] = []
        self.states = [self._state()]

    def _state(self) -> tuple[dict[int, int], int]:
        return dict(self.allocated), sum(self.allocated.values()) + sum(self.pending.values())

    def _record(self, action: str, address: int, size: int) -> None:
        number = len(self.events)
        frames = [{"filename": "a.py", "line": number, "name": "f"}] if action == "alloc" else []
        event = {"action": action, "addr": address, "size": size, "frames": frames}
        self.events.append(event | {"time_us": number})
        self.states.append(self._state())

    def alloc(self, address: int, size: int) -> None:
        self.allocated[address] = size
        self._record("alloc", address, size)

    def free(self, address: int, *, in_use: bool) -> None:
        size = self.pending[address] = self.allocated.pop(address)
        self._record("free_requested", address, size)
        if not in_use:
            self.complete(address)

    def complete(self, address: int) -> None:
        self._record("free_completed", address, self.pending.pop(address))

    def snapshot(self) -> dict[str, Any]:
        blocks = [
            {"address": a, "size": s + 511 & ~511, "requested_size": s, "state": "active_allocated"}
            for a, s in self.allocated.items()
        ]
        blocks += [
            {"address": a, "size": s, "requested_size": s, "state": "active_pending_free"}
            for a, s in self.pending.items()
        ]
        segment = {"device": 0, "address": 0, "blocks": blocks}
        return {"segments": [segment], "device_traces": [self.events[-self.most :]]}

    @property
    def retained(self) -> list[tuple[dict[int, int], int]]:
        return self.states[max(0, len(self.events) - self.most) :]


@st.composite
def histories(draw: st.DrawFn) -> Allocator:
    """Draw a history with few addresses, which are therefore reused."""
    before = draw(st.dictionaries(st.integers(0, 3), st.integers(1, 4000), max_size=3))
    allocator = Allocator(draw(st.integers(1, 60)), before)
    for _ in range(draw(st.integers(0, 60))):
        free = [a for a in range(8) if a not in allocator.allocated and a not in allocator.pending]
        choices = ["alloc"] * bool(free) + ["free"] * bool(allocator.allocated)
        choices += ["complete"] * bool(allocator.pending)
        action = draw(st.sampled_from(choices))
        if action == "alloc":
            allocator.alloc(draw(st.sampled_from(free)), draw(st.integers(1, 4000)))
        elif action == "free":
            address = draw(st.sampled_from(sorted(allocator.allocated)))
            allocator.free(address, in_use=draw(st.booleans()))
        else:
            allocator.complete(draw(st.sampled_from(sorted(allocator.pending))))
    return allocator


def live(peak: Replay) -> list[tuple[int, Frames | None]]:
    """Return the size and the stack of each block that was live at the peak."""
    table = peak.table
    return [(int(table.sizes[row]), table.frames[table.stacks[row]]) for row in peak.live]


def lines(blocks: list[tuple[int, Frames | None]]) -> list[tuple[int, int]]:
    """Return the size of each block with the line that allocated it, which is unique; -1 is unknown."""
    return sorted((-1 if frames is None else frames[0]["line"], size) for size, frames in blocks)


def test_memory_that_no_python_allocated_is_not_older_than_the_recording() -> None:
    """Its stack is empty, as on autograd's thread; the stack of an older block is unknown."""
    trace = [
        {"action": "alloc", "addr": 1, "size": 4, "frames": []},
        {"action": "free_requested", "addr": 2, "size": 8, "frames": []},
    ]
    table = replay({"device_traces": [trace]}, 0).table

    stacks = [table.frames[place] for place in table.stacks]
    assert list(zip(table.sizes.tolist(), stacks, strict=True)) == [(4, ()), (8, None)]


@given(histories())
def test_the_live_set_is_what_a_full_memory_of_it_says(allocator: Allocator) -> None:
    """The ring gives the peak, the live blocks with their stacks, and the active peak.

    A block has the stack that allocated it, not that of a later block at its address; what no retained event
    made is not seen.
    """
    snapshot = allocator.snapshot()
    peak = replay(snapshot, 0)
    sums = [sum(live.values()) for live, _ in allocator.retained]
    position = sums.index(max(sums))
    before = snapshot["device_traces"][0][:position]
    allocations = [event for event in before if event["action"] == "alloc"]
    numbers = {event["addr"]: event["frames"][0]["line"] for event in allocations}

    blocks = allocator.retained[position][0].items()
    assert peak.bytes == sums[position]
    assert peak.active == max(active for _, active in allocator.retained)
    assert lines(live(peak)) == sorted((numbers.get(address, -1), size) for address, size in blocks)


def test_a_history_of_a_gpu_comes_to_the_allocators_own_peak() -> None:
    """Two training steps on an H200 agree to the byte; whole blocks add a little."""
    recorded = json.loads((DATA / "h200_history.json").read_text(encoding="utf-8"))
    actions = {"a": "alloc", "r": "free_requested", "c": "free_completed"}
    events = [
        {"action": actions[action], "addr": address, "size": size, "frames": [{}] * has_stack}
        for action, address, size, has_stack in recorded["events"]
    ]
    blocks = [
        {"address": address, "size": size, "requested_size": requested, "state": state}
        for address, size, requested, state in recorded["blocks"]
    ]
    segment = {"device": 0, "address": 0, "blocks": blocks}
    peak = replay({"segments": [segment], "device_traces": [events]}, 0)
    assert peak.bytes == peak.active == recorded["requested_peak"]
    assert sum(size for size, _ in live(peak)) == peak.bytes
    assert 0 <= recorded["allocated_peak"] - peak.bytes < 1 << 20


def test_a_block_whose_event_is_gone_keeps_its_stack() -> None:
    """A live block has its own stack."""
    allocator = Allocator(1)
    allocator.alloc(1, 20)
    allocator.alloc(2, 10)
    snapshot = allocator.snapshot()
    snapshot["segments"][0]["blocks"][0]["frames"] = [{"filename": "b.py", "line": 7, "name": "f"}]
    assert lines(live(replay(snapshot, 0))) == [(1, 10), (7, 20)]


@pytest.mark.parametrize("action", ["segment_alloc", "segment_map", "oom", "snapshot", "annotate"])
def test_other_events_change_nothing(action: str) -> None:
    """Other kinds of events, of now or of later versions, are ignored."""
    allocator = Allocator(100)
    allocator.alloc(1, 10)
    snapshot = allocator.snapshot()
    snapshot["device_traces"][0].append({"action": action, "size": 1 << 40, "frames": []})
    assert replay(snapshot, 0).bytes == 10


def test_a_device_without_a_history_has_nothing() -> None:
    """A device that the snapshot does not have has nothing either."""
    assert replay({"segments": [], "device_traces": []}, 3).bytes == 0


def test_a_peak_before_all_that_is_retained_has_no_time() -> None:
    """The time of the peak is unknown if the history begins with the highest bytes."""
    allocator = Allocator(10, {0: 4000})
    allocator.free(0, in_use=False)
    peak = replay(allocator.snapshot(), 0)

    assert (peak.bytes, peak.time_us, peak.times[0], len(peak.times)) == (4000, None, 0, 2)


def test_a_peak_has_the_time_of_the_event_that_first_made_it() -> None:
    """The time is not that of a neighbouring event, nor of a later equal peak."""
    allocator = Allocator(10)
    for address in range(3):
        allocator.alloc(address, 100)
    allocator.free(0, in_use=False)
    allocator.alloc(3, 100)

    assert replay(allocator.snapshot(), 0).time_us == 2


WHOLE = 10**6


def drawn(snapshot: dict[str, Any], moments: int = WHOLE) -> OverTime:
    peak = replay(snapshot, 0)
    return over_time(peak, [place_of(frames, {}) for frames in peak.table.frames], moments)


def sums(held: OverTime) -> list[list[int]]:
    """Return the sum of the bands at each moment, for each grouping."""
    nothing = [0] * len(held.moments)
    sizes = [zip(*(band.sizes for band in held.bands[by]), strict=True) for by in BY]
    return [list(map(sum, of_moments)) or nothing for of_moments in sizes]


@given(histories(), st.sampled_from([WHOLE, 8, 20]))
def test_the_bands_add_up_to_the_allocated_bytes(allocator: Allocator, most: int) -> None:
    """They do at every moment and in every grouping, to the byte."""
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
    """A simulation knows the line of each block; earlier memory is a band of its own."""
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
    memory = Allocations()
    for number in range(lines):
        address = memory.alloc((number + 1) * 1000, (f"/u/p{number}.py", 1, "f"))
        if freed and number % 3:
            memory.free(address)
    return memory


def test_bands_and_moments_are_limited() -> None:
    """The largest bands are kept; the rest is one band on top."""
    held = drawn(many(2000).snapshot(), MOST_MOMENTS)
    bands = held.bands["line"]

    assert len(bands) <= MOST_BANDS
    assert bands[-1].name == OTHERS
    assert len(held.moments) <= MOST_MOMENTS
    assert sums(held) == [list(held.allocated)] * len(BY)
    highest = [band.highest for band in bands[:-1]]
    assert highest == sorted(highest, reverse=True)


def test_a_spike_between_two_moments_is_kept() -> None:
    """A short spike has its height to the byte."""
    memory = many(3000)
    memory.wait(100)
    memory.free(memory.alloc(123_456_789_123, ("/u/spike.py", 1, "f")))
    memory.wait(100)
    for _ in range(2000):
        memory.free(memory.alloc(512, ("/u/calm.py", 1, "f")))
    held = drawn(memory.snapshot(), MOST_MOMENTS)

    assert max(held.allocated) == replay(memory.snapshot(), 0).bytes
    assert held.bands["line"][0].name == "u/spike.py:1"


def test_earlier_memory_is_at_the_bottom() -> None:
    """It is of blocks that were freed, or live at the end, without having been allocated."""
    memory = many(4)
    memory.forget()
    memory.free(next(iter(memory.live)))
    bands = drawn(memory.snapshot()).bands["line"]

    assert [band.name for band in bands] == [BEFORE]
    assert bands[0].sizes == (5000, 4000, 4000)


def test_a_ring_that_lost_its_beginning_keeps_the_figures() -> None:
    """Memory of lost events has the line of its live block, or else counts as earlier memory."""
    memory = many(40, freed=False)
    whole, ring = memory.snapshot(), memory.snapshot()
    ring["device_traces"] = [ring["device_traces"][0][-10:]]

    assert drawn(ring).allocated == drawn(whole).allocated[-11:]
    assert BEFORE not in {band.name for band in drawn(ring).bands["line"]}


def test_times_are_seconds_since_the_first_event() -> None:
    """Snapshots of torch before 2.2 have no times, so numbers of events stand for them."""
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


def test_segments_of_other_devices_are_not_this_ones() -> None:
    """A snapshot has the segments of all; one without a device is of the first."""

    def segment(size: int, **device: int) -> dict[str, Any]:
        block = {"address": size, "size": size, "requested_size": size, "state": "active_allocated"}
        return {"address": size, "blocks": [block], **device}

    snapshot = {"segments": [segment(512), segment(1024, device=1)], "device_traces": [[], []]}

    assert replay(snapshot, 0).bytes == 512
    assert replay(snapshot, 1).bytes == 1024
    assert replay(snapshot, 2).bytes == 0
