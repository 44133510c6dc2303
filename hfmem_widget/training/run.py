"""One training as spans: train, epoch, step, micro-batch, and the phases of a step."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Concatenate, ParamSpec

from hfmem_widget.faults import warn
from hfmem_widget.interrupts import interrupts_deferred
from hfmem_widget.monitor import Monitor, outcome_of
from hfmem_widget.session import Peak, Session, Span, SpanKind
from hfmem_widget.training.batch import joined

TRIED_AGAIN = "tried again"
"""How an attempt of ``auto_find_batch_size`` ended, which nobody is told of but by the next one's begin."""

_PHASES: tuple[SpanKind, ...] = ("forward", "backward", "optimizer")
_ASIDE: tuple[SpanKind, ...] = ("evaluate", "predict", "save")
"""What interrupts the steps, and has forward passes that are no part of them."""

_LOGGED = {"allocated": "peak_allocated", "reserved": "peak_reserved"}

P = ParamSpec("P")


def _harmless(
    method: Callable[Concatenate[TrainingRun, P], None],
) -> Callable[Concatenate[TrainingRun, P], None]:
    """Keep faults and interrupts out of our bookkeeping, and other threads than the training's."""

    @functools.wraps(method)
    def guarded(self: TrainingRun, /, *args: P.args, **kwargs: P.kwargs) -> None:
        if not self.alive:
            return
        try:
            with interrupts_deferred():
                method(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001  (a callback that raises would end the training)
            self.give_up(error)

    return guarded


class TrainingRun:
    """Opens and closes the spans of one training in one session; what happens comes in as events.

    Every event may come on the wrong thread, twice, or never: it then does nothing.

    Parameters
    ----------
    monitor : Monitor
    session : Session
    accumulates : bool
        Whether a step has several batches, each of which is a *substep*.
    """

    def __init__(self, monitor: Monitor, session: Session, *, accumulates: bool = False) -> None:
        self.session = session
        self.accumulates = accumulates
        self._monitor = monitor
        self._open: dict[SpanKind, int] = {}
        self._counts: dict[str, float] = {}
        self._substeps = 0
        self._since_log: dict[str, float] = {}
        self._thread = threading.get_ident()
        self._gave_up = False

    @property
    def alive(self) -> bool:
        """False once its session has ended, on another thread, or after a fault of ours."""
        return not self._gave_up and self.session.running and threading.get_ident() == self._thread

    def give_up(self, error: Exception) -> None:
        """Watch no further, and say so once."""
        self._gave_up = True
        warn(f"this training is watched no further ({type(error).__name__}: {error})")

    @_harmless
    def train_begins(self, label: str, counts: Mapping[str, float]) -> None:
        """Begin a training, or a further attempt at it."""
        self._close("train", TRIED_AGAIN)
        self._begin("train", label)
        self.session.count(self._open["train"], counts)

    @_harmless
    def epoch_begins(self, label: str) -> None:
        """Begin an epoch; the one before is over."""
        self._close("epoch")
        self._begin("epoch", label)

    @_harmless
    def step_begins(self, number: int) -> None:
        """Begin an optimizer step, with the first of its batches."""
        self._close("step")
        self._counts = {"step": float(number)}
        self._substeps = 0
        self._begin("step", f"step {number}")

    @_harmless
    def forward_begins(self, shape: Mapping[str, float]) -> None:
        """Begin a forward pass; it counts only within a step and where gradients are wanted."""
        if "step" not in self._open or self._is_aside() or not _wants_gradients():
            return
        self._counts = joined(self._counts, shape)
        if self.accumulates and "substep" not in self._open:
            self._substeps += 1
            self._begin("substep", f"batch {self._substeps}")
        self._turn("forward")

    @_harmless
    def forward_ended(self) -> None:
        """Turn to what follows a forward pass: the loss and the backward pass."""
        if "forward" in self._open:
            self._turn("backward")

    @_harmless
    def substep_ended(self) -> None:
        """End a batch that was not the last of its step."""
        if "substep" in self._open:
            self._close("substep")
        else:
            self._close_phase()

    @_harmless
    def optimizer_begins(self) -> None:
        """Turn to the optimizer: the gradients are ready."""
        self._close("substep")
        if "step" in self._open:
            self._turn("optimizer")

    @_harmless
    def optimizer_ended(self) -> None:
        """End the optimizer; gradients are freed next."""
        self._close("optimizer")

    @_harmless
    def step_ended(self) -> None:
        """End the step."""
        step = self._open.get("step")
        if step is None:
            return
        self.session.count(step, self._counts)
        span = self._close("step")
        if span is not None:
            self._remember(span)

    @_harmless
    def epoch_ended(self) -> None:
        """End the epoch."""
        self._close("epoch")

    @_harmless
    def ended(self, outcome: str = "done") -> None:
        """End everything, however it ended; ending again does nothing."""
        for kind in list(self._open):
            self._close(kind, outcome)

    @contextmanager
    def aside(self, kind: SpanKind, label: str) -> Iterator[None]:
        """Keep an evaluation, a prediction or a save open for a ``with`` block."""
        self._begin_aside(kind, label)
        try:
            yield
        except BaseException as error:
            self._end_aside(kind, outcome_of(error))
            raise
        else:
            self._end_aside(kind, "done")

    def take_figures(self, kind: SpanKind = "step") -> dict[str, float]:
        """Return what the steps since the last call came to, or an open span so far, for a log.

        Returns
        -------
        dict of str to float
            ``peak_allocated``, ``peak_reserved`` and ``allocated`` in bytes, of the device where it is
            highest; of steps also ``tokens``, padding included. What is not known is left out.
        """
        if not self.alive:
            return {}
        if kind == "step":
            figures, self._since_log = self._since_log, {}
        else:
            figures = {}
            if kind in self._open:
                self._raise(figures, self._monitor.peaks_so_far(self.session, self._open[kind]))
        if figures:
            figures["allocated"] = max(
                self.session.latest(f"{device}/allocated") for device in self._trained_on()
            )
        return figures

    def _remember(self, step: Span) -> None:
        self._raise(self._since_log, step.peaks)
        if "tokens" in step.counts:
            self._since_log["tokens"] = self._since_log.get("tokens", 0.0) + step.counts["tokens"]

    def _raise(self, figures: dict[str, float], peaks: Mapping[str, Peak]) -> None:
        for device in self._trained_on():
            for role, name in _LOGGED.items():
                peak = peaks.get(f"{device}/{role}")
                if peak is not None:
                    figures[name] = max(figures.get(name, peak.value), peak.value)

    def _trained_on(self) -> list[str]:
        keys = [device.key for device in self.session.devices]
        # A GPU that this process has not allocated on is somebody else's; 0 and NaN both say so.
        return [
            key for key in keys if key != "cpu" and self.session.latest(f"{key}/allocated") > 0
        ] or keys[-1:]

    @_harmless
    def _begin_aside(self, kind: SpanKind, label: str) -> None:
        if kind not in self._open:
            self._begin(kind, label)

    @_harmless
    def _end_aside(self, kind: SpanKind, outcome: str) -> None:
        self._close(kind, outcome)

    def _is_aside(self) -> bool:
        return any(kind in self._open for kind in _ASIDE)

    def _begin(self, kind: SpanKind, label: str) -> None:
        self._open[kind] = self._monitor.open_span(self.session, kind, label).id

    def _close(self, kind: SpanKind, outcome: str = "done") -> Span | None:
        span_id = self._open.pop(kind, None)
        if span_id is None:
            return None
        span = self._monitor.close_span(self.session, span_id, outcome)
        # Whatever was open in it has been closed with it.
        still = {one.id for one in self.session.open_spans}
        self._open = {one: at for one, at in self._open.items() if at in still}
        return span

    def _turn(self, kind: SpanKind) -> None:
        """Begin a phase at the instant at which the one before ends."""
        open_phase = next((one for one in _PHASES if one in self._open), None)
        if open_phase is None:
            self._begin(kind, kind)
        else:
            closing = self._open.pop(open_phase)
            self._open[kind] = self._monitor.turn(self.session, closing, kind, kind).id

    def _close_phase(self) -> None:
        for kind in _PHASES:
            self._close(kind)


def _wants_gradients() -> bool:
    torch = sys.modules.get("torch")
    return torch is None or bool(torch.is_grad_enabled())
