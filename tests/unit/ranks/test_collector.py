"""The lines of many ranks, as one session."""

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hfmem_widget.ranks.collector import Collector
from hfmem_widget.ranks.stream import RankStream
from hfmem_widget.recording.lines import Lines
from hfmem_widget.session import Device, Rank, Recorder, Sample, Series
from hfmem_widget.session.rank_records import SHOWN_SINGLY, SILENT_CELL
from hfmem_widget.text import GIB
from tests.fakes.ranks import Script, SimulatedRun
from tests.unit.ranks.played import (
    arranged_by,
    cells_of,
    finish,
    found,
    garbage,
    kinds,
    play,
    played,
    ranks_of,
)

SLOW = Script(interval=0.5)


def test_the_peaks_of_all_ranks_are_exact() -> None:
    """The overview has the highest exact peak of all ranks, and each rank's own, to the byte."""
    run = SimulatedRun(Script(world=4, heavier={2: 1.01}, interval=0.5))

    collector = play(run, 12.0)
    session = collector.session

    peaks = {number: rank.peak for number, rank in run.ranks.items()}
    assert session.peak("ranks/allocated") == max(peaks.values())
    assert {n: session.peak(f"rank:{n}/allocated") for n in peaks} == peaks
    assert {row.rank: (row.peak, row.certainty) for row in ranks_of(collector).table} == {
        number: (peak, "exact") for number, peak in peaks.items()
    }


def test_the_table_of_steps_has_the_highest_of_all_ranks() -> None:
    """A row of the overview's steps is the highest exact peak of that step over all ranks."""
    run, collector = played(10.0, world=3, noise=0.05, interval=0.5)
    finish(run, collector)

    by_step = np.array(
        [
            [group.devices["cuda:%d" % rank].peak for group in one.recorder.session.steps]  # noqa: UP031
            for rank, one in run.ranks.items()
        ]
    )
    steps = list(collector.session.steps)
    assert [group.last for group in steps] == list(range(1, len(steps) + 1))
    assert [group.devices["ranks"].peak for group in steps] == by_step.max(axis=0).tolist()


def test_a_small_world_is_drawn_rank_by_rank_and_a_large_one_by_its_worst() -> None:
    """Each of eight ranks has a device and a line; of 80 ranks the one with the highest peak has."""
    eight = play(SimulatedRun(Script(world=8, interval=0.5)), 4.0)
    eighty = play(SimulatedRun(Script(world=80, interval=1.0, heavier={41: 1.1})), 9.0)
    small, large = eight.session, eighty.session

    rank_keys = [f"rank:{n}" for n in range(8)]
    assert [device.key for device in small.devices] == ["ranks", *rank_keys]
    assert all(small.latest(f"ranks/rank{n}") > 0 for n in range(8))
    assert ranks_of(eight).shown == tuple(range(8))
    assert ranks_of(eighty).shown[0] == 41
    assert len(ranks_of(eighty).shown) <= SHOWN_SINGLY
    assert large.index("ranks/rank0") is None
    assert large.devices[0].name == "80 ranks on 10 nodes"


def test_ranks_are_shown_in_their_order() -> None:
    """Rank 0 comes before rank 1 though the first line of rank 1 was read a second earlier."""
    run, collector = SimulatedRun(Script(world=2)), Collector()
    pieces = list(run.advance(2.0))
    for rank, later in ((1, 0), (0, 1)):
        for stream, data in pieces:
            if stream == run.ranks[rank].stream:
                collector.feed(stream, data)
        collector.tick(run.began + run.now + later)

    assert [device.key for device in collector.session.devices] == ["ranks", "rank:0", "rank:1"]


def test_the_band_lies_around_the_median() -> None:
    """At every instant the lowest is at most the median, and that at most the highest."""
    frame = play(SimulatedRun(Script(world=12, interval=0.5, noise=0.1)), 8.0).session.to_pandas()
    low, middle, high = (frame[f"ranks/{name}"] for name in ("lowest", "median", "allocated"))
    is_known = high.notna()
    assert is_known.sum() > 5
    assert (low <= middle)[is_known].all()
    assert (middle <= high)[is_known].all()


def test_a_rank_shown_by_itself_has_its_parts() -> None:
    """A rank's device has weights, gradients and optimizer states, which do not exceed what is allocated."""
    session = play(SimulatedRun(Script(world=2)), 6.0).session

    names = ("allocated", "reserved", "weights", "gradients", "optimizer")
    values = {name: session.latest(f"rank:1/{name}") for name in names}
    assert all(value > 0 for value in values.values())
    parts = values["weights"] + values["gradients"] + values["optimizer"]
    assert parts <= values["allocated"] <= values["reserved"]


def test_the_overview_has_the_spans_of_the_lowest_rank() -> None:
    """One span is around all; the training and its evaluations lie within it, with the highest peaks."""
    run, collector = played(8.0, world=3, evaluate_every=4, interval=0.5, heavier={1: 1.1})
    finish(run, collector)
    collector.finish(run.began + run.now)

    spans = collector.session.spans
    assert [span.kind for span in spans[:2]] == ["block", "train"]
    assert {span.kind for span in spans[2:]} == {"evaluate"}
    assert {span.parent for span in spans[1:2]} == {spans[0].id}
    assert all(span.outcome == "done" for span in spans)
    highest = max(rank.peak for rank in run.ranks.values())
    assert spans[0].peaks["ranks/allocated"].value == highest
    assert spans[1].peaks["ranks/allocated"].value == highest


def test_the_spans_go_on_with_the_next_rank() -> None:
    """The next rank's spans are shown where the lowest rank falls silent."""
    spans = play(SimulatedRun(Script(world=3, interval=0.5, killed={0: 4.0})), 16.0).session.spans

    ends = [(span.kind, span.stop is None) for span in spans]
    assert ends == [("block", True), ("train", False), ("train", True)]


@settings(max_examples=8)
@given(seed=st.integers(0, 1 << 30), world=st.sampled_from([2, 5, 12]))
def test_any_order_and_any_cut_give_the_same(seed: int, world: int) -> None:
    """How streams are interleaved, and where their bytes are cut, changes nothing."""
    script = Script(world=world, per_node=2, interval=0.5, heavier={1: 1.2}, garbage=0.02)

    plain = play(SimulatedRun(script, run="a"), 6.0)
    other = play(SimulatedRun(script, run="a"), 6.0, arranged=lambda one: arranged_by(seed, one))

    assert other.session == plain.session
    assert other.rows() == plain.rows()


def test_what_is_read_at_once_is_what_was_followed() -> None:
    """A run that is opened afterwards gives the same figures as one that was followed."""
    script = Script(world=4, interval=0.5, evaluate_every=5)
    followed, run = Collector(), SimulatedRun(script, run="a")
    play(run, 10.0, followed)
    finish(run, followed)
    followed.finish(run.began + run.now)

    again, opened = SimulatedRun(script, run="a"), Collector()
    for stream, data in [*again.advance(10.0), *again.finish()]:
        opened.feed(stream, data, at=again.began + again.now)
    opened.finish(again.began + again.now + 3600)

    for key in ("ranks/allocated", "rank:3/allocated"):
        assert opened.session.peak(key) == followed.session.peak(key)
    assert np.array_equal(opened.session.steps.table, followed.session.steps.table, equal_nan=True)
    assert opened.session.stopped_at == pytest.approx(again.began + again.now, abs=1.0)


@pytest.mark.parametrize(("before", "now"), [(8, 4), (4, 8)])
def test_a_world_that_changes_is_followed(before: int, now: int) -> None:
    """After a restart with more or fewer ranks so many are expected, and none of the old is silent."""
    run, collector = played(8.0, world=before, interval=0.5)
    run.restart(now, step=10)
    play(run, 40.0, collector)

    assert collector.roster.world == now
    assert sorted(collector.streams) == list(range(now))
    assert {stream.rank.attempt for stream in collector.streams.values()} == {1}
    assert kinds(collector) == ["rank-restarted"]
    (finding,) = found(collector, "rank-restarted")
    assert (finding.evidence["before"], finding.evidence["world"]) == (before, now)


def two_processes(later: float) -> tuple[SimulatedRun, SimulatedRun]:
    """Return a rank alone in its world twice, the second begun so many seconds after the first."""
    script = Script(world=1, interval=0.5)
    first = SimulatedRun(script, run="a")
    return first, SimulatedRun(script, run="a", began=first.began + later)


@pytest.mark.parametrize("order", [1, -1])
def test_the_older_of_two_processes_of_one_rank_counts(order: int) -> None:
    """While both write the older is shown, whichever was seen first, and a note says so."""
    older, newer = two_processes(2.5)
    collector = Collector()
    for second in range(6):
        pieces = [("older", data) for _, data in older.advance(1.0)]
        pieces += [("newer", data) for _, data in newer.advance(1.0)]
        for stream, data in pieces[::order]:
            collector.feed(stream, data)
        collector.tick(older.began + second + 4)

    assert collector.streams[0].name == "older"
    assert sum("rank 0" in note for note in collector.session.notes) == 1


def test_the_newer_process_counts_once_the_older_is_silent() -> None:
    """A rank whose process was replaced under the same attempt goes on with the new one."""
    old, new = two_processes(4.0)
    collector = Collector()
    for _, data in old.advance(4.0):
        collector.feed("old", data)
    collector.tick(old.began + 4.0)
    for second in range(12):
        for _, data in new.advance(1.0):
            collector.feed("new", data)
        collector.tick(old.began + 5.0 + second)

    assert collector.streams[0].name == "new"


def test_streams_of_another_run_are_left_out() -> None:
    """Lines of an older run in the same directory are counted and ignored."""
    collector = Collector(run="a" * 32)
    for run in (SimulatedRun(SLOW, run="a" * 32), SimulatedRun(SLOW, run="b" * 32)):
        for stream, data in run.advance(3.0):
            collector.feed(f"{run.run[0]}-{stream}", data)
    collector.tick(run.began + 3.0)

    assert collector.ignored == {"another run": 4}
    assert {stream.name[0] for stream in collector.streams.values()} == {"a"}


@pytest.mark.parametrize("gpus", [2, 0])
def test_of_a_rank_the_fullest_device_counts(gpus: int) -> None:
    """The fullest of two GPUs counts; without a GPU the heap does, of which no part is known."""
    script = Script(world=2, gpus=gpus, interval=0.5, weights=GIB, activations=2 * GIB)
    run = SimulatedRun(script)
    rows = play(run, 8.0).rows()

    assert [row.peak for row in rows] == [rank.peak for rank in run.ranks.values()]
    if not gpus:
        assert rows[0].device == "AMD EPYC 9454"
        assert all(math.isnan(row.activations) for row in rows)


def test_a_run_without_ranks_is_an_empty_session() -> None:
    """A collector without any rank has nothing to show, and nothing fails."""
    collector = Collector("empty")
    collector.tick(1.0)
    assert not collector.is_over(1e9)
    collector.finish(2.0)

    assert collector.session.ranks is None
    assert collector.rows() == ()
    assert not collector.session.running


@pytest.mark.parametrize(("outcome", "is_over"), [("done", True), ("raised RuntimeError", False)])
def test_the_run_is_over_when_all_ranks_have_ended(outcome: str, *, is_over: bool) -> None:
    """A run is over at once when all ranks are done, and after a while where one failed and may restart."""
    run, collector = played(4.0, world=2, interval=0.5)
    now = run.began + run.now
    assert not collector.is_over(now)
    for stream, data in run.finish(outcome):
        collector.feed(stream, data)
    collector.tick(now)

    assert [collector.is_over(now + seconds) for seconds in (1, 5, 15)] == [is_over, is_over, True]


def test_a_run_ends_as_the_first_rank_that_failed() -> None:
    """The other ranks fail because the first one is gone."""
    run, collector = played(4.0, world=2, interval=0.5)
    for (stream, data), outcome in zip(
        run.finish("raised E"), (b"raised Lost", b"raised Cause"), strict=True
    ):
        collector.feed(stream, data.replace(b"raised E", outcome))
    collector.streams[1].last_sign -= 0.5
    collector.finish(run.began + run.now)

    assert collector.session.spans[0].outcome == "raised Cause"


def test_before_a_rank_began_nothing_is_known_of_it() -> None:
    """No line rises from zero to its first reading."""
    run = SimulatedRun(Script(world=2, interval=0.5))

    session = play(run, 4.0, Collector(started_at=run.began - 5)).session
    assert np.isnan(session.between(0.0, 4.5).high).all()
    assert session.value(session.last_sample, "ranks/allocated") > 0


def test_a_run_with_a_rank_that_has_no_end_is_not_done() -> None:
    """A launcher ends at once where a rank was killed, before it counts as silent."""
    run, collector = played(4.0, world=2, interval=0.5)
    (first, data), _ = run.finish()
    collector.feed(first, data)
    collector.finish(run.began + run.now)

    assert collector.session.spans[0].outcome == "not heard to its end"


def test_a_rank_that_was_just_found_is_not_grey() -> None:
    """The last files of a run that is opened late are found when the first have long been read."""
    run = SimulatedRun(Script(world=4, interval=0.5))
    pieces = list(run.advance(20.0))
    collector, now = Collector(), run.began + run.now
    for at, (stream, data) in enumerate(pieces):
        collector.feed(stream, data)
        collector.tick(now + at / 100, {name for name, _ in pieces[at + 1 :]})
    collector.tick(now + 2.0)

    assert SILENT_CELL not in ranks_of(collector).strip.cells


def test_a_silent_rank_is_grey_in_the_strip() -> None:
    """The cells of a rank that was killed are silent ones; those of the others are not."""
    _, collector = played(30.0, world=3, interval=0.5, killed={1: 5.0})

    cells = cells_of(ranks_of(collector).strip)
    assert (cells[-3:, 1] == SILENT_CELL).all()
    assert (cells[2:, [0, 2]] != SILENT_CELL).all()


@pytest.mark.parametrize("world", [2, 3, 4])
def test_times_far_off_break_nothing(world: int) -> None:
    """Ranks whose clocks are years apart leave a session whose times run forward."""
    clocks = {"node0001": 3e8, "node0003": -9e8}
    run = SimulatedRun(Script(world=world, per_node=1, interval=0.5, clocks=clocks))
    collector = play(run, 20.0)
    finish(run, collector)
    collector.finish(run.began + run.now)

    time = collector.session.timeline.time
    assert (np.diff(time) >= 0).all()
    assert time[-1] < 60.0


def test_hostile_lines_are_counted() -> None:
    """Lines that no rank would write, alone and among good ones, raise nothing and change nothing."""
    run = SimulatedRun(Script(world=2, interval=0.5))
    collector = Collector()
    for seed, (stream, data) in enumerate(run.advance(6.0)):
        for line in data.splitlines(keepends=True):
            collector.feed(stream, garbage(20, seed) + line)
        collector.feed(f"foreign-{seed}", garbage(60, seed))
    collector.tick(run.began + run.now)

    peaks = {number: rank.peak for number, rank in run.ranks.items()}
    assert {row.rank: row.peak for row in collector.rows()} == peaks
    assert all(stream.dropped for stream in collector.streams.values())


def test_a_damaged_stream_is_left_alone() -> None:
    """A hundred bad lines in a row end the reading of a stream, and a note says so once."""
    run, collector = played(3.0, world=2, interval=0.5)
    stream = run.ranks[0].stream
    collector.feed(stream, b"{\n" * 5000)
    collector.tick(run.began + run.now)

    assert collector.all_streams[stream].refused == "damaged"
    assert collector.ignored == {"damaged": 1}
    assert sum("Rank 0" in note for note in collector.session.notes) == 1


def test_a_rank_that_claims_a_huge_world_costs_nothing() -> None:
    """The arrays grow with the ranks that write, and not with what they say."""
    (stream, data), *_ = SimulatedRun(Script(world=1, interval=0.5), run="a").advance(1.0)
    data = data.replace(b'"rank":0,', b'"rank":1048570,')
    data = data.replace(b'"world":1,', b'"world":1048576,')
    collector = Collector()
    collector.feed(stream, data)
    collector.tick(0.0)
    collector.tick(1e10)

    assert collector.roster.world == 1 << 20
    assert len(ranks_of(collector).table) == 1
    assert len(ranks_of(collector).strip.first) <= 64


def test_a_rank_costs_little() -> None:
    """What is kept of a rank does not grow with the length of its run."""
    run, collector = played(4.0, world=4, interval=1.0)
    pieces = list(run.advance(40.0))
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for stream, data in pieces:
        collector.feed(stream, data)
    collector.tick(run.began + run.now)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert (after - before) / 4 < 30_000


def test_a_finished_run_adds_nothing() -> None:
    """After the end of a run no samples are added."""
    run, collector = played(4.0, world=2, interval=0.5)
    collector.finish(run.began + run.now)
    before = collector.session.timeline.samples
    play(run, 4.0, collector)

    assert collector.session.timeline.samples == before
    assert not collector.session.running


@pytest.mark.parametrize(("label", "name"), [("pretrain", "pretrain"), ("rank 0", "")])
def test_a_run_is_called_as_its_ranks_are(label: str, name: str) -> None:
    """The label of a run is that of its ranks, unless it is only the number of one of them."""
    assert play(SimulatedRun(Script(world=2, label=label, interval=0.5)), 3.0).session.label == name


def test_a_row_has_what_the_peak_was_beyond_what_is_held() -> None:
    """Activations are what the peak has besides weights, gradients and optimizer states."""
    run, collector = played(12.0, world=2, heavier={1: 1.1})

    model_bytes = 4 * run.script.weights
    expected = [rank.peak - model_bytes for rank in run.ranks.values()]
    assert [row.activations for row in collector.rows()] == pytest.approx(expected, rel=0.001)


@pytest.mark.parametrize("later", [80e6, 120e6])
def test_series_may_appear_after_the_peak(later: float) -> None:
    """Series of the parts appear once a model is there; a peak before them has no activations."""
    recorder = Recorder("rank 0", started_at=1e9)
    lines = Lines(recorder.session, Rank(0))
    devices, series = (Device("cpu", "AMD EPYC", "", 1e9),), (Series("cpu", "allocated"),)
    recorder.adopt(devices, series)
    collector = Collector()
    collector.feed("r0", lines.head() + b"".join(lines.samples([Sample(0.1, (100e6,))], 1e9)))
    parts = (Series("cpu", metric) for metric in ("weights", "unattributed"))
    recorder.adopt(devices, (*series, *parts))
    collector.feed("r0", b"".join(lines.samples([Sample(0.2, (later, 30e6, 0.0))], 1e9 + 1)))
    collector.tick(1e9 + 1)

    expected = later - 30e6 if later > 100e6 else math.nan
    assert [row.activations for row in collector.rows()] == [pytest.approx(expected, nan_ok=True)]


FOLD = b'{"k":"fold","n":9,"t":[%b],"samples":1,"low":[%b],"high":[%b],"last":[%b]}\n'


@pytest.fixture
def stream() -> RankStream:
    """Return what was read of the first rank of a large world, which writes folds."""
    stream = RankStream("one")
    for _, data in SimulatedRun(Script(world=65), ranks=[0]).advance(1.0):
        for line in data.splitlines(keepends=True):
            stream.feed(line)
    return stream


def test_a_fold_without_a_figure_takes_no_peak_away(stream: RankStream) -> None:
    """A fold may lack a figure."""
    stream.feed(FOLD % (b"8,9", b"0", b"null", b"null"))

    assert math.isnan(stream.latest("allocated"))
    assert stream.dropped == 0
    assert stream.peak.value > 0


@pytest.mark.parametrize(
    "fold",
    [
        *(FOLD % (b"8,9", b"0", bad, bad) for bad in (b"1e999", b"-", b"1e30", b"eeee")),
        FOLD % (b"9,8", b"0", b"1", b"1"),
        FOLD % (b"8,9", b"0", b"1,2", b"1"),
        FOLD % (b"8,9", *(b",".join([b"0"] * 99),) * 3),
    ],
)
def test_a_fold_that_does_not_fit_is_dropped(stream: RankStream, fold: bytes) -> None:
    """A fold with text for a figure, an end before its begin, or other columns is left out."""
    before = stream.reached, stream.latest("allocated"), stream.peak

    assert stream.feed(fold) == []
    assert stream.dropped == 1
    assert (stream.reached, stream.latest("allocated"), stream.peak) == before
    assert stream.peak.value > 0
