"""The pace of the wire, and what is sent of all ranks: as much of a thousand as of eight."""

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from hfmem_widget.session import Ranks, RankStrip, Sample
from hfmem_widget.view.wire.protocol import describe_ranks, newest
from hfmem_widget.view.wire.publisher import ENVELOPE
from tests.data.overviews import EIGHT, MANY, TWO, overview_recorder, shared_overview
from tests.data.wire import Sent, Wire
from tests.unit.view.wire.test_protocol import add_steps, make_recorder


class Line(Wire):
    """A wire whose rows are read."""

    @property
    def times(self) -> list[float]:
        return [time for one in self.news for time in one.times]

    def make_steps(self, count: int, *, first: int = 1, duration: float) -> None:
        """Make steps one after the other, which advances the time."""
        add_steps(self.recorder, count, first=first, duration=duration)
        self.clock.now = self.session.last_sample.time

    @property
    def steps(self) -> list[Sent]:
        return [one for one in self.sent if "steps" in one.message]


@pytest.fixture
def line() -> Line:
    return Line(make_recorder(samples=0))


def test_readings_between_two_ticks_are_sent_too(line: Line) -> None:
    """What was read at a span's edge reaches the page as a row, not only in a snapshot."""
    line.run(1.0)
    edge = line.clock.now + 0.05
    line.recorder.append(Sample(edge, tuple(9.0 for _ in line.session.series)))
    line.run(0.5)

    assert edge in line.times
    assert line.times == sorted(line.times)


def assert_not_flooded(line: Line) -> None:
    for start in range(12):
        sizes = [one.size for one in line.sent if start <= one.at < start + 1]
        assert len(sizes) <= 6
        assert sum(sizes) <= 100_000


@pytest.mark.parametrize(
    ("interval", "gpus", "parts"),
    [(0.01, 1, True), (0.05, 8, True), (0.1, 4, False), (0.7, 8, True)],
)
def test_the_wire_is_never_flooded(interval: float, gpus: int, *, parts: bool) -> None:
    """In any second there are at most 6 messages and 100 kB, whatever is sampled."""
    line = Line(make_recorder(gpus, samples=0, parts=parts))
    line.run(12.0, interval)
    assert_not_flooded(line)


def test_the_pace_slows_while_nobody_is_seen(line: Line) -> None:
    """After five minutes without a sign of a reader, a message goes out every 2.6 seconds."""
    line.run(390.0)
    last = [one.at for one in line.sent if one.at > 330]

    assert 20 <= len(last) <= 24
    assert max(later - one for one, later in pairwise(last)) <= 3.0


@pytest.mark.parametrize("parts", [False, True])
def test_a_page_that_knows_nothing_soon_gets_an_outline(*, parts: bool) -> None:
    """However long the run, every third message is a snapshot: one comes about every eight seconds."""
    line = Line(make_recorder(samples=0, parts=parts))
    line.run(1300.0)
    snapshots = [one.at for one in line.sent if one.kind == "snapshot" and 300 < one.at < 600]

    assert max(later - one for one, later in pairwise(snapshots)) <= 8.2


def test_a_reader_who_is_seen_keeps_the_pace_quick(line: Line) -> None:
    """A page that says it is there gets four messages a second, however long the run."""
    for _ in range(70):
        line.publisher.seen()
        line.run(10.0)
    assert len([one.at for one in line.sent if one.at > 690]) >= 30


@pytest.mark.parametrize(("gpus", "parts", "wait"), [(1, False, 9.5), (8, True, 27.0)])
def test_a_closed_tab_costs_the_server_little(gpus: int, wait: float, *, parts: bool) -> None:
    """An hour of two steps a second stays below 5 MB in jupyter_server, with outlines for new pages."""
    line = Line(make_recorder(gpus, samples=0, parts=parts))
    # Ten minutes are simulated, whose second half stands for the rest of the hour.
    for number in range(1, 1200):
        line.make_steps(1, first=number, duration=0.5)
        for tick in range(5):
            line.recorder.append(
                Sample(line.clock.now + tick / 1000, (1.2345e10,) * len(line.session.series))
            )
        line.recorder.publish()
    sizes = [(one.at, ENVELOPE + len(json.dumps(one.message)) + one.size) for one in line.sent]
    whole, late = (sum(size for at, size in sizes if at > since) for since in (0, 300))
    snapshots = [one.at for one in line.sent if one.kind == "snapshot" and one.at > 300]

    assert 1_000_000 < whole + 10 * late < 5_000_000
    assert max(later - one for one, later in pairwise(snapshots)) <= wait


def test_nothing_new_is_lost_by_an_outline(line: Line) -> None:
    """What a coarse snapshot stands in the place of comes with the next rows."""
    line.run(29.0)
    assert {one.message.get("coarse", False) for one in line.sent} == {True, False}
    assert len(line.times) == pytest.approx(290, abs=3)


def test_an_outline_is_as_far_from_a_whole_snapshot_as_from_another(line: Line) -> None:
    """Every twentieth message is one, counted from the last snapshot of either kind."""
    line.run(12.0)
    line.publisher.resync()
    line.run(12.0)
    at = [number for number, one in enumerate(line.sent) if one.kind == "snapshot"]
    distances = [(line.sent[last].message.get("coarse"), last - one) for one, last in pairwise(at)]

    assert [since for coarse, since in distances if coarse] == [20, 20]
    assert len(at) == 4


def test_a_page_that_missed_something_gets_a_snapshot_with_the_next_tick(line: Line) -> None:
    """`resync` is answered at once, after what was new: a page keeps its finer rows."""
    line.run(2.0)
    line.publisher.resync()
    line.run(0.1)

    assert line.sent[-1].kind == "snapshot"


def test_the_first_step_brings_a_snapshot_and_further_ones_come_as_news(line: Line) -> None:
    """A page must know the columns; from then on each step travels once."""
    line.run(1.0)
    for number in range(1, 9):
        line.make_steps(1, first=number, duration=0.2)
        line.run(0.1)
    kinds = [one.kind for one in line.steps]
    numbers = [
        int(number)
        for one in line.steps
        if one.kind == "rows" or one is line.steps[0]
        for number in one.steps[:, 1]
    ]
    assert kinds[0] == "snapshot"
    assert numbers == sorted(set(numbers))
    assert numbers[:7] == [1, 2, 3, 4, 5, 6, 7]


def test_steps_of_a_further_device_come_with_a_schema(line: Line) -> None:
    """A snapshot announces new columns, as it does for series."""
    line.run(1.0)
    add_steps(line.recorder, 1)
    line.run(1.0)
    wider = make_recorder(gpus=2, samples=0).session
    line.recorder.adopt(wider.devices, wider.series)
    line.run(1.0)
    before = len(line.sent)
    line.clock.now = line.session.last_sample.time
    add_steps(line.recorder, 1, first=2)
    line.run(0.1)
    assert "cuda:1/peak" in line.sent[before].message["schema"]["step_columns"]


def test_the_last_steps_come_as_news_before_the_last_snapshot(line: Line) -> None:
    """So a page that missed nothing does not replace its own rows by the snapshot's coarser ones."""
    line.run(1.0)
    line.make_steps(300, duration=0.01)
    line.run(0.3)
    add_steps(line.recorder, 2, first=301, duration=0.01)
    line.publisher.finish()
    news, last = line.steps[-2:]
    assert (news.kind, last.kind) == ("rows", "snapshot")
    assert news.steps[:, 1].tolist() == [301, 302]


@pytest.mark.parametrize("parts", [False, True])
def test_a_hundred_steps_a_second_on_eight_devices_stay_within_the_bound(*, parts: bool) -> None:
    """All messages of any second have at most 100 kB, snapshots included."""
    line = Line(make_recorder(8, samples=0, parts=parts))
    for number in range(0, 1200, 5):
        line.make_steps(5, first=number + 1, duration=0.01)
        line.recorder.publish()
    assert_not_flooded(line)


def test_a_gap_breaks_the_line_of_a_page_that_watches(line: Line) -> None:
    """Each gap is sent once, in its middle, between the readings around it."""
    line.run(1.0)
    middles = []
    for seconds in (2.0, 3.0):
        middles.append(line.sleep(seconds))
        line.run(1.0)

    assert [at for one in line.news for at in one.breaks] == pytest.approx(middles)
    assert line.times == sorted(line.times)


class Page(Wire):
    """What a page is sent of an overview that grows by a sample each quarter of a second."""

    def __init__(self) -> None:
        super().__init__(overview_recorder(MANY, until=300, ended=False))

    def values(self) -> tuple[float, ...]:
        return self.session.last_sample.values

    def follow(self, seconds: int) -> None:
        """Sample for so long, with new columns of the strip each second."""
        for _ in range(seconds):
            self.grow()
            self.run(1.0, 0.25)

    def grow(self) -> None:
        ranks = self.session.ranks
        assert ranks is not None
        strip, rows = ranks.strip, len(ranks.strip.first)
        at = (*strip.at, strip.at[-1] + 1.0)[-240:]
        cells = (strip.cells + strip.cells[-rows:])[-240 * rows :]
        self.session.ranks = replace(ranks, strip=RankStrip(strip.first, at, cells))

    def ranks_sent(self, kind: str) -> list[tuple[float, dict[str, Any], bytes]]:
        return [
            (one.at, one.message["ranks"], one.buffers[-1])
            for one in self.sent
            if one.kind == kind and "ranks" in one.message
        ]


def test_news_comes_at_most_once_a_second() -> None:
    """However often samples come, news comes at most once a second."""
    page = Page()
    page.follow(20)
    times = [at for at, _, _ in page.ranks_sent("rows")]

    assert len(times) > 10
    assert min(late - early for early, late in pairwise(times)) >= 1.0


def test_ranks_are_sent_only_when_they_change() -> None:
    """Ranks are replaced whole, so the same object has no news."""
    page = Page()
    page.run(4.0, 0.25)

    assert page.ranks_sent("rows") == []


def test_between_snapshots_only_the_newest_columns_are_sent() -> None:
    """The columns sent are the last one, which may have grown, and those after it."""
    page = Page()
    page.follow(10)
    (_, first, _), (_, second, cells) = page.ranks_sent("rows")[:2]

    assert "first" not in first["strip"]
    assert second["strip"]["at"][0] == first["strip"]["at"][-1]
    assert len(cells) == len(second["strip"]["at"]) * 64 <= 3 * 64


def test_a_snapshot_has_the_whole_strip() -> None:
    """A snapshot has the whole strip, and says whose its rows are."""
    page = Page()
    page.follow(1)
    _, ranks, cells = page.ranks_sent("snapshot")[0]

    assert ranks["strip"]["first"] == list(range(0, 1024, 16))
    assert len(cells) == 64 * len(ranks["strip"]["at"]) > 10_000


def test_an_outline_has_a_coarse_strip() -> None:
    """A page that was reloaded sees all of the run, in a tenth of the bytes."""
    page = Page()
    page.follow(12)
    outline = next(one.message for one in page.sent if one.message.get("coarse"))

    assert 8 <= len(outline["ranks"]["strip"]["at"]) <= 24
    assert page.session.ranks is not None
    assert outline["ranks"]["strip"]["at"][0] <= page.session.ranks.strip.at[1]


@pytest.mark.parametrize("plan", [TWO, EIGHT, MANY], ids=lambda plan: str(plan.world))
def test_news_takes_two_kilobytes_at_most(plan: Any) -> None:
    """News with the table, the phases and two columns takes two kilobytes at most."""
    session = shared_overview(plan)
    assert session.ranks is not None
    ranks = replace(session.ranks, strip=newest(session.ranks.strip, 2))
    message, cells = describe_ranks(ranks)
    del message["strip"]["first"]

    assert len(json.dumps(message)) + len(cells) <= 2_100


def test_as_much_is_sent_of_sixteen_thousand_ranks() -> None:
    """Tables and strips are bounded, whatever the session has."""
    session = shared_overview(MANY)
    assert session.ranks is not None
    many = replace(session.ranks, world=16_384, table=session.ranks.table * 9)

    sizes = [len(json.dumps(describe_ranks(each)[0])) for each in (session.ranks, many)]
    assert sizes[1] <= sizes[0] + 20


def test_figures_that_are_not_known_are_null() -> None:
    """Figures that are not known are null, since JSON has no NaN."""
    ranks, cells = describe_ranks(Ranks(4))

    assert json.loads(json.dumps(ranks, allow_nan=False))["median"] is None
    assert cells == b""


def test_ranks_are_sent_rarely_while_no_page_looks() -> None:
    """A server keeps every message for a page that is not connected."""
    page = Page()
    page.follow(420)
    late = [len(json.dumps(one.message)) + one.size for one in page.sent if one.at > 320]

    assert sum(late) < 100 * 1_000
