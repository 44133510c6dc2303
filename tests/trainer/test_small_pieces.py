"""What the callback does step by step, with nothing behind it: no Trainer, no monitor, no model."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from hfmem_widget.drivers import trainer as followed
from hfmem_widget.drivers.trainer import MemoryCallback, _epochs_of, _Following
from hfmem_widget.options import WatchOptions


class Run:
    """Stands for a training that is followed; keeps what it was told."""

    def __init__(self, *, alive: bool = True, evaluating: bool = False) -> None:
        self.told: list[Any] = []
        self.alive = alive
        self.evaluating = evaluating
        self.is_elsewhere = False
        self.session = SimpleNamespace()

    def __getattr__(self, name: str) -> Any:
        def tell(*args: Any) -> dict[str, float]:
            self.told.append((name, *args))
            return {}

        return tell

    def names(self) -> list[str]:
        return [one[0] for one in self.told]


def state(**more: Any) -> SimpleNamespace:
    usual = {
        "epoch": 0,
        "max_steps": 10,
        "global_step": 3,
        "num_train_epochs": 2,
        "log_history": [],
    }
    return SimpleNamespace(**{**usual, **more})


@pytest.fixture
def callback() -> MemoryCallback:
    made = MemoryCallback()
    made._run = Run()  # type: ignore[assignment]
    return made


def run_of(callback: MemoryCallback) -> Run:
    return callback._run  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("epochs", "told"),
    [(-1, 0), (0, 0), (0.5, 0.5), (1, 1), (999_999, 999_999), (1_000_000, 0), (9_999_999_999, 0)],
)
def test_of_a_training_in_steps_no_epochs_are_told(epochs: float, told: float) -> None:
    """It then has as many as a word can hold."""
    assert _epochs_of(state(num_train_epochs=epochs)) == told


@pytest.mark.parametrize(("epochs", "label"), [(2, "epoch 1 of 2"), (10**9, "epoch 1")])
def test_epochs_are_counted(callback: MemoryCallback, epochs: int, label: str) -> None:
    """From one on, and of how many where that is known."""
    callback.on_epoch_begin(None, state(num_train_epochs=epochs), None)
    callback.on_epoch_end()
    callback.on_epoch_begin(None, state(num_train_epochs=epochs), None)

    assert run_of(callback).told == [
        ("epoch_begins", label),
        ("epoch_ended",),
        ("epoch_begins", label.replace("1", "2", 1)),
    ]


def test_each_part_of_a_step_is_passed_on(callback: MemoryCallback) -> None:
    """In the order in which a Trainer tells of them; a step has the number that it will have."""
    callback.on_step_begin(None, state(), None)
    callback.on_substep_end()
    callback.on_pre_optimizer_step()
    callback.on_optimizer_step()

    assert run_of(callback).told == [
        ("step_begins", 4), ("substep_ended",), ("optimizer_begins",), ("optimizer_ended",)
    ]  # fmt: skip


def test_without_a_training_nothing_is_passed_on() -> None:
    """As of a Trainer that another callback follows."""
    callback = MemoryCallback()
    control = object()
    for tell in (callback.on_epoch_end, callback.on_substep_end, callback.on_optimizer_step):
        tell()
    callback.on_step_begin(None, state(), None)
    callback.on_epoch_begin(None, state(), None)
    callback.on_train_end()

    assert callback.on_step_end(None, state(), control) is control
    assert callback._run is None


@pytest.mark.parametrize(
    ("step", "most", "world", "is_last", "alone"),
    [
        (9, 10, 1, False, True),
        (10, 10, 1, True, True),
        (11, 10, 2, True, False),
        (5, 0, 1, False, True),
        (5, -1, 0, False, False),
    ],
)
@pytest.mark.parametrize("ends", [True, False])
def test_a_training_is_ended_where_that_was_asked_for(
    callback: MemoryCallback, monkeypatch: pytest.MonkeyPatch,
    step: int, most: int, world: int, *, is_last: bool, alone: bool, ends: bool,
) -> None:  # fmt: skip
    """It is saved first; whoever decides knows the step, whether it is the last, and whether others train."""
    asked: list[Any] = []

    def should_end(at: int, **more: bool) -> bool:
        asked.append((at, more))
        return ends

    monkeypatch.setattr("hfmem_widget.monitor.ending.asked", [should_end])
    control = SimpleNamespace(should_save=False, should_training_stop=False)
    args = SimpleNamespace(world_size=world)
    callback.on_step_end(args, state(max_steps=most, global_step=step), control)

    assert asked == [(step, {"alone": alone, "is_last": is_last})]
    assert (control.should_save, control.should_training_stop) == (ends, ends)
    assert run_of(callback).names() == ["step_ended"]


@pytest.mark.parametrize(
    ("attempts", "size", "label"),
    [(0, None, "train"), (1, None, "train, attempt 2"), (2, 8, "train, attempt 3, batch size 8")],
)
def test_attempts_are_told_from_the_second_on(
    callback: MemoryCallback, attempts: int, size: int | None, label: str
) -> None:
    """With the batch size that is tried; what a resumed training has behind it counts."""
    callback._attempts = attempts
    callback._trainer = SimpleNamespace(model_wrapped=None)
    given = state(epoch=1.7, train_batch_size=size)
    callback.on_train_begin(None, given, None, model="model", optimizer="optimizer")
    (follow, begins) = run_of(callback).told

    assert follow == ("follow", "model", "optimizer")
    assert begins == ("train_begins", label, {"steps": 10.0, "done_before": 3.0, "epochs": 2.0})
    assert callback._epochs == 1
    assert callback._hooks is None


def test_a_training_in_steps_counts_no_epochs(callback: MemoryCallback) -> None:
    """Nor says how many there are."""
    callback._trainer = SimpleNamespace()
    callback.on_train_begin(None, state(num_train_epochs=10**10), None)

    assert run_of(callback).told[-1][2] == {"steps": 10.0, "done_before": 3.0}


@pytest.mark.parametrize("has_trainer", [True, False])
def test_the_end_of_a_training_ends_what_nothing_else_will(
    callback: MemoryCallback, *, has_trainer: bool
) -> None:
    """Where its `train` is surrounded, that goes on until it has returned."""
    run = run_of(callback)
    callback._trainer = object() if has_trainer else None
    callback.on_train_end()

    assert run.names() == ["ended"]
    assert (callback._run is None) is not has_trainer
    assert run.told[0] == (("ended",) if has_trainer else ("ended", "done"))


@pytest.mark.parametrize(
    ("log", "logs", "history", "asked"),
    [
        (True, {"loss": 1.0}, [{"loss": 1.0}], [("take_figures", "step")]),
        (True, {"loss": 1.0}, [], [("take_figures", "step")]),
        (True, None, [], []),
        (False, {"loss": 1.0}, [{}], []),
    ],
)
def test_figures_are_added_to_logs_where_that_is_wanted(
    callback: MemoryCallback, log: bool, logs: Any, history: list[Any], asked: list[Any]
) -> None:
    """And nowhere else."""
    callback.log = log
    callback.on_log(None, state(log_history=history), None, logs)

    assert run_of(callback).told == asked


class Given:
    """A Trainer as far as its callbacks are concerned."""

    def __init__(self, *callbacks: Any) -> None:
        self.callback_handler = SimpleNamespace(callbacks=[*callbacks])
        self.args = SimpleNamespace(gradient_accumulation_steps=1)


@pytest.mark.parametrize("removed", [True, False])
@pytest.mark.parametrize("own", [True, False])
def test_callbacks_stand_where_they_stood(*, own: bool, removed: bool) -> None:
    """Ours is the first while it follows; one that somebody took away meanwhile is not put back."""
    ours = MemoryCallback(options=WatchOptions(quiet=True))
    trainer = Given("a", *([ours] if own else []), "b")
    callbacks = trainer.callback_handler.callbacks
    before = [*callbacks]
    following = _Following(trainer, callbacks, ours if own else None)
    following._callback.begins = lambda *_, **__: None  # type: ignore[method-assign]
    with following:
        assert isinstance(callbacks[0], MemoryCallback)
        assert callbacks[1:] == ["a", "b"]
        if removed:
            del callbacks[0]

    assert callbacks == (["a", "b"] if removed else before)


def test_nothing_surrounds_a_training_that_nobody_watches() -> None:
    """Without a callback of ours, and without a watch."""
    trainer = Given("a")

    assert isinstance(followed._training(trainer), nullcontext)
    assert isinstance(followed._aside(trainer, "evaluate"), nullcontext)
    assert followed.callback_of(trainer) is None


def test_of_several_callbacks_of_ours_the_first_follows() -> None:
    """The others are told nothing."""
    first, second = MemoryCallback(), MemoryCallback()

    assert followed.callback_of(Given("a", first, second)) is first


@pytest.mark.parametrize(("elsewhere", "same"), [(True, True), (True, False), (False, True)])
def test_a_second_training_in_one_session_is_noted(
    monkeypatch: pytest.MonkeyPatch, *, elsewhere: bool, same: bool
) -> None:
    """One on another thread, in the same session: their spans would end each other."""
    run = Run()
    run.is_elsewhere = elsewhere
    session: Any = run.session if same else object()
    monitor: Any = SimpleNamespace(recorder=lambda _: SimpleNamespace(note=run.told.append))
    monkeypatch.setattr(followed, "_runs", {"x": run})

    assert followed._trains_elsewhere(monitor, session) is (elsewhere and same)
    assert run.told == ([followed.AT_ONCE_NOTE] if elsewhere and same else [])


@pytest.mark.parametrize(("label", "named"), [("", "kept"), ("mine", "mine")])
def test_a_label_of_its_own_comes_first(label: str, named: str) -> None:
    """Before that of the options; a copy has both, and no part in the training."""
    made = MemoryCallback(log=True, label=label, options=WatchOptions(label="kept", quiet=True))
    make, args = made.__reduce__()
    copy = make(*args)

    assert isinstance(copy, MemoryCallback)
    assert (copy.log, copy.options) == (True, made.options)
    assert made.options.label == named
    assert made.options.quiet
    assert copy._run is None


def test_a_monitor_that_watches_nothing_is_no_reason_to_follow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A Trainer without a callback of ours is followed in a watch, and has none of its own."""
    monkeypatch.setattr(followed, "running_monitor", lambda: SimpleNamespace(current=None))
    callback = MemoryCallback()
    callback.begins(object(), SimpleNamespace(gradient_accumulation_steps=2), may_watch=False)

    assert callback._run is None
    assert callback._watch is None
