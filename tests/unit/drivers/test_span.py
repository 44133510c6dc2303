"""`hfmem_widget.span` tells a stretch of what is watched apart."""

import asyncio
from contextlib import nullcontext
from typing import Any

import pytest
import torch

import hfmem_widget
from hfmem_widget.drivers.span import OVERLAP_NOTE
from tests.data.modules import run_alone


@pytest.mark.parametrize(
    ("label", "kind"),
    [
        *((name, name) for name in ("forward", "step", "evaluate", "load")),
        *((name, "block") for name in ("warm-up", "cell")),
    ],
)
def test_a_known_name_is_a_kind_of_its_own(label: str, kind: str) -> None:
    """Phases of a training have their own kind, as a Trainer's have; anything else is a block."""
    with hfmem_widget.watch(quiet=True) as session, hfmem_widget.span(label):
        pass
    span = session.spans[1]

    assert (span.kind, span.label, span.parent, span.outcome) == (kind, label, 1, "done")


def test_counts_may_be_given_first_or_found_out_later() -> None:
    """Counts from the beginning and later ones are in the span, and a step's in the table of steps."""
    with hfmem_widget.watch(quiet=True) as session, hfmem_widget.span("step", samples=4) as step:
        step.count(tokens=64)

    assert session.spans[1].counts == {"samples": 4, "tokens": 64, "step": 1}
    assert [group.tokens for group in session.steps] == [64]


def test_every_call_of_a_decorated_function_has_a_span() -> None:
    """Calls may nest; each has ended with its own code, so that no note is needed."""

    @hfmem_widget.span("descend")
    def descend(depth: int) -> None:
        if depth:
            descend(depth - 1)

    with hfmem_widget.watch(quiet=True) as session:
        descend(2)

    assert [span.parent for span in session.spans if span.label == "descend"] == [1, 2, 3]
    assert OVERLAP_NOTE not in session.notes


def test_an_error_passes_and_is_named() -> None:
    """The span says how it ended."""
    with (
        hfmem_widget.watch(quiet=True) as session,
        pytest.raises(ZeroDivisionError),
        hfmem_widget.span("divide"),
    ):
        1 / 0  # noqa: B018  (it is to raise)

    assert session.spans[1].outcome == "raised ZeroDivisionError"


def test_a_span_that_outlives_its_session_is_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    """A span that is left after its watch raises nothing and prints nothing."""
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

    with hfmem_widget.watch(quiet=True) as session:
        asyncio.run(load_two())

    assert [(span.label, span.parent) for span in session.spans[1:]] == [("load", 1), ("load", 2)]
    assert session.notes.count(OVERLAP_NOTE) == 1


def test_where_nothing_is_watched_nothing_is_loaded() -> None:
    """A span in a library costs its users nothing."""
    code = (
        "import sys, hfmem_widget\nwith hfmem_widget.span('forward') as one: one.count(tokens=1)\n"
        "print('hfmem_widget.monitor.shared' in sys.modules)"
    )

    assert run_alone(code).stdout.strip() == "False"


class InABlock(torch.nn.Module):  # type: ignore[misc]  # torch is not checked here
    """A module with a span in its forward pass."""

    def forward(self, x: Any) -> Any:
        with hfmem_widget.span("forward") as span:
            span.count(tokens=3)
            return x + 1


class Decorated(torch.nn.Module):  # type: ignore[misc]
    """A module whose forward pass is a span."""

    @hfmem_widget.span("forward")
    def forward(self, x: Any) -> Any:
        return x + 1


@pytest.mark.parametrize("is_watched", [True, False])
@pytest.mark.parametrize("kind", [InABlock, Decorated])
def test_a_span_breaks_no_graph(kind: type[Any], is_watched: bool) -> None:
    """`fullgraph=True` and a strict export take code with a span in it, as they take it without one."""
    torch._dynamo.reset()
    with hfmem_widget.watch(quiet=True) if is_watched else nullcontext():
        compiled = torch.compile(kind(), backend="eager", fullgraph=True)
        exported = torch.export.export(kind(), (torch.ones(2),), strict=True).module()

        assert compiled(torch.ones(2)).tolist() == exported(torch.ones(2)).tolist() == [2.0, 2.0]


@pytest.mark.parametrize(
    "recursion",
    [
        "def walk():\n    with hfmem_widget.span('node'): walk()",
        "def walk():\n    with hfmem_widget.watch('node', quiet=True): walk()",
        "@hfmem_widget.span('node')\ndef walk(): walk()",
        "@hfmem_widget.watch('node', quiet=True)\ndef walk(): walk()",
    ],
)
def test_a_recursion_without_end_raises_what_it_would(recursion: str) -> None:
    """The user gets the RecursionError, at most one line, and no note in the next watch."""
    run = run_alone(f"""
import sys, hfmem_widget
sys.setrecursionlimit(300)
{recursion}
try:
    with hfmem_widget.watch("w", quiet=True) as session: walk()
except RecursionError: print("as it would")
with hfmem_widget.watch("next", quiet=True) as later: pass
print([note for note in session.notes if "report" in note])
print([note for note in later.notes if "recursion" in note or "update" in note])
""")

    assert run.stdout.splitlines() == ["as it would", "[]", "[]"]
    assert run.stderr.count("memwatch") <= 1


def test_generators_that_are_left_at_the_end_of_a_script_say_nothing() -> None:
    """Generators and watches that are open at the end of a script print nothing."""
    run = run_alone("""
import hfmem_widget
@hfmem_widget.watch("watched", quiet=True)
def watched(): yield 1
@hfmem_widget.span("span")
def parts(): yield 1
one = watched(); next(one)
scope = hfmem_widget.watch("outer", quiet=True); scope.__enter__()
two = parts(); next(two)
""")

    assert (run.stdout, run.stderr) == ("", "")
