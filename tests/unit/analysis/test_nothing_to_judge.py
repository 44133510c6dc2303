"""What is judged where there is little to judge by: open spans, single steps, cells without a reading."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from hfmem_widget.analysis.compare import compare
from hfmem_widget.analysis.holes import _risen, holes
from hfmem_widget.analysis.leaking.leaks import _ordinal
from hfmem_widget.analysis.leaking.moments import moments_of
from hfmem_widget.analysis.leaking.reruns import reruns
from hfmem_widget.analysis.leaking.trends import trend_in
from hfmem_widget.analysis.live_at_peak import replay
from hfmem_widget.errors import OptionError
from hfmem_widget.keeping import record_of
from hfmem_widget.session import Device, Peak, Sample, Series, Session
from hfmem_widget.testing.stage import Stage
from hfmem_widget.units import GIB
from tests.unit.analysis.leak_rows import SHAPES, row
from tests.unit.analysis.test_holes import found_in
from tests.unit.analysis.test_reruns import ran

NAN = math.nan


@pytest.mark.parametrize(
    ("before", "after", "retries"), [(1.0, 3.0, 2), (3.0, 3.0, 0), (3.0, 1.0, 0), (NAN, 3.0, 0)]
)
def test_retries_are_those_of_the_span(before: float, after: float, retries: int) -> None:
    """What the allocator had to do before it does not count."""
    found = found_in((5.0, 8.0, 0.0, after, 0), before=(0.0, 0.0, 0.0, before, 0.0))

    assert [one.evidence["retries"] for one in found] == ([retries] if retries else [])


def test_a_span_that_is_open_has_no_retries_yet() -> None:
    """Nor holes that are nobody's fault."""
    session, _ = ran(0, 10)
    span = replace(session.spans[0], after=None, stop=None)

    assert _risen(session, span, session.devices[0], "allocated") == 0.0
    assert list(holes(session, span)) == []


def test_holes_after_the_span_are_not_its_own() -> None:
    """Though it was fuller then."""
    session = Session("cell")
    metrics = ("allocated", "reserved", "inactive_split")
    session.adopt([Device("cuda:0", "")], [Series("cuda:0", one) for one in metrics])
    span = session.open_span("cell", "cell", session.append(Sample(0.0, (0.0, 0.0, 0.0))))
    within = session.append(Sample(1.0, (5 * GIB, 8 * GIB, 2 * GIB)))
    peaks = {"cuda:0/allocated": Peak(5 * GIB, "exact"), "cuda:0/reserved": Peak(8 * GIB, "exact")}
    closed = session.close_span(span.id, within, peaks)
    session.append(Sample(2.0, (7 * GIB, 8 * GIB, 0.0)))
    (found,) = holes(session, closed)

    assert found.evidence["holes"] == 2 * GIB


def test_holes_that_were_never_read_are_none() -> None:
    """Though what was reserved rose."""
    assert found_in((NAN, 8.0, NAN, 0, 0), (NAN, 8.0, 3.0, 0, 0), (5.0, 8.0, NAN, 0, 0)) == []


def test_a_run_that_goes_on_has_left_nothing_yet() -> None:
    """Whatever those before it left."""
    runs = [ran(at * 500, (at + 1) * 500) for at in range(5)]
    session, span = runs[-1]
    earlier = [record_of(*one) for one in runs[:-1]]

    assert len(reruns(session, span, earlier)) == 1
    assert reruns(session, replace(span, after=None), earlier) == ()


@pytest.mark.parametrize("which", ["of nothing", "of other devices"])
def test_cells_without_a_reading_are_not_compared(which: str) -> None:
    """That nothing was read is an error; so is a device that none of them used, which names theirs."""
    record = record_of(*ran(0, 10))
    if which == "of nothing":
        record = replace(record, devices=())
        with pytest.raises(OptionError, match="nothing was read"):
            compare({"a": [record], "b": [record]})
    else:
        with pytest.raises(OptionError, match="cuda:0"):
            compare({"a": [record], "b": [record]}, device="cuda:7")


def test_a_cell_of_one_step_is_compared_by_time() -> None:
    """One step makes no line."""
    stage = Stage("cell", gpus=1)
    with stage.span("cell", "cell"), stage.span("step", "step 1") as span:
        stage.session.count(span.id, {"step": 1.0})
        stage.hold({"cuda:0": GIB}, 1.0)
    session = stage.finish()
    record = record_of(session, session.spans[0])

    assert compare({"a": [record], "b": [record]}).by == "time"
    with pytest.raises(OptionError, match="none of these cells has steps"):
        compare({"a": [record], "b": [record]}, by="step")


def test_growth_that_goes_with_the_size_is_none() -> None:
    """Where the size rises as evenly as time nobody can tell the two apart."""
    made = row(SHAPES["even"], 30, 0.0, device="cuda:0", what="a step")

    assert trend_in(made) is not None
    assert trend_in(replace(made, size=made.number)) is None


@pytest.mark.parametrize(("within", "rows"), [("step", []), ("block", [3])])
def test_a_forward_pass_in_a_step_is_the_steps(within: Any, rows: list[int]) -> None:
    """Elsewhere its beginnings are moments of their own."""
    stage = Stage("run", gpus=1)
    with stage.span("cell", "cell"):
        for at in range(3):
            with stage.span(within, "one") as span:
                stage.session.count(span.id, {"step": float(at + 1)})
                with stage.span("forward", "forward"):
                    stage.hold({"cuda:0": at * GIB}, 0.2)
    found = [one for one in moments_of(stage.finish()) if "forward" in one.what]

    assert [len(one) for one in found if one.device == "cuda:0"] == rows


@pytest.mark.parametrize(
    ("count", "words"),
    [("1", "1st"), ("2", "2nd"), ("3", "3rd"), ("4", "4th"), ("11", "11th"), ("12", "12th"),
     ("13", "13th"), ("21", "21st"), ("111", "111th"), ("120", "120th"), ("102", "102nd")],
)  # fmt: skip
def test_the_ordinal_of_a_number(count: str, words: str) -> None:
    """As it is said."""
    assert _ordinal(count) == words


def test_segments_of_other_devices_are_not_this_ones() -> None:
    """A snapshot has those of all; the first device is meant where it does not say."""

    def segment(size: int, **device: int) -> dict[str, Any]:
        block = {"size": size, "requested_size": size, "state": "active_allocated"}
        return {"address": size, "blocks": [block], **device}

    found = {"segments": [segment(512), segment(1024, device=1)], "device_traces": [[], []]}

    assert replay(found, 0).bytes == 512
    assert replay(found, 1).bytes == 1024
    assert replay(found, 2).bytes == 0
