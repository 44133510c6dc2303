"""What a step was fed with is counted from shapes, and from what lies on the host."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import hfmem_widget
from tests.trainer.tiny import InOrder, make_trainer, of_kind, session_of


def counts(trainer: Any) -> list[dict[str, float]]:
    session = session_of(trainer)
    return [dict(span.counts) for span in of_kind(session, "step")]


def test_a_steps_batch_is_counted(tmp_path: Path) -> None:
    """The rows have 5, 9, 4 and 7 tokens, then 6, 8, 5 and 3, and are padded to the longest."""
    session = session_of(make_trainer(tmp_path))
    steps = [(one.first, one.samples, one.tokens, one.content_tokens) for one in session.steps]

    assert steps == [(1, 4, 36, 25), (2, 4, 32, 22)]
    assert [one.devices["cpu"].worst_tokens for one in session.steps] == [36, 32]
    assert [dict(span.counts) for span in of_kind(session, "step")] == [
        {
            "step": 1,
            "samples": 4,
            "longest": 9,
            "tokens": 36,
            "content_tokens": 25,
            "largest_batch": 36,
        },
        {
            "step": 2,
            "samples": 4,
            "longest": 8,
            "tokens": 32,
            "content_tokens": 22,
            "largest_batch": 32,
        },
    ]


def test_accumulated_batches_are_added_up(tmp_path: Path) -> None:
    """The longest and the largest batch are those of the step's worst batch."""
    trainer = make_trainer(tmp_path, per_device_train_batch_size=2, gradient_accumulation_steps=2)

    assert counts(trainer)[0] == {
        "step": 1,
        "samples": 4,
        "longest": 9,
        "tokens": 18 + 14,
        "content_tokens": 25,
        "largest_batch": 18,
    }


class CallsItsOwnWay(InOrder):
    """Calls the model as its own `how` says."""

    how: Any

    def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
        return type(self).how(model, inputs)


def twice(model: Any, inputs: Any) -> Any:
    """Contrast two batches, as sentence-transformers does for one."""
    return model(**inputs).loss + model(**inputs).loss


def with_reference(model: Any, inputs: Any) -> Any:
    """Have a reference for the loss, or generate within a step."""
    with torch.no_grad():
        model(**inputs)
    return model(**inputs).loss


@pytest.mark.parametrize(("how", "tokens"), [(twice, 72), (with_reference, 36)])
def test_several_forward_passes_of_a_step_are_one_phase(
    tmp_path: Path, how: Callable[..., Any], tokens: int
) -> None:
    """All are counted, but for one without gradients, which is part of what surrounds it."""
    kind = type("Trainer", (CallsItsOwnWay,), {"how": staticmethod(how)})
    with hfmem_widget.watch(quiet=True) as session:
        make_trainer(tmp_path, kind=kind, max_steps=1).train()

    assert [span.kind for span in session.spans[4:]] == ["forward", "backward", "optimizer"]
    assert session.spans[3].counts["tokens"] == tokens
