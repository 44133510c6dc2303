"""A Trainer that runs out of memory: the card has its step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hfmem_widget
from hfmem_widget.monitor.shared import running_monitor
from hfmem_widget.session import Session
from tests.trainer.tiny import make_trainer

TEXT = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
    "allocate 1125899906842624 bytes. Error code 12 (Cannot allocate memory)"
)


def failing(folder: Path, *, after: int = 2, evaluates: bool = False, **options: Any) -> Any:
    """Return a Trainer whose model runs out of memory after so many steps, or as it `evaluates`."""
    trainer = make_trainer(folder, num_train_epochs=2, **options)

    def fails(module: Any, *_: object) -> None:
        if not module.training if evaluates else trainer.state.global_step == after:
            raise RuntimeError(TEXT)

    trainer.model.lm_head.register_forward_hook(fails)
    return trainer


def watched(run: Callable[[], object]) -> Session:
    """Return the session of what runs out of memory."""
    with (
        pytest.raises(RuntimeError, match="DefaultCPUAllocator"),
        hfmem_widget.watch("run", quiet=True) as session,
    ):
        run()
    return session


def test_a_watched_block_says_in_which_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a script the card is plain text, with the training, the step and the batch."""
    trainer = failing(tmp_path)
    with (
        pytest.raises(RuntimeError, match="DefaultCPUAllocator"),
        hfmem_widget.watch("fit") as session,
    ):
        trainer.train()

    said = capsys.readouterr().out
    assert "out of memory \u00b7 cpu" in said
    assert "in train \u203a epoch 2 of 2 \u203a step 3 \u203a forward \u00b7 batch" in said
    assert [one.kind for one in session.findings if one.severity == "critical"] == ["oom"]


def test_a_training_that_watches_itself_says_so_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its callback alone is enough, and nothing is polled afterwards."""
    trainer = failing(tmp_path, callbacks=[hfmem_widget.MemoryCallback()])
    with pytest.raises(RuntimeError, match="DefaultCPUAllocator"):
        trainer.train()

    assert "\u203a step 3 \u203a forward" in capsys.readouterr().out
    assert running_monitor() is None
