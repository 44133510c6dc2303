"""Which trainings get a watch of their own, and which of those say nothing."""

from __future__ import annotations

import multiprocessing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hfmem_widget
from hfmem_widget import MemoryCallback
from hfmem_widget.drivers import trainer as followed
from hfmem_widget.drivers.watch import Watch
from hfmem_widget.monitor.shared import shared_monitor
from hfmem_widget.options import WatchOptions
from hfmem_widget.view.screen import Screen
from tests.trainer.tiny import make_trainer, of_kind


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[WatchOptions]:
    """Return the options of each watch that a training begins; none of them is shown."""
    found: list[WatchOptions] = []

    def noted(options: WatchOptions, **given: Any) -> Watch:
        found.append(options)
        return Watch(replace(options, quiet=True), **(given | {"screen": Screen(None)}))

    monkeypatch.setattr(followed, "Watch", noted)
    return found


@pytest.mark.parametrize(
    ("is_child", "in_notebook", "quiet"),
    [(False, False, False), (False, True, False), (True, False, False), (True, True, True)],
)
def test_only_a_notebooks_forked_children_are_quiet(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    begun: list[WatchOptions],
    *,
    is_child: bool,
    in_notebook: bool,
    quiet: bool,
) -> None:
    """What they send to it is dropped; a script's children print, and so does whoever has no parent."""
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: object() if is_child else None)
    monkeypatch.setattr(followed, "running_shell", lambda: object() if in_notebook else None)
    make_trainer(tmp_path, callbacks=[MemoryCallback]).train()

    assert [one.quiet for one in begun] == [quiet]


def test_what_was_asked_to_be_quiet_is(tmp_path: Path, begun: list[WatchOptions]) -> None:
    """Wherever it runs."""
    callback = MemoryCallback(options=WatchOptions(quiet=True))
    make_trainer(tmp_path, callbacks=[callback]).train()

    assert [one.quiet for one in begun] == [True]


def test_between_watches_a_training_is_not_watched(trainer: Any, begun: list[WatchOptions]) -> None:
    """The poller may still be there from the last one; only a callback of the user's asks for another."""
    shared_monitor()
    trainer.train()

    assert begun == []


def test_a_loop_of_its_own_that_begins_anew_makes_another_attempt() -> None:
    """Within the watch that it has, where nothing tells that the first has ended."""
    callback = MemoryCallback()
    args = SimpleNamespace(gradient_accumulation_steps=1)
    state = SimpleNamespace(
        epoch=0.0, max_steps=4, global_step=0, num_train_epochs=1, train_batch_size=2
    )
    with hfmem_widget.watch(quiet=True) as session:
        callback.on_train_begin(args, state, None)
        state.train_batch_size = 1
        callback.on_train_begin(args, state, None)
        callback.on_train_end(args, state, None)

    labels = [one.label for one in of_kind(session, "train")]
    assert labels == ["train", "train, attempt 2, batch size 1"]
