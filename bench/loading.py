"""How much longer `from_pretrained` takes while it is followed, against an A/A control.

A checkpoint of a small Llama's shape, in shards, in the page cache. Each round loads it in every way, in
another order; a way's time is held against that of the plain one in the same round. *Mapped* is where loading
costs least: the weights stay in the files, so that hardly more is done than the work per tensor.
*Cast* reads them all. The watch is begun and ended outside the timed call. Time is the loading thread's CPU
time, garbage is collected before: on a shared machine the clock on the wall cannot tell apart one per cent.
"""

import gc
import logging
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from common import measure
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging as transformers_logging

import hfmem_widget
from hfmem_widget.drivers import install as attaching
from hfmem_widget.drivers import loading
from hfmem_widget.drivers.loading import Load
from hfmem_widget.monitor.patch import restore, surround
from hfmem_widget.monitor.shared import shared_monitor

SHAPE = {
    "vocab_size": 8000,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 24,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}
SHARD = "50MB"
PLAIN, CONTROL = "plain", "plain again (control)"
ATTACHED, WATCHED = "extension loaded, nothing watched", "watched"


def seconds(load: Callable[[], object]) -> float:
    """Load once, with nothing to collect before, and return how long it took."""
    gc.collect()
    gc.disable()
    started = time.thread_time()
    load()
    spent = time.thread_time() - started
    gc.enable()
    return spent


def plain(load: Callable[[], object]) -> float:
    """Load with the library's own methods."""
    return seconds(load)


def attached(load: Callable[[], object]) -> float:
    """Load where the extension is, and nothing is watched."""
    attaching.attach()
    try:
        return seconds(load)
    finally:
        attaching.detach()


def watched(load: Callable[[], object]) -> float:
    """Load in a watched block."""
    attaching.attach()
    try:
        with hfmem_widget.watch(quiet=True):
            return seconds(load)
    finally:
        attaching.detach()


class Weights:
    """As transformers' conversions of weights, of which each does this once, and it takes no time."""

    def __init__(self) -> None:
        self.layer_targets = {"target": {"source"}}

    def add_tensor(self, *_: object) -> None:
        """Do nothing."""

    def convert(self, *_: object, **__: object) -> None:
        """Do nothing."""


def per_tensor(calls: int = 20_000) -> float:
    """Return the seconds that following one tensor takes in a watched load."""

    def spent(weights: Weights) -> float:
        started = time.thread_time()
        for _ in range(calls):
            weights.add_tensor("target", "source", "pattern", None)
            weights.convert("target", model=None, config=None)
        return (time.thread_time() - started) / calls

    weights = Weights()
    bare = min(spent(weights) for _ in range(5))
    surround(Weights, "add_tensor", loading._collecting, whole_call=True)  # noqa: SLF001  (what is measured)
    surround(Weights, "convert", loading._placing)  # noqa: SLF001
    monitor = shared_monitor()
    with hfmem_widget.watch(quiet=True) as session, Load(monitor, session, "load"):
        followed = min(spent(weights) for _ in range(5))
    restore(Weights, "add_tensor")
    restore(Weights, "convert")
    return followed - bare


def longer(values: list[float], base: list[float]) -> str:
    """Return by how many per cent, from the ratios of each round."""
    if values is base:
        return ""
    pairs = zip(values, base, strict=True)
    estimate: measure.Estimate = measure.trimmed([100 * (one / other - 1) for one, other in pairs])
    return str(estimate.text())


def main() -> None:
    """Measure and print."""
    parser = measure.cli(__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    arguments = parser.parse_args()
    transformers_logging.set_verbosity(logging.ERROR)
    transformers_logging.disable_progress_bar()
    rows: list[list[str]] = []
    raw: dict[str, measure.Rounds] = {}
    options: dict[str, dict[str, Any]] = {"mapped": {}, "cast": {"dtype": torch.bfloat16}}
    with tempfile.TemporaryDirectory() as folder:
        LlamaForCausalLM(LlamaConfig(**SHAPE)).save_pretrained(folder, max_shard_size=SHARD)
        for name, how in options.items():
            load = partial(LlamaForCausalLM.from_pretrained, folder, **how)
            ways = {
                PLAIN: partial(plain, load),
                CONTROL: partial(plain, load),
                ATTACHED: partial(attached, load),
                WATCHED: partial(watched, load),
            }
            for way in ways.values():
                way()
            spent = raw[name] = measure.interleave(ways, arguments.rounds)
            rows += [
                [name, way, measure.estimate(values).text(1e-3), longer(values, spent[PLAIN])]
                for way, values in spent.items()
            ]
    measure.report(
        "Loading a checkpoint of 219 tensors in shards, in ms of CPU time (median and 95 % interval)",
        measure.machine("torch", "transformers", "safetensors"),
        ["loading", "way", "ms", "% longer than plain"],
        rows,
        notes=[f"Followed, a tensor takes {1e6 * per_tensor():.1f} µs more."],
        raw=raw,
        json_to=arguments.json,
    )


if __name__ == "__main__":
    main()
