"""Bars and their labels: how much of a label fits, and whose peak a bar of many tells."""

from __future__ import annotations

import math

import pytest

from hfmem_widget.session import Device, Peak, Recorder, Sample, Series, Session, SpanKind
from hfmem_widget.text import MIB
from hfmem_widget.view.chart.lanes import MOST_BARS, lay_lanes
from hfmem_widget.view.chart.paint_plotly import _fitting
from hfmem_widget.view.chart.shapes import Bar

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
    assert _fitting(Bar(0, kind, "tokenizers", 0.0, 1.0, False, ()), share) == told


def blocks(peaks: list[float], *, outcomes: dict[int, str] | None = None) -> Session:
    """Return a session of blocks of a second each; a peak of NaN is one that nobody knows."""
    recorder = Recorder("run")
    session = recorder.session
    recorder.adopt([Device("cuda:0", "NVIDIA H200")], [Series("cuda:0", "allocated")])
    for at, peak in enumerate(peaks):
        span = recorder.open_span(
            "block", f"block {at}", recorder.append(Sample(float(at), (NAN,)))
        )
        known = {} if math.isnan(peak) else {"cuda:0/allocated": Peak(peak * MIB, "exact")}
        after = recorder.append(Sample(at + 1.0, (NAN,)))
        recorder.close_span(span.id, after, known, (outcomes or {}).get(at, "done"))
    return session


def test_a_bar_of_many_has_the_highest_peak_that_is_known() -> None:
    """Blocks of which none is known do not stand before the others."""
    peaks = [NAN, 5.0] * MOST_BARS
    bars = lay_lanes(blocks(peaks), "cuda:0", 0.0, float(len(peaks)))

    assert len(bars) <= MOST_BARS
    assert all(one.lines[1].startswith("peak 5.00 MiB exact in block ") for one in bars)
    assert (bars[0].start, bars[-1].stop) == (0.0, len(peaks))


@pytest.mark.parametrize(
    ("view", "labels"),
    [
        ((0.0, 3.0), ["block 0", "block 1", "block 2"]),
        ((1.0, 3.0), ["block 1", "block 2"]),
        ((0.0, 1.0), ["block 0", "block 1"]),
        ((0.0, 0.9), ["block 0"]),
    ],
)
def test_bars_are_of_what_began_within_the_view(
    view: tuple[float, float], labels: list[str]
) -> None:
    """What has ended where it begins is not in it."""
    bars = lay_lanes(blocks([1.0, 2.0, 3.0]), "cuda:0", *view)

    assert [one.label for one in bars] == labels
    assert all(0.0 <= one.start <= one.stop <= view[1] - view[0] for one in bars)


def test_a_bar_says_how_it_ended_unless_it_is_done() -> None:
    """And how long it took."""
    bars = lay_lanes(blocks([1.0, 2.0], outcomes={1: "failed"}), "cuda:0", 0.0, 2.0)

    assert [one.lines for one in bars] == [
        ("block 0 · 1.0 s", "peak 1.00 MiB exact"),
        ("block 1 · 1.0 s", "peak 2.00 MiB exact", "failed"),
    ]
