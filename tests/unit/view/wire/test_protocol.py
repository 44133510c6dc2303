"""What goes over the wire: samples, steps, spans, and what is judged."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfmem_widget.session import HELD, Finding, Guide, Peak, Recorder, Sample, Series, Timeline
from hfmem_widget.text import GIB
from hfmem_widget.view.wire import protocol, widget
from hfmem_widget.view.wire.protocol import Message, judged
from tests.data.overviews import EIGHT, overview
from tests.data.recorders import recorder_of
from tests.data.wire import Wire
from tests.scenes import scripted_run
from tests.scenes.stage import Stage

PARTS = [*HELD, "unattributed", "context"]


def make_recorder(gpus: int = 1, samples: int = 5, *, parts: bool = False) -> Recorder:
    """Write a session of some GPUs with what is charted of each, and one metric that is not charted."""
    metrics = ("allocated", "reserved", "active", "device_used", *(PARTS if parts else ()))
    rows = [(float(index),) * gpus * len(metrics) for index in range(samples)]
    keys = [f"cuda:{index}" for index in range(gpus)]
    return recorder_of(*rows, keys=keys, metrics=metrics, total=100.0, every=0.1)


def test_parts_travel_from_the_moment_they_are_known() -> None:
    """Parts are columns at the end, which the page names by itself; before, they cost no byte."""
    recorder = make_recorder()
    session = recorder.session
    (_, values), series = (
        protocol.rows(session, "run", 1, [(0.5, (1.0,) * 4)], [])[1],
        [*session.series],
    )
    recorder.adopt(session.devices, [*series, *(Series("cuda:0", one) for one in PARTS)])
    wider = protocol.rows(session, "run", 2, [(0.6, tuple(range(4 + len(PARTS))))], [])[1][1]
    described = protocol.describe(session)["series"]

    assert len(values) == 12
    assert np.frombuffer(wider, "<f4").tolist() == [0, 1, *range(3, 4 + len(PARTS))]
    assert described[3] == {"device": "cuda:0", "metric": "weights"}
    assert [one["metric"] for one in described[3:]] == PARTS


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("gpus", [1, 8])
def test_a_snapshot_is_bounded(gpus: int, *, parts: bool) -> None:
    """However long the run and many the devices, a snapshot's numbers stay within their bound."""
    session = make_recorder(gpus, samples=5_000, parts=parts).session
    message, (time, values) = protocol.snapshot(session, "run", 1)

    assert len(time) + len(values) <= protocol.FULL.row_bytes
    assert message["rows"] * 8 == len(time)


@pytest.mark.parametrize(
    ("gpus", "parts", "most"),
    [(1, False, 3_000), (1, True, 3_500), (8, False, 8_000), (8, True, 12_000)],
)
def test_an_outline_is_small_and_called_coarse(gpus: int, most: int, *, parts: bool) -> None:
    """Schema, spans, samples and steps together, however long the run."""
    recorder = make_recorder(gpus, samples=5_000, parts=parts)
    session = recorder.session
    add_steps(recorder, 2500)
    for number in range(30):
        span = recorder.open_span("epoch", f"epoch {number}", session.last_sample)
        recorder.close_span(span.id, session.last_sample, {})
    message, buffers = protocol.snapshot(session, "run", 1, detail=protocol.COARSE)

    assert message["coarse"]
    assert "coarse" not in protocol.snapshot(session, "run", 1)[0]
    assert len(json.dumps(message)) + sum(map(len, buffers)) < most


def test_news_that_fold_keep_extremes_and_gaps() -> None:
    """Where little may be sent, many samples become few rows, the highest and the lowest among them."""
    session = make_recorder(samples=0).session
    samples: list[tuple[float, tuple[float, ...]]] = [(at / 10, (5.0,) * 4) for at in range(90)]
    samples[7], samples[20] = (0.7, (1.0,) * 4), (2.0, (9.0,) * 4)
    samples.insert(15, (1.45, ()))
    message, (time, values) = protocol.rows(
        session, "run", 1, samples, [], detail=protocol.BRIEF_NEWS
    )
    decoded = np.frombuffer(values, "<f4").reshape(-1, 3)
    seconds = np.frombuffer(time, "<f8")

    assert message["rows"] == len(seconds) <= 40
    assert (np.diff(seconds) >= 0).all()
    assert (np.nanmin(decoded), np.nanmax(decoded)) == (1.0, 9.0)
    assert np.isnan(decoded[seconds == 1.45]).all()
    assert (seconds == 1.45).sum() == 1


def test_what_was_folded_keeps_the_parts_of_a_stretch_with_its_lowest_and_its_highest() -> None:
    """The higher row of each pair has the high of allocated memory, and no part above its own high."""
    session = make_recorder(samples=0, parts=True).session
    steady = {"weights": 4.0, "unattributed": math.nan}
    samples: list[tuple[float, tuple[float, ...]]] = []
    for at in range(400):
        read = {"gradients": float(at % 3), **steady}
        parts = (read.get(metric, 0.5) for metric in PARTS)
        samples.append((at / 10, (10.0 + at % 7, 20.0, 20.0, 30.0, *parts)))
    message, (time, values) = protocol.rows(session, "run", 1, samples, [])
    columns = [one["metric"] for one in protocol.describe(session)["series"]]
    low, high = np.frombuffer(values, "<f4").reshape(-1, 2, len(columns)).transpose(1, 0, 2)

    assert len(time) + len(values) <= protocol.NEWS.row_bytes
    assert message["rows"] == 2 * len(low)
    assert (high[:, columns.index("allocated")] == 16.0).all()
    assert (low[:, columns.index("gradients")] == 0.0).all()
    assert (high[:, columns.index("gradients")] == 2.0).all()
    assert (high[:, columns.index("weights")] == low[:, columns.index("weights")]).all()
    assert np.isnan(high[:, columns.index("unattributed")]).all()


@given(
    st.lists(st.one_of(st.just(math.nan), st.floats(0, 1e6)), min_size=1, max_size=300),
    st.integers(8, 200),
)
def test_decimation_keeps_both_extremes(values: list[float], most: int) -> None:
    """The highest and the lowest value survive, in at most the rows allowed, in order of time."""
    timeline = Timeline(1, capacity=128)
    for index, value in enumerate(values):
        timeline.append(index / 10, (value,))
    time, rows = protocol.decimate(timeline, most)
    values_known = [value for value in values if not math.isnan(value)]

    assert len(time) <= most
    assert (np.diff(time) >= 0).all()
    if values_known:
        assert np.nanmax(rows) == max(values_known)
        assert np.nanmin(rows) == min(values_known)


def add_steps(recorder: Recorder, count: int, *, first: int = 1, duration: float = 1.0) -> None:
    """Make steps one after the other in the open span, each with a peak on every device."""
    session = recorder.session
    for number in range(first, first + count):
        start = session.last_sample.time
        values = tuple(1.0 for _ in session.series)
        span = recorder.open_span("step", f"step {number}", recorder.append(Sample(start, values)))
        recorder.count(span.id, {"step": number, "samples": 8, "longest": 4, "tokens": 32})
        peaks = {f"{one.key}/allocated": Peak(1000.0 + number, "exact") for one in session.devices}
        recorder.close_span(span.id, recorder.append(Sample(start + duration, values)), peaks)


def test_a_path_names_six_spans_at_most() -> None:
    """A path deeper than six spans is cut after the sixth."""
    recorder = make_recorder(samples=1)
    session = recorder.session
    for number in range(9):
        recorder.open_span("block", f"block {number}", session.last_sample)
    assert protocol.describe_status(session)["path"] == [f"block {number}" for number in range(6)]


def test_the_status_says_what_is_measured_on_some_steps_only() -> None:
    """The status has it as a sentence; where nothing is left out, nothing is sent."""
    session = make_recorder(samples=1).session
    before = protocol.describe_status(session)
    session.polling.steps, session.polling.steps_with_phases, session.polling.groups = 90, 10, 20

    assert "limited" not in before
    assert protocol.describe_status(session)["limited"] == (
        "phases on 10 of 90 steps, one peak for about 4 steps at a time, to stay below 1 %"
    )


def test_the_counts_of_a_span_are_sent_with_it() -> None:
    """A span's counts are sent, and one that is not known as null."""
    recorder = make_recorder(samples=1)
    session = recorder.session
    span = recorder.open_span("train", "train", session.last_sample)
    recorder.count(span.id, {"steps": 100, "epochs": math.nan})
    described = protocol.describe_span(session, session.span(span.id))
    assert described["counts"] == {"steps": 100, "epochs": None}


@pytest.mark.parametrize("gpus", [1, 8])
def test_steps_in_a_message_are_bounded(gpus: int) -> None:
    """A message has some kilobytes, for a hundred steps a second on eight devices as for one on one."""
    recorder = make_recorder(gpus, samples=1)
    session = recorder.session
    add_steps(recorder, 2500, duration=0.01)
    rows, row_buffers = protocol.rows(
        session, "run", 1, [], [], steps=protocol.new_steps(session, -math.inf)
    )
    everything, buffers = protocol.snapshot(session, "run", 2)
    assert rows["steps"] <= 20
    assert len(row_buffers[2]) <= 6_480
    assert everything["steps"] <= 200
    assert len(buffers[2]) <= 28_800
    assert len(json.dumps(rows)) < 1000


def test_steps_that_are_folded_keep_the_worst_and_the_sums() -> None:
    """Folding steps loses neither their tokens, nor the highest peak, nor whose it was."""
    recorder = make_recorder(samples=1)
    session = recorder.session
    add_steps(recorder, 500)
    message, buffers = protocol.snapshot(session, "run", 1)
    columns = message["schema"]["step_columns"]
    table = np.frombuffer(buffers[2], "<f8").reshape(message["steps"], -1)
    assert table[:, columns.index("tokens")].sum() == 500 * 32
    assert table[:, columns.index("cuda:0/peak")].max() == 1500
    assert table[-1, columns.index("cuda:0/worst")] == 500


def test_the_status_has_the_memory_of_child_processes() -> None:
    """While they run and afterwards, until the next cell; nothing where this process used a GPU."""
    stage = Stage("notebook", gpus=1)
    stage.hold_in_children({}, 0.2, 0)
    with stage.span("cell", "launch"):
        stage.hold_in_children({"cuda:0": 4 * GIB}, 0.3)
        while_open = protocol.describe_status(stage.session)["lead"]
        stage.hold_in_children({"cuda:0": 0.0}, 0.3, 0)
    assert protocol.describe_status(stage.session)["lead"] == while_open
    assert while_open == "cuda:0 rose by 4.00 GiB to 4.64 GiB, by 1 child process"
    with stage.span("cell", "next"):
        stage.hold({"cuda:0": GIB}, 0.3)
        assert "lead" not in protocol.describe_status(stage.session)


def test_eight_ranks_are_sent_fine_enough_for_a_chart() -> None:
    """A page that is opened late draws no coarse lines."""
    message, _ = protocol.snapshot(overview(EIGHT), "run", 1)

    assert message["rows"] >= 300


def timeline_of(samples: int, *, capacity: int = 4096) -> Timeline:
    timeline = Timeline(1, capacity)
    for at in range(samples):
        timeline.append(float(at), (float(at % 7),))
    return timeline


@pytest.mark.parametrize(
    ("samples", "capacity", "most", "rows"),
    [(40, 4096, 40, 40), (41, 4096, 40, 28), (100, 64, 40, 34), (100, 64, 100, 100)],
)
def test_timelines_fold_only_as_needed(samples: int, capacity: int, most: int, rows: int) -> None:
    """One that fits is sent as it is; a stretch that stands for several samples takes two rows."""
    time, values = protocol.decimate(timeline_of(samples, capacity=capacity), most)

    assert len(time) == len(values) == rows <= most
    assert np.all(np.diff(time) >= 0)
    assert (values.min(), values.max()) == (0.0, 6.0)


def test_of_many_gaps_the_longest_are_sent_in_their_order() -> None:
    """Breaks take an eighth of the rows at most, and each stands in the middle of its gap."""
    timeline = timeline_of(10)
    for at, length in ((1, 0.1), (2, 0.5), (3, 0.2), (4, 0.9), (5, 0.3)):
        timeline.add_gap(at + 0.05, at + 0.05 + length)
    time, values = protocol.decimate(timeline, 23)

    assert time[np.isnan(values).all(axis=1)].tolist() == pytest.approx([2.3, 4.5])
    assert len(time) == 12
    assert np.all(np.diff(time) >= 0)


def test_times_on_the_wire_have_the_digits_that_a_screen_can_show() -> None:
    """Times are milliseconds of the watch, and tenths of them at the ends of a span."""
    recorder = make_recorder(samples=0)
    session = recorder.session
    values = tuple(1.0 for _ in session.series)
    recorder.append(Sample(0.12345678, values))
    span = recorder.open_span("cell", "a", session.last_sample)
    recorder.append(Sample(1.98765432, values))
    closed = recorder.close_span(span.id, session.last_sample, {})
    message = protocol.describe_span(session, closed)

    assert (message["start"], message["stop"]) == (0.1235, 1.9877)
    assert protocol.describe_status(session)["elapsed"] == 1.988


BUDGET = Guide("cuda:0", "budget", "budget", 0.0, math.inf, GIB, GIB)
OVER = Finding("budget", "warn", "over 1.00 GiB", {"time": 1.5, "device": "cuda:0"}, ("less",), 1)


class Run(Wire):
    """A cell that is sampled every 0.1 s."""

    def __init__(self) -> None:
        super().__init__(make_recorder(samples=0))
        self.cell = self.recorder.open_span("cell", "run", self.session.last_sample)

    @property
    def messages(self) -> list[Message]:
        return [one.message for one in self.sent]


def test_there_are_never_more_than_a_message_has_room_for() -> None:
    """However many and long they are, a message has the gravest findings and the newest guides."""
    run = Run()
    run.session.findings += [
        Finding("x", "info" if number % 2 else "critical", f"{number} {'é' * 9000}")
        for number in range(500)
    ]
    run.session.guides += [BUDGET] * 500 + [Guide("cuda:0", "trend", "ü" * 9000, 0, 1, 1, 2)] * 500
    run.session.guides += [Guide("cuda:0", "oom", "o" * 9000, at, at, 1, 1) for at in range(500)]
    message = judged(run.session)
    assert len(message["findings"]) == 8
    assert {one["severity"] for one in message["findings"]} == {"critical"}
    kinds = ["budget"] * 10 + ["trend"] * 10 + ["oom"] * 10
    assert [one["kind"] for one in message["guides"]] == kinds
    assert message["guides"][-1]["start"] == 499
    assert len(json.dumps(message, ensure_ascii=False).encode()) < 13_000


def test_everything_is_strict_json() -> None:
    """A budget has no end, and unknown figures are not sent: a browser parses no NaN."""
    run = Run()
    run.session.findings.append(Finding("x", "warn", "x", {"time": math.nan, "device": 7}))
    run.session.guides += [BUDGET, Guide("cuda:0", "trend", "x", 0.0, 1.0, math.nan, 1.0)]
    message = judged(run.session)
    json.dumps(message, allow_nan=False)
    assert [one["stop"] for one in message["guides"]] == [None]


def test_a_leak_in_the_data_is_sent_once_its_cell_has_ended() -> None:
    """A finished cell's leak is judged from its data, beside what was found as it ran."""
    session = scripted_run("leak")
    assert [one["kind"] for one in judged(session)["findings"]] == ["budget", "leak"]


def test_they_are_sent_when_they_change_and_not_again() -> None:
    """New findings and guides are in one message, and not in those that follow."""
    run = Run()
    run.run(2.0)
    run.session.findings.append(OVER)
    run.session.guides.append(BUDGET)
    run.run(10.0)
    assert sum("findings" in one for one in run.messages if one["kind"] == "rows") == 1
    before = len(run.messages)
    run.session.guides.append(BUDGET)
    run.run(1.0)
    assert max(len(one.get("guides", ())) for one in run.messages[before:]) == 2
    assert not any("findings" in one for one in run.messages[before:] if one["kind"] == "rows")


def test_a_warning_comes_with_the_next_message() -> None:
    """A warning does not wait for a second, after which the run may be over."""
    run = Run()
    run.run(2.0)
    before = len(run.messages)
    run.session.findings.append(OVER)
    run.run(0.4)
    assert "findings" in run.messages[before]


def test_a_newer_warning_replaces_the_old_one() -> None:
    """The old warning is replaced, as by one with the exact peak once the cell has ended."""
    run = Run()
    run.session.findings.append(OVER)
    run.run(2.0)
    run.recorder.close_span(run.cell.id, run.session.last_sample, {})
    run.run(2.0)
    run.session.findings[0] = replace(OVER, title="over 1.00 GiB, by 0.25")
    run.publisher.finish()
    assert [one["title"] for one in run.messages[-1]["findings"]] == ["over 1.00 GiB, by 0.25."]


def test_every_snapshot_has_them_and_a_page_that_opens_later() -> None:
    """A page that opens late, or asks for all anew, gets all findings and guides."""
    run = Run()
    run.session.findings.append(OVER)
    run.session.guides.append(BUDGET)
    run.run(40.0)
    snapshots = [one for one in run.messages if one["kind"] == "snapshot"]
    assert len(snapshots) > 3
    assert all(one["findings"] and one["guides"] for one in snapshots)
    history = widget._pack_history((run.session, "r", True), None)
    assert history["findings"] == snapshots[0]["findings"]


def test_nothing_is_sent_where_nothing_is_judged() -> None:
    """A healthy run sends no judgements, not even an empty list."""
    run = Run()
    run.run(40.0)
    assert not any("findings" in one or "guides" in one for one in run.messages)
