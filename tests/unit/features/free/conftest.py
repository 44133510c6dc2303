"""What holds for all tests of what can be freed."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture(autouse=True)
def nothing_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the error and the modules of other tests: either may hold all of pytest, by its frames."""
    for name in ("last_exc", "last_type", "last_value", "last_traceback"):
        monkeypatch.delattr(sys, name, raising=False)
    monkeypatch.setattr("hfmem_widget.sources.heap.search.user_modules", dict)
