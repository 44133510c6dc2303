"""Bars and their labels above the chart, and the stack of parts in it."""

import math
import re
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfmem_widget.analysis.curve import curve
from hfmem_widget.analysis.kept import STACK
from hfmem_widget.session import (
    HELD,
    DeviceSteps,
    Peak,
    Sample,
    Session,
    SpanKind,
    StepGroup,
    Timeline,
)
from hfmem_widget.session.series import PARTS
from hfmem_widget.text import GIB, MIB
from hfmem_widget.view import palette
from hfmem_widget.view.chart.lanes import MOST_BARS, TO, lay_lanes, lay_steps
from hfmem_widget.view.chart.layers import layers, layers_of
from hfmem_widget.view.chart.paint_plotly import bar_traces
from hfmem_widget.view.chart.shapes import Bar, Curve, Frame, time_ticks, value_ticks
from hfmem_widget.view.chart.svg import chart_html
from tests.data.parted import NAN, training
from tests.data.recorders import recorder_of
from tests.scenes import shared_run
from tests.scenes.groups import add_group


@pytest.mark.parametrize(
    ("share", "kind", "label"),
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
def test_a_label_is_written_where_enough_fits(share: float, kind: SpanKind, label: str) -> None:
    """In a plot of 320 pixels a label has at least eight letters; a step's is whole or missing."""
    frame = Frame(0.0, 1.0, 1.0, (1.0, "B"), time_ticks(1.0), value_ticks(1.0, "B"))
    _, words, *_ = bar_traces([Bar(0, kind, "tokenizers", 0.0, share)], frame)

    assert words["text"] == ([f"\N{NO-BREAK SPACE}{label}"] if label else [])


def blocks(
    peaks: list[float], *, outcomes: dict[int, str] | None = None, named: int = 1000
) -> Session:
    """Return a session of blocks of a second each, some named; a peak of NaN is not known."""
    recorder = recorder_of()
    for at, peak in enumerate(peaks):
        label = f"block {at}" if at < named else ""
        span = recorder.open_span("block", label, recorder.append(Sample(float(at), (NAN,))))
        exact_peaks = {} if math.isnan(peak) else {"cuda:0/allocated": Peak(peak * MIB, "exact")}
        after = recorder.append(Sample(at + 1.0, (NAN,)))
        recorder.close_span(span.id, after, exact_peaks, (outcomes or {}).get(at, "done"))
    return recorder.session


def test_a_bar_of_many_has_the_highest_peak_that_is_known() -> None:
    """Blocks of which none is known do not stand before the others."""
    peaks = [NAN, 5.0] * MOST_BARS
    bars = lay_lanes(blocks(peaks), "cuda:0", 0.0, float(len(peaks)))

    assert len(bars) <= MOST_BARS
    assert all(one.lines[1].startswith("peak 5.00 MiB exact in block ") for one in bars)
    assert (bars[0].start, bars[-1].stop) == (0.0, len(peaks))


def test_a_bar_says_how_it_ended_unless_it_is_done() -> None:
    """A bar says how it ended and how long it took; one without a name says what it is."""
    bars = lay_lanes(blocks([1.0, 2.0, 3.0], outcomes={1: "failed"}, named=2), "cuda:0", 0.0, 3.0)

    assert [one.lines for one in bars] == [
        ("block 0 · 1.0 s", "peak 1.00 MiB exact"),
        ("block 1 · 1.0 s", "peak 2.00 MiB exact", "failed"),
        ("block · 1.0 s", "peak 3.00 MiB exact"),
    ]
    assert [one.label for one in bars] == ["block 0", "block 1", "block"]
    assert [(one.start, one.stop, one.lane) for one in bars] == [
        (at, at + 1.0, 0) for at in range(3)
    ]


GPU = "cuda:0"


def steps_of(peaks: Sequence[float], *, tokens: float = 8.0) -> Session:
    """Return a session of steps of a second each; a peak of NaN is one that the device has no part in."""
    session = Session("run")
    for number, peak in enumerate(peaks, 1):
        memory = DeviceSteps(peak * MIB, "exact", peak * MIB, number, tokens, 0.0, {"forward": MIB})
        add_group(
            session.steps,
            StepGroup(
                parent=1,
                first=number,
                last=number,
                start=number - 1.0,
                stop=float(number),
                samples=2.0,
                longest=4.0,
                tokens=tokens,
                content_tokens=math.nan,
                devices={} if math.isnan(peak) else {GPU: memory},
            ),
        )
    return session


def bars_of(session: Session, most: int = 100, view: tuple[float, float] = (0.0, 1e9)) -> list[Bar]:
    bars, _ = lay_steps(session, GPU, view, lambda parent: parent, most)
    return bars


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
    bars = bars_of(steps_of([1.0, 2.0, 3.0]), view=view)

    assert [one.label for one in bars] == labels
    assert (bars[0].start, bars[-1].stop) == edges


def test_the_worst_step_is_a_bar_of_its_own() -> None:
    """The bar of the worst step says so first of all."""
    _, (bar,) = lay_steps(steps_of([1.0, 2.0, 1.0]), GPU, (0.0, 1e9), lambda parent: parent, 100)

    assert (bar.label, bar.worst, bar.lines[0]) == ("step 2", True, "step 2 · 1.0 s · the worst")


def test_a_bar_has_its_batch_and_its_peak() -> None:
    """A step's bar names its tokens, its peak, and the peaks of its phases."""
    (bar,) = bars_of(steps_of([2.0]))

    assert bar.lines == (
        "step 1 · 1.0 s",
        "8 tokens (2 \u00d7 4)",
        "peak 2.00 MiB exact",
        "in forward 1.00 MiB",
    )


def test_a_bar_of_many_steps_names_the_worst() -> None:
    """The worst step is named by its number, with its tokens and its peak."""
    bars = bars_of(steps_of([1.0, 3.0, 2.0, 1.0]), 2)

    assert [one.lines for one in bars] == [
        (f"steps 1{TO}2 · 2.0 s", "worst: step 2, 8 tokens, peak 3.00 MiB exact"),
        (f"steps 3{TO}4 · 2.0 s", "worst: step 3, 8 tokens, peak 2.00 MiB exact"),
    ]


@pytest.mark.parametrize(("tokens", "count"), [(0.0, 0), (math.nan, 0), (1.0, 1)])
def test_tokens_that_were_not_counted_are_not_shown(tokens: float, count: int) -> None:
    """Neither one step nor the worst of several shows tokens that were not counted."""
    session = steps_of([1.0, 2.0], tokens=tokens)
    (one, _), (both,) = bars_of(session), bars_of(session, 1)

    assert sum("token" in line for line in one.lines) == count
    assert sum("token" in line for line in both.lines) == count


def test_steps_without_memory_on_a_device_have_bars_with_their_times() -> None:
    """Their bars have no figures of the device."""
    (bar,) = bars_of(steps_of([math.nan, math.nan]), 1)

    assert bar.lines == (f"steps 1{TO}2 · 2.0 s",)


METRICS = ("allocated", *HELD, "before", "unattributed")
NAMES = {row.label: name for name, row in PARTS.items()}
BYTES = st.integers(0, 100).map(float) | st.just(NAN)
ROWS = st.lists(st.tuples(*[BYTES] * len(METRICS)), min_size=1, max_size=30)


def session_of(
    rows: Sequence[tuple[float, ...]], capacity: int = 4096, metrics: Sequence[str] = METRICS
) -> Session:
    return recorder_of(*rows, metrics=metrics, every=0.1, timeline=Timeline(0, capacity)).session


def stack(session: Session, columns: int = 100) -> dict[str, Curve]:
    part = session.between(0.0, math.inf)
    view = (0.0, max(session.last_sample.time, 0.1))
    found_layers = layers(session, session.devices[0], part, view, columns=columns)
    return {NAMES[one.tip]: one for one in found_layers}


def instant(**values: float) -> dict[str, float]:
    """Return how high each layer is in a session of one such reading."""
    row = tuple(values.get(metric, NAN) for metric in METRICS)
    return {name: one.heights[0] for name, one in stack(session_of([row, row])).items()}


@given(ROWS, st.integers(1, 40), st.sampled_from([4, 4096]))
def test_layers_reach_the_line(rows: list[tuple[float, ...]], columns: int, capacity: int) -> None:
    """Known parts add up to the line at each of its points, folded or not; else nothing is drawn."""
    session = session_of(rows, capacity)
    view = (0.0, max(session.last_sample.time, 0.1))
    found_layers = list(stack(session, columns).values())
    line = curve(session.between(*view), 0, *view, columns=columns)
    points = [point for point in line if not math.isnan(point[1])]

    known = any(value > 0 for row in rows for value in row[1 : 1 + len(HELD)])
    assert bool(found_layers) == (known and any(row[0] > 0 for row in rows))
    for one in found_layers:
        assert [time for run in one.runs for time, _ in run] == [time for time, _ in points]
    for lower, upper in pairwise(found_layers):
        for below, above in zip(lower.runs, upper.runs, strict=True):
            assert all(one <= two for (_, one), (_, two) in zip(below, above, strict=True))
    if found_layers:
        heights = np.sum([one.heights for one in found_layers], axis=0)
        left_out = 0.002 * max(value for _, value in points) * len(STACK)
        assert heights == pytest.approx([value for _, value in points], abs=left_out + 1e-9)


def test_parts_of_one_instant_stand_together() -> None:
    """The row where most was allocated decides, not the one where a part was highest."""

    def row(allocated: float, **values: float) -> tuple[float, ...]:
        read = {"allocated": allocated, "weights": 4.0, **values}
        return tuple(read.get(metric, 0.0) for metric in METRICS)

    quiet = [row(5.0)] * 20
    found_layers = stack(session_of([*quiet, row(6.0, gradients=2.0), row(9.0), *quiet]), columns=1)
    assert "gradients" not in found_layers
    assert max(found_layers["activations"].heights) == 5.0


def test_a_gap_breaks_every_layer() -> None:
    """Where nothing was sampled, all layers end and begin anew."""
    row = (5.0, 4.0, *[NAN] * len(METRICS[2:]))
    recorder = recorder_of(*[row] * 5, metrics=METRICS, every=0.1)
    recorder.session.timeline.add_gap(0.4, 5.0)
    recorder.append(Sample(5.0, row))
    assert {len(one.runs) for one in stack(recorder.session).values()} == {2}


def test_a_session_that_knows_no_parts_has_no_layers() -> None:
    """A training with its model has layers; a session in which no model was found has none."""
    session = shared_run("two gpus")
    assert layers_of(session) == 0
    assert stack(session) == {}
    # Nothing says what was there before, what names keep, or what libraries, caches, Python or Arrow have.
    assert layers_of(training()) == len(STACK) - 6


def test_a_level_stretch_of_the_svg_is_written_as_two_points() -> None:
    """An area that stays level, as weights do, goes up, along and down."""
    html = chart_html(session_of([(5.0 * GIB, 4.0 * GIB, 0.0, 0.0, 0.0, 0.0)] * 200))
    path = re.search(rf'd="([^"]*)" fill="{palette.PARTS["weights"]}"', html)
    assert path is not None
    assert re.fullmatch(r"M0 170l0 -(\d+)l1000 0l0 \1z", path[1])
