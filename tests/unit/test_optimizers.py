"""Following optimizers by torch's own hooks, and leaving them as they were."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

import hfmem_widget
from hfmem_widget.optimizers import follow_optimizers, leave_optimizers

torch = pytest.importorskip("torch")


ORIGINALS = torch.optim.Optimizer.zero_grad, torch.nn.Module.zero_grad


@pytest.fixture(autouse=True)
def followed() -> Iterator[None]:
    follow_optimizers()
    yield
    leave_optimizers()


def train(steps: int = 3, *, watched: str = "") -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 8)).square().sum().backward()
        with hfmem_widget.span(watched or "nothing"):
            optimizer.step()
    return model, optimizer


def test_a_loop_by_hand_is_attributed() -> None:
    """Weights, gradients and states of a model in a function's own variables are told."""
    with hfmem_widget.watch("loop", quiet=True) as session:
        model, optimizer = train(watched="mine")

    (*_, last) = [span for span in session.spans if span.label == "mine"]
    size = sum(parameter.nbytes for parameter in model.parameters())
    states = sum(state.nbytes for one in optimizer.state.values() for state in one.values())
    assert last.after is not None
    assert session.value(last.after, "cpu/weights") == size
    assert session.value(last.after, "cpu/optimizer") == states


def test_where_nothing_is_watched_nothing_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside a watch a hook asks whether anything is watched, and that is all."""
    counted: list[object] = []
    monkeypatch.setattr("hfmem_widget.monitor.attribution.count", counted.append)

    train()

    assert counted == []


def test_the_result_is_the_same() -> None:
    """A watched loop trains to the same weights, bit for bit."""
    with hfmem_widget.watch("loop", quiet=True):
        watched, _ = train()
    bare, _ = train()

    assert all(
        torch.equal(a, b) for a, b in zip(watched.parameters(), bare.parameters(), strict=True)
    )


def test_leaving_restores_everything() -> None:
    """No hook stays with torch, and `zero_grad` is torch's own function again."""
    module = sys.modules["torch.optim.optimizer"]
    leave_optimizers()

    assert not module._global_optimizer_pre_hooks
    assert not module._global_optimizer_post_hooks
    assert (torch.optim.Optimizer.zero_grad, torch.nn.Module.zero_grad) == ORIGINALS


def test_following_twice_hooks_once() -> None:
    """A second `follow_optimizers` adds nothing."""
    follow_optimizers()

    assert len(sys.modules["torch.optim.optimizer"]._global_optimizer_pre_hooks) == 1


def test_a_fault_of_ours_leaves_the_step_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The optimizer steps though counting fails, and one line says so."""

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    with hfmem_widget.watch("loop", quiet=True) as session:
        monkeypatch.setattr("hfmem_widget.monitor.attribution.count", fail)
        _, optimizer = train(steps=1)

    assert optimizer.state
    assert session.spans[0].outcome == "done"
    assert "ZeroDivisionError" in capsys.readouterr().err
