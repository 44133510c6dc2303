"""A disk that is slow or away, and what is said meanwhile."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from hfmem_widget.ranks import tail
from hfmem_widget.ranks.roster import LOST, SILENT_PACES, SILENT_SECONDS
from hfmem_widget.ranks.tail import TO_THE_END
from tests.fakes.ranks import Script
from tests.fakes.slow_disk import Followed

SLOW = 0.5
"""Seconds that each call takes: a round over 12 files takes longer than a rank may be silent, or behind."""

MANY = Script(world=12, interval=1.0)


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


def test_a_file_that_cannot_be_read_is_no_silent_rank_for_half_a_minute(tmp_path: Path) -> None:
    """Its server may be back by then; after that it is one whose connection is lost."""
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


def test_a_server_that_is_away_at_the_end_is_a_sentence(tmp_path: Path) -> None:
    """What could not be read is as little known as what was not read in time."""
    run = Followed(tmp_path / "run", Script(world=4, interval=1.0), 1e-5)
    run.goes_on(5.0)
    run.run.write(run.directory, 1.0)
    run.disk.failing = {run.run.ranks[2].stream}
    run.tail.finish()

    (note,) = run.collector.session.notes
    assert note.startswith("The last lines of 1 rank could not be read")


def test_no_file_stays_open_between_two_looks(tmp_path: Path) -> None:
    """What a process may have open is the user's."""
    run = Followed(tmp_path / "run", MANY, 1e-5)
    run.goes_on(5.0)
    handles = [os.path.realpath(handle) for handle in Path("/proc/self/fd").iterdir()]

    assert len(run.collector.streams) == 12
    assert [handle for handle in handles if handle.startswith(f"{run.directory}/")] == []


def test_files_of_another_machine_are_opened_for_every_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There its size may show nothing of what was written for half a minute."""
    monkeypatch.setattr(tail, "is_on_network", lambda _directory: True)
    run = Followed(tmp_path / "run", Script(world=2, interval=1.0), 1e-5)
    run.goes_on(5.0)

    assert run.disk.calls["stat"] == 0
    assert run.disk.calls["opened"] > run.disk.calls["read"] >= 8


def test_a_server_that_never_answers_keeps_nobody_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left is read on a thread of ours, which is waited for so long and no longer."""
    run = Followed(tmp_path / "run", Script(world=2, interval=1.0), 1e-5)
    run.goes_on(5.0)
    run.run.write(run.directory, 1.0)
    answer = threading.Event()
    monkeypatch.setattr(run.disk, "opened", lambda _path: answer.wait())
    monkeypatch.setattr(tail, "TO_THE_END", 0.01)
    monkeypatch.setattr(tail, "PATIENCE", 0.01)
    run.tail.finish()
    answer.set()

    assert not run.collector.session.running
    assert "could not be read" in run.collector.session.notes[-1]
