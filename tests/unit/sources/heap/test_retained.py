"""What each group keeps alone: bytes that are free once it is gone, and nothing else's."""

import weakref
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from hfmem_widget.sources.heap import search
from hfmem_widget.sources.heap.retained import Group, reach

SIZE = 400_000


def block(count: int = 1) -> torch.Tensor:
    return torch.zeros(count * SIZE // 4)


def alone(groups: list[Group], *others: object) -> dict[Any, int]:
    found = reach(groups, others).alone
    # Lists, dicts and modules take some hundred bytes themselves.
    return {name: sum(sizes.values()) // SIZE * SIZE for name, sizes in found.items()}


def test_what_two_share_is_free_with_the_group_that_both_lie_in() -> None:
    """A tensor that two groups share is freed by letting go of what contains both."""
    shared = block()
    groups = [
        Group("both"),
        Group("a", [[shared, block(2)]], within="both"),
        Group("b", [[shared]], within="both"),
        Group("c", [block(5)]),
    ]
    assert alone(groups) == {"both": 3 * SIZE, "a": 2 * SIZE, "b": 0, "c": 5 * SIZE}


def test_what_others_reach_late_is_not_free_either() -> None:
    """What another path reaches last takes all below it out of the group, however deep."""
    shared = block()
    deep: Any = {"a": [{"b": (shared,)}]}
    far: Any = deep
    for _ in range(50):
        far = [far]
    assert alone([Group("both"), Group("a", [deep], within="both")], far) == {"both": 0, "a": 0}


def test_what_an_array_has_the_memory_of_is_not_free() -> None:
    """A tensor whose memory an array outside of the group has is not free, whichever made it."""
    tensor, array = block(), np.ones(SIZE // 4, np.float32)
    tensor_view, array_view = tensor.numpy()[10:], torch.from_numpy(array)
    groups = [Group("tensor", [tensor]), Group("of array", [array_view])]

    assert alone(groups, tensor_view, array[5:]) == {"tensor": 0, "of array": 0}
    assert alone([Group("both", [tensor, tensor_view])]) == {"both": SIZE}


def test_a_model_its_optimizer_and_its_gradients_are_told_apart() -> None:
    """The weights stay while the optimizer has them; its states go with it alone."""
    model = torch.nn.Linear(1000, 100, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    model(torch.ones(1, 1000)).sum().backward()
    optimizer.step()
    groups = [
        Group("both"),
        Group("model", [model], within="both"),
        Group("optimizer", [optimizer], within="both"),
    ]
    assert alone(groups) == {"both": 3 * SIZE, "model": 0, "optimizer": SIZE}


def test_a_graph_keeps_what_its_backward_pass_needs() -> None:
    """A loss keeps the tensors saved in its graph, besides its own bytes."""
    weight = torch.ones(SIZE // 4, requires_grad=True)
    losses = [weight.exp().sum() for _ in range(3)]
    assert alone([Group("losses", [losses])], weight) == {"losses": 3 * SIZE}


def test_what_a_users_module_holds_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor that a user's module holds too is not freed with a variable."""
    mine = ModuleType("mine_alone")
    mine.CACHE = [block()]  # type: ignore[attr-defined]  # what a user's module has
    monkeypatch.setattr(search, "user_modules", lambda: {"mine_alone": mine})
    assert alone([Group("a", [mine.CACHE[0]])]) == {"a": 0}


@pytest.mark.usefixtures("uncollected")
def test_nothing_is_left_behind() -> None:
    """A search keeps no object alive, not even until a collection."""

    class Kept:
        pass

    kept: Any = Kept()
    kept.block = block()
    reference = weakref.ref(kept)
    reach([Group("a", [[kept]])], [])
    del kept
    assert reference() is None


def test_no_code_of_an_object_is_run() -> None:
    """An object that raises when it is touched is gone through without touching it."""

    class Odd:
        def __getattribute__(self, name: str) -> Any:
            raise RuntimeError(name)

        def __eq__(self, other: object) -> bool:
            raise RuntimeError

        __hash__ = None  # type: ignore[assignment]  # as of any class with an __eq__

    odd: Any = Odd()
    object.__setattr__(odd, "kept", block())
    assert alone([Group("a", [odd])], Odd()) == {"a": SIZE}
