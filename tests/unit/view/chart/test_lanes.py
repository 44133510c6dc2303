"""Bars and their labels: how much of a label fits, and whose peak a bar of many tells."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from hfmem_widget.session import (
    DeviceSteps,
    Peak,
    Sample,
    Session,
    SpanKind,
    StepGroup,
)
from hfmem_widget.text import MIB
from hfmem_widget.view.chart.lanes import MOST_BARS, TO, lay_lanes, lay_steps
from hfmem_widget.view.chart.paint_plotly import bar_traces
from hfmem_widget.view.chart.shapes import Bar, Frame, time_ticks, value_ticks
from tests.data.recorders import recorder_of
from tests.scenes.groups import add_group

NAN = math.nan


@pytest.mark.parametrize(
    ("share", "kind", "told"),
    [
        (1.0, "cell", "tokenizers"),
        (0.2032, "cell", "tokenizers"),
        (0.2030, "cell", "tokenize…"),
        (0.1676, "cell", "tokeniz…"),
        (0.1673, "cell", ""),
        (0.0, "cell", ""),
        (0.2032, "step", "tokenizers"),
        (0.2030, "step", ""),
    ],
)
def test_a_label_is_written_where_enough_of_it_fits(
    share: float, kind: SpanKind, told: str
) -> None:
    """In a plot of 320 pixels, eight letters and more; of a step all or nothing."""
    frame = Frame(0.0, 1.0, 1.0, (1.0, "B"), time_ticks(1.0), value_ticks(1.0, "B"))
    _, words, *_ = bar_traces([Bar(0, kind, "tokenizers", 0.0, share)], frame)

    assert words["text"] == ([f"\N{NO-BREAK SPACE}{told}"] if told else [])


def blocks(peaks: list[float], *, outcomes: dict[int, str] | None = None) -> Session:
    """Return a session of blocks of a second each; a peak of NaN is one that nobody knows."""
    recorder = recorder_of()
    for at, peak in enumerate(peaks):
        span = recorder.open_span(
            "block", f"block {at}", recorder.append(Sample(float(at), (NAN,)))
        )
        known = {} if math.isnan(peak) else {"cuda:0/allocated": Peak(peak * MIB, "exact")}
        after = recorder.append(Sample(at + 1.0, (NAN,)))
        recorder.close_span(span.id, after, known, (outcomes or {}).get(at, "done"))
    return recorder.session


def test_a_bar_of_many_has_the_highest_peak_that_is_known() -> None:
    """Blocks of which none is known do not stand before the others."""
    peaks = [NAN, 5.0] * MOST_BARS
    bars = lay_lanes(blocks(peaks), "cuda:0", 0.0, float(len(peaks)))

    assert len(bars) <= MOST_BARS
    assert all(one.lines[1].startswith("peak 5.00 MiB exact in block ") for one in bars)
    assert (bars[0].start, bars[-1].stop) == (0.0, len(peaks))


def test_a_bar_says_how_it_ended_unless_it_is_done() -> None:
    """And how long it took."""
    bars = lay_lanes(blocks([1.0, 2.0], outcomes={1: "failed"}), "cuda:0", 0.0, 2.0)

    assert [one.lines for one in bars] == [
        ("block 0 · 1.0 s", "peak 1.00 MiB exact"),
        ("block 1 · 1.0 s", "peak 2.00 MiB exact", "failed"),
    ]


GPU = "cuda:0"


def session_of(
    peaks: Sequence[float], *, parents: Sequence[int] | None = None, tokens: float = 8.0
) -> Session:
    """Return a session of steps of a second each; a peak of NaN is one that the device has no part in."""
    session = Session("run")
    for at, peak in enumerate(peaks):
        number = at + 1 if parents is None else 1 + sum(one == parents[at] for one in parents[:at])
        memory = DeviceSteps(peak * MIB, "exact", peak * MIB, number, tokens, 0.0, {"forward": MIB})
        add_group(
            session.steps,
            StepGroup(
                parent=1 if parents is None else parents[at],
                first=number,
                last=number,
                start=float(at),
                stop=at + 1.0,
                samples=2.0,
                longest=4.0,
                tokens=tokens,
                content_tokens=math.nan,
                devices={} if math.isnan(peak) else {GPU: memory},
            ),
        )
    return session


def laid(session: Session, most: int = 100, view: tuple[float, float] = (0.0, 1e9)) -> list[Bar]:
    bars, _ = lay_steps(session, GPU, view, lambda parent: parent, most)
    return bars


def worst(session: Session, most: int = 100) -> list[Bar]:
    return lay_steps(session, GPU, (0.0, 1e9), lambda parent: parent, most)[1]


@pytest.mark.parametrize(
    ("view", "labels", "edges"),
    [
        ((0.0, 9.0), ["step 1", "step 2", "step 3"], (0.0, 3.0)),
        ((1.0, 9.0), ["step 2", "step 3"], (0.0, 2.0)),
        ((1.5, 9.0), ["step 2", "step 3"], (0.0, 1.5)),
        ((0.0, 1.5), ["step 1", "step 2"], (0.0, 1.5)),
        ((0.0, 2.0), ["step 1", "step 2", "step 3"], (0.0, 2.0)),
        ((0.5, 0.75), ["step 1"], (0.0, 0.25)),
    ],
)
def test_bars_are_cut_to_what_is_shown(
    view: tuple[float, float], labels: list[str], edges: tuple[float, float]
) -> None:
    """A step that has ended as the view begins is not in it."""
    bars = laid(session_of([1.0, 2.0, 3.0]), view=view)

    assert [one.label for one in bars] == labels
    assert (bars[0].start, bars[-1].stop) == edges


def test_the_worst_step_is_a_bar_of_its_own() -> None:
    """It says that it is, first of all."""
    (bar,) = worst(session_of([1.0, 2.0, 1.0]))

    assert (bar.label, bar.worst, bar.lines[0]) == ("step 2", True, "step 2 · 1.0 s · the worst")


def test_a_bar_tells_its_batch_and_its_peak() -> None:
    """What it was given, how high it rose, and what its phases came to."""
    (bar,) = laid(session_of([2.0]))

    assert bar.lines == (
        "step 1 · 1.0 s",
        "8 tokens (2 \u00d7 4)",
        "peak 2.00 MiB exact",
        "in forward 1.00 MiB",
    )


def test_a_bar_of_many_tells_the_worst_of_them() -> None:
    """By its number, with its tokens and its peak."""
    bars = laid(session_of([1.0, 3.0, 2.0, 1.0]), 2)

    assert [one.lines for one in bars] == [
        (f"steps 1{TO}2 · 2.0 s", "worst: step 2, 8 tokens, peak 3.00 MiB exact"),
        (f"steps 3{TO}4 · 2.0 s", "worst: step 3, 8 tokens, peak 2.00 MiB exact"),
    ]


@pytest.mark.parametrize(("tokens", "said"), [(0.0, 0), (math.nan, 0), (1.0, 1)])
def test_tokens_that_nobody_counted_are_not_told(tokens: float, said: int) -> None:
    """Neither of one step, nor of the worst of several."""
    session = session_of([1.0, 2.0], tokens=tokens)
    (one, _), (both,) = laid(session), laid(session, 1)

    assert sum("token" in line for line in one.lines) == said
    assert sum("token" in line for line in both.lines) == said


def test_steps_that_a_device_has_no_part_in_tell_nothing_of_it() -> None:
    """Their bars are there, with their times."""
    (bar,) = laid(session_of([math.nan, math.nan]), 1)

    assert bar.lines == (f"steps 1{TO}2 · 2.0 s",)
