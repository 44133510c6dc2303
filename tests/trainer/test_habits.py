"""The settings that people train with change nothing about what is followed."""

from __future__ import annotations

import copy
import os
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

import hfmem_widget
from hfmem_widget import MemoryCallback
from hfmem_widget.drivers.trainer import AT_ONCE_NOTE, TRACKER_NOTE
from hfmem_widget.monitor.shared import shared_monitor
from hfmem_widget.options import WatchOptions
from tests.trainer.tiny import (
    InOrder,
    Plain,
    make_trainer,
    of_kind,
    outline,
    session_of,
    tiny_model,
)

ONE_STEP = "step 1\n  forward\n  backward\n  optimizer".replace("\n", "\n    ")


def first_step(trainer: Any) -> str:
    """Return the outline of a training of one step, without training and epoch."""
    session = session_of(trainer)
    assert trainer.state.global_step == 1
    return outline(session).partition("epoch 1 of 1\n")[2].strip()


SETTINGS: dict[str, dict[str, Any]] = {
    "torch_empty_cache_steps": {"torch_empty_cache_steps": 1},
    "gradient_checkpointing": {"gradient_checkpointing": True},
    "bf16": {"bf16": True},
    "include_num_input_tokens_seen": {"include_num_input_tokens_seen": True},
    "neftune": {"neftune_noise_alpha": 5.0},
    "no clipping": {"max_grad_norm": 0.0},
    "adafactor": {"optim": "adafactor"},
    "torch_compile": {"torch_compile": True, "torch_compile_backend": "eager"},
    # Its hooks are on the wrapper, and trace into nothing.
    "compiled": {"remove_unused_columns": False},
}
MODELS: dict[str, Callable[[], Any]] = {
    "torch_compile": Plain,
    "compiled": lambda: torch.compile(Plain(), backend="eager", fullgraph=True, dynamic=False),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_leaves_the_phases_as_they_are(tmp_path: Path, setting: str) -> None:
    """One forward, one backward, one optimizer; fp16 needs a GPU."""
    model = MODELS.get(setting, tiny_model)()
    trainer = make_trainer(tmp_path, max_steps=1, model=model, **SETTINGS[setting])

    assert first_step(trainer) == ONE_STEP


@pytest.mark.parametrize("workers", [2, 8])
def test_workers_that_load_data_are_left_alone(tmp_path: Path, workers: int) -> None:
    """They are forked in the middle of a watch, and the training gets all its batches."""
    session = session_of(make_trainer(tmp_path, dataloader_num_workers=workers))

    assert [group.tokens for group in session.steps] == [36, 32]
    assert session.polling.stopped == ""


def test_the_trainers_own_memory_metrics_cost_one_note(tmp_path: Path) -> None:
    """It is said once, however many trainings there are, and both count what they count."""
    trainer = make_trainer(tmp_path, skip_memory_metrics=False, logging_strategy="epoch")
    with hfmem_widget.watch(quiet=True) as session:
        trainer.train()
        trainer.train()

    assert session.notes.count(TRACKER_NOTE) == 1
    assert "train_mem_cpu_peaked_delta" in trainer.state.log_history[-1]
    assert [group.first for group in session.steps] == [1, 2, 1, 2]
    assert all(span.peaks["cpu/allocated"].value > 0 for span in of_kind(session, "step"))


def test_a_model_compiled_in_place_has_no_hooks(tmp_path: Path) -> None:
    """They would be compiled with it, and anew; what comes before the backward pass is no phase."""
    hooks: list[int] = []

    class Looks(TrainerCallback):  # type: ignore[misc]  # transformers is not checked here
        def on_step_end(self, *_: Any, model: Any, **__: Any) -> None:
            hooks.append(len(model._forward_hooks) + len(model._forward_pre_hooks))

    model = Plain()
    model.compile(backend="eager", fullgraph=True, dynamic=False)
    trainer = make_trainer(tmp_path, model=model, max_steps=1, callbacks=[Looks])

    assert first_step(trainer) == "step 1\n      backward\n      optimizer"
    assert hooks == [0]


class Meets(InOrder):
    """Tells when its first step begins, and goes on from there when it is told."""

    arrived: threading.Event
    may_go_on: threading.Event

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        self.arrived.set()
        assert self.may_go_on.wait(300)
        return super().training_step(*args, **kwargs)


def test_of_two_trainings_at_once_the_first_is_followed_and_a_note_says_so(tmp_path: Path) -> None:
    """All its steps, undisturbed by those of the other, whichever ends first; the next has its own again."""
    first, second = (make_trainer(tmp_path / name, kind=Meets) for name in "ab")
    first.arrived, second.arrived = threading.Event(), threading.Event()
    first.may_go_on = second.may_go_on = threading.Event()
    with hfmem_widget.watch(quiet=True) as session:
        threads = [threading.Thread(target=one.train) for one in (first, second)]
        for trainer, thread in zip((first, second), threads, strict=True):
            thread.start()
            assert trainer.arrived.wait(300)
        first.may_go_on.set()
        for thread in threads:
            thread.join()
        assert [span.label for span in of_kind(session, "step")] == ["step 1", "step 2"]
        first.train()

    assert len(of_kind(session, "train")) == 2
    assert len(of_kind(session, "step")) == 4
    assert session.notes.count(AT_ONCE_NOTE) == 1


def test_a_training_that_outlived_its_cell_is_in_nobodys_way(tmp_path: Path) -> None:
    """What follows it ended with the cell, so the next Trainer is the only one."""
    first = make_trainer(tmp_path / "a", kind=Meets)
    first.arrived, first.may_go_on = threading.Event(), threading.Event()
    monitor = shared_monitor()
    session = monitor.begin(WatchOptions())
    cell = monitor.open_span(session, "cell", "one")
    thread = threading.Thread(target=first.train)
    thread.start()
    assert first.arrived.wait(300)
    monitor.close_span(session, cell.id)
    cell = monitor.open_span(session, "cell", "two")
    make_trainer(tmp_path / "b").train()
    first.may_go_on.set()
    thread.join()
    monitor.end(session)

    assert [span.label for span in session.spans if span.parent == cell.id] == ["train"]
    assert AT_ONCE_NOTE not in session.notes


def test_a_fork_in_the_middle_of_a_training_is_harmless(tmp_path: Path) -> None:
    """The child goes its way; the parent's training is followed to its end."""

    class Forks(TrainerCallback):  # type: ignore[misc]  # transformers is not checked here
        def on_pre_optimizer_step(self, *_: Any, model: Any, **__: Any) -> None:
            child = os.fork()
            if child == 0:
                with hfmem_widget.span("in the child"):
                    os._exit(7)
            self.status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    forks = Forks()
    trainer = make_trainer(tmp_path, max_steps=1, callbacks=[forks])

    assert first_step(trainer) == ONE_STEP
    assert forks.status == 7


class CopiesTheTrainer(TrainerCallback):  # type: ignore[misc]  # transformers is not checked here
    """Copies the Trainer and its callbacks while it trains, as population-based searches do."""

    def __init__(self) -> None:
        self.trainer: Any = None
        self.copied: list[Any] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        if not self.copied:
            trainer, self.trainer = self.trainer, None
            callbacks = trainer.callback_handler.callbacks
            self.copied = [None]
            self.copied = [copy.deepcopy(trainer), copy.deepcopy(callbacks)]
            pickle.dumps([one for one in callbacks if isinstance(one, MemoryCallback)])


@pytest.mark.parametrize("own", [False, True])
def test_a_trainer_can_be_copied_while_it_is_followed(tmp_path: Path, *, own: bool) -> None:
    """The copy has the callback if the Trainer was given one, and no part in this training."""
    copies = CopiesTheTrainer()
    callbacks = [copies, *([MemoryCallback(log=True)] if own else [])]
    copies.trainer = trainer = make_trainer(tmp_path, max_steps=2, callbacks=callbacks)
    session = session_of(trainer)

    assert len(copies.copied) == 2
    ours = [one for one in copies.copied[1] if isinstance(one, MemoryCallback)]
    assert [one.log for one in ours] == [own]
    assert all(one._run is None for one in ours)
    assert session.steps.count == 2
