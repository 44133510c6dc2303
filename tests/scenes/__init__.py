"""Sessions without hardware: for tests and measurements.

`scripted_run` plays a workload against a `Session` in no time. Every figure follows from the script, so
that the same name always gives the same session.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Final

from hfmem_widget.session import Session
from hfmem_widget.text import GIB
from tests.scenes import runs, steps
from tests.scenes.stage import FakeClock

__all__ = ["SCRIPTED_RUNS", "FakeClock", "scripted_run", "shared_run"]

_EIGHT: Final = [f"cuda:{index}" for index in range(8)]
_NO_GPU: Final = "No GPU is visible to this process, so its own memory is shown."
_RUNS: Final[dict[str, Callable[[], Session]]] = {
    "training": runs.training,
    "two gpus": partial(
        runs.training,
        "pipeline",
        _EIGHT[:2],
        gpus=4,
        steps=12,
        seconds=7.5,
        top=18.2 * GIB,
        weights=None,
    ),
    "eight gpus": partial(
        runs.training, "pretrain", _EIGHT, gpus=8, steps=24, seconds=96.0, top=121.4 * GIB
    ),
    "cpu": partial(
        runs.training,
        "tiny-bert",
        ["cpu"],
        gpus=0,
        steps=9,
        seconds=6.2,
        top=0.9 * GIB,
        weights=0.11,
        notes=[_NO_GPU],
    ),
    "short": runs.short,
    "hour with gaps": runs.hour_with_gaps,
    "failed": partial(runs.training, outcome="raised OutOfMemoryError", top=138.7 * GIB),
    "at least": partial(runs.training, certainty="at least"),
    "idle gpu": runs.idle,
    "steps": steps.with_steps,
    "100,000 steps": steps.hundred_thousand_steps,
    "leak": runs.leak,
}

SCRIPTED_RUNS: Final = tuple(_RUNS)
"""The names of the runs.

A training on an H200; on two and on eight GPUs; on the CPU; a cell of 10 ms; an hour with gaps; a cell that
failed when memory was nearly full; a peak that is only a lower bound; an interrupted cell that left the GPU
alone; a training with different batches, phases, evaluations and saves; one of 100,000 steps; one that keeps
a little more after every step and exceeds its budget.
"""


def scripted_run(name: str = "training") -> Session:
    """Return a finished session of one of the `SCRIPTED_RUNS`; its first span is the watched cell."""
    return _RUNS[name]()


@cache
def shared_run(name: str = "training") -> Session:
    """Return a session of one of the `SCRIPTED_RUNS`, made once for tests that only read it."""
    return scripted_run(name)
