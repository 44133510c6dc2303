"""The stack of parts: always as high as what is allocated, and every instant's parts together."""

from __future__ import annotations

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
from hfmem_widget.session import HELD, Sample, Session, Timeline
from hfmem_widget.session.series import PARTS
from hfmem_widget.text import GIB
from hfmem_widget.view import palette
from hfmem_widget.view.chart.layers import layers, layers_of
from hfmem_widget.view.chart.shapes import Curve
from hfmem_widget.view.chart.svg import chart_html
from tests.data.parted import NAN, training
from tests.data.recorders import recorder_of
from tests.scenes import shared_run

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
    found = layers(session, session.devices[0], part, view, columns=columns)
    return {NAMES[one.tip]: one for one in found}


def instant(**values: float) -> dict[str, float]:
    """Return how high each layer is in a session of one such reading."""
    row = tuple(values.get(metric, NAN) for metric in METRICS)
    return {name: one.heights[0] for name, one in stack(session_of([row, row])).items()}


@given(ROWS, st.integers(1, 40), st.sampled_from([4, 4096]))
def test_layers_stand_on_each_other_up_to_the_allocated_line(
    rows: list[tuple[float, ...]], columns: int, capacity: int
) -> None:
    """At every point of it, whatever is known of the parts, and whether or not the timeline has folded.

    They are there where anything was ever found, and something was allocated; nothing known is nothing drawn.
    """
    session = session_of(rows, capacity)
    view = (0.0, max(session.last_sample.time, 0.1))
    found = list(stack(session, columns).values())
    line = curve(session.between(*view), 0, *view, columns=columns)
    drawn = [point for point in line if not math.isnan(point[1])]

    known = any(value > 0 for row in rows for value in row[1 : 1 + len(HELD)])
    assert bool(found) == (known and any(row[0] > 0 for row in rows))
    for one in found:
        times = [time for run in one.runs for time, _ in run]
        assert times == [time for time, _ in drawn]
    for lower, upper in pairwise(found):
        for below, above in zip(lower.runs, upper.runs, strict=True):
            assert all(one <= two for (_, one), (_, two) in zip(below, above, strict=True))
    if found:
        heights = np.sum([one.heights for one in found], axis=0)
        left_out = 0.002 * max(value for _, value in drawn) * len(STACK)
        assert heights == pytest.approx([value for _, value in drawn], abs=left_out + 1e-9)


def test_parts_of_one_instant_stand_together() -> None:
    """The row where most was allocated decides, not the one where a part was highest."""

    def row(allocated: float, **values: float) -> tuple[float, ...]:
        read = {"allocated": allocated, "weights": 4.0, **values}
        return tuple(read.get(metric, 0.0) for metric in METRICS)

    quiet = [row(5.0)] * 20
    found = stack(session_of([*quiet, row(6.0, gradients=2.0), row(9.0), *quiet]), columns=1)
    assert "gradients" not in found
    assert max(found["activations"].heights) == 5.0


def test_a_gap_breaks_every_layer() -> None:
    """Where nothing was sampled, all layers end and begin anew."""
    row = (5.0, 4.0, *[NAN] * len(METRICS[2:]))
    recorder = recorder_of(*[row] * 5, metrics=METRICS, every=0.1)
    recorder.session.timeline.add_gap(0.4, 5.0)
    recorder.append(Sample(5.0, row))
    assert {len(one.runs) for one in stack(recorder.session).values()} == {2}


def test_a_session_that_knows_no_parts_has_no_layers() -> None:
    """Layers are told for a training with its model, and none where nothing was found."""
    session = shared_run("two gpus")
    assert layers_of(session) == 0
    assert stack(session) == {}
    # Nothing says what was there before, what names keep, or what libraries, caches, Python or Arrow have.
    assert layers_of(training()) == len(STACK) - 6


def test_a_level_stretch_of_the_svg_is_written_as_two_points() -> None:
    """Weights stay as they are for most of a run: up, along, down."""
    html = chart_html(session_of([(5.0 * GIB, 4.0 * GIB, 0.0, 0.0, 0.0, 0.0)] * 200))
    path = re.search(rf'd="([^"]*)" fill="{palette.PARTS["weights"]}"', html)
    assert path is not None
    assert re.fullmatch(r"M0 170l0 -(\d+)l1000 0l0 \1z", path[1])
