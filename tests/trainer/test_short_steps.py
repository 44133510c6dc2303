"""Where measuring would take too much of the time, a training goes on as it would, with less measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hfmem_widget
from hfmem_widget.drivers.training.loop import rests
from hfmem_widget.monitor import governor
from hfmem_widget.session import Session
from tests.trainer.tiny import make_trainer, of_kind

STEPS = 24


@pytest.fixture
def nothing_is_affordable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the least measured that can be, as soon as that may be decided."""
    monkeypatch.setattr(governor, "MOST_SHARE", 0.0)
    monkeypatch.setattr(governor, "RELAXED_SHARE", 0.0)


def trained(tmp_path: Path, phases: str, **options: Any) -> tuple[Session, list[float]]:
    """Train some steps, and return what was seen and the losses."""
    trainer = make_trainer(tmp_path, max_steps=STEPS, logging_steps=1, **options)
    with hfmem_widget.watch(quiet=True, phases=phases) as session:
        trainer.train()
    return session, [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.usefixtures("nothing_is_affordable")
@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 2}], ids=str)
def test_each_step_is_there_with_its_tokens(tmp_path: Path, options: dict[str, Any]) -> None:
    """The losses are the same to the last bit, and so are the steps, their numbers and their tokens."""
    governed, losses = trained(tmp_path, "auto", **options)
    whole, all_losses = trained(tmp_path, "all", **options)
    with_phases = {span.parent for span in of_kind(governed, "optimizer")}

    assert losses == all_losses
    assert [(step.last, step.tokens, step.samples) for step in governed.steps] == [
        (step.last, step.tokens, step.samples) for step in whole.steps
    ]
    assert 0 < len(with_phases) < STEPS == len(of_kind(governed, "step"))
    assert f"on {len(with_phases)} of {STEPS} steps" in governed.polling.limited
    assert whole.polling.limited == ""
    assert not rests()


@pytest.mark.usefixtures("nothing_is_affordable")
def test_what_comes_after_is_measured_whole(tmp_path: Path) -> None:
    """A second training in the same watch begins with its phases, as does a loop of one's own."""
    with hfmem_widget.watch(quiet=True) as session:
        make_trainer(tmp_path, max_steps=STEPS).train()
        before = len(of_kind(session, "optimizer"))
        make_trainer(tmp_path, max_steps=2).train()

    assert len(of_kind(session, "optimizer")) == before + 2
