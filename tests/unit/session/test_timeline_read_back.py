"""The timeline read back: which samples each of its rows stands for."""

from __future__ import annotations

import pytest

from hfmem_widget.session import Timeline
from hfmem_widget.session.timeline import CELLS


@pytest.mark.parametrize("look_every", [1, 7, 1000])
@pytest.mark.parametrize("samples", [1, 7, 8, 9, 15, 16, 17, 33, 64, 65, 100, 129, 500])
def test_each_row_stands_for_as_many_samples_in_a_row(samples: int, look_every: int) -> None:
    """From its time on; only the last may stand for fewer. However often it was looked at meanwhile."""
    timeline = Timeline(1, capacity=8)
    heights = [float(at * 37 % 101) for at in range(samples)]
    for at, height in enumerate(heights):
        timeline.append(float(at), (height,))
        if at % look_every == 0:
            len(timeline)
    rows = len(timeline)
    starts = range(0, samples, timeline.bucket)
    taken = [heights[at : at + timeline.bucket] for at in starts]

    assert timeline.time.tolist() == [float(at) for at in starts]
    assert timeline.low[:, 0].tolist() == [min(one) for one in taken]
    assert timeline.high[:, 0].tolist() == [max(one) for one in taken]
    assert rows == len(starts) <= 8


@pytest.mark.parametrize("rows", [3, 4, 5])
def test_very_many_series_have_few_rows(rows: int) -> None:
    """Of an odd number of them the last one stays as it is."""
    width = CELLS // (rows - 1)
    timeline = Timeline(width, capacity=4096)
    counts, times = [], []
    for at in range(rows + 2):
        timeline.append(float(at), [float(at)] * width)
        counts.append(len(timeline))
        times.append(timeline.time.tolist())

    assert counts[:rows] == list(range(1, rows + 1))
    assert times[rows] == [float(at) for at in (*range(0, rows, 2), rows)]
    assert timeline.high[:, 0].tolist()[:1] == [1.0]
