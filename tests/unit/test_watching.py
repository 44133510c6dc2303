"""What `hfmem_widget.watch` takes besides a label."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

import hfmem_widget
from hfmem_widget.errors import OptionError
from hfmem_widget.monitor import running_monitor
from hfmem_widget.watching import read_once


@pytest.fixture
def model() -> torch.nn.Module:
    return torch.nn.Linear(8, 8)


def test_every_forward_pass_of_a_watched_model_is_a_span(model: torch.nn.Module) -> None:
    """With its samples, in order, and of that model alone."""
    other = torch.nn.Linear(8, 8)
    with hfmem_widget.watch(model, quiet=True) as session:
        for samples in (2, 3):
            model(other(torch.zeros(samples, 8)))

    assert session.label == "Linear"
    assert [(span.kind, span.counts) for span in session.spans[1:]] == [
        ("forward", {"samples": 2.0}),
        ("forward", {"samples": 3.0}),
    ]


def test_the_model_is_let_go(model: torch.nn.Module) -> None:
    """After the block nothing of ours is on it, also after an error in a forward pass."""
    with pytest.raises(RuntimeError), hfmem_widget.watch(model, quiet=True) as session:
        model(torch.zeros(2, 3))

    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    assert session.spans[1].stop is not None


def test_copies_of_a_watched_model_are_not_watched(model: torch.nn.Module) -> None:
    """A copy, or one that went through a file, runs and leaves no span."""
    with hfmem_widget.watch(model, quiet=True) as session:
        copy.deepcopy(model)(torch.zeros(2, 8))
        pickle.loads(pickle.dumps(model))(torch.zeros(2, 8))

    assert len(session.spans) == 1


def test_results_are_the_same_as_without_us(model: torch.nn.Module) -> None:
    """Bit for bit."""
    batch = torch.randn(4, 8)
    bare = model(batch)
    with hfmem_widget.watch(model, quiet=True):
        watched = model(batch)

    assert torch.equal(bare, watched)


def test_a_label_may_be_given_either_way(model: torch.nn.Module) -> None:
    """As the subject itself, or beside it."""
    labels = []
    for watch in (
        hfmem_widget.watch("one", quiet=True),
        hfmem_widget.watch(label="two", quiet=True),
        hfmem_widget.watch(model, label="three", quiet=True),
    ):
        with watch as session:
            labels.append(session.spans[0].label)

    assert labels == ["one", "two", "three"]


def test_anything_else_is_an_error_that_says_what_is_allowed() -> None:
    """Before anything is watched."""
    with pytest.raises(OptionError, match="a label, a torch module or a Trainer, not int"):
        hfmem_widget.watch(7)


def test_everything_can_be_read_once() -> None:
    """A reading of now is a session that has ended, with its figures, and nothing goes on."""
    session = read_once()

    assert not session.running
    assert session.latest("cpu/allocated") > 0
    assert session.anatomy("now", "cpu").allocated == session.latest("cpu/allocated")
    assert running_monitor() is None


def test_a_model_and_its_optimizer_are_counted_from_the_start(model: torch.nn.Module) -> None:
    """`watch(model, optimizer)` tells weights and states before any step is made."""
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()

    with hfmem_widget.watch(model, optimizer, quiet=True) as session:
        before = session.spans[0].before

    states = sum(one.nbytes for state in optimizer.state.values() for one in state.values())
    assert session.value(before, "cpu/weights") >= sum(one.nbytes for one in model.parameters())
    assert session.value(before, "cpu/optimizer") >= states
