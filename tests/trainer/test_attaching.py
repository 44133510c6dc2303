"""Trainers are followed by themselves, or get a watch of their own; nothing of ours stays when that ends."""

import functools
import multiprocessing
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
import transformers
from transformers import Trainer, TrainerCallback

import hfmem_widget
from hfmem_widget import MemoryCallback
from hfmem_widget.drivers import install as attaching
from hfmem_widget.drivers import trainer as following
from hfmem_widget.drivers.watch import Watch
from hfmem_widget.errors import OptionError
from hfmem_widget.monitor.shared import running_monitor, shared_monitor
from hfmem_widget.options import WatchOptions
from hfmem_widget.view.screen import Screen
from tests.trainer.tiny import InOrder, make_trainer, of_kind, outline, session_of

METHODS = ("train", "evaluate", "predict", "save_model")


def callbacks_of(trainer: Any) -> list[str]:
    return [type(one).__name__ for one in trainer.callback_handler.callbacks]


def test_a_trainer_built_before_is_followed(tmp_path: Path) -> None:
    """A Trainer is followed whenever it was built, since its class is."""
    attaching.detach()
    trainer = make_trainer(tmp_path)
    attaching.attach()
    assert session_of(trainer).steps.count == 2


@pytest.mark.parametrize("number", [1, 2])
def test_a_training_with_own_callbacks_is_followed_once(tmp_path: Path, number: int) -> None:
    """A callback of the user's stands in for ours, and a second one does nothing."""
    session = session_of(
        make_trainer(tmp_path, callbacks=[MemoryCallback() for _ in range(number)])
    )

    assert len(of_kind(session, "train")) == 1
    assert session.steps.count == 2


def followed() -> list[Any]:
    model, mixin = transformers.PreTrainedModel, transformers.GenerationMixin
    names: list[tuple[Any, str]] = [(Trainer, name) for name in METHODS]
    names += [(mixin, "generate"), (mixin, "_update_model_kwargs_for_generation")]
    names += [(model, "from_pretrained"), (model, "_load_pretrained_model"), (model, "__call__")]
    return [vars(owner).get(name) for owner, name in names]


def test_detaching_puts_the_original_methods_back() -> None:
    """After detaching, the functions are the very same as before; ours have the library's docstrings."""
    attaching.detach()
    originals = followed()
    for _ in range(100):
        attaching.attach()
        attaching.attach()
        ours = followed()
        attaching.detach()

    assert not any(one is other for one, other in zip(ours, originals, strict=True))
    assert all(one is other for one, other in zip(followed(), originals, strict=True))
    attaching.attach()
    loads = transformers.LlamaForCausalLM.from_pretrained
    assert loads.__doc__ == originals[-3].__func__.__doc__
    assert loads.__self__ is transformers.LlamaForCausalLM


def test_another_librarys_wrapper_survives(monkeypatch: pytest.MonkeyPatch, trainer: Any) -> None:
    """A wrapper around ours stays when we leave, and trainings are followed once when a watch is back."""
    ours = Trainer.train

    @functools.wraps(ours)
    def theirs(self: Any, *args: Any, **kwargs: Any) -> Any:
        return ours(self, *args, **kwargs)

    monkeypatch.setattr(Trainer, "train", theirs)
    attaching.detach()
    assert Trainer.train is theirs
    trainer.train()
    back = session_of(trainer)

    assert Trainer.train is theirs
    assert [span.label for span in of_kind(back, "train")] == ["train"]


@pytest.mark.parametrize("polled", [False, True], ids=["no poller", "that of the watch before"])
def test_a_training_without_a_watch_has_nothing_of_ours(
    trainer: Any, monkeypatch: pytest.MonkeyPatch, begun: list[WatchOptions], *, polled: bool
) -> None:
    """Without a watch there is no callback, no hook and no poller, though an earlier watch had one."""
    if polled:
        shared_monitor()
    seen: list[object] = []

    def look(self: Any, *args: Any, **kwargs: Any) -> Any:
        seen.extend([callbacks_of(self), dict(self.model._forward_hooks), running_monitor()])
        return original(self, *args, **kwargs)

    original = InOrder.training_step
    monkeypatch.setattr(InOrder, "training_step", look)
    trainer.train()

    assert seen[:3] == [callbacks_of(trainer), {}, None]
    assert "MemoryCallback" not in callbacks_of(trainer)
    assert begun == []


def test_all_trainings_have_its_options(trainer: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Both trainings end above the budget of the Trainer's watch, and show nothing."""
    hfmem_widget.watch(trainer, budget="1MiB", stop=True, quiet=True)
    steps = [trainer.train().global_step for _ in range(2)]

    assert steps == [1, 1]
    assert "memwatch" not in capsys.readouterr().out


def test_the_newest_options_are_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The last call of `watch` counts; a callback's label stays unless the call has another."""
    trainer = make_trainer(tmp_path, callbacks=[MemoryCallback(label="fine-tune")])
    cases: list[tuple[dict[str, Any] | None, str]] = [
        (None, 'memwatch "fine-tune"'),
        ({"quiet": True}, ""),
        ({}, 'memwatch "fine-tune"'),
        ({"label": "again"}, 'memwatch "again"'),
    ]
    for options, line in cases:
        if options is not None:
            hfmem_widget.watch(trainer, **options)
        trainer.train()
        printed = capsys.readouterr().out
        assert line in printed
        assert ("memwatch" in printed) is bool(line)
        assert running_monitor() is None
    assert callbacks_of(trainer).count("MemoryCallback") == 1


def test_a_watch_is_called_a_training(trainer: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A watch of a Trainer is called a training; as a block it has the name of the Trainer's class."""
    with hfmem_widget.watch(trainer, quiet=True) as session:
        pass
    assert session.label == "InOrder"

    hfmem_widget.watch(trainer)
    trainer.train()
    assert 'memwatch "training"' in capsys.readouterr().out


@pytest.mark.parametrize("options", [{"devices": ["zz"]}, {"interval": -1}])
def test_invalid_options_for_a_trainer_are_an_error(trainer: Any, options: dict[str, Any]) -> None:
    """Invalid options raise at once, since nobody enters the watch; the Trainer stays as it was."""
    with pytest.raises(OptionError, match=r"there is no device 'zz'|interval"):
        hfmem_widget.watch(trainer, **options)

    assert "MemoryCallback" not in callbacks_of(trainer)
    assert running_monitor() is None


def test_a_fault_of_ours_is_reported_once_and_all_steps_are_made(
    trainer: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fault of ours does not end the training."""
    with hfmem_widget.watch(quiet=True) as session:
        monkeypatch.setattr(
            shared_monitor(), "open_span", mock.Mock(side_effect=OSError("no more spans"))
        )
        trainer.train()
        monkeypatch.undo()

    assert trainer.state.global_step == 2
    assert capsys.readouterr().err.count("no more spans") == 1
    assert outline(session) == ""


def test_the_training_is_the_same_to_the_byte(tmp_path: Path) -> None:
    """Losses and weights do not depend on whether a training was watched."""
    options: dict[str, Any] = {"gradient_accumulation_steps": 2, "num_train_epochs": 3}
    logged: dict[str, Any] = {"logging_strategy": "steps", "logging_steps": 1}

    def result() -> tuple[list[Any], Any]:
        trainer = make_trainer(tmp_path, **options, **logged)
        trainer.train()
        history = trainer.state.log_history
        losses = [(entry.get("loss"), entry.get("grad_norm")) for entry in history]
        return losses, torch.nn.utils.parameters_to_vector(trainer.model.parameters())

    bare_losses, bare_weights = result()
    with hfmem_widget.watch(quiet=True):
        losses, weights = result()

    assert len(losses) == 4
    assert losses == bare_losses
    assert torch.equal(weights, bare_weights)


class TrainsByItself(InOrder):
    """Has a loop of its own, which sends the usual events."""

    def train(self, *_: Any, **__: Any) -> None:
        handler, model = self.callback_handler, self.model
        handler.on_train_begin(self.args, self.state, self.control)
        for step, batch in enumerate(self.get_train_dataloader()):
            handler.on_step_begin(self.args, self.state, self.control)
            model(**batch).loss.backward()
            self.state.global_step = step + 1
            handler.on_step_end(self.args, self.state, self.control)
        handler.on_train_end(self.args, self.state, self.control)


def test_a_train_method_of_its_own_is_followed_with_a_callback(tmp_path: Path) -> None:
    """A `train` that is not surrounded has its steps and phases from its events alone."""
    session = session_of(make_trainer(tmp_path, kind=TrainsByItself, callbacks=[MemoryCallback]))

    assert outline(session) == (
        "train\n  step 1\n    forward\n    backward\n  step 2\n    forward\n    backward"
    )


@pytest.mark.full
def test_a_callback_made_before_the_trainer_is_imported_follows_it(tmp_path: Path) -> None:
    """Without `%load_ext`, a callback follows its Trainer though that was imported later."""
    code = f"""
import sys
import hfmem_widget
callback = hfmem_widget.MemoryCallback()
before = "transformers.trainer" in sys.modules
from tests.trainer.tiny import make_trainer
from pathlib import Path
trainer = make_trainer(Path({str(tmp_path)!r}), callbacks=[callback])
with hfmem_widget.watch(quiet=True) as session:
    trainer.train()
    trainer.evaluate(trainer.train_dataset)
print(before, session.steps.count, session.spans[-1].kind)
"""
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2],
    )  # fmt: skip

    assert run.stdout.split()[-3:] == ["False", "2", "evaluate"], run.stderr


def test_a_callback_that_is_added_later_follows_its_trainer(tmp_path: Path) -> None:
    """Without `%load_ext`, a callback follows a Trainer that was built before."""
    attaching.detach()
    trainer = make_trainer(tmp_path)
    trainer.add_callback(MemoryCallback())
    with hfmem_widget.watch(quiet=True) as session:
        trainer.evaluate(trainer.train_dataset)

    assert [span.kind for span in session.spans] == ["block", "evaluate"]


def test_after_a_watch_methods_are_the_librarys_own(tmp_path: Path) -> None:
    """Without the extension and a callback of ours, methods are surrounded only during a watch."""
    attaching.detach()
    methods = [vars(Trainer)[name] for name in METHODS]
    join = torch.distributed.init_process_group
    with hfmem_widget.watch(quiet=True) as session:
        make_trainer(tmp_path).train()
        assert not hasattr(methods[0], "__wrapped__")
        assert vars(Trainer)["train"] is not methods[0]

    assert session.steps.count == 2
    assert [vars(Trainer)[name] for name in METHODS] == methods
    assert torch.distributed.init_process_group is join


def test_a_callback_of_the_users_stays_followed_beyond_a_watch(tmp_path: Path) -> None:
    """While a callback of ours exists, methods stay surrounded: a training may begin at any time."""
    attaching.detach()
    trainer = make_trainer(tmp_path, callbacks=[MemoryCallback(quiet=True)])
    with hfmem_widget.watch(quiet=True):
        make_trainer(tmp_path / "another").train()

    assert hasattr(vars(Trainer)["train"], "__wrapped__")
    assert trainer.train().global_step == 2


def test_a_training_is_followed_though_a_library_undid_its_patch_in_a_watch(tmp_path: Path) -> None:
    """A library that puts back a method of before takes ours away; the next watch surrounds it again."""
    attaching.detach()
    original = Trainer.train
    with mock.patch.object(Trainer, "train", functools.partialmethod(original)):
        watch = hfmem_widget.watch(quiet=True)
        watch.__enter__()
    watch.__exit__(None, None, None)
    session = session_of(make_trainer(tmp_path))

    assert [span.kind for span in session.spans][:2] == ["block", "train"]
    assert Trainer.train is original


class Looks(TrainerCallback):  # type: ignore[misc]  # transformers is not checked here
    """Notes who stands in the list while a training runs, and may take the first one away."""

    def __init__(self, *, takes: bool) -> None:
        self.takes = takes
        self.seen: list[str] = []

    def on_epoch_begin(self, *_: Any, **__: Any) -> None:
        self.seen = callbacks_of(self.trainer)
        if self.takes:
            del self.trainer.callback_handler.callbacks[0]


@pytest.mark.parametrize("removed", [True, False])
@pytest.mark.parametrize("own", [True, False])
def test_callbacks_stand_where_they_stood(tmp_path: Path, *, own: bool, removed: bool) -> None:
    """Our callback is the first while it follows; one that was taken away meanwhile is not put back."""
    looks = Looks(takes=removed)
    looks.trainer = trainer = make_trainer(tmp_path, callbacks=[looks, *[MemoryCallback()] * own])
    before = callbacks_of(trainer)
    others = [name for name in before if name != "MemoryCallback"]
    session_of(trainer)

    assert looks.seen == ["MemoryCallback", *others]
    assert callbacks_of(trainer) == (others if removed else before)


@pytest.mark.parametrize(("label", "named"), [("", "kept"), ("mine", "mine")])
def test_a_label_of_its_own_comes_first(label: str, named: str) -> None:
    """A callback's own label comes before that of its options; a copy has both, and no training."""
    made = MemoryCallback(log=True, label=label, options=WatchOptions(label="kept", quiet=True))
    make, args = made.__reduce__()
    copy = make(*args)

    assert isinstance(copy, MemoryCallback)
    assert (copy.log, copy.options) == (True, made.options)
    assert made.options.label == named
    assert made.options.quiet
    assert copy._run is None


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[WatchOptions]:
    """Return the options of each watch that a training begins; none of them is shown."""
    options_of_each: list[WatchOptions] = []

    def noted(options: WatchOptions, **given: Any) -> Watch:
        options_of_each.append(options)
        return Watch(replace(options, quiet=True), **(given | {"screen": Screen(None)}))

    monkeypatch.setattr(following, "Watch", noted)
    return options_of_each


@pytest.mark.parametrize(
    ("options", "is_child", "in_notebook", "quiet"),
    [
        ({}, False, False, False),
        ({}, False, True, False),
        ({}, True, False, False),
        ({}, True, True, True),
        ({"quiet": True}, False, False, True),
    ],
)
def test_only_a_notebooks_forked_children_and_quiet_callbacks_are_quiet(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    begun: list[WatchOptions],
    options: dict[str, Any],
    *,
    is_child: bool,
    in_notebook: bool,
    quiet: bool,
) -> None:
    """A notebook's forked child is quiet, since its output is dropped; a script's children print."""
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: object() if is_child else None)
    monkeypatch.setattr(following, "running_shell", lambda: object() if in_notebook else None)
    make_trainer(tmp_path, callbacks=[MemoryCallback(**options)]).train()

    assert [one.quiet for one in begun] == [quiet]


def test_a_loop_of_its_own_that_begins_anew_makes_another_attempt() -> None:
    """A loop that begins anew in the same watch is another attempt, though no event ended the first."""
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
