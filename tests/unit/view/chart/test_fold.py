"""Several cells of one session: drawn end to end, each as wide as it is long."""

from __future__ import annotations

import math
import re

import pytest

from hfmem_widget.session import (
    Finding,
    Guide,
    Peak,
    Session,
)
from hfmem_widget.text import GIB
from hfmem_widget.view.chart.figure import chart_bundle, figure_dict
from hfmem_widget.view.chart.scene import Scene, build_scene
from tests.data.recorders import KEY, read, recorder_of
from tests.scenes.stage import STARTED_AT

CELLS = ((5.0, 15.0, 4.0), (3615.0, 3625.0, 9.0))
"""When two cells began and ended, an hour apart, and the GiB of their peaks."""


def notebook(*cells: tuple[float, float, float]) -> Session:
    recorder = recorder_of(total=20 * GIB)
    recorder.session.started_at = STARTED_AT
    for start, stop, peak in cells:
        cell = recorder.open_span("cell", f"[{start:g}]", read(recorder, start, GIB))
        for tenth in range(1, 100):
            height = peak if tenth == 50 else 1 + tenth / 100
            read(recorder, start + tenth * (stop - start) / 100, height * GIB)
        after = read(recorder, stop, 2 * GIB)
        recorder.close_span(cell.id, after, {KEY: Peak(peak * GIB, "exact")}, "done")
    return recorder.session


def scene(session: Session) -> Scene:
    drawn = build_scene(session, columns=700)
    assert drawn is not None
    return drawn


def test_cells_are_as_wide_as_they_are_long_and_what_is_between_them_is_narrow() -> None:
    """The peak and the lines lie in the cell that they are of."""
    drawn = scene(notebook(*CELLS))
    first, second = drawn.bars

    assert [bar.stop - bar.start for bar in drawn.bars] == pytest.approx([10.0, 10.0])
    assert second.start - first.stop < 1
    assert drawn.duration < 22
    assert drawn.peak is not None
    assert drawn.peak.time == pytest.approx(second.start + 5, abs=0.1)
    (line,) = drawn.lines
    assert max(line.points, key=lambda point: point[1])[0] == pytest.approx(
        drawn.peak.time, abs=0.1
    )


def test_the_axis_has_the_time_of_day() -> None:
    """Seconds since the session began are no measure there; each second is named once."""
    session = notebook(*CELLS)
    texts = figure_dict(session)["layout"]["xaxis"]["ticktext"]
    named = [text for text in texts if text]

    assert named[0] == "00:00:00 UTC"
    assert all(re.fullmatch(r"\d\d:\d\d:\d\d( UTC)?", text) for text in named)
    assert len({*named}) == len(named)
    assert named[-1].startswith("01:00:")
    bundle = chart_bundle(session)
    assert bundle is not None
    assert "over 1 h" in bundle["text/plain"]


def test_a_budget_is_crossed_where_that_is_drawn() -> None:
    """In the second cell, an hour after the session began."""
    session = notebook(*CELLS)
    session.guides.append(Guide("cuda:0", "budget", "budget", 0.0, math.inf, 8 * GIB, 8 * GIB))
    evidence = {"device": "cuda:0", "time": 3620.0}
    session.findings.append(Finding("budget", "warn", "crossed", evidence=evidence))
    drawn = scene(session)
    (guide,) = drawn.guides

    assert guide.crossed_at == pytest.approx(drawn.bars[1].start + 5, abs=0.01)


@pytest.mark.parametrize("cells", [CELLS[:1], ((0.0, 10.0, 4.0), (14.0, 20.0, 9.0))])
def test_one_cell_and_cells_with_short_pauses_are_drawn_over_seconds(
    cells: tuple[tuple[float, float, float], ...],
) -> None:
    """As the chart of a single cell is."""
    drawn = scene(notebook(*cells))

    assert drawn.times is None
    assert drawn.duration == cells[-1][1]
