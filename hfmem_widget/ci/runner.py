"""Measures the tests that ask for it, and fails those that exceed a limit or their baseline."""

from __future__ import annotations

import math
import re
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import pytest

from hfmem_widget.ci.measure import HOST, DeviceCost, Memory, busiest, environment
from hfmem_widget.ci.summary import Summary, change_text, differs, read
from hfmem_widget.display import resolve
from hfmem_widget.errors import OptionError
from hfmem_widget.guard import entry, harmless
from hfmem_widget.monitor.on_import import WhenImported
from hfmem_widget.monitor.shared import shared_monitor
from hfmem_widget.options import WatchOptions, device_keys
from hfmem_widget.recording.limits import SUFFIX
from hfmem_widget.sources.host import HostSource
from hfmem_widget.text import MIB, format_bytes, parse_bytes, parse_share, plain, wrong_value

EXAMPLE = 'limit_vram("6 GiB", left="1 MiB")'


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """What a test may allocate, in bytes; infinite where there is no limit."""

    peak: float = math.inf  # above what was allocated at the start
    left: float = math.inf  # allocated at the end above that
    device: str = ""  # the key of the device it is for; empty for each GPU


LIMITS = pytest.StashKey[Sequence[MemoryLimit]]()
MEMORY = pytest.StashKey[Memory]()

LONGEST_NAME = 150
"""Letters of a recording's name, which is that of its test."""

_OTHERS = re.compile(r"[^\w.\[\]-]+")

T = TypeVar("T")


class Runner:
    """The part of the plug-in that is made once it is used. With xdist each process has one."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._is_worker = hasattr(config, "workerinput")
        option = config.option
        self._is_strict: bool = option.hfmem_strict
        self._updates: bool = option.hfmem_update
        self._baseline = None
        try:
            self._tolerance = parse_share(option.hfmem_tolerance or "2%", "--hfmem-tolerance")
            of = "hfmem_limit_vram"
            size = config.getini(of)  # for tests without a marker
            self._default = (MemoryLimit(parse_bytes(size, of=of)),) if size else ()
            if option.hfmem_baseline:
                path = Path(config.invocation_params.dir, option.hfmem_baseline).resolve()
                option.hfmem_baseline = str(path)  # workers are given it
                self._baseline = read(path, may_be_missing=self._updates)
        except OptionError as error:
            raise pytest.UsageError(str(error)) from None
        self._measures_all = bool(option.hfmem or self._baseline or self._default)
        self._recordings: Any = None
        if option.hfmem_record:
            option.hfmem_record = str(Path(config.invocation_params.dir, option.hfmem_record))
            self._recordings = resolve("hfmem_widget.drivers.recordings:Recordings")()
        self._failed_within = False
        self._summary = Summary(config, self._baseline, self._tolerance)

    def read_limits(self, items: Sequence[pytest.Item]) -> str:
        """Read the limits of tests; return a sentence about one that cannot be read, or ``""``."""
        for item in items:
            try:
                item.stash[LIMITS] = limits_of(item.iter_markers("limit_vram"))
            except OptionError as error:
                return f"{item.nodeid}: {error}"
        return ""

    def memory_of(self, item: pytest.Item) -> Memory:
        """Return the memory of a test: from now on, and from its call on once that begins."""
        memory = item.stash.get(MEMORY, None)
        if memory is None:
            memory = item.stash[MEMORY] = Memory(self._host)
            harmless(memory.begin)
        return memory

    @cached_property
    def _host(self) -> HostSource:
        # Nothing polls here: if the test imports torch, its own resets are seen from then on.
        waiting = WhenImported({"torch": lambda _: shared_monitor().ledger.install()})
        waiting.begin()
        self._config.add_cleanup(waiting.end)
        return HostSource()

    # Next to the test: what other plug-ins do around it is not counted.
    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, T, T]:
        """Measure the call of a test: what fixtures made before it is there at its start."""
        memory = self._begin(item)
        error: BaseException | None = None
        try:
            result = yield
        except BaseException as raised:
            error = raised
            raise
        finally:
            complaint = "" if memory is None else self._end(item, memory, error)
            error = None  # a frame that holds its own error is a circle
        if complaint:
            pytest.fail(complaint, pytrace=False)
        return result

    @entry(otherwise=lambda _self, item: _has_fault(item) or None)
    def _begin(self, item: pytest.Item) -> Memory | None:
        # What an earlier run has left: some plug-ins run a test again.
        item.user_properties[:] = [
            each for each in item.user_properties if not each[0].startswith("hfmem_")
        ]
        self._failed_within = False
        if not (self._measures_all or MEMORY in item.stash or item.stash.get(LIMITS, ())):
            return None
        memory = self.memory_of(item)
        name = _OTHERS.sub("_", item.nodeid.replace("::", "__"))[-LONGEST_NAME:]
        path = Path(self._config.option.hfmem_record or "", f"{name}{SUFFIX}")
        if self._recordings is not None and (why := self._recordings.begin(item.nodeid, path)):
            item.user_properties.append(("hfmem_unrecorded", why))
        memory.begin()
        return memory

    @entry(otherwise=lambda _self, item, *_: _has_fault(item))
    def _end(self, item: pytest.Item, memory: Memory, error: BaseException | None) -> str:
        """Keep what was measured with the test's report; return what is wrong with it, or ``""``."""
        memory.end()
        if self._recordings is not None:
            self._recordings.end(error)
        figures = memory.figures()
        most = busiest(figures)
        where = "" if most.device == HOST else environment(shared_monitor().ledger, most.device)
        item.user_properties += replace(most, environment=where).properties()
        if error is not None or self._failed_within:
            return ""
        limits = item.stash.get(LIMITS, ()) or self._default
        complaints = [text for each in limits for text in self._exceeded(each, figures)]
        return "\n".join([*complaints, *self._risen(item, most, where)])

    def _exceeded(self, limit: MemoryLimit, figures: Sequence[DeviceCost]) -> list[str]:
        *gpus, heap = figures
        if limit.device == HOST:
            return [*_over(limit, heap)]
        judged = [each for each in gpus if limit.device in {"", each.device}]
        if judged or (limit.device and not self._is_strict):
            return [text for each in judged for text in _over(limit, each)]
        if self._is_strict:
            device = limit.device or "GPU"
            missing = (
                f"there is no {device} to measure the limit on, and --hfmem-strict asks for it"
            )
            return [] if self._is_there(limit.device) else [missing]
        # A test that does not use the GPU there is, is below any limit. Where there is none the heap counts.
        exceeded = [*_over(limit, heap)]
        return [] if exceeded and self._is_there("") else exceeded

    @staticmethod
    def _is_there(device: str) -> bool:
        """Return whether torch could use a GPU here; the driver is asked, so that nothing is initialised."""
        monitor = shared_monitor()
        allocator = monitor.ledger.allocator
        wanted = WatchOptions(devices=(device or f"{allocator.device_type}:0",))
        if not allocator.supported():
            return False
        try:
            monitor.end(monitor.begin(wanted))
        except OptionError:
            return False
        return True

    def _risen(self, item: pytest.Item, most: DeviceCost, where: str) -> list[str]:
        if self._baseline is None or self._updates or most.certainty != "exact":
            return []
        baseline = self._baseline.of(where).get(self._summary.name_of(item.nodeid))
        if (
            baseline is None
            or most.peak < baseline
            or not differs(most.peak, baseline, self._tolerance)
        ):
            return []
        return [f"peak {change_text(most.peak, baseline)} on {most.device}"]

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """See which tests of the baseline are gone, before others deselect some."""
        harmless(self._summary.look_for_gone, [item.nodeid for item in items])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what a test's report says; with xdist it comes from a worker."""
        if report.when == "call":
            self._failed_within |= report.failed  # a subtest reports within its test
            harmless(self._summary.take, report)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        """Take over what a worker of xdist knows."""
        gone = getattr(node, "workeroutput", {}).get("hfmem_gone", ())
        harmless(self._summary.gone.update, gone)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the baseline, or pass on what only a worker knows."""
        if self._is_worker:
            output = self._config.workeroutput  # type: ignore[attr-defined]  # xdist's
            output["hfmem_gone"] = sorted(self._summary.gone)
        elif self._updates and not self._summary.update(session):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Write the table, and the lines about the baseline."""
        harmless(self._summary.show, terminalreporter)


def _over(limit: MemoryLimit, figures: DeviceCost) -> Iterator[str]:
    where = "in this process' private memory" if figures.device == HOST else f"on {figures.device}"
    bound = "" if figures.certainty == "exact" else "≥ "
    for what, size, most in (
        (f"peak {bound}", figures.peak, limit.peak),
        ("left ", figures.left, limit.left),
    ):
        shown, allowed = format_bytes(size), format_bytes(most)
        if shown == allowed or most < 0.01 * MIB:
            shown, allowed = f"{size:,.0f} bytes", f"{most:,.0f} bytes"
        if size > most:
            yield f"{what}{shown} is above the limit of {allowed} {where}"


def _has_fault(item: pytest.Item) -> str:
    item.user_properties.append(("hfmem_fault", "not measured, because of a fault in hfmem_widget"))
    return ""


def limits_of(markers: Iterable[pytest.Mark]) -> tuple[MemoryLimit, ...]:
    """Return a test's limits, for each device the closest marker's; raises `OptionError` for a wrong one."""
    limits: dict[str, MemoryLimit] = {}
    for marker in markers:
        limit = _limit(marker)
        limits.setdefault(limit.device, limit)
    return tuple(limits.values())


def _limit(marker: pytest.Mark) -> MemoryLimit:
    unknown = [plain(name) for name in marker.kwargs if name not in {"peak", "left", "device"}]
    if unknown:
        message = f"limit_vram takes peak, left and device, not {unknown[0]}, such as in {EXAMPLE}"
        raise OptionError(message)
    peaks = [*marker.args, *([marker.kwargs["peak"]] if "peak" in marker.kwargs else [])]
    left = marker.kwargs.get("left")
    if len(peaks) > 1:
        raise OptionError(f"limit_vram takes one peak, not {len(peaks)}, such as in {EXAMPLE}")
    if not peaks and left is None:
        raise OptionError(f"limit_vram needs a limit, such as in {EXAMPLE}")
    devices = device_keys(marker.kwargs.get("device", ""))
    if len(devices) > 1:
        raise OptionError("limit_vram takes one device; add a marker for each")
    return MemoryLimit(
        _size(peaks[0], "peak of limit_vram") if peaks else math.inf,
        math.inf if left is None else _size(left, "left of limit_vram"),
        "".join(devices),
    )


def _size(given: object, of: str) -> float:
    size = parse_bytes(given, of=of) if isinstance(given, str) else given
    if isinstance(size, bool) or not isinstance(size, int | float) or not 0 <= size < 2**63:
        raise wrong_value(given, of, "a size with its unit, such as '6 GiB', or a number of bytes")
    return float(size)
