"""However a training ends, it ends as it would without us, or as `--stop` asks for."""

import gc
import signal
import time
import traceback
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock
from unittest.mock import Mock

import pytest
import torch
from transformers import TrainerCallback

import hfmem_widget
from hfmem_widget.drivers import install as attaching
from hfmem_widget.drivers.trainer import MemoryCallback
from hfmem_widget.features.budget.companion import Budget
from hfmem_widget.monitor.companion import begun
from hfmem_widget.monitor.shared import running_monitor, shared_monitor
from hfmem_widget.session import Finding, Session, Span, SpanKind
from hfmem_widget.text import MIB
from tests.trainer.tiny import (
    InOrder,
    Row,
    make_trainer,
    of_kind,
    outline,
    padded,
    running_out,
    session_of,
    watched,
)


class FailsAtThree(InOrder):
    """Raises its error in step 3, before the model is called."""

    error: BaseException

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == 2:
            raise self.error
        return super().compute_loss(*args, **kwargs)


def failing(folder: Path, **options: Any) -> Any:
    trainer = make_trainer(folder, kind=FailsAtThree, num_train_epochs=2, **options)
    trainer.error = RuntimeError("step 3 is broken")
    return trainer


def failed_session(trainer: Any, kind: type[BaseException] = RuntimeError) -> Session:
    with hfmem_widget.watch(quiet=True) as session, pytest.raises(kind):
        trainer.train()
    return session


def outcomes(session: Session) -> dict[str, str]:
    """Return how what did not go well ended, by label."""
    return {span.label: span.outcome for span in session.spans if span.outcome not in {"done", ""}}


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(RuntimeError("step 3"), "raised RuntimeError"), (KeyboardInterrupt(), "interrupted")],
)
def test_an_error_ends_every_open_span(error: BaseException, outcome: str, tmp_path: Path) -> None:
    """Training, epoch and step have the error as outcome; only the block stays open after it."""
    trainer = failing(tmp_path)
    trainer.error = error
    with hfmem_widget.watch(quiet=True) as session:
        with pytest.raises(type(error)) as raised:
            trainer.train()
        still_open = [span.kind for span in session.open_spans]

    assert raised.value is error
    assert outcomes(session) == dict.fromkeys(("train", "epoch 2 of 2", "step 3"), outcome)
    assert still_open == ["block"]


def test_an_error_in_a_forward_pass_ends_that_phase(tmp_path: Path) -> None:
    """The forward pass is the last phase, with the error as outcome; the step keeps number and tokens."""
    trainer = make_trainer(tmp_path, num_train_epochs=2)

    def fails(module: Any, *_: object) -> None:
        if trainer.state.global_step == 2:
            raise RuntimeError("broken layer")

    trainer.model.lm_head.register_forward_hook(fails)
    session = failed_session(trainer)

    assert outline(session).endswith("step 3\n      forward")
    assert outcomes(session)["forward"] == "raised RuntimeError"
    assert [(group.first, group.tokens) for group in session.steps][-1] == (3, 36)


def test_a_forward_pass_that_is_tried_again_is_another_phase(tmp_path: Path) -> None:
    """If the user's own loss catches the error, the step goes on."""

    class TriesAgain(InOrder):
        def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
            try:
                return model(**inputs).loss
            except RuntimeError:
                return model(**inputs).loss

    trainer = make_trainer(tmp_path, kind=TriesAgain, max_steps=1)
    once = Mock(side_effect=[RuntimeError("out of memory"), None])
    trainer.model.lm_head.register_forward_hook(once)
    session = session_of(trainer)

    assert [(span.kind, span.outcome) for span in session.spans[4:]] == [
        ("forward", "raised RuntimeError"),
        ("forward", "done"),
        ("backward", "done"),
        ("optimizer", "done"),
    ]


def test_an_error_in_the_data_ends_the_epoch(tmp_path: Path) -> None:
    """Batches are fetched before their step begins, so an error in one is the epoch's, not a step's."""

    def breaks(batch: Sequence[Row]) -> Row:
        if any(len(row["input_ids"]) == 6 for row in batch):
            raise ValueError("bad row")
        return padded(batch)

    session = failed_session(make_trainer(tmp_path, collate=breaks), ValueError)

    assert outcomes(session) == dict.fromkeys(("train", "epoch 1 of 1"), "raised ValueError")


def test_the_traceback_has_no_frame_of_ours(tmp_path: Path) -> None:
    """A traceback is the same with and without a watch."""

    def frames() -> list[tuple[str, int | None, str]]:
        with pytest.raises(RuntimeError) as raised:
            failing(tmp_path).train()
        found = traceback.extract_tb(raised.value.__traceback__)
        return [(one.filename, one.lineno, one.name) for one in found]

    attaching.detach()
    bare = frames()
    with hfmem_widget.watch(quiet=True):
        watched = frames()

    assert watched == bare


def test_nothing_of_a_failed_training_is_held(tmp_path: Path) -> None:
    """The model is gone once the user has let go of it, while the watch still runs."""
    trainer = failing(tmp_path, callbacks=[hfmem_widget.MemoryCallback()])
    model = weakref.ref(trainer.model)
    with hfmem_widget.watch(quiet=True):
        with pytest.raises(RuntimeError):
            trainer.train()
        del trainer
        gc.collect()
        assert model() is None


def test_a_training_after_an_error_is_a_training_of_its_own(tmp_path: Path) -> None:
    """The same Trainer may train again in the same cell."""
    trainer = failing(tmp_path)
    with hfmem_widget.watch(quiet=True) as session:
        with pytest.raises(RuntimeError):
            trainer.train()
        trainer.compute_loss = super(FailsAtThree, trainer).compute_loss
        trainer.train()

    trains = of_kind(session, "train")
    assert [span.outcome for span in trains] == ["raised RuntimeError", "done"]
    assert [span.parent for span in trains] == [1, 1]
    assert [group.first for group in session.steps] == [1, 2, 3, 1, 2, 3, 4]


@pytest.mark.parametrize("kind", ["block", "train", "epoch", "step", "forward"])
def test_an_interrupt_in_our_own_bookkeeping_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """An interrupt is delivered once a span is open, and every open span ends."""
    monitor = shared_monitor()
    original = monitor.open_span

    def interrupted(session: Session, opened: SpanKind, *args: Any) -> Span:
        if opened == kind:
            signal.raise_signal(signal.SIGINT)
        return original(session, opened, *args)

    monkeypatch.setattr(monitor, "open_span", interrupted)
    trainer = make_trainer(tmp_path, callbacks=[hfmem_widget.MemoryCallback()])
    # A process in the background of a shell may have been started with the signal ignored.
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            trainer.train()
    finally:
        signal.signal(signal.SIGINT, usual)

    assert running_monitor() is None
    assert not trainer.model._forward_hooks


class Greedy(torch.nn.Module):  # type: ignore[misc]  # torch is not checked here
    """Runs out of memory, as torch would say it, with more than two rows."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.tried: list[int] = []

    def forward(self, input_ids: Any, **_: Any) -> dict[str, Any]:
        if len(input_ids) not in self.tried:
            self.tried.append(len(input_ids))
        if len(input_ids) > 2:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return {"loss": (self.weight * input_ids.float().mean()).sum()}


def test_attempts_to_find_a_batch_size_are_trainings_of_their_own(tmp_path: Path) -> None:
    """Later attempts are numbered and have their batch size."""
    model = Greedy()
    trainer = make_trainer(
        tmp_path, model=model, auto_find_batch_size=True, remove_unused_columns=False
    )
    session = session_of(trainer)

    first, *later = model.tried  # by its version accelerate halves it or takes a tenth away
    assert (first, later[-1]) == (4, 2)
    trains = [(span.label, span.outcome) for span in of_kind(session, "train")]
    outcomes = [*["tried again"] * len(later), "done"]
    labels = [f"train, attempt {number}, batch size {size}" for number, size in enumerate(later, 2)]
    assert trains == list(zip(["train", *labels], outcomes, strict=True))
    assert {span.parent for span in of_kind(session, "train")} == {1}
    assert [group.first for group in session.steps] == [*[1] * len(later), 1, 2, 3, 4]


class Afterwards(TrainerCallback):  # type: ignore[misc]  # transformers is not checked here
    """Does something when the training has ended, as what saves or reports does."""

    def on_train_end(self, *_: Any, **__: Any) -> None:
        with hfmem_widget.span("afterwards"):
            pass


def test_the_span_of_a_training_ends_with_its_event(tmp_path: Path) -> None:
    """Memory after the last step is outside of the training, though `train()` goes on."""
    session = session_of(make_trainer(tmp_path, callbacks=[Afterwards()]))

    assert outline(session, depth=0).splitlines() == ["train", "afterwards"]


class Grows(InOrder):
    """Holds 96 MiB more from its third step on, far more than the Trainer itself needs."""

    kept: Any = None

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == 2 and self.kept is None:
            self.kept = torch.ones((96 << 20) // 4)
            # Reading the heap of a process with much in it takes so long that it is read less often.
            time.sleep(0.5)
        return super().compute_loss(*args, **kwargs)


def heap() -> float:
    gc.collect()  # a failed test before this one has a traceback that holds much
    with hfmem_widget.watch(quiet=True) as session:
        pass
    return session.latest("cpu/allocated")


def trained(folder: Path, steps: int = 8, **options: Any) -> tuple[Session, Any, Finding]:
    trainer = make_trainer(folder, kind=Grows, num_train_epochs=4, max_steps=steps)
    with hfmem_widget.watch(quiet=True, budget=heap() + 48 * MIB, **options) as session:
        trainer.train()
    (finding,) = [one for one in session.findings if one.kind == "budget"]
    return session, trainer, finding


def test_the_training_ends_after_the_step_and_its_checkpoint_is_there(tmp_path: Path) -> None:
    """In step 3 of 8, of which the evidence tells; it can be resumed from there."""
    session, trainer, finding = trained(tmp_path, stop=True)

    assert trainer.state.global_step == 3
    assert (tmp_path / "checkpoint-3" / "trainer_state.json").exists()
    assert [span.label for span in of_kind(session, "step")] == ["step 1", "step 2", "step 3"]
    assert {span.outcome for span in session.spans} == {"done"}
    assert finding.title.endswith("; training was ended after step 3, with a checkpoint")
    assert ", in step 3" in finding.title
    resumed = make_trainer(tmp_path, num_train_epochs=4, max_steps=8)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert resumed.state.global_step == 8


def test_a_training_that_crosses_its_budget_in_the_last_step_is_not_ended(tmp_path: Path) -> None:
    """After the last step nothing is left to be ended."""
    _, trainer, finding = trained(tmp_path, steps=3, stop=True)

    assert trainer.state.global_step == 3
    assert "ended" not in finding.title


@pytest.mark.parametrize(
    ("step", "most", "world", "is_last", "alone"),
    [
        (9, 10, 1, False, True),
        (10, 10, 1, True, True),
        (11, 10, 2, True, False),
        (5, 0, 1, False, True),
    ],
)
@pytest.mark.parametrize("ends", [True, False])
def test_a_budget_knows_the_step_whether_it_is_the_last_and_whether_others_train(
    step: int, most: int, world: int, *, is_last: bool, alone: bool, ends: bool
) -> None:
    """A training that the budget ends is saved first."""
    calls: list[Any] = []

    def should_end(at: int, **more: bool) -> bool:
        calls.append((at, more))
        return ends

    callback = MemoryCallback()
    callback._budgets = begun(Budget)
    begun(Budget).append(SimpleNamespace(should_end=should_end))  # type: ignore[arg-type]
    callback._run = mock.MagicMock()
    control = SimpleNamespace(should_save=False, should_training_stop=False)
    state = SimpleNamespace(max_steps=most, global_step=step, log_history=[])
    callback.on_step_end(SimpleNamespace(world_size=world), state, control)

    assert calls == [(step, {"alone": alone, "is_last": is_last})]
    assert (control.should_save, control.should_training_stop) == (ends, ends)


def test_the_card_names_the_failed_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a script the card is plain text, with the training, the step and the batch."""
    session = watched(running_out(tmp_path).train, quiet=False)

    printed = capsys.readouterr().out
    assert "out of memory \u00b7 cpu" in printed
    assert "in train \u203a epoch 2 of 2 \u203a step 3 \u203a forward \u00b7 batch" in printed
    assert [one.kind for one in session.findings if one.severity == "critical"] == ["oom"]


def test_a_lone_callback_shows_the_card(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A callback without a watch shows the card, and nothing is polled afterwards."""
    trainer = running_out(tmp_path, callbacks=[hfmem_widget.MemoryCallback()])
    with pytest.raises(RuntimeError, match="DefaultCPUAllocator"):
        trainer.train()

    assert "\u203a step 3 \u203a forward" in capsys.readouterr().out
    assert running_monitor() is None
