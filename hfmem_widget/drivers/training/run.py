"""One training as spans: train, epoch, step, micro-batch, and the phases of a step."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Concatenate, ParamSpec

from hfmem_widget.errors import WatchStateError
from hfmem_widget.guard import interrupts_deferred, is_for_user, seconds_of_an_event
from hfmem_widget.monitor.grouping import UNSEEN_GUARDS
from hfmem_widget.monitor.monitor import Monitor, outcome_of
from hfmem_widget.monitor.process import threads_in_group
from hfmem_widget.session import NO_STEP, Peak, Recorder, Session, Span, SpanKind
from hfmem_widget.session.recorder import NO_COUNTS
from hfmem_widget.session.steps import size_of
from hfmem_widget.text import GIB

_PHASES: tuple[SpanKind, ...] = ("forward", "backward", "optimizer")

_TOTALS: tuple[tuple[str, str, Callable[[Iterable[float]], float]], ...] = (
    *((name, name, sum) for name in ("samples", "tokens", "content_tokens")),
    *(("longest", "longest", max), ("largest_batch", "tokens", max)),
)
"""The counts of a step: the name, the count of each batch, and how those of all batches make one."""

P = ParamSpec("P")


def _harmless(
    method: Callable[Concatenate[TrainingRun, P], None],
) -> Callable[Concatenate[TrainingRun, P], None]:
    """Guard a method: faults are reported, interrupts deferred; after the run's end it does nothing."""

    @wraps(method)
    def guarded(self: TrainingRun, /, *args: P.args, **kwargs: P.kwargs) -> None:
        if not self.alive:
            return
        began = self._clock()
        try:
            with interrupts_deferred():
                method(self, *args, **kwargs)
            self.grouping.spend(self._clock() - began + seconds_of_an_event())
        except WatchStateError:
            pass  # the session was ended on another thread in the middle of this
        except Exception as error:
            self.leave_group()
            if is_for_user(error):
                raise

    return guarded


class TrainingRun:
    """Opens and closes the spans of one training in one session, as its events come in.

    An event on the wrong thread, or one that comes twice, does nothing. If the run `accumulates`, a step has
    several `batches`, each of which is a *substep*. `grouping` says which steps share one span, without
    substeps and phases. If it `needs_events`, torch's events tell where steps end; otherwise those within a
    group are not followed. The `clock` returns seconds.
    """

    needs_events = True

    def __init__(
        self,
        monitor: Monitor,
        session: Session,
        *,
        batches: int = 1,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.session = session
        self.batches = batches
        self.accumulates = batches > 1
        self._clock = clock
        self.grouping = monitor.grouping(session)
        self._beside_edges = monitor.attribution.seconds_beside_edges
        self._monitor = monitor
        self._attribution, self._ledger = monitor.attribution, monitor.ledger
        self._open_ids = open_ids = monitor.open_ids(session)
        self._outermost = next(iter(tuple(open_ids)), 0)
        self._recorder: Recorder | None = None
        self._open: dict[SpanKind, int] = {}
        self._asides: dict[int, SpanKind] = {}
        self._counts: dict[str, float] = {}
        self._shapes: list[Mapping[str, float]] = []  # of the batches so far
        self._ended: int | None = None  # the number of the last step of the group that has ended
        self._in_step = False
        self._substeps = 0
        self._own_steps: set[int] = set()
        self._since_log: dict[str, float] = {}
        self._thread = threading.get_ident()

    @property
    def alive(self) -> bool:
        """False once its session or its cell has ended, and on another thread."""
        return threading.get_ident() == self._thread and self._is_under_way()

    @property
    def is_elsewhere(self) -> bool:
        """True while it is alive on another thread."""
        return threading.get_ident() != self._thread and self._is_under_way()

    def _is_under_way(self) -> bool:
        return self._open.get("train", self._outermost) in self._open_ids

    @property
    def is_forward(self) -> bool:
        """True while a forward pass, or the loss after it, is open."""
        return "forward" in self._open

    @property
    def evaluating(self) -> bool:
        """True within an evaluation."""
        return "evaluate" in self._asides.values()

    @_harmless
    def follow(self, *subjects: object) -> None:
        """Count what these models and optimizers hold."""
        self._monitor.attribution.follow(*subjects)

    @_harmless
    def train_begins(self, label: str, counts: Mapping[str, float]) -> None:
        """Begin a training, or a further attempt at it."""
        self._close("train", "tried again")  # by ``auto_find_batch_size``, which announces no end
        self._recorder = recorder = self._monitor.recorder(self.session)
        recorder.unsubscribe(self._remember)
        recorder.on_step(self._remember)
        self._begin("train", label)
        recorder.count(self._open["train"], counts)

    @_harmless
    def epoch_begins(self, label: str) -> None:
        """Begin an epoch; the one before is over."""
        self._close("epoch")
        self._begin("epoch", label)

    @property
    def in_group(self) -> bool:
        """True while steps share a span, and on the thread that trains."""
        return (
            self.grouping.is_group
            and self._open.get("step") in self._open_ids
            and threading.get_ident() == self._thread
        )

    def step_begins(self, number: int) -> None:
        """Begin an optimizer step, with the first of its batches; within a group no span is opened."""
        if self.in_group:
            self._in_step = True
        else:
            self._step_begins(number)

    @_harmless
    def _step_begins(self, number: int) -> None:
        self._close("step")
        attribution, grouping, before = self._attribution, self.grouping, self._beside_edges
        self._beside_edges = attribution.seconds_beside_edges
        grouping.spend(self._beside_edges - before)
        grouping.begins(self._clock())
        self._in_step = True
        self._counts, self._shapes = {"step": float(number)}, []
        self._ended = None
        self._substeps = 0
        if grouping.is_group:
            self._counts["first"] = float(number)
            self._ended = number - 1
            attribution.rests = True
            # Without a counter a peak is the highest sample: one comes with a backward pass.
            if not self.needs_events and self._ledger.in_use:
                threads_in_group[self._thread] = self._open_ids
        self._begin("step", f"step {number}")
        if grouping.is_group:
            self._monitor.group_begins(self.session, self._end_between_steps)
        self._own_steps.add(self._open["step"])

    def forward_begins(self, shape: Mapping[str, float]) -> None:
        """Begin a forward pass; it counts only within a step and where gradients are wanted."""
        if "step" not in self._open or self._asides:
            return
        torch = sys.modules.get("torch")  # as in `wants_gradients`, without its call
        if torch is None or torch.is_grad_enabled():
            if threading.get_ident() == self._thread:
                self._shapes.append(shape)
                self._in_step = True
            if not self.grouping.is_group:
                self._forward_begins()

    @_harmless
    def _forward_begins(self) -> None:
        if self.accumulates and "substep" not in self._open:
            self._substeps += 1
            self._begin("substep", f"batch {self._substeps}")
        if "forward" not in self._open:
            self._turn("forward")

    def count(self, shape: Mapping[str, float]) -> None:
        """Count a batch of the step; between steps this has no effect."""
        if threading.get_ident() == self._thread:
            self._shapes.append(shape)

    def forward_ended(self, error: Exception | None = None) -> None:
        """End a forward pass that has failed; else it goes on until the backward pass begins."""
        if error is not None:
            self._end("forward", outcome_of(error))

    def backward_begins(self) -> None:
        """Begin a backward pass; one within it, such as a checkpoint's recomputation, belongs to it."""
        needs_nothing = self.grouping.is_group and self._ledger.in_use
        if "step" in self._open and not self._asides and not needs_nothing:
            self._begin_backward()

    @_harmless
    def _begin_backward(self) -> None:
        if self.grouping.is_group:
            self._monitor.sample(self.session)
        elif "backward" not in self._open:
            self._turn("backward")

    def backward_ended(self, outcome: str) -> None:
        """End a backward pass, and with it a batch of a step that has several."""
        kinds: tuple[SpanKind, ...] = ("backward", "substep")
        for kind in kinds:
            if kind in self._open:
                self._end(kind, outcome)

    @_harmless
    def substep_ended(self) -> None:
        """End a batch that was not the last of its step."""
        for kind in ("substep", *_PHASES):
            self._close(kind)

    def optimizer_begins(self) -> None:
        """Turn to the optimizer: the gradients are ready."""
        # The guard takes longer than everything else that a short step needs.
        if self._has_phases or "substep" in self._open:
            self._turn_to_optimizer()

    @_harmless
    def _turn_to_optimizer(self) -> None:
        self._close("substep")
        if self._has_phases:
            self._turn("optimizer")

    def optimizer_ended(self) -> None:
        """End the optimizer; gradients are freed next."""
        if "optimizer" in self._open:
            self._end("optimizer")

    def step_ended(self, outcome: str = "done", counts: Mapping[str, float] = NO_COUNTS) -> None:
        """End the step; a caller that counts the steps of a group gives their numbers in `counts`."""
        # With the cold caches that a step leaves behind each function takes 4 µs, and a guard far more.
        ended, is_here = self._ended, threading.get_ident() == self._thread
        if ended is not None and is_here and outcome == "done" and not counts:
            self._ended, self._in_step = ended + 1, False
            has_lasted = self._clock() >= self.grouping.until
            is_over = has_lasted and self.grouping.may_end(int(self._counts["first"]), ended + 1)
            if not is_over and self._open.get("step") in self._open_ids:
                return
        if "step" in self._open:
            self._end_step(outcome, counts)

    @_harmless
    def _end_step(self, outcome: str, counts: Mapping[str, float]) -> None:
        self._counts |= counts
        if counts:
            self._ended = None
        self._close("step", outcome)

    def _end_between_steps(self) -> None:
        if self.in_group and not self._in_step:
            self._end("step")

    def epoch_ended(self) -> None:
        """End the epoch."""
        self._end("epoch")

    def ended(self, outcome: str = "done") -> None:
        """End everything, however it ended; ending again does nothing."""
        self._end(next(iter(self._open), "train"), outcome)
        self.grouping.stops()
        self.leave_group()
        # A session outlives the run that it ended under.
        if self._recorder is not None:
            self._recorder.unsubscribe(self._remember)

    @contextmanager
    def aside(
        self, kind: SpanKind, label: str, counts: Mapping[str, float] = NO_COUNTS
    ) -> Iterator[None]:
        """Keep an evaluation, a prediction or a save open, also within another; none of it is a step."""
        try:
            self._begin_aside(kind, label, counts)
            yield
        except BaseException as error:
            self._end_aside(outcome_of(error))
            raise
        else:
            self._end_aside("done")

    def take_figures(self, kind: SpanKind = "step") -> dict[str, float]:
        """Return the figures for a log: of the steps since the last call, or of an open span so far.

        They are ``peak_allocated``, ``peak_reserved`` and ``allocated`` in bytes, of the device where each is
        highest, and ``tokens`` of steps, padding included. Unknown figures are left out.
        """
        if not self.alive:
            return {}
        if kind == "step" and self.in_group:
            self._end("step")
        figures: dict[str, float] = {}
        open_spans = [span_id for span_id in self._asides if self._asides[span_id] == kind]
        if kind == "step":
            figures, self._since_log = self._since_log, {}
        elif open_spans:
            peaks = self._monitor.peaks_so_far(self.session, open_spans[-1])
            self._raise_peaks(figures, peaks)
        if figures:
            figures["allocated"] = max(
                self.session.latest(f"{device}/allocated") for device in self._trained_on()
            )
        return figures

    def leave_group(self) -> None:
        """Follow every event of this thread again."""
        threads_in_group.pop(self._thread, None)
        self._attribution.rests = False

    @property
    def _has_phases(self) -> bool:
        return "step" in self._open and not self.grouping.is_group

    def _remember(self, step: Span) -> None:
        if step.id not in self._own_steps:  # another Trainer may train within one
            return
        self._own_steps.discard(step.id)
        self._raise_peaks(self._since_log, step.peaks)
        if tokens := step.counts.get("tokens"):
            self._since_log["tokens"] = self._since_log.get("tokens", 0.0) + tokens

    def _raise_peaks(self, figures: dict[str, float], peaks: Mapping[str, Peak]) -> None:
        for device in self._trained_on():
            for metric in ("allocated", "reserved"):
                if peak := peaks.get(f"{device}/{metric}"):
                    name = f"peak_{metric}"
                    figures[name] = max(figures.get(name, peak.value), peak.value)

    def _trained_on(self) -> list[str]:
        keys = [device.key for device in self.session.devices]
        # A GPU on which this process has allocated nothing (0 or NaN) is not its own.
        return [
            key for key in keys if key != "cpu" and self.session.latest(f"{key}/allocated") > 0
        ] or keys[-1:]

    @_harmless
    def _begin_aside(self, kind: SpanKind, label: str, counts: Mapping[str, float]) -> None:
        if self.in_group:
            self._close("step")
        span = self._monitor.open_span(self.session, kind, label)
        self._asides[span.id] = kind
        self._monitor.recorder(self.session).count(span.id, counts)

    @_harmless
    def _end_aside(self, outcome: str) -> None:
        if self._asides:
            self._monitor.close_span(self.session, self._asides.popitem()[0], outcome)

    @_harmless
    def _end(self, kind: SpanKind, outcome: str = "done") -> None:
        self._close(kind, outcome)

    def _begin(self, kind: SpanKind, label: str) -> None:
        self._open[kind] = self._monitor.open_span(self.session, kind, label).id

    def _close(self, kind: SpanKind, outcome: str = "done") -> None:
        if kind not in self._open:
            return
        for inner in reversed(list(self._open)):
            # The tokens of a step that fails matter most, so a step is counted however it ends.
            inner_outcome = "done" if outcome == NO_STEP and inner != kind else outcome
            counts = self._counts_of_step(inner_outcome) if inner == "step" else {}
            if inner == "step":
                self.leave_group()  # so that the gradients after a group are seen
            self._monitor.close_span(self.session, self._open.pop(inner), inner_outcome, counts)
            if inner == "step":
                steps = 0 if inner_outcome == NO_STEP else size_of(counts)
                # Steps that a loop counts cost next to nothing.
                events = 0 if self._ended is None else steps * UNSEEN_GUARDS
                self.grouping.ended(steps, self._clock(), events * seconds_of_an_event())
            if inner == kind:
                return

    def _counts_of_step(self, outcome: str) -> dict[str, float]:
        counts = dict(self._counts)
        for name, part, total in _TOTALS:
            if parts := [shape[part] for shape in self._shapes if part in shape]:
                counts[name] = total(parts)
        if self._ended is not None:
            has_failed = self._in_step and outcome != "done"  # the one after
            counts["step"] = max(counts["first"], float(self._ended + has_failed))
        # Several passes of one batch, such as those of a gradient penalty, may have had the same rows.
        passes = sum("samples" in shape for shape in self._shapes)
        if passes > self.batches * size_of(counts):
            counts.pop("samples", None)
        return counts

    def _turn(self, kind: SpanKind) -> None:
        """Begin a phase at the instant at which the one before ends."""
        before = next((phase for phase in _PHASES if phase in self._open), None)
        if before is None:
            self._begin(kind, kind)
        else:
            closing = self._open.pop(before)
            self._open[kind] = self._monitor.turn(self.session, closing, kind, kind).id


def wants_gradients() -> bool:
    """Return whether what is calculated now may be differentiated."""
    torch = sys.modules.get("torch")
    return torch is None or bool(torch.is_grad_enabled())


def logged(figures: Mapping[str, float], *, prefix: str = "") -> dict[str, float]:
    """Return the figures of `TrainingRun.take_figures` as entries of a log, in GiB, except unknown ones.

    Trackers group by an evaluation's prefix: transformers' callbacks for TensorBoard, W&B and others write
    ``eval_…`` as ``eval/…``, and all else as ``train/…``.
    """
    group = f"{prefix}_hfmem/" if prefix else "hfmem/"
    in_bytes = (
        name for name in ("peak_allocated", "peak_reserved", "allocated") if name in figures
    )
    entries = {f"{group}{name}_gib": figures[name] / GIB for name in in_bytes}
    if "tokens" in figures:
        entries[f"{group}tokens"] = figures["tokens"]
    return {name: value for name, value in entries.items() if math.isfinite(value)}


def prefix_of(names: Iterable[str]) -> str:
    """Return the prefix of an evaluation's metrics: ``eval``, ``eval_`` and a data set's name, ``test``."""
    # Every evaluation logs one. The user's metrics with this ending have the prefix too, so are longer.
    runtimes = [name for name in names if name.endswith("_runtime")]
    return min(runtimes, key=len, default="eval_runtime").removesuffix("_runtime")
