"""Where measuring would take too much of the time, a training goes on as it would, with less measured."""

import statistics
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

import hfmem_widget
from hfmem_widget.drivers.install import Attachment
from hfmem_widget.drivers.training.loop import in_group, step_counter
from hfmem_widget.monitor import attribution, grouping, process
from hfmem_widget.monitor.monitor import Monitor
from hfmem_widget.monitor.on_import import WhenImported
from hfmem_widget.monitor.peaks import PeakLedger
from hfmem_widget.monitor.process import process_state
from hfmem_widget.monitor.sampler import Sampler
from hfmem_widget.session import Session
from hfmem_widget.sources.counters import AllocatorSource
from hfmem_widget.sources.torch_cuda import CudaAllocator
from tests.fakes.torch_cuda import FakeAllocator, FakeTorch
from tests.trainer.tiny import make_trainer, of_kind

STEPS = 24

PACKAGE = str(Path(hfmem_widget.__file__).parent)

MOST_CALLS = 24
"""Functions of ours that a step enters within a group."""


@pytest.fixture
def nothing_is_affordable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have as little measured as there can be, and some steps by themselves nevertheless."""
    monkeypatch.setattr(grouping, "ALLOWANCE", 0.0)
    monkeypatch.setattr(grouping, "MOST_GROUP", 1e9)
    monkeypatch.setattr(grouping, "SHARE", 0.05)


def trained(tmp_path: Path, phases: str = "auto", **options: Any) -> tuple[Session, list[float]]:
    trainer = make_trainer(tmp_path, max_steps=STEPS, logging_steps=1, **options)
    with hfmem_widget.watch(quiet=True, phases=phases) as session:
        trainer.train()
    return session, [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.usefixtures("nothing_is_affordable")
@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 2}], ids=str)
def test_each_step_is_counted_with_its_tokens(tmp_path: Path, options: dict[str, Any]) -> None:
    """The losses are the same to the last bit, and so are the numbers of steps and their tokens."""
    grouped, losses = trained(tmp_path, "auto", **options)
    whole, all_losses = trained(tmp_path, "all", **options)
    with_phases = {span.parent for span in of_kind(grouped, "optimizer")}
    groups = list(grouped.steps)

    assert losses == all_losses
    assert [group.first for group in groups] == [1, *(group.last + 1 for group in groups[:-1])]
    assert groups[-1].last == STEPS
    for group in groups:
        steps = [step for step in whole.steps if group.first <= step.first <= group.last]
        assert group.tokens == sum(step.tokens for step in steps)
        assert group.samples == sum(step.samples for step in steps)
    assert 0 < len(with_phases) < STEPS
    assert f"on {len(with_phases)} of {STEPS} steps" in grouped.polling.limited
    assert whole.polling.limited == ""
    assert not in_group()


@pytest.mark.usefixtures("nothing_is_affordable")
def test_what_short_steps_keep_is_not_called_activations(tmp_path: Path) -> None:
    """If each step of a shared span keeps 8 MiB, none of it is for the backward pass."""
    kept = []

    class Keeps(TrainerCallback):  # type: ignore[misc]  # as above
        def on_step_end(self, *_: Any, **__: Any) -> None:
            kept.append(torch.ones(2 << 20))

    session, _ = trained(tmp_path, callbacks=[Keeps()])
    peak = session.anatomy("peak", device="cpu")

    assert peak.bytes("unattributed") >= 0.8 * STEPS * 8 * 2**20
    assert not peak.bytes("activations") > 4 * 8 * 2**20


@pytest.mark.usefixtures("nothing_is_affordable")
def test_gradients_that_a_shared_span_leaves_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop clears them first, so they are there once its last steps, which share a span, are over."""
    monkeypatch.setattr(attribution, "SHARE", 1e-9)  # no more is counted at the edge of a block
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters())
    with hfmem_widget.watch(quiet=True) as session:
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(torch.ones(1, 64)).sum().backward()
            optimizer.step()
        with hfmem_widget.span("after"):
            pass
    after = next(span for span in session.spans if span.label == "after")

    assert list(session.steps)[-1].first < STEPS
    assert session.value(after.before, "cpu/gradients") == 4 * (64 * 64 + 64)


@pytest.mark.usefixtures("nothing_is_affordable")
def test_a_training_after_short_steps_is_measured_whole(tmp_path: Path) -> None:
    """A second training in the same watch begins with its phases."""
    with hfmem_widget.watch(quiet=True) as session:
        make_trainer(tmp_path, max_steps=STEPS).train()
        before = len(of_kind(session, "optimizer"))
        make_trainer(tmp_path, max_steps=1).train()

    assert len(of_kind(session, "optimizer")) == before + 1


class Calls(TrainerCallback):  # type: ignore[misc]  # transformers is not checked here
    """Counts the functions of ours that are entered on the thread that trains, from step to step."""

    def __init__(self) -> None:
        self.of_steps: list[list[str]] = []

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.of_steps.append([])
        sys.setprofile(self._count)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        sys.setprofile(None)

    def _count(self, frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            self.of_steps[-1].append(frame.f_code.co_qualname)


@pytest.mark.usefixtures("nothing_is_affordable")
def test_grouped_steps_enter_few_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the cold caches that a step leaves behind, each takes microseconds."""
    # However slow the machine is, no more steps are measured by themselves.
    monkeypatch.setattr(grouping, "SHARE", 1e-9)
    # Faults that other tests make may leave finders behind, and a group of steps that nobody ended.
    left = [
        one
        for one in sys.meta_path
        if isinstance(one, WhenImported)
        if one is not process_state(Attachment).imports
    ]
    sys.meta_path[:] = [one for one in sys.meta_path if one not in left]
    step_counter.end()
    fake = FakeAllocator()
    fake.alloc(1 << 20)
    allocator = CudaAllocator({"torch": FakeTorch(fake)})
    monitor = Monitor(Sampler([AllocatorSource(allocator)]), PeakLedger(allocator))
    process.this.monitor = monitor
    calls = Calls()
    with hfmem_widget.watch(quiet=True) as session:
        make_trainer(
            tmp_path, max_steps=STEPS, per_device_train_batch_size=1, callbacks=[calls]
        ).train()
    monitor.shutdown()
    typical = statistics.median_low([len(of_step) for of_step in calls.of_steps[STEPS // 2 :]])

    assert session.steps.count == STEPS
    assert typical <= MOST_CALLS, " ".join(calls.of_steps[-2])
