"""Kernels for tests: one for each, since the package patches the process it is loaded into.

Where that does not matter, the tests of a file share one, and each begins with nothing left of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.kernel.culprits import begin_anew
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


@pytest.fixture(scope="module")
def shared_kernel() -> Iterator[Kernel]:
    """Return one kernel for all tests of a file."""
    with Kernel() as kernel:
        yield kernel


@pytest.fixture
def reloaded(shared_kernel: Kernel) -> Kernel:
    """Return the file's kernel with no variable of the test before, and the extension loaded anew."""
    for cell in ("%reset -f", "%reload_ext hfmem_widget"):
        assert shared_kernel.run(cell).status == "ok"
    return shared_kernel


@pytest.fixture
def fresh(shared_kernel: Kernel) -> Kernel:
    """Return the file's kernel with nothing left of the test before, and with what makes culprits."""
    begin_anew(shared_kernel)
    return shared_kernel
