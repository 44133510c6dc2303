"""Edges of what the views write and draw: where a unit, a digit, a word or a line begins to be there."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from hfmem_widget.analysis.facts import NEXT_TO_NOTHING
from hfmem_widget.features.compare.model import Difference, Figure
from hfmem_widget.features.compare.text import (
    _signed_bytes,
    _spread,
    change_text,
    of_something,
    percent_text,
)
from hfmem_widget.session import Finding, Recorder, Sample, Session
from hfmem_widget.text import GIB, MIB, format_bytes, format_duration, format_rate
from hfmem_widget.view.chart.axis import time_ticks, value_ticks
from hfmem_widget.view.chart.guides import MOST, NEAR, DrawnGuide, guides_in
from hfmem_widget.view.chart.scene import LABEL_ROOM
from hfmem_widget.view.chart.svg import chart_html
from hfmem_widget.view.wire.judgements import MOST as MOST_JUDGED
from hfmem_widget.view.wire.judgements import Judgements
from tests.data.svg import Drawing
from tests.unit.view.chart.test_guides import budget, crossing, oom, run, trend
from tests.unit.view.chart.test_scene_read_back import EMPTY

NAN = math.nan
GPU = "cuda:0"


@pytest.mark.parametrize(
    ("value", "told"),
    [(0.0, "0.00"), (9.994, "9.99"), (34.84, "34.8"), (999.4, "999.4"), (999.5, "1,000"),
     (-999.5, "\u22121,000"), (2804.4, "2,804")],
)  # fmt: skip
def test_a_rate_has_three_digits_or_none_behind_the_point(value: float, told: str) -> None:
    """From a thousand on they are whole numbers."""
    assert format_rate(value).replace("-", "\u2212") == told


@pytest.mark.parametrize(
    ("percent", "told"),
    [(NAN, ""), (0.0, "±0 %"), (0.04, "±0 %"), (0.06, "+0.1 %"), (-0.06, "\u22120.1 %"),
     (9.94, "+9.9 %"), (9.95, "+10 %"), (-9.95, "\u221210 %"), (156.4, "+156 %")],
)  # fmt: skip
def test_a_percentage_has_a_digit_behind_the_point_below_ten(percent: float, told: str) -> None:
    """And a sign, unless it reads as nothing."""
    assert percent_text(percent) == told


@pytest.mark.parametrize(
    ("change", "percent", "told"),
    [
        (NAN, NAN, ""),
        (0.0, 0.0, "±0"),
        (1000.0, 50.0, "±0"),
        (-GIB, NAN, "\u22121.00 GiB"),
        (GIB, 50.0, "+1.00 GiB · +50 %"),
    ],
)
def test_a_change_that_cannot_be_seen_is_none(change: float, percent: float, told: str) -> None:
    """Whatever it is in percent."""
    assert change_text(Difference(change, percent), format_bytes) == told


@pytest.mark.parametrize(
    ("base", "said"), [(NEXT_TO_NOTHING - 1, False), (NEXT_TO_NOTHING, True), (GIB, True)]
)
def test_of_next_to_nothing_no_percentage_is_told(base: float, *, said: bool) -> None:
    """From a MiB on it is."""
    told = of_something(Difference(-0.5 * base, -50.0), 0.5 * base)

    assert math.isnan(told.percent) is not said
    assert NEXT_TO_NOTHING == MIB


@pytest.mark.parametrize(
    ("low", "high", "runs", "shown", "told"),
    [
        (GIB, 2 * GIB, 1, format_bytes, ""),
        (GIB, 2 * GIB, 2, format_bytes, "1.00\u20132.00 GiB"),
        (GIB, GIB + 1000, 2, format_bytes, ""),
        (-GIB, GIB, 2, _signed_bytes, "\u22121.00 \u2013 1.00 GiB"),
        (0.0, 512 * MIB, 2, format_bytes, "0.00\u2013512.0 MiB"),
        (1.0, 2.0, 2, format_rate, "1.00\u20132.00"),
        (1.0, 1.001, 2, format_rate, ""),
        (1.0, 2.0, 2, format_duration, "1.0 s\u20132.0 s"),
    ],
)
def test_a_range_has_its_unit_once(
    low: float, high: float, runs: int, shown: Callable[[float], str], told: str
) -> None:
    """Of runs that read alike there is none."""
    assert _spread(Figure(low, low, high, runs), shown) == told


@pytest.mark.parametrize(
    ("top", "texts"),
    [
        (1.0, "0.0 0.2 0.4 0.6 0.8 1.0"),
        (1.25, "0.00 0.25 0.50 0.75 1.00 1.25"),
        (1.26, "0.0 0.5 1.0"),
        (2.4, "0.0 0.5 1.0 1.5 2.0"),
        (5.0, "0 1 2 3 4 5"),
        (10.0, "0 2 4 6 8 10"),
        (12.5, "0.0 2.5 5.0 7.5 10.0 12.5"),
        (25.0, "0 5 10 15 20 25"),
        (50.0, "0 10 20 30 40 50"),
        (125.0, "0 25 50 75 100 125"),
        (140.4, "0 50 100"),
        (0.07, "0.00 0.02 0.04 0.06"),
    ],
)
def test_ticks_of_values_are_round_and_about_five(top: float, texts: str) -> None:
    """From nothing up, the highest with its unit."""
    assert " ".join(value_ticks(top, "GiB").texts) == f"{texts} GiB"


@pytest.mark.parametrize(
    ("stop", "step", "last"),
    [(0.0006, 0.0001, "0.6 ms"), (0.006, 0.001, "6 ms"), (0.06, 0.01, "60 ms"), (0.6, 0.1, "600 ms"),
     (0.61, 0.2, "600 ms"), (3.0, 0.5, "3.0 s"), (5.9, 1, "5 s"), (6, 1, "6 s"), (6.1, 2, "6 s"),
     (12, 2, "12 s"), (30, 5, "30 s"), (31, 10, "30 s"), (60, 10, "1:00"), (90, 15, "1:30"),
     (120, 20, "2:00"), (180, 30, "3:00"), (360, 60, "6 min"), (720, 120, "12 min"),
     (1800, 300, "30 min"), (3600, 600, "1 h"), (5400, 900, "1 h 30"), (7200, 1200, "2 h"),
     (10_800, 1800, "3 h"), (21_600, 3600, "6 h"), (43_200, 7200, "12 h"), (64_800, 10_800, "18 h"),
     (129_600, 21_600, "36 h"), (259_200, 43_200, "72 h"), (518_400, 86_400, "144 h"),
     (518_401, 172_800, "144 h")],
)  # fmt: skip
def test_ticks_of_times_are_round_and_at_most_six(stop: float, step: float, last: str) -> None:
    """After the one at the beginning; exactly six where the time is six times a round one."""
    ticks = time_ticks(stop)

    assert ticks.values[1] == pytest.approx(step)
    assert len(ticks.values) - 1 <= 6
    assert ticks.values[-1] <= stop + 1e-9
    assert (ticks.texts[0], ticks.texts[-1]) == ("0 s" if stop < 360 else ticks.texts[0], last)


def drawn(
    session: Session, *, highest: float = 5.0, view: tuple[float, float] = (0.0, 10.0)
) -> list[DrawnGuide]:
    return list(guides_in(session, GPU, view, highest * GIB))


def guided(*guides: object, findings: tuple[Finding, ...] = ()) -> Session:
    recorder = Recorder("run")
    session = recorder.session
    session.guides += guides  # type: ignore[arg-type]
    session.findings += findings
    return session


@pytest.mark.parametrize(
    ("share", "there", "crossed"),
    [(NEAR, True, False), (NEAR - 0.01, False, False), (1.0, True, False), (1.01, True, True)],
)
def test_a_budget_is_there_from_a_share_on(share: float, *, there: bool, crossed: bool) -> None:
    """And crossed by what is above it, not by what just reaches it."""
    found = drawn(guided(budget(8.0)), highest=share * 8.0)

    assert bool(found) is there
    assert [one.is_crossed for one in found] == [crossed] * there


@pytest.mark.parametrize(
    ("time", "at"), [(1.9, None), (2.0, 0.0), (5.0, 3.0), (9.0, 7.0), (9.1, None), (NAN, None)]
)
def test_a_crossing_is_marked_within_what_is_drawn(time: float, at: float | None) -> None:
    """Its edges among it; counted from where the drawing begins."""
    (one,) = drawn(guided(budget(8.0), findings=(crossing(time),)), view=(2.0, 9.0))

    assert one.crossed_at == at
    assert one.line == [(0.0, 8 * GIB), (7.0, 8 * GIB)]


@pytest.mark.parametrize("time", [1.9, 2.0, 5.0, 9.0, 9.1])
def test_a_mark_is_drawn_within_what_is_drawn(time: float) -> None:
    """Its edges among it."""
    found = drawn(guided(oom(time)), view=(2.0, 9.0))

    assert [one.time for one in found] == ([time - 2.0] if 2.0 <= time <= 9.0 else [])


def test_of_many_marks_the_newest_are_drawn() -> None:
    """And of many lines the first."""
    marks = [oom(float(at)) for at in range(MOST + 2)]
    lines = [budget(8.0 + at) for at in range(MOST + 2)]

    assert [one.time for one in drawn(guided(*marks), view=(0.0, 99.0))] == [
        float(at) for at in range(2, MOST + 2)
    ]
    assert len(drawn(guided(*lines), highest=99.0)) == MOST


@pytest.mark.parametrize(
    ("view", "line", "band"),
    [
        ((0.0, 20.0), [(2.0, 1.0), (10.0, 5.0)], (0.5, 1.0)),
        ((4.0, 20.0), [(0.0, 2.0), (6.0, 5.0)], (0.625, 1.0)),
        ((0.0, 6.0), [(2.0, 1.0), (6.0, 3.0)], (0.5, 0.75)),
        ((0.0, 2.0), None, None),
        ((10.0, 20.0), None, None),
    ],
)
def test_of_a_trend_the_part_is_drawn_that_is_seen(
    view: tuple[float, float],
    line: list[tuple[float, float]] | None,
    band: tuple[float, ...] | None,
) -> None:
    """With its band, which widens along it; of one that only touches the edge nothing."""
    found = drawn(guided(trend()), view=view)

    assert [[(time, value / GIB) for time, value in one.line] for one in found] == (
        [] if line is None else [line]
    )
    assert [tuple(value / GIB for value in one.band) for one in found] == (
        [] if band is None else [band]
    )


@pytest.mark.parametrize(("above", "named"), [(-0.1, False), (0.0, True), (0.1, True)])
def test_a_label_has_room_from_its_own_height_on(above: float, *, named: bool) -> None:
    """Between the capacity and a budget."""
    guide = DrawnGuide("budget", "budget", [(0.0, 0.0), (100.0, 0.0)])
    built = replace(EMPTY, capacity=LABEL_ROOM * EMPTY.top + above, guides=(guide,))

    assert built.names_capacity is named


def test_the_gravest_findings_are_told_and_of_equals_the_first() -> None:
    """As many as a message has room for."""
    recorder = Recorder("run")
    session = recorder.session
    recorder.append(Sample(0.0, ()))
    for at in range(MOST_JUDGED + 4):
        severity = ("info", "critical", "warn")[at % 3]
        session.findings.append(Finding("leak", severity, f"Finding {at}.", {}))  # type: ignore[arg-type]
    told = Judgements(session).now()["findings"]
    order = [one["severity"] for one in told]

    assert len(told) == MOST_JUDGED == 8
    assert order == ["critical"] * 4 + ["warn"] * 4
    assert [one["title"] for one in told][:4] == [f"Finding {at}." for at in (1, 4, 7, 10)]


@pytest.mark.parametrize("marks", [0, 1, 2, 3])
def test_of_marks_the_newest_is_said(marks: int) -> None:
    """To who cannot see the chart; the others by themselves, where pointing finds them."""
    session = run(*(oom(1.0 + at, label=f"mark {at}") for at in range(marks)))
    told = Drawing(chart_html(session, session.spans[0])).label

    assert [at for at in range(3) if f"mark {at}" in told] == ([marks - 1] if marks else [])
