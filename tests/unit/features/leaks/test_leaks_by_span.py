"""What is compared with what: growth is told by the spans that explain it, else by the second."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from hfmem_widget.features.leaks.trends import A_SECOND, comparable_points, trends_of
from hfmem_widget.session import Session, SpanKind
from hfmem_widget.text import GIB, MIB
from tests.scenes.stage import Stage

GPU = "cuda:0"


class Served:
    """A cell in which memory grows; what no model explains is known at every moment."""

    def __init__(self) -> None:
        self.stage = Stage("serve", gpus=1)
        self.held = 500.0
        self.grow(0, 0.1)

    def grow(self, mib: float, seconds: float) -> None:
        """Hold so many MiB more, evenly over some time."""
        self.held += mib
        self.stage.find([GPU], {"unattributed": self.held * MIB})
        self.stage.hold({GPU: self.held * MIB}, seconds, {"unattributed": self.held * MIB})

    def span(self, label: str, mib: float, seconds: float) -> None:
        """Run a span of the user's that keeps so many MiB."""
        with self.stage.span("block", label):
            self.grow(mib, seconds)


def requests(served: Served, count: int = 30) -> None:
    for _ in range(count):
        served.span("request", 2, 0.5)


def two_hundred(served: Served) -> None:
    requests(served, 200)


def with_pauses(served: Served) -> None:
    for _ in range(30):
        served.span("request", 2, 0.1)
        served.grow(0, 1.0)


def after_a_warm_up(served: Served) -> None:
    served.grow(40, 1.0)
    requests(served)


def of_uneven_length(served: Served) -> None:
    chance = random.Random(5)
    for _ in range(40):
        served.span("request", 2, chance.choice([0.1, 0.2, 1.5, 3.0]))


def of_which_one_kind_grows(served: Served) -> None:
    for _ in range(30):
        served.span("answer", 0, 0.3)
        served.span("request", 2, 0.3)
        served.span("log", 0, 0.3)


def around_others_that_keep_nothing(served: Served) -> None:
    for _ in range(30):
        with served.stage.span("block", "request"):
            served.span("tokenize", 0, 0.2)
            served.span("embed", 0, 0.2)
            served.grow(2, 0.2)


def within_a_bigger_one(served: Served) -> None:
    for _ in range(10):
        with served.stage.span("block", "batch"):
            served.span("load it", 0, 0.2)
            for _ in range(4):
                served.span("request", 2, 0.2)


def within_a_training(served: Served) -> None:
    with served.stage.span("train", "train"):
        requests(served)


@pytest.mark.parametrize(
    "run",
    [
        requests, two_hundred, with_pauses, after_a_warm_up, of_uneven_length,
        of_which_one_kind_grows, around_others_that_keep_nothing, within_a_bigger_one, within_a_training,
    ],
    ids=lambda run: run.__name__,
)  # fmt: skip
def test_growth_is_given_per_span_that_explains_it(run: Callable[[Served], None]) -> None:
    """Each keeps exactly 2 MiB: whatever else there is, and however the seconds go."""
    (trend,) = trends_of(ran(run))

    assert trend.what == "per “request”"
    assert trend.slope == pytest.approx(2 * MIB, rel=0.01)


def ran(run: Callable[[Served], None]) -> Session:
    served = Served()
    with served.stage.span("cell", "serve"):
        run(served)
    session = served.stage.finish()
    assert "a second" in {points.what for points in comparable_points(session)}
    return session


def epochs(served: Served) -> None:
    for _ in range(20):
        with served.stage.span("epoch", "epoch"):
            served.grow(8, 1.0)


def two_kinds(served: Served) -> None:
    for _ in range(30):
        served.span("question", 2, 0.3)
        served.span("answer", 2, 0.3)


def beside_spans(served: Served) -> None:
    """Fill a queue on a thread meanwhile, of which the spans see a tenth."""
    for _ in range(40):
        served.span("request", 0.2, 0.1)
        served.grow(1.8, 0.9)


def by_the_clock(served: Served) -> None:
    """Add 3 MiB a second on a thread while spans of any length run: the longer ones see more of it."""
    chance = random.Random(3)
    for _ in range(40):
        seconds = chance.choice([0.2, 0.4, 1.6, 3.0])
        served.span("request", 3 * seconds, seconds)


@pytest.mark.parametrize(
    ("run", "what", "slope", "within"),
    [
        (epochs, "an epoch", 8, 0.01),
        (two_kinds, "per ", 4, 0.01),
        (beside_spans, "a second", 2, 0.05),
        (by_the_clock, "a second", 3, 0.05),
    ],
)
def test_growth_is_given_by_what_explains_all_of_it(
    run: Callable[[Served], None], what: str, slope: float, within: float
) -> None:
    """By epochs, by two kinds of spans together, or by the second where it goes on beside them."""
    (trend,) = trends_of(ran(run))

    assert trend.what.startswith(what)
    assert trend.slope == pytest.approx(slope * MIB, rel=within)


@pytest.mark.parametrize("with_steps", [True, False])
def test_a_loop_with_steps_is_not_looked_at_by_its_optimizer_too(*, with_steps: bool) -> None:
    """Its steps have all that the optimizer's would tell."""
    stage = Stage("loop", gpus=1)
    with stage.span("cell", "loop"):
        for number in range(20):
            kind: SpanKind = "step" if with_steps else "block"
            with stage.span(kind, f"{number}") as span:
                stage.recorder.count(span.id, {"step": number + 1.0})
                stage.find([GPU], {"weights": 100.0 * MIB, "unattributed": (20 + 5 * number) * MIB})
                stage.hold({GPU: (120 + 5 * number) * MIB}, 0.1)
    rows = {one.what for one in comparable_points(stage.finish()) if one.device == GPU and len(one)}

    assert ("a second" in rows) is not with_steps
    assert ("a step" in rows) is with_steps


def test_what_came_within_an_evaluation_is_what_was_there_after_it_and_not_before() -> None:
    """Of each of them."""
    stage = Stage("run", gpus=1)
    with stage.span("cell", "run"):
        for number in range(20):
            with stage.span("evaluate", "evaluate"):
                stage.hold({"cuda:0": (500 + 30 * number) * MIB}, 0.1)
            stage.hold({"cuda:0": (520 + 30 * number) * MIB}, 0.1)
    (row,) = [one for one in comparable_points(stage.finish()) if one.what == "an evaluation"][:1]

    assert row.device == "cuda:0"
    assert row.within.tolist()[1:] == pytest.approx([10 * MIB] * 19)


@pytest.mark.parametrize(
    ("numbers", "rows"),
    [
        ([*range(1, 25)], [24]),
        ([*range(1, 13), *range(1, 13)], [12, 12]),
        ([*range(5, 17), *range(16, 28)], [12, 12]),
        ([*range(5, 17), *range(17, 29)], [24]),
    ],
)
def test_a_training_that_was_resumed_is_a_row_of_its_own(
    numbers: list[int], rows: list[int]
) -> None:
    """Where its numbers do not go on after those before it."""
    stage = Stage("run", gpus=1)
    with stage.span("cell", "run"), stage.span("train", "train"):
        for number in numbers:
            with stage.span("step", f"step {number}") as span:
                stage.recorder.count(span.id, {"step": float(number)})
                stage.hold({"cuda:0": (500 + number) * MIB}, 0.1)
    found = [one for one in comparable_points(stage.finish()) if one.what == "a step"]

    assert [len(one) for one in found if one.device == "cuda:0"] == rows
    assert all(trend.what == "a step" for trend in trends_of(stage.session))


@pytest.mark.parametrize("after", [False, True])
def test_a_loop_is_looked_for_in_the_newest_cells(*, after: bool) -> None:
    """Those that began since, and not in the blocks within them."""
    stage = Stage("run", gpus=1)
    with stage.span("cell", "first"):
        stage.hold({GPU: GIB}, 0.5, {"weights": GIB / 2})
    with stage.span("cell", "second"), stage.span("block", "within"):
        stage.hold({GPU: 2 * GIB}, 0.5)
    session = stage.finish()
    second = session.spans[1]
    found = list(comparable_points(session, second if after else None))

    assert {one.root for one in found if one.what == A_SECOND} <= {1, 2}
    assert (1 in {one.root for one in found}) is not after
