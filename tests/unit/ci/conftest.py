"""Runs of pytest within this process, on a machine with GPUs that are not there."""

from types import ModuleType

import pytest

from hfmem_widget.ci import runner  # noqa: F401  (a run within pytest forgets what it has imported itself)
from hfmem_widget.monitor import process
from hfmem_widget.monitor.monitor import Monitor
from hfmem_widget.monitor.peaks import PeakLedger
from hfmem_widget.monitor.sampler import Sampler
from hfmem_widget.sources.allocator import Allocator
from hfmem_widget.sources.source import Source
from tests.fakes.torch_cuda import FakeAllocator

PLUGIN = ("-p", "hfmem_widget.ci.plugin", "-p", "no:cacheprovider")
MIB = 1 << 20


class Play:
    """Runs pytest on some source, and keeps what it ran."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        self.allocator = FakeAllocator(2)

    def use(self, allocator: Allocator, *sources: Source) -> None:
        process.this.monitor = Monitor(Sampler(sources), PeakLedger(allocator))

    def __call__(self, source: str, *args: str) -> pytest.RunResult:
        """Return the result of one run."""
        for name in self.pytester.path.glob("test_*.py"):
            name.unlink()
        self.pytester.makepyfile(test_it="import pytest, unittest\nMIB = 1 << 20\n" + source)
        plugin = ModuleType("gpus")
        plugin.gpu = pytest.fixture(scope="session")(lambda: self.allocator)  # type: ignore[attr-defined]

        return self.pytester.runpytest_inprocess(*PLUGIN, *args, plugins=[plugin])

    def text(self, source: str, *args: str) -> str:
        """Return what one run has written."""
        return str(self(source, *args).stdout)


@pytest.fixture
def play(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Run pytest on a machine with two GPUs."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("CI", raising=False)  # there pytest's summary says every message once more
    played = Play(pytester)
    played.use(played.allocator)
    return played
