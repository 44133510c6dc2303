"""Hooks on a model are nobody else's business: not its copies', not its files', not TorchScript's."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from hfmem_widget.drivers.training.model_hooks import ModelHooks


def saved(model: Any) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


WAYS = {
    "copy.deepcopy": copy.deepcopy,
    "copy.copy": copy.copy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "torch.save": saved,
}
FIELDS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_forward_hooks_always_called",
    "_forward_pre_hooks_with_kwargs",
)


class Averaged(torch.nn.Linear):  # type: ignore[misc]  # torch is not checked here
    """One that says by itself what a copy gets."""

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "averaged": True}


class Deep(torch.nn.Linear):  # type: ignore[misc]  # torch is not checked here
    """One that copies itself in its own way."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Deep:
        new = Deep.__new__(Deep)
        new.__dict__ = copy.deepcopy(self.__dict__, memo)
        return new


def noted(*_: object) -> None:
    """Stand for a hook of the user's."""


def hooked(model: Any, calls: list[str] | None = None) -> ModelHooks:
    calls = [] if calls is None else calls
    return ModelHooks(
        model, before=lambda _: calls.append("before"), after=lambda _: calls.append("after")
    )


def hooks_of(model: Any) -> list[int]:
    return [len(getattr(model, field)) for field in FIELDS]


KINDS: dict[str, Callable[[], Any]] = {
    "plain": lambda: torch.nn.Linear(2, 2),
    "state of its own": lambda: Averaged(2, 2),
    "compiled": lambda: torch.compile(torch.nn.Linear(2, 2), backend="eager"),
    "within another": lambda: torch.nn.Sequential(torch.nn.Linear(2, 2)),
}


@pytest.fixture(params=KINDS)
def model(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Return a module that has hooks until the test ends."""
    one = KINDS[request.param]()
    hooks = hooked(one[0] if request.param == "within another" else one)
    yield one
    hooks.remove()


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_copy_has_none_of_our_hooks(model: Any, way: Callable[[Any], Any]) -> None:
    """A copy has no hook of ours, however it is made, and the model keeps its hooks."""
    with_hooks = [hooks_of(one) for one in model.modules()]
    copied = way(model)

    # A shallow copy has the very same modules within it.
    new = [one for one in copied.modules() if all(one is not own for own in model.modules())]

    assert [hooks_of(one) for one in new] == [[0, 0, 0, 0]] * len(new)
    assert [hooks_of(one) for one in model.modules()] == with_hooks
    assert max(with_hooks) == [1, 1, 1, 1]
    # A class with a `__getstate__` of its own is asked as ever.
    assert not isinstance(model, Averaged) or copied.averaged


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_copy_has_the_users_hooks(way: Callable[[Any], Any]) -> None:
    """A copy has the user's hooks from before and after ours, with torch's entries for them."""
    model = torch.nn.Linear(2, 2)
    model.register_forward_hook(noted, always_call=True)
    hooks = hooked(model)
    model.register_forward_pre_hook(noted, with_kwargs=True)
    copied = way(model)
    hooks.remove()

    assert hooks_of(copied) == hooks_of(model) == [1, 1, 1, 1]


def test_a_pass_begins_before_what_other_hooks_do() -> None:
    """Our hook runs before others, such as FSDP's, which gathers parameters."""
    calls: list[str] = []
    model = torch.nn.Linear(2, 2)
    model.register_forward_pre_hook(lambda *_: calls.append("theirs"), prepend=True)
    hooks = hooked(model, calls)
    model(torch.ones(1, 2))
    hooks.remove()

    assert calls == ["before", "theirs", "after"]


def test_a_class_that_copies_itself_gets_hooks_that_do_nothing() -> None:
    """What goes past pickling cannot be kept from the hooks, but tells us nothing."""
    calls: list[str] = []
    model = Deep(2, 2)
    hooks = hooked(model, calls)
    copied = copy.deepcopy(model)
    copied(torch.ones(1, 2))
    hooks.remove()

    assert calls == []


def test_the_last_hooks_to_go_leave_torch_as_it_was() -> None:
    """Without hooks of ours, torch copies and scripts modules by its own functions again."""
    recursive = torch.jit._recursive
    usual = torch.nn.Module.__getstate__, recursive.create_script_module
    one, other = hooked(torch.nn.Linear(2, 2)), hooked(torch.nn.Linear(2, 2))
    one.remove()
    assert torch.nn.Module.__getstate__ is not usual[0]
    other.remove()
    other.remove()

    assert (torch.nn.Module.__getstate__, recursive.create_script_module) == usual


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")  # since torch 2.15
@pytest.mark.parametrize("script", [True, False], ids=["script", "trace"])
def test_a_model_with_hooks_becomes_torchscript(*, script: bool) -> None:
    """A model with hooks can be scripted and traced, also as a part of another."""
    calls: list[str] = []
    model = torch.nn.Linear(2, 2)
    whole = torch.nn.Sequential(model)
    hooks = hooked(model, calls)
    batch = torch.ones(1, 2)
    for one in (model, whole):
        scripted = torch.jit.script(one) if script else torch.jit.trace(one, batch)
        calls.clear()
        assert torch.equal(scripted(batch), model.forward(batch))
        assert calls == []
    model(batch)
    hooks.remove()

    assert calls == ["before", "after"]
