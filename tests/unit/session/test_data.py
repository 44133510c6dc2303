"""A session is data: it can be built, compared and copied; its series have a table of looks."""

import copy
import dataclasses
import importlib
import inspect
import pickle
import pkgutil
import re
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hfmem_widget
from hfmem_widget.monitor.process import Part
from hfmem_widget.session import (
    HELD,
    Contents,
    Device,
    Finding,
    Guide,
    Peak,
    Phases,
    Sample,
    Series,
    Session,
    Spans,
    Steps,
    Timeline,
)
from hfmem_widget.session.model import same
from hfmem_widget.session.series import LINES, PARTS, TABLE
from hfmem_widget.session.stacks import StackRecording, Stacks
from hfmem_widget.view import palette
from tests.data.recorders import KEY, recorder_of
from tests.scenes import SCRIPTED_RUNS, scripted_run
from tests.scenes.groups import add_group
from tests.unit.session.test_steps import one_step

NAN = float("nan")

COPIES: dict[str, Callable[[Session], Session]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda session: pickle.loads(pickle.dumps(session)),
}


def rebuilt(session: Session) -> Session:
    """Return a session built from the attributes of another."""
    timeline, steps = session.timeline, session.steps
    outermost = [one.id for one in session.spans if one.parent is None]
    plain = (
        *("started_at", "stopped_at", "broken_off", "devices", "series", "last_sample"),
        *("contents", "notes", "findings", "guides", "stacks"),
    )
    copied = Steps()
    copied.widen(steps.devices)
    if len(steps):
        copied.extend(steps.table)
    copied.count = steps.count
    return Session(
        session.label,
        timeline=Timeline.from_rows(
            timeline.time.tolist(),
            timeline.low.tolist(),
            timeline.high.tolist(),
            bucket=timeline.bucket,
            samples=timeline.samples,
            gaps=timeline.gaps,
        ),
        steps=copied,
        spans=Spans(session.spans),
        phases=Phases({root: session.phases(root) for root in outermost}),
        polling=replace(session.polling),
        **{name: getattr(session, name) for name in plain},
    )


@pytest.mark.parametrize("run", SCRIPTED_RUNS)
def test_a_session_built_from_data_is_the_same(run: str) -> None:
    """A session built from another's data equals it, and gives the same figures."""
    session = scripted_run(run)
    copied = rebuilt(session)
    key = session.series[0].key

    assert copied == session
    assert (copied.peak(key), copied.latest(key)) == (session.peak(key), session.latest(key))
    assert copied.to_pandas().equals(session.to_pandas())
    assert np.array_equal(copied.folded_steps(20), session.folded_steps(20), equal_nan=True)


CHANGES: dict[str, Callable[[Session], object]] = {
    "label": lambda one: setattr(one, "label", "other"),
    "running": lambda one: setattr(one, "stopped_at", None),
    "broken off": lambda one: setattr(one, "broken_off", True),
    "devices": lambda one: setattr(one, "devices", one.devices[:1]),
    "series": lambda one: setattr(one, "series", one.series[:-1]),
    "newest": lambda one: setattr(one, "last_sample", replace(one.last_sample, time=1e9)),
    "timeline": lambda one: one.timeline.append(1e9, [0.0] * one.timeline.width),
    "gap": lambda one: one.timeline.add_gap(0.0, 1.0),
    "steps": lambda one: add_group(one.steps, one_step(10**6)),
    "span": lambda one: one._spans.add(replace(one.spans[0], label="other")),
    "peak": lambda one: one._spans.add(replace(one.spans[0], peaks={KEY: Peak(1.0, "exact")})),
    "phases": lambda one: one._phases.add(1, replace(one.spans[0], label="other")),
    "polling": lambda one: setattr(one.polling, "ticks", one.polling.ticks + 1),
    "contents": lambda one: setattr(one, "contents", Contents(("Model",))),
    "note": lambda one: one.notes.append("more"),
    "finding": lambda one: one.findings.append(Finding("leak", "warn", "more")),
    "guide": lambda one: one.guides.append(Guide("cpu", "oom", "", 0.0, 0.0, 0.0, 0.0)),
    "stacks": lambda one: setattr(one, "stacks", Stacks((), StackRecording("allocator"))),
}


@pytest.mark.parametrize("change", CHANGES)
def test_sessions_with_any_difference_are_unequal(change: str) -> None:
    """Two sessions with any difference, down to a note, are unequal."""
    session, other = scripted_run("steps"), scripted_run("steps")
    assert session == other
    CHANGES[change](other)

    assert session != other


@pytest.mark.parametrize("way", COPIES)
def test_a_copy_has_the_state_of_its_moment(way: str) -> None:
    """A copy keeps its moment's data, with its open spans, while the session goes on."""
    writer = recorder_of(NAN)
    session = writer.session
    writer.open_span("cell", "run", session.last_sample)
    writer.append(Sample(1.0, (5.0,)))
    twin = COPIES[way](session)
    assert twin == session

    writer.append(Sample(2.0, (9.0,)))
    writer.open_span("step", "1", session.last_sample)
    writer.note("later")

    assert twin != session
    assert (len(twin.spans), twin.timeline.samples, twin.peak(KEY), twin.notes) == (1, 2, 5.0, [])
    assert twin.highest_in(1, KEY) == 5.0
    assert session.highest_in(1, KEY) == 9.0


@pytest.mark.usefixtures("uncollected")
def test_an_ended_session_does_not_keep_its_recorder() -> None:
    """No reference cycle keeps a deleted session or its recorder."""
    writer = recorder_of(1.0)
    session = writer.session
    writer.open_span("cell", "run", session.last_sample)
    writer.stop(8.0)
    reference = weakref.ref(writer)
    del writer

    assert reference() is None
    assert len(session.spans) == 1


def test_a_session_is_not_hashable() -> None:
    """A session, which is compared by its contents, has no hash."""
    with pytest.raises(TypeError, match="unhashable"):
        hash(Session())


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        (NAN, float("nan"), True),
        (1, 1.0, True),
        (0.0, NAN, False),
        ([1.0, NAN], (1.0, NAN), True),
        ([1.0], [1.0, 2.0], False),
        ({"a": NAN}, {"a": float("nan")}, True),
        ({"a": 1}, {"b": 1}, False),
        (np.array([1.0, NAN]), np.array([1.0, NAN]), True),
        (np.array([1.0, NAN]), np.array([NAN, 1.0]), False),
        (Device("cpu", "host", total=NAN), Device("cpu", "host", total=float("nan")), True),
        (Device("cpu", "host"), Series("cpu", "host"), False),
        ("a", "a", True),
        (None, 0, False),
    ],
)
def test_not_available_equals_itself(one: object, other: object, *, is_same: bool) -> None:
    """NaN equals NaN in a comparison of data."""
    assert same(one, other) is is_same


@given(
    st.lists(st.floats(0, 1e9), min_size=1, max_size=60), st.lists(st.floats(0, 1e9), max_size=60)
)
def test_a_timeline_of_rows_can_be_continued(rows: list[float], more: list[float]) -> None:
    """A timeline made of rows goes on like one to which the rows were appended."""
    timeline = Timeline.from_rows(
        range(len(rows)), [[one] for one in rows], [[one] for one in rows]
    )
    grown = Timeline(1)
    for at, value in enumerate(rows):
        grown.append(at, (value,))
    assert timeline == grown
    for at, value in enumerate(more):
        timeline.append(100.0 + at, (value,))
        grown.append(100.0 + at, (value,))

    assert timeline == grown


@pytest.mark.parametrize("name", TABLE)
def test_a_row_has_a_label_and_a_colour_that_can_be_drawn(name: str) -> None:
    """The colour is opaque if a line or a layer of the stack is drawn with it."""
    row = TABLE[name]
    opaque = re.fullmatch(r"#[0-9A-F]{6}", row.color)

    assert row.label
    assert opaque or (re.fullmatch(r"rgba\(128,128,128,\.\d+\)", row.color) and not row.stacked)
    assert not (row.drawn and row.stacked)


def test_tensors_by_purpose_are_stacked_and_sent() -> None:
    """Tensors by purpose have columns in this order, are stacked, and are sent; children are also a line."""
    assert HELD[:4] == ("weights", "buffers", "gradients", "optimizer")
    assert all(PARTS[name].stacked and PARTS[name].sent for name in HELD)
    assert {*LINES} & {*PARTS} == {"children"}


def test_layers_of_the_stack_have_different_colours() -> None:
    """No two layers have the same colour or label."""
    stack = [row for row in PARTS.values() if row.stacked]

    assert len({row.color for row in stack}) == len({row.label for row in stack}) == len(stack)
    assert {name: row.color for name, row in PARTS.items()} == palette.PARTS


@pytest.mark.parametrize(
    ("series", "label"),
    [
        (Series("cuda:0", "allocated"), "allocated"),
        (Series("cpu", "allocated"), "private memory"),
        (Series("cpu", "weights"), "weights"),
        (Series("cpu", "allocated", "resident"), "resident"),
        (Series("cuda:0", "utilization"), ""),
    ],
)
def test_a_series_has_the_tables_label_unless_it_has_its_own(series: Series, label: str) -> None:
    """A metric outside of the table has no label by default."""
    assert series.label == label


CHANGING = {
    "_Edge", "rows._Group", "_Patch", "_Reader", "_Watched",
    "ReplayBlock", "Bucket", "PollerCost", "Execution", "tail.File", "Phase", "Polling",
    "Tick", "Watched", "Window", "HookedModule", "Process", "guard._State",
    # Made for each file at each look, or each line of 1,024 ranks: frozen, that takes three times as long.
    "Piece", "Finished", "StepsLine",
}  # fmt: skip
"""What is counted up while it goes on, beside the parts of a process.

`Polling` alone is handed out, of a session that runs.
"""


def dataclasses_of_the_package() -> Iterator[type]:
    """Yield each dataclass once, with its module."""
    for module in pkgutil.walk_packages(hfmem_widget.__path__, "hfmem_widget."):
        imported = importlib.import_module(module.name)
        for _, one in inspect.getmembers(imported, inspect.isclass):
            if one.__module__ == module.name and dataclasses.is_dataclass(one):
                yield one


EVERY = sorted(dataclasses_of_the_package(), key=lambda one: (one.__module__, one.__qualname__))


@pytest.mark.parametrize("one", EVERY, ids=lambda one: f"{one.__module__}.{one.__qualname__}")
def test_values_have_slots_and_are_frozen(one: Any) -> None:
    """Dataclasses have slots, and all but those that count are frozen."""
    assert "__slots__" in vars(one)
    names = {one.__name__, f"{one.__module__.rpartition('.')[2]}.{one.__name__}"}
    assert one.__dataclass_params__.frozen is (
        names.isdisjoint(CHANGING) and not issubclass(one, Part)
    )
