"""What holds for all tests: those that are marked ``slow`` begin first."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave no process with a long test at the end, for which the others would wait.

    All other tests stay in the order that pytest-randomly has given them.
    """
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
