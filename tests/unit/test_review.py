"""What the user's own code may count on while it is watched."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

import hfmem_widget
from hfmem_widget.errors import OptionError
from hfmem_widget.forecast.fit import fit
from hfmem_widget.loading import Load, _loads
from hfmem_widget.monitor import Monitor, release_monitor, running_monitor, shared_monitor
from hfmem_widget.monitor.attribution import Attribution
from hfmem_widget.monitor.holdings import count, count_gradients
from hfmem_widget.monitor.subjects import Subjects
from hfmem_widget.monitor.watched import Watched
from hfmem_widget.optimizers import follow_optimizers
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import HELD, Device, Series, Session


def trained() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step(model, optimizer)
    return model, optimizer


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()


@pytest.fixture
def fresh() -> Iterator[Monitor]:
    """Give a monitor that has counted nothing yet, to this test alone."""
    release_monitor()
    yield shared_monitor()
    release_monitor()


@contextmanager
def swapping() -> Iterator[None]:
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        yield
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


@pytest.mark.parametrize("by_optimizer", [True, False])
def test_parameters_that_were_counted_can_be_swapped(by_optimizer: bool) -> None:
    """`torch.utils.swap_tensors`, by which DTensors move, wants no weak reference to a parameter."""
    model, optimizer = trained()
    kept = count_gradients([optimizer]) if by_optimizer else count([model], [])

    with swapping():
        model.to(torch.float64)

    assert kept is not None
    assert next(model.parameters()).dtype == torch.float64


@pytest.mark.parametrize("by_optimizer", [True, False])
def test_one_with_a_gradient_is_found_again(by_optimizer: bool) -> None:
    """The parameter that tells whether gradients are there is found by its place, and keeps nothing alive."""
    model, optimizer = trained()
    probe = count_gradients([optimizer])[1] if by_optimizer else count([model], []).probe

    assert probe().grad is not None
    optimizer.zero_grad()
    assert probe().grad is None
    optimizer.param_groups.clear()
    assert by_optimizer is (probe() is None)
    del model, optimizer
    assert probe() is None


def test_a_function_mode_of_the_users_sees_nothing_of_ours() -> None:
    """What a `TorchFunctionMode` is told of a watched step is what it is told of one that nobody watches."""

    class Told(TorchFunctionMode):  # type: ignore[misc]  # torch is not checked here
        def __init__(self) -> None:
            super().__init__()
            self.of: list[str] = []

        def __torch_function__(
            self, func: Any, _types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.of.append(str(func))
            return func(*args, **(kwargs or {}))

    def told() -> list[str]:
        _, optimizer = trained()
        with Told() as mode:
            optimizer.step()
            optimizer.zero_grad()
        return [one.partition(" at 0x")[0] for one in mode.of]

    alone = told()
    with hfmem_widget.watch(quiet=True):
        watched = told()

    assert watched == alone


def test_parameters_side_by_side_in_one_storage_are_all_counted() -> None:
    """Parameters that share a storage, as an LSTM's on a GPU, are counted one by one, and its bytes once."""
    model, flat = torch.nn.Module(), torch.zeros(1000)
    model.first, model.second = (torch.nn.Parameter(half) for half in flat.split(500))
    model.tied = torch.nn.Parameter(model.second.data)

    found = count([model], [])

    assert found.contents.parameters == 1000
    assert found.held["cpu"]["weights"] == 4000


def test_a_module_that_cannot_be_asked_costs_the_others_nothing() -> None:
    """A class with a `parameters` of its own, and a module that is half made, do not end all counting."""

    class Own(torch.nn.Module):  # type: ignore[misc]  # torch is not checked here
        def parameters(self, group: str) -> Any:
            raise AssertionError(group)

    model = Own()
    model.weight = torch.nn.Parameter(torch.zeros(10))
    half_made = torch.nn.Module.__new__(torch.nn.Module)

    found = count([half_made, model, torch.nn.Linear(10, 1, bias=False)], [])

    assert found.held["cpu"]["weights"] == 80


def test_neither_iteration_nor_fields_of_a_proxy_run() -> None:
    """A list that loads when it is iterated, and a proxy whose fields are another's, are left alone."""

    class Loads(list[object]):
        def __iter__(self) -> Iterator[object]:
            raise AssertionError

    class Proxy:
        @property
        def __dict__(self) -> Any:  # type: ignore[override]  # as werkzeug's proxies
            raise RuntimeError

    model = torch.nn.Linear(1, 1)
    subjects = Subjects(lambda: {"list": Loads([model]), "proxy": Proxy()})

    assert subjects.all() == ([model], [])


def test_large_variables_are_not_gone_through() -> None:
    """Tokenised texts, and a dict of a million, in the notebook's variables take a few milliseconds."""
    texts = [[1] * 256 for _ in range(256)]
    large = dict.fromkeys(range(1_000_000), 0)
    subjects = Subjects(lambda: {**{f"texts_{at}": texts for at in range(10)}, "large": large})
    subjects.all()

    began = time.thread_time()
    subjects.all()

    assert time.thread_time() - began < 0.1


def test_a_watch_counts_anew_however_soon_it_follows_another() -> None:
    """A model that was deleted since the last watch is not in the next one, whatever counting took."""
    model = torch.nn.Bilinear(3, 3, 3)
    with hfmem_widget.watch(model, quiet=True) as before:
        pass
    del model
    with hfmem_widget.watch(quiet=True) as after:
        pass

    assert "Bilinear" in before.contents.modules
    assert "Bilinear" not in after.contents.modules


def test_what_an_optimizer_told_ends_with_the_cell(fresh: Monitor) -> None:
    """After a loop that only its optimizer told of, the next cell has no activations: it is no step."""
    follow_optimizers()
    session = fresh.begin(WatchOptions())
    with fresh.span(session, "cell"):
        trained()
    at_end = session.latest("cpu/unattributed")
    with fresh.span(session, "cell"):
        pass

    assert at_end > 0
    assert math.isnan(session.latest("cpu/unattributed"))


def test_the_first_step_of_an_optimizer_tells_already(fresh: Monitor) -> None:
    """In a loop without spans the first step ends too, though nothing was counted before it."""
    assert fresh.attribution.source.series == ()
    with hfmem_widget.watch(quiet=True) as session:
        trained()

    assert session.latest("cpu/unattributed") > 0


def test_an_interrupt_as_gradients_are_cleared_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt while we look at gradients comes when we are done, and is not lost."""
    model, optimizer = trained()
    done = []

    def interrupted(_: Attribution) -> None:
        signal.raise_signal(signal.SIGINT)
        done.append(True)

    monkeypatch.setattr(Attribution, "gradients_cleared", interrupted)
    with hfmem_widget.watch(quiet=True), pytest.raises(KeyboardInterrupt):
        optimizer.zero_grad()

    assert done == [True]
    assert model is not None


def test_an_interrupt_as_a_load_begins_leaves_none_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """A load that is interrupted before it begins is not taken for one that runs, and keeps no session."""
    with hfmem_widget.watch(quiet=True) as session:
        monitor = running_monitor()
        assert monitor is not None
        usual = Monitor.open_span

        def interrupted(*args: Any, **kwargs: Any) -> Any:
            span = usual(*args, **kwargs)
            signal.raise_signal(signal.SIGINT)
            return span

        monkeypatch.setattr(Monitor, "open_span", interrupted)
        with pytest.raises(KeyboardInterrupt), Load(monitor, session, "load Model"):
            pass

        assert _loads == []
        assert [span.kind for span in session.open_spans] == ["block"]


def on_another_thread(do: Callable[[], object]) -> None:
    thread = threading.Thread(target=do)
    thread.start()
    thread.join()


def test_gradients_are_looked_at_only_by_the_thread_that_makes_them() -> None:
    """Of an optimizer that steps on a thread that is alive, no other looks at a gradient: it may be freed."""
    model, optimizer = trained()
    attribution = Attribution(subjects=Subjects(dict))
    attribution.optimizer_steps(optimizer)
    attribution.follow(model)

    def look() -> None:
        other_model, other = trained()
        attribution.optimizer_steps(other)
        seen.append(attribution.subjects.by_thread())
        seen.append(other_model)

    seen: list[Any] = []
    on_another_thread(look)

    (here, elsewhere), _ = seen
    assert [len(here), elsewhere] == [1, [optimizer]]
    assert "gradients" not in count([model], [optimizer], elsewhere).held["cpu"]
    assert attribution.subjects.by_thread()[0] == [optimizer, here[0]], "that thread is gone"


def test_models_may_be_trained_on_many_threads_while_one_is_watched() -> None:
    """Training on several threads under a watch neither crashes nor says a word; the sessions all end."""
    script = """
import sys, threading, time, torch, hfmem_widget
from hfmem_widget.monitor import shared_monitor
sys.setswitchinterval(1e-5)
until = time.monotonic() + 4
def train():
    while time.monotonic() < until:
        model = torch.nn.Linear(20, 20)
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(5):
            model(torch.ones(2, 20)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
threads = [threading.Thread(target=train) for _ in range(3)]
[one.start() for one in threads]
while time.monotonic() < until:
    with hfmem_widget.watch(quiet=True), hfmem_widget.watch(quiet=True, devices=["cpu"]):
        train_one = torch.nn.Linear(20, 20)
        optimizer = torch.optim.SGD(train_one.parameters())
        with hfmem_widget.span("step"):
            train_one(torch.ones(2, 20)).sum().backward()
            optimizer.step()
[one.join() for one in threads]
assert shared_monitor().current is None
"""
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=False
    )

    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_row_older_than_the_series_is_taken() -> None:
    """What was read before another thread told of new series is appended all the same."""
    session = Session()
    watched = Watched(session, WatchOptions(), 0.0)
    metrics = ("allocated", *HELD, "unattributed")
    session.adopt([Device("cpu", "host")], [Series("cpu", metric, metric) for metric in metrics])
    watched.rebase([10.0, 4.0, 0.0, 0.0, 0.0, math.nan])

    assert watched.append([10.0], 1.0).values[0] == 10.0
    assert watched.append([12.0, 4.0, 0.0, 0.0, 0.0, math.nan], 2.0).values[-1] == 6.0


def test_optimizers_that_are_new_at_every_step_do_not_count_everything_at_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An optimizer for every step, or one for each parameter, has all tensors counted a few times only."""
    now, times = [0.0], [0]

    def slow_count(*_: Any) -> Any:
        now[0] += 0.1
        times[0] += 1
        return count([], [])

    monkeypatch.setattr("hfmem_widget.monitor.attribution.count", slow_count)
    attribution = Attribution(subjects=Subjects(dict), clock=lambda: now[0])
    kept = []
    for _ in range(1000):
        kept.append(torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1))
        attribution.optimizer_steps(kept[-1])
        attribution.optimizer_stepped()
        now[0] += 0.001

    assert 1 <= times[0] <= 12


def test_a_forecast_of_any_other_module_says_what_it_is_made_for() -> None:
    """A module that is no model of transformers has no inputs that we know: the error says so."""
    with pytest.raises(
        OptionError, match="a model, or a configuration of transformers, not for Linear"
    ):
        fit(torch.nn.Linear(2, 2))
