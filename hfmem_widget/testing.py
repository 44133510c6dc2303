"""Sessions without hardware: for tests, notebooks and demonstrations.

`scripted_run` plays a workload against a `Session` in no time. Every figure follows from the script, so
that the same name always gives the same session.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import cache
from typing import Final

from hfmem_widget.session import (
    HELD,
    Certainty,
    Device,
    DeviceSteps,
    Peak,
    Sample,
    Series,
    Session,
    Span,
    SpanKind,
    StepGroup,
    Steps,
)
from hfmem_widget.units import GIB, MIB

STARTED_AT: Final = 1_763_683_200.0
H200_TOTAL: Final = 143_771 * MIB
HOST_TOTAL: Final = 15.6 * GIB

_GPU_SERIES: Final = (
    ("allocated", "allocated"),
    ("reserved", "reserved"),
    ("peak", "allocator peak"),
    ("device_used", "device in use"),
    ("driver_reserved", "driver's reserve"),
    ("process", "this process"),
    ("others", "other processes"),
    ("context", "CUDA context and libraries"),
)
_HOST_SERIES: Final = (
    ("allocated", "heap in use"),
    ("reserved", "resident"),
    ("peak", "resident peak"),
    ("device_used", "machine in use"),
)
_PARTS: Final = (
    *zip(HELD, ("weights", "buffers", "gradients", "optimizer states"), strict=True),
    ("unattributed", "not attributed when the step began"),
)
_CONTEXT: Final = 620 * MIB
_DRIVER: Final = 615 * MIB
_OTHERS: Final = 0.03 * GIB
_MOST_RESERVED: Final = H200_TOTAL - _DRIVER - _CONTEXT - _OTHERS


_NO_PARTS: Final[Mapping[str, float]] = {}


class FakeClock:
    """Seconds that pass only when told to.

    Parameters
    ----------
    now : float
        Where it starts.
    """

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        """Return the current time in seconds."""
        return self.now

    def advance(self, seconds: float) -> float:
        """Let time pass and return the new time."""
        self.now += seconds
        return self.now


class FakeSource:
    """A `Source` whose readings are set by hand.

    Parameters
    ----------
    devices : sequence of Device
    series : sequence of Series
    values : sequence of float, optional
        What `read` returns until it is changed; NaN for every series where left out.
    name : str
    blocks : bool
        As in `Source`.

    Attributes
    ----------
    values : list of float
    failure : Exception or None
        Raised by `read` while set.
    reads : int
        How often `read` was called.
    closed : bool
    """

    def __init__(
        self,
        devices: Sequence[Device],
        series: Sequence[Series],
        values: Sequence[float] | None = None,
        *,
        name: str = "fake",
        blocks: bool = False,
    ) -> None:
        self.name = name
        self.blocks = blocks
        self.devices: tuple[Device, ...] = tuple(devices)
        self.series: tuple[Series, ...] = tuple(series)
        self.values = list(values) if values is not None else [math.nan] * len(self.series)
        self.notes: list[str] = []
        self.failure: Exception | None = None
        self.reads = 0
        self.closed = False

    def read(self, now: float) -> Sequence[float]:  # noqa: ARG002  (as `Source` has it)
        """Return the values set, or raise the failure set."""
        self.reads += 1
        if self.failure is not None:
            raise self.failure
        return tuple(self.values)

    def close(self) -> None:
        """Remember that it was closed."""
        self.closed = True


class _Stage:
    """Devices whose memory a script moves, sampled into a session as a poller would."""

    def __init__(self, label: str, *, gpus: int, interval: float = 0.1) -> None:
        self.session = Session(label, started_at=STARTED_AT)
        self.session.polling.interval = self.session.polling.current_interval = interval
        self.clock = FakeClock()
        self.certainty: Certainty = "exact"
        self._gpus = tuple(f"cuda:{index}" for index in range(gpus))
        self._allocated = dict.fromkeys((*self._gpus, "cpu"), 0.0)
        self._reserved = dict.fromkeys(self._gpus, 0.0)
        self._held: dict[str, dict[str, float]] = {}
        self._peaks: dict[int, dict[str, float]] = {}
        self._due = interval
        self._allocated["cpu"] = 0.21 * GIB
        devices = [Device(key, "NVIDIA H200", f"GPU-{key}", H200_TOTAL) for key in self._gpus]
        series = [Series(key, *metric) for key in self._gpus for metric in _GPU_SERIES]
        self.session.adopt(
            (*devices, Device("cpu", "AMD EPYC 9454", "", HOST_TOTAL)),
            (*series, *(Series("cpu", *metric) for metric in _HOST_SERIES)),
        )

    @contextmanager
    def span(self, kind: SpanKind, label: str, outcome: str = "done") -> Iterator[Span]:
        if kind == "step":
            self._explain_remainder()
        span = self.session.open_span(kind, label, self.sample())
        self._peaks[span.id] = {}
        self._raise_peaks()
        yield span
        after = self.sample()
        known = self._peaks.pop(span.id)
        peaks = {key: Peak(value, self.certainty) for key, value in known.items()}
        self.session.close_span(span.id, after, peaks, outcome)
        if kind == "step":
            for held in self._held.values():
                held["unattributed"] = math.nan

    def hold(
        self, target: Mapping[str, float], seconds: float, parts: Mapping[str, float] = _NO_PARTS
    ) -> None:
        """Move each device, and some of its parts, to so many bytes within some time; sample as it goes."""
        unknown = [key for key in target if key not in self._held]
        self.find(unknown, dict.fromkeys(parts, 0.0))
        start, began = dict(self._allocated), self.clock.now
        before = {key: dict(held) for key, held in self._held.items()}
        stop = began + seconds
        while self._due < stop:
            share = (self._due - began) / seconds
            self._move(start, target, share)
            self._move_parts(before, target, parts, share)
            self.clock.now = self._due
            self.sample()
        self.clock.now = stop
        self._move(start, target, 1.0)
        self._move_parts(before, target, parts, 1.0)

    def find(self, keys: Iterable[str], parts: Mapping[str, float]) -> None:
        """Know so many bytes of some parts from now on, on each device."""
        for key in keys if parts else ():
            if key not in self._held:
                self._held[key] = {metric: 0.0 for metric, _ in _PARTS} | {"unattributed": math.nan}
                more = [Series(key, *metric) for metric in _PARTS]
                self.session.adopt(self.session.devices, (*self.session.series, *more))
            self._held[key].update(parts)

    def sleep_unsampled(self, seconds: float) -> None:
        """Let time pass without samples, as when one call held the interpreter."""
        began = self.clock.now
        self.clock.advance(seconds)
        self.session.timeline.add_gap(began, self.clock.now)
        polling = self.session.polling
        polling.missed += int(seconds / polling.interval)
        polling.longest_gap = max(polling.longest_gap, seconds)
        self._due = self.clock.now

    def sample(self) -> Sample:
        values: list[float] = []
        for key in self._gpus:
            ours = self._reserved[key] + _CONTEXT
            peak = max(
                (known.get(f"{key}/allocated", 0.0) for known in self._peaks.values()), default=0.0
            )
            values += (self._allocated[key], self._reserved[key], peak)
            values += (ours + _OTHERS, _DRIVER, ours, _OTHERS, _CONTEXT)
        heap = self._allocated["cpu"]
        values += (heap, heap + 0.52 * GIB, heap + 0.6 * GIB, 9.4 * GIB)
        for held in self._held.values():
            values += (held[metric] for metric, _ in _PARTS)
        if self.clock.now >= self._due:
            self._due = self.clock.now + self.session.polling.interval
            self.session.polling.ticks += 1
        return self.session.append(Sample(self.clock.now, tuple(values)))

    def finish(self) -> Session:
        self.session.stop(STARTED_AT + self.clock.now)
        return self.session

    def _move(self, start: Mapping[str, float], target: Mapping[str, float], share: float) -> None:
        for key, goal in target.items():
            self._allocated[key] = start[key] + (goal - start[key]) * share
        self._raise_peaks()

    def _move_parts(
        self,
        start: Mapping[str, Mapping[str, float]],
        keys: Iterable[str],
        goals: Mapping[str, float],
        share: float,
    ) -> None:
        for key in keys if goals else ():
            for part, goal in goals.items():
                began = start[key][part]
                self._held[key][part] = began + (goal - began) * share

    def _explain_remainder(self) -> None:
        for key, held in self._held.items():
            known = sum(held[metric] for metric in HELD)
            held["unattributed"] = max(0.0, self._allocated[key] - known)

    def _raise_peaks(self) -> None:
        for key in self._gpus:
            self._reserved[key] = max(
                self._reserved[key], min(1.06 * self._allocated[key], _MOST_RESERVED)
            )
            for known in self._peaks.values():
                for metric, now in (("allocated", self._allocated), ("reserved", self._reserved)):
                    name = f"{key}/{metric}"
                    known[name] = max(known.get(name, 0.0), now[key])


def _train(
    stage: _Stage,
    steps: int,
    seconds: float,
    keys: Sequence[str],
    top: float,
    *,
    weights: float | None = 0.18,
) -> None:
    """Weights, then steps whose activations rise and fall; optimizer states come with the first and stay.

    `weights` is their share of the top, None where nobody knows what the tensors are.
    """
    chance = random.Random(7)  # noqa: S311  (a script, not a secret)
    share_found = weights or 0.0
    of_model = {"weights": 0.985 * share_found * top, "buffers": 0.015 * share_found * top}
    gradients, states = {"gradients": of_model["weights"]}, {"optimizer": 2 * of_model["weights"]}
    if weights is None:
        of_model = gradients = states = {}
    stage.hold(dict.fromkeys(keys, top * 0.18), seconds * 0.1, of_model)
    evaluate_after = steps * 2 // 3
    kept = top * 0.537
    worst = chance.randrange(steps // 3, steps)
    with stage.span("train", "train"):
        for step in range(steps):
            share = 1.0 if step == worst else 0.82 + 0.15 * chance.random()
            with stage.span("step", f"step {step + 1}"):
                took = seconds * 0.78 / steps
                stage.hold(
                    {key: top * share * (1 - 0.03 * at) for at, key in enumerate(keys)}, took * 0.55
                )
                stage.hold(dict.fromkeys(keys, top * 0.715), took * 0.3, gradients)
                stage.hold(dict.fromkeys(keys, kept), took * 0.15, dict.fromkeys(gradients, 0.0))
                stage.find(keys, states)
            if step + 1 == evaluate_after:
                with stage.span("evaluate", "evaluate"):
                    stage.hold(dict.fromkeys(keys, kept * 1.12), seconds * 0.06)
                    stage.hold(dict.fromkeys(keys, kept), seconds * 0.06)


def _training(
    certainty: Certainty = "exact", outcome: str = "done", top: float = 6.99 * GIB
) -> Session:
    stage = _Stage("fine-tune", gpus=1)
    stage.certainty = certainty
    with stage.span("cell", "fine-tune", outcome):
        _train(stage, 31, 11.6, ["cuda:0"], top)
    return stage.finish()


def _eight_gpus() -> Session:
    stage = _Stage("pretrain", gpus=8)
    with stage.span("cell", "pretrain"):
        _train(stage, 24, 96.0, [f"cuda:{index}" for index in range(8)], 121.4 * GIB)
    return stage.finish()


def _two_gpus() -> Session:
    stage = _Stage("pipeline", gpus=4)
    with stage.span("cell", "pipeline"):
        _train(stage, 12, 7.5, ["cuda:0", "cuda:1"], 18.2 * GIB, weights=None)
    return stage.finish()


def _on_cpu() -> Session:
    stage = _Stage("tiny-bert", gpus=0)
    stage.session.notes.append("No GPU is visible to this process, so its own memory is shown.")
    with stage.span("cell", "tiny-bert"):
        _train(stage, 9, 6.2, ["cpu"], 0.9 * GIB, weights=0.11)
    return stage.finish()


def _short() -> Session:
    stage = _Stage("x = model(**batch)", gpus=1)
    with stage.span("cell", "x = model(**batch)"):
        stage.hold({"cuda:0": 212 * MIB}, 0.006)
        stage.hold({"cuda:0": 3.5 * MIB}, 0.004)
    return stage.finish()


def _hour_with_gaps() -> Session:
    stage = _Stage("overnight", gpus=1, interval=0.5)
    stage.session.notes.append(
        "The poller slowed down from 100 ms to 500 ms, since a tick took long."
    )
    with stage.span("cell", "overnight"):
        stage.hold({"cuda:0": 22 * GIB}, 40.0, {"weights": 21.9 * GIB, "buffers": 0.1 * GIB})
        for epoch in range(3):
            with stage.span("epoch", f"epoch {epoch + 1}"):
                _steps(stage, epoch)
            with stage.span("save", "save"):
                stage.sleep_unsampled(95.0)
    return stage.finish()


def _steps(stage: _Stage, epoch: int) -> None:
    chance = random.Random(epoch)  # noqa: S311  (a script, not a secret)
    for step in range(160):
        with stage.span("step", f"step {160 * epoch + step + 1}"):
            stage.hold({"cuda:0": (88 + 16 * chance.random()) * GIB}, 4.0)
            stage.hold({"cuda:0": 88 * GIB}, 1.5, {"gradients": 21.9 * GIB})
            stage.hold({"cuda:0": 66 * GIB}, 1.2, {"gradients": 0.0})
            stage.find(["cuda:0"], {"optimizer": 43.8 * GIB})


def _failed() -> Session:
    return _training(outcome="raised OutOfMemoryError", top=138.7 * GIB)


def _at_least() -> Session:
    return _training(certainty="at least")


def _idle() -> Session:
    stage = _Stage("plot the losses", gpus=1)
    with stage.span("cell", "plot the losses", "interrupted"):
        stage.hold({"cpu": 0.24 * GIB}, 2.4)
    return stage.finish()


class _Batches:
    """Batches of eight sequences, the longest of which decides what a step takes."""

    def __init__(self, kept: float, per_token: float, worst: int) -> None:
        self._chance = random.Random(11)  # noqa: S311  (a script, not a secret)
        self._kept = kept
        self._per_token = per_token
        self._worst = worst

    def draw(self, step: int) -> dict[str, float]:
        """Return what is counted in a step; one batch is longer than all others."""
        longest = 144 if step == self._worst else self._chance.randrange(32, 129)
        tokens, content = 8 * longest, 8 * longest - self._chance.randrange(2 * longest)
        return {
            "step": step,
            "samples": 8,
            "longest": longest,
            "tokens": tokens,
            "content_tokens": content,
            "largest_batch": tokens,
        }

    def peak(self, tokens: float) -> float:
        return self._kept + self._per_token * tokens


def _with_steps() -> Session:
    stage, kept = _Stage("fine-tune", gpus=1), 3.75 * GIB
    batches = _Batches(kept, 2.9 * MIB, 37)
    with stage.span("cell", "fine-tune"):
        stage.hold({"cuda:0": 1.25 * GIB}, 1.2, {"weights": 1.22 * GIB, "buffers": 0.03 * GIB})
        with stage.span("train", "train") as train:
            stage.session.count(train.id, {"steps": 60, "epochs": 3})
            for epoch in range(3):
                with stage.span("epoch", f"epoch {epoch + 1} of 3"):
                    for step in range(20 * epoch + 1, 20 * epoch + 21):
                        _step(stage, batches, step, kept)
                with stage.span("evaluate", "evaluate"):
                    stage.hold({"cuda:0": kept + 0.4 * GIB}, 0.5)
                    stage.hold({"cuda:0": kept}, 0.5)
                with stage.span("save", f"checkpoint-{20 * epoch + 20}"):
                    stage.hold({"cuda:0": kept}, 0.4)
    return stage.finish()


def _step(stage: _Stage, batches: _Batches, step: int, kept: float) -> None:
    counts = batches.draw(step)
    peak = batches.peak(counts["tokens"])
    with stage.span("step", f"step {step}") as span:
        with stage.span("forward", "forward"):
            stage.hold({"cuda:0": 0.96 * peak}, 0.08)
        with stage.span("backward", "backward"):
            stage.hold({"cuda:0": peak}, 0.03)
            stage.hold({"cuda:0": kept + 0.62 * GIB}, 0.09, {"gradients": 0.61 * GIB})
        with stage.span("optimizer", "optimizer"):
            stage.hold({"cuda:0": kept + 0.7 * GIB}, 0.01)
            stage.hold({"cuda:0": kept}, 0.02, {"gradients": 0.0})
            stage.find(["cuda:0"], {"optimizer": 2.44 * GIB})
        stage.session.count(span.id, counts)


_LONG_EPOCHS: Final = 4
_LONG_STEPS: Final = 100_000
_LONG_STEP_SECONDS: Final = 0.4
_LONG_TOP: Final = 20 * GIB


def _hundred_thousand_steps() -> Session:
    stage, kept = _Stage("pretrain", gpus=1, interval=30.0), 66 * GIB
    epochs: list[Span] = []
    with stage.span("cell", "pretrain"):
        stage.hold({"cuda:0": kept}, 300.0, {"weights": 21.9 * GIB, "buffers": 0.1 * GIB})
        stage.find(["cuda:0"], {"optimizer": 43.8 * GIB, "unattributed": 0.2 * GIB})
        with stage.span("train", "train") as train:
            stage.session.count(train.id, {"steps": _LONG_STEPS, "epochs": _LONG_EPOCHS})
            for epoch in range(_LONG_EPOCHS):
                with stage.span("epoch", f"epoch {epoch + 1} of {_LONG_EPOCHS}") as span:
                    epochs.append(span)
                    for stretch in range(50):
                        has_worst = (epoch, stretch) == (2, 22)
                        top = _LONG_TOP if has_worst else 0.85 * _LONG_TOP
                        stage.hold({"cuda:0": kept + top}, 100.0)
                        stage.hold({"cuda:0": kept}, 100.0)
                with stage.span("evaluate", "evaluate"):
                    stage.hold({"cuda:0": kept + 4 * GIB}, 500.0)
                with stage.span("save", "save"):
                    stage.hold({"cuda:0": kept}, 60.0)
    session = stage.finish()
    # A span for each would take ten seconds; what is left of so many is the table anyway.
    session.steps = deepcopy(_long_steps(tuple((one.id, one.start) for one in epochs)))
    return session


@cache
def _long_steps(epochs: tuple[tuple[int, float], ...]) -> Steps:
    steps = Steps()
    batches = _Batches(66 * GIB, _LONG_TOP / (8 * 144), 61_337)
    for step in range(1, _LONG_STEPS + 1):
        of_epoch, within = divmod(step - 1, _LONG_STEPS // _LONG_EPOCHS)
        parent, began = epochs[of_epoch]
        start = began + within * _LONG_STEP_SECONDS
        counts = batches.draw(step)
        peak = batches.peak(counts["tokens"])
        phases = {"forward": 0.96 * peak, "backward": peak, "optimizer": 67 * GIB}
        device = DeviceSteps(peak, "exact", peak, step, counts["tokens"], 66 * GIB, phases)
        steps.append(
            StepGroup(
                parent=parent,
                first=step,
                last=step,
                start=start,
                stop=start + 0.98 * _LONG_STEP_SECONDS,
                samples=counts["samples"],
                longest=counts["longest"],
                tokens=counts["tokens"],
                content_tokens=counts["content_tokens"],
                devices={"cuda:0": device},
            )
        )
    return steps


_RUNS: Final[dict[str, Callable[[], Session]]] = {
    "training": _training,
    "two gpus": _two_gpus,
    "eight gpus": _eight_gpus,
    "cpu": _on_cpu,
    "short": _short,
    "hour with gaps": _hour_with_gaps,
    "failed": _failed,
    "at least": _at_least,
    "idle gpu": _idle,
    "steps": _with_steps,
    "100,000 steps": _hundred_thousand_steps,
}

SCRIPTED_RUNS: Final = tuple(_RUNS)
"""The runs there are, by name.

An H200 training run with steps; two and eight GPUs at work; a run on the CPU; a cell of 10 ms; an hour
with gaps in it; a cell that failed when memory was nearly full; a run whose peak is only a lower bound;
an interrupted cell that left the GPU alone; a training whose steps take different batches, with their
phases, evaluations and saves; one of 100,000 steps.

They know what the memory is for, from the moment the weights are there, but for two GPUs, the short cell
and the one that left the GPU alone: nothing was found there.
"""


def scripted_run(name: str = "training") -> Session:
    """Return a finished session of one of the `SCRIPTED_RUNS`; its first span is the watched cell.

    Raises
    ------
    ValueError
        If there is no such run.
    """
    if name not in _RUNS:
        message = f"there is no scripted run {name!r}; there is {', '.join(_RUNS)}"
        raise ValueError(message)
    return _RUNS[name]()
