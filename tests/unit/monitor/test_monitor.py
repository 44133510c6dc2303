"""The monitor polls while a span is open, and reads exactly at its edges."""

import math
import os
import threading
from typing import Any
from unittest.mock import Mock

import pytest

from hfmem_widget.errors import OptionError, WatchStateError
from hfmem_widget.monitor import sampler
from hfmem_widget.monitor.sampler import Sampler
from hfmem_widget.monitor.watched import Watched
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import HELD, Device, Peak, Recorder, Series, Span
from tests.data.threads import on_threads
from tests.fakes.source import FakeSource
from tests.unit.monitor.conftest import Bench, HandTicker

HEAP = "cpu/allocated"


def test_the_poller_runs_while_a_span_of_any_session_is_open(bench: Bench) -> None:
    """A session alone starts no ticker, and one ticker serves the spans of all sessions."""
    one, two = bench.monitor.begin(WatchOptions()), bench.monitor.begin(WatchOptions())
    assert bench.tickers == []
    first = bench.monitor.open_span(one, "cell")
    second = bench.monitor.open_span(two, "cell")
    bench.monitor.close_span(one, first.id)

    assert bench.monitor.poller.alive
    bench.monitor.close_span(two, second.id)
    assert not bench.monitor.poller.alive
    assert len(bench.tickers) == 1


def test_a_preferred_interval_is_for_watches_without_their_own(bench: Bench) -> None:
    """A preferred interval is for running and later watches; a watch with its own keeps it."""
    monitor = bench.monitor
    open_one = monitor.begin(WatchOptions())
    monitor.open_span(open_one, "cell")
    monitor.prefer(2.0)
    slow = bench.tickers[0].interval
    later, named = monitor.begin(WatchOptions()), monitor.begin(WatchOptions(interval=0.1))
    monitor.open_span(named, "cell")
    monitor.prefer(3.0)

    assert [each.polling.interval for each in (open_one, later, named)] == [3.0, 3.0, 0.1]
    assert (slow, bench.tickers[0].interval) == (2.0, 0.1)


def test_the_start_of_a_span_has_the_pollers_readings(bench: Bench) -> None:
    """The first tick is awaited, so that the first edge has the driver's figure."""
    session, span = bench.watch()

    assert session.value(span.before, "cuda:0/device_used") == 600.0


def test_an_edge_never_calls_the_driver(bench: Bench) -> None:
    """A source that may hang is read on the poller's thread only."""
    session, _ = bench.watch()
    reads = bench.driver.reads
    bench.monitor.close_span(session, bench.monitor.open_span(session, "step").id)

    assert bench.driver.reads == reads


def test_an_old_reading_of_the_driver_does_not_stand_for_now(bench: Bench) -> None:
    """If the poller hangs, what it read before is not repeated."""
    session, _ = bench.watch()
    bench.clock.advance(5.0)
    inner = bench.monitor.open_span(session, "step")

    assert math.isnan(session.value(inner.before, "cuda:0/device_used"))


def test_a_turn_closes_and_opens_at_one_instant(bench: Bench) -> None:
    """Two neighbours share the sample between them, and an allocation after it is the second's only."""
    session, outer = bench.watch("step")
    bench.allocator.alloc(1 << 20)
    first = bench.monitor.open_span(session, "forward")
    second = bench.monitor.turn(session, first.id, "backward", "backward")
    bench.allocator.free(bench.allocator.alloc(8 << 20))
    bench.monitor.close_span(session, second.id)
    first, second = session.span(first.id), session.span(second.id)

    assert first.after is second.before
    assert first.outcome == "done"
    assert (second.kind, second.label, second.parent) == ("backward", "backward", outer.id)
    assert first.peaks["cuda:0/allocated"] == Peak(1 << 20, "exact")
    assert second.peaks["cuda:0/allocated"] == Peak(9 << 20, "exact")


def test_a_turn_keeps_polling_and_closes_inner_spans(bench: Bench) -> None:
    """The poller runs on between neighbours, and open spans within the first end with it."""
    session, first = bench.watch("block")
    inner = bench.monitor.open_span(session, "step")
    second = bench.monitor.turn(session, first.id, "block", "next")

    assert [session.span(one.id).outcome for one in (first, inner)] == ["done"] * 2
    assert session.open_spans == (second,)
    assert bench.monitor.poller.alive
    bench.monitor.close_span(session, second.id)
    assert not bench.monitor.poller.alive


def test_a_turn_from_a_span_that_has_ended_only_opens(bench: Bench) -> None:
    """If there is nothing left to close, the neighbour is opened."""
    session, outer = bench.watch("step")
    first = bench.monitor.open_span(session, "forward")
    bench.monitor.close_span(session, first.id)
    second = bench.monitor.turn(session, first.id, "backward", "")
    bench.monitor.end(session)

    assert session.span(second.id).parent == outer.id
    assert not bench.monitor.poller.alive


def test_without_the_ledger_no_counter_is_touched(bench: Bench) -> None:
    """`ledger=False` resets nothing; a peak is then at least the highest of the edges."""
    bench.allocator.free(bench.allocator.alloc(64 << 20))
    session, first = bench.watch("forward", ledger=False)
    bench.allocator.free(bench.allocator.alloc(8 << 20))
    bench.allocator.alloc(1 << 20)
    second = bench.monitor.turn(session, first.id, "backward", "")
    bench.monitor.close_span(session, second.id)

    assert bench.allocator.resets == 0
    assert {each.peaks["cuda:0/allocated"] for each in session.spans} == {Peak(1 << 20, "at least")}


def test_an_unknown_device_is_refused_before_anything_runs(bench: Bench) -> None:
    """A device that is not there is an error that lists those that are."""
    with pytest.raises(OptionError, match="'cuda:5' here, only cuda:0, cpu"):
        bench.monitor.begin(WatchOptions(devices=("cuda:5",)))


def test_an_unanswered_device_is_not_refused(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first answer may take seconds; the cell runs, and the device is watched once it is known."""
    monkeypatch.setattr(HandTicker, "tick_now", lambda *_: False)
    session, _ = bench.watch(devices=("cuda:0",))
    bench.pass_time(0.1)

    assert [device.key for device in session.devices] == ["cuda:0"]


@pytest.mark.parametrize("error", [MemoryError, RecursionError])
def test_a_limit_of_the_machine_needs_no_report(error: type[Exception], bench: Bench) -> None:
    """A watch that a MemoryError or RecursionError breaks off does not ask for a report."""
    session = bench.monitor.begin(WatchOptions())
    bench.monitor.break_off(session, error())

    assert session.broken_off
    assert not any("fault" in note for note in session.notes)


def test_only_the_requested_devices_are_kept(bench: Bench) -> None:
    """A session of one device has no series of another."""
    session, span = bench.watch(devices=("cpu",))
    bench.allocator.alloc(1 << 20)
    span = bench.monitor.close_span(session, span.id)

    assert {series.device for series in session.series} == {"cpu"}
    assert {key.partition("/")[0] for key in span.peaks} == {"cpu"}


def test_a_long_silence_is_a_gap(bench: Bench) -> None:
    """Three intervals without a sample are a gap, and the longest is noted."""
    session, _ = bench.watch()
    bench.pass_time(0.1)
    bench.pass_time(4.7)

    assert session.timeline.gaps == [pytest.approx((0.1, 4.8))]
    assert session.polling.longest_gap == pytest.approx(4.7)
    assert session.polling.missed > 40


def test_time_between_cells_is_a_gap_but_nothing_was_missed(bench: Bench) -> None:
    """A session of several cells breaks its line between them and does not count that as failing."""
    session = bench.monitor.begin(WatchOptions())
    bench.monitor.close_span(session, bench.monitor.open_span(session, "cell").id)
    bench.clock.advance(60.0)
    bench.wall.advance(60.0)
    bench.monitor.open_span(session, "cell")

    assert len(session.timeline.gaps) == 1
    assert session.polling.missed == 0
    assert session.polling.longest_gap == 0.0


def test_a_source_that_breaks_is_noted_once_and_the_others_go_on(bench: Bench) -> None:
    """A fault in one source costs its figures, one sentence, and nothing else."""
    session, _ = bench.watch()
    bench.driver.failure = RuntimeError("no such bus")
    bench.pass_time(0.1)
    bench.pass_time(0.1)

    assert [note for note in session.notes if "nvml" in note and "no such bus" in note] != []
    assert len(session.notes) == 1
    assert math.isnan(session.latest("cuda:0/device_used"))
    assert session.latest(HEAP) == 10.0


def test_a_note_is_only_in_the_first_session(bench: Bench) -> None:
    """A later session does not repeat a source's note."""
    bench.host.notes.append("No driver.")
    first = bench.monitor.begin(WatchOptions())
    bench.monitor.end(first)
    second = bench.monitor.begin(WatchOptions())

    assert first.notes == ["No driver."]
    assert second.notes == []


def test_series_may_appear_while_a_span_is_open(bench: Bench) -> None:
    """A device that comes up later adds its series at the end; its past is not available."""
    session, _ = bench.watch()
    bench.host.series = (*bench.host.series, Series("cpu", "cached"))
    bench.host.values = [10.0, 20.0, 3.0]
    bench.pass_time(0.1)

    assert session.latest("cpu/cached") == 3.0
    assert math.isnan(float(session.timeline.high[0, session.index("cpu/cached") or 0]))


@pytest.mark.parametrize(
    ("asleep", "reading"), [(3600.0, 0.0), (0.0, 5.0)], ids=["suspended", "a reading that hangs"]
)
def test_a_suspended_machine_is_noted(bench: Bench, asleep: float, reading: float) -> None:
    """While it was suspended only the wall clock went on; during a long reading both clocks do."""
    session, _ = bench.watch()
    bench.pass_time(0.1)
    bench.wall.advance(asleep)
    bench.host.meanwhile = lambda: (bench.clock.advance(reading), bench.wall.advance(reading))
    bench.pass_time(0.1)

    assert any("suspended" in note for note in session.notes) is bool(asleep)


def test_a_poller_that_dies_says_why_and_the_span_ends_as_usual(bench: Bench) -> None:
    """A fault in the poller stops the samples, is noted once, and does not reach the user."""
    session, span = bench.watch()
    bench.sampler.poll = Mock(side_effect=ZeroDivisionError("division by zero"))  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        bench.pass_time(0.1)
    bench.tickers[-1].started = False
    bench.monitor.close_span(session, span.id)

    assert session.polling.stopped == "ZeroDivisionError: division by zero"
    assert any("Polling stopped" in note for note in session.notes)
    assert session.span(span.id).outcome == "done"


def test_ending_a_session_closes_its_spans_innermost_first(bench: Bench) -> None:
    """What is open at the end gets the end's outcome, and the session is finished."""
    session, _ = bench.watch()
    bench.monitor.open_span(session, "step")
    bench.monitor.end(session, "raised ValueError")

    assert [span.outcome for span in session.spans] == ["raised ValueError"] * 2
    assert not session.running
    assert not bench.ledger.so_far()


def test_ending_twice_is_harmless_and_opening_afterwards_is_not(bench: Bench) -> None:
    """An ended session stays as it is, and opening a span in it is an error."""
    session = bench.monitor.begin(WatchOptions())
    bench.monitor.end(session)
    bench.monitor.end(session)

    with pytest.raises(WatchStateError, match="has ended"):
        bench.monitor.open_span(session, "cell")


def test_a_failed_opening_leaves_no_poller(bench: Bench) -> None:
    """If a span cannot be opened, polling does not go on for it."""
    session = bench.monitor.begin(WatchOptions())
    bench.ledger.open = lambda **_: 1 / 0  # type: ignore[method-assign,assignment]
    with pytest.raises(ZeroDivisionError):
        bench.monitor.open_span(session, "cell")

    assert not bench.monitor.poller.alive


def test_a_late_tick_of_a_stopped_poller_changes_nothing(bench: Bench) -> None:
    """A reading that hung and comes back after the end is dropped."""
    session, _ = bench.watch()
    hung = bench.tickers[-1]
    bench.monitor.end(session)
    samples = session.timeline.samples
    hung.step()

    assert session.timeline.samples == samples


def test_a_monitor_is_inert_in_a_fork(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child can leave its parent's watch without touching a source or a counter."""
    session, span = bench.watch()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    bench.monitor.after_fork_in_child()
    reads, resets = bench.host.reads, bench.allocator.resets
    bench.monitor.close_span(session, span.id)
    inner = bench.monitor.open_span(session, "step")
    following = bench.monitor.turn(session, inner.id, "step", "")
    bench.monitor.close_span(session, following.id)
    bench.monitor.shutdown()

    assert (bench.host.reads, bench.allocator.resets) == (reads, resets)


def test_a_source_is_not_closed_while_its_reading_hangs(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver library must not be shut down under a call in flight (nvitop#222)."""
    reads, release = threading.Event(), threading.Event()

    def hang() -> None:
        reads.set()
        release.wait(60.0)

    bench.driver.meanwhile = hang
    polling = threading.Thread(target=bench.sampler.poll)
    polling.start()
    assert reads.wait(60.0)
    monkeypatch.setattr(sampler, "CLOSE_TIMEOUT", 0.0)
    bench.monitor.shutdown()
    closed = bench.driver.closed, bench.host.closed
    release.set()
    polling.join()

    assert closed == (False, True)


def test_devices_of_two_sources_are_one() -> None:
    """Each source fills what the other leaves empty, and the larger of two capacities counts."""
    torch = FakeSource([Device("cuda:0", "", "GPU-1", 4400.0)], [Series("cuda:0", "allocated")])
    listed = [
        Device("cuda:0", "NVIDIA H200", "", 5000.0),
        Device("cuda:10", ""),
        Device("cuda:2", ""),
    ]
    driver = FakeSource(listed, [Series("cuda:0", "device_used")])
    host = FakeSource([Device("cpu", "CPU")], [Series("cpu", "allocated")])
    sampler = Sampler([host, torch, driver])
    sampler.poll()

    assert [device.key for device in sampler.devices] == ["cuda:0", "cuda:2", "cuda:10", "cpu"]
    assert sampler.devices[0] == Device("cuda:0", "NVIDIA H200", "GPU-1", 5000.0)


def test_the_next_poller_does_not_repeat_the_last_value_of_a_hung_source(bench: Bench) -> None:
    """While a driver call hangs, ticks continue without it, and its old value is not shown as new."""
    session, _ = bench.watch()
    reader = next(one for one in bench.sampler._readers if one.source is bench.driver)
    reader.busy.acquire()
    bench.pass_time(0.5)
    value = session.latest("cuda:0/device_used")
    bench.pass_time(0.7)

    assert value == 600.0
    assert math.isnan(session.latest("cuda:0/device_used"))
    assert session.latest(HEAP) == 10.0


def test_a_row_older_than_the_newest_series_is_appended() -> None:
    """Another thread may add series between the reading and the append."""
    recorder = Recorder()
    watched = Watched(recorder, WatchOptions(), 0.0)
    metrics = ("allocated", *HELD, "unattributed")
    series = tuple(Series("cpu", metric, metric) for metric in metrics)
    watched.adopt((Device("cpu", "host"),), series)
    for allocated in (7.0, 10.0):
        watched.unexplained.rebase({HEAP: allocated, "cpu/weights": 4.0})
    rows = {HEAP: 10.0}, {HEAP: 12.0, "cpu/weights": 4.0}
    appended = [watched.append(row, 1.0).values for row in rows]

    assert appended[0][0] == 10.0
    assert appended[1][-1] == 3.0


def test_a_sample_amid_new_series_is_as_wide_as_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample of another thread has as many values as the session has series at that time."""
    recorder = Recorder()
    watched = Watched(recorder, WatchOptions(), 0.0)
    series = (Series("cpu", "allocated"), Series("cpu", "reserved"))
    watched.adopt((Device("cpu", "CPU"),), series[:1])
    watched.append({HEAP: 1.0}, 0.0)
    adopt = recorder.adopt

    def adopted_late(*new: Any) -> None:
        watched.append({HEAP: 2.0, "cpu/reserved": 3.0}, 1.0)
        adopt(*new)
        watched.append({HEAP: 4.0, "cpu/reserved": 5.0}, 2.0)

    monkeypatch.setattr(recorder, "adopt", adopted_late)
    watched.adopt((Device("cpu", "CPU"),), series)
    watched.append({HEAP: 6.0, "cpu/reserved": 7.0}, 3.0)

    allocated, reserved = (watched.session.index(each.key) for each in series)
    assert watched.session.timeline.high[:, allocated].tolist() == [1.0, 2.0, 4.0, 6.0]
    assert watched.session.timeline.high[-1, reserved] == 7.0


def test_series_that_come_in_the_middle_of_an_edge_are_not_in_it() -> None:
    """A row that was read before another thread added them is still appended."""
    watched = Watched(Recorder(), WatchOptions(), 0.0)
    series = tuple(Series("cpu", metric, metric) for metric in ("allocated", *HELD))
    watched.adopt((Device("cpu", "host"),), series)
    row = {HEAP: 7.0, "cpu/weights": 4.0}
    watched.adopt((Device("cpu", "host"),), (*series, Series("cpu", "unattributed")))
    watched.unexplained.base(1, "step", "step", row, is_inner=False)

    assert watched.append(row, 1.0).values[0] == 7.0


def test_unloading_notes_a_lower_user_peak(bench: Bench) -> None:
    """The user's own peak may read lower after a watch; otherwise nothing is noted."""
    bench.allocator.free(bench.allocator.alloc(32 << 20))
    session, span = bench.watch()
    bench.monitor.close_span(session, span.id)

    assert "cuda:0 32.0 MiB" in bench.monitor.shutdown()
    assert not bench.allocator.installed
    assert Bench().monitor.shutdown() == ""


def test_many_threads_lose_nothing(bench: Bench) -> None:
    """Four threads open and close spans while a fifth reads: every span is entered, once."""
    session, _ = bench.watch(interval=60.0)

    def make() -> None:
        for _ in range(60):
            span = bench.monitor.open_span(session, "forward", "")
            bench.monitor.close_span(session, span.id)

    def read() -> None:
        for _ in range(300):
            _ = session.spans

    on_threads(*[make] * 4, read)
    spans = session.spans

    assert len({span.id for span in spans}) == len(spans) == 241
    assert all(span.stop is not None for span in spans[1:])


def test_no_span_is_opened_while_its_session_is_ended(bench: Bench) -> None:
    """A session that ends refuses spans of other threads, so that none stays open."""
    session, _ = bench.watch()
    refused: list[WatchStateError] = []

    def next_step(_: Span) -> None:
        try:
            bench.monitor.open_span(session, "forward")
        except WatchStateError as error:
            refused.append(error)

    bench.monitor.recorder(session).on_step(next_step)
    bench.monitor.open_span(session, "step")
    bench.monitor.end(session)

    assert len(refused) == 1
    assert not bench.monitor.poller.alive
    assert not bench.monitor.ledger.so_far()
