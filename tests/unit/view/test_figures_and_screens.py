"""Figures that are seldom met, and screens that have nothing to show them on."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from hfmem_widget.analysis.curve import chosen_rows, visible_gaps
from hfmem_widget.analysis.facts import changed_less, did_nothing
from hfmem_widget.features.free.html import release_bundle
from hfmem_widget.features.free.model import Change
from hfmem_widget.session import Device, Peak, Recorder, Sample, Series, Session, Span, Timeline
from hfmem_widget.text import GIB, MIB
from hfmem_widget.view.card import MOST_ON_LINE, card_bundle
from hfmem_widget.view.line import line, peak_text
from hfmem_widget.view.phases import worst_step_text
from hfmem_widget.view.screen import Screen, is_caught, printable, request_of
from hfmem_widget.view.wire.protocol import decimate
from hfmem_widget.view.wire.widget import MemoryWidget, _pack_history
from tests.data.drawn_scenes import training
from tests.unit.features.free.test_api import DONE

NAN = math.nan


def spanned(*values: float, seconds: float = 1.0, outcome: str = "done") -> tuple[Session, Span]:
    """Return a session, and the cell in it, that read these values one after the other."""
    recorder = Recorder("run")
    session = recorder.session
    recorder.adopt(
        [Device("cuda:0", "NVIDIA H200", total=100 * GIB)], [Series("cuda:0", "allocated")]
    )
    recorder.append(Sample(0.0, values[:1]))
    span = recorder.open_span("cell", "cell", session.last_sample)
    for at, value in enumerate(values[1:], start=1):
        recorder.append(Sample(at * seconds / (len(values) - 1), (value,)))
    return session, recorder.close_span(span.id, session.last_sample, {}, outcome)


def test_what_is_not_known_has_no_certainty() -> None:
    """A peak that nobody read is told as any figure that is missing."""
    assert peak_text(Peak(NAN, "exact")) == peak_text(Peak(NAN, "at least"))
    assert "exact" not in peak_text(Peak(NAN, "exact"))
    assert peak_text(Peak(GIB, "at least")) == "≥ 1.00 GiB"


def test_a_series_that_came_later_has_no_curve_in_what_was_before() -> None:
    """There is no column for it."""
    assert chosen_rows(Timeline(1), 1, 0.0, 1.0, columns=10) == []


@pytest.mark.parametrize(
    ("gap", "seen"),
    [
        ((1.0, 2.0), []),
        ((1.0, 2.01), [(1.0, 2.01)]),
        ((-5.0, 1.5), [(0.0, 1.5)]),
        ((9.5, 12.0), []),
    ],
)
def test_a_gap_is_seen_from_a_column_on(
    gap: tuple[float, float], seen: list[tuple[float, float]]
) -> None:
    """Cut to what is drawn: here a column is a second."""
    timeline = Timeline(1)
    timeline.add_gap(*gap)

    assert visible_gaps(timeline, 0.0, 10.0, 10) == seen


@pytest.mark.parametrize(
    ("after", "seconds", "outcome", "nothing"),
    [
        (0.0, 0.9, "done", True),
        (0.0, 1.0, "done", False),
        (0.0, 0.5, "failed", False),
        (MIB - 1, 0.5, "done", True),
        (MIB, 0.5, "done", False),
    ],
)
def test_a_cell_did_nothing_if_it_was_quick_and_moved_nothing(
    after: float, seconds: float, outcome: str, *, nothing: bool
) -> None:
    """Less than a second, and less than a MiB; and it ended as it should."""
    session, span = spanned(GIB, GIB + after, seconds=seconds, outcome=outcome)

    assert did_nothing(session, span) is nothing
    assert changed_less(session, span, 2 * MIB)


@pytest.mark.parametrize(
    ("header", "told"), [({"msg_id": "7"}, "7"), ({}, ""), (None, ""), ({"msg_id": 7}, "7")]
)
def test_without_a_request_nothing_is_caught(header: object, told: str) -> None:
    """As outside of any cell."""
    assert request_of(SimpleNamespace(parent_header=header)) == told
    assert not is_caught("")


@pytest.mark.parametrize(
    ("encoding", "told"), [("utf-8", "± 2 GiB → ■"), (None, "± 2 GiB → ■"), ("ascii", None)]
)
def test_what_can_be_printed_stays_as_it_is(encoding: str | None, told: str | None) -> None:
    """Where there are no letters for it, others stand in."""
    found = printable("± 2 GiB → ■", encoding)

    assert found == told if told else found.isascii()


def test_outputs_that_nobody_cleared_are_there() -> None:
    """A screen without a shell prints, and nothing clears that."""
    screen = Screen(None)
    screen.watch_clearing()

    assert screen.cleared is False
    screen.close()


def test_a_widget_without_a_session_has_no_history() -> None:
    """As one that ipywidgets makes anew from a page's state."""
    assert _pack_history(None, None) == {}


@pytest.mark.parametrize(("letters", "shown"), [(10, 10), (400, 400), (401, 400), (900, 400)])
def test_what_was_done_is_told_in_a_few_lines(letters: int, shown: int) -> None:
    """However many steps it took."""
    done = replace(DONE, steps=("x" * letters,))
    longest = max(map(len, re.findall(r"x+…?", release_bundle(done)["text/html"])))

    assert longest == shown


@pytest.mark.parametrize(("asked", "gaps"), [(23, 2), (24, 3), (31, 3), (32, 4)])
def test_an_eighth_of_the_rows_may_be_gaps(asked: int, gaps: int) -> None:
    """The longest of them."""
    timeline = Timeline(1)
    for at in range(8):
        timeline.append(float(at), (1.0,))
        timeline.add_gap(at + 0.1, at + 0.2 + at / 100)
    time, values = decimate(timeline, asked)
    missing = np.isnan(values[:, 0])

    assert missing.sum() == gaps
    assert [math.floor(one) for one in time[missing]] == [*range(8 - gaps, 8)]


def test_a_widget_may_open_the_panel_unless_it_is_told_not_to() -> None:
    """As a watch does by default."""
    recorder = Recorder("run")
    session = recorder.session
    made = MemoryWidget(session, "run", on_seen=lambda: None, on_resync=lambda: None)
    try:
        assert made._history == (session, "run", True)
    finally:
        made.close()


@pytest.mark.parametrize("letters", range(1, 80, 13))
def test_the_worst_step_is_told_where_the_line_has_room(letters: int) -> None:
    """Of so many characters; the line without it is never cut."""
    session = training()
    span = session.spans[0]
    bare = line(session, replace(span, label=""))
    worst = worst_step_text(session, span)
    room = MOST_ON_LINE - len(f"{bare} · {worst}") + len(span.kind)
    for label, said in (("x" * room, True), ("x" * (room + 1), False), ("x" * letters, True)):
        told = card_bundle(session, replace(span, label=label), with_chart=True)["text/plain"]
        assert (worst in told.splitlines()[0]) is (said and len(label) <= room)


def test_what_was_nothing_and_is_nothing_has_no_row() -> None:
    """Of a device on which something else was measured."""
    nothing = Change("cuda:0", "inactive", "in holes", 0.0, 0.0)
    told = release_bundle(replace(DONE, changes=(*DONE.changes, nothing)))["text/plain"]

    assert "in holes" not in told
    assert "cuda:0 reserved" in told
