"""`generate` by itself, and `hfmem_widget.span` in a loop of one's own, around real models."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import hfmem_widget
from hfmem_widget.monitor.shared import running_monitor
from tests.trainer.tiny import outline, padded, rows, tiny_model

BATCHES = [padded(rows((5, 9))), padded(rows((4, 4)))]


def generate(model: Any, **options: Any) -> Any:
    ids = torch.ones(1, 3, dtype=torch.long)
    mask = torch.ones_like(ids)
    return model.generate(ids, attention_mask=mask, max_new_tokens=2, do_sample=False, **options)


def test_generation_in_a_watched_block_is_a_block_of_its_own() -> None:
    """With nothing written by the user."""
    model = tiny_model()
    with hfmem_widget.watch(quiet=True) as session:
        generate(model)
    span = session.spans[1]

    assert (span.kind, span.label, span.parent) == ("block", "generate", 1)
    assert span.peaks["cpu/allocated"].value > 0


def test_generation_that_fails_says_so() -> None:
    """And the error is its own."""
    with hfmem_widget.watch(quiet=True) as session, pytest.raises(ValueError, match="no_such"):
        generate(tiny_model(), no_such_option=1)

    assert session.spans[1].outcome == "raised ValueError"


def test_generation_unwatched_is_as_ever() -> None:
    """The result is the same, and nothing is started for it."""
    model = tiny_model()
    bare = generate(model)
    assert running_monitor() is None
    with hfmem_widget.watch(quiet=True):
        watched = generate(model)

    assert torch.equal(bare, watched)


def loop(model: Any) -> None:
    """Train as one would without a Trainer."""
    optimizer = torch.optim.SGD(model.parameters())
    with hfmem_widget.span("train", steps=len(BATCHES)):
        for batch in BATCHES:
            with hfmem_widget.span("step", tokens=batch["input_ids"].numel()):
                with hfmem_widget.span("forward"):
                    loss = model(**batch).loss
                with hfmem_widget.span("backward"):
                    loss.backward()
                with hfmem_widget.span("optimizer"):
                    optimizer.step()
                    optimizer.zero_grad()


def test_a_loop_of_ones_own_has_steps_with_phases_and_tokens() -> None:
    """The same as a Trainer's."""
    with hfmem_widget.watch(quiet=True) as session:
        loop(tiny_model())

    step = "\n    forward\n    backward\n    optimizer"
    assert outline(session) == f"train\n  step{step}\n  step{step}"
    assert [(group.first, group.tokens) for group in session.steps] == [(1, 18), (2, 8)]
    assert set(next(iter(session.steps)).devices["cpu"].phases) == {
        "forward",
        "backward",
        "optimizer",
    }


def test_a_loop_of_ones_own_runs_unwatched() -> None:
    """The spans are only there while something is watched."""
    loop(tiny_model())

    assert running_monitor() is None
