"""What tools report about the memory of one training step, against what was there.

Every tool looks at a step of the same training: forward, backward, and AdamW's step, fused, with states
that are there already. Truth are the storages of weights, gradients and states, and a replay of the
allocator's trace (bench/common/replayed.py). bert-large's shape on a GPU, in float32, four sequences of 512
tokens; with --small a small BERT on the CPU.

- hfmem_widget, with spans: forward, backward and optimizer are told apart, as beside a Trainer.
- hfmem_widget, plain loop: an optimizer's own hooks are all it has. In both it has watched a step before.
- MemTracker: torch.distributed's. Activations are its "Activation" and "Temp" at its peak.
- torch.profiler: its categories, as its memory timeline has them, each at its highest. Activations are
  ACTIVATION, TEMPORARY and AUTOGRAD_DETAIL when the sum of all was highest.
- accelerate estimate-memory: from the configuration, with Adam in float32; no step is made.
- stormlog: the index of live tensors that it makes for a snapshot, here between backward and the optimizer's
  step. It names what it finds; parameters by their names, states by the key they lie under.

A tool that claims no figure has a dash. The time is that of the step under it, without what it does before
and after.
"""

import gc
import math
import os
import warnings
from dataclasses import asdict, astuple, fields
from functools import partial

import numpy as np
import torch
from common import measure
from common.attributors import NONE, Figures, Look, Training, Way, ways_here
from common.replayed import Truth
from common.ways import watched

DASH = "\N{EN DASH}"


def cell(value: float, truth: float) -> str:
    """Return a figure and its error."""
    if math.isnan(value):
        return DASH
    return f"{value:,.0f} ({100 * (value / truth - 1):+.2f} %)"


def row_of(name: str, looks: list[Look], alone: list[Look], truth: Truth) -> list[str]:
    """Return a tool's row: its last figures, and how many times longer the step was."""
    last = looks[-1].figures
    cells = [cell(getattr(last, one.name), getattr(truth, one.name)) for one in fields(Figures)]
    seconds = [look.seconds for look in looks]
    base = [look.seconds for look in alone]
    slower = DASH if math.isnan(seconds[0]) else measure.ratio(seconds, base).text(digits=2)
    return [name, *cells, "1" if looks is alone else slower]


def main() -> None:
    """Measure and print."""
    parser = measure.cli(__doc__)
    parser.add_argument("--small", action="store_true", help="a small BERT on the CPU")
    parser.add_argument("--rounds", type=int, default=12, help="steps under each, at most")
    parser.add_argument("--seconds", type=float, default=100.0, help="after which no round begins")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    small = arguments.small or not torch.cuda.is_available()
    if small:
        # With a thread on every core, whoever else runs stalls all of them for seconds.
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) - 1))
    training = Training(torch.device("cpu" if small else "cuda:0"), small=small)
    with watched():  # what is imported and opened once
        training.step()
        training.clear()
    truth = training.truth()
    ways, left_out = ways_here(on_gpu=not small)

    def look(way: Way) -> Look:
        found = way(training)
        training.clear()
        gc.collect()
        return found

    found = measure.interleave(
        {name: partial(look, way) for name, way in ways.items()},
        arguments.rounds,
        within=arguments.seconds,
    )
    step = 1e3 * float(np.median([one.seconds for one in found[NONE]]))
    where = "CPU" if small else torch.cuda.get_device_name(0)
    what = (
        f"steps of {step:.0f} ms, {len(found[NONE])} under each; at the peak of {truth.peak:,} bytes, "
        f"{truth.gradients_at_peak:,} of the gradients were there"
    )
    real = ["truth", *(f"{getattr(truth, one.name):,}" for one in fields(Figures)), DASH]
    rows = [row_of(name, looks, found[NONE], truth) for name, looks in found.items()]
    notes = [f"{name}: {looks[-1].note}" for name, looks in found.items() if looks[-1].note]
    packages = ("torch", "transformers", "accelerate", "stormlog")
    measure.report(
        "What tools report about one step, in bytes with the error, and what it costs the step",
        f"{measure.machine(*packages)}, {where}; {what}",
        ["", "weights", "gradients", "optimizer states", "activations at the peak", "x the step"],
        [real, *rows],
        notes=[*notes, *left_out],
        raw={
            "truth": asdict(truth),
            "looks": {name: [astuple(one) for one in looks] for name, looks in found.items()},
        },
        json_to=arguments.json,
    )


if __name__ == "__main__":
    main()
