"""A training has phases, one within the other in their order, and each step the size of its batch."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer, TrainerCallback

import hfmem_widget
from hfmem_widget.session import Session
from tests.trainer.tiny import (
    EPOCH,
    PHASES,
    VOCABULARY,
    InOrder,
    arguments,
    made,
    make_trainer,
    of_kind,
    outline,
    padded,
    rows,
    session_of,
)

A_STEP = {"rows": 4, "batches": 1}
"""What a training says of the size of each of its steps."""


def test_a_step_is_forward_backward_and_optimizer(trainer: Any) -> None:
    """Phases lie side by side in the step, the step in its epoch, the epoch in the training."""
    session = session_of(trainer)

    assert outline(session) == f"{EPOCH}\n    step 1{PHASES}\n    step 2{PHASES}"
    assert {span.outcome for span in session.spans} == {"done"}


def test_a_watch_within_a_step_takes_no_phase_from_it(tmp_path: Path) -> None:
    """A watch around `training_step` has a session of its own, and the outer one keeps its phases."""

    class Watched(Trainer):  # type: ignore[misc]  # transformers has no types
        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            with hfmem_widget.watch("mine", quiet=True):
                return super().training_step(*args, **kwargs)

    session = session_of(make_trainer(tmp_path, kind=Watched))

    assert len(of_kind(session, "forward")) == len(of_kind(session, "backward")) == 2


def test_one_callback_may_follow_two_trainings_at_once(tmp_path: Path) -> None:
    """One of them within the other; nothing is left of either, and a loop after them has its steps."""
    ours = hfmem_widget.MemoryCallback(quiet=True)
    inner = make_trainer(tmp_path / "inner", callbacks=[ours])

    class Trains(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            inner.train()

    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    with hfmem_widget.watch(quiet=True) as session:
        make_trainer(tmp_path, callbacks=[ours, Trains()]).train()
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()

    assert len(of_kind(session, "train")) == 2
    assert session.steps.count == 7


def test_accumulated_batches_are_substeps(tmp_path: Path) -> None:
    """Each substep has its own forward and backward; the optimizer is the step's."""
    trainer = make_trainer(
        tmp_path, per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=1
    )
    session = session_of(trainer)
    batches = [f"batch {number}\n        forward\n        backward" for number in (1, 2)]

    assert outline(session) == "\n      ".join([f"{EPOCH}\n    step 1", *batches, "optimizer"])
    assert [span.kind for span in session.spans[4:5]] == ["substep"]


def test_evaluations_and_saves_lie_between_the_steps(tmp_path: Path) -> None:
    """They have the number of their step, and their forward passes are no phases of a step."""
    trainer = make_trainer(
        tmp_path, eval_strategy="steps", eval_steps=1, save_strategy="steps", save_steps=2
    )
    session = session_of(trainer)
    within = ("step 1", "evaluate at step 1", "step 2", "evaluate at step 2", "save at step 2")

    assert outline(session, depth=2) == "\n    ".join([EPOCH, *within])
    assert len(of_kind(session, "forward")) == 2


def test_an_evaluation_on_several_data_sets_has_one_for_each(tmp_path: Path) -> None:
    """The evaluations of single data sets lie in the evaluation as a whole."""
    trainer = make_trainer(tmp_path, eval_strategy="epoch")
    trainer.eval_dataset = {"short": rows((3, 3)), "long": rows((9, 9))}
    session = session_of(trainer)

    assert outline(session, depth=2).endswith(
        "  evaluate at step 2\n    evaluate at step 2\n    evaluate at step 2"
    )
    whole = of_kind(session, "evaluate")[0]
    phase = next(phase for phase in session.phases(1) if phase.kind == "evaluate")
    assert (phase.count, phase.seconds) == (1, whole.duration)


def test_an_evaluation_within_a_phase_lies_in_it(tmp_path: Path) -> None:
    """A callback may evaluate whenever it likes; the phase around it goes on."""

    class Evaluates(TrainerCallback):  # type: ignore[misc]  # transformers is not checked here
        def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
            trainer.evaluate()

    trainer = make_trainer(tmp_path, max_steps=1, callbacks=[Evaluates])

    assert outline(session_of(trainer)).endswith("optimizer\n        evaluate at step 0")


def test_evaluations_predictions_and_saves_by_hand_are_spans(trainer: Any, tmp_path: Path) -> None:
    """Outside of a training they are spans of the cell."""
    with hfmem_widget.watch(quiet=True) as session:
        trainer.evaluate()
        trainer.predict(rows((4, 4)))
        trainer.save_model(str(tmp_path / "model"))

    assert outline(session) == "evaluate\npredict\nsave"


class Endless(torch.utils.data.IterableDataset):  # type: ignore[misc]  # torch is not checked here
    """Has no length, and ends after eight rows each time."""

    def __iter__(self) -> Any:
        return iter(rows())


def test_epochs_of_data_without_a_length_are_counted_too(tmp_path: Path) -> None:
    """The label of an epoch does not say how many there will be if that is unknown."""
    session = session_of(make_trainer(tmp_path, data=Endless(), max_steps=5))

    epochs = ("1\n    step 1\n    step 2", "2\n    step 3\n    step 4", "3\n    step 5")
    assert outline(session, depth=2) == "\n  epoch ".join(["train", *epochs])
    assert of_kind(session, "train")[0].counts == {"steps": 5, "done_before": 0, **A_STEP}


def test_a_resumed_training_counts_on(tmp_path: Path) -> None:
    """Steps and epochs go on from the checkpoint, and the training has the number of those before."""
    options: dict[str, Any] = {"num_train_epochs": 2, "save_strategy": "steps", "save_steps": 3}
    make_trainer(tmp_path, **options).train()
    with hfmem_widget.watch(quiet=True) as session:
        make_trainer(tmp_path, **options).train(
            resume_from_checkpoint=str(tmp_path / "checkpoint-3")
        )

    assert outline(session, depth=2) == "train\n  epoch 2 of 2\n    step 4\n    save at step 4"
    (train,) = of_kind(session, "train")
    assert train.counts == {"steps": 4, "done_before": 3, "epochs": 2, **A_STEP}
    assert [group.first for group in session.steps] == [4]


def test_a_training_within_a_step_lies_in_it(tmp_path: Path) -> None:
    """The steps of a training that a callback starts, as in distillation, are its own."""

    class Trains(TrainerCallback):  # type: ignore[misc]  # transformers is not checked here
        def on_optimizer_step(self, *_: Any, **__: Any) -> None:
            inner.train()

    inner = make_trainer(tmp_path / "inner", max_steps=1)
    session = session_of(make_trainer(tmp_path / "outer", max_steps=1, callbacks=[Trains]))

    assert of_kind(session, "train")[1].parent == of_kind(session, "step")[0].id
    assert {span.outcome for span in session.spans} == {"done"}
    assert len(of_kind(session, "backward")) == len(of_kind(session, "optimizer")) == 2


def test_a_sequence_to_sequence_trainer_is_followed(tmp_path: Path) -> None:
    """A generation during an evaluation lies in the evaluation."""
    layers = {"num_layers": 1, "num_heads": 2, "vocab_size": VOCABULARY}
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, **layers}
    generates = {"predict_with_generate": True, "generation_max_length": 4}
    options = {"max_steps": 1, "eval_strategy": "epoch", **generates}
    trainer = Seq2SeqTrainer(
        made("T5ForConditionalGeneration", **sizes, decoder_start_token_id=0),
        arguments(tmp_path, Seq2SeqTrainingArguments, **options),
        data_collator=padded,
        train_dataset=rows(),
        eval_dataset=rows((5, 6)),
        compute_metrics=lambda _predictions: {},
    )
    session = session_of(trainer)

    evaluation = "\n  evaluate at step 1\n    generate\n      prefill\n      decode"
    assert outline(session, depth=3) == f"{EPOCH}\n    step 1{PHASES}{evaluation}"


def counts(session: Session) -> list[dict[str, float]]:
    return [dict(span.counts) for span in of_kind(session, "step")]


STEP = {"samples": 4, "longest": 9, "tokens": 36, "content_tokens": 25, "largest_batch": 36}


def test_a_steps_batch_is_counted(tmp_path: Path) -> None:
    """The rows have 5, 9, 4 and 7 tokens, then 6, 8, 5 and 3, and are padded to the longest."""
    session = session_of(make_trainer(tmp_path))
    steps = [(one.first, one.samples, one.tokens, one.content_tokens) for one in session.steps]
    second = {"longest": 8, "tokens": 32, "content_tokens": 22, "largest_batch": 32}

    assert steps == [(1, 4, 36, 25), (2, 4, 32, 22)]
    assert [one.devices["cpu"].worst_tokens for one in session.steps] == [36, 32]
    assert counts(session) == [{"step": 1, **STEP}, {"step": 2, **STEP, **second}]


def test_accumulated_batches_are_added_up(tmp_path: Path) -> None:
    """The longest and the largest batch are those of the step's worst batch."""
    trainer = make_trainer(tmp_path, per_device_train_batch_size=2, gradient_accumulation_steps=2)

    first, _ = counts(session_of(trainer))
    assert first == {"step": 1, **STEP, "tokens": 18 + 14, "largest_batch": 18}


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
def test_forward_passes_are_one_phase(tmp_path: Path, how: Callable[..., Any], tokens: int) -> None:
    """All forward passes are counted but those without gradients, which are part of the span around."""
    kind = type("Trainer", (CallsItsOwnWay,), {"how": staticmethod(how)})
    session = session_of(make_trainer(tmp_path, kind=kind, max_steps=1))

    assert [span.kind for span in session.spans[4:]] == ["forward", "backward", "optimizer"]
    assert session.spans[3].counts["tokens"] == tokens
