"""A training's events become spans, in whatever order they come, and whether or not they come."""

import weakref
from typing import Any

import pytest

from hfmem_widget.drivers.training.run import TrainingRun
from hfmem_widget.session import Session, Span
from tests.data.threads import on_threads
from tests.data.timeouts import TimeIsUpError, time_is_up
from tests.unit.monitor.conftest import Bench

SHAPE = {"samples": 2.0, "longest": 8.0, "tokens": 16.0}


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def session(bench: Bench) -> Session:
    """Return a session whose cell is open."""
    return bench.watch(quiet=True)[0]


@pytest.fixture
def run(bench: Bench, session: Session) -> TrainingRun:
    return TrainingRun(bench.monitor, session)


def one_step(run: TrainingRun, number: int = 1) -> None:
    run.step_begins(number)
    run.forward_begins(SHAPE)
    run.forward_ended()
    run.backward_begins()
    run.optimizer_begins()
    run.optimizer_ended()
    run.step_ended()


def tree(session: Session, parent: Span | None = None) -> list[object]:
    """Return kinds as a nested list: each kind, followed by a list of what lies in it."""
    result: list[object] = []
    for span in session.spans:
        if span.parent == (None if parent is None else parent.id):
            inside = tree(session, span)
            result += [span.kind, inside] if inside else [span.kind]
    return result


def test_backward_begins_where_forward_ends(run: TrainingRun, session: Session) -> None:
    """Neighbouring phases share one reading."""
    one_step(run)
    spans = {span.kind: span for span in session.spans}

    assert spans["forward"].after is spans["backward"].before
    assert spans["backward"].after is spans["optimizer"].before


def test_an_aside_says_how_it_ended(run: TrainingRun, session: Session) -> None:
    """An error in an evaluation passes through unchanged."""
    error = ValueError("no data")
    with pytest.raises(ValueError, match="no data") as raised, run.aside("evaluate", "evaluate"):
        raise error

    assert raised.value is error
    assert session.spans[-1].outcome == "raised ValueError"


@pytest.mark.parametrize(
    "event",
    ["forward_ended", "substep_ended", "optimizer_ended", "step_ended", "epoch_ended", "ended"],
)
def test_an_end_without_a_begin_does_nothing(
    run: TrainingRun, session: Session, event: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An event without its begin, as of another release's callbacks, opens no span and prints nothing."""
    getattr(run, event)()

    assert tree(session) == ["cell"]
    assert capsys.readouterr().err == ""


def test_another_thread_is_not_followed(run: TrainingRun, session: Session) -> None:
    """Hooks on other threads, as of nn.DataParallel's replicas, open no span."""
    run.step_begins(1)
    on_threads(lambda: run.forward_begins(SHAPE))

    assert tree(session) == ["cell", ["step"]]


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_training_that_outlives_its_cell_is_followed_no_more(
    run: TrainingRun,
    bench: Bench,
    session: Session,
    capsys: pytest.CaptureFixture[str],
    *,
    goes_on: bool,
) -> None:
    """A training that outlives its cell is not followed, and nothing is printed."""
    run.train_begins("train", {})
    run.step_begins(1)
    if goes_on:
        bench.monitor.close_span(session, session.spans[0].id)
    else:
        bench.monitor.end(session)
    run.step_ended()
    one_step(run, 2)

    assert capsys.readouterr().err == ""
    assert sum(span.kind == "step" for span in session.spans) == 1
    assert not bench.monitor.poller.alive


@pytest.mark.parametrize("trains", [True, False])
def test_an_ended_run_leaves_nothing(bench: Bench, session: Session, *, trains: bool) -> None:
    """A training or an evaluation that has ended is not kept by its session."""
    run = TrainingRun(bench.monitor, session)
    if trains:
        run.train_begins("train", {})
        bench.monitor.end(session)
        run.ended()
    else:
        with run.aside("evaluate", "evaluate"):
            pass
    reference = weakref.ref(run)
    del run

    assert reference() is None


def test_a_log_leaves_out_inner_trainings(run: TrainingRun, bench: Bench, session: Session) -> None:
    """A training within a step does not add its tokens to the outer log."""
    run.train_begins("train", {})
    run.step_begins(1)
    run.forward_begins(SHAPE)
    inner = TrainingRun(bench.monitor, session)
    inner.train_begins("train", {})
    one_step(inner)
    inner.ended()
    run.step_ended()

    assert run.take_figures()["tokens"] == 16.0


@pytest.mark.usefixtures("timeout")
def test_a_timeout_of_the_users_reaches_the_training(
    run: TrainingRun,
    bench: Bench,
    session: Session,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A timeout is raised once ours is done, and a training that goes on is followed."""
    open_span = bench.monitor.open_span

    def timed_out(*args: Any, **kwargs: Any) -> Span:
        time_is_up()
        return open_span(*args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(bench.monitor, "open_span", timed_out)
        with pytest.raises(TimeIsUpError):
            run.step_begins(1)
    one_step(run, 2)

    assert tree(session) == ["cell", ["step", "step", ["forward", "backward", "optimizer"]]]
    assert capsys.readouterr().err == ""
