"""Scripts of trainings and other cells."""

import math
import random
from collections.abc import Sequence

from hfmem_widget.features.budget.companion import Budget, Crossing
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import Certainty, Guide, Session
from hfmem_widget.text import GIB, MIB
from tests.scenes.stage import Stage


def training(
    label: str = "fine-tune",
    keys: Sequence[str] = ("cuda:0",),
    *,
    gpus: int = 1,
    steps: int = 31,
    seconds: float = 11.6,
    top: float = 6.99 * GIB,
    weights: float | None = 0.18,
    certainty: Certainty = "exact",
    outcome: str = "done",
    notes: Sequence[str] = (),
) -> Session:
    """Play a training whose activations rise and fall; its first step makes optimizer states, which stay.

    `weights` is their share of the top; None where nothing is known of the tensors.
    """
    stage, chance = Stage(label, gpus=gpus), random.Random(7)
    stage.certainty = certainty
    stage.session.notes.extend(notes)
    model = {"weights": 0.985 * (weights or 0) * top, "buffers": 0.015 * (weights or 0) * top}
    gradients, states = {"gradients": model["weights"]}, {"optimizer": 2 * model["weights"]}
    if weights is None:
        model = gradients = states = {}
    kept = top * 0.537
    with stage.span("cell", label, outcome):
        stage.hold(dict.fromkeys(keys, top * 0.18), seconds * 0.1, model)
        worst = chance.randrange(steps // 3, steps)
        with stage.span("train", "train"):
            for step in range(steps):
                share = 1.0 if step == worst else 0.82 + 0.15 * chance.random()
                took = seconds * 0.78 / steps
                with stage.span("step", f"step {step + 1}"):
                    peaks = {key: top * share * (1 - 0.03 * at) for at, key in enumerate(keys)}
                    stage.hold(peaks, took * 0.55)
                    stage.hold(dict.fromkeys(keys, top * 0.715), took * 0.3, gradients)
                    freed = dict.fromkeys(gradients, 0.0)
                    stage.hold(dict.fromkeys(keys, kept), took * 0.15, freed)
                    stage.find(keys, states)
                if step + 1 == steps * 2 // 3:
                    with stage.span("evaluate", "evaluate"):
                        stage.hold(dict.fromkeys(keys, kept * 1.12), seconds * 0.06)
                        stage.hold(dict.fromkeys(keys, kept), seconds * 0.06)
    return stage.finish()


def short() -> Session:
    """Play a cell of 10 ms."""
    stage = Stage("x = model(**batch)", gpus=1)
    with stage.span("cell", "x = model(**batch)"):
        stage.hold({"cuda:0": 212 * MIB}, 0.006)
        stage.hold({"cuda:0": 3.5 * MIB}, 0.004)
    return stage.finish()


def hour_with_gaps() -> Session:
    """Play an hour with gaps in it."""
    stage = Stage("overnight", gpus=1, interval=0.5)
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


def _steps(stage: Stage, epoch: int) -> None:
    chance = random.Random(epoch)
    for step in range(160):
        with stage.span("step", f"step {160 * epoch + step + 1}"):
            stage.hold({"cuda:0": (88 + 16 * chance.random()) * GIB}, 4.0)
            stage.hold({"cuda:0": 88 * GIB}, 1.5, {"gradients": 21.9 * GIB})
            stage.hold({"cuda:0": 66 * GIB}, 1.2, {"gradients": 0.0})
            stage.find(["cuda:0"], {"optimizer": 43.8 * GIB})


def idle() -> Session:
    """Play an interrupted cell that did not use the GPU."""
    stage = Stage("plot the losses", gpus=1)
    with stage.span("cell", "plot the losses", "interrupted"):
        stage.hold({"cpu": 0.24 * GIB}, 2.4)
    return stage.finish()


def leak() -> Session:
    """Play a training that keeps 48 MiB more after every step, until it exceeds its budget."""
    stage, budget, kept = Stage("fine-tune", gpus=1), 6 * GIB, 3.75 * GIB
    session, chance = stage.session, random.Random(3)
    line = Guide("cuda:0", "budget", "budget 6.00 GiB", 0.0, math.inf, budget, budget)
    session.guides.append(line)
    over: Crossing | None = None
    watched = Budget(WatchOptions(budget=budget))
    with stage.span("cell", "fine-tune") as cell:
        stage.hold({"cuda:0": 1.25 * GIB}, 1.2, {"weights": 1.22 * GIB, "buffers": 0.03 * GIB})
        with stage.span("train", "train") as train:
            stage.recorder.count(train.id, {"steps": 40, "epochs": 1})
            for step in range(1, 41):
                with stage.span("step", f"step {step}") as span:
                    counts = {"step": step, "samples": 8, "longest": 96, "tokens": 768}
                    stage.recorder.count(span.id, counts)
                    stage.hold({"cuda:0": kept + 1.1 * GIB}, 0.14)
                    if kept + 1.1 * GIB > budget and over is None:
                        now = stage.clock.now
                        over = Crossing(
                            "cuda:0", "in a sample", kept + 1.1 * GIB, now, f"step {step}"
                        )
                    kept += 48 * MIB
                    stage.hold({"cuda:0": kept + 0.2 * GIB}, 0.08, {"gradients": 0.61 * GIB})
                    batch = 60 * MIB * chance.random()
                    stage.hold({"cuda:0": kept + batch}, 0.06, {"gradients": 0.0})
                    stage.find(["cuda:0"], {"optimizer": 2.44 * GIB})
    if over is not None:
        highest = session.peak("cuda:0/allocated")
        watched._root = cell.id
        session.findings.append(watched._warning(session, over, highest))
    return stage.finish()
