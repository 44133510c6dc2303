"""What holds for all tests of what can be freed."""

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from hfmem_widget.monitor.shared import release_monitor


@pytest.fixture(autouse=True)
def nothing_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the error and the modules of other tests: either may hold all of pytest, by its frames."""
    for name in ("last_exc", "last_type", "last_value", "last_traceback"):
        monkeypatch.delattr(sys, name, raising=False)
    monkeypatch.setattr("hfmem_widget.sources.heap.search.user_modules", dict)


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Stand in for the variables of a script, and take the monitor away at the end."""
    module = SimpleNamespace()
    monkeypatch.setitem(sys.modules, "__main__", module)
    yield vars(module)
    release_monitor()
