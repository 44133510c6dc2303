"""What holds for all tests: the ``slow`` ones begin first."""

from __future__ import annotations

import sys

import pytest

# jsonschema, and so nbformat, compiles grammars of internationalized addresses for seconds where it can
# import this package; nobody here asks for them.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave no process with a long test at the end, for which the others would wait.

    All other tests stay in the order that pytest-randomly has given them.
    """
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
