from __future__ import annotations

from importlib import import_module

import pytest

# The modules: the package's own attributes of these names are functions.
SEARCHES = [import_module(f"hfmem_widget.sources.heap.{name}") for name in ("retained", "scan")]


@pytest.fixture(autouse=True)
def no_modules_but_these(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the other tests' modules out, which hold tensors of their own."""
    for module in SEARCHES:
        monkeypatch.setattr(module, "user_modules", dict)
