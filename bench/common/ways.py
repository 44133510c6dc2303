"""What a training run may be under while `slowdown.py` times it: nothing, us, and others."""

import io
import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from importlib.util import find_spec
from types import SimpleNamespace

import torch
from transformers.trainer_utils import TrainerMemoryTracker

import hfmem_widget
from hfmem_widget.drivers.training.loop import resume_steps, yield_steps
from hfmem_widget.drivers.training.model_hooks import ModelHooks
from hfmem_widget.drivers.training.run import TrainingRun
from hfmem_widget.monitor.grouping import Grouping
from hfmem_widget.monitor.process import threads_in_group
from hfmem_widget.monitor.shared import shared_monitor
from hfmem_widget.session import Session, SpanKind
from hfmem_widget.view.wire.protocol import Buffers, Message
from hfmem_widget.view.wire.publisher import Publisher

CONTROL = "control: off against off"
TRACKER = "Trainer's skip_memory_metrics=False"

NextPhase = Callable[[SpanKind], object]
"""Called within a step where its forward part ends, and where its backward part does."""


@dataclass(frozen=True, slots=True)
class Way:
    """Something that a training run may be under.

    Attributes
    ----------
    block : callable
        Returns what to keep open around a block, untimed; entering it gives the session, if there is one.
    step : callable
        Returns what to keep open around each step, timed; entering it gives a `NextPhase`.
    """

    block: Callable[[], AbstractContextManager[Session | None]]
    step: Callable[[], AbstractContextManager[NextPhase]] = lambda: nullcontext(lambda _kind: None)


def watched(phases: str = "auto") -> AbstractContextManager[Session]:
    """Watch, and show nothing."""
    return hfmem_widget.watch("bench", quiet=True, phases=phases)


@contextmanager
def watched_with_chart(phases: str = "auto") -> Iterator[Session]:
    """Watch, and make and pack every message that a chart would get."""
    with watched(phases) as session:
        shared_monitor().recorder(session).subscribe(Publisher(session, _pack))
        yield session


@contextmanager
def step_in_spans() -> Iterator[NextPhase]:
    """Give a step and each of its parts a span in the session that is being watched."""
    monitor = shared_monitor()
    session = monitor.current
    assert session is not None
    step = monitor.open_span(session, "step", "step").id
    part = monitor.open_span(session, "forward", "forward").id

    def next_phase(kind: SpanKind) -> None:
        nonlocal part
        part = monitor.turn(session, part, kind, kind).id

    yield next_phase
    monitor.close_span(session, part)
    monitor.close_span(session, step)


def goes_on(grouping: Grouping) -> None:
    """Go on after what was not watched: that time does not pay for what was measured before."""
    if grouping._budget is not None:  # noqa: SLF001
        grouping._budget._now = grouping._began = time.perf_counter()  # noqa: SLF001


class Everything:
    """A Trainer's events, hooks on its model, tokens of every batch, and a chart that is fed.

    Parameters
    ----------
    model : torch.nn.Module
    phases : {"auto", "all"}, optional
        On which steps phases are measured. What a block may take is what the one before has left.
    """

    def __init__(self, model: torch.nn.Module, phases: str = "auto") -> None:
        self._model = model
        self._phases = phases
        self._run: TrainingRun | None = None
        self._grouping: Grouping | None = None
        self.limited = ""
        self._steps = 0

    @contextmanager
    def block(self) -> Iterator[Session]:
        """Follow the model as a Trainer's is followed."""
        with watched_with_chart(self._phases) as session:
            self._run = run = TrainingRun(shared_monitor(), session)
            self._grouping = run.grouping = self._grouping or run.grouping
            goes_on(run.grouping)
            yield_steps(run)
            hooks = ModelHooks(
                self._model,
                before=run.forward_begins,
                after=run.forward_ended,
                failures=True,
                unguarded_on=threads_in_group,
            )
            run.train_begins("train", {"steps": 100.0})
            try:
                yield session
            finally:
                hooks.remove()
                self.limited = run.grouping.polling.limited
                resume_steps(run)
                run.ended()

    @contextmanager
    def step(self) -> Iterator[NextPhase]:
        """Tell the run what a Trainer's callbacks tell it."""
        run = self._run
        assert run is not None
        self._steps += 1
        run.step_begins(self._steps)

        def next_phase(kind: SpanKind) -> None:
            if kind == "optimizer":
                run.optimizer_begins()

        yield next_phase
        run.optimizer_ended()
        run.step_ended()


def _pack(message: Message, _buffers: Buffers) -> None:
    json.dumps(message)


class Tracker(AbstractContextManager[None]):
    """The Trainer's own memory tracker, around a block."""

    def __enter__(self) -> None:
        self.tracker = TrainerMemoryTracker(skip_memory_metrics=False)
        self.train()

    def __exit__(self, *_: object) -> None:
        self.evaluate()

    def train(self) -> None:
        """Start; the tracker knows the stage by the name of the method that calls it."""
        self.tracker.start()

    def evaluate(self) -> None:
        """Stop without making metrics."""
        self.tracker.peak_monitoring = False


@contextmanager
def _lightning_step() -> Iterator[NextPhase]:
    """Read what Lightning's DeviceStatsMonitor reads, at a batch's start and at its end."""
    from lightning.pytorch.accelerators import CUDAAccelerator

    accelerator, device = CUDAAccelerator(), torch.device("cuda:0")
    accelerator.get_device_stats(device)
    yield lambda _kind: None
    accelerator.get_device_stats(device)


@contextmanager
def _stormlog() -> Iterator[None]:
    from stormlog import MemoryTracker

    tracker = MemoryTracker(sampling_interval=0.1)
    tracker.start_tracking()
    try:
        yield
    finally:
        tracker.stop_tracking()


@contextmanager
def _ipyexperiments() -> Iterator[None]:
    """Do around a block what it does around a cell; collecting garbage before and after it is left out."""
    import pynvml
    from ipyexperiments.cell_logger import CellLogger
    from IPython.core.interactiveshell import InteractiveShell

    InteractiveShell.instance()
    backend = "pytorch" if torch.cuda.is_available() else "cpu"
    if backend == "pytorch":
        pynvml.nvmlInit()
    experiment = SimpleNamespace(
        backend=backend, pynvml=pynvml, torch=torch, gpu_current_device_id=0
    )
    logger = CellLogger(exp=experiment, gc_collect=False)
    with redirect_stdout(io.StringIO()):
        logger.start()
        try:
            yield
        finally:
            logger.stop()


def traceml(model: torch.nn.Module) -> Way:
    """Return TraceML's bracket around every step, which its Trainer callback opens and closes.

    What it patches stays patched, so it belongs in a run of its own: ``--only TraceML``.
    """

    @contextmanager
    def block() -> Iterator[None]:
        import traceml_ai

        traceml_ai.init(mode="auto")
        yield

    @contextmanager
    def step() -> Iterator[NextPhase]:
        import traceml_ai

        with traceml_ai.trace_step(model):
            yield lambda _kind: None

    return Way(block, step)


OFF = Way(nullcontext)


def ways_for(model: torch.nn.Module) -> dict[str, Way]:
    """Return all ways by name; what is not installed is left out."""
    everything, ungoverned = Everything(model), Everything(model, "all")
    ways = {
        CONTROL: OFF,
        "hfmem_widget.watch": Way(watched),
        "hfmem_widget.watch, feeding a chart": Way(watched_with_chart),
        "hfmem_widget.watch, with six edges a step": Way(watched, step_in_spans),
        "hfmem_widget: everything beside a Trainer": Way(everything.block, everything.step),
        "hfmem_widget: everything beside a Trainer, with all phases": Way(
            ungoverned.block, ungoverned.step
        ),
    }
    if find_spec("lightning") and torch.cuda.is_available():
        ways["Lightning: what DeviceStatsMonitor reads"] = Way(nullcontext, _lightning_step)
    if find_spec("stormlog") and torch.cuda.is_available():
        ways["stormlog: MemoryTracker at 10 Hz"] = Way(_stormlog)
    if find_spec("traceml_ai"):
        ways["TraceML: trace_step"] = traceml(model)
    return ways


SLOW_WAYS: dict[str, Way] = {TRACKER: Way(Tracker)}
if find_spec("ipyexperiments"):
    SLOW_WAYS["ipyexperiments: CellLogger"] = Way(_ipyexperiments)
"""What costs so much that a few pairs tell it, and so long that many would take minutes."""
