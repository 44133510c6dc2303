"""The CPU time that following 1,024 ranks takes for a second of their lines, without waiting for real time.

What each rank writes in a second is made beforehand. Half of the ranks write, one thread reads all files and
brings the overview up to date, then the other half. As nobody waits for a clock, the CPU time of the thread
can be compared on a busy machine, by turns with another checkout:

    python bench/ranks_replay.py [--seconds 24]
"""

import os
import tempfile
import time
from pathlib import Path

from common import measure

from hfmem_widget.ranks.collector import Collector
from hfmem_widget.ranks.directory import make_or_join
from hfmem_widget.ranks.tail import Tail
from tests.fakes.ranks import Script, SimulatedRun, append
from tests.scenes import FakeClock

WORLD, LOOKS = 1024, 2
FIRST = 5
"""Seconds that are not counted: the arrays still grow."""


def made(run: str, seconds: int) -> tuple[float, list[dict[str, bytes]]]:
    """Return when a run began, and what each of its ranks writes in each second."""
    simulated = SimulatedRun(Script(world=WORLD, interval=1.0), run=run)
    return simulated.began, [dict(simulated.advance(1.0)) for _ in range(seconds)]


def replayed(seconds: int) -> list[float]:
    """Return the CPU seconds of reading for each second of lines."""
    spent = []
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "run"
        run = make_or_join(directory, "bench").run
        began, written = made(run, seconds)
        clock = FakeClock(began)
        collector = Collector(run=run)
        tail = Tail(directory, collector, clock=clock)
        names = sorted(written[0])
        for second in written:
            cpu = 0.0
            for turn in range(LOOKS):
                clock.advance(1.0 / LOOKS)
                for name in names[turn::LOOKS]:
                    append(directory / name, second[name])
                    os.utime(directory / name, (clock.now, clock.now))
                before = time.thread_time()
                while tail.read():
                    pass
                cpu += time.thread_time() - before
            spent.append(cpu)
        steps = {stream.newest_step for stream in collector.all_streams.values()}
        if len(collector.all_streams) != WORLD or len(steps) != 1 or collector.session.findings:
            message = f"something was lost: steps {steps}, {collector.session.findings}"
            raise RuntimeError(message)
    return spent[FIRST:]


def main() -> None:
    """Measure and print."""
    parser = measure.cli(__doc__)
    parser.add_argument("--seconds", type=int, default=24, help="of lines")
    arguments = parser.parse_args()
    spent = replayed(arguments.seconds)
    writes = [one / WORLD for one in spent]
    measure.report(
        f"CPU time of following {WORLD:,} ranks (median and 95 % interval)",
        measure.machine("numpy"),
        ["seconds of lines", "ms a second of lines", "µs a write"],
        [
            [
                f"{len(spent)}",
                measure.estimate(spent).text(1e-3),
                measure.estimate(writes).text(1e-6),
            ]
        ],
        raw={"spent": spent},
        json_to=arguments.json,
    )


if __name__ == "__main__":
    main()
