"""What it costs to follow 1,024 ranks, how late their lines are read, and which faults are found.

Two processes play the ranks, each of which writes its own file, spread over the time between two lines. One
thread of a third process reads them all, as in a notebook's kernel. A write of a rank is its readings, a
sign of life, and the steps since the last one. Latency is from when a rank made its lines to when they were
taken in, so it has the time for writing in it.

    python bench/ranks.py [--seconds 60] [--only NAME]
"""

import errno
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Collection, Container
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from common import measure

from hfmem_widget.ranks.collector import Collector
from hfmem_widget.ranks.directory import Streams, make_or_join
from hfmem_widget.ranks.tail import Disk, Tail
from hfmem_widget.session import Finding
from tests.fakes.ranks import Script, SimulatedRun, append

SENDERS = 2
NODE, OUTLIER = 100, 417
PLAIN = Script(world=1024, interval=1.0)
KILLED_AT = 15.0

SLOW = {
    f"{world:,} ranks, {ms} ms a call": (world, ms / 1e3)
    for world in (8, 128, 1024)
    for ms in (1, 5, 20)
}
"""Ranks, and the seconds that a slow server takes for each call; once a thousand handles are stale."""

SCRIPTS = {
    name: replace(PLAIN, world=world, pace=max(1.0, world / 256))
    for name, (world, _) in SLOW.items()
} | {
    "8 ranks, a write a second": replace(PLAIN, world=8, interval=0.1),
    "1,024 ranks, a write a second": PLAIN,
    # A write is three lines, so these write one a second.
    "1,024 ranks, a line a second": replace(PLAIN, pace=3.0),
    "1,024 ranks, at their own pace": replace(PLAIN, pace=4.0),
    "1,024 ranks with faults, a write a second": replace(
        PLAIN,
        heavier={OUTLIER: 1.05},
        killed=dict.fromkeys([*range(8 * NODE, 8 * NODE + 8), *range(3, 512, 8)], KILLED_AT),
        clocks={f"node{at:04d}": -5.0 + 10 * (at - 20) / 7 for at in range(20, 28)},
        garbage=0.01,
    ),
}


@dataclass(slots=True)
class Measured:
    """What was seen of one run."""

    latencies: list[float] = field(default_factory=list)
    first_seen: dict[str, int] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    offsets: dict[str, float] = field(default_factory=dict)
    cpu: float = 0.0
    before: float = 0.0
    rss: float = 0.0
    bytes: int = 0
    holes: int = 0
    steps: tuple[int, int] = (0, 0)
    ends: tuple[int, int] = (0, 0)
    bad: int = 0
    finish: float = 0.0
    notes: tuple[str, ...] = ()
    after: tuple[Finding, ...] = ()


class Watching(Collector):
    """A collector that notes how late lines come."""

    def __init__(self, script: Script, run: str) -> None:
        super().__init__(run=run)
        self.seen = Measured()
        self._script = script

    def feed(self, stream: str, data: bytes, at: float = float("nan")) -> None:
        """Take in bytes, and note when they were made."""
        super().feed(stream, data, at)
        known = self._streams[stream]
        self.seen.bytes += len(data)
        if known.head is not None:
            clock = self._script.clocks.get(known.rank.host, 0.0)
            self.seen.latencies.append(time.time() - (known.last_sign - clock))

    def tick(self, now: float, behind: Collection[str] = (), *, looks: bool = False) -> None:
        """Look, and note at which step something was found first."""
        super().tick(now, behind, looks=looks)
        for finding in self.session.findings:
            self.seen.first_seen.setdefault(finding.kind, self.session.steps.count)


def send(name: str, sender: int, directory: Path, began: float, seconds: float) -> None:
    """Play one part of the ranks, in real time."""
    script = SCRIPTS[name]
    run = make_or_join(directory).run
    numbers = range(sender, script.world, SENDERS)
    simulated = SimulatedRun(script, run=run, began=began, ranks=numbers)
    for turn in range(round(seconds / script.pace)):
        for place, rank in enumerate(simulated.ranks.values()):
            due = began + script.pace * (turn + place / len(numbers)) + 1e-3
            time.sleep(max(0.0, due - time.time()))
            data = rank.until(time.time() - began)
            append(directory / rank.stream, simulated.with_garbage(data))
    simulated.now = seconds
    for stream, data in simulated.finish():
        append(directory / stream, data)
    print(sum(one.step for at, one in simulated.ranks.items() if at not in script.killed))


def rss() -> float:
    """Return the memory of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096.0


class SlowDisk(Disk):
    """A disk each call to which takes some seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._opened = itertools.count()

    def listed(self, directory: Path, read_before: Container[str] = ()) -> Streams:
        """List the directory, and look at each new file in it."""
        found = super().listed(directory, read_before)
        time.sleep(self._seconds * (2 + sum(path.name not in read_before for path in found.paths)))
        return found

    def opened(self, path: str | Path) -> tuple[int, os.stat_result]:
        """Open a file; some are stale."""
        time.sleep(self._seconds)
        if self._seconds and 2000 < next(self._opened) < 3000:
            raise OSError(errno.ESTALE, "Stale file handle")
        return super().opened(path)

    def stat(self, path: str) -> os.stat_result:
        """Look at a file."""
        time.sleep(self._seconds)
        return super().stat(path)

    def read(self, descriptor: int, size: int, offset: int) -> bytes:
        """Read a file."""
        time.sleep(self._seconds)
        return super().read(descriptor, size, offset)


def follow(name: str, seconds: float) -> Measured:
    """Have the ranks of a script play, and follow them."""
    script = SCRIPTS[name]
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "run"
        run = make_or_join(directory, "bench").run
        began = time.time() + 4.0  # until the senders have begun
        collector = Watching(script, run)
        disk = SlowDisk(SLOW[name][1]) if name in SLOW else Disk()
        tail = Tail(directory, collector, disk=disk)
        command = [
            sys.executable,
            __file__,
            "--send",
            name,
            str(directory),
            str(began),
            str(seconds),
        ]
        senders = [
            subprocess.Popen([*command, str(at)], stdout=subprocess.PIPE) for at in range(SENDERS)
        ]
        time.sleep(max(0.0, began - time.time()))
        seen = collector.seen
        seen.before = rss()
        cpu = time.process_time()
        tail.ticker.start()
        while (left := began + seconds - time.time()) > 0:
            time.sleep(min(left, 0.5))
        seen.cpu = (time.process_time() - cpu) / (time.time() - began)
        seen.rss = rss()
        seen.findings = tuple(collector.session.findings)
        seen.offsets = dict(collector.roster.offsets)
        wanted = sum(int(sender.communicate()[0]) for sender in senders)
        stopped = time.time()
        tail.finish()
        seen.finish = time.time() - stopped
        seen.notes = tuple(collector.session.notes)
        seen.after = tuple(collector.session.findings)
        streams = collector.all_streams.values()
        seen.holes = sum(stream.holes for stream in streams)
        seen.bad = sum(stream.dropped for stream in streams)
        ended = [stream for stream in streams if stream.is_over]
        seen.steps = sum(stream.newest_step for stream in ended), wanted
        seen.ends = len(ended), script.world - len(script.killed)
    return seen


def row(name: str, seen: Measured, seconds: float) -> list[str]:
    """Return the figures of one run."""
    p50, p95, p99 = np.percentile(seen.latencies, [50, 95, 99])
    return [
        name,
        f"{seen.bytes / seconds / 1e3:.0f}",
        f"{100 * seen.cpu:.1f} %",
        f"{seen.rss / 1e6:.0f} ({(seen.rss - seen.before) / 1e6:.0f} more)",
        f"{1e3 * p50:.0f} / {1e3 * p95:.0f} / {1e3 * p99:.0f}",
        str(seen.holes),
        f"{seen.steps[0]:,} of {seen.steps[1]:,}",
        f"{seen.ends[0]} of {seen.ends[1]}",
        f"{seen.finish:.1f}",
    ]


def main() -> None:
    """Measure and print."""
    parser = measure.cli(__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--only", default="", help="the runs whose names have this in them")
    parser.add_argument("--send", nargs=5, help="for this script itself")
    arguments = parser.parse_args()
    if arguments.send:
        name, directory, began, seconds, sender = arguments.send
        send(name, int(sender), Path(directory), float(began), float(seconds))
        return
    found = {name: follow(name, arguments.seconds) for name in SCRIPTS if arguments.only in name}
    notes = []
    for name, seen in found.items():
        titles_of = defaultdict(list)
        for finding in seen.findings:
            titles_of[finding.kind].append(finding.title)
        notes.append(f"{name}: {len(seen.findings)} findings, {seen.bad} lines unreadable.")
        notes += [f"  at the end: {one.title}" for one in seen.after if one not in seen.findings]
        notes += [f"  note: {note}" for note in seen.notes]
        for kind, titles in titles_of.items():
            since = seen.first_seen.get(kind, 0)
            notes += [f"  {kind} (since step {since}): {title}" for title in titles]
        for host, clock in SCRIPTS[name].clocks.items():
            known = seen.offsets.get(host, 0.0)
            notes.append(f"  {host}: {clock:+.2f} s, found {known:+.2f} s")
    measure.report(
        f"Ranks followed for {arguments.seconds:.0f} s",
        measure.machine("numpy"),
        [
            "ranks",
            "kB/s",
            "CPU",
            "RSS in MB",
            "latency p50 / p95 / p99 in ms",
            "blocks lost",
            "steps",
            "ends",
            "s to finish",
        ],
        [row(name, seen, arguments.seconds) for name, seen in found.items()],
        notes=notes,
        json_to=arguments.json,
    )


if __name__ == "__main__":
    main()
