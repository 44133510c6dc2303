"""The files of a run's directory, as they grow, break, come back, and lie on a slow server."""

from __future__ import annotations

import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

import pytest

from hfmem_widget.monitor.ticker import Ticker
from hfmem_widget.ranks import tail
from hfmem_widget.ranks.collector import OVER_AFTER, Collector
from hfmem_widget.ranks.directory import Streams
from hfmem_widget.ranks.files import AT_ONCE, Disk, File, Piece, fetched
from hfmem_widget.ranks.roster import LOST, SILENT_PACES, SILENT_SECONDS
from hfmem_widget.ranks.tail import (
    LONGEST_PASS,
    MOST_FAULTS,
    MOST_THREADS,
    SCAN_EVERY,
    TO_THE_END,
    Tail,
)
from hfmem_widget.session import Rank
from hfmem_widget.text import GIB
from tests.fakes.ranks import Script, SimulatedRun
from tests.scenes import FakeClock

RUN = "a" * 32


class SlowDisk(Disk):
    """Notes which calls came from which threads; each moves some clocks on, and those for some files fail."""

    def __init__(self, *clocks: FakeClock, takes: float = 0.0) -> None:
        self.clocks, self.takes = clocks, takes
        self.failing: set[str] = set()
        self.calls: Counter[str] = Counter()
        self.threads: set[int] = set()
        self._lock = threading.Lock()

    def listed(self, directory: Path, known: Container[str]) -> Streams:
        self._pass_time("listed")
        return super().listed(directory, known)

    def opened(self, path: str) -> tuple[int, os.stat_result]:
        self._pass_time("opened")
        if Path(path).name in self.failing:
            raise OSError(116, "Stale file handle")
        return super().opened(path)

    def stat(self, path: str) -> os.stat_result:
        self._pass_time("stat")
        return super().stat(path)

    def fstat(self, descriptor: int) -> os.stat_result:
        self._pass_time("fstat")
        return super().fstat(descriptor)

    def read(self, descriptor: int, size: int, offset: int) -> bytes:
        self._pass_time("read")
        return super().read(descriptor, size, offset)

    def _pass_time(self, call: str) -> None:
        with self._lock:
            self.calls[call] += 1
            self.threads.add(threading.get_ident())
            for clock in self.clocks:
                clock.advance(self.takes)


class Followed:
    """A simulated run whose ranks write as time passes, and what follows it, by clocks that are set."""

    def __init__(
        self,
        directory: Path,
        script: Script,
        takes: float,
        runs: Callable[[Rank], bool] = lambda _rank: True,
    ) -> None:
        self.directory = directory
        self.run = SimulatedRun(script, run=RUN)
        self.run.write(directory, 0.0, finish=False)
        self.clock, self.timer = FakeClock(self.run.began), FakeClock()
        self.collector = Collector(run=RUN)
        self.disk = SlowDisk(self.clock, self.timer, takes=takes)
        self.tail = Tail(
            directory, self.collector, disk=self.disk, clock=self.clock, timer=self.timer,
            runs=runs,
        )  # fmt: skip

    def goes_on(self, seconds: float) -> None:
        """Read in passes for some time, in which the ranks write."""
        stop = self.clock.now + seconds
        while self.clock.now < stop:
            pace = self.run.script.pace
            if (due := (self.clock.now - self.run.began - self.run.now) // pace * pace) > 0:
                self.run.write(self.directory, due, finish=False)
            if not self.tail.read():
                self.clock.advance(self.tail.poll)
                self.timer.advance(self.tail.poll)

    @property
    def said(self) -> list[str]:
        """What was found."""
        return [finding.title for finding in self.collector.session.findings]


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


def test_a_file_that_is_not_there_for_a_while_is_read_when_it_is_back(read: Read) -> None:
    """A read that fails, as on a file server, is tried again, and nothing is lost."""
    read.goes_on(2)
    read.disk.failing = {read.run.ranks[1].stream}
    read.goes_on(2)
    read.disk.failing = set()
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
    """What goes wrong in a pass raises nothing and says nothing: the next pass reads what it has missed."""
    with monkeypatch.context() as patch:
        patch.setattr(read.tail, "read", lambda: 1 / 0)
        read.tail.tick()
    read.goes_on(3.0)

    assert read.peaks == read.truth
    assert not any("ZeroDivisionError" in note for note in read.collector.session.notes)


def test_faults_of_ours_in_every_pass_are_a_note(
    read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no pass goes well any more, the reading ends with a sentence."""
    monkeypatch.setattr(read.tail, "read", lambda: 1 / 0)

    for _ in range(MOST_FAULTS):
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


def test_a_process_that_never_ran_here_is_not_missed(read: Read) -> None:
    """As far as can be seen: it may run elsewhere, in a container for one."""
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


def test_a_failed_run_that_was_started_here_may_begin_again_at_any_time(read: Read) -> None:
    """An agent of torchrun waits for others before it starts its ranks again: the launcher still runs."""
    read.goes_on(4)
    read.processes = set()
    read.reads()
    read.clock.advance(3600.0)
    was_over = read.tail.is_over()
    read.collector.started_here = True

    assert was_over
    assert not read.tail.is_over()


def test_a_process_of_another_host_is_not_looked_for(
    read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number is that of another process here."""
    monkeypatch.setattr("hfmem_widget.ranks.tail.this_host", lambda: "another")
    read.goes_on(3)
    read.processes = set()
    read.goes_on(3)

    assert read.collector.session.findings == []


def test_a_run_of_which_all_processes_are_gone_is_over_soon(read: Read) -> None:
    """It may be started again; half a minute is not waited for."""
    read.goes_on(4)
    read.processes = set()
    read.reads()
    now = read.clock.now

    assert not read.collector.is_over(now + OVER_AFTER - 1)
    assert read.collector.is_over(now + OVER_AFTER + 1)


SLOW = 0.5
"""Seconds that each call takes: a round over 12 files takes longer than a rank may be silent, or behind."""

MANY = Script(world=12, interval=1.0)


def open_in(directory: Path) -> int:
    """Return how many files of a directory this process has open."""
    handles = map(Path("/proc/self/fd").joinpath, os.listdir("/proc/self/fd"))  # noqa: PTH208
    places = [os.path.realpath(handle) for handle in handles]
    return sum(place.startswith(f"{directory}/") for place in places)


def test_more_threads_read_a_slow_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most eight; one alone feeds the collector, and none is left at the end."""
    run = Followed(tmp_path / "run", MANY, SLOW)
    fed, feed, before = set(), run.collector.feed, threading.active_count()
    side_by_side = []

    def noted(*arguments: Any) -> None:
        fed.add(threading.get_ident())
        side_by_side.append(run.tail.threads)
        feed(*arguments)

    monkeypatch.setattr(run.collector, "feed", noted)
    run.goes_on(30.0)

    assert fed == {threading.get_ident()}
    assert max(side_by_side) == MOST_THREADS
    assert len(run.disk.threads) > 1
    assert threading.active_count() == before
    assert len(run.collector.streams) == 12
    assert all(one.holes == one.dropped == 0 for one in run.collector.streams.values())


def test_a_disk_that_is_quick_again_is_read_by_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As soon as a round is as short as it was."""
    run = Followed(tmp_path / "run", MANY, SLOW)
    run.goes_on(30.0)
    run.disk.takes = 1e-5
    run.goes_on(2.0)
    run.disk.threads.clear()
    run.goes_on(2.0)

    assert run.disk.threads == {threading.get_ident()}


def test_nothing_is_said_of_ranks_that_were_not_read_yet(tmp_path: Path) -> None:
    """Neither that one is behind nor that it is silent, however long a round over all files takes."""
    run = Followed(tmp_path / "run", MANY, SLOW)
    said = []
    for _ in range(6):
        run.goes_on(5.0)
        said += run.said

    assert said == []
    ranks = run.collector.session.ranks
    assert ranks is not None
    assert ranks.reporting == 12


def test_a_rank_that_is_behind_is_found_however_slowly_it_is_read(tmp_path: Path) -> None:
    """It is found later, by as long as a round takes, and no other is."""
    run = Followed(tmp_path / "run", Script(world=12, interval=1.0, stuck={10: 20}), SLOW)
    run.goes_on(90.0)

    (said,) = run.said
    assert said.startswith("Rank 10 (node0001) has finished no step after step 20")


def test_a_silent_rank_is_found_however_slowly_it_is_read(tmp_path: Path) -> None:
    """It was looked at, and had nothing new."""
    run = Followed(tmp_path / "run", Script(world=12, interval=1.0, killed={10: 10.0}), SLOW)
    run.goes_on(90.0)

    (said,) = run.said
    assert said.startswith("Rank 10 (node0001) has been silent")


def test_a_file_that_cannot_be_read_is_no_silent_rank_for_half_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its server may be back by then; after that it is one whose connection is lost."""
    monkeypatch.setattr(tail, "most_handles", lambda: 0)
    run = Followed(tmp_path / "run", Script(world=4, interval=1.0), 1e-5)
    run.goes_on(10.0)
    run.disk.failing = {run.run.ranks[2].stream}
    run.goes_on(LOST - 5)
    assert run.said == []
    assert LOST - 5 > SILENT_PACES + SILENT_SECONDS

    run.goes_on(10.0)
    (said,) = run.said
    assert said.startswith("Rank 2 has been silent")


def test_the_last_lines_are_read_from_a_slow_disk(tmp_path: Path) -> None:
    """Those of all ranks, once each: the end of a rank is the end of its file."""
    run = Followed(tmp_path / "run", MANY, 0.3)
    run.goes_on(20.0)
    run.run.write(run.directory, 1.0)
    run.tail.finish()

    assert all(stream.is_over for stream in run.collector.streams.values())
    assert run.collector.session.notes == []
    assert run.said == []


def test_last_lines_that_were_not_read_are_a_sentence(tmp_path: Path) -> None:
    """One that says of how many ranks; of these nothing is said that is not known."""
    run = Followed(tmp_path / "run", MANY, SLOW)
    run.goes_on(30.0)
    run.run.write(run.directory, 1.0)
    run.disk.takes = 2.0
    run.tail.finish()

    (note,) = run.collector.session.notes
    left = sum(not stream.is_over for stream in run.collector.streams.values())
    assert left > 0
    assert f"The last lines of {left} ranks could not be read within {TO_THE_END:.0f} s" in note
    assert run.said == []


def test_a_server_that_is_away_at_the_end_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What could not be read is as little known as what was not read in time."""
    monkeypatch.setattr(tail, "most_handles", lambda: 0)
    run = Followed(tmp_path / "run", Script(world=4, interval=1.0), 1e-5)
    run.goes_on(5.0)
    run.run.write(run.directory, 1.0)
    run.disk.failing = {run.run.ranks[2].stream}
    run.tail.finish()

    (note,) = run.collector.session.notes
    assert note.startswith("The last lines of 1 rank could not be read")


def test_files_stay_open_between_two_looks(tmp_path: Path) -> None:
    """Each is opened once, and closed at the end."""
    run = Followed(tmp_path / "run", MANY, 1e-5)
    run.goes_on(5.0)
    assert run.disk.calls["opened"] == open_in(run.directory) == 12
    run.run.write(run.directory, 1.0)
    run.tail.finish()

    assert run.disk.calls["opened"] == 12
    assert open_in(run.directory) == 0


def test_few_files_stay_open_where_few_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are opened when they have got more."""
    monkeypatch.setattr(tail, "most_handles", lambda: 5)
    run = Followed(tmp_path / "run", MANY, 1e-5)
    run.goes_on(5.0)

    assert open_in(run.directory) == 5
    assert len(run.collector.streams) == 12


def test_a_file_that_was_replaced_while_it_was_open_is_read_again(tmp_path: Path) -> None:
    """What was open is the file that nobody writes to any more."""
    run = Followed(tmp_path / "run", Script(world=2, interval=1.0), 1e-5)
    run.goes_on(5.0)
    path = run.directory / run.run.ranks[1].stream
    other = tmp_path / "other"
    other.write_bytes(path.read_bytes())
    other.replace(path)
    run.goes_on(5.0)

    assert {row.rank: row.peak for row in run.collector.rows()} == {
        number: rank.peak for number, rank in run.run.ranks.items()
    }


def test_files_of_another_machine_are_opened_for_every_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There an open one may show nothing of what was written for half a minute."""
    monkeypatch.setattr(tail, "is_on_network", lambda _directory: True)
    run = Followed(tmp_path / "run", Script(world=2, interval=1.0), 1e-5)
    run.goes_on(5.0)

    assert run.disk.calls["stat"] == run.disk.calls["fstat"] == 0
    assert run.disk.calls["opened"] > run.disk.calls["read"] >= 8


def test_what_goes_wrong_in_a_thread_is_raised_where_it_is_waited_for() -> None:
    """A fault of ours costs a pass, whichever thread it is in."""
    due = deque(File(str(at), "", 0.0) for at in range(9))
    with pytest.raises(ZeroDivisionError):
        list(fetched(due, lambda _file: 1 / 0, lambda: False, 3))  # type: ignore[arg-type, return-value]


def test_without_further_threads_one_reads_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system gives a process so many and no more."""

    def fails(_ticker: Ticker) -> None:
        message = "can't start new thread"
        raise RuntimeError(message)

    monkeypatch.setattr(Ticker, "start", fails)
    due = deque(File(str(at), "", 0.0) for at in range(9))

    assert len(list(fetched(due, Piece, lambda: False, 3))) == 9
