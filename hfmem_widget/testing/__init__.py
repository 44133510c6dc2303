"""Sessions without hardware: for tests, notebooks and demonstrations.

`scripted_run` plays a workload against a `Session` in no time. Every figure follows from the script, so
that the same name always gives the same session.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hfmem_widget.session import Session
from hfmem_widget.testing import runs, steps
from hfmem_widget.testing.fakes import FakeClock, FakeSource

__all__ = ["SCRIPTED_RUNS", "FakeClock", "FakeSource", "scripted_run"]

_RUNS: Final[dict[str, Callable[[], Session]]] = {
    "training": runs.training,
    "two gpus": runs.two_gpus,
    "eight gpus": runs.eight_gpus,
    "cpu": runs.on_cpu,
    "short": runs.short,
    "hour with gaps": runs.hour_with_gaps,
    "failed": runs.failed,
    "at least": runs.at_least,
    "idle gpu": runs.idle,
    "steps": steps.with_steps,
    "100,000 steps": steps.hundred_thousand_steps,
    "leak": runs.leak,
}

SCRIPTED_RUNS: Final = tuple(_RUNS)
"""The runs there are, by name.

An H200 training run with steps; two and eight GPUs at work; a run on the CPU; a cell of 10 ms; an hour
with gaps in it; a cell that failed when memory was nearly full; a run whose peak is only a lower bound;
an interrupted cell that left the GPU alone; a training whose steps take different batches, with their
phases, evaluations and saves; one of 100,000 steps; one that keeps a little more after every step and
goes over its budget.

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
