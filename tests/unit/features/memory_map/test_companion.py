"""The memory map that goes along with a watch: how often it is read and sent, and what is left of it."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, cast
from unittest.mock import Mock

import pytest

from hfmem_widget.features.memory_map.companion import MOST_SECONDS, LiveMemoryMap
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import Device, Recorder, Sample, Series
from hfmem_widget.session.segments import Block, MemoryMap, Segment
from hfmem_widget.view.screen import Screen
from tests.scenes import FakeClock
from tests.scenes.stage import NO_MONITOR

M = 2**20
OPTIONS = WatchOptions(memory_map=True)


def map_of(
    *sizes: int, used: float = 1.0, seconds: float = 0.001, device: str = "cuda:0"
) -> MemoryMap:
    """Return segments of such sizes in MiB, of each of which a share is in use."""
    segments = []
    for size in sizes:
        inside = int(used * size * M)
        blocks = (
            Block(0, inside, inside, "allocated"),
            Block(inside, size * M - inside, 0, "free"),
        )
        parts = tuple(block for block in blocks if block.size)
        segments.append(Segment(device, 0, size * M, "large", parts))
    return MemoryMap((device,), tuple(segments), seconds)


class FakeScreen:
    """A screen that keeps what was shown."""

    def __init__(self, *, live: bool = True) -> None:
        self.live = live
        self.cleared = False
        self.shown: list[Mapping[str, Any]] = []
        self.replaced: list[Mapping[str, Any]] = []

    def show(self, bundle: Mapping[str, Any]) -> str:
        self.shown.append(bundle)
        return "id"

    def replace(self, display_id: str, bundle: Mapping[str, Any]) -> None:
        assert display_id == "id"
        self.replaced.append(bundle)


class Rig:
    """A companion, a session of one GPU, and time that passes in ticks."""

    def __init__(self, *, live: bool = True, options: WatchOptions = OPTIONS) -> None:
        self.clock, self.cpu = FakeClock(100.0), FakeClock()
        self.screen = FakeScreen(live=live)
        self.found, self.reads = map_of(100), 0  # what is read, and how often it was
        self.recorder = Recorder("cell")
        self.session = self.recorder.session
        self.recorder.adopt([Device("cuda:0", "NVIDIA H200")], [Series("cuda:0", "reserved")])
        self.meanwhile: Callable[[], object] = lambda: None  # it happens at each reading
        self.reserved = 100.0 * M
        self.due = self.clock.now  # of the next tick
        self.span = self.recorder.open_span("cell", "cell", self.sample())
        self.companion = LiveMemoryMap(options, self.read, clock=self.clock, cpu=self.cpu)
        self.companion.screen = cast("Screen", self.screen)
        self.ticker = self.companion._ticker
        self.ticker.start = lambda: None  # type: ignore[method-assign]  # ticks come by hand
        self.companion.begin(NO_MONITOR, self.recorder, self.span)

    def read(self) -> MemoryMap:
        self.reads += 1
        self.meanwhile()
        return self.found

    def sample(self) -> Sample:
        return self.recorder.append(Sample(self.clock.now - 100.0, (self.reserved,)))

    def run(self, seconds: float, change: Callable[[int], None] = lambda _: None) -> None:
        """Let time pass, and ticks come at their interval."""
        for tick in range(round(10 * seconds)):
            change(tick)
            self.clock.advance(0.1)
            self.sample()
            if self.clock.now >= self.due and not self.ticker.stopping:
                self.companion.tick()
                self.due = self.clock.now + self.ticker.interval

    def end(self) -> Mapping[str, Any] | None:
        self.companion.end(self.recorder, self.span, None)
        return self.companion.report(self.session, self.span)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def growing(rig: Rig) -> Callable[[int], None]:
    def grow(tick: int) -> None:
        rig.found = map_of(100, tick + 1)

    return grow


@pytest.mark.parametrize(
    ("seconds", "cost", "changes", "updates"),
    [(5.0, 0.0, True, (4, 5)), (5.0, 0.0, False, (1, 1)), (9.05, 0.06, True, (3, 3))],
    ids=["changes", "no change", "slow"],
)
def test_it_is_refreshed_where_it_has_changed_at_most_once_a_second(
    rig: Rig, seconds: float, cost: float, *, changes: bool, updates: tuple[int, int]
) -> None:
    """Reading and drawing take at most two hundredths of the time: one of 60 ms every three seconds."""
    rig.meanwhile = lambda: rig.cpu.advance(cost)
    rig.run(seconds, growing(rig) if changes else lambda _: None)
    least, most = updates
    assert least <= len(rig.screen.replaced) <= most
    assert rig.reads == len(rig.screen.replaced) or not changes


def test_without_a_thread_the_map_is_shown_at_the_end() -> None:
    """If the system starts no thread, nothing is read before the end."""
    rig = Rig()
    rig.ticker.start = Mock(side_effect=RuntimeError("can't start new thread"))  # type: ignore[method-assign]
    rig.companion.begin(NO_MONITOR, rig.recorder, rig.span)
    rig.end()
    assert rig.reads == len(rig.screen.replaced) == 1


def test_a_map_that_takes_long_to_read_is_shown_at_the_end_only(rig: Rig) -> None:
    """Reading holds the GIL; a note says that it is not shown live."""
    rig.found = map_of(100, seconds=1.5 * MOST_SECONDS)
    rig.run(5.0)
    assert rig.reads == 1
    assert rig.screen.replaced == []
    (note,) = rig.session.notes
    assert "30 ms" in note
    rig.end()
    assert len(rig.screen.replaced) == 1


def test_a_long_run_that_nobody_may_look_at_sends_a_kilobyte_a_second(rig: Rig) -> None:
    """A server without a page keeps every message."""
    rig.run(320.0, growing(rig))
    before = len(rig.screen.replaced)
    rig.run(100.0, growing(rig))
    sent = rig.screen.replaced[before:]
    size = sum(1300 + sum(len(text.encode()) for text in one.values()) for one in sent)
    assert 60_000 < size < 110_000


def rises(rig: Rig, tick: int) -> None:
    size = 900 if 20 <= tick < 35 else 100
    rig.reserved, rig.found = size * M, map_of(size)


def rises_late(rig: Rig, tick: int) -> None:
    size = 900 if 3150 <= tick < 3165 else 100
    rig.reserved, rig.found = size * M, map_of(900 if size == 900 else 99 - tick % 7)


def is_emptied(rig: Rig, tick: int) -> None:
    rig.found = map_of(100, used=0.9 if tick < 20 else 0.1)


@pytest.mark.parametrize(
    ("seconds", "change", "end", "highest"),
    [
        (5.0, rises, "100.0 MiB reserved", "900.0 MiB reserved"),
        (320.0, rises_late, "99.0 MiB reserved", "900.0 MiB reserved"),
        (4.0, is_emptied, "100.0 MiB reserved", "90.0 MiB"),
    ],
    ids=["a rise", "a rise while maps are drawn seldom", "as high and emptier"],
)
def test_it_ends_with_the_end_and_the_highest(
    rig: Rig, seconds: float, change: Callable[[Rig, int], None], end: str, highest: str
) -> None:
    """The last map has the end, and the moment at which most was reserved."""
    rig.run(seconds, partial(change, rig))
    assert rig.end() is None
    at_end, fullest = rig.screen.replaced[-1]["text/plain"].split("when most was reserved")
    assert f"cuda:0 at the end \u00b7 {end}" in at_end
    assert highest in fullest


def test_without_a_live_screen_the_map_is_part_of_the_report() -> None:
    """A script prints it at the end."""
    rig = Rig(live=False)
    rig.run(2.0)
    bundle = rig.end()
    assert bundle is not None
    assert bundle["text/plain"].startswith("cuda:0 at the end")
    assert bundle["text/plain"].count("cuda:0") == 1  # the end was the highest
    assert not rig.screen.shown
    assert not rig.screen.replaced


def test_after_the_end_nothing_is_read(rig: Rig) -> None:
    """A tick that was on its way when the cell ended does nothing."""
    rig.run(1.0)
    rig.end()
    reads, replaced = rig.reads, len(rig.screen.replaced)
    rig.clock.advance(3.0)
    rig.companion.tick()
    assert (rig.reads, len(rig.screen.replaced)) == (reads, replaced)


def test_a_fault_costs_the_live_map_and_is_said_once(rig: Rig) -> None:
    """A map that cannot be read is one note, and the end is still tried."""
    rig.meanwhile = Mock(side_effect=ValueError("broken"))
    rig.run(3.0)
    assert [note for note in rig.session.notes if "ValueError: broken" in note] == rig.session.notes
    rig.meanwhile = Mock()
    rig.end()
    assert "at the end" in rig.screen.replaced[-1]["text/plain"]


def test_only_the_devices_of_the_watch_are_read() -> None:
    """With devices chosen by name, the map leaves the others out."""
    rig = Rig(options=replace(OPTIONS, devices=("cuda:1",)))
    rig.found = MemoryMap(
        ("cuda:0", "cuda:1"), (*map_of(5).segments, *map_of(7, device="cuda:1").segments)
    )
    rig.run(1.0)
    assert "cuda:0" not in rig.screen.replaced[-1]["text/plain"]
    assert "7.00 MiB" in rig.screen.replaced[-1]["text/plain"]
