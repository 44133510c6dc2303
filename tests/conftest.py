"""Rules for all tests: each has the state of a new process, and the ``slow`` ones run first."""

import gc
import sys
from collections.abc import Iterator

import pytest

from hfmem_widget.guard import forget_faults
from hfmem_widget.monitor import process
from hfmem_widget.monitor.shared import release_monitor
from hfmem_widget.sources.torch_history import TorchHistory

# jsonschema, and so nbformat, compiles grammars of internationalized addresses for seconds where it can
# import this package; nobody here asks for them.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Pause the garbage collector while modules are imported, since they leave no garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run long tests first, so that no process is left with one at the end.

    All other tests stay in the order that pytest-randomly has given them.
    """
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture(autouse=True)
def own_process() -> Iterator[None]:
    """Give each test the state of a new process, which reports each fault of ours again."""
    forget_faults()
    before = process.replace(process.this.child())
    yield
    release_monitor()
    TorchHistory.active = None
    # What still is in other libraries is known to the next test.
    before.parts |= process.replace(before).child().parts
