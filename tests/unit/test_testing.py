"""What the scripted runs tell of the memory's parts."""

from __future__ import annotations

import math

import pytest

from hfmem_widget.session import HELD, Session
from tests.scenes import SCRIPTED_RUNS, scripted_run

NOTHING_FOUND = {"two gpus", "short", "idle gpu"}


def keys_with_parts(session: Session) -> list[str]:
    """Return the devices that have a series for weights."""
    return [one.device for one in session.series if one.metric == "weights"]


@pytest.mark.parametrize("name", SCRIPTED_RUNS)
def test_parts_are_known_but_where_nothing_was_found(name: str) -> None:
    """All scripted runs know parts of the memory, but for the three that have no model."""
    assert bool(keys_with_parts(scripted_run(name))) == (name not in NOTHING_FOUND)


def test_each_of_eight_gpus_has_its_parts() -> None:
    """In the run of eight GPUs weights are found on each."""
    assert keys_with_parts(scripted_run("eight gpus")) == [f"cuda:{index}" for index in range(8)]


def test_the_processes_own_memory_has_parts_too() -> None:
    """In the run without a GPU the weights are found on the host."""
    assert keys_with_parts(scripted_run("cpu")) == ["cpu"]


@pytest.mark.parametrize("name", [name for name in SCRIPTED_RUNS if name not in NOTHING_FOUND])
def test_known_parts_never_exceed_what_is_allocated(name: str) -> None:
    """At no edge of a span, by more than the rounding of a sum."""
    session = scripted_run(name)
    key = keys_with_parts(session)[0]
    assert session.spans
    for span in session.spans:
        for sample in filter(None, (span.before, span.after)):
            held = [session.value(sample, f"{key}/{metric}") for metric in HELD]
            known = sum(value for value in held if not math.isnan(value))
            assert known <= session.value(sample, f"{key}/allocated") * (1 + 1e-9)


def test_gradients_come_in_the_backward_and_states_with_the_first_step() -> None:
    """Gradients are gone when a step ends, optimizer states stay."""
    session = scripted_run("steps")
    value = session.value
    steps = [span for span in session.spans if span.kind == "step"]
    backward = next(span for span in session.spans if span.kind == "backward")

    assert backward.after is not None
    assert value(backward.before, "cuda:0/gradients") == 0
    assert value(backward.after, "cuda:0/gradients") > 0
    for span in steps:
        assert span.after is not None
        assert value(span.after, "cuda:0/gradients") == 0
        assert value(span.after, "cuda:0/optimizer") > 0
    assert value(steps[0].before, "cuda:0/optimizer") == 0


def test_what_was_not_attributed_is_known_within_steps_alone() -> None:
    """The unattributed bytes have a reading in steps and their phases, and nowhere else."""
    session = scripted_run("steps")
    assert {span.kind for span in session.spans} > {"step", "forward", "backward", "optimizer"}
    for span in session.spans:
        known = not math.isnan(session.value(span.before, "cuda:0/unattributed"))
        assert known == (span.kind in {"step", "forward", "backward", "optimizer"}), span.label
