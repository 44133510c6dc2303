"""The files of a run's directory, as they grow, break, and come back."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from hfmem_widget.ranks.collector import Collector
from hfmem_widget.ranks.directory import open_own
from hfmem_widget.ranks.tail import AT_ONCE, LONGEST_PASS, SCAN_EVERY, Tail
from hfmem_widget.testing import FakeClock
from hfmem_widget.testing.ranks import Script, SimulatedRun, append
from hfmem_widget.text import GIB

RUN = "a" * 32


class Read:
    """A simulated run in a directory, and what follows it, by clocks that are set."""

    def __init__(self, directory: Path, script: Script | None = None) -> None:
        self.directory = directory
        self.run = SimulatedRun(script or Script(world=2, interval=0.5), run=RUN)
        self.run.write(directory, 0.0, finish=False)
        self.clock, self.timer = FakeClock(self.run.began), FakeClock()
        self.collector = Collector(run=RUN)
        self.failing: set[str] = set()
        self.tail = Tail(
            directory, self.collector, opened=self.opened, clock=self.clock, timer=self.timer
        )

    def opened(self, path: Path) -> int:
        if path.name in self.failing:
            raise OSError(116, "Stale file handle")
        self.timer.advance(0.001)
        return open_own(path)

    def goes_on(self, seconds: float) -> None:
        """Let the ranks write, and read it in passes."""
        for _ in range(int(seconds)):
            self.run.write(self.directory, 1.0, finish=False)
            self.reads()

    def reads(self) -> None:
        """Make passes until all is read."""
        self.clock.now = self.run.began + self.run.now
        for path in self.directory.glob("r*.jsonl"):
            os.utime(path, (self.clock.now, self.clock.now))
        self.timer.advance(SCAN_EVERY)
        while self.tail.read():
            pass

    @property
    def peaks(self) -> dict[int, float]:
        return {row.rank: row.peak for row in self.collector.rows()}

    @property
    def truth(self) -> dict[int, float]:
        return {number: rank.peak for number, rank in self.run.ranks.items()}


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Return a run of two ranks."""
    return Read(tmp_path / "run")


def test_files_are_followed_as_they_grow(read: Read) -> None:
    """What is written between two passes is read by the second, and nothing twice."""
    read.goes_on(6)

    assert read.peaks == read.truth
    assert all(stream.holes == stream.dropped == 0 for stream in read.collector.streams.values())


def test_a_file_that_comes_later_is_found(read: Read) -> None:
    """New files are looked for once a second."""
    read.goes_on(2)
    read.run.restart(3, step=2)
    read.goes_on(4)

    assert sorted(read.collector.streams) == [0, 1, 2]


def test_two_threads_read_nothing_twice(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that follows and whoever asks for all there is wait for each other."""
    read.run.write(read.directory, 3.0, finish=False)
    taken: dict[str, int] = dict.fromkeys((path.name for path in read.directory.glob("r0*")), 0)
    others: list[threading.Thread] = []

    def fed(name: str, data: bytes, _at: float) -> None:
        taken[name] += len(data)

    def got(descriptor: int, size: int, offset: int) -> bytes:
        data = pread(descriptor, size, offset)
        if not others:
            others.append(threading.Thread(target=read.tail.read))
            others[0].start()
            others[0].join(0.05)  # it reads now or never
        return data

    pread = os.pread
    monkeypatch.setattr(read.collector, "feed", fed)
    monkeypatch.setattr(os, "pread", got)
    read.tail.read()
    others[0].join()

    assert taken == {name: (read.directory / name).stat().st_size for name in taken}


def test_half_a_line_waits_for_its_other_half(read: Read) -> None:
    """A line that is cut by a pass is read when it is whole."""
    (stream, data), *_ = read.run.advance(1.0)
    append(read.directory / stream, data[:-20])
    read.reads()
    append(read.directory / stream, data[-20:])
    read.reads()

    (known,) = read.collector.all_streams.values()
    assert known.dropped == 0
    assert known.head is not None


def test_a_file_that_is_not_there_for_a_while_is_read_when_it_is_back(read: Read) -> None:
    """A read that fails, as on a file server, is tried again, and nothing is lost."""
    read.goes_on(2)
    read.failing = {read.run.ranks[1].stream}
    read.goes_on(2)
    read.failing = set()
    read.goes_on(2)

    assert read.peaks == read.truth


def test_a_file_that_was_replaced_is_read_again_once(read: Read) -> None:
    """A file that got shorter is read from its beginning, and a note says so; a second time it is left."""
    read.goes_on(3)
    path = read.directory / read.run.ranks[0].stream
    for _ in range(2):
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 2 + 1])
        read.reads()

    assert sum("read again" in note for note in read.collector.session.notes) == 1
    assert read.collector.streams[0].head is not None


def test_a_pass_is_short(read: Read, tmp_path: Path) -> None:
    """A pass ends after 50 ms; the next goes on with the other files."""
    slow = Read(tmp_path / "slow", Script(world=120, interval=1.0))
    slow.run.write(slow.directory, 1.0, finish=False)
    slow.clock.now = slow.run.began + 1
    before = slow.timer.now

    assert slow.tail.read()
    assert slow.timer.now - before <= LONGEST_PASS + 0.002
    seen = len(slow.collector.all_streams)
    assert 0 < seen < 120
    while slow.tail.read():
        pass
    assert len(slow.collector.streams) == 120


def test_long_files_are_read_side_by_side(tmp_path: Path) -> None:
    """Of files that were there before none is read far ahead of the others: all are put on one clock."""
    read = Read(tmp_path / "run", Script(world=3, interval=0.02, step_seconds=0.1))
    read.run.write(read.directory, 100.0)
    assert all(path.stat().st_size > 3 * AT_ONCE for path in read.directory.glob("r*.jsonl"))

    read.reads()

    assert read.peaks == read.truth
    overview = read.collector.session
    known = overview.to_pandas()[[f"ranks/rank{rank}" for rank in range(3)]]
    assert known.iloc[3:-3].notna().all(axis=None)


def test_only_the_files_that_are_listed_are_read(tmp_path: Path) -> None:
    """Links, foreign names and what is no regular file are not opened."""
    read = Read(tmp_path / "run")
    read.goes_on(2)
    real = read.directory / read.run.ranks[0].stream
    (read.directory / "r00002-a0-node0000-9.jsonl").symlink_to(real)
    os.mkfifo(read.directory / "r00003-a0-node0000-9.jsonl")
    (read.directory / "notes.txt").write_text("x")
    read.goes_on(2)

    assert sorted(read.collector.all_streams) == sorted(
        rank.stream for rank in read.run.ranks.values()
    )
    assert sum("not read" in note for note in read.collector.session.notes) == 1


def test_the_end_of_the_run_ends_the_overview(read: Read) -> None:
    """When all ranks have ended, the overview does, at the time of the last."""
    read.goes_on(4)
    read.run.write(read.directory, 1.0)
    read.clock.now = read.run.began + read.run.now + 1
    read.tail.tick()

    assert not read.collector.session.running
    assert read.collector.session.stopped_at == pytest.approx(read.run.began + 5.0, abs=0.1)


def test_a_fault_of_ours_is_a_note(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes wrong in a pass ends the reading with a sentence, and raises nothing."""
    monkeypatch.setattr(read.tail, "read", lambda: 1 / 0)

    read.tail.tick()

    assert any("ZeroDivisionError" in note for note in read.collector.session.notes)
    assert not read.tail.alive


def test_what_turns_out_to_be_a_launcher_makes_room_for_its_ranks(tmp_path: Path) -> None:
    """Its file is renamed by the first of them; until then it was taken for the only rank."""
    alone = Read(tmp_path, Script(world=1, interval=0.5))
    alone.run.ranks[0].stream = "r00000-a0-node0000-9.jsonl"
    alone.goes_on(3)
    (path,) = tmp_path.glob("r*.jsonl")
    path.rename(tmp_path / f"launcher-{path.name}")
    larger = Script(world=2, interval=0.5, activations=60 * GIB)
    alone.run = SimulatedRun(larger, run=RUN, began=alone.clock.now)
    alone.goes_on(3)

    assert alone.collector.world == 2
    assert alone.peaks == alone.truth
