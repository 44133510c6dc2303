"""What a session does where there is much of something, or nothing: names, phases, frames, pictures."""

from __future__ import annotations

import math
import sys
from dataclasses import fields
from typing import Any

import plotly.graph_objects as go
import pytest

from hfmem_widget.errors import WatchStateError
from hfmem_widget.features.memory_map.model import MemoryMap
from hfmem_widget.features.oom.model import OomEvent
from hfmem_widget.session import (
    Device,
    Peak,
    Recorder,
    Sample,
    Series,
    Session,
    Span,
    StepBatch,
    StepGroup,
)
from hfmem_widget.session.blocks import BLOCK
from hfmem_widget.session.model import Polling
from hfmem_widget.session.spans import MOST_PHASES, MOST_ROOTS, Phases
from hfmem_widget.session.stacks import LivePeak, Site, StackRecording, Stacks
from hfmem_widget.session.timeline import Timeline
from tests.data.segments import segment

GPU = "cuda:0"
KEY = f"{GPU}/allocated"


def session_of(*values: float) -> Session:
    return recorder_of(*values).session


def recorder_of(*values: float) -> Recorder:
    recorder = Recorder("run")
    recorder.adopt([Device(GPU, "NVIDIA H200")], [Series(GPU, "allocated")])
    for at, value in enumerate(values):
        recorder.append(Sample(float(at), (value,)))
    return recorder


def block(label: str, *, peak: float = 1.0, number: int = 1, kind: Any = "block") -> Span:
    sample = Sample(0.0, (0.0,))
    peaks = {KEY: Peak(peak, "exact")}
    return Span(number, kind, label, 0.0, sample, stop=2.0, after=sample, peaks=peaks)


def test_names_of_blocks_are_kept_up_to_a_number_of_them() -> None:
    """Those that came first; each of them goes on being counted."""
    phases = Phases()
    for name in [*range(MOST_PHASES), "one too many", 0]:
        phases.add(1, block(f"block {name}"))
    found = phases.within(1)

    assert [one.label for one in found] == [f"block {at}" for at in range(MOST_PHASES)]
    assert [one.count for one in found] == [2, *[1] * (MOST_PHASES - 1)]
    assert (found[0].seconds, found[1].seconds) == (4.0, 2.0)


def test_the_oldest_cells_lose_their_phases() -> None:
    """There are as many cells that have some as there may be."""
    phases = Phases()
    for root in range(MOST_ROOTS + 2):
        phases.add(root, block("x"))

    assert [root for root in range(MOST_ROOTS + 2) if not phases.within(root)] == [0, 1]


def test_the_first_of_equally_high_spans_is_the_highest() -> None:
    """A later one takes its place only if it came higher."""
    phases = Phases()
    for number, peak in enumerate((3.0, 3.0, 4.0, 2.0), start=1):
        phases.add(1, block("x", peak=peak, number=number))
        (phase,) = phases.within(1)
        assert phase.highest[KEY].id == (1, 1, 3, 3)[number - 1]


def test_a_span_that_is_not_there_is_an_error_that_names_it() -> None:
    """It may never have been, or be forgotten."""
    with pytest.raises(WatchStateError, match="no span 7"):
        session_of(1.0).span(7)


@pytest.mark.parametrize("of", [session_of(1.0), Stacks((), StackRecording("allocator"))])
def test_without_pandas_a_frame_says_what_is_missing(
    of: Session | Stacks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And how it is had."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        of.to_pandas()


def test_a_frame_has_the_extreme_that_was_asked_for() -> None:
    """Where rows stand for several samples, the highest of each by default."""
    recorder = Recorder("run", timeline=Timeline(0, 2))
    session = recorder.session
    recorder.adopt([Device(GPU, "")], [Series(GPU, "allocated")])
    for at in range(2 * BLOCK):
        recorder.append(Sample(float(at), (float(at % 5),)))

    assert session.to_pandas()[KEY].max() == 4.0
    assert session.to_pandas(fold="high")[KEY].min() > 0.0
    assert session.to_pandas(fold="low")[KEY].max() == 0.0


def test_a_session_has_its_chart_as_a_figure() -> None:
    """The same that its card has."""
    assert isinstance(session_of(1.0, 2.0, 3.0).figure(), go.Figure)


def live(size: int, device: str = GPU) -> LivePeak:
    site = Site("cell [1] line 1", "Net", "aten::op", "forward", size, 1, "y")
    return LivePeak(device, size, size, (site,), time=1.0, entries=1)


@pytest.mark.parametrize(
    ("peaks", "told"),
    [((), "nothing"), ((live(2048), live(5, "cuda:1")), "cuda:0 2,048 bytes, cuda:1 5 bytes")],
)
def test_stacks_say_how_much_was_live(peaks: tuple[LivePeak, ...], told: str) -> None:
    """In a list of them, and they show themselves as they do below the card."""
    stacks = Stacks(peaks, StackRecording("allocator"))

    assert repr(stacks) == f"<Stacks: live at the peak: {told}>"
    assert set(stacks._repr_mimebundle_()) == {"text/html", "text/plain"}


def test_a_map_of_some_devices_has_theirs_alone() -> None:
    """Their segments and notes; how long it took to read was that of all."""
    told = {"cuda:0": "a", "cuda:1": "b"}
    found = MemoryMap(("cuda:0", "cuda:1"), (segment(("used", 1)),), 0.5, told)

    assert found.only({"cuda:0"}) == MemoryMap(("cuda:0",), found.segments, 0.5, {"cuda:0": "a"})
    assert found.only({"cuda:1"}) == MemoryMap(("cuda:1",), (), 0.5, {"cuda:1": "b"})


def test_a_poller_that_has_not_begun_has_missed_nothing() -> None:
    """It reads ten times a second."""
    told = {one.name: getattr(Polling(), one.name) for one in fields(Polling)}

    assert (told["interval"], told["current_interval"]) == (0.1, 0.1)
    assert (told["missed"], told["longest_gap"]) == (0, 0.0)


def stepped(counts: dict[str, float]) -> StepGroup:
    recorder = recorder_of(1.0)
    session = recorder.session
    span = recorder.open_span("step", "step", session.last_sample)
    recorder.count(span.id, {"step": 3.0, **counts})
    recorder.append(Sample(2.0, (9.0,)))
    recorder.close_span(span.id, session.last_sample, {})
    (step,) = session.steps
    return step


@pytest.mark.parametrize(
    ("counts", "worst"),
    [({}, math.nan), ({"tokens": 8.0}, 8.0), ({"tokens": 8.0, "largest_batch": 4.0}, 4.0)],
)
def test_a_steps_worst_batch_is_its_largest(counts: dict[str, float], worst: float) -> None:
    """All of its tokens, where it is one batch."""
    step = stepped(counts)

    assert step.devices[GPU].worst_tokens == pytest.approx(worst, nan_ok=True)
    assert step.tokens == pytest.approx(counts.get("tokens", math.nan), nan_ok=True)


@pytest.mark.parametrize("listens", [True, False])
def test_a_listener_that_fails_is_left_out(*, listens: bool) -> None:
    """It is told once; the steps go on, and the session says so."""
    recorder = recorder_of(1.0)
    heard: list[int] = []
    session = recorder.session

    def listener(steps: StepBatch) -> None:
        heard.extend(steps.ids)
        if not listens:
            message = "no"
            raise ValueError(message)

    recorder.on_step(listener)
    for number in (1.0, 2.0):
        span = recorder.open_span("step", "step", session.last_sample)
        recorder.count(span.id, {"step": number})
        recorder.close_span(span.id, recorder.append(Sample(number, (1.0,))), {})

    assert len(heard) == (2 if listens else 1)
    assert len(session.steps) == 2
    assert [("ValueError: no" in note) for note in session.notes] == ([] if listens else [True])


def test_a_session_that_broke_off_ends_what_was_open() -> None:
    """At its newest reading; why is noted once, and of what it might have read nothing is an error."""
    recorder = Recorder("run")
    session = recorder.session
    span = recorder.open_span("cell", "cell", recorder.append(Sample(1.0, ())))
    recorder.append(Sample(3.0, ()))
    for _ in range(2):
        recorder.break_off(99.0, "It broke.")
    ended = session.span(span.id)

    assert (session.broken_off, session.running, session.notes) == (True, False, ["It broke."])
    assert (ended.stop, ended.after) == (3.0, session.last_sample)
    assert math.isnan(session.peak(KEY))


@pytest.mark.parametrize(("series", "kept"), [(1, 24), (2, 12), (0, 24)])
def test_the_oldest_spans_go_an_eighth_at_a_time(
    monkeypatch: pytest.MonkeyPatch, series: int, kept: int
) -> None:
    """Once they have more readings than are kept; those that are open stay."""
    monkeypatch.setattr("hfmem_widget.session.spans.MOST_READINGS", 24)
    recorder = Recorder("run")
    session = recorder.session
    recorder.adopt([Device(GPU, "")], [Series(GPU, str(at)) for at in range(series)])
    first = recorder.open_span("cell", "cell", recorder.append(Sample(0.0, ())))
    counts = []
    for _ in range(60):
        span = recorder.open_span("block", "block", recorder.append(Sample(0.0, ())))
        recorder.close_span(span.id, session.last_sample, {})
        counts.append(len(session.spans))

    assert max(counts) == kept
    assert counts[kept - 1] == kept + 1 - max(1, (kept - 1) // 8)
    assert session.spans[0].id == first.id
    assert session.spans[-1].id == 61


def test_of_nothing_that_was_live_every_share_is_none() -> None:
    """There is nothing to have a share of."""
    (row,) = live(0).rows("line")

    assert (row.bytes, row.blocks, row.share) == (0, 1, 0.0)


def test_of_an_oom_that_nobody_looked_into_little_is_known() -> None:
    """What was asked for, what was free, and nothing that is made up."""
    told = OomEvent(GPU, 1.0, 2.0, 3.0)

    assert math.isnan(told.total)
    assert (dict(told.readings), told.blocks, told.calls, told.capability) == ({}, None, (), ())
    assert told.autocast is None
