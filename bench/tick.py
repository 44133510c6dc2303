"""What one tick of the poller and one edge of a span cost, against the calls they are made of.

Time is CPU time of the polling thread, which is at least the time that it holds the interpreter's
lock, counted in two ways: called back to back, and every 10 ms as a poller comes, when caches have
gone cold. The last column is a check from the other side: how much longer a busy main thread takes
for each tick made beside it.

Each tick of ours is one of a run at 10 Hz by its clock, so that what is only read once a second is
read at every tenth. It reads the GPU (allocator and driver), takes what tensors were counted, and at every
second tick reads the host. Where there is no GPU, invented counters stand behind the real torch and pynvml,
of as many ``--devices`` as wanted. The raw calls read those that are ``--used``.

Edges are those of a training step's parts, four spans deep, 8 ms apart by the clock. They are made on the
user's own thread, so there is nobody else to lose time.
"""

import importlib.util
import os
import statistics
import sys
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module

import pynvml
import torch
from common import gpu_stand_in, measure

from hfmem_widget.monitor.attribution import Attribution
from hfmem_widget.monitor.monitor import Monitor
from hfmem_widget.monitor.peaks import PeakLedger
from hfmem_widget.monitor.sampler import Sampler
from hfmem_widget.monitor.subjects import Subjects
from hfmem_widget.monitor.ticker import Ticker
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import HELD
from hfmem_widget.sources.children import ChildSource, find_processes
from hfmem_widget.sources.counters import AllocatorSource, TensorSource
from hfmem_widget.sources.host import HostSource
from hfmem_widget.sources.nvml import NvmlSource
from hfmem_widget.sources.torch_cuda import CudaAllocator
from hfmem_widget.view.wire.publisher import Publisher

BASE = "raw calls: memory_stats_as_nested_dict + NVML memory"
OURS = "hfmem_widget: a tick"
EDGE_BASE = "raw calls: statistics, reset, statistics"
EDGE_SECONDS = 0.008
HEAD = ["way", "µs back to back", "x raw", "µs every 10 ms", "x raw"]
BATCH = 50
PAUSE = 0.01
SPINS = 400_000
SWITCH_INTERVAL = 2e-4

Way = Callable[[], object]


class ListClock(list[float]):
    """Seconds that pass when told to, and cost no more to read than the system's."""

    def __init__(self) -> None:
        super().__init__([0.0])
        self.read = partial(self.__getitem__, 0)

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self[0] += seconds


class HandTicker(Ticker):
    """A ticker without a thread, whose ticks are made by whoever holds it."""

    alive = True

    def start(self) -> None:
        """Nothing runs by itself."""

    def tick_now(self, timeout: float) -> bool:  # noqa: ARG002  (as `Ticker` has it)
        """Make one tick."""
        self._tick()
        return True


class Poller:
    """A monitor with a session and an open span, as within a watched cell."""

    def __init__(self, *, charted: bool, used: int) -> None:
        self.clock = ListClock()
        allocator = CudaAllocator()
        torch_cuda = AllocatorSource(allocator)
        tensors = TensorSource()
        tensors.count({f"cuda:{index}": dict.fromkeys(HELD, 1e9) for index in range(used)})
        sources = (
            torch_cuda,
            NvmlSource(torch_cuda, os.environ),
            HostSource(),
            ChildSource(find_processes()),
            tensors,
        )
        self.ledger = PeakLedger(allocator)
        self.monitor = Monitor(
            Sampler(sources, clock=self.clock.read),
            self.ledger,
            clock=self.clock.read,
            wall=self.clock.read,
            # As in a kernel: what was counted at an edge is known to the monitor.
            attribution=Attribution(tensors, Subjects(dict), clock=self.clock.read),
            make_ticker=self._ticker,
        )
        self.session = self.monitor.begin(WatchOptions())
        self.monitor.open_span(self.session, "cell", "bench")
        if charted:
            publisher = Publisher(
                self.session, lambda _message, _buffers: None, clock=self.clock.read
            )
            self.monitor.recorder(self.session).subscribe(publisher)

    def tick(self) -> None:
        """Let 0.1 s pass and make the tick that is due."""
        self.clock.advance(0.1)
        self.tick_of_monitor()

    def open_parts(self) -> None:
        """Open what is open around the parts of a step."""
        for kind in ("train", "epoch", "step"):
            self.monitor.open_span(self.session, kind, kind)
        self.part = self.monitor.open_span(self.session, "forward", "forward").id

    def two_edges(self) -> None:
        """Open a span and close it again."""
        self.clock.advance(EDGE_SECONDS)
        part = self.monitor.open_span(self.session, "forward", "forward").id
        self.clock.advance(EDGE_SECONDS)
        self.monitor.close_span(self.session, part)

    def turn(self) -> None:
        """Close a span and open its neighbour."""
        self.clock.advance(EDGE_SECONDS)
        self.part = self.monitor.turn(self.session, self.part, "backward", "backward").id

    def group(self) -> None:
        """Open a span that steps share, and close it again."""
        self.clock.advance(EDGE_SECONDS)
        span_id = self.monitor.open_span(self.session, "step", "step").id
        self.clock.advance(EDGE_SECONDS)
        self.monitor.close_span(self.session, span_id)

    def _ticker(self, tick: Callable[[], object], interval: float) -> Ticker:
        self.tick_of_monitor = tick
        return HandTicker(tick, interval, clock=self.clock.read)


def rivals(used: int, *, on_gpu: bool) -> dict[str, Way]:
    """Return everything to compare with that is installed here, and reads all that is used."""
    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(used)]

    def raw_calls() -> None:
        for index, handle in enumerate(handles):
            torch.cuda.memory_stats_as_nested_dict(index)
            pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)

    def four_getters() -> None:
        for index in range(used):
            torch.cuda.memory_allocated(index)
            torch.cuda.memory_reserved(index)
            torch.cuda.max_memory_allocated(index)
            torch.cuda.max_memory_reserved(index)

    ways: dict[str, Way] = {BASE: raw_calls, "torch: the usual four getters": four_getters}
    if used > 1:
        return ways
    if importlib.util.find_spec("nvitop"):
        nvitop = import_module("nvitop")
        ways["nvitop: Device.memory_info"] = nvitop.Device(0).memory_info
        if on_gpu:  # the stub lacks most of what it asks
            collector = nvitop.ResourceMetricCollector([nvitop.Device(0)])
            ways["nvitop: ResourceMetricCollector"] = collector.take_snapshots
    if importlib.util.find_spec("stormlog"):
        collectors = import_module("stormlog.device_collectors")
        sample = collectors.CudaDeviceCollector("cuda:0").sample
        ways["stormlog: CudaDeviceCollector.sample"] = sample
    return ways


def edges(used: int) -> tuple[dict[str, Way], list[PeakLedger]]:
    """Return what is done at an edge, and whose entry points are then in the way of others."""
    statistics_of, reset = torch._C._cuda_memoryStats, torch._C._cuda_resetPeakMemoryStats  # noqa: SLF001

    def raw_calls() -> None:
        for index in range(used):
            statistics_of(index)
            reset(index)
            statistics_of(index)

    nested, turned, grouped = pollers = [Poller(charted=False, used=used) for _ in range(3)]
    for one in (nested, turned):
        one.open_parts()
    ways: dict[str, Way] = {
        EDGE_BASE: raw_calls,
        "hfmem_widget: open_span and close_span, two edges": nested.two_edges,
        "hfmem_widget: turn, one edge": turned.turn,
        "hfmem_widget: a span of several steps, both edges": grouped.group,
    }
    return ways, [poller.ledger for poller in pollers]


def back_to_back(way: Way) -> float:
    """Return CPU seconds a call."""
    way()  # ours wraps the allocator's entry points at its first tick
    started = time.thread_time()
    for _ in range(BATCH):
        way()
    return (time.thread_time() - started) / BATCH


def as_polled(way: Way) -> float:
    """Return CPU seconds a call, each after a pause: the mean of ten, so that one of ours is slow."""
    way()
    spent = []
    for _ in range(10):
        time.sleep(PAUSE)
        started = time.thread_time()
        way()
        spent.append(time.thread_time() - started)
    return statistics.fmean(spent)


def lost_by_main_thread(way: Way) -> float:
    """Return the seconds that counting takes longer for each call made on another thread meanwhile."""
    calls = 0
    stop = threading.Event()

    def call() -> None:
        nonlocal calls
        while not stop.is_set():
            way()
            calls += 1

    alone = _count()
    thread = threading.Thread(target=call)
    thread.start()
    while calls == 0:
        time.sleep(0.001)
    first = calls
    beside = _count()
    made = calls - first
    stop.set()
    thread.join()
    return (beside - (alone + _count()) / 2) / max(made, 1)


def _count() -> float:
    started = time.perf_counter()
    for _ in range(SPINS):
        pass
    return time.perf_counter() - started


def main() -> None:
    """Measure and print."""
    parser = measure.cli(__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--devices", type=int, default=1, help="GPUs, where they are invented")
    parser.add_argument("--used", type=int, default=1, help="GPUs that this process allocates on")
    arguments = parser.parse_args()
    devices, used = arguments.devices, arguments.used
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        devices = torch.cuda.device_count()
        for index in range(used):
            torch.ones(1, device=f"cuda:{index}")
        device = torch.cuda.get_device_name(0)
    else:
        gpu_stand_in.restart_with_nvml_stub(devices)
        gpu_stand_in.give_torch_a_gpu(torch, devices, used)
        device = "NO GPU: invented counters behind the real torch and pynvml"
    warnings.simplefilter("ignore")

    plain, charted = (Poller(charted=charted, used=used) for charted in (False, True))
    ways = rivals(used, on_gpu=on_gpu)
    ways |= {OURS: plain.tick, "hfmem_widget: a tick that feeds a chart": charted.tick}
    at_edges, ledgers = edges(used)
    ledgers += [plain.ledger, charted.ledger]

    def unwatched(measured: Callable[[Way], float], way: Way) -> Callable[[], float]:
        def run() -> float:
            # The allocator's entry points are ours only while ours is measured.
            try:
                return measured(way)
            finally:
                for ledger in ledgers:
                    ledger.uninstall()

        return run

    def rounds_of(
        measured: Callable[[Way], float], rounds: int, ways: dict[str, Way] = ways
    ) -> measure.Rounds:
        runs = {name: unwatched(measured, way) for name, way in ways.items()}
        return measure.interleave(runs, rounds)

    with ThreadPoolExecutor(1, "hfmem-poller") as poller:
        warm = poller.submit(rounds_of, back_to_back, arguments.rounds).result()
        cold = poller.submit(rounds_of, as_polled, arguments.rounds).result()
    edge_warm = rounds_of(back_to_back, arguments.rounds, at_edges)
    edge_cold = rounds_of(as_polled, arguments.rounds, at_edges)
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL)  # many ticks, where the default lets few happen
    lost = rounds_of(lost_by_main_thread, arguments.rounds)
    sys.setswitchinterval(before)

    gpus = f"{used} of {devices} GPUs used"
    where = f"{measure.machine('torch', 'nvidia-ml-py', 'nvitop', 'stormlog')}; {device}"
    absent = [name for name in ("nvitop", "stormlog") if not importlib.util.find_spec(name)]
    measure.report(
        f"One tick, {gpus} (median and 95 % interval)",
        where,
        [*HEAD, "µs lost by the main thread"],
        [
            [*cells, measure.estimate(lost[cells[0]]).text(1e-6)]
            for cells in rows_of(warm, cold, BASE)
        ],
        notes=[f"{name}: not installed, not measured." for name in absent],
    )
    measure.report(
        f"Edges, {gpus} (median and 95 % interval)",
        where,
        HEAD,
        rows_of(edge_warm, edge_cold, EDGE_BASE),
        raw={"back to back": warm | edge_warm, "every 10 ms": cold | edge_cold, "lost": lost},
        json_to=arguments.json,
    )


def rows_of(warm: measure.Rounds, cold: measure.Rounds, base: str) -> list[list[str]]:
    """Return what was measured in both ways under `HEAD`."""
    return [
        [
            name,
            measure.estimate(warm[name]).text(1e-6),
            measure.ratio(warm[name], warm[base]).text(digits=2),
            measure.estimate(cold[name]).text(1e-6),
            measure.ratio(cold[name], cold[base]).text(digits=2),
        ]
        for name in warm
    ]


if __name__ == "__main__":
    main()
