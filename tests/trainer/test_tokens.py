"""What a step was fed with is counted from shapes, and from what lies on the host."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import hfmem_widget
from tests.trainer.tiny import InOrder, make_trainer, of_kind, rows, session_of


def counts(trainer: Any) -> list[dict[str, float]]:
    """Return what was counted in each step of a training."""
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


def embedded(model: Any, inputs: Any) -> Any:
    embeddings = model.get_input_embeddings()(inputs["input_ids"])
    return model(inputs_embeds=embeddings, labels=inputs["labels"]).loss


WAYS = {
    "positional": lambda model, inputs: model(inputs["input_ids"], labels=inputs["labels"]).loss,
    "without a mask": lambda model, inputs: (
        model(input_ids=inputs["input_ids"], labels=inputs["labels"]).loss
    ),
    "inputs_embeds": embedded,
}


@pytest.mark.parametrize("way", WAYS)
def test_however_the_model_is_called_its_tokens_are_counted(tmp_path: Path, way: str) -> None:
    """Where there is no mask, the tokens without padding are not known."""
    kind = type("Trainer", (CallsItsOwnWay,), {"how": staticmethod(WAYS[way])})
    first = counts(make_trainer(tmp_path, kind=kind))[0]

    assert first == {"step": 1, "samples": 4, "longest": 9, "tokens": 36, "largest_batch": 36}


class TakesADict(torch.nn.Module):  # type: ignore[misc]  # torch is not checked here
    """Is called with one dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, batch: dict[str, Any]) -> Any:
        return (self.weight * batch["input_ids"].float().mean()).sum()


def test_a_batch_handed_over_as_one_dictionary_is_counted(tmp_path: Path) -> None:
    """Mask included."""
    kind = type(
        "Trainer", (CallsItsOwnWay,), {"how": staticmethod(lambda model, batch: model(batch))}
    )
    trainer = make_trainer(tmp_path, kind=kind, model=TakesADict(), remove_unused_columns=False)

    assert counts(trainer)[0]["content_tokens"] == 25


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


def test_the_longest_batch_is_the_worst_step(tmp_path: Path) -> None:
    """A run's one long batch is found by its number and its tokens."""
    lengths = [4] * 8 + [60] * 4 + [4] * 8
    with hfmem_widget.watch(quiet=True) as session:
        make_trainer(tmp_path, data=rows(lengths)).train()

    longest = max(session.steps, key=lambda step: step.longest)
    assert (longest.first, longest.tokens) == (3, 240)
