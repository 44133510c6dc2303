"""Whatever of ours fails, the user's code does what it does unwatched, and the next watch is healthy."""

import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import hfmem_widget
from hfmem_widget import guard
from hfmem_widget.monitor import process
from hfmem_widget.monitor.monitor import BROKEN_OFF_NOTE
from hfmem_widget.monitor.on_import import WhenImported
from hfmem_widget.options import WatchOptions
from hfmem_widget.ranks.environment import SITE, lends
from tests.data.faults_everywhere import Injection, Place
from tests.data.users_code import PIECE, RESULT, SCENARIOS, UsersError
from tests.unit.monitor.conftest import Bench

Scenario = Callable[[Bench], str]
MakeBench = Callable[[], Bench]

_gone_through: set[Place] = set()


@pytest.fixture
def fake_monitor(monkeypatch: pytest.MonkeyPatch) -> MakeBench:
    """Return what makes a monitor without hardware the one of this process, as often as it is wanted."""

    def make() -> Bench:
        bench = Bench()
        process.this.monitor = bench.monitor
        return bench

    return make


def result_of(scenario: Scenario, bench: Bench) -> str:
    """Return what the user's code comes to: what it returns, or the text of its own error."""
    try:
        return scenario(bench)
    except UsersError as error:
        return str(error)


def what_is_left_of_the_process() -> Iterator[str]:
    """Yield what is not as it was of what a process has once."""
    if guard.is_deferring():
        yield "signals are held back"
    if isinstance(signal.getsignal(signal.SIGINT), guard._StandIn):
        yield "a handler is left"
    if lends() or SITE in os.environ.get("PYTHONPATH", ""):
        yield "the environment is still lent"


def what_is_wrong(bench: Bench) -> Iterator[str]:
    """Yield what a fault has left behind, or has spoilt of the watch after it."""
    if bench.monitor.register.all():
        yield "a session is left"
    if bench.tickers and bench.tickers[-1].alive:
        bench.tickers[-1].step()
        if bench.tickers[-1].alive:
            yield "the poller runs"
    yield from what_is_left_of_the_process()
    peak = bench.allocator.user_stats(0)["allocated_bytes"]["all"]["peak"]
    if peak != 16 * PIECE:
        yield f"the user's own peak reads {peak}"
    with hfmem_widget.watch("the next one", quiet=True) as session, hfmem_widget.span("step"):
        bench.allocator.free(bench.allocator.alloc(PIECE))
    if session.notes or len(session.spans) != 2:
        yield f"the next watch has {session.notes} and {len(session.spans)} spans"
    for span in session.spans:
        span_peak = span.peaks.get("cuda:0/allocated")
        if span_peak is None or (span_peak.value, span_peak.certainty) != (PIECE, "exact"):
            yield f"the next watch's {span.kind} has the peak {span_peak}"


def faults_at(places: Iterable[Place], scenario: Scenario, make: MakeBench) -> list[str]:
    """Return what goes wrong where each of these lines has a fault, the first time that it is reached."""
    wrong = []
    for place in places:
        bench, injection = make(), Injection(place)
        try:
            result = injection(partial(result_of, scenario, bench))
        except BaseException as error:  # noqa: BLE001  (whatever reaches the user is what this is about)
            result = f"{type(error).__name__}: {error}"
        faults = [f"the user's code came to {result!r}"] if result != RESULT else []
        faults += what_is_wrong(bench)
        wrong += [f"{injection.where}: {one}" for one in faults]
    return wrong


def reached_by(scenario: Scenario, make: MakeBench) -> list[Place]:
    """Return the lines below an entry that a scenario goes through when it is run again, without a fault."""
    result_of(scenario, make())
    bench, counting = make(), Injection()
    assert counting(lambda: result_of(scenario, bench)) == RESULT
    return list(counting.reached)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.__name__)
def test_a_fault_at_a_line_of_ours_stays_ours(scenario: Scenario, fake_monitor: MakeBench) -> None:
    """A `MemoryError` at some lines below an entry, in each scenario others; `make test-full` tries all."""
    reached = reached_by(scenario, fake_monitor)
    first = SCENARIOS.index(scenario) * 3
    wrong = faults_at(reached[first :: 8 * len(SCENARIOS)], scenario, fake_monitor)

    assert len(reached) > 50
    assert not wrong, "\n".join(wrong[:20])


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.__name__)
def test_a_fault_at_any_line_stays_ours(scenario: Scenario, fake_monitor: MakeBench) -> None:
    """At every line; what another scenario has gone through already is tried at every seventh."""
    reached = reached_by(scenario, fake_monitor)
    known = [place for place in reached if place in _gone_through]
    places = [place for place in reached if place not in _gone_through] + known[::7]
    _gone_through.update(reached)
    wrong = faults_at(places, scenario, fake_monitor)

    assert not wrong, f"{len(wrong)} of {len(places)} lines:\n" + "\n".join(wrong[:20])


def entries() -> Iterator[object]:
    """Yield what transformers, torch and IPython call of ours, and what the user's code does."""
    from hfmem_widget import MemoryCallback
    from hfmem_widget.drivers import api as watching
    from hfmem_widget.drivers import follow, generating, optimizers
    from hfmem_widget.drivers import span as spans
    from hfmem_widget.drivers import watch as stretch
    from hfmem_widget.drivers.training import model_hooks
    from hfmem_widget.magics.memwatch import MemwatchMagics
    from hfmem_widget.monitor.patch import _Around
    from hfmem_widget.monitor.peaks import PeakLedger

    yield from (one for name, one in vars(MemoryCallback).items() if name.startswith("on_"))
    yield from (spans._scope, watching.watch, stretch.Watch._start, stretch.Watch.stop)
    scope = spans.SpanScope
    yield from (scope._enter, scope._exit, scope.count, scope._another, stretch.Watch._another)
    yield from (_Around.__enter__, _Around.__exit__, optimizers._act, WhenImported._find)
    yield from (follow.joined, follow.begin, follow.begin_alone, follow.end, follow._at_exit)
    yield generating._is_within_or_unwatched
    yield from (model_hooks._Before._report_guarded, model_hooks._After._report_guarded)
    yield from (PeakLedger._show, PeakLedger._before_reset, PeakLedger._after_reset)
    yield from (MemwatchMagics._arm, MemwatchMagics.cell_begins, MemwatchMagics.cell_ends)


@pytest.mark.parametrize("one", list(entries()), ids=lambda one: one.__qualname__)
def test_every_way_in_goes_through_the_guard(one: Any) -> None:
    """One function around each entry holds signals back and keeps faults in."""
    assert one.__code__ is guard.entry()(print).__code__


def test_what_a_fault_has_kept_from_being_watched_is_said(
    fake_monitor: MakeBench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The session ends where the fault was, says so, and goes by the figures that it has."""
    bench = fake_monitor()
    with hfmem_widget.watch("watched", quiet=True) as session:
        bench.allocator.alloc(PIECE)
        with hfmem_widget.span("whole"):
            pass
        with monkeypatch.context() as broken:
            broken.setattr(bench.ledger, "open", lambda **_: 1 // 0)
            with hfmem_widget.span("broken"):
                pass
        with hfmem_widget.span("after it"):
            pass

    assert session.notes == [BROKEN_OFF_NOTE.format("ZeroDivisionError")]
    assert [span.label for span in session.spans] == ["watched", "whole"]
    assert all(span.stop is not None for span in session.spans)
    assert capsys.readouterr().err.count("\n") == 1


def test_repeats_are_a_line(fake_monitor: MakeBench, capsys: pytest.CaptureFixture[str]) -> None:
    """A hook that fails in every step has one line on stderr, and one more in the next watch."""
    fake_monitor()
    lines = []
    for _ in range(2):
        with hfmem_widget.watch(quiet=True):
            for _ in range(100):
                guard.harmless(Mock(side_effect=RuntimeError("ours")))
        lines.append(capsys.readouterr().err)

    assert lines == ["memwatch: RuntimeError: ours\n"] * 2


def test_faults_stay_inside(fake_monitor: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other session's peak is exact, with what was allocated in the broken span."""
    bench = fake_monitor()
    one = bench.monitor
    broken, healthy = (one.begin(WatchOptions(label=label)) for label in ("broken", "healthy"))
    broken_cell = one.open_span(broken, "cell")
    cell = one.open_span(healthy, "cell")
    monkeypatch.setattr(one.recorder(broken), "open_span", lambda *_: 1 // 0)
    bench.allocator.free(bench.allocator.alloc(PIECE))
    with pytest.raises(ZeroDivisionError):
        one.open_span(broken, "forward")
    bench.pass_time(1.0)
    one.close_span(healthy, cell.id)
    one.end(healthy)

    assert broken.notes == [BROKEN_OFF_NOTE.format("ZeroDivisionError")]
    assert not broken.running
    assert [span.id for span in broken.spans] == [broken_cell.id]
    assert healthy.notes == []
    assert {span.outcome for span in healthy.spans} == {"done"}
    peak = healthy.span(cell.id).peaks["cuda:0/allocated"]
    assert (peak.value, peak.certainty) == (PIECE, "exact")


@pytest.mark.parametrize("error", [MemoryError, RecursionError])
def test_a_source_recovers_at_once(error: type[Exception], fake_monitor: MakeBench) -> None:
    """The same watch goes on with it, and nobody is asked to report a fault of the source."""
    bench = fake_monitor()
    with hfmem_widget.watch("watched", quiet=True) as session:
        bench.host.failure = error("for once")
        with hfmem_widget.span("without"):
            pass
        bench.host.failure = None
        bench.clock.advance(1.0)
        with hfmem_widget.span("with"):
            pass

    _, without, again = session.spans
    assert math.isnan(session.value(without.before, "cpu/allocated"))
    assert session.value(again.before, "cpu/allocated") == 10.0
    assert session.notes == []


def test_where_nothing_can_be_written_a_script_goes_on() -> None:
    """A full disk under stderr is no reason for the user's script to end."""
    script = (
        "import hfmem_widget, sys\n"
        "with hfmem_widget.watch('train'): pass\n"
        "from hfmem_widget.guard import warn\n"
        "warn('x')\n"
        "open(sys.argv[1], 'w').write('saved')\n"
    )
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-u", "-c", script, "/dev/null"]
        subprocess.run(command, stdout=full, stderr=full, check=True)
