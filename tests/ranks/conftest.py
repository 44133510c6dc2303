"""Launchers are started as processes; this one lends them what they need."""

from collections.abc import Iterator

import pytest

from hfmem_widget.monitor.patch import restore_all
from hfmem_widget.ranks.identity import PLACES


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Have no surrounded function in the process that runs the tests."""
    yield
    restore_all(PLACES)
