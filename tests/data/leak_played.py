"""Scripted loops, played and judged by our rules, and by simple rules that compare two readings."""

import gc
import warnings
from dataclasses import dataclass

import numpy as np
import torch

import hfmem_widget
from hfmem_widget.features.leaks.trends import Trend, trends_of
from tests.data.leak_cases import Case, Loop
from tests.data.leak_mirror import mirrored, on_the_host

MB = 1_000_000


@dataclass(frozen=True)
class Played:
    case: Case
    on_gpu: Trend | None  # what we say of the mirrored GPU
    on_host: Trend | None  # and of this process' heap
    # Which rules call it a leak: memory rose by more than 1 MB an iteration, from the first to the last
    # ("mean"), or ever from one to the next, after the first ("any").
    cries: frozenset[str]


def played(case: Case) -> Played:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _play(case)
    finally:
        torch.set_num_threads(threads)


def _play(case: Case) -> Played:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with mirrored() as mirror, hfmem_widget.watch(quiet=True, interval=0.05) as session:
            kept = case.run(Loop(mirror))
        del kept
        gc.collect()
        with on_the_host(), hfmem_widget.watch(quiet=True, interval=0.05) as beside:
            kept = case.run(Loop())
        del kept
        gc.collect()
    after = session.steps.table[:, session.steps.columns.index("cuda:0/after")]
    rises = np.diff(after)
    return Played(
        case,
        on_gpu=next(iter(trends_of(session, session.spans[0])), None),
        on_host=next(iter(trends_of(beside, beside.spans[0])), None),
        cries=frozenset(
            rule for rule, rise in (("mean", rises.mean()), ("any", rises[1:].max())) if rise > MB
        ),
    )
