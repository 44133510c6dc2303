"""Judgements over ranks: the faults that there are, and thresholds from both sides."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hfmem_widget.ranks.collector import Collector
from hfmem_widget.ranks.findings import BEHIND, judge, phases_of
from hfmem_widget.ranks.roster import LOST
from hfmem_widget.ranks.stream import Edge
from hfmem_widget.text import GIB
from tests.fakes.ranks import Script, SimulatedRun
from tests.unit.ranks.played import finish, found, kinds, play, played

FAULTS: dict[str, tuple[Script, list[str], dict[str, object]]] = {
    "a rank is killed": (Script(world=4, killed={2: 6.0}), ["rank-silent"], {"ranks": [2]}),
    "two ranks are killed": (
        Script(world=8, per_node=4, killed={2: 6.0, 5: 6.0}),
        ["rank-silent"],
        {"ranks": [2, 5]},
    ),
    "a node is lost": (
        Script(world=8, per_node=4, killed=dict.fromkeys(range(4, 8), 6.0)),
        ["node-silent"],
        {"hosts": ["node0001"], "count": 4},
    ),
    "two nodes are lost": (
        Script(world=12, per_node=4, killed=dict.fromkeys(range(4, 12), 6.0)),
        ["node-silent"],
        {"hosts": ["node0001", "node0002"], "count": 8},
    ),
    "a node is lost, and a rank elsewhere": (
        Script(world=8, per_node=4, killed=dict.fromkeys((1, 4, 5, 6, 7), 6.0)),
        ["node-silent", "rank-silent"],
        {"count": 4},
    ),
    "all are gone": (
        Script(world=4, killed=dict.fromkeys(range(4), 6.0)),
        ["run-silent"],
        {"count": 4},
    ),
    "a rank hangs": (Script(world=4, stuck={1: 9}), ["rank-behind"], {"rank": 1, "step": 9}),
    "all wait for one rank": (
        Script(world=4, sleeps={1: 9}),
        ["rank-behind"],
        {"rank": 1, "step": 8, "phase": "", "others": "backward", "ranks": [1]},
    ),
    "a rank needs 5 % more": (
        Script(world=8, heavier={5: 1.05}),
        ["rank-outlier"],
        {"rank": 5, "ranks": [5]},
    ),
    "a rank needs 5 % less": (
        Script(world=8, heavier={5: 0.95}),
        ["rank-outlier"],
        {"rank": 5, "ranks": [5]},
    ),
    "one of two needs a third more": (
        Script(world=2, heavier={0: 1.33}),
        ["rank-imbalance"],
        {"rank": 0, "phase": "backward"},
    ),
    "a rank runs out of memory": (
        Script(world=4, out_of_memory={3: 12}),
        ["rank-oom"],
        {"rank": 3, "phase": "backward", "step": 12, "asked": int(4 * GIB)},
    ),
    "the clock of a node is ahead": (
        Script(world=12, per_node=4, clocks={"node0001": 3.2}),
        ["clock"],
        {"offsets": {"node0001": pytest.approx(3.2, abs=0.1)}},
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_one_sentence(name: str) -> None:
    """Each fault gives its finding, with who and how much in its evidence, and no other."""
    script, expected, evidence = FAULTS[name]
    run = SimulatedRun(script)
    collector = play(run, 26.0)

    assert kinds(collector) == expected
    finding = collector.session.findings[0]
    assert {key: finding.evidence[key] for key in evidence} == evidence
    assert any(char.isdigit() for char in finding.title)
    assert finding.title.endswith(".")


def test_a_restart_is_said() -> None:
    """All ranks of a new attempt are one sentence, with the step after which it was."""
    run, collector = played(8.0, world=4, killed={2: 6.0}, interval=0.5)
    run.restart(step=12)
    play(run, 10.0, collector)

    (finding,) = collector.session.findings
    assert finding.kind == "rank-restarted"
    assert (finding.evidence["ranks"], finding.evidence["attempt"]) == (4, 1)
    assert finding.evidence["step"] == 14


def test_a_rank_is_silent_after_its_patience_and_no_earlier() -> None:
    """A rank that last wrote five seconds ago is not silent yet; one second later it is."""
    run, collector = played(11.0, world=2, interval=0.5, killed={1: 6.0})
    assert kinds(collector) == []

    play(run, 1.0, collector)
    assert kinds(collector) == ["rank-silent"]
    assert [one.severity for one in collector.session.findings] == ["warn"]

    play(run, LOST, collector)
    assert [one.severity for one in collector.session.findings] == ["critical"]


def test_a_rank_that_comes_back_is_forgiven() -> None:
    """A rank that writes again is not called silent any more."""
    run, collector = played(4.0, world=2, interval=0.5)
    held_back: list[tuple[str, bytes]] = []
    name = run.ranks[1].stream

    def without(pieces: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
        held_back.extend(piece for piece in pieces if piece[0] == name)
        return [piece for piece in pieces if piece[0] != name]

    play(run, 8.0, collector, without)
    assert kinds(collector) == ["rank-silent"]

    for stream, data in held_back:
        collector.feed(stream, data)
    play(run, 2.0, collector)
    assert kinds(collector) == []


LITTLE = Script(world=6, weights=0.1 * GIB, activations=0.6 * GIB, heavier={3: 1.05})
THRESHOLDS: dict[str, tuple[Script, str, bool]] = {
    "an outlier by 1.9 %": (
        Script(world=6, noise=0.0005, heavier={3: 1.019}),
        "rank-outlier",
        False,
    ),
    "an outlier by 3 %": (Script(world=6, noise=0.0005, heavier={3: 1.03}), "rank-outlier", True),
    "of three ranks": (Script(world=3, heavier={2: 1.08}), "rank-outlier", False),
    "of four ranks": (Script(world=4, heavier={2: 1.08}), "rank-outlier", True),
    "of little memory": (LITTLE, "rank-outlier", False),
    "12 % more than its peer": (
        Script(world=2, noise=0.001, heavier={1: 1.12}),
        "rank-imbalance",
        False,
    ),
    "18 % more than its peer": (
        Script(world=2, noise=0.001, heavier={1: 1.18}),
        "rank-imbalance",
        True,
    ),
    "a clock by 0.3 s": (Script(world=6, per_node=2, clocks={"node0001": 0.3}), "clock", False),
    "a clock by 0.7 s": (Script(world=6, per_node=2, clocks={"node0001": 0.7}), "clock", True),
}


@pytest.mark.parametrize("name", THRESHOLDS)
def test_what_is_off_is_said_from_a_threshold_on(name: str) -> None:
    """Of ranks, as the documentation lists them; a clock that is off by less is corrected in silence."""
    script, kind, is_said = THRESHOLDS[name]
    collector = play(SimulatedRun(replace(script, interval=0.5)), 14.0)

    assert kinds(collector) == [kind] * is_said
    expected = {host: pytest.approx(by, abs=0.1) for host, by in script.clocks.items()}
    assert collector.roster.offsets == expected


def test_a_file_that_is_read_in_part_says_nothing_of_a_clock() -> None:
    """Its newest line so far is old because there are newer ones to read."""
    run, collector = SimulatedRun(Script(world=2, per_node=1, step_seconds=900.0)), Collector()
    pieces = [piece for _ in range(60) for piece in run.advance(1.0)]
    now, late = run.began + run.now, run.ranks[1].stream
    for stream in {name: None for name, _ in pieces}:
        own = [data for name, data in pieces if name == stream]
        collector.feed(stream, b"".join(own[:10] if stream == late else own), at=now)
    collector.tick(now, behind={late})

    assert len(collector.roster.expected) == 2
    assert collector.roster.offsets == {}


def test_ranks_of_other_weights_are_no_peers() -> None:
    """Stages of a pipeline differ by design; within one an outlier is found all the same."""
    script = Script(world=16, stages=4, noise=0.003, interval=0.5, heavier={6: 1.05})
    collector = play(SimulatedRun(script), 16.0)

    assert kinds(collector) == ["rank-outlier"]
    assert collector.session.findings[0].evidence["ranks"] == [6]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (Script(world=8, stuck={0: 9, 3: 9, 4: 9}), "; so are 2 other ranks."),
        (Script(world=12, heavier={0: 1.05, 3: 1.05}), " So does 1 other rank."),
    ],
)
def test_others_of_the_same_are_counted(script: Script, said: str) -> None:
    """One is one."""
    collector = play(SimulatedRun(script), 30.0)

    assert [one.title.endswith(said) for one in collector.session.findings] == [True]


def test_a_rank_is_behind_only_after_a_while() -> None:
    """A rank that has just missed a step is no finding; after some seconds it is."""
    run = SimulatedRun(Script(world=3, stuck={0: 9}, interval=0.5))
    stuck_at = 1.0 + 9 * 0.5
    collector = play(run, stuck_at + BEHIND - 2)
    assert kinds(collector) == []

    play(run, 4.0, collector)
    assert kinds(collector) == ["rank-behind"]


def test_ranks_that_wait_in_long_steps_are_none() -> None:
    """Steps of ten seconds are as they are: nobody is said to be waited for."""
    run, collector = played(45.0, world=4, step_seconds=10.0, sleeps={1: 2}, interval=0.5)
    assert kinds(collector) == []

    play(run, 10.0, collector)
    assert kinds(collector) == ["rank-behind"]


def test_a_rank_that_was_read_a_second_earlier_is_not_behind() -> None:
    """Of steps of 20 s one has just ended, by the lines of one rank; those of the other came before."""
    run, collector = SimulatedRun(Script(world=2, step_seconds=20.0)), Collector()
    said = list[str]()
    for _ in range(65):
        pieces = list(run.advance(1.0))
        for rank in (1, 0):
            for stream, data in pieces:
                if stream == run.ranks[rank].stream:
                    collector.feed(stream, data)
            collector.tick(run.began + run.now + (1 - rank) / 2)
            said += kinds(collector)

    assert collector.session.steps.count >= 2
    assert said == []


def test_how_far_a_step_without_phases_has_come_is_not_known() -> None:
    """A rank is not said to be late in a step whose phases it does not measure."""
    run, collector = played(55.0, world=4, step_seconds=10.0, sleeps={1: 2}, interval=0.5)
    look = collector._look_at(run.began + run.now, is_live=True)
    look.streams[1].within = Edge(9, "step", "step 2", 0.0, None, "", {})
    whole, lacking = (
        replace(look, waits=np.zeros(4), peaks=replace(look.peaks, lack_phases=each))
        for each in (np.zeros(4, dtype=bool), np.arange(4) == 1)
    )

    assert [one.kind for one in judge(whole).findings] == ["rank-behind"]
    assert [one.kind for one in judge(lacking).findings] == []


def test_phases_that_the_newest_steps_lack_are_those_of_earlier_ones() -> None:
    """They are measured on few of many short steps, and their rows stay where they are."""
    run, collector = played(20.0, world=4, interval=0.5)
    look = collector._look_at(run.began + run.now, is_live=True)
    unknown = np.full_like(look.peaks.newest_phases, np.nan)
    lacking = replace(look, peaks=replace(look.peaks, newest_phases=unknown))

    assert [one.kind for one in phases_of(lacking)] == [one.kind for one in phases_of(look)]


def test_the_first_of_several_that_run_out_is_named() -> None:
    """By the corrected clocks, with how many followed."""
    script = Script(
        world=6, per_node=2, out_of_memory={1: 14, 4: 12, 5: 13}, clocks={"node0002": 4.0}
    )
    run = SimulatedRun(script)
    collector = play(run, 12.0)
    finish(run, collector)

    (finding,) = found(collector, "rank-oom")
    assert finding.evidence["ranks"] == [4, 5, 1]
    assert finding.severity == "critical"
    assert finding.advice


@pytest.mark.parametrize(
    ("parent", "label", "said"),
    [("null", "rank 0", "memory after"), ("1", "decode", "memory in decode")],
)
def test_where_a_rank_ran_out_is_told_by_a_name(parent: str, label: str, said: str) -> None:
    """The watch around all that a rank does is no such place."""
    run, collector = played(3.0, world=2, interval=0.5)
    stream = run.ranks[0].stream
    collector.feed(
        stream,
        b'{"k":"finding","i":0,"kind":"oom","severity":"critical","title":"t","evidence":{},"advice":[],"span":1}\n',
    )
    span = (
        '{"k":"span","id":9,"parent":%s,"kind":"block","label":"%s","start":0.0,"stop":2.0,'
        '"outcome":"raised E","counts":{},"s":[],"before":[],"after":[],"peak":[],"certainty":[]}\n'
    )
    collector.feed(stream, (span % (parent, label)).encode())
    play(run, 2.0, collector)

    (finding,) = found(collector, "rank-oom")
    assert said in finding.title


def test_an_error_that_the_code_caught_is_none_of_ours() -> None:
    """Out-of-memory errors that a rank's own code caught are told in that rank's session alone."""
    run, collector = played(3.0, world=2, interval=0.5)
    collector.feed(
        run.ranks[0].stream,
        b'{"k":"finding","i":0,"kind":"oom","severity":"info","title":"caught","evidence":{},"advice":[],"span":1}\n',
    )
    play(run, 2.0, collector)

    assert kinds(collector) == []


def test_a_finding_that_is_the_same_stays_the_same_object() -> None:
    """What does not change is neither written nor sent again."""
    run, collector = played(16.0, world=8, heavier={5: 1.3}, noise=0.0, interval=0.5)
    before = collector.session.findings[0]
    play(run, 3.0, collector)

    assert collector.session.findings[0] is before


@pytest.mark.parametrize(
    ("outcome", "expected", "said"),
    [
        ("", "critical", "Rank 2 was killed after step"),
        ("raised RuntimeError", "warn", "rank 0 raised RuntimeError"),
        ("interrupted", "", ""),
    ],
)
def test_what_is_gone_is_told_with_what_failed(outcome: str, expected: str, said: str) -> None:
    """A launcher ends the others where one fails, and nobody is told of what was interrupted."""
    run, collector = played(7.0, world=4, killed={2: 6.0})
    collector.is_gone(run.ranks[2].stream)
    if outcome:
        collector.feed(run.ranks[0].stream, run.ranks[0].end(run.now, outcome))
    collector.tick(run.began + run.now + 1.0)

    gone = found(collector, "rank-gone")
    assert [one.severity for one in gone] == [expected] * bool(expected)
    assert all(said in one.title for one in gone)
    assert kinds(collector) == ["rank-gone"] * bool(expected)


def test_a_run_of_long_ago_does_not_say_how_long_that_is() -> None:
    """How long a rank was silent is counted to half a minute after the last word of all."""
    run, collector = played(12.0, world=4, killed={2: 6.0})
    finish(run, collector)
    collector.tick(run.began + 3e7, looks=True)

    (silent,) = found(collector, "rank-silent")
    assert silent.evidence["seconds"] == 35
    assert silent.severity == "critical"


def test_of_ranks_that_an_interrupt_has_ended_nothing_is_said() -> None:
    """Whoever has started them ends them, and some have no time to write an end."""
    run, collector = played(6.0, world=2, interval=0.5)
    for rank in run.ranks.values():
        collector.is_gone(rank.stream)
    collector.was_interrupted = True
    collector.finish(run.began + run.now)

    assert kinds(collector) == []
