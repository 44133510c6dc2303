"""What is compared with what: steps, evaluations, trainings that were resumed, and moments of a loop."""

from __future__ import annotations

import pytest

from hfmem_widget.features.leaks.trends import A_SECOND, comparable_points, trends_of
from hfmem_widget.session import SpanKind
from hfmem_widget.text import GIB, MIB
from tests.scenes.stage import Stage

GPU = "cuda:0"


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
