"""How much memory a day of watching takes: 864,000 ticks of eight GPUs and the host, by a fake clock.

Each way runs in a process of its own. A session gets the samples and a publisher makes the
messages, for somebody who watches all the time and for nobody, and once with a span for each
training step of a second, within epochs of an hour. The FigureWidget keeps every point of what our
chart shows, and is given them once an hour, since at every tick it would not finish. Growth is from
the first simulated minute on.
"""

import gc
import math
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from common import measure

from hfmem_widget.session import Device, Peak, Recorder, Sample, Series
from hfmem_widget.sources.host import HostSource
from hfmem_widget.sources.nvml_gpu import METRICS as NVML_METRICS
from hfmem_widget.text import GIB, MIB
from tests.scenes import FakeClock

GPUS = tuple(f"cuda:{index}" for index in range(8))
TORCH_METRICS = tuple(
    (metric, metric)
    for metric in (
        *("allocated", "reserved", "peak", "active", "requested"),
        *("inactive_split", "alloc_retries", "ooms", "private_pools"),
    )
)
LEDGER_METRICS = ("allocated", "reserved", "active", "requested")
HZ = 10
HOUR = 3600 * HZ
CHECKPOINTS = {60 * HZ: "1 min", HOUR: "1 h", 6 * HOUR: "6 h", 24 * HOUR: "24 h"}


def resident() -> float:
    """Return this process' resident bytes, after what is garbage has gone."""
    gc.collect()
    pages = Path("/proc/self/statm").read_text().split()[1]
    return float(pages) * 4096


class Run:
    """Eight GPUs and the host, all their series, moving as training does."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.recorder = Recorder("bench")
        self.session = self.recorder.session
        host = HostSource()
        metrics = (*TORCH_METRICS, *NVML_METRICS)
        self.recorder.adopt(
            [*(Device(key, "NVIDIA H200", f"GPU-{key}", 141 * GIB) for key in GPUS), *host.devices],
            [*(Series(key, *metric) for key in GPUS for metric in metrics), *host.series],
        )
        self._width = len(metrics)
        self._host_width = len(host.series)

    def tick(self) -> Sample:
        """Take the next sample."""
        now = self.clock.advance(1 / HZ)
        value = (60 + 20 * math.sin(now)) * GIB
        gpu = [value + metric for metric in range(self._width)]
        values = (*(gpu * len(GPUS)), *([value / 64] * self._host_width))
        return self.recorder.append(Sample(now, values))


def watched(*, seen: bool, steps: bool) -> Callable[[int], None]:
    """Return what makes one tick of ours."""
    from hfmem_widget.view.wire.publisher import Publisher

    run = Run()
    publisher = Publisher(run.session, lambda _message, _buffers: None, clock=run.clock)
    recorder, session = run.recorder, run.session
    recorder.subscribe(publisher)

    def follow_steps(tick: int, sample: Sample) -> None:
        highest = {f"{key}/{metric}": 80 * GIB + tick for key in GPUS for metric in LEDGER_METRICS}
        peaks = {key: Peak(value, "exact") for key, value in highest.items()}
        for span in reversed(session.open_spans):
            if span.kind == "step" or (span.kind == "epoch" and tick % HOUR == 0):
                recorder.close_span(span.id, sample, peaks)
        if tick % HOUR == 0:
            recorder.open_span("epoch", f"epoch {tick // HOUR}", sample)
        recorder.open_span("step", f"step {tick // HZ}", sample)

    def make(tick: int) -> None:
        sample = run.tick()
        if steps and tick % HZ == 0:
            follow_steps(tick, sample)
        if seen:
            publisher.seen()
        recorder.publish()

    return make


def figure_widget() -> Callable[[int], None]:
    """Return what makes one tick of a FigureWidget: three lines for each device."""
    import numpy as np
    import plotly.graph_objects as go

    lines = 3 * (len(GPUS) + 1)
    figure = go.FigureWidget([go.Scatter() for _ in range(lines)])
    hour: list[tuple[float, ...]] = []
    kept = [np.empty((0, lines + 1))]

    def make(tick: int) -> None:
        now = tick / HZ
        hour.append((now, *((60 + 20 * math.sin(now)) * GIB + line for line in range(lines))))
        if tick % HOUR == 0:
            kept[0] = np.vstack([kept[0], hour])
            hour.clear()
            with figure.batch_update():
                for line, trace in enumerate(figure.data):
                    trace.x, trace.y = kept[0][:, 0], kept[0][:, line + 1]

    return make


WAYS: dict[str, Callable[[], Callable[[int], None]]] = {
    "hfmem_widget, nobody looks": lambda: watched(seen=False, steps=False),
    "hfmem_widget, somebody looks": lambda: watched(seen=True, steps=False),
    "hfmem_widget, with a step every second": lambda: watched(seen=False, steps=True),
    "FigureWidget, given all points once an hour": figure_widget,
}


def play(way: str) -> None:
    """Make a day of ticks, and print what is resident at each of the checkpoints."""
    make = WAYS[way]()
    started = time.process_time()
    for tick in range(1, 24 * HOUR + 1):
        make(tick)
        if tick in CHECKPOINTS:
            print(
                f"{resident()} {sys.getallocatedblocks()} {time.process_time() - started}",
                flush=True,
            )


def main() -> None:
    """Measure and print."""
    parser = measure.cli(__doc__)
    parser.add_argument("--way", choices=WAYS, help="play this one here and print raw readings")
    arguments = parser.parse_args()
    if arguments.way:
        play(arguments.way)
        return
    rows, raw = [], {}
    for way in WAYS:
        command = [sys.executable, __file__, "--way", way]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        readings = [[float(one) for one in line.split()] for line in done.stdout.splitlines()]
        raw[way] = readings
        first, *later = readings
        growth = [f"{(reading[0] - first[0]) / MIB:,.1f}" for reading in later]
        blocks = f"{later[-1][1] - first[1]:+,.0f}"
        rows.append([way, *growth, blocks, f"{later[-1][2] / (24 * HOUR) * 1e6:,.0f}"])
    hours = [f"MiB after {name}" for name in list(CHECKPOINTS.values())[1:]]
    measure.report(
        f"Growth of the resident set, {len(GPUS)} GPUs and the host at {HZ} Hz",
        measure.machine("numpy", "plotly"),
        ["way", *hours, "Python objects", "CPU µs a tick"],
        rows,
        notes=["One run each: a simulated day does not vary, apart from what malloc keeps."],
        raw=raw,
        json_to=arguments.json,
    )


if __name__ == "__main__":
    main()
