"""The wire read back: how many rows a message has, where its gaps are, and what is left out of it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hfmem_widget.session import Sample, Timeline
from hfmem_widget.view.wire import protocol
from hfmem_widget.view.wire.publisher import Publisher
from tests.unit.view.wire.test_protocol import make_recorder, make_session
from tests.unit.view.wire.test_publisher import Line


def timeline_of(samples: int, *, capacity: int = 4096) -> Timeline:
    timeline = Timeline(1, capacity)
    for at in range(samples):
        timeline.append(float(at), (float(at % 7),))
    return timeline


@pytest.mark.parametrize(
    ("samples", "capacity", "most", "rows"),
    [
        (40, 4096, 40, 40),
        (41, 4096, 40, 28),
        (80, 4096, 40, 40),
        (81, 4096, 40, 34),
        (20, 16, 20, 20),
        (24, 16, 23, 12),
        (24, 16, 24, 24),
        (100, 64, 40, 34),
        (100, 64, 99, 50),
        (100, 64, 100, 100),
    ],
)
def test_a_timeline_is_folded_no_further_than_it_must_be(
    samples: int, capacity: int, most: int, rows: int
) -> None:
    """One that fits is sent as it is; a stretch that stands for several samples takes two rows."""
    time, values = protocol.decimate(timeline_of(samples, capacity=capacity), most)

    assert len(time) == len(values) == rows <= most
    assert np.all(np.diff(time) >= 0)
    assert (values.min(), values.max()) == (0.0, 6.0)


def test_of_many_gaps_the_longest_are_sent_in_their_order() -> None:
    """An eighth of the rows at most; each stands in the middle of its gap."""
    timeline = timeline_of(10)
    for at, length in ((1, 0.1), (2, 0.5), (3, 0.2), (4, 0.9), (5, 0.3)):
        timeline.add_gap(at + 0.05, at + 0.05 + length)
    time, values = protocol.decimate(timeline, 23)

    missing = np.isnan(values).all(axis=1)
    assert time[missing].tolist() == pytest.approx([2.3, 4.5])
    assert len(time) == 12
    assert np.all(np.diff(time) >= 0)


@pytest.mark.parametrize(("rows", "gaps", "folds"), [(29, 1, False), (30, 1, True), (32, 0, False)])
def test_gaps_are_rows_too(rows: int, gaps: int, *, folds: bool) -> None:
    """What fits beside none is folded beside one that takes its place."""
    timeline = timeline_of(rows)
    for _ in range(gaps):
        timeline.add_gap(3.2, 3.8)
    time, _ = protocol.decimate(timeline, 30 if gaps else 32)

    assert (len(time) < rows + gaps) is folds


@pytest.mark.parametrize(
    ("columns", "detail", "most"),
    [
        (1, protocol.FULL, 1000),
        (5, protocol.FULL, 1000),
        (6, protocol.FULL, 1000),
        (7, protocol.FULL, 910),
        (72, protocol.FULL, 110),
        (3, protocol.COARSE, 60),
        (9, protocol.COARSE, 31),
        (72, protocol.COARSE, 8),
        (3, protocol.BRIEF_NEWS, 30),
        (9, protocol.BRIEF_NEWS, 18),
        (0, protocol.NEWS, 256),
        (1, protocol.NEWS, 256),
        (3, protocol.NEWS, 153),
    ],
)
def test_rows_of_a_message_are_as_many_as_there_is_room_for(
    columns: int, detail: protocol.Detail, most: int
) -> None:
    """Eight bytes for the time of each and four for each figure; eight rows there always are."""
    assert protocol._most_rows(columns, detail) == most


@pytest.mark.parametrize(("samples", "rows"), [(30, 30), (31, 22)])
def test_news_are_folded_from_the_first_row_too_many_on(samples: int, rows: int) -> None:
    """As many as there is room for go as they are."""
    session = make_session()
    news = [(float(at), (1.0, 2.0, 3.0, 4.0)) for at in range(samples)]
    message, (time, values) = protocol.rows(session, "run", 1, news, [], detail=protocol.BRIEF_NEWS)

    assert message["rows"] == len(time) // 8 == rows
    assert len(values) == 4 * 3 * rows


class Read(Line):
    """A wire whose rows are read."""

    def send(self, message: protocol.Message, buffers: protocol.Buffers) -> None:
        super().send(message, buffers)
        if message["kind"] == "rows":
            wide = len(protocol.charted(self.session))
            found = np.frombuffer(buffers[1], "<f4").reshape(-1, wide)
            times = np.frombuffer(buffers[0], "<f8")
            self.breaks += times[np.isnan(found).all(axis=1)].tolist()

    def __init__(self) -> None:
        self.breaks: list[float] = []
        super().__init__(make_recorder(samples=0))

    def sleep(self, seconds: float) -> float:
        """Sample nothing for so long; return the middle of that."""
        began = self.session.last_sample.time
        self.clock.advance(seconds)
        self.session.timeline.add_gap(began, self.clock.now)
        middle = (began + self.clock.now) / 2
        self.recorder.append(Sample(self.clock.now, tuple(1.0 for _ in self.session.series)))
        self.recorder.publish()
        return middle


def test_a_gap_breaks_the_line_of_a_page_that_watches() -> None:
    """Each gap once, in its middle, between the readings around it."""
    line = Read()
    line.run(1.0)
    middles = []
    for seconds in (2.0, 3.0):
        middles.append(line.sleep(seconds))
        line.run(1.0)

    assert line.breaks == pytest.approx(middles)
    assert line.times == sorted(line.times)


def test_a_run_without_gaps_has_no_breaks() -> None:
    """Rows between ticks are readings."""
    line = Read()
    line.run(3.0)

    assert line.times != []
    assert line.breaks == []


@pytest.mark.parametrize(
    ("unseen", "every"), [(29.0, 0.25), (31.0, 0.5), (149.0, 0.5), (152.0, 1.5), (302.0, 2.6)]
)
def test_the_pace_goes_by_how_long_nobody_was_seen(unseen: float, every: float) -> None:
    """Quick for half a minute, then slower in three steps."""
    line = Line(make_recorder(samples=0))
    line.clock.advance(unseen)

    assert line.publisher._pace(line.clock.now).news == every
    line.publisher.seen()
    assert line.publisher._pace(line.clock.now).news == 0.25


def test_a_span_is_remembered_until_four_hundred_newer_ones_are() -> None:
    """What a page knows of spans takes bounded memory, and the newest are what it knows."""
    recorder = make_recorder()
    session = recorder.session
    spans = [recorder.open_span("cell", str(at), session.last_sample) for at in range(450)]
    publisher = Publisher(session, lambda *_: None)
    publisher._remember(spans)

    assert list(publisher._spans) == [one.id for one in spans[50:]]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_null(value: float) -> None:
    """JSON has no word for it."""
    assert protocol._number(value) is None
    assert protocol._number(0.0) == 0.0


def test_times_on_the_wire_have_the_digits_that_a_screen_can_show() -> None:
    """Milliseconds of the watch, tenths of them at the ends of a span."""
    recorder = make_recorder(samples=0)
    session = recorder.session
    values = tuple(1.0 for _ in session.series)
    recorder.append(Sample(0.12345678, values))
    span = recorder.open_span("cell", "a", session.last_sample)
    recorder.append(Sample(1.98765432, values))
    closed = recorder.close_span(span.id, session.last_sample, {})
    told = protocol.describe_span(session, closed)

    assert (told["start"], told["stop"]) == (0.1235, 1.9877)
    assert protocol.describe_status(session)["elapsed"] == 1.988
