"""A simulated run of ranks, and its reader, on a slow disk."""

import os
from collections import Counter
from collections.abc import Callable, Container
from pathlib import Path

from hfmem_widget.ranks.collector import Collector
from hfmem_widget.ranks.directory import Streams
from hfmem_widget.ranks.tail import Disk, Tail
from hfmem_widget.session import Rank
from tests.fakes.ranks import Script, SimulatedRun
from tests.scenes import FakeClock

RUN = "a" * 32


class SlowDisk(Disk):
    """Counts its calls; each advances some clocks, and those for some files fail."""

    def __init__(self, *clocks: FakeClock, takes: float = 0.0) -> None:
        self.clocks, self.takes = clocks, takes
        self.failing: set[str] = set()
        self.calls: Counter[str] = Counter()

    def listed(self, directory: Path, read_before: Container[str] = ()) -> Streams:
        self._pass_time("listed")
        return super().listed(directory, read_before)

    def opened(self, path: str | Path) -> tuple[int, os.stat_result]:
        self._pass_time("opened")
        if Path(path).name in self.failing:
            raise OSError(116, "Stale file handle")
        return super().opened(path)

    def stat(self, path: str) -> os.stat_result:
        self._pass_time("stat")
        return super().stat(path)

    def read(self, descriptor: int, size: int, offset: int) -> bytes:
        self._pass_time("read")
        return super().read(descriptor, size, offset)

    def _pass_time(self, call: str) -> None:
        self.calls[call] += 1
        for clock in self.clocks:
            clock.advance(self.takes)


class Followed:
    """A simulated run whose ranks write as time passes, and its reader, with clocks that tests set."""

    def __init__(
        self,
        directory: Path,
        script: Script,
        takes: float,
        runs: Callable[[Rank], bool] = lambda _rank: True,
    ) -> None:
        self.directory = directory
        self.run = SimulatedRun(script, run=RUN)
        self.run.write(directory, 0.0, finish=False)
        self.clock, self.timer = FakeClock(self.run.began), FakeClock()
        self.collector = Collector(run=RUN)
        self.disk = SlowDisk(self.clock, self.timer, takes=takes)
        self.tail = Tail(
            directory, self.collector, disk=self.disk, clock=self.clock, timer=self.timer,
            runs=runs,
        )  # fmt: skip

    def goes_on(self, seconds: float) -> None:
        """Read in several passes for some time, during which the ranks write."""
        stop = self.clock.now + seconds
        while self.clock.now < stop:
            pace = self.run.script.pace
            if (due := (self.clock.now - self.run.began - self.run.now) // pace * pace) > 0:
                self.run.write(self.directory, due, finish=False)
            if not self.tail.read():
                self.clock.advance(self.tail.poll)
                self.timer.advance(self.tail.poll)

    @property
    def said(self) -> list[str]:
        return [finding.title for finding in self.collector.session.findings]
