"""`hfmem_widget.span` tells a stretch of what is watched apart."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

import hfmem_widget
from hfmem_widget.drivers.span import OVERLAP_NOTE
from hfmem_widget.session import Session


def watched(work: object) -> Session:
    """Return the session of a function that was watched."""
    assert callable(work)
    with hfmem_widget.watch(quiet=True) as session:
        work()
    return session


@pytest.mark.parametrize(
    ("label", "kind"),
    [
        ("forward", "forward"),
        ("step", "step"),
        ("evaluate", "evaluate"),
        ("warm-up", "block"),
        ("load", "load"),
        ("cell", "block"),
    ],
)
def test_a_known_name_is_a_kind_of_its_own(label: str, kind: str) -> None:
    """The phases of a training are drawn as a Trainer's are; anything else is a block."""

    def work() -> None:
        with hfmem_widget.span(label):
            pass

    span = watched(work).spans[1]

    assert (span.kind, span.label, span.parent, span.outcome) == (kind, label, 1, "done")


def test_counts_may_be_given_first_or_found_out_later() -> None:
    """Both stand in the span, and a step's in the table of steps."""

    def work() -> None:
        with hfmem_widget.span("step", samples=4) as step:
            step.count(tokens=64)

    session = watched(work)

    assert session.spans[1].counts == {"samples": 4, "tokens": 64, "step": 1}
    assert [group.tokens for group in session.steps] == [64]


def test_every_call_of_a_decorated_function_has_its_own() -> None:
    """Calls may nest."""

    @hfmem_widget.span("descend")
    def descend(depth: int) -> None:
        if depth:
            descend(depth - 1)

    session = watched(lambda: descend(2))

    assert [(span.label, span.parent) for span in session.spans[1:]] == [
        ("descend", 1),
        ("descend", 2),
        ("descend", 3),
    ]


def test_an_error_passes_and_is_named() -> None:
    """The span says how it ended."""

    def work() -> None:
        with pytest.raises(ZeroDivisionError), hfmem_widget.span("divide"):
            1 / 0  # noqa: B018  (it is to raise)

    assert watched(work).spans[1].outcome == "raised ZeroDivisionError"


def test_a_span_that_outlives_its_session_is_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    """The watch ended first; nothing is raised, and nothing is said."""
    scope = hfmem_widget.span("late")
    with hfmem_widget.watch(quiet=True) as session:
        scope.__enter__()
    scope.__exit__(None, None, None)

    assert session.spans[1].stop is not None
    assert capsys.readouterr().err == ""


def test_of_coroutines_at_once_a_note_says_that_one_was_cut_short() -> None:
    """Spans lie within one another, so the later one ends with the earlier one."""

    @hfmem_widget.span("load")
    async def load(started: asyncio.Event, wanted: asyncio.Event) -> None:
        started.set()
        await wanted.wait()

    async def load_two() -> None:
        first, second, done = asyncio.Event(), asyncio.Event(), asyncio.Event()
        one = asyncio.create_task(load(first, second))
        await first.wait()
        two = asyncio.create_task(load(second, done))
        await one
        done.set()
        await two

    session = watched(lambda: asyncio.run(load_two()))

    assert [(span.label, span.parent) for span in session.spans[1:]] == [("load", 1), ("load", 2)]
    assert session.notes.count(OVERLAP_NOTE) == 1


def test_spans_that_lie_within_one_another_need_no_note() -> None:
    """Each has ended with its own code."""

    def work() -> None:
        with hfmem_widget.span("outer"), hfmem_widget.span("step"), hfmem_widget.span("inner"):
            pass

    assert OVERLAP_NOTE not in watched(work).notes


def test_where_nothing_is_watched_nothing_is_loaded() -> None:
    """A span in a library costs its users nothing."""
    code = (
        "import sys, hfmem_widget\nwith hfmem_widget.span('forward') as one: one.count(tokens=1)\n"
        "print('hfmem_widget.monitor.shared' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert run.stdout.strip() == "False"
