"""Kernels for tests; every test has its own, since the package patches the process it is loaded into."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.kernel.drive import Kernel

StartKernel = Callable[..., Kernel]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.kernel)


@pytest.fixture
def start_kernel() -> Iterator[StartKernel]:
    """Return a function that starts a kernel, with `Kernel`'s arguments; all are shut down at the end."""
    with ExitStack() as started:
        yield lambda *args, **kwargs: started.enter_context(Kernel(*args, **kwargs))


@pytest.fixture
def kernel(start_kernel: StartKernel) -> Kernel:
    """Return a fresh kernel."""
    return start_kernel()
