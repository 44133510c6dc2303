"""What holds for all tests: the ``slow`` ones begin first, and reruns cost nothing until there are some."""

from __future__ import annotations

import socket
import sys

import pytest

# jsonschema, and so nbformat, compiles grammars of internationalized addresses for seconds where it can
# import this package; nobody here asks for them.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Send at once what pytest-rerunfailures sends.

    With ``--reruns`` each of several processes writes two messages for a test before it reads an answer. The
    second waits 40 ms for the first to be acknowledged, by Nagle's algorithm and the other side's delay.
    """
    connection = getattr(getattr(config, "failures_db", None), "sock", None)
    if connection is not None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave no process with a long test at the end, for which the others would wait.

    All other tests stay in the order that pytest-randomly has given them.
    """
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
