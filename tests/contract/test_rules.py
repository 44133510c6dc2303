"""Rules that the still pictures and the live chart share, as one table that both sides play.

The front end's part is `js/tests/rules.test.ts`. Null is what is not known.
"""

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast, get_args

import numpy as np
import pytest

from hfmem_widget.analysis.facts import GRAVITY
from hfmem_widget.session import (
    Certainty,
    Device,
    DeviceSteps,
    Guide,
    Peak,
    Sample,
    Series,
    Session,
    Span,
    SpanKind,
    Spans,
    StepGroup,
    Steps,
)
from hfmem_widget.session.series import PARTS
from hfmem_widget.session.steps import merged
from hfmem_widget.text import (
    for_plotly,
    format_bytes,
    format_count,
    format_counted,
    format_duration,
    format_share,
)
from hfmem_widget.view import palette
from hfmem_widget.view.chart.guides import guides_in
from hfmem_widget.view.chart.lanes import fold, lay_lanes, lay_steps, range_label, worst_step
from hfmem_widget.view.chart.layers import layers
from hfmem_widget.view.chart.shapes import time_text, time_ticks, value_ticks
from hfmem_widget.view.findings import MARKS
from hfmem_widget.view.line import peak_text
from tests.data.recorders import recorder_of
from tests.scenes.contrast import contrast
from tests.scenes.groups import add_group

RULES = json.loads((Path(__file__).parent / "rules.json").read_text(encoding="utf-8"))
GPU = "cuda:0"
DEVICES = (GPU, "cuda:1")


def known(value: float | str | None) -> float:
    return math.nan if value is None else float(value)


def step(
    number: int,
    *,
    parent: int = 1,
    start: float = 0.0,
    peak: float = 1.0,
    tokens: float = 8.0,
    certainty: Certainty = "exact",
) -> StepGroup:
    memory = DeviceSteps(peak, certainty, peak, number, tokens, 0.0, {})
    devices = {} if math.isnan(peak) else {GPU: memory}
    return StepGroup(parent, number, number, start, start + 1, 2.0, 4.0, 8.0, 8.0, devices)


WRITTEN: dict[str, Callable[..., str]] = {
    # Half a digit goes to the even one, as torch has it; what is too little to show is ±0.
    "bytes": lambda value: format_bytes(known(value)),
    "changes": lambda value: format_bytes(known(value), signed=True),
    "counts": lambda count: format_count(known(count)),
    "counted": lambda count, noun: format_counted(known(count), noun),
    "durations": lambda seconds: format_duration(known(seconds)),
    "peaks": lambda value, certainty: peak_text(Peak(known(value), certainty)),
    "shares": lambda share: format_share(known(share)),
    "plotly": for_plotly,
    "range_labels": range_label,
    "tick_texts": time_text,
}


@pytest.mark.parametrize(
    ("rule", "given", "text"),
    [(rule, row[:-1], row[-1]) for rule in WRITTEN for row in RULES[rule]],
)
def test_texts_read_as_in_the_live_chart(rule: str, given: list[Any], text: str) -> None:
    """Sizes, counts, times and shares, how surely a peak is known, a bar of many; nothing of Plotly's own."""
    assert WRITTEN[rule](*given) == text


@pytest.mark.parametrize(("stop", "count", "texts"), RULES["time_ticks"])
def test_ticks_of_time_stand_as_in_the_live_chart(stop: float, count: int, texts: str) -> None:
    """At round times from 0, as many as asked for and no more, none past the end."""
    ticks = time_ticks(stop, count)

    assert ",".join(ticks.texts) == texts
    assert 0 == ticks.values[0] <= ticks.values[-1] <= stop * (1 + 1e-9)


@pytest.mark.parametrize(("top", "count", "texts"), RULES["value_ticks"])
def test_ticks_of_bytes_stand_as_in_the_live_chart(top: float, count: int, texts: str) -> None:
    """Ticks are round values from 0 with as many digits as they need, and the highest has the unit."""
    ticks = value_ticks(top, "GiB", count)

    assert ",".join(ticks.texts) == f"{texts} GiB"
    figures = [float(text.split()[0].replace(",", "")) for text in ticks.texts]
    assert figures == pytest.approx(ticks.values)


@pytest.mark.parametrize(("kind", "lane", "is_worst", "colour", "ink"), RULES["bars"])
def test_bars_have_colour(kind: SpanKind, lane: int, is_worst: bool, colour: str, ink: str) -> None:
    """Text on a bar has a contrast of at least 4.5, in the live chart's colours."""
    assert palette.bar(kind, lane, worst=is_worst) == colour
    assert palette.ink_on(colour) == ink
    assert contrast(colour, ink) >= 4.5


@pytest.mark.parametrize("kind", get_args(SpanKind))
def test_no_bar_has_a_colour_that_is_not_in_the_table(kind: SpanKind) -> None:
    """Every kind of bar in every lane has a listed colour."""
    listed = {colour for *_, colour, _ in RULES["bars"]}

    lanes = range(9)
    assert {palette.bar(kind, at, worst=worst) for at in lanes for worst in (False, True)} <= listed


@pytest.mark.parametrize("case", RULES["stacks"], ids=lambda case: str(case["name"]))
def test_the_parts_stand_as_in_the_live_chart(case: dict[str, Any]) -> None:
    """Which part is on which, and how high."""
    values = {"allocated": case["allocated"], **case["read"]}
    row = tuple(map(known, values.values()))
    session = recorder_of(row, row, keys=["cpu"], metrics=list(values)).session
    (device,) = session.devices
    found = layers(session, device, session.between(0.0, 1.0), (0.0, 1.0), columns=10)

    names = {row.label: name for name, row in PARTS.items()}
    assert [[names[one.tip], one.points[0][1]] for one in found] == case["stack"]


@pytest.mark.parametrize("case", RULES["merges"], ids=lambda case: str(case["name"]))
def test_steps_merge_as_in_the_live_chart(case: dict[str, Any]) -> None:
    """Figure by figure, for every device; to groups of groups as well as at once."""
    rows = np.array([[*map(known, row)] for row in case["rows"]])
    expected = [[*map(known, case["merged"])]]
    most = merged(rows[:-1], np.array([0])) if len(rows) > 1 else rows[:0]

    np.testing.assert_array_equal(merged(rows, np.array([0])), expected)
    rows = np.concatenate([most, rows[-1:]])
    np.testing.assert_array_equal(merged(rows, np.array([0])), expected)


@pytest.mark.parametrize("case", RULES["step_folds"], ids=lambda case: str(case["name"]))
def test_steps_fold_as_in_the_live_chart(case: dict[str, Any]) -> None:
    """Which of them stand in one bar where there are more than bars."""
    parents = [parent for parent, count in case["steps"] for _ in range(count)]
    first = case.get("first", 1)
    steps = Steps(len(parents))
    for at, parent in enumerate(parents):
        add_group(steps, step(first + at, parent=parent, start=float(at)))
    session = cast("Session", SimpleNamespace(steps=steps))
    bars, _ = lay_steps(session, GPU, (0.0, 1e9), lambda parent: 0, case["most"])

    assert ",".join(one.label.partition(" ")[2] for one in bars) == case["bars"]


@pytest.mark.parametrize(
    ("certainty", "peaks", "tokens", "number"),
    [
        *(("exact", *row) for row in RULES["worst_steps"]),
        *(("sampled", *row) for row in RULES["worst_sampled_steps"]),
    ],
)
def test_the_worst_step_is_that_of_the_live_chart(
    certainty: Certainty,
    peaks: list[float | None],
    tokens: list[float | None] | None,
    number: int | None,
) -> None:
    """Where one of three and more stands out by 2 %, or is higher and has more tokens than all others.

    Samples may differ by chance: one of no more tokens than most must stand out by 10 %.
    """
    counts = tokens or [8.0] * len(peaks)
    numbered = enumerate(zip(peaks, counts, strict=True), 1)
    figures = partial(step, certainty=certainty)
    steps = [figures(at, peak=known(one), tokens=known(count)) for at, (one, count) in numbered]
    worst = worst_step(steps, GPU)

    assert (None if worst is None else worst.first) == number


@pytest.mark.parametrize("case", RULES["span_folds"], ids=lambda case: str(case["name"]))
def test_spans_fold_as_in_the_live_chart(case: dict[str, Any]) -> None:
    """Neighbours of one kind and parent, in groups of a round number."""
    sample = Sample(0.0, ())
    lane = [
        Span(at, kind.partition(" ")[0], "", float(at), sample, None if "open" in kind else at + 1)
        for at, kind in enumerate(case["spans"])
    ]

    assert [len(group) for group in fold(lane, case["most"])] == case["groups"]


@pytest.mark.parametrize("case", RULES["lanes"], ids=lambda case: str(case["name"]))
def test_spans_lie_in_the_lanes_of_the_live_chart(case: dict[str, Any]) -> None:
    """Spans are nested in lanes, and lie beside each other where they overlap."""
    sample = Sample(0.0, (1.0,))
    spans = Spans(
        Span(number, kind, f"span {number}", start, sample, stop, sample, parent=parent)
        for number, parent, kind, start, stop in case["spans"]
    )
    series = [Series(GPU, "allocated")]
    session = Session("run", devices=[Device(GPU, "GPU")], series=series, spans=spans)
    bars = lay_lanes(session, GPU, 0.0, 100.0)

    assert {one.label.removeprefix("span "): one.lane for one in bars} == case["lanes"]


def test_findings_are_marked_as_in_the_live_chart() -> None:
    """A form and a word for each severity, the gravest first."""
    marks = [[severity, MARKS[severity][0], MARKS[severity][2]] for severity in GRAVITY]
    assert marks == RULES["severities"]


@pytest.mark.parametrize("case", RULES["guides"], ids=lambda case: str(case["name"]))
def test_guides_are_drawn_as_in_the_live_chart(case: dict[str, Any]) -> None:
    """Cut to what is looked at, and left out where they say nothing."""
    guide = case["guide"]
    stop = math.inf if guide["stop"] is None else guide["stop"]
    band = (guide["band"][0], guide["band"][1])
    session = Session("run")
    ends = (guide["start"], stop, guide["first"], guide["last"])
    session.guides.append(Guide(GPU, guide["kind"], "g", *ends, band))
    begin, end = case["view"]
    drawn = [
        {
            "ends": [[begin + one.start, one.first], [begin + one.stop, one.last]],
            "band": list(one.band),
            "crossed": one.is_crossed,
        }
        for one in guides_in(session, GPU, (begin, end), case["allocated"])
    ]

    assert drawn == ([] if case["drawn"] is None else [case["drawn"]])
