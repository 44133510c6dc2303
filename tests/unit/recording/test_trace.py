"""A trace obeys the rules of Chrome's format, and has what the session has."""

import json
import math
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hfmem_widget.errors import OptionError
from hfmem_widget.recording.trace import trace
from hfmem_widget.session import Finding, Session, Span, StepGroup, Steps
from hfmem_widget.session.model import Sample
from hfmem_widget.session.spans import Spans
from hfmem_widget.session.steps import DeviceSteps
from tests.scenes import scripted_run
from tests.scenes.groups import add_group

Events = list[dict[str, Any]]

RUNS = ("training", "eight gpus", "short", "hour with gaps", "steps", "leak")


@cache
def trace_of(name: str) -> Events:
    return events_of(scripted_run(name))


def events_of(session: Session, resolution: float = 1.0) -> Events:
    events: Events = json.loads(b"".join(trace(session, resolution)))["traceEvents"]
    return events


def in_phase(events: Events, phase: str) -> Events:
    return [event for event in events if event["ph"] == phase]


@pytest.mark.parametrize("name", RUNS)
def test_a_trace_obeys_the_rules(name: str) -> None:
    """Events have known phases and rising whole microseconds from 0 on; processes and tracks have names."""
    events = trace_of(name)
    named = {(event["name"], event["pid"], event["tid"]) for event in in_phase(events, "M")}
    rest = [event for event in events if event["ph"] != "M"]
    times = [event["ts"] for event in rest]

    assert {event["ph"] for event in rest} <= set("XCi")
    assert events == [*in_phase(events, "M"), *rest]
    assert all(type(time) is int and time >= 0 for time in times)
    assert times == sorted(times)
    assert {event["pid"] for event in rest} <= {pid for kind, pid, _ in named if "process" in kind}
    assert {("thread_name", 1, event["tid"]) for event in rest if event["pid"] == 1} <= named
    assert all(event["pid"] and event["tid"] and event["name"] for event in events)
    assert all(type(event["dur"]) is int and event["dur"] >= 0 for event in in_phase(rest, "X"))
    counters = in_phase(rest, "C")
    assert all(math.isfinite(value) for event in counters for value in event["args"].values())


@pytest.mark.parametrize("name", RUNS)
def test_slices_of_a_track_lie_within_each_other_or_follow(name: str) -> None:
    """No slice begins in another and ends after it, which a viewer cannot draw."""
    assert overlapping(trace_of(name)) == []


def overlapping(events: Events) -> Events:
    """Return the slices that begin within an open one of their track and end after it."""
    ends: dict[int, list[int]] = defaultdict(list)
    slices = []
    for event in in_phase(events, "X"):
        open_ends, stop = ends[event["tid"]], event["ts"] + event["dur"]
        while open_ends and open_ends[-1] <= event["ts"]:
            open_ends.pop()
        if open_ends and stop > open_ends[-1]:
            slices.append(event)
        open_ends.append(stop)
    return slices


def span(number: int, start: float, stop: float | None, label: str = "") -> Span:
    after = None if stop is None else Sample(stop, ())
    return Span(number, "block", label or f"{number}", start, Sample(start, ()), stop, after)


def test_spans_that_overlap_have_tracks_of_their_own() -> None:
    """Spans of two threads overlap; what fits into a track again goes there."""
    spans = Spans([span(1, 0.0, 10.0), span(2, 5.0, 15.0), span(3, 6.0, 7.0), span(4, 16.0, 17.0)])
    events = events_of(Session("x", spans=spans))
    tracks = {event["name"]: event["tid"] for event in in_phase(events, "X")}

    assert overlapping(events) == []
    assert tracks["1"] == tracks["3"] == tracks["4"] != tracks["2"]


def test_an_open_span_ends_with_the_newest_sample() -> None:
    """In a run that goes on, or was killed, an open span ends with the newest sample."""
    session = Session("x", spans=Spans([span(1, 2.0, None)]), last_sample=Sample(9.0, ()))
    (slice_,) = in_phase(events_of(session), "X")

    assert (slice_["ts"], slice_["dur"]) == (2_000_000, 7_000_000)
    assert slice_["args"]["outcome"] == "running"


def group(first: int, last: int) -> StepGroup:
    """Return steps of a second each."""
    devices = {"cuda:0": DeviceSteps(2.0**30, "exact", 1.0, first, math.nan, 0.0, {})}
    return StepGroup(1, first, last, first, last + 1.0, 8.0, math.nan, 96.0, math.nan, devices)


def test_steps_without_spans_are_slices() -> None:
    """A step that has a span is there once; neighbours that were folded are one slice."""
    steps = Steps()
    for one in (group(1, 1), group(2, 2)):
        add_group(steps, one)
    step = Span(2, "step", "step 2", 2.0, Sample(2.0, ()), 3.0, Sample(3.0, ()), parent=1)
    session = Session("x", spans=Spans([span(1, 0.0, 20.0, "train"), step]), steps=steps)
    eight = Steps()
    add_group(eight, group(1, 8))
    folded = Session("x", steps=eight)

    assert [event["name"] for event in in_phase(events_of(session), "X")] == [
        "train", "step 1", "step 2",
    ]  # fmt: skip
    (slice_,) = in_phase(events_of(folded), "X")
    assert (slice_["name"], slice_["dur"]) == ("steps 1\u20138", 8_000_000)
    assert slice_["args"]["cuda:0/allocated peak"] == "1.00 GiB exact"


@pytest.mark.parametrize("resolution", [0.1, 1.0, 5.0])
def test_a_curve_has_a_point_for_each_stretch_at_most(resolution: float) -> None:
    """Its highest is that of the samples at any resolution: no peak is lost."""
    session = scripted_run("training")
    highest = session.timeline.high[:, session.index("cuda:0/allocated")].max()
    events = in_phase(events_of(session, resolution), "C")
    curve = [event for event in events if event["name"] == "allocated" and event["pid"] == 2]

    assert len(curve) <= 11.6 / resolution + 2
    assert max(event["args"]["bytes"] for event in curve) == highest


def test_findings_are_instants() -> None:
    """A finding stands at the time of its evidence, else at the end of its span, or of the run."""
    session = Session("x", spans=Spans([span(1, 0.0, 4.0)]), last_sample=Sample(9.0, ()))
    for evidence, span_id in (({"time": 2.5}, 1), ({}, 1), ({}, None)):
        session.findings.append(Finding("k", "warn", "Title", evidence, ("do\x1b this",), span_id))
    instants = in_phase(events_of(session), "i")

    assert [event["ts"] for event in instants] == [2_500_000, 4_000_000, 9_000_000]
    assert instants[0]["args"] == {"kind": "k", "advice": "do this"}


def test_a_gap_is_a_slice_of_its_own_track() -> None:
    """A counter would only hold its value where nothing was sampled."""
    events = trace_of("hour with gaps")
    gaps = [event for event in in_phase(events, "X") if event["name"] == "not sampled"]

    assert len(gaps) == 3
    others = [event["tid"] for event in in_phase(events, "X") if event not in gaps]
    assert {event["tid"] for event in gaps}.isdisjoint(others)


@pytest.mark.parametrize("resolution", [0.0, -1.0, math.nan, math.inf, 1e-9])
def test_a_resolution_that_is_none_is_refused(resolution: float, tmp_path: Path) -> None:
    """One sentence says what is allowed, and no file is begun."""
    with pytest.raises(OptionError, match="resolution must be"):
        scripted_run("short").save(tmp_path / "x.perfetto.json", resolution=resolution)

    assert list(tmp_path.iterdir()) == []


def test_an_empty_session_is_a_trace() -> None:
    """The trace of an empty session has the name of its process, and nothing else."""
    assert [event["name"] for event in events_of(Session())] == ["process_name"]
