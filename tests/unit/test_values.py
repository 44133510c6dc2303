"""What is handed out does not change under who holds it, and takes no more room than it must."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest

import hfmem_widget
from hfmem_widget.monitor.process import Part

CHANGING = {
    "_Edge", "rows._Group", "_Patch", "_Reader", "_Watched",
    "ReplayBlock", "Bucket", "PollerCost", "Execution", "tail.File", "Phase", "Polling",
    "Tick", "Watched", "Window", "HookedModule", "Process", "guard._State",
    # Made for each file at each look, or each line of 1,024 ranks: frozen, that takes three times as long.
    "Piece", "Extremes", "Finished", "StepsLine",
}  # fmt: skip
"""What is counted up while it goes on, beside the parts of a process.

`Polling` alone is handed out, of a session that runs.
"""


def dataclasses_of_the_package() -> Iterator[type]:
    """Yield each once, with the module that has it."""
    for module in pkgutil.walk_packages(hfmem_widget.__path__, "hfmem_widget."):
        found = importlib.import_module(module.name)
        for _, one in inspect.getmembers(found, inspect.isclass):
            if one.__module__ == module.name and dataclasses.is_dataclass(one):
                yield one


EVERY = sorted(dataclasses_of_the_package(), key=lambda one: (one.__module__, one.__qualname__))


@pytest.mark.parametrize("one", EVERY, ids=lambda one: f"{one.__module__}.{one.__qualname__}")
def test_a_value_has_slots_and_stays_as_it_is(one: Any) -> None:
    """A session keeps a hundred thousand of some; whoever was given one finds it unchanged."""
    assert "__slots__" in vars(one)
    names = {one.__name__, f"{one.__module__.rpartition('.')[2]}.{one.__name__}"}
    assert one.__dataclass_params__.frozen is (
        names.isdisjoint(CHANGING) and not issubclass(one, Part)
    )
