"""Scripts of trainings with batches of different lengths."""

import random
from copy import deepcopy
from functools import cache
from typing import Final

import numpy as np

from hfmem_widget.session import Session, Span, Steps
from hfmem_widget.session.steps import CERTAINTIES
from hfmem_widget.text import GIB, MIB
from tests.scenes.stage import Stage


class _Batches:
    """Batches of eight sequences; the longest sequence decides the peak of a step."""

    def __init__(self, kept: float, per_token: float, worst: int) -> None:
        self._chance = random.Random(11)
        self._kept = kept
        self._per_token = per_token
        self._worst = worst

    def draw(self, step: int) -> dict[str, int]:
        """Return the counts of a step; one batch is longer than all others."""
        longest = 144 if step == self._worst else self._chance.randrange(32, 129)
        tokens, content = 8 * longest, 8 * longest - self._chance.randrange(2 * longest)
        counts = {"step": step, "samples": 8, "longest": longest, "tokens": tokens}
        return counts | {"content_tokens": content, "largest_batch": tokens}

    def peak(self, tokens: float) -> float:
        return self._kept + self._per_token * tokens


def with_steps() -> Session:
    """Play a training whose steps have different batches, with its phases, evaluations and saves."""
    stage, kept = Stage("fine-tune", gpus=1), 3.75 * GIB
    batches = _Batches(kept, 2.9 * MIB, 37)
    with stage.span("cell", "fine-tune"):
        stage.hold({"cuda:0": 1.25 * GIB}, 1.2, {"weights": 1.22 * GIB, "buffers": 0.03 * GIB})
        with stage.span("train", "train") as train:
            stage.recorder.count(train.id, {"steps": 60, "epochs": 3})
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


def _step(stage: Stage, batches: _Batches, step: int, kept: float) -> None:
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
        stage.recorder.count(span.id, counts)


_LONG_STEPS: Final = 100_000
_LONG_TOP: Final = 20 * GIB


def hundred_thousand_steps() -> Session:
    """Play a training of 100,000 steps."""
    stage, kept = Stage("pretrain", gpus=1, interval=30.0), 66 * GIB
    epochs: list[Span] = []
    with stage.span("cell", "pretrain"):
        stage.hold({"cuda:0": kept}, 300.0, {"weights": 21.9 * GIB, "buffers": 0.1 * GIB})
        stage.find(["cuda:0"], {"optimizer": 43.8 * GIB, "unattributed": 0.2 * GIB})
        with stage.span("train", "train") as train:
            stage.recorder.count(train.id, {"steps": _LONG_STEPS, "epochs": 4})
            for epoch in range(4):
                with stage.span("epoch", f"epoch {epoch + 1} of 4") as span:
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
    # A span for each step would take ten seconds, and only the table is kept of so many.
    session.steps = deepcopy(_long_steps(tuple((span.id, span.start) for span in epochs)))
    return session


@cache
def _long_steps(epochs: tuple[tuple[int, float], ...]) -> Steps:
    batches = _Batches(66 * GIB, _LONG_TOP / (8 * 144), 61_337)
    rows = []
    for step in range(1, _LONG_STEPS + 1):
        epoch, within = divmod(step - 1, _LONG_STEPS // 4)
        parent, began = epochs[epoch]
        start = began + within * 0.4
        counts = batches.draw(step)
        peak, tokens = batches.peak(counts["tokens"]), counts["tokens"]
        figures = 8, counts["longest"], tokens, counts["content_tokens"]
        device = peak, CERTAINTIES.index("exact"), peak, step, tokens, 66 * GIB
        phases = 0.96 * peak, peak, 67 * GIB
        rows.append((parent, step, step, start, start + 0.98 * 0.4, *figures, *device, *phases))
    steps = Steps()
    steps.widen(["cuda:0"])
    steps.extend(np.array(rows))
    return steps
