"""What is sent of all ranks: rarely, little, and as much for a thousand as for eight."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from hfmem_widget.session import Ranks, RankStrip
from hfmem_widget.view.wire.protocol import describe_ranks, newest
from tests.data.overviews import EIGHT, MANY, TWO, overview_recorder, shared_overview
from tests.data.wire import Wire


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

    def told(self, kind: str) -> list[tuple[float, dict[str, Any], bytes]]:
        return [
            (one.at, one.message["ranks"], one.buffers[-1])
            for one in self.sent
            if one.kind == kind and "ranks" in one.message
        ]


def test_news_comes_at_most_once_a_second() -> None:
    """However often samples do."""
    page = Page()
    page.follow(20)
    times = [at for at, _, _ in page.told("rows")]

    assert len(times) > 10
    assert min(late - early for early, late in pairwise(times)) >= 1.0


def test_nothing_is_sent_that_is_not_new() -> None:
    """Ranks are replaced whole, so that what is the same object is the same."""
    page = Page()
    page.run(4.0, 0.25)

    assert page.told("rows") == []


def test_between_snapshots_only_the_newest_columns_are_sent() -> None:
    """The last that was sent, which may have grown, and those after it."""
    page = Page()
    page.follow(10)
    (_, first, _), (_, second, cells) = page.told("rows")[:2]

    assert "first" not in first["strip"]
    assert second["strip"]["at"][0] == first["strip"]["at"][-1]
    assert len(cells) == len(second["strip"]["at"]) * 64 <= 3 * 64


def test_a_snapshot_has_the_whole_strip() -> None:
    """And says whose its rows are."""
    page = Page()
    page.follow(1)
    _, told, cells = page.told("snapshot")[0]

    assert told["strip"]["first"] == list(range(0, 1024, 16))
    assert len(cells) == 64 * len(told["strip"]["at"]) > 10_000


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
    """The table, the phases and two columns."""
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
    """JSON has no NaN."""
    told, cells = describe_ranks(Ranks(4))

    assert json.loads(json.dumps(told, allow_nan=False))["median"] is None
    assert cells == b""


def test_a_page_hears_of_ranks_rarely_while_nobody_looks() -> None:
    """A server keeps every message for a page that is not connected."""
    page = Page()
    page.follow(420)
    late = [len(json.dumps(one.message)) + one.size for one in page.sent if one.at > 320]

    assert sum(late) < 100 * 1_000
