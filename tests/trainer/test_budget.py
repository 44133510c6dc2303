"""`--stop`: the training ends at the end of the step that crossed the budget, with its checkpoint kept."""

from __future__ import annotations

import gc
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

import hfmem_widget
from hfmem_widget.drivers.trainer import MemoryCallback
from hfmem_widget.features.budget.companion import Budget
from hfmem_widget.monitor.companion import begun
from hfmem_widget.session import Finding, Session
from tests.trainer.tiny import InOrder, make_trainer, of_kind

MIB = 2**20
BIG = 96 * MIB
SPARE = 48 * MIB
"""Between the heap at the start and the budget: what the Trainer itself needs is far less."""


class Grows(InOrder):
    """Holds much more from its third step on."""

    kept: Any = None

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == 2 and self.kept is None:
            self.kept = torch.ones(BIG // 4)
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
    with hfmem_widget.watch(quiet=True, budget=heap() + SPARE, **options) as session:
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


def test_a_training_that_is_over_anyway_was_not_ended(tmp_path: Path) -> None:
    """It crosses the budget in its last step, after which nothing was left to be ended."""
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
def test_whoever_ends_a_training_knows_whether_others_train(
    monkeypatch: pytest.MonkeyPatch, step: int, most: int, world: int,
    *, is_last: bool, alone: bool, ends: bool,
) -> None:  # fmt: skip
    """And its step, and whether that is the last; a training that is ended is saved first."""
    asked: list[Any] = []

    def should_end(at: int, **more: bool) -> bool:
        asked.append((at, more))
        return ends

    callback = MemoryCallback()
    callback._budgets = begun(Budget)
    begun(Budget).append(SimpleNamespace(should_end=should_end))  # type: ignore[arg-type]
    callback._run = mock.MagicMock()
    control = SimpleNamespace(should_save=False, should_training_stop=False)
    state = SimpleNamespace(max_steps=most, global_step=step, log_history=[])
    callback.on_step_end(SimpleNamespace(world_size=world), state, control)

    assert asked == [(step, {"alone": alone, "is_last": is_last})]
    assert (control.should_save, control.should_training_stop) == (ends, ends)
