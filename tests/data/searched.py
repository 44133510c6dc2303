"""Limits a test's search to its own objects, although other tests have left some in the process."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import pytest

from hfmem_widget.sources.heap import search

MODULES = 20
"""With fewer comes little that is worth a search of its own."""

_known: set[str] = set()


@contextmanager
def little_to_search(module: ModuleType) -> Iterator[None]:
    """Have one user module, a test's own, and no garbage from imports.

    With torch and transformers each search for garbage takes 0.2 s, and one in the modules of all tests more.
    """
    if len(sys.modules) >= len(_known) + MODULES:
        _known.update(sys.modules)
        gc.collect()
        gc.freeze()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "user_modules", lambda: {module.__name__: module})
        yield
