"""Judgements over ranks: the faults that there are, and thresholds from both sides."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from hfmem_widget.ranks.collector import Collector
from hfmem_widget.ranks.findings import BEHIND, judge, phases_of
from hfmem_widget.ranks.roster import LOST
from hfmem_widget.text import GIB
from tests.fakes.ranks import Script, SimulatedRun
from tests.unit.ranks.played import finish, found, kinds, play, played

Case = tuple[list[str], dict[str, object], Script]


def finds(kind: str, evidence: dict[str, object] | None = None, **script: Any) -> Case:
    """Return a script, and the kinds and the evidence of what is found in it."""
    return [kind], evidence or {}, Script(**script)


def finds_nothing(**script: Any) -> Case:
    return [], {}, Script(**script)


BY_SHARE: dict[str, Any] = {"world": 6, "noise": 0.0005}
OF_TWO: dict[str, Any] = {"world": 2, "noise": 0.001}
CASES: dict[str, Case] = {
    "a rank is killed": finds("rank-silent", {"ranks": [2]}, world=4, killed={2: 6.0}),
    "two ranks are killed": finds(
        "rank-silent", {"ranks": [2, 5]}, world=8, per_node=4, killed={2: 6.0, 5: 6.0}
    ),
    "a node is lost": finds(
        *("node-silent", {"hosts": ["node0001"], "count": 4}),
        world=8,
        per_node=4,
        killed=dict.fromkeys(range(4, 8), 6.0),
    ),
    "two nodes are lost": finds(
        *("node-silent", {"hosts": ["node0001", "node0002"], "count": 8}),
        world=12,
        per_node=4,
        killed=dict.fromkeys(range(4, 12), 6.0),
    ),
    "a node is lost, and a rank elsewhere": (
        ["node-silent", "rank-silent"],
        {"count": 4},
        Script(world=8, per_node=4, killed=dict.fromkeys((1, 4, 5, 6, 7), 6.0)),
    ),
    "all are gone": finds("run-silent", {"count": 4}, world=4, killed=dict.fromkeys(range(4), 6.0)),
    "a rank hangs": finds("rank-behind", {"rank": 1, "step": 9}, world=4, stuck={1: 9}),
    "all wait for one rank": finds(
        "rank-behind",
        {"rank": 1, "step": 8, "phase": "", "others": "backward", "ranks": [1]},
        world=4,
        sleeps={1: 9},
    ),
    "a rank needs 5 % more": finds("rank-outlier", {"ranks": [5]}, world=8, heavier={5: 1.05}),
    "a rank needs 5 % less": finds("rank-outlier", {"ranks": [5]}, world=8, heavier={5: 0.95}),
    "one of two needs a third more": finds(
        "rank-imbalance", {"rank": 0, "phase": "backward"}, world=2, heavier={0: 1.33}
    ),
    "a rank runs out of memory": finds(
        "rank-oom",
        {"rank": 3, "phase": "backward", "step": 12, "asked": int(4 * GIB)},
        world=4,
        out_of_memory={3: 12},
    ),
    "a rank of a stage needs 5 % more": finds(
        "rank-outlier", {"ranks": [6]}, world=16, stages=4, noise=0.003, heavier={6: 1.05}
    ),
    "an outlier by 1.9 %": finds_nothing(**BY_SHARE, heavier={3: 1.019}),
    "an outlier by 3 %": finds("rank-outlier", **BY_SHARE, heavier={3: 1.03}),
    "an outlier of three ranks": finds_nothing(world=3, heavier={2: 1.08}),
    "an outlier of four ranks": finds("rank-outlier", world=4, heavier={2: 1.08}),
    "an outlier of little memory": finds_nothing(
        world=6, weights=0.1 * GIB, activations=0.6 * GIB, heavier={3: 1.05}
    ),
    "12 % more than its peer": finds_nothing(**OF_TWO, heavier={1: 1.12}),
    "18 % more than its peer": finds("rank-imbalance", **OF_TWO, heavier={1: 1.18}),
    "a clock by 0.3 s": finds_nothing(world=6, per_node=2, clocks={"node0001": 0.3}),
    "a clock by 0.7 s": finds("clock", world=6, per_node=2, clocks={"node0001": 0.7}),
    "a clock by 3.2 s": finds(
        "clock",
        {"offsets": {"node0001": pytest.approx(3.2, abs=0.1)}},
        world=12,
        per_node=4,
        clocks={"node0001": 3.2},
    ),
    "one rank": finds_nothing(world=1),
    "a healthy pipeline": finds_nothing(world=16, per_node=4, stages=4, noise=0.02),
    "no GPU": finds_nothing(world=3, gpus=0, weights=0.2 * GIB, activations=0.5 * GIB),
}


@pytest.mark.parametrize(("expected", "evidence", "script"), CASES.values(), ids=CASES)
def test_faults_are_found(expected: list[str], evidence: dict[str, object], script: Script) -> None:
    """A finding is a sentence with a figure, from its threshold on; clocks are corrected below it too."""
    collector = play(SimulatedRun(replace(script, interval=0.5)), 26.0)

    findings = collector.session.findings
    assert kinds(collector) == expected
    found_evidence = [{key: one.evidence[key] for key in evidence} for one in findings[:1]]
    assert found_evidence == [evidence] * len(expected[:1])
    assert all(re.search(r"\d.*\.$", one.title) for one in findings)
    assert collector.session.notes == []
    offsets = {host: pytest.approx(by, abs=0.1) for host, by in script.clocks.items()}
    assert collector.roster.offsets == offsets


def test_a_restart_of_all_ranks_is_one_finding() -> None:
    """A new attempt of all ranks is one sentence, with the step after which it began."""
    run, collector = played(8.0, world=4, killed={2: 6.0}, interval=0.5)
    run.restart(step=12)
    play(run, 10.0, collector)

    (finding,) = collector.session.findings
    assert finding.kind == "rank-restarted"
    assert (finding.evidence["ranks"], finding.evidence["attempt"]) == (4, 1)
    assert finding.evidence["step"] == 14


def test_a_rank_is_silent_after_six_seconds() -> None:
    """A rank that last wrote five seconds ago is not silent yet; one second later it is."""
    run, collector = played(11.0, world=2, interval=0.5, killed={1: 6.0})
    assert kinds(collector) == []

    play(run, 1.0, collector)
    assert kinds(collector) == ["rank-silent"]
    assert [one.severity for one in collector.session.findings] == ["warn"]

    play(run, LOST, collector)
    assert [one.severity for one in collector.session.findings] == ["critical"]


def test_a_rank_that_writes_again_is_no_longer_silent() -> None:
    """The finding on a silent rank goes once its lines come."""
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


def test_a_file_that_is_read_in_part_has_no_clock_offset() -> None:
    """The newest line of a file that is read in part is old because newer ones are still to be read."""
    run, collector = SimulatedRun(Script(world=2, per_node=1, step_seconds=900.0)), Collector()
    pieces = [piece for _ in range(60) for piece in run.advance(1.0)]
    now, late = run.began + run.now, run.ranks[1].stream
    for stream in {name: None for name, _ in pieces}:
        own = [data for name, data in pieces if name == stream]
        collector.feed(stream, b"".join(own[:10] if stream == late else own), at=now)
    collector.tick(now, behind={late})

    assert len(collector.roster.expected) == 2
    assert collector.roster.offsets == {}


@pytest.mark.parametrize(
    ("script", "ending"),
    [
        (Script(world=8, stuck={0: 9, 3: 9, 4: 9}), "; so are 2 other ranks."),
        (Script(world=12, heavier={0: 1.05, 3: 1.05}), " So does 1 other rank."),
    ],
)
def test_a_finding_counts_the_other_ranks_that_have_it(script: Script, ending: str) -> None:
    """The sentence on one rank ends with the number of others, in the singular or the plural."""
    collector = play(SimulatedRun(script), 30.0)

    assert [finding.title.endswith(ending) for finding in collector.session.findings] == [True]


@pytest.mark.parametrize(
    ("script", "seconds", "more"),
    [
        (Script(world=3, stuck={0: 9}), 1.0 + 9 * 0.5 + BEHIND - 2, 4.0),
        (Script(world=4, step_seconds=10.0, sleeps={1: 2}), 45.0, 10.0),
    ],
    ids=["after a missed step", "in steps of ten seconds"],
)
def test_a_rank_is_behind_only_after_a_while(script: Script, seconds: float, more: float) -> None:
    """Ranks that miss a step, or wait in a long one, are no finding until some seconds have passed."""
    run = SimulatedRun(replace(script, interval=0.5))
    collector = play(run, seconds)
    assert kinds(collector) == []

    play(run, more, collector)
    assert kinds(collector) == ["rank-behind"]


def test_a_rank_that_was_read_a_second_earlier_is_not_behind() -> None:
    """A rank is not behind where only the lines of the other have reached the end of a step of 20 s."""
    run, collector = SimulatedRun(Script(world=2, step_seconds=20.0)), Collector()
    found_kinds = list[str]()
    for _ in range(65):
        pieces = list(run.advance(1.0))
        for rank in (1, 0):
            for stream, data in pieces:
                if stream == run.ranks[rank].stream:
                    collector.feed(stream, data)
            collector.tick(run.began + run.now + (1 - rank) / 2)
            found_kinds += kinds(collector)

    assert collector.session.steps.count >= 2
    assert found_kinds == []


def test_a_rank_without_phases_is_not_behind_within_a_step() -> None:
    """A rank is not called late in a step whose phases it does not measure."""
    run, collector = played(55.0, world=4, step_seconds=10.0, sleeps={1: 2}, interval=0.5)
    look = collector._look_at(run.began + run.now, is_live=True)
    within = look.streams[0].within
    assert within is not None
    look.streams[1].within = structs.replace(within, kind="step", label="step 2", start=0.0)
    phases = [
        replace(look.peaks, lack_phases=lacks) for lacks in (np.arange(4) > 4, np.arange(4) == 1)
    ]
    whole, lacking = (replace(look, waits=np.zeros(4), peaks=peaks) for peaks in phases)

    assert [one.kind for one in judge(whole).findings] == ["rank-behind"]
    assert [one.kind for one in judge(lacking).findings] == []


def test_phases_that_the_newest_steps_lack_come_from_earlier_steps() -> None:
    """Rows of phases that only some steps have measured stay where they are."""
    run, collector = played(20.0, world=4, interval=0.5)
    look = collector._look_at(run.began + run.now, is_live=True)
    unknown = np.full_like(look.peaks.newest_phases, np.nan)
    lacking = replace(look, peaks=replace(look.peaks, newest_phases=unknown))

    assert [one.kind for one in phases_of(lacking)] == [one.kind for one in phases_of(look)]


def test_the_first_rank_out_of_memory_comes_first() -> None:
    """Ranks that run out of memory are in the order of the corrected clocks."""
    runs_out = {1: 14, 4: 12, 5: 13}
    script = Script(world=6, per_node=2, out_of_memory=runs_out, clocks={"node0002": 4.0})
    run = SimulatedRun(script)
    collector = play(run, 12.0)
    finish(run, collector)

    (finding,) = found(collector, "rank-oom")
    assert finding.evidence["ranks"] == [4, 5, 1]
    assert finding.severity == "critical"
    assert finding.advice


OOM = (
    b'{"k":"finding","i":0,"kind":"oom","severity":"info","title":"t","evidence":{},'
    b'"advice":[],"span":1}\n'
)
"""An out-of-memory error that the rank's own code has caught."""


@pytest.mark.parametrize(
    ("parent", "label", "place"),
    [("null", "rank 0", "memory after"), ("1", "decode", "memory in decode")],
)
def test_an_out_of_memory_error_is_in_a_named_block(parent: str, label: str, place: str) -> None:
    """A block within the watch is named as the place of the error; the watch itself is not."""
    run, collector = played(3.0, world=2, interval=0.5)
    stream = run.ranks[0].stream
    collector.feed(stream, OOM.replace(b"info", b"critical"))
    span = (
        '{"k":"span","id":9,"parent":%s,"kind":"block","label":"%s","start":0.0,"stop":2.0,'
        '"outcome":"raised E","counts":{},"s":[],"before":[],"after":[],"peak":[],"certainty":[]}\n'
    )
    collector.feed(stream, (span % (parent, label)).encode())
    play(run, 2.0, collector)

    (finding,) = found(collector, "rank-oom")
    assert place in finding.title


def test_an_out_of_memory_error_that_the_code_caught_is_no_finding_of_the_run() -> None:
    """An out-of-memory error that a rank's own code caught stands in that rank's session alone."""
    run, collector = played(3.0, world=2, interval=0.5)
    collector.feed(run.ranks[0].stream, OOM)
    play(run, 2.0, collector)

    assert kinds(collector) == []


def test_an_unchanged_finding_stays_the_same_object() -> None:
    """A finding that does not change is neither written nor sent again."""
    run, collector = played(16.0, world=8, heavier={5: 1.3}, noise=0.0, interval=0.5)
    before = collector.session.findings[0]
    play(run, 3.0, collector)

    assert collector.session.findings[0] is before


@pytest.mark.parametrize(
    ("outcome", "severity", "title"),
    [
        ("", "critical", "Rank 2 was killed after step"),
        ("raised RuntimeError", "warn", "rank 0 raised RuntimeError"),
        ("interrupted", "", ""),
    ],
)
def test_a_killed_rank_is_told_with_its_cause(outcome: str, severity: str, title: str) -> None:
    """A launcher kills the other ranks where one fails; after an interrupt there is no finding at all."""
    run, collector = played(7.0, world=4, killed={2: 6.0})
    collector.is_gone(run.ranks[2].stream)
    if outcome:
        collector.feed(run.ranks[0].stream, run.ranks[0].end(run.now, outcome))
    collector.tick(run.began + run.now + 1.0)

    findings = found(collector, "rank-gone")
    assert [finding.severity for finding in findings] == [severity] * bool(severity)
    assert all(title in finding.title for finding in findings)
    assert kinds(collector) == ["rank-gone"] * bool(severity)


def test_silence_is_counted_to_the_end_of_the_run() -> None:
    """How long a rank was silent is counted to half a minute after the last line of all ranks."""
    run, collector = played(12.0, world=4, killed={2: 6.0})
    finish(run, collector)
    collector.tick(run.began + 3e7, looks=True)

    (silent,) = found(collector, "rank-silent")
    assert silent.evidence["seconds"] == 35
    assert silent.severity == "critical"


def test_ranks_that_an_interrupt_has_ended_are_no_finding() -> None:
    """An interrupt ends ranks that have no time to write an end."""
    run, collector = played(6.0, world=2, interval=0.5)
    for rank in run.ranks.values():
        collector.is_gone(rank.stream)
    collector.was_interrupted = True
    collector.finish(run.began + run.now)

    assert kinds(collector) == []
