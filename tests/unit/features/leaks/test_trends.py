"""Trends: lines through readings, what tells growth from other rises, and the spans that explain it."""

import random
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest

from hfmem_widget.features.leaks.trends import (
    A_SECOND,
    ComparablePoints,
    Floats,
    comparable_points,
    goes_on,
    theil_sen,
    trends_of,
    without_size,
)
from hfmem_widget.session import Session, SpanKind
from hfmem_widget.text import GIB, MIB
from tests.scenes.stage import Stage

GPU = "cuda:0"


Pieces = list[tuple[str, float, float]]
"""Spans of the user's in their order: label, MiB that stay, and seconds; without a label there is no span."""

REQUEST = ("request", 2.0, 0.5)
CHANCE = random.Random(5)
UNEVEN = [CHANCE.choice([0.1, 0.2, 1.5, 3.0]) for _ in range(40)]
AROUND: Pieces = [("tokenize", 0, 0.2), ("embed", 0, 0.2), ("", 2, 0.2)]

OF_REQUESTS: dict[str, tuple[int, str, Pieces]] = {
    "requests": (30, "", [REQUEST]),
    "two hundred": (200, "", [REQUEST]),
    "with pauses": (30, "", [("request", 2, 0.1), ("", 0, 1.0)]),
    "after a warm-up": (1, "", [("", 40, 1.0), *[REQUEST] * 30]),
    "of uneven length": (1, "", [("request", 2.0, seconds) for seconds in UNEVEN]),
    "of which one kind grows": (30, "", [("answer", 0, 0.3), ("request", 2, 0.3), ("log", 0, 0.3)]),
    "around others that keep nothing": (30, "request", AROUND),
    "within a bigger one": (10, "batch", [("load it", 0, 0.2), *[("request", 2, 0.2)] * 4]),
    "within a training": (1, "train", [REQUEST] * 30),
}
"""How often, within what span each time, and what; each request keeps exactly 2 MiB."""

OF_ALL: dict[str, tuple[int, str, Pieces, str, float]] = {
    "epochs": (20, "epoch", [("", 8, 1.0)], "an epoch", 8),
    "two kinds": (30, "", [("question", 2, 0.3), ("answer", 2, 0.3)], "per ", 4),
    # A thread fills a queue meanwhile, of which the spans see a tenth.
    "beside spans": (40, "", [("request", 0.2, 0.1), ("", 1.8, 0.9)], "a second", 2),
    # A thread adds 3 MiB a second while spans of any length run: the longer ones see more of it.
    "by the clock": (1, "", [("request", 3 * time, time) for time in UNEVEN], "a second", 3),
}
"""Likewise, with the words that growth is given by, and the MiB."""


def points_of(session: Session) -> list[ComparablePoints]:
    """Return the series of a session's first cell."""
    return list(comparable_points(session, session.spans[0]))


def ran(times: int, outer: str, pieces: Pieces) -> Session:
    """Return a session in which memory grows, with the unexplained bytes at every moment."""
    stage, held = Stage("serve", gpus=1), 500.0
    kinds: dict[str, SpanKind] = {"train": "train", "epoch": "epoch"}

    def span(label: str) -> AbstractContextManager[Any]:
        return stage.span(kinds.get(label, "block"), label) if label else nullcontext()

    def hold(seconds: float) -> None:
        parts = {"unattributed": held * MIB}
        stage.find([GPU], parts)
        stage.hold({GPU: held * MIB}, seconds, parts)

    hold(0.1)
    with stage.span("cell", "serve"):
        for _ in range(times):
            with span(outer):
                for label, mib, seconds in pieces:
                    with span(label):
                        held += mib
                        hold(seconds)
    session = stage.finish()
    assert "a second" in {points.what for points in points_of(session)}
    return session


@pytest.mark.parametrize("name", OF_REQUESTS)
def test_growth_is_given_per_span_that_explains_it(name: str) -> None:
    """Other spans and the times between them do not matter."""
    session = ran(*OF_REQUESTS[name])
    (trend,) = trends_of(session, session.spans[0])

    assert trend.what == "per “request”"
    assert trend.slope == pytest.approx(2 * MIB, rel=0.01)


@pytest.mark.parametrize("name", OF_ALL)
def test_growth_is_given_by_what_explains_all_of_it(name: str) -> None:
    """The unit is an epoch, two kinds of spans together, or a second if memory also grows beside them."""
    times, outer, pieces, what, slope = OF_ALL[name]
    session = ran(times, outer, pieces)
    (trend,) = trends_of(session, session.spans[0])

    assert trend.what.startswith(what)
    assert trend.slope == pytest.approx(slope * MIB, rel=0.05 if what == "a second" else 0.01)


@pytest.mark.parametrize("with_steps", [True, False])
def test_a_loop_with_steps_is_not_looked_at_by_its_optimizer_too(*, with_steps: bool) -> None:
    """Its steps have all that the optimizer's steps would show."""
    stage = Stage("loop", gpus=1)
    with stage.span("cell", "loop"):
        for number in range(20):
            kind: SpanKind = "step" if with_steps else "block"
            with stage.span(kind, f"{number}") as span:
                stage.recorder.count(span.id, {"step": number + 1.0})
                stage.find([GPU], {"weights": 100.0 * MIB, "unattributed": (20 + 5 * number) * MIB})
                stage.hold({GPU: (120 + 5 * number) * MIB}, 0.1)
    rows = {one.what for one in points_of(stage.finish()) if one.device == GPU and len(one)}

    assert ("a second" in rows) is not with_steps
    assert ("a step" in rows) is with_steps


def test_memory_within_an_evaluation_is_what_was_there_after_it_and_not_before() -> None:
    """The series has the growth within each evaluation."""
    stage = Stage("run", gpus=1)
    with stage.span("cell", "run"):
        for number in range(20):
            with stage.span("evaluate", "evaluate"):
                stage.hold({GPU: (500 + 30 * number) * MIB}, 0.1)
            stage.hold({GPU: (520 + 30 * number) * MIB}, 0.1)
    (row, *_) = [one for one in points_of(stage.finish()) if one.what == "an evaluation"]

    assert row.device == GPU
    assert row.within.tolist()[1:] == pytest.approx([10 * MIB] * 19)


@pytest.mark.parametrize(
    ("numbers", "rows"),
    [
        ([*range(1, 25)], [24]),
        ([*range(1, 13), *range(1, 13)], [12, 12]),
        ([*range(5, 17), *range(16, 28)], [12, 12]),
        ([*range(5, 17), *range(17, 29)], [24]),
    ],
    ids=["once", "again", "from an earlier step", "resumed where it was"],
)
def test_a_training_that_begins_anew_has_its_own_row(numbers: list[int], rows: list[int]) -> None:
    """It begins anew if the numbers of its steps do not follow those before."""
    stage = Stage("run", gpus=1)
    with stage.span("cell", "run"), stage.span("train", "train"):
        for number in numbers:
            with stage.span("step", f"step {number}") as span:
                stage.recorder.count(span.id, {"step": float(number)})
                stage.hold({GPU: (500 + number) * MIB}, 0.1)
    series = [one for one in points_of(stage.finish()) if one.what == "a step"]

    assert [len(one) for one in series if one.device == GPU] == rows
    assert all(trend.what == "a step" for trend in trends_of(stage.session, stage.session.spans[0]))


def test_a_loop_is_looked_for_in_each_cell() -> None:
    """Each cell is judged from its start to its end, and the blocks within it are not."""
    stage = Stage("run", gpus=1)
    with stage.span("cell", "first"):
        stage.hold({GPU: GIB}, 0.5, {"unattributed": GIB / 2})
    with stage.span("cell", "second"), stage.span("block", "within"):
        stage.hold({GPU: 2 * GIB}, 0.5, {"unattributed": GIB})
    session = stage.finish()
    first, second, _ = session.spans
    for cell in (first, second):
        series = [one for one in comparable_points(session, cell) if one.what == A_SECOND]
        assert series
        for one in series:
            assert cell.start <= one.time.min() <= one.time.max() <= (cell.stop or 0.0)


def x(count: int = 60) -> Floats:
    return np.arange(float(count))


def noise(seed: int = 1) -> Floats:
    return np.random.default_rng(seed).normal(0, 1, 60)


def test_a_line_is_found_to_the_last_digit() -> None:
    """If all readings are on the line, the bounds are the slope."""
    line = theil_sen(x(), 7.0 + 3.0 * x())

    assert (line.slope, line.low, line.high) == (3.0, 3.0, 3.0)
    assert (line.intercept, line.spread) == (7.0, 0.0)


def test_a_quarter_of_wild_readings_does_not_move_it() -> None:
    """The median of all slopes is robust, as a mean is not."""
    y = 3.0 * x()
    y[::5] += 1000.0

    assert theil_sen(x(), y).slope == pytest.approx(3.0, abs=0.2)
    assert abs(np.polyfit(x(), np.where(np.arange(60) > 50, y + 500, y), 1)[0] - 3.0) > 1.0


def test_the_bounds_hold_as_often_as_they_say() -> None:
    """Of many lines among noise, nineteen of twenty have the true slope between their bounds."""
    lines = [theil_sen(x(), 0.1 * x() + noise(seed=seed)) for seed in range(400)]
    assert 0.92 < sum(line.low <= 0.1 <= line.high for line in lines) / 400 < 0.99


def test_correlated_readings_widen_the_bounds() -> None:
    """A reading that repeats the one before is not independent, and the bounds still hold."""
    held, widths = 0, []
    for seed in range(200):
        row = noise(seed=seed)
        for at in range(1, len(row)):
            row[at] += 0.7 * row[at - 1]
        line = theil_sen(x(), row)
        held += line.low <= 0.0 <= line.high
        widths.append(line.high - line.low)

    assert held / 200 > 0.75
    independent = theil_sen(x(), noise())
    assert np.median(widths) > 2 * (independent.high - independent.low)


GROWTH = {
    "even": x(),
    "every sixth": 6.0 * (x() // 6),
    "with noise": x() + 3 * noise(),
    "with a small dip": x() - 3.0 * (x() == 40),
}
NONE = {
    "noise": noise(),
    "one step": np.where(x() > 30, 80.0, 0.0),
    "three steps": 80.0 * (x() > 15) + 80.0 * (x() > 30) + 80.0 * (x() > 45),
    "a plateau": np.minimum(x(), 40),
    "ever slower": 1 - np.exp(-x() / 15),
    "teeth": x() % 13,
    "one long tooth": np.where(x() < 31, x(), x() - 31),
    "falling": -x(),
    "with a deep dip": x() - 30.0 * (x() == 40),
    "two loads and little besides": 0.4 * x() / 59 + 0.3 * (x() >= 20) + 0.3 * (x() >= 40),
}


@pytest.mark.parametrize("name", [*GROWTH, *NONE])
def test_growth_goes_on_and_other_rises_do_not(name: str) -> None:
    """Each quarter has its share of growth; steps, plateaus, sawtooths and noise have a slope, too."""
    assert goes_on(x(), (GROWTH | NONE)[name]) is (name in GROWTH)


SHARED = np.array([*range(12), 32, 33, 64, 65, 96, 97, 128, 129, 160, 161, 192, 193, 244.0])
"""The steps that have readings where most share one."""


@pytest.mark.parametrize(
    ("levels", "goes"),
    [
        (8.0 * SHARED, True),
        (np.where(SHARED > 120, 80.0, 0.0), False),
        (1 - np.exp(-SHARED / 40), False),
        (np.minimum(SHARED, 100), False),
    ],
    ids=["even", "one step", "ever slower", "a plateau"],
)
def test_a_change_between_distant_readings_is_one_rise(levels: Floats, *, goes: bool) -> None:
    """Growth goes on where each step keeps as much, though most steps share a reading."""
    assert goes_on(SHARED, levels) is goes


TOKENS = np.random.default_rng(2).integers(100, 1000, 60).astype(float)
BUCKETS = 100.0 * (1 + x() // 10)


@pytest.mark.parametrize("tokens", [TOKENS, np.sort(TOKENS), BUCKETS])
def test_memory_that_follows_the_batch_size_is_subtracted(tokens: Floats) -> None:
    """The order of the batches does not matter, and a leak remains."""
    for per_step in (0.0, 2.0):
        corrected = without_size(50 + 0.3 * tokens + per_step * x(), tokens)
        assert corrected is not None
        assert np.diff(corrected) == pytest.approx(np.full(59, per_step))


def test_a_batch_size_that_rises_like_time_cannot_be_separated_from_it() -> None:
    """Then there is no finding rather than a wrong one."""
    assert without_size(3.0 * x(), 100 + 8 * x()) is None


def test_readings_without_a_size_stay_as_they_are() -> None:
    """So do those of equal size, and a size that makes less of it is taken for chance."""
    y = x() + noise()

    assert without_size(y, np.full(60, np.nan)) is y
    assert without_size(y, np.full(60, 8.0)) is y
    assert without_size(-TOKENS, TOKENS).tolist() == (-TOKENS).tolist()  # type: ignore[union-attr]  # not None
