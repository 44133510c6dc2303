"""The kind of span with the highest peak, within each outermost span."""

from __future__ import annotations

from typing import Any

import pytest

from hfmem_widget.session import Peak, Recorder, Sample, Span, SpanKind
from hfmem_widget.session.spans import MOST_PHASES, MOST_ROOTS, Phases
from tests.data.recorders import KEY, recorder_of


def open_at(made: Recorder, kind: SpanKind, time: float, label: str = "") -> int:
    return made.open_span(kind, label, made.append(Sample(time, (1.0,)))).id


def close_at(made: Recorder, span_id: int, time: float, peak: float) -> None:
    made.close_span(span_id, made.append(Sample(time, (1.0,))), {KEY: Peak(peak, "exact")})


def test_phases_add_up_by_kind() -> None:
    """Count and seconds are summed, and the span with the highest peak is kept."""
    made = recorder_of()
    cell = open_at(made, "cell", 0)
    for number, peak in enumerate((5.0, 9.0, 7.0)):
        close_at(made, open_at(made, "step", number, f"step {number}"), number + 0.5, peak)
    close_at(made, cell, 4, 9.0)
    steps, whole = made.session.phases(cell)

    assert (steps.kind, steps.count, steps.seconds) == ("step", 3, 1.5)
    assert steps.highest[KEY].label == "step 1"
    assert (whole.kind, whole.count) == ("cell", 1)


def test_each_outermost_span_has_its_own_phases() -> None:
    """The phases of two cells in one session are separate."""
    made = recorder_of()
    for time in (0.0, 10.0):
        cell = open_at(made, "cell", time)
        close_at(made, open_at(made, "step", time + 1), time + 2, 3.0)
        close_at(made, cell, time + 3, 3.0)

        assert [phase.count for phase in made.session.phases(cell)] == [1, 1]


def test_phases_outlive_their_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    """All steps are counted, even those whose spans were dropped."""
    monkeypatch.setattr("hfmem_widget.session.spans.MOST_READINGS", 400)
    made = recorder_of()
    cell = open_at(made, "cell", 0)
    for number in range(450):
        step = made.open_span("step", "", made.session.last_sample)
        made.close_span(
            step.id, made.session.last_sample, {KEY: Peak(float(number == 123), "exact")}
        )
    steps = made.session.phases(cell)[0]

    assert steps.count == 450
    assert len(made.session.spans) < 410
    assert made.session.spans[0].id == cell
    assert steps.highest[KEY].id == 125


def test_a_step_knows_the_peaks_of_its_phases() -> None:
    """Its row has forward, backward and optimizer, also with several batches."""
    made = recorder_of()
    step = open_at(made, "step", 0)
    for time in (1.0, 2.0):
        batch = open_at(made, "substep", time)
        close_at(made, open_at(made, "forward", time), time + 0.2, 10 * time)
        close_at(made, open_at(made, "backward", time + 0.2), time + 0.4, 30.0)
        close_at(made, batch, time + 0.5, 30.0)
    close_at(made, open_at(made, "optimizer", 3), 4, 5.0)
    made.count(step, {"step": 17.0, "tokens": 64.0, "largest_batch": 40.0})
    close_at(made, step, 5, 30.0)
    (group,) = made.session.steps

    assert (group.first, group.tokens) == (17, 64.0)
    assert group.devices["cuda:0"].phases == {"forward": 20.0, "backward": 30.0, "optimizer": 5.0}
    assert group.devices["cuda:0"].worst_tokens == 40.0


def test_steps_without_a_number_are_counted() -> None:
    """The steps of a plain loop are numbered from 1, in the table and on their spans."""
    made = recorder_of()
    for time in range(3):
        close_at(made, open_at(made, "step", time), time + 0.5, 2.0)

    assert [group.first for group in made.session.steps] == [1, 2, 3]
    assert [span.counts["step"] for span in made.session.spans] == [1, 2, 3]


def test_open_spans_within_a_span_are_known() -> None:
    """Innermost first, and only those opened in it."""
    made = recorder_of()
    outer = open_at(made, "cell", 0)
    inner = open_at(made, "train", 1)
    innermost = open_at(made, "step", 2)

    assert [span.id for span in made.session.open_within(outer)] == [innermost, inner]
    assert made.session.open_within(innermost) == ()


def test_counting_in_a_span_that_has_ended_does_nothing() -> None:
    """A late count does not change an ended span."""
    made = recorder_of()
    span = open_at(made, "step", 0)
    close_at(made, span, 1, 1.0)
    made.count(span, {"tokens": 5.0})

    assert "tokens" not in made.session.span(span).counts


def test_a_block_within_one_of_its_name_counts_its_seconds_once() -> None:
    """Blocks with other names count for themselves, wherever they are."""
    made = recorder_of()
    cell = open_at(made, "cell", 0)
    outer = open_at(made, "block", 0, "load")
    close_at(made, open_at(made, "block", 1, "load"), 2, 3.0)
    close_at(made, open_at(made, "block", 3, "warm up"), 5, 3.0)
    close_at(made, outer, 6, 3.0)
    close_at(made, cell, 7, 3.0)

    assert {(one.label, one.count, one.seconds) for one in made.session.phases(cell)} == {
        ("load", 1, 6.0),
        ("warm up", 1, 2.0),
        ("", 1, 7.0),
    }


def block(label: str, *, peak: float = 1.0, number: int = 1, kind: Any = "block") -> Span:
    sample = Sample(0.0, (0.0,))
    peaks = {KEY: Peak(peak, "exact")}
    return Span(number, kind, label, 0.0, sample, stop=2.0, after=sample, peaks=peaks)


def test_a_limited_number_of_block_names_is_kept() -> None:
    """The first names are kept, and still counted."""
    phases = Phases()
    for name in [*range(MOST_PHASES), "one too many", 0]:
        phases.add(1, block(f"block {name}"))
    found = phases.within(1)

    assert [one.label for one in found] == [f"block {at}" for at in range(MOST_PHASES)]
    assert [one.count for one in found] == [2, *[1] * (MOST_PHASES - 1)]
    assert (found[0].seconds, found[1].seconds) == (4.0, 2.0)


def test_the_oldest_cells_lose_their_phases() -> None:
    """The number of cells with phases is limited."""
    phases = Phases()
    for root in range(MOST_ROOTS + 2):
        phases.add(root, block("x"))

    assert [root for root in range(MOST_ROOTS + 2) if not phases.within(root)] == [0, 1]
