"""Distributed runs without hardware: many ranks whose memory a script moves, and the lines that they write.

>>> run = SimulatedRun(Script(world=4, heavier={3: 1.05}))
>>> run.write(Path("run"), seconds=30.0)
"""

import json
import os
import random
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Final

from hfmem_widget.recording.lines import Lines
from hfmem_widget.session import (
    Device,
    DeviceSteps,
    Finding,
    Guide,
    Peak,
    Rank,
    Recorder,
    Sample,
    Series,
    Span,
    StepGroup,
)
from hfmem_widget.text import GIB, MIB
from tests.scenes.groups import add_group
from tests.scenes.stage import H200_TOTAL, HOST_TOTAL, STARTED_AT

LOADING: Final = 1.0
"""Seconds before the first step, in which the weights are loaded."""

ONE_BY_ONE: Final = 64
"""Ranks up to which every sample is written; of larger worlds the extremes are."""

GPU: Final = (
    "allocated",
    "reserved",
    "device_used",
    "weights",
    "gradients",
    "optimizer",
    "unattributed",
)
_CONTEXT: Final = 620 * MIB


@dataclass(frozen=True, slots=True)
class Script:
    """The script of a simulated run. Bytes and seconds; mappings are by rank unless they say otherwise."""

    world: int = 4
    per_node: int = 8  # ranks
    gpus: int = 1  # of each rank; with 0 it computes on its host
    label: str = "fine-tune"
    engine: str = "torchrun"
    interval: float = 0.1  # between two samples
    pace: float = 1.0  # between two lines
    step_seconds: float = 0.5
    weights: float = 4 * GIB  # of each rank; gradients and optimizer states follow from them
    activations: float = 30 * GIB
    stages: int = 1  # of a pipeline: neighbours in stages hold other weights and activations
    noise: float = 0.004  # how much activations differ from step to step, as a share
    evaluate_every: int = 0  # steps; 0 for never
    # Times the memory that a rank's peers need in a step.
    heavier: Mapping[int, float] = field(default_factory=dict)
    # By host, the seconds by which its clock is ahead.
    clocks: Mapping[str, float] = field(default_factory=dict)
    # When a rank stops without a word, in seconds.
    killed: Mapping[int, float] = field(default_factory=dict)
    # The last step that a rank finishes, although it goes on to write.
    stuck: Mapping[int, int] = field(default_factory=dict)
    # The step before which a rank sleeps for ever, while the others wait for it in its backward pass.
    sleeps: Mapping[int, int] = field(default_factory=dict)
    # The step in which a rank runs out of memory and ends.
    out_of_memory: Mapping[int, int] = field(default_factory=dict)
    garbage: float = 0.0  # the share of lines that are followed by one that is none

    def host(self, rank: int) -> str:
        return f"node{rank // self.per_node:04d}"


class SimulatedRun:
    """A run that advances on request, with all ranks of its world unless some are given."""

    def __init__(
        self,
        script: Script | None = None,
        *,
        run: str = "",
        began: float = STARTED_AT,
        ranks: Sequence[int] | None = None,
    ) -> None:
        self.script = script or Script()
        self.run = run or uuid.uuid4().hex
        self.began = began  # by the wall clock
        self.now = 0.0  # seconds since then, by a clock that is right
        self.attempt = 0
        self._played = ranks
        self._chance = random.Random(11)
        self.ranks: dict[int, SimulatedRank] = {}  # of the newest attempt
        self._start(0)

    def advance(self, seconds: float) -> Iterator[tuple[str, bytes]]:
        """Advance the time, and yield the new lines of each stream, pace by pace."""
        stop = self.now + seconds
        while self.now < stop - 1e-9:
            self.now = min(stop, self.now + self.script.pace)
            for rank in self.ranks.values():
                if data := rank.until(self.now):
                    yield rank.stream, self.with_garbage(data)

    def finish(self, outcome: str = "done") -> Iterator[tuple[str, bytes]]:
        """End every remaining rank, and yield the last lines."""
        for rank in self.ranks.values():
            if data := rank.end(self.now, outcome):
                yield rank.stream, data

    def restart(self, world: int = 0, *, step: int = 0) -> None:
        """Begin a new attempt that continues after some step, with another world if it is elastic."""
        self.attempt += 1
        calm = replace(self.script, world=world or self.script.world)
        self.script = replace(calm, killed={}, stuck={}, sleeps={}, out_of_memory={})
        self._start(step)

    def write(self, directory: Path, seconds: float, *, finish: bool = True) -> None:
        """Advance the time, and write each rank's file in a directory, which is made if it is missing.

        The files are as old as the run's own clock says.
        """
        directory.mkdir(mode=0o700, exist_ok=True)
        path = directory / "run.json"
        if not path.exists():
            head = {"format": "hfmem-run", "version": 1, "run": self.run}
            path.write_text(json.dumps(head | {"label": self.script.label, "created": self.began}))
            path.chmod(0o600)
        for stream, data in chain(self.advance(seconds), self.finish() if finish else ()):
            append(directory / stream, data)
            os.utime(directory / stream, (self.began + self.now,) * 2)

    def _start(self, step: int) -> None:
        script = self.script
        numbers = range(script.world) if self._played is None else self._played
        self.ranks = {
            number: SimulatedRank(
                *(script, number, self.run),
                began=self.began,
                since=self.now,
                attempt=self.attempt,
                step=step,
            )
            for number in numbers
        }

    def with_garbage(self, data: bytes) -> bytes:
        """Return the lines with as many malformed ones among them as the script says."""
        if not self.script.garbage:
            return data
        lines = data.splitlines(keepends=True)
        share = self.script.garbage
        return b"".join(
            line + (b'{"k":"rows","n":\n' if self._chance.random() < share else b"")
            for line in lines
        )


class SimulatedRank:
    """One process: a recorded session, and its lines."""

    def __init__(
        self,
        script: Script,
        rank: int,
        run: str,
        *,
        began: float,  # of the run, by the wall clock
        since: float = 0.0,  # seconds after that
        attempt: int = 0,
        step: int = 0,  # the last before a restart
    ) -> None:
        self._script, self._rank, self._since = script, rank, since
        host = script.host(rank)
        pid = 4000 + rank + 10_000 * attempt
        clock = began + since + script.clocks.get(host, 0.0)
        self.recorder = Recorder(script.label, started_at=clock)
        self._session = self.recorder.session
        self._session.polling.interval = script.interval
        identity = Rank(
            *(rank, rank % script.per_node, script.world, attempt, host, pid), engine=script.engine
        )
        self.stream = f"r{rank:05d}-a{attempt}-{host}-{pid}.jsonl"
        self._run = run
        self._lines = Lines(self._session, identity, only_folds=script.world > ONE_BY_ONE)
        self._chance = random.Random(1000 * attempt + rank)
        self._instants = random.Random(rank)
        share = 1 + 0.1 * (rank * script.stages // script.world if script.stages > 1 else 0)
        self._weights = script.weights * share
        self._activations = script.activations / share
        self._times = script.heavier.get(rank, 1.0)
        self.step = step  # the newest finished one
        self.peak = 0.0  # exact, so far, in bytes
        self._first_step = step
        self._at = 0.0
        self._samples: list[Sample] = []
        self._train: Span | None = None
        self._is_over = self._has_begun = self._is_headed = False
        self._devices = [
            f"cuda:{(rank % script.per_node) * script.gpus + at}" for at in range(script.gpus)
        ]
        self._has_states = self._waits = False
        self._describe()

    @property
    def kept(self) -> float:
        """Bytes that stay between two steps."""
        return self._weights * (4.0 if self._has_states else 1.0) * self._times

    def until(self, now: float) -> bytes:
        """Return the lines up to some second of the run; none after its end."""
        script, killed = self._script, self._script.killed.get(self._rank)
        if self._is_over:
            return b""
        stop = now - self._since
        if killed is not None and killed < now:
            self._is_over = True
            return b""
        if not self._has_begun:
            self._begin()
        while self._next_step() <= stop:
            if self.step + 1 == script.out_of_memory.get(self._rank):
                return self._run_out(self._next_step())
            if self.step == script.stuck.get(self._rank):
                break
            if self.step + 1 == min(script.sleeps.values(), default=0):
                self._wait(self._next_step())
                break
            self._finish_step(self._next_step())
        self._sample_until(stop)
        return self._written(stop)

    def end(self, now: float, outcome: str = "done") -> bytes:
        if self._is_over or not self._has_begun:
            return b""
        self._is_over = True
        after = self._append(now - self._since)
        for span in reversed(self._session.open_spans):
            self.recorder.close_span(span.id, after, self._peaks(self.peak), outcome)
        self.recorder.stop(self._session.started_at + now - self._since)
        lines = [self._written(now - self._since), *self._lines.changed(everything=True)]
        return b"".join([*lines, self._lines.end(self._session.stopped_at or 0.0)])

    def _next_step(self) -> float:
        return LOADING + (self.step + 1 - self._first_step) * self._script.step_seconds

    def _describe(self) -> None:
        gpus = [
            Device(key, "NVIDIA H200", f"GPU-{self._rank}-{key}", H200_TOTAL)
            for key in self._devices
        ]
        series = [Series(key, metric) for key in self._devices for metric in GPU]
        host = [Series("cpu", metric) for metric in ("allocated", "reserved")]
        self.recorder.adopt(
            (*gpus, Device("cpu", "AMD EPYC 9454", "", HOST_TOTAL)), (*series, *host)
        )

    def _begin(self) -> None:
        self._has_begun = True
        sample = self._append(0.0)
        self.recorder.open_span("block", self._script.label, sample)
        self._train = self.recorder.open_span("train", "train", sample)

    def _sample_until(self, stop: float) -> None:
        interval = self._script.interval
        while self._at + interval <= stop + 1e-9:
            self._at += interval
            self._append(self._at)

    def _append(self, at: float) -> Sample:
        sample = self.recorder.append(Sample(at, self._values(at)))
        self._samples.append(sample)
        return sample

    def _values(self, at: float) -> tuple[float, ...]:
        script = self._script
        if at < LOADING:
            held = self._weights * at / LOADING
            allocated = held * self._times
        else:
            within = (at - LOADING) % script.step_seconds / script.step_seconds
            if script.interval > script.step_seconds / 4:
                within = self._instants.random()  # else the samples would always be of one instant
            rises = within / 0.4 if within < 0.4 else max(0.0, (0.9 - within) / 0.5)
            allocated = self.kept + 0.95 * rises * self._activations * self._times
            held = self._weights
        states = 2 * held if self._has_states else 0.0
        gradients = held if self._has_states else 0.0
        reserved = 1.06 * allocated
        gpu = (allocated, reserved, reserved + _CONTEXT, held, gradients, states, 0.0)
        gpus = gpu * len(self._devices)
        heap = 0.6 * GIB if self._devices else allocated
        return (*gpus, heap, heap + 0.4 * GIB)

    def _finish_step(self, stop: float) -> None:
        self._sample_until(stop)
        self._has_states = True
        self.step += 1
        more = self._activations * (1 + self._chance.gauss(0.0, self._script.noise))
        peak = float(round(self.kept + more * self._times))
        self.peak = max(self.peak, peak)
        after = float(round(self.kept))
        phases = {"forward": 0.97 * peak, "backward": peak, "optimizer": after}
        figures = DeviceSteps(peak, "exact", peak, self.step, 8192.0, after, phases)
        keys = self._devices or ["cpu"]
        parent = 0 if self._train is None else self._train.id
        start = stop - self._script.step_seconds
        numbers = (8.0, 1024.0, 8192.0, 8192.0)
        devices = dict.fromkeys(keys, figures)
        late = self._chance.random() * 0.004
        step = StepGroup(parent, self.step, self.step, start, stop + late, *numbers, devices)
        add_group(self._session.steps, step)
        every = self._script.evaluate_every
        if every and not self.step % every:
            self._evaluate(stop)

    def _evaluate(self, at: float) -> None:
        span = self.recorder.open_span("evaluate", "evaluate", self._session.last_sample)
        peak = self._peaks(self.kept + 0.2 * self._activations)
        self.recorder.close_span(span.id, Sample(at, self._session.last_sample.values), peak)

    def _peaks(self, value: float) -> dict[str, Peak]:
        if not value:
            return {}
        return {f"{key}/allocated": Peak(value, "exact") for key in self._devices or ["cpu"]}

    def _wait(self, at: float) -> None:
        """Hang in a step, unless the others wait for this rank."""
        if self._rank not in self._script.sleeps and not self._waits:
            self._waits = True
            sample = self._append(at)
            self.recorder.open_span("step", f"step {self.step + 1}", sample)
            self.recorder.open_span("backward", "backward", sample)

    def _run_out(self, at: float) -> bytes:
        key = (self._devices or ["cpu"])[0]
        self.peak = max(self.peak, H200_TOTAL - 2 * GIB)
        self._session.guides.append(
            Guide(key, "oom", "out of memory", at, at, H200_TOTAL - 2 * GIB, H200_TOTAL - 2 * GIB)
        )
        evidence = {"device": key, "cause": "full", "asked": int(4 * GIB), "free": int(1.5 * GIB)}
        title = f"Out of memory on {key}: 4.00 GiB requested, 1.50 GiB free (memory full)."
        self._session.findings.append(
            Finding("oom", "critical", title, evidence, ("Use a smaller batch.",), 1)
        )
        sample = self._append(at)
        self.recorder.open_span("step", f"step {self.step + 1}", sample)
        self.recorder.open_span("backward", "backward", sample)
        return self.end(self._since + at, "raised OutOfMemoryError")

    def _written(self, at: float) -> bytes:
        lines = [] if self._is_headed else [self._lines.head(self._run)]
        self._is_headed = True
        samples, self._samples = self._samples, []
        wall = self._session.started_at + at
        lines += self._lines.samples(samples, wall)
        return b"".join([*lines, *self._lines.changed()])


def append(path: Path, data: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, data)
    finally:
        os.close(file)
