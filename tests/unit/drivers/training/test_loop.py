"""Loops that nobody names: their steps and phases, and what following them leaves."""

import gc
import math
import weakref
from collections.abc import Callable

import pytest
import torch

import hfmem_widget
from hfmem_widget.drivers.training import loop as following
from hfmem_widget.drivers.training import models
from hfmem_widget.monitor import grouping
from hfmem_widget.session import Session
from tests.data.loops import (
    LOOPS,
    STEP,
    accumulated,
    adam,
    batches,
    cleared_last,
    in_the_backward_pass,
    loss_of,
    model_of,
    of_two_heads,
    of_two_players,
    outlined,
    usual,
    with_a_closure,
    with_adam,
    within_another,
)
from tests.data.threads import on_threads


@pytest.fixture(autouse=True)
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each step followed by itself, however busy the machine is."""
    gc.collect()  # models of other tests are models, too
    monkeypatch.setattr(grouping, "ALLOWANCE", 1e9)
    monkeypatch.setattr(models, "SHARE", 1e9)


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_a_loop_has_its_steps_and_phases(loop: Callable[[], list[float]]) -> None:
    """A loop has steps and phases without a word from the user, and its losses are those of the bare loop."""
    losses = loop()
    with hfmem_widget.watch(quiet=True) as session:
        watched = loop()

    assert outlined(session) == LOOPS[loop].strip()
    assert watched == losses


def test_a_loop_whose_optimizer_was_there_has_its_first_step() -> None:
    """A loop over a model from before the watch has its first step, too."""
    model, optimizer = with_adam(8, 8, 1)
    with hfmem_widget.watch(model, optimizer, quiet=True) as session:
        usual(model, optimizer.step, optimizer.zero_grad)

    assert outlined(session) == f"{STEP} {STEP}"
    assert [group.samples for group in session.steps] == [4.0, 4.0]


def test_after_the_watch_torch_and_the_model_are_as_before() -> None:
    """No hook and no function of ours is left, and the model is not kept."""
    places = [
        (torch.autograd, "backward"),
        *((torch.optim.Optimizer, name) for name in ("__init__", "zero_grad")),
        *((torch.nn.Module, name) for name in ("zero_grad", "named_parameters", "__getstate__")),
    ]
    before = [getattr(owner, name, None) for owner, name in places]
    model, optimizer = with_adam(8, 8, 1)
    with hfmem_widget.watch(quiet=True):
        usual(model, optimizer.step, optimizer.zero_grad, count=1)
        loss_of(model, batches(1)[0]).backward()
        assert model._forward_pre_hooks
    reference = weakref.ref(model)

    assert [getattr(owner, name, None) for owner, name in places] == before
    assert not model._forward_pre_hooks
    assert not model._forward_hooks
    del model, optimizer
    gc.collect()
    assert reference() is None


def test_an_error_in_a_step_is_the_steps() -> None:
    """A step that fails has its number and the error as its outcome."""
    model, optimizer = with_adam(8, 1)
    with pytest.raises(RuntimeError), hfmem_widget.watch(quiet=True) as session:  # noqa: PT012
        optimizer.zero_grad()
        loss_of(model, batches(1)[0]).backward()
        optimizer.step()
        model(torch.ones(3, 3))

    failed = [span for span in session.spans if span.kind == "step"][-1]
    assert (failed.label, failed.outcome) == ("step 2", "raised RuntimeError")


def test_what_no_optimizer_ends_is_no_step() -> None:
    """Forward passes after the last step, with gradients, are a block once the watch has ended."""
    with hfmem_widget.watch(quiet=True) as session:
        model, optimizer = with_adam(8, 1)
        loss_of(model, batches(1)[0]).backward()
        optimizer.step()
        loss_of(model, batches(1)[0])

    assert outlined(session) == f"{STEP} block(forward)"
    assert session.steps.count == 1


def test_the_users_own_steps_are_the_steps() -> None:
    """Where the user names steps, none is added."""
    with hfmem_widget.watch(quiet=True) as session:
        model, optimizer = with_adam(8, 1)
        for batch in batches():
            with hfmem_widget.span("step"):
                loss_of(model, batch).backward()
                optimizer.step()

    assert outlined(session) == "step step"


def test_another_threads_loop_is_none_of_this_one() -> None:
    """A loop on a second thread adds nothing to the steps of the first."""
    with hfmem_widget.watch(quiet=True) as session:
        model, optimizer = with_adam(8, 1)
        for batch in batches():
            loss_of(model, batch).backward()
            on_threads(cleared_last)
            optimizer.step()

    assert outlined(session) == f"{STEP} {STEP}"


SEVERAL = [of_two_heads, of_two_players, in_the_backward_pass, within_another, accumulated]


def grouped(
    monkeypatch: pytest.MonkeyPatch,
    least: float,
    most: float,
    *,
    optimizers: int = 1,
    every: int = 1,
    meanwhile: Callable[[], object] = lambda: None,
) -> Session:
    """Return the session of a loop of 20 steps whose groups last so many seconds.

    Each optimizer steps in one of `every` as many batches as the one before.
    """
    limits = {"ALLOWANCE": 0.0, "SHARE": 1e-9, "LEAST_GROUP": least, "MOST_GROUP": most}
    for name, value in limits.items():
        monkeypatch.setattr(grouping, name, value)
    with hfmem_widget.watch(quiet=True) as session:
        models = [model_of(8, 1) for _ in range(optimizers)]
        adams = [adam(model) for model in models]
        for at, batch in enumerate(batches(20)):
            torch.stack([loss_of(model, batch) for model in models]).sum().backward()
            meanwhile()
            for place, optimizer in enumerate(adams):
                if at % every**place == 0:
                    optimizer.step()
                    optimizer.zero_grad()
    return session


def test_a_group_of_steps_has_no_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group has no number of samples, since only its first batch would be seen."""
    session = grouped(monkeypatch, 1e9, 1e9)

    samples = [group.samples for group in session.steps if group.last > group.first]
    assert samples
    assert all(map(math.isnan, samples))


def test_a_group_counts_the_steps_of_its_own_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group does not count the steps of another thread's loop."""
    session = grouped(monkeypatch, 1e9, 1e9, meanwhile=lambda: on_threads(cleared_last))

    assert session.steps.count == 20


@pytest.mark.parametrize(("least", "most"), [(0.0, 0.0), (0.0, 1e9), (1e9, 1e9)])
def test_very_short_steps_are_counted_in_groups(
    monkeypatch: pytest.MonkeyPatch, least: float, most: float
) -> None:
    """Every short step counts, also in a group that is open at the end, and each group has a peak."""
    session = grouped(monkeypatch, least, most)

    assert session.steps.count == [group.last for group in session.steps][-1] == 20
    assert all("cpu" in group.devices for group in session.steps)
    assert not following.in_group()


def test_several_passes_of_a_batch_leave_its_samples_unknown() -> None:
    """A step whose batch has several passes has no samples, since these may be of the same rows."""
    with hfmem_widget.watch(quiet=True) as session:
        model, optimizer = with_adam(8, 8, 1)
        for batch in batches(4):
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            if session.steps.count % 2:
                loss = loss + loss_of(model, batch)
            loss.backward()
            optimizer.step()

    assert [group.samples == 4.0 for group in session.steps] == [True, False, True, False]


def test_the_passes_of_a_closure_have_one_batch() -> None:
    """It is called again with the rows that it had, so they are counted once or not at all."""
    with hfmem_widget.watch(quiet=True) as session:
        with_a_closure()

    assert not any(group.samples > 4.0 for group in session.steps)


def test_a_step_of_several_passes_is_the_first_one_too() -> None:
    """Its optimizer was there before, as in a notebook, so that they may have been an evaluation's.

    Those before the first backward pass are a block, of which nothing is said but that.
    """
    model, optimizer = with_adam(8, 8, 1)
    with hfmem_widget.watch(model, optimizer, quiet=True) as session:
        for batch in batches(3):
            (loss_of(model, batch) + loss_of(model, batch)).backward()
            optimizer.step()
            optimizer.zero_grad()

    steps = [span for span in session.spans if span.kind == "step"]
    assert [span.label for span in steps] == ["step 1", "step 2", "step 3"]
    assert [span.label for span in session.spans if span.kind == "block"][1:] == [
        "outside of steps"
    ]
    assert outlined(session, steps[1].id) == "forward backward optimizer"


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("seconds", [0.0, 1e9])
def test_a_steps_optimizers_are_one_step_in_a_group_too(
    monkeypatch: pytest.MonkeyPatch, seconds: float, every: int
) -> None:
    """That holds where the first step alone had a span, ended by one of them, and where one steps rarely."""
    session = grouped(monkeypatch, seconds, seconds, optimizers=2, every=every)

    assert session.steps.count == [group.last for group in session.steps][-1] == 20


@pytest.mark.parametrize("loop", SEVERAL)
def test_a_loop_has_as_many_steps_in_groups(
    monkeypatch: pytest.MonkeyPatch, loop: Callable[[], list[float]]
) -> None:
    """However its optimizers step, its steps are those that it has one by one."""
    monkeypatch.setattr(grouping, "ALLOWANCE", 0.0)
    monkeypatch.setattr(grouping, "LEAST_GROUP", 1e9)
    with hfmem_widget.watch(quiet=True) as session:
        loop()

    assert session.steps.count == f" {LOOPS[loop]}".count(" step(")


def test_models_that_are_trained_by_turns_have_their_forward_passes() -> None:
    """The first step is that of one of them, and says nothing of how the other is called."""
    with hfmem_widget.watch(quiet=True) as session:
        both = [with_adam(8, 8, 1) for _ in range(2)]
        for batch in batches():
            for model, optimizer in both:
                loss_of(model, batch).backward()
                optimizer.step()

    assert outlined(session) == " ".join([STEP] * 4)


def test_a_batch_that_failed_and_is_tried_again_belongs_to_the_step() -> None:
    """The step goes on with the next forward pass, as after an out-of-memory error."""
    with hfmem_widget.watch(quiet=True) as session:
        model, optimizer = with_adam(8, 1)
        for batch in batches(3):
            if session.steps.count == 1:
                with pytest.raises(RuntimeError):
                    model(torch.ones(3, 3))
            loss_of(model, batch).backward()
            optimizer.step()

    assert outlined(session) == " ".join([STEP] * 3)


def test_a_step_may_have_any_number_of_passes() -> None:
    """A step has as many passes as an episode has actions, which is known from the third step on."""
    model, optimizer = with_adam(8, 1)
    with hfmem_widget.watch(model, optimizer, quiet=True) as session:
        for _ in range(4):
            torch.stack([loss_of(model, batch) for batch in batches(12)]).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    assert session.steps.count == 4
    assert outlined(session).endswith(f" {STEP} {STEP}")
