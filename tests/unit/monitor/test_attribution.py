"""When tensors and buffers of libraries are counted, and what is assumed in between."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from hfmem_widget.monitor import attribution as subject
from hfmem_widget.monitor.attribution import Attribution
from hfmem_widget.monitor.holdings import count
from hfmem_widget.monitor.subjects import Subjects
from hfmem_widget.sources.counters import TensorSource
from tests.data.threads import on_threads
from tests.scenes import FakeClock
from tests.unit.sources.test_libraries import FakeDdp


class Loop:
    """A model in training, and what counts it."""

    def __init__(self) -> None:
        self.model = torch.nn.Linear(64, 64)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.clock = FakeClock()
        self.source = TensorSource()
        self.attribution = Attribution(self.source, Subjects(dict), clock=self.clock)
        self.attribution.follow(self.model, self.optimizer)
        self.size = 64 * 65 * 4

    def backward(self) -> None:
        self.model(torch.ones(2, 64)).sum().backward()

    @property
    def held(self) -> Mapping[str, float]:
        return self.source.counted.get("cpu", {})

    def edge(self, kind: Any, *, begins: bool) -> None:
        self.attribution.at_edge(kind, begins=begins)

    def step(self) -> None:
        self.edge("step", begins=True)
        self.backward()
        self.edge("optimizer", begins=True)
        self.optimizer.step()
        self.edge("optimizer", begins=False)
        self.optimizer.zero_grad()
        self.edge("step", begins=False)


@pytest.fixture
def loop() -> Loop:
    return Loop()


def test_each_part_is_counted_from_the_first_edge_at_which_it_exists(loop: Loop) -> None:
    """Weights are counted as a training begins, gradients before a step, states after it."""
    loop.edge("train", begins=True)
    assert loop.held == {"weights": loop.size}
    loop.backward()
    loop.edge("optimizer", begins=True)
    assert loop.held == {"weights": loop.size, "gradients": loop.size}
    loop.optimizer.step()
    loop.edge("optimizer", begins=False)
    assert loop.held["optimizer"] == 2 * loop.size + 2 * 4  # and a step counter for each tensor
    loop.step()
    assert loop.held.get("gradients", 0.0) == 0.0


def test_gradients_that_stay_are_still_counted(loop: Loop) -> None:
    """With accumulation, an earlier batch's gradients count as the next batch begins."""
    loop.edge("train", begins=True)
    loop.step()
    loop.backward()
    loop.edge("substep", begins=True)

    assert loop.held["gradients"] == loop.size


def test_the_hooks_of_an_optimizer_do_without_spans(loop: Loop) -> None:
    """In a loop without spans the optimizer's own hooks count gradients and states."""
    loop.backward()
    loop.attribution.optimizer_steps(loop.optimizer)
    before = dict(loop.held)
    loop.optimizer.step()
    loop.attribution.optimizer_stepped()
    stepped = dict(loop.held)
    loop.optimizer.zero_grad()
    loop.attribution.gradients_cleared()

    assert before["gradients"] == loop.size
    assert stepped["optimizer"] > 2 * loop.size
    assert stepped["weights"] == stepped["gradients"] == loop.size
    assert loop.held.get("gradients", 0.0) == 0.0


def test_counting_keeps_to_its_share(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a pass takes 20 ms, the next comes no sooner than its share of the time allows."""
    passes = []

    def slow(optimizers: Any) -> Any:
        passes.append(loop.clock.now)
        loop.clock.advance(0.02)
        return {"cpu": {"gradients": float(loop.size)}}, lambda: loop.model.weight

    monkeypatch.setattr(subject, "count_gradients", slow)
    loop.edge("train", begins=True)
    loop.backward()
    for _ in range(200):
        loop.clock.advance(1.0)
        loop.edge("optimizer", begins=True)
        loop.edge("optimizer", begins=False)

    assert passes[1] - passes[0] >= 0.02 / subject.SHARE
    assert len(passes) <= 200 * subject.SHARE / 0.02 + 2
    assert loop.held["gradients"] == loop.size


def test_a_thread_that_finds_another_counting_goes_on(loop: Loop) -> None:
    """No thread waits for another's count."""
    with loop.attribution._lock:
        loop.edge("train", begins=True)

    assert loop.held == {}


def test_a_model_that_is_gone_holds_nothing(loop: Loop) -> None:
    """After `del model` its bytes are gone at the next edge."""
    loop.edge("train", begins=True)
    assert loop.held
    del loop.model, loop.optimizer

    loop.edge("train", begins=False)

    assert set(loop.held.values()) <= {0.0}


def test_without_a_model_no_series_appear() -> None:
    """A watch without a model has no series of parts."""
    source = TensorSource()

    Attribution(source, Subjects(dict)).at_edge("cell", begins=True)

    assert source.series == ()


def test_an_unknown_optimizer_adds_its_weights(loop: Loop) -> None:
    """Before its first step, its weights and gradients are counted together."""
    source = TensorSource()
    loop.backward()

    Attribution(source, Subjects(dict)).optimizer_steps(loop.optimizer)

    assert source.counted["cpu"] == {"weights": loop.size, "gradients": loop.size}


def trained() -> tuple[Any, Any]:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_gradients_are_looked_at_only_by_the_thread_that_makes_them() -> None:
    """While the thread of an optimizer lives, no other reads its gradients, which it may free."""
    model, optimizer = trained()
    attribution = Attribution(subjects=Subjects(dict))
    attribution.optimizer_steps(optimizer)
    attribution.follow(model)

    def look() -> None:
        other_model, other = trained()
        attribution.optimizer_steps(other)
        results.append(attribution.subjects.by_thread())
        results.append(other_model)

    results: list[Any] = []
    on_threads(look)

    (here, elsewhere), _ = results
    assert [len(here), elsewhere] == [1, [optimizer]]
    assert "gradients" not in count([model], [optimizer], elsewhere).held["cpu"]
    assert attribution.subjects.by_thread()[0] == [optimizer, here[0]], "that thread is gone"


def test_optimizers_new_at_every_step_do_not_count_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """New optimizers at every step have all tensors counted a few times only."""
    now, times = [0.0], [0]

    def slow_count(*_: Any) -> Any:
        now[0] += 0.1
        times[0] += 1
        return count([], [])

    monkeypatch.setattr(subject, "count", slow_count)
    attribution = Attribution(subjects=Subjects(dict), clock=lambda: now[0])
    optimizers = []
    for _ in range(1000):
        optimizers.append(torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1))
        attribution.optimizer_steps(optimizers[-1])
        attribution.optimizer_stepped()
        now[0] += 0.001

    assert 1 <= times[0] <= 12


def test_gradients_that_were_counted_with_everything_are_known_apart(loop: Loop) -> None:
    """Gradients that a cell's edge has counted are known as there, and later as gone, to a step."""
    loop.backward()
    loop.edge("cell", begins=True)
    loop.edge("step", begins=True)
    counted = dict(loop.held)
    loop.optimizer.zero_grad()
    loop.edge("step", begins=False)

    assert counted["gradients"] == loop.size
    assert "gradients" not in loop.held


WEIGHTS = 64 * 48 * 4


def parts_of(attribution: Attribution) -> dict[str, float]:
    return dict(attribution.source.counted.get("cpu", {}))


def test_a_bucket_is_gradients_while_there_are_any_and_a_buffer_when_there_are_none() -> None:
    """A bucket is a buffer of DDP's once the gradients, which were views of it, are dropped."""
    ddp = FakeDdp(str(WEIGHTS), is_view=True)
    attribution = Attribution(subjects=Subjects(dict))
    optimizer = torch.optim.SGD(ddp.parameters(), 0.1)
    attribution.follow(ddp, optimizer)
    attribution.at_edge("cell", begins=True)
    assert parts_of(attribution)["libraries"] == WEIGHTS

    ddp.module.weight.grad = torch.ones(48, 64)
    attribution.optimizer_steps(optimizer)
    assert parts_of(attribution)["gradients"] == WEIGHTS
    assert parts_of(attribution)["libraries"] == 0

    optimizer.zero_grad()
    attribution.gradients_cleared()
    assert parts_of(attribution)["libraries"] == WEIGHTS


def test_a_wrapper_of_a_model_is_found_while_it_calls_the_model() -> None:
    """DDP around a model is found by torch's active forward pass, since the model does not know it."""
    ddp = FakeDdp()
    attribution = Attribution(subjects=Subjects(dict))
    attribution.follow(ddp.module)
    torch.nn.parallel.DistributedDataParallel._active_ddp_module = ddp
    try:
        attribution.at_edge("forward", begins=True)
    finally:
        torch.nn.parallel.DistributedDataParallel._active_ddp_module = None
    attribution.at_edge("train", begins=False)

    assert parts_of(attribution)["libraries"] == 12288
