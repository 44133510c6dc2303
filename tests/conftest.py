"""What holds for all tests: each has a process of its own, and the ``slow`` ones begin first.

Reruns cost nothing until there are some.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator

import pytest

from hfmem_widget.guard import forget_faults
from hfmem_widget.monitor import process
from hfmem_widget.monitor.shared import release_monitor

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


@pytest.fixture(autouse=True)
def own_process() -> Iterator[None]:
    """Have the state of a new process in each test, which says each fault of ours again."""
    forget_faults()
    before = process.replace(process.this.child())
    yield
    release_monitor()
    # What still is in other libraries is known to the next test.
    before.parts |= process.replace(before).child().parts
