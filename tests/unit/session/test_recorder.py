"""The recorder of a session, and its listeners."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import Mock

import pytest

from hfmem_widget.errors import WatchStateError
from hfmem_widget.session import Peak, Recorder, Sample, Session, Timeline
from hfmem_widget.session.recorder import BROKEN_OFF, MOST_UNPUBLISHED
from tests.data.recorders import KEY, recorder_of
from tests.data.threads import on_threads

WRITES = 400


@pytest.fixture
def recorder() -> Recorder:
    return recorder_of(timeline=Timeline(0, 64))


def read(recorder: Recorder, time: float) -> Sample:
    return recorder.append(Sample(time, (time,)))


def test_subscribers_get_every_sample_once(recorder: Recorder) -> None:
    """Subscribers get the samples of a tick together with those of edges since the last tick."""
    received: list[list[float]] = []
    recorder.subscribe(lambda _, samples: received.append([one.time for one in samples]))
    read(recorder, 0.0)
    recorder.publish()
    for time in (0.03, 0.07, 0.1):
        read(recorder, time)
    recorder.publish()
    recorder.publish()

    assert received == [[0.0], [0.03, 0.07, 0.1], []]


def test_samples_kept_for_subscribers_are_bounded(recorder: Recorder) -> None:
    """Without ticks, the newest samples are delivered."""
    received: list[Sample] = []
    recorder.subscribe(lambda _, samples: received.extend(samples))
    for time in range(2 * MOST_UNPUBLISHED):
        read(recorder, float(time))
    recorder.publish()

    assert [one.time for one in received] == list(range(MOST_UNPUBLISHED, 2 * MOST_UNPUBLISHED))


def test_a_failing_subscriber_is_removed_and_the_others_are_called(recorder: Recorder) -> None:
    """A subscriber that fails is not called again, and a note says so."""
    received: list[int] = []
    recorder.subscribe(Mock(side_effect=OSError("gone")))
    recorder.subscribe(lambda _, samples: received.append(len(samples)))
    for time in (0.0, 1.0):
        read(recorder, time)
        recorder.publish()

    assert received == [1, 1]
    assert len(recorder.subscribers) == 1
    assert ["gone" in note for note in recorder.session.notes] == [True]


def test_nothing_is_recorded_after_the_end(recorder: Recorder) -> None:
    """A reading that a poller appends after the end is dropped."""
    read(recorder, 0.0)
    recorder.stop(100.0)
    assert (read(recorder, 1.0).time, recorder.session.last_sample.time) == (1.0, 0.0)
    assert recorder.session.timeline.samples == 1


def test_a_session_that_is_broken_off_keeps_its_data(recorder: Recorder) -> None:
    """Open spans end at the newest sample, with sampled peaks if there are no exact ones."""
    outer = recorder.open_span("cell", "a", read(recorder, 1.0))
    inner = recorder.open_span("block", "b", read(recorder, 2.0))
    recorder.progress(inner.id, {KEY: Peak(50.0, "exact")})
    read(recorder, 9.0)
    recorder.append(Sample(10.0, (3.0,)))
    for _ in range(2):
        recorder.break_off(100.0, "why")
    session = recorder.session

    assert (session.running, session.broken_off, session.notes) == (False, True, ["why"])
    assert session.open_spans == ()
    assert [(one.stop, one.outcome) for one in session.spans] == [(10.0, BROKEN_OFF)] * 2
    assert session.span(outer.id).peaks == {KEY: Peak(9.0, "sampled")}
    assert session.span(inner.id).peaks == {KEY: Peak(50.0, "exact")}
    with pytest.raises(WatchStateError):
        recorder.close_span(inner.id, session.last_sample, {})


def test_new_ids_follow_given_ones(recorder: Recorder) -> None:
    """A recorder of spans that have ids already opens others with new ids."""
    sample = read(recorder, 0.0)
    recorder.open_span("cell", "a", sample, 7)

    assert recorder.open_span("step", "b", sample).id == 8


@contextmanager
def switching_often() -> Iterator[None]:
    """Make threads switch after every few instructions."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


def check_spans(session: Session) -> None:
    ids = [one.id for one in session.spans]
    assert ids == sorted(set(ids))
    assert [one.kind for one in session.open_spans][:1] == ["cell"]


def check_rows(session: Session) -> None:
    part = session.between(0.0, 1e9)
    assert len(part.time) == len(part.low) == len(part.high)
    # Each sample's value is its time, and a row's highest is not above the next row's lowest.
    assert (part.low[:, 0] == part.time).all()
    assert (part.high[:-1, 0] < part.low[1:, 0]).all()


def check_highs(session: Session) -> None:
    newest = session.last_sample.time
    assert session.peak(KEY) >= newest
    assert session.highest_in(1, KEY) >= newest


def check_steps(session: Session) -> None:
    table, count = session.folded_steps(10_000), session.steps.count
    assert table[:, 1].tolist() == sorted(table[:, 1].tolist())
    assert len(table) <= count
    assert sum(one.count for one in session.phases(1)) <= session.steps.count


def check_copies(session: Session) -> None:
    state = session.__getstate__()
    assert state["timeline"].samples >= len(state["timeline"])
    assert state["last_sample"].time >= state["timeline"].time[-1]


@pytest.mark.parametrize("check", [check_spans, check_rows, check_highs, check_steps, check_copies])
def test_reads_are_whole_amid_writes(recorder: Recorder, check: Callable[[Session], None]) -> None:
    """Every read is of one moment, never of half a fold or of a span that is just ending."""
    faults: list[BaseException] = []
    recorder.open_span("cell", "a", read(recorder, 0.0))

    def keep_looking() -> None:
        try:
            while recorder.session.running:
                check(recorder.session)
        except BaseException as error:  # noqa: BLE001  (it is what this is about)
            faults.append(error)

    def write() -> None:
        for number in range(1, WRITES):
            step = recorder.open_span("step", str(number), read(recorder, float(number)))
            recorder.close_span(step.id, read(recorder, number + 0.5), {})
        recorder.stop(1e3)

    with switching_often():
        on_threads(keep_looking, keep_looking, write)

    assert faults == []
    assert recorder.session.steps.count == WRITES - 1
