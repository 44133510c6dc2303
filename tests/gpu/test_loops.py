"""Loops that nobody names, on a GPU: each step's peak is the byte that the bare loop reads by hand."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch

import hfmem_widget
from hfmem_widget.monitor import grouping

STEPS = 5
WIDTH = 1024


@pytest.fixture(autouse=True)
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouping, "ALLOWANCE", 1e9)


def parts() -> tuple[Any, Any, Iterable[Any]]:
    torch.manual_seed(0)
    layers = [
        module for _ in range(4) for module in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU())
    ]
    model = torch.nn.Sequential(*layers).cuda()
    generator = torch.Generator().manual_seed(1)
    # Batches of other sizes, so that no step's peak is another's.
    given = [torch.randn(512 * (at % 3 + 1), WIDTH, generator=generator) for at in range(STEPS)]
    return model, torch.optim.AdamW(model.parameters()), [batch.cuda() for batch in given]


def plain(ended: Callable[[], None]) -> list[float]:
    model, optimizer, given = parts()
    losses = []
    for batch in given:
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        ended()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def accelerated(ended: Callable[[], None]) -> list[float]:
    library = pytest.importorskip("accelerate")
    model, optimizer, given = parts()
    accelerator = library.Accelerator()
    model, optimizer = accelerator.prepare(model, optimizer)
    losses = []
    for batch in given:
        loss = model(batch).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        ended()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def scaled(ended: Callable[[], None]) -> list[float]:
    model, optimizer, given = parts()
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**8)
    losses = []
    for batch in given:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(batch).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        ended()
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("loop", [plain, accelerated, scaled], ids=lambda loop: loop.__name__)
def test_each_steps_peak_is_exact(loop: Callable[[Callable[[], None]], list[float]]) -> None:
    """Between resets at the end of each optimizer's step, without us; and so are the losses."""
    loop(lambda: None)  # cuBLAS takes its workspace once
    by_hand: list[int] = []

    def read() -> None:
        by_hand.append(torch.cuda.max_memory_allocated())
        torch.cuda.reset_peak_memory_stats()

    torch.cuda.reset_peak_memory_stats()
    bare = loop(read)
    with hfmem_widget.watch(quiet=True, phases="all") as session:
        watched = loop(lambda: None)

    steps = list(session.steps)
    assert watched == bare
    assert [(step.first, step.last) for step in steps] == [(at, at) for at in range(1, STEPS + 1)]
    assert [step.devices["cuda:0"].certainty for step in steps] == ["exact"] * STEPS
    assert [step.devices["cuda:0"].peak for step in steps] == by_hand
    assert all(set(step.devices["cuda:0"].phases) == set(PHASES) for step in steps)


PHASES = ("forward", "backward", "optimizer")
