"""Names that memory has grown behind, by what each of them held when the watch began."""

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

from hfmem_widget.features.leaks.who_added import Before, growers
from hfmem_widget.sources.heap import search
from hfmem_widget.sources.heap.model import Holder, Holders
from hfmem_widget.sources.heap.roots import NotedNames, lengths_of
from hfmem_widget.sources.heap.scan import scan
from hfmem_widget.text import MIB

LARGE = 2**18
"""Of these float32 are a MiB."""

Names = dict[str, Any]


def tensors(count: int) -> list[torch.Tensor]:
    return [torch.ones(LARGE) for _ in range(count)]


@pytest.fixture(autouse=True)
def of_variables_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the modules of the tests."""
    monkeypatch.setattr(search, "user_modules", dict)


class Watched:
    """Some variables, with what was noted of them."""

    def __init__(self, variables: Names, **bounds: Any) -> None:
        self.variables = variables
        self._names, self._lengths = NotedNames(variables), lengths_of(variables)
        self._held = scan(variables, **bounds)

    def named(self, growth: float, freed: float = 0) -> tuple[list[str], list[str]]:
        """Return the names given for some MiB, and the possible ones."""
        new = self._names.new(self.variables)
        added = {
            name: 1 - self._lengths[name] / max(length, 1)
            for name, length in lengths_of(self.variables).items()
            if name in self._lengths and name not in new
        }
        before = Before(self._held, new, added, freed * MIB)
        sure, possible = growers(scan(self.variables).of("cpu"), before, growth * MIB)
        return [row.path for row, _ in sure], [row.path for row, _ in possible]


def trained() -> SimpleNamespace:
    model = torch.nn.Linear(256, 1024, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(1, 256)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return SimpleNamespace(model=model, optimizer=optimizer)


MAKE: dict[str, Callable[[], Any]] = {
    "a tensor": lambda: torch.ones(LARGE),
    "a tensor with its graph": lambda: torch.exp(torch.ones(LARGE, requires_grad=True) * 2),
    "an array": lambda: np.ones(LARGE, np.float32),
    "a data frame": lambda: pd.DataFrame(np.ones((LARGE // 64, 64), np.float32)),
    "a series": lambda: pd.Series(np.ones(LARGE, np.float32)),
    "a table of Arrow": lambda: pa.table({"x": pa.array(np.arange(LARGE, dtype=np.float32))}),
    "a frame of polars": lambda: pl.DataFrame({"x": np.arange(LARGE, dtype=np.float32)}),
    "a module": lambda: torch.nn.Linear(256, 1024, bias=False),
    "an optimizer": lambda: trained().optimizer,
    "a Trainer-like object": trained,
    "a dict of tensors": lambda: {"logits": torch.ones(LARGE // 2), "loss": torch.ones(LARGE // 2)},
    "a tuple of arrays": lambda: (np.ones(LARGE // 2, np.float32), np.ones(LARGE // 2, np.float32)),
}


@pytest.mark.parametrize("kind", MAKE)
def test_a_list_of_anything_that_grew_is_named(kind: str) -> None:
    """A list of the same size and kind that did not change is not named."""
    make = MAKE[kind]
    watched = Watched({"older": [make() for _ in range(10)], "kept": []})
    before = scan(watched.variables).explained()["cpu"]
    watched.variables["kept"] += [make() for _ in range(10)]
    grown = scan(watched.variables).explained()["cpu"] - before

    (name,), others = watched.named(grown / MIB)

    assert name.startswith("kept")
    assert others == []


@pytest.mark.parametrize("kind", MAKE)
def test_an_older_one_that_was_not_touched_is_never_named(kind: str) -> None:
    """It is not named even if it is the only name, and as large as the growth."""
    make = MAKE[kind]
    assert Watched({"older": [make() for _ in range(10)]}).named(10) == ([], [])


CONTAINERS: dict[str, tuple[Callable[[], Any], Callable[[Any, int, Any], Any]]] = {
    "a dict": (dict, lambda kept, number, held: kept.update({number: held})),
    "a deque": (deque, lambda kept, _, held: kept.append(held)),
    "a set": (set, lambda kept, _, held: kept.add(held)),
    "a list in an object": (
        lambda: SimpleNamespace(history=[]),
        lambda kept, _, held: kept.history.append(held),
    ),
    "lists in a dict": (
        lambda: {f"layers.{layer}": [] for layer in range(4)},
        lambda kept, number, held: kept[f"layers.{number % 4}"].append(held),
    ),
    "a list in a dict": (
        lambda: {"outputs": []},
        lambda kept, _, held: kept["outputs"].append(held),
    ),
}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_growth_in_any_container_is_named(kind: str) -> None:
    """The name is that of the container, with several of its rows together."""
    make, add = CONTAINERS[kind]
    watched = Watched({"older": tensors(16), "kept": make()})
    for number, tensor in enumerate(tensors(16)):
        add(watched.variables["kept"], number, tensor)

    (name,), _ = watched.named(14)

    assert name.startswith("kept")


def test_a_list_with_replaced_items_has_not_grown() -> None:
    """A ring of the newest items holds as much as before."""
    watched = Watched({"ring": deque(tensors(20), maxlen=20), "kept": []})
    for name in ("ring", "kept"):
        watched.variables[name].extend(tensors(20))

    assert watched.named(18) == (["kept[0..19]"], [])


CHANGES: dict[str, tuple[dict[str, int], Callable[[Names], object], list[str], list[str]]] = {
    "an older list": (
        {"data": 90, "kept": 0}, lambda now: now["data"].extend(tensors(20)), ["data[0..109]"], [],
    ),
    "two that each hold a share": (
        {}, lambda now: now.update(a=tensors(10), b=tensors(10)), ["a[0..9]", "b[0..9]"], [],
    ),
    "two that each explain it": (
        {}, lambda now: now.update(a=tensors(22), b=tensors(20)), [], ["a[0..21]", "b[0..19]"],
    ),
    "one that was bound anew": ({"a": 20}, lambda now: now.update(a=tensors(20)), ["a[0..19]"], []),
}  # fmt: skip
"""Numbers of tensors in each list before, the cell's change, and the certain and the possible names."""


@pytest.mark.parametrize("name", CHANGES)
def test_lists_are_named_for_their_growth(name: str) -> None:
    """What they held before does not count; of two that may be loaded data, neither is certain."""
    before, change, sure, possible = CHANGES[name]
    watched = Watched({label: tensors(count) for label, count in before.items()})
    change(watched.variables)

    assert watched.named(18) == (sure, possible)


def test_a_list_that_was_emptied_and_filled_again_may_have_grown() -> None:
    """It is a possible name only if as much memory was freed meanwhile."""
    watched = Watched({"cache": tensors(20)})
    watched.variables["cache"][:] = tensors(20)

    assert watched.named(18, freed=20) == ([], ["cache[0..19]"])
    assert watched.named(18, freed=2) == ([], [])


def test_a_model_and_its_states_of_the_same_cell_have_not_grown_step_by_step() -> None:
    """They were made at once, so their size does not matter."""
    watched = Watched({})
    watched.variables["trainer"] = trained()

    assert watched.named(1) == ([], [])


def test_a_model_that_gets_more_and_more_parts_is_named() -> None:
    """Adapters are added again and again to an older model."""
    model = torch.nn.Sequential(torch.nn.Linear(256, 1024, bias=False))
    watched = Watched({"model": model})
    for number in range(10):
        model.add_module(f"adapter{number}", torch.nn.Linear(256, 1024, bias=False))

    assert watched.named(9) == (["model"], [])


def test_lists_that_there_was_no_time_to_read_are_judged_by_their_length() -> None:
    """The bytes are not known then: one of as many items has not grown, one with more has."""
    watched = Watched({"older": tensors(20), "kept": tensors(1)}, most_objects=1)
    watched.variables["kept"] += tensors(20)

    assert watched.named(18) == (["kept[0..20]"], [])


def test_a_list_within_an_object_that_there_was_no_time_to_read_may_have_grown() -> None:
    """It was not seen when the watch began."""
    store = SimpleNamespace(history=tensors(20))

    assert Watched({"store": store}, most_objects=1).named(18) == ([], ["store.history[0..19]"])


@pytest.mark.parametrize(
    ("path", "dtype"), [("ids", "list"), ("texts", "dict"), ("images[0..299]", "bytes")]
)
def test_an_unknown_kind_of_holder_is_named_too(path: str, dtype: str) -> None:
    """Its path and its growth count, not a list of kinds."""
    kind: Any = "a kind of later"
    row, old = (
        Holder(name, kind, "cpu", 80 * 2**20, 300, (), dtype) for name in (path, "older[0..299]")
    )

    sure, possible = growers(Holders((row, old)), Before(Holders((old,))), 70 * MIB)

    assert ([row.path for row, _ in sure], possible) == ([path], ())


@pytest.mark.parametrize(
    ("path", "dtype", "expected"),
    [
        ("first[0..19]", "float32", []),  # its tensors are as they were
        ("first['loss'][0..19]", "float32", ["first['loss'][0..19]"]),
        ("first", "list", ["first"]),  # numbers may have been added to a list in it
    ],
)
def test_a_list_of_equal_length_may_be_a_guess(path: str, dtype: str, expected: list[str]) -> None:
    """The memory of its items may have grown."""
    row = Holder(path, "tensors", "cpu", 80 * 2**20, 20, (), dtype)
    before = Before(Holders(()), new={"first"}, idle={"first"})
    sure, possible = growers(Holders((row,)), before, 70 * MIB)

    assert ([row.path for row, _ in sure], [row.path for row, _ in possible]) == ([], expected)


def test_sampling_errors_are_not_growth() -> None:
    """Numbers are estimated by a sample, which is off by a few per cent."""
    kind: Any = "Python objects"
    then, now = (Holder("ids", kind, "cpu", size * 2**20, 9, (), "list") for size in (1000, 1030))
    before = Before(Holders((then,)), added={"ids": 0.0})

    assert growers(Holders((now,)), before, 60 * MIB) == ([], [])
