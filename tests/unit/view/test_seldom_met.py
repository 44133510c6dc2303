"""Views of what is seldom met: of nothing, of the least there may be, of what nobody has measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from hfmem_widget.analysis.curve import LEAST_SAMPLES
from hfmem_widget.analysis.moved import Moved, Movement, movement
from hfmem_widget.features.compare.scene import step_ticks
from hfmem_widget.features.memory_map.html import memory_map_bundle
from hfmem_widget.features.memory_map.model import MemoryMap
from hfmem_widget.features.memory_map.rows import GAP, ROWS, WIDTH, _full_width
from hfmem_widget.session import Device, Phase, Recorder, Sample, Series, Session, Span
from hfmem_widget.text import GIB, MIB
from hfmem_widget.view.anatomy import _off, drawn_parts
from hfmem_widget.view.chart.axis import round_up
from hfmem_widget.view.chart.figure import figure_dict
from hfmem_widget.view.chart.lanes import MOST_LANES, lay_lanes
from hfmem_widget.view.chart.scene import DEVICE_USED_UP_TO, build_scene
from hfmem_widget.view.chart.svg import chart_html
from hfmem_widget.view.phases import _note_of
from tests.unit.features.memory_map.test_html_read_back import heap, segment
from tests.unit.view.test_anatomy import made

NAN = math.nan
GPU = Device("cuda:0", "NVIDIA H200", total=100 * GIB)


def session_of(*rows: Sequence[float], metrics: tuple[str, ...] = ("allocated",)) -> Session:
    return recorder_of(*rows, metrics=metrics).session


def recorder_of(*rows: Sequence[float], metrics: tuple[str, ...] = ("allocated",)) -> Recorder:
    recorder = Recorder("run")
    recorder.adopt([GPU], [Series(GPU.key, metric) for metric in metrics])
    for at, row in enumerate(rows):
        recorder.append(Sample(float(at), tuple(row)))
    return recorder


@pytest.mark.parametrize(
    ("predicted", "measured", "told"),
    [
        (3 * GIB, 2 * GIB, "+1.00 GiB (+50.0 %)"),
        (1 * GIB, 2 * GIB, "\u22121.00 GiB (\u221250.0 %)"),
        (2 * GIB, 2 * GIB, "±0 (±0.0 %)"),
        (4.2 * GIB, 2 * GIB, "+2.20 GiB (+110.0 %)"),
        (2.002 * GIB, 2 * GIB, "+2.05 MiB (+0.1 %)"),
        (GIB, 0.0, "+1.00 GiB"),
        (GIB, NAN, ""),
        (NAN, GIB, ""),
    ],
)
def test_a_forecast_is_off_by_bytes_and_percent(
    predicted: float, measured: float, told: str
) -> None:
    """Of nothing there is no percentage, and of what is not known no difference."""
    assert _off(predicted, measured) == told


@pytest.mark.parametrize(
    ("own", "told"),
    [
        ((256 * MIB,), "by this process, but outside PyTorch"),
        ((256 * MIB - 1,), "by other processes; this one used no GPU"),
        ((0.0, 300 * MIB), "by this process, but outside PyTorch"),
        ((0.0, NAN), "by other processes or by this one outside PyTorch"),
        ((NAN, 300 * MIB), "by this process, but outside PyTorch"),
    ],
)
def test_who_moved_a_device_is_told_as_far_as_it_is_known(
    own: tuple[float, ...], told: str
) -> None:
    """What any device says of this process decides."""
    devices = tuple(Moved(GPU, 0.0, GIB, GIB, one) for one in own)

    assert Movement(devices, leads=True).lead.endswith(told)


@pytest.mark.parametrize(
    ("rises", "told"),
    [
        ((2.0,), "cuda:0 rose by 2.00 GiB to 2.00 GiB"),
        ((1.0, 1.0), "2 devices rose by 1.00 GiB each, highest 1.00 GiB on cuda:0"),
        ((98.0, 100.0), "2 devices rose by 100.0 GiB each, highest 100.0 GiB on cuda:0"),
        ((97.0, 100.0), "2 devices rose by 97.0 GiB to 100.0 GiB, highest 100.0 GiB on cuda:0"),
    ],
)
def test_devices_that_rose_alike_are_told_together(rises: tuple[float, ...], told: str) -> None:
    """Within a fiftieth of each other; else from the least to the most."""
    moved = tuple(Moved(GPU, 0.0, one * GIB, one * GIB, 0.0) for one in rises)

    assert Movement(moved, leads=True).lead.startswith(f"{told}, by other")


@pytest.mark.parametrize(
    ("total", "rise", "told"),
    [
        (100.0, 1.0, True),
        (100.0, 0.999, False),
        (10.0, 0.25, True),
        (10.0, 0.249, False),
        (NAN, 0.25, True),
    ],
)
def test_a_device_moved_by_a_hundredth_of_it(total: float, rise: float, *, told: bool) -> None:
    """A quarter of a GiB at least; where nobody knows how large it is, that alone."""
    recorder = Recorder("run")
    session = recorder.session
    recorder.adopt(
        [replace(GPU, total=total * GIB)],
        [Series(GPU.key, "allocated"), Series(GPU.key, "device_used")],
    )
    for at, used in enumerate((GIB, (1 + rise) * GIB)):
        recorder.append(Sample(float(at), (0.0, used)))

    assert bool(movement(session).devices) is told


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        ({}, "worst: a step"),
        ({"step": 3.0}, "worst: step 3"),
        ({"step": 3.0, "tokens": 0.0}, "worst: step 3"),
        ({"step": 3.0, "tokens": 1.0}, "worst: step 3 (1 tokens)"),
        ({"tokens": 8.0, "largest_batch": 4.0}, "worst: a step (4 tokens)"),
    ],
)
def test_the_worst_step_is_called_by_its_number_and_tokens(
    counts: dict[str, float], told: str
) -> None:
    """As far as they are known; where there is no worst, or it does not stand out, by nothing."""
    span = Span(1, "step", "a step", 0.0, Sample(0.0, ()), counts=counts)

    assert _note_of(Phase("step", "", 3), span, is_marked=True) == told
    assert _note_of(Phase("step", "", 3), span) == ""
    assert _note_of(Phase("step", "", 3), None) == ""


@pytest.mark.parametrize(
    ("end", "labels"),
    [
        ((0.0, 0.9), ["a"]),
        ((0.0, 1.0), ["a", "b"]),
        ((1.0, 2.0), ["b"]),
        ((0.9, 2.0), ["b"]),
        ((2.1, 3.0), []),
    ],
)
def test_a_bar_is_drawn_of_what_begins_in_the_view(
    end: tuple[float, float], labels: list[str]
) -> None:
    """At its edges too."""
    recorder = recorder_of((1.0,))
    session = recorder.session
    for at, label in enumerate("ab"):
        span = recorder.open_span("block", label, session.last_sample)
        recorder.append(Sample(at + 1.0, (1.0,)))
        recorder.close_span(span.id, session.last_sample, {})

    assert [one.label for one in lay_lanes(session, GPU.key, *end)] == labels


def test_of_spans_that_lie_within_each_other_some_are_too_deep_to_draw() -> None:
    """A lane for each depth, as many as there may be; one that overlaps goes a lane further down."""
    recorder = recorder_of((1.0,))
    session = recorder.session
    spans = [
        recorder.open_span("block", str(at), session.last_sample) for at in range(MOST_LANES + 2)
    ]
    recorder.append(Sample(1.0, (1.0,)))
    for span in reversed(spans):
        recorder.close_span(span.id, session.last_sample, {})
    bars = lay_lanes(session, GPU.key, 0.0, 1.0)

    assert [(one.label, one.lane) for one in bars] == [(str(at), at) for at in range(MOST_LANES)]


@pytest.mark.parametrize(("samples", "there"), [(LEAST_SAMPLES - 1, False), (LEAST_SAMPLES, True)])
def test_a_chart_needs_some_samples(samples: int, *, there: bool) -> None:
    """With fewer there is none, in any form; a chart of nothing else than missing readings is none either."""
    session = session_of(*[(float(at + 1),) for at in range(samples)])
    missing = session_of(*[(NAN,)] * samples)

    assert (build_scene(session, columns=100) is not None) is there
    assert bool(chart_html(session)) is there
    assert bool(figure_dict(session)["data"]) is there
    assert build_scene(missing, columns=100) is None


@pytest.mark.parametrize(
    ("used", "shown"), [(1.9, True), (DEVICE_USED_UP_TO, True), (2.1, False), (2.9, False)]
)
def test_what_the_whole_device_uses_is_drawn_where_it_is_not_far_above(
    used: float, *, shown: bool
) -> None:
    """Up to twice what this process has; more of it would press the curves down."""
    rows = [(10 * GIB, used * 10 * GIB)] * 5
    built = build_scene(session_of(*rows, metrics=("allocated", "device_used")), columns=100)

    assert built is not None
    assert ("device_used" in [one.metric for one in built.lines]) is shown


@pytest.mark.parametrize(
    ("of", "unit"),
    [(MemoryMap(("cuda:0",), (segment(("used", 4)),), 0.1), "segment"), (heap(), "part")],
)
def test_a_bar_of_a_map_is_called_what_it_is(of: MemoryMap, unit: str) -> None:
    """A heap has no segments."""
    assert f"one bar per {unit}," in memory_map_bundle(of)["text/html"]


@pytest.mark.parametrize(
    ("largest", "wanted", "full"),
    [(0, 0.0, 1.0), (10, 10.0, 10.0), (10, 11.0, 20 * WIDTH / (WIDTH - GAP)), (10, 0.0, 10.0)],
)
def test_the_largest_bars_fit_whole_into_a_row(largest: int, wanted: float, full: float) -> None:
    """As many as are wanted, with their gaps; of nothing a row is one byte wide."""
    assert _full_width(largest, wanted) == pytest.approx(full)
    assert ROWS > 1


@pytest.mark.parametrize(
    ("first", "last", "texts"),
    [
        (1, 6, ["step 1", "2", "3", "4", "5", "6"]),
        (1, 60, ["step 1", "10", "20", "30", "40", "50", "60"]),
        (5, 60, ["step 10", "20", "30", "40", "50", "60"]),
        (4, 60, ["step 4", "10", "20", "30", "40", "50", "60"]),
        (1.5, 1.5, ["step 2"]),
        (0, 1, ["step 0", "1"]),
        (0, 30_000, ["step 0", "5,000", "10,000", "15,000", "20,000", "25,000", "30,000"]),
    ],
)
def test_steps_have_ticks_at_round_numbers(first: float, last: float, texts: list[str]) -> None:
    """And at the first, where the next one is more than half of their distance away."""
    assert list(step_ticks(first, last).texts) == texts


@pytest.mark.parametrize(
    ("least", "rounded"),
    [(1, 1), (1.1, 2), (2, 2), (2.1, 5), (5.5, 10), (10, 10), (10.5, 20), (100, 100), (101, 200)],
)
def test_distances_are_round(least: float, rounded: int) -> None:
    """1, 2, 5, and tens of them."""
    assert round_up(least, (1, 2, 5)) == rounded


@pytest.mark.parametrize(
    ("ours", "others", "free", "names"),
    [
        (0.0, 50.0, 50.0, {"others"}),
        (10.0, 20.0, 70.0, {"others", "weights"}),
        (10.0, 10.1, 79.9, {"others", "weights"}),
        (10.0, 10.0, 80.0, {"others", "weights"}),
        (10.0, 9.0, 81.0, {"others", "weights"}),
        (10.0, 60.0, 30.0, {"weights"}),
    ],
)
def test_others_are_drawn_where_they_leave_the_process_room(
    ours: float, others: float, free: float, names: set[str]
) -> None:
    """As much as half of the bar: else it is drawn alone, unless it has nothing."""
    found = drawn_parts([made(weights=ours, others=others, free=free)])
    told = {name for name in ("weights", "others") if name in found and (name != "weights" or ours)}

    assert ("others" in found) is (not ours or ours * 2 >= ours + others)
    assert told <= names | {"others"}
