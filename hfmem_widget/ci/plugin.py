"""What pytest loads in every test run: options, the marker, the fixture. The rest is imported once used."""

from __future__ import annotations

import traceback
from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import pluggy

    from hfmem_widget.ci.measure import Memory
    from hfmem_widget.ci.runner import Runner

NAME = "hfmem-runner"
OLDEST = 8
MARKER = "limit_vram"
DEFAULT = "hfmem_limit_vram"
MARKER_HELP = (
    'limit_vram(peak, left=None, device=""): fail if the test allocates more GPU memory than `peak` (such as '
    '"6 GiB") above what was allocated at its start, or leaves more than `left` allocated.'
)

OPTIONS = {
    "--hfmem": "Show the tests with the highest GPU memory.",
    "--hfmem-baseline": "Fail tests whose peak is higher than in this JSON file.",
    "--hfmem-update": "Write the peaks of this run to the baseline's file, and compare nothing.",
    "--hfmem-tolerance": (
        "How much higher than its baseline a peak may be. Default: 2%%. Less than 1 MiB never fails."
    ),
    "--hfmem-record": "Write a recording of each test that is measured to this folder.",
    "--hfmem-clear": "Clear the frames of a failed test after its report, so that they hold no memory.",
    "--hfmem-strict": "Fail tests with a limit where there is no GPU to measure it on.",
}
TAKES = {"--hfmem-baseline": "FILE", "--hfmem-tolerance": "PERCENT", "--hfmem-record": "DIR"}
"""What some options take; the others are switches."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("hfmem", "GPU memory of tests (hfmem_widget)")
    for option, does in OPTIONS.items():
        if option in TAKES:
            group.addoption(option, metavar=TAKES[option], help=does)
        else:
            group.addoption(option, action="store_true", help=does)
    parser.addini(DEFAULT, "The limit_vram of tests that have none, such as 6 GiB.", default="")


def pytest_configure(config: pytest.Config) -> None:
    """Add the marker; measure all tests where an option asks for it."""
    config.addinivalue_line("markers", MARKER_HELP)
    if config.option.hfmem_update and not config.option.hfmem_baseline:
        raise pytest.UsageError("--hfmem-update needs a file to write: --hfmem-baseline FILE")
    option = config.option
    wanted = option.hfmem, option.hfmem_baseline, option.hfmem_tolerance, config.getini(DEFAULT)
    if any(wanted):
        runner(config)


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pluggy.Result[pytest.TestReport], None]:
    """Clear the frames of a test that has failed, once its report is made."""
    yield
    option = item.config.option
    if option.hfmem_clear and call.excinfo is not None and not getattr(option, "usepdb", False):
        from hfmem_widget.errors import chain_of

        for error in chain_of(call.excinfo.value):
            traceback.clear_frames(error.__traceback__)
            for frame, _line in traceback.walk_tb(error.__traceback__):
                # Up to Python 3.12 who has read the variables, as pytest does, left a copy: this renews it.
                _ = frame.f_locals


def runner(config: pytest.Config) -> Runner:
    """Return what measures tests in this run; it is made at the first call."""
    made: Runner | None = config.pluginmanager.get_plugin(NAME)
    if made is None:
        if int(pytest.__version__.partition(".")[0]) < OLDEST:
            raise pytest.UsageError(
                f"measuring memory needs pytest {OLDEST} or newer; this is {pytest.__version__}"
            )
        from hfmem_widget.ci.runner import Runner

        made = Runner(config)
        config.pluginmanager.register(made, NAME)
    return made


# Of the old kind: a pytest that is too old for the rest loads this, too.
@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pluggy.Result[pytest.CollectReport], None]:
    """Read the limits of the tests that were found; a limit that cannot be read is an error of its file."""
    outcome = yield
    report = outcome.get_result()
    items = [each for each in report.result or () if isinstance(each, pytest.Item)]
    limited = [item for item in items if item.get_closest_marker(MARKER) is not None]
    if limited:
        fault = runner(collector.config).read_limits(limited)
        if fault:
            report.outcome, report.longrepr, report.result = "failed", fault, []


@pytest.fixture
def memory(request: pytest.FixtureRequest) -> Memory:
    """Measure this test's GPU memory: `peak()`, `left()`, `reserved()` in bytes; `span()` for a part."""
    return runner(request.config).memory_of(request.node)
