"""Scripted runs, recorded as the publisher sends them: the same bytes every time and everywhere.

Every time is a multiple of `TICK` and every reading a whole number of MiB, so that all of them are exact in
binary, also as the wire's 32-bit floats.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from hfmem_widget.session import (
    Certainty,
    Device,
    Finding,
    Guide,
    Peak,
    PhaseSkew,
    RankRow,
    Ranks,
    RankStrip,
    Recorder,
    Sample,
    Series,
    Span,
    SpanKind,
    Timeline,
)
from hfmem_widget.text import MIB
from hfmem_widget.view.wire import widget
from hfmem_widget.view.wire.protocol import Buffers, Message
from hfmem_widget.view.wire.publisher import Publisher
from tests.scenes import FakeClock
from tests.scenes.stage import STARTED_AT

TICK: Final = 0.125
RUN: Final = "9f2c51aa"

GPU_METRICS: Final = ("allocated", "reserved", "peak", "device_used")
HOST_METRICS: Final = ("allocated", "reserved", "device_used")
PART_METRICS: Final = ("weights", "buffers", "gradients", "optimizer", "unattributed")
LABELS: Final = {
    "peak": "allocator peak",
    "unattributed": "not attributed when the step began",
    "cpu/allocated": "heap in use",
}
"""Labels that a source may give, other than those of the table."""


@dataclass
class Recording:
    """What left Python, and what a page that opens in the middle is given."""

    sent: list[tuple[Message, Buffers]] = field(default_factory=list)
    history: Mapping[str, Any] = field(default_factory=dict)  # as the widget packs it
    history_after: int = 0  # so many messages


class Watch:
    """A session sampled by hand, with a publisher that is called after each tick."""

    def __init__(self, label: str, *, capacity: int = 4096) -> None:
        self.recorder = Recorder(label, started_at=STARTED_AT)
        self.recorder.session.timeline = Timeline(0, capacity)
        self.session = self.recorder.session
        self.session.polling.interval = self.session.polling.current_interval = TICK
        self.clock = FakeClock()
        self.recording = Recording()
        self._publisher = Publisher(self.session, self._send, clock=self.clock)
        self._publisher.run = RUN
        self.recorder.subscribe(self._publisher)

    def tick(self, *mebibytes: float) -> None:
        """Let `TICK` pass and sample every series."""
        self.clock.advance(TICK)
        values = tuple(value * MIB for value in mebibytes)
        self.recorder.append(Sample(self.clock.now, values))
        self.session.polling.ticks += 1
        self.recorder.publish()

    def sleep(self, seconds: float) -> None:
        """Let time pass without a sample."""
        start = self.clock.now
        self.clock.advance(seconds)
        self.session.timeline.add_gap(start, self.clock.now + TICK)
        self.session.polling.missed += round(seconds / TICK)

    @contextmanager
    def span(
        self, kind: SpanKind, label: str, peaks: Mapping[str, Peak], outcome: str = "done"
    ) -> Iterator[Span]:
        """Keep a span open that begins and ends with the newest sample."""
        span = self.recorder.open_span(kind, label, self.session.last_sample)
        yield span
        self.recorder.close_span(span.id, self.session.last_sample, peaks, outcome)

    @contextmanager
    def step(
        self, number: int, tokens: float, peaks: Mapping[SpanKind, Mapping[str, float]]
    ) -> Iterator[None]:
        """Keep a step open whose parts had these peaks in MiB, by series key, within its first tick."""
        highest: dict[str, float] = {}
        with self.span("step", f"step {number}", peak_of := {}) as span:
            for kind, of_kind in peaks.items():
                with self.span(kind, kind, {key: exact(value) for key, value in of_kind.items()}):
                    pass
                for key, value in of_kind.items():
                    highest[key] = max(value, highest.get(key, 0.0))
            yield
            counts = {"step": number, "samples": 8, "longest": tokens / 8, "tokens": tokens}
            self.recorder.count(span.id, {**counts, "content_tokens": tokens - 8})
            peak_of.update({key: exact(value) for key, value in highest.items()})

    def open_page(self) -> None:
        """Pack the history as for a page that opens now."""
        self.recording.history = widget._pack_history((self.session, RUN, True), None)
        self.recording.history_after = len(self.recording.sent)

    def finish(self) -> Recording:
        self.recorder.stop(STARTED_AT + self.clock.now)
        self._publisher.finish()
        return self.recording

    def _send(self, message: Message, buffers: Buffers) -> None:
        self.recording.sent.append((message, buffers))


def gpu(index: int) -> Device:
    return Device(f"cuda:{index}", "NVIDIA H200", f"GPU-{index}", 143_771 * MIB)


def series_of(devices: Sequence[Device], metrics: Sequence[str] = GPU_METRICS) -> list[Series]:
    pairs = [(device.key, metric) for device in devices for metric in metrics]
    return [Series(*pair, LABELS.get("/".join(pair), LABELS.get(pair[1], ""))) for pair in pairs]


def exact(mebibytes: float) -> Peak:
    return Peak(mebibytes * MIB, "exact")


def one_gpu() -> Recording:
    """Record a cell with two steps whose peaks stand above every sample."""
    watch = Watch("fine-tune")
    watch.recorder.adopt([gpu(0)], series_of([gpu(0)]))
    watch.session.polling.cost = 0.000031
    watch.tick(0, 0, 0, 1300)
    with watch.span("cell", "fine-tune", {"cuda:0/allocated": exact(7160)}):
        for index in range(8):
            watch.tick(100 * index, 1024, 7160, 2324)
        with watch.span("step", "step 1", {"cuda:0/allocated": exact(6000)}):
            watch.tick(5000, 6144, 7160, 7444)
            watch.tick(3840, 6144, 7160, 7444)
        watch.open_page()
        with watch.span("step", "step 2", {"cuda:0/allocated": exact(7160)}):
            watch.tick(6500, 7588, 7160, 8888)
            watch.tick(3840, 7588, 7160, 8888)
        watch.tick(3840, 7588, 7160, 8888)
    return watch.finish()


def eight_gpus() -> Recording:
    """Record five and a half seconds in a timeline of 16 rows, which folds; one GPU of the eight is idle."""
    watch = Watch("pretrain", capacity=16)
    devices = [gpu(index) for index in range(8)]
    watch.recorder.adopt(devices, series_of(devices))
    watch.tick(*[0, 0, 0, 1300] * 8)
    peaks = {f"{one.key}/allocated": exact(40_000 + index) for index, one in enumerate(devices[:7])}
    with watch.span("cell", "pretrain", peaks):
        for tick in range(43):
            held = 30_000 if tick == 21 else 500 * (tick % 8)
            busy = [[held + index, held + 64, 40_000, held + 1364] for index in range(7)]
            watch.tick(*[value for one in busy for value in one], 0, 0, 0, 1300)
            if tick == 30:
                watch.open_page()
    return watch.finish()


def gap_and_spans() -> Recording:
    """Record nested spans of every certainty, a stretch without samples, and a reading that goes missing."""
    watch = Watch('über <b>"all"</b> & $x$')
    watch.recorder.adopt([gpu(0)], series_of([gpu(0)]))
    watch.tick(256, 512, 300, 1812)
    with watch.span(
        "cell", "a <cell>", {"cuda:0/allocated": Peak(900 * MIB, "at least")}, "interrupted"
    ):
        with (
            watch.span("train", "train", {}),
            watch.span("step", "step 1", {"cuda:0/allocated": exact(800)}),
        ):
            watch.tick(512, 1024, 800, 2324)
            watch.tick(768, 1024, 800, math.nan)
            watch.tick(640, 1024, 800, 2324)
        with watch.span("save", "save", {}):
            watch.sleep(7.0)
            watch.tick(640, 1024, 800, 2324)
        watch.open_page()
        with watch.span("evaluate", "evaluate", {}):
            watch.tick(700, 1024, 800, 2324)
            watch.tick(600, 1024, 800, 2324)
    return watch.finish()


def failed() -> Recording:
    """Record a cell that ran out of memory, and whose poller gave up before that."""
    watch = Watch("too large")
    watch.recorder.adopt([gpu(0)], series_of([gpu(0)]))
    with watch.span(
        "cell", "too large", {"cuda:0/allocated": exact(143_000)}, "raised OutOfMemoryError"
    ):
        for held in (0, 70_000, 140_000):
            watch.tick(held, held, 143_000, held + 1300)
        watch.open_page()
        watch.session.polling.stopped = "NVML was unloaded: driver/library version mismatch"
        watch.tick(142_000, 142_000, 143_000, 143_300)
    return watch.finish()


def gpu_appears() -> Recording:
    """Record the process' own memory, and a GPU from the moment at which the cell first used it."""
    watch = Watch("first use")
    host = Device("cpu", "AMD EPYC 9454")
    watch.recorder.adopt([host], series_of([host], HOST_METRICS))
    watch.tick(200, 700, 9000)
    with watch.span("cell", "first use", {"cuda:0/allocated": exact(512)}):
        for _ in range(4):
            watch.tick(220, 720, 9000)
        watch.open_page()
        watch.recorder.adopt(
            [gpu(0), host], [*series_of([host], HOST_METRICS), *series_of([gpu(0)])]
        )
        watch.tick(230, 730, 9000, 128, 256, 128, 1556)
        watch.tick(230, 730, 9000, 384, 512, 512, 1812)
        watch.tick(230, 730, 9000, 128, 512, 512, 1812)
    return watch.finish()


def training() -> Recording:
    """Record a training whose batches differ, with an evaluation, a save, and a second GPU from step 9."""
    watch = Watch("fine-tune")
    both = [gpu(0), gpu(1)]
    watch.recorder.adopt(both, series_of(both))
    watch.tick(0, 0, 0, 1300, 0, 0, 0, 1300)
    with (
        watch.span("cell", "fine-tune", {"cuda:0/allocated": exact(7024)}),
        watch.span("train", "train", {"cuda:0/allocated": exact(7024)}) as train,
    ):
        watch.recorder.count(train.id, {"steps": 12, "epochs": 1})
        for number in range(1, 13):
            tokens = 1024 if number == 7 else 256 + 64 * (number % 4)
            kinds: dict[SpanKind, float] = {"forward": 4000 + 2 * tokens}
            kinds |= {"backward": 4976 + 2 * tokens, "optimizer": 4800}
            second = {"cuda:1/allocated": 100 * number} if number > 8 else {}
            peaks = {kind: {"cuda:0/allocated": peak, **second} for kind, peak in kinds.items()}
            other = (100, 128, 128, 1428) if number > 8 else (0, 0, 0, 1300)
            with watch.step(number, tokens, peaks):
                watch.tick(4000 + tokens, 7400, 7024, 8700, *other)
                watch.tick(3840, 7400, 7024, 8700, *other)
                if number == 6:
                    watch.open_page()
            if number == 8:
                with watch.span("evaluate", "evaluate", {"cuda:0/allocated": exact(4200)}):
                    watch.tick(4100, 7400, 7024, 8700, *other)
        with watch.span("save", "save", {}):
            watch.tick(3840, 7400, 7024, 8700, *other)
    return watch.finish()


def anatomy() -> Recording:
    """Record two steps of a model whose weights are found in the cell, and a stretch that is no step."""
    watch = Watch("fine-tune")
    known = series_of([gpu(0)], (*GPU_METRICS, "context"))
    watch.recorder.adopt([gpu(0)], known)
    watch.tick(0, 0, 0, 1300, math.nan)
    with watch.span("cell", "fine-tune", {"cuda:0/allocated": exact(7024)}):
        watch.tick(1280, 1408, 7024, 2708, 620)
        watch.recorder.adopt([gpu(0)], [*known, *series_of([gpu(0)], PART_METRICS)])
        for number, states in ((1, 0), (2, 2432)):
            held = 1216 + states + 64
            peaks: dict[SpanKind, Mapping[str, float]] = {
                "forward": {"cuda:0/allocated": 6800},
                "backward": {"cuda:0/allocated": 7024},
                "optimizer": {"cuda:0/allocated": 5200},
            }
            with watch.step(number, 1024, peaks):
                watch.tick(6800, 7424, 7024, 8724, 620, 1200, 16, 0, states, 64)
                watch.tick(held + 1200, 7424, 7024, 8724, 620, 1200, 16, 1200, states, 64)
                watch.tick(3712, 7424, 7024, 8724, 620, 1200, 16, 0, 2432, 64)
            if number == 1:
                watch.open_page()
        watch.tick(3744, 7424, 7024, 8724, 620, 1200, 16, 0, 2432, math.nan)
    return watch.finish()


def judged() -> Recording:
    """Record a cell that goes over its budget, and a trend in it."""
    watch = Watch("leak")
    recorder, budget, band = watch.recorder, (2048.0 * MIB, 2048.0 * MIB), (8.0 * MIB, 8.0 * MIB)
    recorder.adopt([gpu(0)], series_of([gpu(0)], ["allocated"]))
    with watch.span("cell", "leak", {"cuda:0/allocated": exact(2560)}) as cell:
        watch.tick(1024)
        watch.open_page()
        watch.tick(2560)
        evidence = {"device": "cuda:0", "time": 0.25}
        over = Finding("budget", "warn", "over 2.00 GiB.", evidence, ("less",), cell.id)
        watch.session.findings.append(over)
        watch.session.guides += [
            Guide("cuda:0", "budget", "budget", 0.0, math.inf, *budget),
            Guide(
                "cuda:0", "trend", "+1 GiB a step", 0.125, 0.375, 1024.0 * MIB, 2048.0 * MIB, band
            ),
        ]
        watch.tick(2304)
    return watch.finish()


def ranks() -> Recording:
    """Record the overview of 16 ranks on two nodes: one is off, one falls silent, a third is hostile."""
    watch = Watch("pretrain")
    devices = [Device("ranks", "16 ranks on 2 nodes", total=4096.0 * MIB)]
    devices.append(Device("rank:9", "rank 9 · node1 · NVIDIA H200", total=4096.0 * MIB))
    of_all = ("allocated", "median", "lowest")
    own = series_of(devices[1:])
    watch.recorder.adopt(devices, [*(Series("ranks", metric) for metric in of_all), *own])
    strip = RankStrip(tuple(range(16)))
    watch.tick(0, 0, 0, 0, 0, 0, 0)
    with watch.span("block", "pretrain", {"ranks/allocated": exact(2560)}):
        for tick in range(1, 17):
            held = 1024 + 64 * tick
            cells = bytes(50 + tick + (rank == 9) * 100 for rank in range(15))
            cells += bytes([255 if tick > 8 else 50])
            strip = RankStrip(strip.first, (*strip.at, watch.clock.now), strip.cells + cells)
            watch.session.ranks = _ranks_at(held, tick, strip)
            watch.tick(held + 512, held, held - 128, held + 512, held + 640, 4000, held + 1024)
            if tick == 12:
                watch.open_page()
    return watch.finish()


def _ranks_at(held: int, tick: int, strip: RankStrip) -> Ranks:
    def row(rank: int, peak: float, certainty: Certainty, **more: Any) -> RankRow:
        known = {"host": f"node{rank // 8}", "device": "NVIDIA H200", "total": 4096.0 * MIB}
        figures = {"certainty": certainty, "peak": peak * MIB, "step": tick}
        return RankRow(rank, **{**known, **figures, **more})

    silent: dict[str, Any] = {"flag": "silent", "silent": 38.0} if tick > 8 else {}
    return Ranks(
        world=16,
        nodes=2,
        reporting=15 if tick > 8 else 16,
        engine="torchrun",
        shown=(9,),
        lowest=(held - 128) * MIB,
        median=held * MIB,
        lowest_rank=3,
        table=(
            row(9, held + 512, "exact", weights=512.0 * MIB, phase="backward", flag="outlier"),
            row(2, held, "at least", attempt=1, host="<img src=x> $x$", device="H100 <b>"),
            row(3, held - 128, "sampled", phase="forward"),
            row(15, math.nan, "exact", **{"total": math.nan, **silent}),
        ),
        phases=(PhaseSkew("backward", held * MIB, held * MIB, (held + 512) * MIB, 9),),
        strip=strip,
    )


RUNS: Final[dict[str, Callable[[], Recording]]] = {
    "one-gpu": one_gpu,
    "eight-gpus": eight_gpus,
    "gap-and-spans": gap_and_spans,
    "failed": failed,
    "gpu-appears": gpu_appears,
    "training": training,
    "anatomy": anatomy,
    "judged": judged,
    "ranks": ranks,
}
