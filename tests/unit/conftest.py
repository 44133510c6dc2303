"""Rules for all unit tests: their outcome does not depend on the machine, or on how busy it is."""

import gc
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from IPython.core.interactiveshell import InteractiveShell

from tests.data.searched import little_to_search
from tests.data.timeouts import raises

# Without a deadline: a busy machine fails no test. At home every run tries other examples, which finds more;
# a change in CI is judged by the same ones as the change before it.
settings.register_profile(
    "facts",
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("facts")


@pytest.fixture(autouse=True)
def searched(request: pytest.FixtureRequest) -> Iterator[None]:
    """Provide a process that is searched quickly."""
    with little_to_search(request.module):
        yield


@pytest.fixture(autouse=True, scope="session")
def interrupts_as_usual() -> Iterator[None]:
    """Let tests be interrupted: processes started by nohup or in the background ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Pause the garbage collector, so that only reference counts free objects in a test."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def timeout() -> Iterator[None]:
    """Make SIGALRM raise `TimeIsUpError`."""
    usual = signal.signal(signal.SIGALRM, raises)
    yield
    signal.signal(signal.SIGALRM, usual)


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    shell = InteractiveShell.instance()
    shell.run_cell("%load_ext hfmem_widget")
    yield shell
    shell.run_cell("%unload_ext hfmem_widget")
    InteractiveShell.clear_instance()
