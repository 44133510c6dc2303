"""What is judged where there is little to judge by: open spans, single steps, cells without a reading."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from hfmem_widget.analysis.record_of import record_of
from hfmem_widget.errors import OptionError
from hfmem_widget.features.compare.table import compare
from hfmem_widget.features.leaks.comparable_points import A_SECOND, comparable_points
from hfmem_widget.features.leaks.reruns import reruns
from hfmem_widget.features.leaks.trends import trend_in
from hfmem_widget.features.memory_map.holes import _risen, holes
from hfmem_widget.features.stacks.live_at_peak import replay
from hfmem_widget.session import Device, Peak, Recorder, Sample, Series
from hfmem_widget.text import GIB, ordinal
from tests.data.leak_rows import SHAPES, row
from tests.scenes.stage import Stage
from tests.unit.features.leaks.test_reruns import ran
from tests.unit.features.memory_map.test_holes import found_in

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
    recorder = Recorder("cell")
    session = recorder.session
    metrics = ("allocated", "reserved", "inactive_split")
    recorder.adopt([Device("cuda:0", "")], [Series("cuda:0", one) for one in metrics])
    span = recorder.open_span("cell", "cell", recorder.append(Sample(0.0, (0.0, 0.0, 0.0))))
    within = recorder.append(Sample(1.0, (5 * GIB, 8 * GIB, 2 * GIB)))
    peaks = {"cuda:0/allocated": Peak(5 * GIB, "exact"), "cuda:0/reserved": Peak(8 * GIB, "exact")}
    closed = recorder.close_span(span.id, within, peaks)
    recorder.append(Sample(2.0, (7 * GIB, 8 * GIB, 0.0)))
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
        with pytest.raises(OptionError, match="no memory was read"):
            compare({"a": [record], "b": [record]})
    else:
        with pytest.raises(OptionError, match="cuda:0"):
            compare({"a": [record], "b": [record]}, device="cuda:7")


def test_a_cell_of_one_step_is_compared_by_time() -> None:
    """One step makes no line."""
    stage = Stage("cell", gpus=1)
    with stage.span("cell", "cell"), stage.span("step", "step 1") as span:
        stage.recorder.count(span.id, {"step": 1.0})
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
    """Elsewhere its beginnings are points of their own."""
    stage = Stage("run", gpus=1)
    with stage.span("cell", "cell"):
        for at in range(3):
            with stage.span(within, "one") as span:
                stage.recorder.count(span.id, {"step": float(at + 1)})
                with stage.span("forward", "forward"):
                    stage.hold({"cuda:0": at * GIB}, 0.2)
    found = [one for one in comparable_points(stage.finish()) if "forward" in one.what]

    assert [len(one) for one in found if one.device == "cuda:0"] == rows


@pytest.mark.parametrize(
    ("count", "words"),
    [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (12, "12th"),
     (13, "13th"), (21, "21st"), (111, "111th"), (120, "120th"), (102, "102nd")],
)  # fmt: skip
def test_the_ordinal_of_a_number(count: int, words: str) -> None:
    """As it is said."""
    assert ordinal(count) == words


def test_segments_of_other_devices_are_not_this_ones() -> None:
    """A snapshot has those of all; the first device is meant where it does not say."""

    def segment(size: int, **device: int) -> dict[str, Any]:
        block = {"size": size, "requested_size": size, "state": "active_allocated"}
        return {"address": size, "blocks": [block], **device}

    found = {"segments": [segment(512), segment(1024, device=1)], "device_traces": [[], []]}

    assert replay(found, 0).bytes == 512
    assert replay(found, 1).bytes == 1024
    assert replay(found, 2).bytes == 0


@pytest.mark.parametrize(
    ("holes_", "reserved", "there"),
    [(0.5, 1.0, False), (0.501, 1.0, True), (1.5, 10.0, False), (1.501, 10.0, True)],
)
def test_holes_are_told_beyond_a_size_and_a_share(
    holes_: float, reserved: float, *, there: bool
) -> None:
    """Half a GiB, and fifteen hundredths of what is reserved: more than that."""
    assert bool(found_in((reserved - holes_, reserved, holes_, 0, 0))) is there


@pytest.mark.parametrize("after", [False, True])
def test_a_loop_is_looked_for_in_the_newest_cells(*, after: bool) -> None:
    """Those that began since, and not in the blocks within them."""
    stage = Stage("run", gpus=1)
    with stage.span("cell", "first"):
        stage.hold({"cuda:0": GIB}, 0.5, {"weights": GIB / 2})
    with stage.span("cell", "second"), stage.span("block", "within"):
        stage.hold({"cuda:0": 2 * GIB}, 0.5)
    session = stage.finish()
    second = session.spans[1]
    found = list(comparable_points(session, second if after else None))

    assert {one.root for one in found if one.what == A_SECOND} <= {1, 2}
    assert (1 in {one.root for one in found}) is not after
