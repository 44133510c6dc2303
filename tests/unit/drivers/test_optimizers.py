"""Following optimizers by torch's own hooks, and leaving them as they were."""

import gc
import math
import signal
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch.overrides import TorchFunctionMode

import hfmem_widget
from hfmem_widget.drivers.optimizers import follow_optimizers, leave_optimizers
from hfmem_widget.monitor.attribution import Attribution
from hfmem_widget.monitor.shared import shared_monitor
from hfmem_widget.options import WatchOptions
from tests.data.timeouts import TimeIsUpError
from tests.fakes.source import spanned

ORIGINALS = torch.optim.Optimizer.zero_grad, torch.nn.Module.zero_grad


@pytest.fixture(autouse=True)
def followed() -> Iterator[None]:
    gc.collect()  # models of other tests are models, too
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


def test_a_loop_by_hand_is_attributed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights, gradients and states of a model in a function's own variables are found."""
    # However long a busy machine takes to count.
    monkeypatch.setattr("hfmem_widget.monitor.attribution.ALLOWANCE", 1e9)
    with hfmem_widget.watch("loop", quiet=True) as session:
        model, optimizer = train(watched="mine")

    (*_, last) = [span for span in session.spans if span.label == "mine"]
    size = sum(parameter.nbytes for parameter in model.parameters())
    states = sum(state.nbytes for one in optimizer.state.values() for state in one.values())
    assert last.after is not None
    assert session.value(last.after, "cpu/weights") == size
    assert session.value(last.after, "cpu/optimizer") == states


def test_gradients_count_in_an_optimizers_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients count in the first step of an optimizer from before the watch, too."""
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    for name, value in {"model": model, "optimizer": optimizer}.items():
        monkeypatch.setattr(sys.modules["__main__"], name, value, raising=False)
    with hfmem_widget.watch("loop", quiet=True, steps="each", phases="all") as session:
        for _ in range(2):
            model(torch.ones(2, 8)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    size = sum(parameter.nbytes for parameter in model.parameters())
    began = [span.before for span in session.spans if span.kind == "optimizer"]
    assert [session.value(edge, "cpu/gradients") for edge in began] == [size, size]


def test_where_nothing_is_watched_nothing_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside a watch a hook asks whether anything is watched, and that is all."""
    counts: list[object] = []
    monkeypatch.setattr("hfmem_widget.monitor.attribution.count", counts.append)

    train()

    assert counts == []


def test_following_twice_hooks_once() -> None:
    """A second `follow_optimizers` adds nothing."""
    follow_optimizers()

    assert len(sys.modules["torch.optim.optimizer"]._global_optimizer_pre_hooks) == 1


def stepped() -> tuple[Any, Any]:
    """Return a model and its optimizer after a step that has no span."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_a_function_mode_of_the_users_sees_nothing_of_ours() -> None:
    """A `TorchFunctionMode` gets the same calls in a watched step as in an unwatched one."""

    class Calls(TorchFunctionMode):  # type: ignore[misc]  # torch is not checked here
        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []

        def __torch_function__(
            self, func: Any, _types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.names.append(str(func))
            return func(*args, **(kwargs or {}))

    def calls_seen() -> list[str]:
        _, optimizer = stepped()
        with Calls() as mode:
            optimizer.step()
            optimizer.zero_grad()
        return [one.partition(" at 0x")[0] for one in mode.names]

    alone = calls_seen()
    with hfmem_widget.watch(quiet=True):
        watched = calls_seen()

    assert watched == alone


def test_activations_end_with_the_cell() -> None:
    """After a cell whose steps were seen at the optimizer alone, the next cell has no activations."""
    monitor = shared_monitor()
    session = monitor.begin(WatchOptions())
    weight = torch.nn.Parameter(torch.ones(4, 4))
    weight.grad = torch.ones(4, 4)  # without a backward pass, which would tell of the step
    with spanned(monitor, session, "cell"):
        torch.optim.SGD([weight], lr=0.1).step()
        monitor.sample(session)
        after_step = session.latest("cpu/unattributed")
    with spanned(monitor, session, "cell"):
        pass

    assert not math.isnan(after_step)  # it is 0 where Python gave more back than the step took
    assert math.isnan(session.latest("cpu/unattributed"))


def test_an_interrupt_as_gradients_are_cleared_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt while we look at gradients comes when we are done, and is not lost."""
    model, optimizer = stepped()
    done = []

    def interrupted(_: Attribution) -> None:
        signal.raise_signal(signal.SIGINT)
        done.append(True)

    monkeypatch.setattr(Attribution, "gradients_cleared", interrupted)
    with hfmem_widget.watch(quiet=True), pytest.raises(KeyboardInterrupt):
        optimizer.zero_grad()

    assert done == [True]
    assert model is not None


@pytest.mark.usefixtures("timeout")
@pytest.mark.parametrize("watched", [True, False])
def test_a_timeout_of_the_users_ends_a_loop_at_any_instant(*, watched: bool) -> None:
    """However often one comes while optimizers step and clear gradients, it reaches the loop."""
    model, optimizer = stepped()

    def loop() -> bool:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.003)
            for _ in range(10_000):
                optimizer.step()
                optimizer.zero_grad()
        except TimeIsUpError:
            return True
        return False

    try:
        with hfmem_widget.watch(model, quiet=True) if watched else nullcontext():
            ended = [loop() for _ in range(30)]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        # One that comes as `no_grad` is left leaves it on: so it does without us.
        torch.set_grad_enabled(True)

    assert ended == [True] * 30


def test_the_end_of_a_watch_takes_what_a_fault_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault in ending loops leaves no hook on torch, and no method surrounded."""
    monkeypatch.setattr("hfmem_widget.drivers.optimizers.end_loops", Mock(side_effect=OSError))
    with pytest.raises(OSError, match=r"^$"):
        leave_optimizers()

    assert (torch.optim.Optimizer.zero_grad, torch.nn.Module.zero_grad) == ORIGINALS
    assert not sys.modules["torch.optim.optimizer"]._global_optimizer_pre_hooks


def test_a_loop_is_followed_though_a_library_has_undone_its_patch_in_a_watch() -> None:
    """What it puts back is torch's own function, from before ours was there."""
    leave_optimizers()
    original = torch.autograd.backward
    torch.autograd.backward = partial(original)
    with hfmem_widget.watch(quiet=True):
        torch.autograd.backward = original
    with hfmem_widget.watch(quiet=True) as session:
        train()

    assert session.steps.count == 3
    assert torch.autograd.backward is original
