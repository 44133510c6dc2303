"""The files of a run's directory, as they grow, break and come back, and on a slow or missing server."""

import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hfmem_widget.ranks import tail
from hfmem_widget.ranks.collector import OVER_AFTER
from hfmem_widget.ranks.roster import LOST, SILENT_PACES, SILENT_SECONDS
from hfmem_widget.ranks.tail import AT_ONCE, LONGEST_PASS, MOST_FAULTS, SCAN_EVERY, TO_THE_END
from hfmem_widget.text import GIB
from tests.fakes.ranks import Script, SimulatedRun
from tests.fakes.slow_disk import Followed

RUN = "a" * 32


class Live(Followed):
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
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Live:
    """Return a run of two ranks, of this host."""
    monkeypatch.setattr("hfmem_widget.ranks.tail.this_host", lambda: "node0000")
    return Live(tmp_path / "run")


def test_a_file_that_comes_later_is_found(live: Live) -> None:
    """New files are looked for once a second."""
    live.goes_on(2)
    live.run.restart(3, step=2)
    live.goes_on(4)

    assert sorted(live.collector.streams) == [0, 1, 2]


def test_two_threads_read_nothing_twice(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that follows and a thread that asks for everything wait for each other."""
    live.run.write(live.directory, 3.0, finish=False)
    sizes: dict[str, int] = dict.fromkeys((path.name for path in live.directory.glob("r0*")), 0)
    others: list[threading.Thread] = []

    def feed(name: str, data: bytes, _at: float) -> None:
        sizes[name] += len(data)

    def read_interleaved(descriptor: int, size: int, offset: int) -> bytes:
        data = pread(descriptor, size, offset)
        if not others:
            others.append(threading.Thread(target=live.tail.read))
            others[0].start()
            others[0].join(0.05)  # it reads now or never
        return data

    pread = os.pread
    monkeypatch.setattr(live.collector, "feed", feed)
    monkeypatch.setattr(os, "pread", read_interleaved)
    live.tail.read()
    others[0].join()

    assert sizes == {name: (live.directory / name).stat().st_size for name in sizes}


def test_a_file_that_was_missing_for_a_while_is_read_later(live: Live) -> None:
    """A read that fails, as on a file server, is tried again, and nothing is lost."""
    live.goes_on(2)
    live.disk.failing = {live.run.ranks[1].stream}
    live.goes_on(2)
    live.disk.failing = set()
    live.goes_on(2)

    assert live.peaks == live.truth


def test_a_file_that_is_copied_anew_is_read_on(live: Live, tmp_path: Path) -> None:
    """Of a longer copy in its place, as rsync makes them, only what is new is read."""
    path = live.directory / live.run.ranks[1].stream
    for at in range(3):
        live.goes_on(2)
        copy = tmp_path / f"copy{at}"
        copy.write_bytes(path.read_bytes())
        copy.replace(path)
    live.goes_on(2)

    assert live.peaks == live.truth
    assert all(stream.holes == stream.dropped == 0 for stream in live.collector.streams.values())


def test_a_pass_is_short(live: Live, tmp_path: Path) -> None:
    """A pass ends after 50 ms; the next goes on with the other files."""
    slow = Live(tmp_path / "slow", Script(world=120, interval=1.0))
    slow.run.write(slow.directory, 1.0, finish=False)
    slow.clock.now = slow.run.began + 1
    before = slow.timer.now

    assert slow.tail.read()
    assert slow.timer.now - before <= LONGEST_PASS + 0.002
    assert 0 < len(slow.collector.all_streams) < 120
    while slow.tail.read():
        pass
    assert len(slow.collector.streams) == 120


def test_long_files_are_read_side_by_side(tmp_path: Path) -> None:
    """No file is read far ahead of the others, since all are put on one clock."""
    live = Live(tmp_path / "run", Script(world=3, interval=0.02, step_seconds=0.1))
    live.run.write(live.directory, 50.0)
    assert all(path.stat().st_size > 3 * AT_ONCE for path in live.directory.glob("r*.jsonl"))

    live.reads()

    assert live.peaks == live.truth
    overview = live.collector.session
    curves = overview.to_pandas()[[f"ranks/rank{rank}" for rank in range(3)]]
    assert curves.iloc[3:-3].notna().all(axis=None)


def test_the_end_of_the_run_ends_the_overview(live: Live) -> None:
    """When all ranks have ended, the overview does, at the time of the last."""
    live.goes_on(4)
    live.run.write(live.directory, 1.0)
    live.clock.now = live.run.began + live.run.now + 1
    live.tail.tick()

    assert not live.collector.session.running
    assert live.collector.session.stopped_at == pytest.approx(live.run.began + 5.0, abs=0.1)


def test_a_fault_of_ours_costs_a_pass(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next pass reads what a failed one has missed; after several failures a note says so."""
    with monkeypatch.context() as patch:
        patch.setattr(live.tail, "read", lambda: 1 / 0)
        live.tail.tick()
    live.goes_on(3.0)

    assert live.peaks == live.truth
    assert not any("ZeroDivisionError" in note for note in live.collector.session.notes)
    monkeypatch.setattr(live.tail, "read", lambda: 1 / 0)
    for _ in range(MOST_FAULTS):
        live.tail.tick()
    assert any("ZeroDivisionError" in note for note in live.collector.session.notes)


def test_a_launcher_that_was_taken_for_a_rank_makes_room_for_its_ranks(tmp_path: Path) -> None:
    """The first rank renames the file of its launcher, which was taken for the only rank."""
    live = Live(tmp_path, Script(world=1, interval=0.5))
    live.run.ranks[0].stream = "r00000-a0-node0000-9.jsonl"
    live.goes_on(3)
    (path,) = tmp_path.glob("r*.jsonl")
    path.rename(tmp_path / f"launcher-{path.name}")
    larger = Script(world=2, interval=0.5, activations=60 * GIB)
    live.run = SimulatedRun(larger, run=RUN, began=live.clock.now)
    live.goes_on(3)

    assert live.collector.roster.world == 2
    assert live.peaks == live.truth


def test_a_rank_whose_process_is_gone_is_named_at_once(live: Live) -> None:
    """A rank whose process ran on this host and ended is not awaited until it counts as silent."""
    live.goes_on(6)
    live.run.script.killed[1] = 6.0  # type: ignore[index]  # a script that goes on is changed
    live.processes = {0}
    live.goes_on(1)

    (finding,) = live.collector.session.findings
    assert (finding.kind, finding.evidence["ranks"]) == ("rank-gone", [1])
    assert finding.severity == "critical"
    assert "Rank 1 was killed after step 10" in finding.title
    assert live.collector.rows()[1].flag == "lost"


def test_a_process_that_has_written_its_end_is_not_gone(live: Live) -> None:
    """A process' last lines come before its end, and are read after its end was seen."""
    live.goes_on(6)
    live.processes = set()
    live.run.write(live.directory, 1.0)
    live.reads()

    assert live.collector.session.findings == []
    assert not any(stream.is_gone for stream in live.collector.streams.values())


@pytest.mark.parametrize("host", ["node0000", "another"])
def test_foreign_processes_are_kept(live: Live, host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process may run in a container; of another host, its number is that of another process here."""
    monkeypatch.setattr("hfmem_widget.ranks.tail.this_host", lambda: host)
    if host == "another":
        live.goes_on(3)
    live.processes = set()
    live.goes_on(6)

    assert live.collector.session.findings == []


def test_a_rank_started_here_that_never_ran_is_gone(live: Live) -> None:
    """A rank may be killed before the first look; whoever started it knows that all is over."""
    live.processes = set()
    live.run.script.killed[1] = 3.0  # type: ignore[index]  # a script that goes on is changed
    live.goes_on(4)
    live.collector.started_here = True
    live.run.write(live.directory, 1.0)
    live.tail.finish()

    (finding,) = live.collector.session.findings
    assert (finding.kind, finding.evidence["ranks"]) == ("rank-gone", [1])


def test_a_run_without_processes_is_over_soon(live: Live) -> None:
    """A run may be started again, but half a minute is not awaited; the cell that started it is."""
    live.goes_on(4)
    live.processes = set()
    live.reads()
    now = live.clock.now

    assert not live.collector.is_over(now + OVER_AFTER - 1)
    assert live.collector.is_over(now + OVER_AFTER + 1)
    live.collector.started_here = True
    assert not live.collector.is_over(now + 3600.0)


SLOW = 0.5
"""Seconds that each call takes: a round over 12 files takes longer than a rank may be silent, or behind."""

MANY = Script(world=12, interval=1.0)


def test_ranks_that_were_not_read_yet_have_no_findings(tmp_path: Path) -> None:
    """A rank is neither behind nor silent because a round over all files takes long."""
    run = Followed(tmp_path / "run", MANY, SLOW)
    findings = []
    for _ in range(6):
        run.goes_on(5.0)
        findings += run.said

    assert findings == []
    ranks = run.collector.session.ranks
    assert ranks is not None
    assert ranks.reporting == 12


@pytest.mark.parametrize(
    ("fault", "title"),
    [
        ({"stuck": {10: 20}}, "Rank 10 (node0001) has finished no step after step 20"),
        ({"killed": {10: 10.0}}, "Rank 10 (node0001) has been silent"),
    ],
    ids=["behind", "silent"],
)
def test_a_slowly_read_fault_is_found(tmp_path: Path, fault: dict[str, Any], title: str) -> None:
    """The fault is found later, by as long as a round over all files takes, and no other is."""
    run = Followed(tmp_path / "run", replace(MANY, **fault), SLOW)
    run.goes_on(90.0)

    (finding,) = run.said
    assert finding.startswith(title)


def test_a_file_that_cannot_be_read_is_no_silent_rank_for_half_a_minute(tmp_path: Path) -> None:
    """The server of a file may be back by then; after that the rank's connection is lost."""
    run = Followed(tmp_path / "run", Script(world=4, interval=1.0), 1e-5)
    run.goes_on(10.0)
    run.disk.failing = {run.run.ranks[2].stream}
    run.goes_on(LOST - 5)
    assert run.said == []
    assert LOST - 5 > SILENT_PACES + SILENT_SECONDS

    run.goes_on(10.0)
    (finding,) = run.said
    assert finding.startswith("Rank 2 has been silent")


def test_the_last_lines_are_read_from_a_slow_disk(tmp_path: Path) -> None:
    """The end of a file is the end of its rank; each rank's last lines are read once."""
    run = Followed(tmp_path / "run", MANY, 0.3)
    run.goes_on(20.0)
    run.run.write(run.directory, 1.0)
    run.tail.finish()

    assert all(stream.is_over for stream in run.collector.streams.values())
    assert run.collector.session.notes == []
    assert run.said == []


def test_last_lines_that_were_not_read_are_a_sentence(tmp_path: Path) -> None:
    """The note has the number of ranks, and no finding is made of what was not read."""
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


def test_a_server_that_is_away_at_the_end_is_a_sentence(tmp_path: Path) -> None:
    """Lines that could not be read are counted like those that were not read in time."""
    run = Followed(tmp_path / "run", Script(world=4, interval=1.0), 1e-5)
    run.goes_on(5.0)
    run.run.write(run.directory, 1.0)
    run.disk.failing = {run.run.ranks[2].stream}
    run.tail.finish()

    (note,) = run.collector.session.notes
    assert note.startswith("The last lines of 1 rank could not be read")


def test_no_file_stays_open_between_two_looks(tmp_path: Path) -> None:
    """The descriptors of a process are the user's."""
    run = Followed(tmp_path / "run", MANY, 1e-5)
    run.goes_on(5.0)
    handles = [os.path.realpath(handle) for handle in Path("/proc/self/fd").iterdir()]

    assert len(run.collector.streams) == 12
    assert [handle for handle in handles if handle.startswith(f"{run.directory}/")] == []


def test_remote_files_are_opened_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The size of a file of another machine may be half a minute old."""
    monkeypatch.setattr(tail, "is_on_network", lambda _directory: True)
    run = Followed(tmp_path / "run", Script(world=2, interval=1.0), 1e-5)
    run.goes_on(5.0)

    assert run.disk.calls["stat"] == 0
    assert run.disk.calls["opened"] > run.disk.calls["read"] >= 8


def test_a_hung_server_delays_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last lines are read on a thread of ours, which is awaited for a limited time."""
    run = Followed(tmp_path / "run", Script(world=2, interval=1.0), 1e-5)
    run.goes_on(5.0)
    run.run.write(run.directory, 1.0)
    release = threading.Event()
    monkeypatch.setattr(run.disk, "opened", lambda _path: release.wait())
    monkeypatch.setattr(tail, "TO_THE_END", 0.01)
    monkeypatch.setattr(tail, "PATIENCE", 0.01)
    run.tail.finish()
    release.set()

    assert not run.collector.session.running
    assert "could not be read" in run.collector.session.notes[-1]
