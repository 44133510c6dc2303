"""A fault of ours in what is made of the ranks: it costs a line or a look, and no run."""

from typing import Any

import pytest

from hfmem_widget.ranks import collector as collector_module
from hfmem_widget.ranks import stream as stream_module
from hfmem_widget.ranks.collector import Collector
from hfmem_widget.ranks.overview import Leader, Overview
from hfmem_widget.ranks.roster import Roster
from hfmem_widget.ranks.stream import RankStream
from hfmem_widget.session.steps import PHASES
from tests.fakes.ranks import Script, SimulatedRun
from tests.unit.ranks.played import finish, play

SCRIPT = Script(world=3, interval=0.5)

LOOKS = [
    (collector_module, "judge"),
    (collector_module, "flags_of"),
    (collector_module, "table_of"),
    (collector_module, "phases_of"),
    (Overview, "show"),
    (Overview, "pass_on"),
    (Leader, "pass_steps"),
    (Overview, "update"),
    (Leader, "follow"),
    (Overview, "take"),
    (Roster, "compare_clocks"),
    (Roster, "hear"),
    (Roster, "settle"),
    (Roster, "begin"),
    (Roster, "waits"),
    (RankStream, "activations"),
    (stream_module, "parse"),
]
"""Every place that a look, or the taking in of a line, goes through."""


def fails(*_: object, **__: object) -> Any:
    """Stand in for what has a fault."""
    message = "an index that is out of bounds"
    raise IndexError(message)


def broken(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> None:
    is_property = isinstance(vars(owner)[name], property)
    monkeypatch.setattr(owner, name, property(fails) if is_property else fails)


@pytest.mark.parametrize(("owner", "name"), LOOKS)
def test_a_later_look_is_healthy(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> None:
    """A fault for two seconds leaves what was read readable, and the run is followed to its end after it."""
    run = SimulatedRun(SCRIPT)
    collector = play(run, 8.0)
    before = {row.rank: row.peak for row in collector.rows()}
    with monkeypatch.context() as patch:
        broken(patch, owner, name)
        play(run, 2.0, collector)
        session = collector.session
        assert session.running
        assert session.steps.count > 0
        assert session.ranks is not None
        assert len(session.ranks.table) == len(collector.streams) == 3
        assert [row.rank for row in collector.rows()] == [0, 1, 2]
        collector.phases()
        assert len([note for note in session.notes if "IndexError" in note]) <= 1
    play(run, 8.0, collector)
    finish(run, collector)
    collector.finish(run.began + run.now + 1)

    peaks = {row.rank: row.peak for row in collector.rows()}
    assert all(peaks[rank] >= peak for rank, peak in before.items())
    last = list(session.steps)[-1].last
    assert last == max(rank.step for rank in run.ranks.values())
    assert {row.kind for row in collector.phases()} >= set(PHASES)
    assert [row.step for row in session.ranks.table] == [last] * 3
    assert session.findings == []
    assert session.peak("ranks/allocated") == max(peaks.values())
    assert session.spans[0].outcome == "done"


@pytest.mark.parametrize(("owner", "name"), LOOKS)
def test_faults_end_no_run(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> None:
    """A run with a fault from its beginning is ended as any other, with at most one sentence about it."""
    broken(monkeypatch, owner, name)
    run = SimulatedRun(SCRIPT)
    collector = play(run, 6.0, Collector())
    finish(run, collector)
    collector.finish(run.began + run.now + 1)

    assert not collector.session.running
    assert len([note for note in collector.session.notes if "IndexError" in note]) <= 1
    assert collector.rows() is not None
    assert collector.phases() is not None
