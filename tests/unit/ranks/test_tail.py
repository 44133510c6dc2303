"""The files of a run's directory, as they grow, break, come back, and lie on a slow server."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from hfmem_widget.ranks.collector import OVER_AFTER
from hfmem_widget.ranks.tail import AT_ONCE, LONGEST_PASS, MOST_FAULTS, SCAN_EVERY
from hfmem_widget.text import GIB
from tests.fakes.ranks import Script, SimulatedRun
from tests.fakes.slow_disk import Followed

RUN = "a" * 32


class Read(Followed):
    """A simulated run on a disk that takes no time, but for passes; of its processes some run."""

    def __init__(self, directory: Path, script: Script | None = None) -> None:
        self.processes = {0, 1}
        script = script or Script(world=2, interval=0.5)
        super().__init__(directory, script, 0.0003, lambda rank: rank.rank in self.processes)
        self.disk.clocks = (self.timer,)

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
        self.timer.advance(2 * SCAN_EVERY)
        while self.tail.read():
            pass

    @property
    def peaks(self) -> dict[int, float]:
        return {row.rank: row.peak for row in self.collector.rows()}

    @property
    def truth(self) -> dict[int, float]:
        return {number: rank.peak for number, rank in self.run.ranks.items()}


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Read:
    """Return a run of two ranks, of this host."""
    monkeypatch.setattr("hfmem_widget.ranks.tail.this_host", lambda: "node0000")
    return Read(tmp_path / "run")


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


def test_a_file_that_is_not_there_for_a_while_is_read_when_it_is_back(read: Read) -> None:
    """A read that fails, as on a file server, is tried again, and nothing is lost."""
    read.goes_on(2)
    read.disk.failing = {read.run.ranks[1].stream}
    read.goes_on(2)
    read.disk.failing = set()
    read.goes_on(2)

    assert read.peaks == read.truth


def test_a_file_that_is_copied_anew_is_read_on(read: Read, tmp_path: Path) -> None:
    """As one that grows: of a longer copy in its place, as rsync makes them, what is new is read once."""
    path = read.directory / read.run.ranks[1].stream
    for at in range(3):
        read.goes_on(2)
        copy = tmp_path / f"copy{at}"
        copy.write_bytes(path.read_bytes())
        copy.replace(path)
    read.goes_on(2)

    assert read.peaks == read.truth
    assert all(stream.holes == stream.dropped == 0 for stream in read.collector.streams.values())


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
    read.run.write(read.directory, 50.0)
    assert all(path.stat().st_size > 3 * AT_ONCE for path in read.directory.glob("r*.jsonl"))

    read.reads()

    assert read.peaks == read.truth
    overview = read.collector.session
    known = overview.to_pandas()[[f"ranks/rank{rank}" for rank in range(3)]]
    assert known.iloc[3:-3].notna().all(axis=None)


def test_the_end_of_the_run_ends_the_overview(read: Read) -> None:
    """When all ranks have ended, the overview does, at the time of the last."""
    read.goes_on(4)
    read.run.write(read.directory, 1.0)
    read.clock.now = read.run.began + read.run.now + 1
    read.tail.tick()

    assert not read.collector.session.running
    assert read.collector.session.stopped_at == pytest.approx(read.run.began + 5.0, abs=0.1)


def test_a_fault_of_ours_costs_a_pass(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one reads what it has missed. Where none goes well any more, that ends with a sentence."""
    with monkeypatch.context() as patch:
        patch.setattr(read.tail, "read", lambda: 1 / 0)
        read.tail.tick()
    read.goes_on(3.0)

    assert read.peaks == read.truth
    assert not any("ZeroDivisionError" in note for note in read.collector.session.notes)
    monkeypatch.setattr(read.tail, "read", lambda: 1 / 0)
    for _ in range(MOST_FAULTS):
        read.tail.tick()
    assert any("ZeroDivisionError" in note for note in read.collector.session.notes)


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

    assert alone.collector.roster.world == 2
    assert alone.peaks == alone.truth


def test_a_rank_whose_process_is_gone_is_named_at_once(read: Read) -> None:
    """Nobody waits until it counts as silent: its process ran here, and does not any more."""
    read.goes_on(6)
    read.run.script.killed[1] = 6.0  # type: ignore[index]  # a script that goes on is changed
    read.processes = {0}
    read.goes_on(1)

    (finding,) = read.collector.session.findings
    assert (finding.kind, finding.evidence["ranks"]) == ("rank-gone", [1])
    assert finding.severity == "critical"
    assert "Rank 1 was killed after step 10" in finding.title
    assert read.collector.rows()[1].flag == "lost"


def test_a_process_that_has_written_its_end_is_not_gone(read: Read) -> None:
    """Its last lines come before its process ends, and are read after that is seen."""
    read.goes_on(6)
    read.processes = set()
    read.run.write(read.directory, 1.0)
    read.reads()

    assert read.collector.session.findings == []
    assert not any(stream.is_gone for stream in read.collector.streams.values())


@pytest.mark.parametrize("host", ["node0000", "another"])
def test_a_process_that_never_ran_here_is_not_missed(
    read: Read, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may run in a container for one; of another host's, the number is that of another process here."""
    monkeypatch.setattr("hfmem_widget.ranks.tail.this_host", lambda: host)
    if host == "another":
        read.goes_on(3)
    read.processes = set()
    read.goes_on(6)

    assert read.collector.session.findings == []


def test_of_ranks_started_here_one_that_was_never_seen_to_run_is_gone(read: Read) -> None:
    """It was killed before anybody looked: whoever started it says that all is over."""
    read.processes = set()
    read.run.script.killed[1] = 3.0  # type: ignore[index]  # a script that goes on is changed
    read.goes_on(4)
    read.collector.started_here = True
    read.run.write(read.directory, 1.0)
    read.tail.finish()

    (finding,) = read.collector.session.findings
    assert (finding.kind, finding.evidence["ranks"]) == ("rank-gone", [1])


def test_a_run_of_which_all_processes_are_gone_is_over_soon(read: Read) -> None:
    """It may be started again; half a minute is not waited for, but whoever has started it here is."""
    read.goes_on(4)
    read.processes = set()
    read.reads()
    now = read.clock.now

    assert not read.collector.is_over(now + OVER_AFTER - 1)
    assert read.collector.is_over(now + OVER_AFTER + 1)
    read.collector.started_here = True
    assert not read.collector.is_over(now + 3600.0)
