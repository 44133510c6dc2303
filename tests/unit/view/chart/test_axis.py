"""Ticks: round values whose texts say what they stand for."""

from __future__ import annotations

import pytest

from hfmem_widget.view.chart.axis import time_text, time_ticks, value_ticks


@pytest.mark.parametrize(
    ("seconds", "step", "text"),
    [
        (0, 1, "0 s"),
        (0.002, 0.001, "2 ms"),
        (0.0005, 0.0001, "0.5 ms"),
        (0.4, 0.2, "400 ms"),
        (1.5, 0.5, "1.5 s"),
        (59, 1, "59 s"),
        (60, 30, "1:00"),
        (90, 30, "1:30"),
        (605, 5, "10:05"),
        (60, 60, "1 min"),
        (600, 300, "10 min"),
        (3600, 1800, "1 h"),
        (5400, 1800, "1 h 30"),
        (3900, 300, "1 h 05"),
        (90000, 3600, "25 h"),
    ],
)
def test_a_time_is_told_in_the_unit_that_suits(seconds: float, step: float, text: str) -> None:
    """From a fraction of a millisecond to days, as finely as the ticks lie."""
    assert time_text(seconds, step) == text


@pytest.mark.parametrize(
    ("stop", "texts"),
    [
        (0.9, "0 s,200 ms,400 ms,600 ms,800 ms"),
        (3, "0 s,500 ms,1.0 s,1.5 s,2.0 s,2.5 s,3.0 s"),
        (4, "0 s,1 s,2 s,3 s,4 s"),
        (11.6, "0 s,2 s,4 s,6 s,8 s,10 s"),
        (60, "0 s,10 s,20 s,30 s,40 s,50 s,1:00"),
        (100, "0 s,20 s,40 s,1:00,1:20,1:40"),
        (600, "0 s,2 min,4 min,6 min,8 min,10 min"),
        (3 * 3600, "0 s,30 min,1 h,1 h 30,2 h,2 h 30,3 h"),
        (3 * 86400, "0 s,12 h,24 h,36 h,48 h,60 h,72 h"),
        (30 * 86400, "0 s,120 h,240 h,360 h,480 h,600 h,720 h"),
    ],
)
def test_times_of_an_axis_are_round(stop: float, texts: str) -> None:
    """At most six beside the one at 0, and none past the end."""
    ticks = time_ticks(stop)

    assert ",".join(ticks.texts) == texts
    assert ticks.values[-1] <= stop * (1 + 1e-9)


@pytest.mark.parametrize(
    ("top", "texts"),
    [
        (1, "0.0,0.2,0.4,0.6,0.8,1.0 GiB"),
        (1.1, "0.00,0.25,0.50,0.75,1.00 GiB"),
        (7, "0,2,4,6 GiB"),
        (11, "0.0,2.5,5.0,7.5,10.0 GiB"),
        (80, "0,20,40,60,80 GiB"),
        (650, "0,200,400,600 GiB"),
        (0.07, "0.00,0.02,0.04,0.06 GiB"),
    ],
)
def test_values_of_an_axis_are_round(top: float, texts: str) -> None:
    """About five up to the top, from 0; the unit is said once, and all have as many digits as they need."""
    ticks = value_ticks(top, "GiB")

    assert ",".join(ticks.texts) == texts
    assert ticks.values[0] == 0
    assert [float(text.split()[0]) for text in ticks.texts] == pytest.approx(ticks.values)
