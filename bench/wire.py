"""How many bytes a tick sends to the browser as a run gets long, against a FigureWidget.

Ours is the real widget behind the real publisher, two devices with their parts at ten ticks a second
by a fake clock, watched by somebody: one minute of messages after so many ticks, news and snapshots
alike, spread over its ticks. Counted is what goes into the ZeroMQ frames, with header, signature
and buffers. Sizes do not vary from run to run, so there is no spread: given are the mean and the
largest message.
"""

import math
from collections.abc import Callable

import numpy as np
import plotly.graph_objects as go
from common import measure, recorded_comm

from hfmem_widget.session import Device, Recorder, Sample, Series
from hfmem_widget.text import GIB
from hfmem_widget.view.wire.protocol import METRICS
from hfmem_widget.view.wire.publisher import Publisher
from hfmem_widget.view.wire.widget import MemoryWidget
from tests.scenes import FakeClock

POINTS = (1_000, 10_000, 100_000, 1_000_000)
INTERVAL = 0.1
MINUTE = 600
TICKS_OF_A_STEP = 10
DEVICES = ("cuda:0", "cuda:1")
SERIES = len(DEVICES) * len(METRICS)


class Run:
    """A session that moves as training does, by a clock of its own.

    Parameters
    ----------
    steps : bool
        Whether there is a span for a training step every second.
    """

    def __init__(self, *, steps: bool) -> None:
        self.clock = FakeClock()
        self.ticks = 0
        self._steps = steps
        self.recorder = Recorder("bench")
        self.session = self.recorder.session
        self.recorder.adopt(
            [Device(key, "NVIDIA H200", f"GPU-{key}", 141 * GIB) for key in DEVICES],
            [Series(key, metric, metric) for key in DEVICES for metric in METRICS],
        )

    def tick(self) -> None:
        """Take the next sample."""
        now = self.clock.advance(INTERVAL)
        low = (4 + math.sin(now)) * GIB
        lines = (low, 1.2 * low, 2 * low)
        parts = (1.2 * GIB, 0.1 * GIB, 0.1 * low, 2.4 * GIB, 0.1 * GIB, 0.6 * GIB)
        sample = self.recorder.append(Sample(now, (*lines, *parts) * len(DEVICES)))
        if self._steps and self.ticks % TICKS_OF_A_STEP == 0:
            for span in self.session.open_spans:
                self.recorder.close_span(span.id, sample, {})
            self.recorder.open_span("step", f"step {self.ticks // TICKS_OF_A_STEP}", sample)
        self.ticks += 1


def ours_with_steps(points: int, sizes: list[int]) -> list[int]:
    """Return the messages of one minute of steps after so many ticks of them."""
    return ours(points, sizes, steps=True)


def ours(points: int, sizes: list[int], *, steps: bool = False) -> list[int]:
    """Return the messages of one minute after so many ticks."""
    run = Run(steps=steps)
    for _ in range(points):
        run.tick()
    publisher = Publisher(run.session, lambda *sent: widget.publish(*sent), clock=run.clock)  # noqa: PLW0108
    widget = MemoryWidget(
        run.session, publisher.run, on_seen=publisher.seen, on_resync=publisher.resync
    )
    run.recorder.subscribe(publisher)
    run.recorder.publish()  # the first snapshot belongs to the beginning
    sizes.clear()
    for _ in range(MINUTE):
        run.tick()
        publisher.seen()
        run.recorder.publish()
    return list(sizes)


def figure_widget(points: int, sizes: list[int]) -> list[int]:
    """Return the messages of one tick that gives every trace its x and y anew."""
    figure = go.FigureWidget([go.Scatter(x=[], y=[]) for _ in range(SERIES)])
    x, y = np.arange(points) * INTERVAL, np.random.default_rng(0).random(points)
    sizes.clear()
    with figure.batch_update():
        for trace in figure.data:
            trace.x, trace.y = x, y
    return list(sizes)


def main() -> None:
    """Measure and print."""
    arguments = measure.cli(__doc__).parse_args()
    sizes = recorded_comm.record()
    ways: dict[str, tuple[Callable[[int, list[int]], list[int]], int]] = {
        "FigureWidget, x and y assigned anew": (figure_widget, 1),
        "hfmem_widget, all messages of a minute": (ours, MINUTE),
        "the same, with a step every second": (ours_with_steps, MINUTE),
    }
    rows, raw = [], {}
    for points in POINTS:
        for name, (send, ticks) in ways.items():
            sent = send(points, sizes)
            raw[f"{name}, {points}"] = sent
            mean, largest = sum(sent) / ticks, max(sent)
            rows.append(
                [name, f"{points:,}", f"{mean:,.0f}", f"{len(sent) / ticks:.2f}", f"{largest:,}"]
            )
    measure.report(
        f"Bytes on the wire, {SERIES} series",
        measure.machine("plotly", "anywidget", "ipywidgets"),
        ["way", "points a series", "bytes a tick", "messages a tick", "largest message"],
        rows,
        raw=raw,
        json_to=arguments.json,
    )


if __name__ == "__main__":
    main()
