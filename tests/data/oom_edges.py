"""Incidents at the edges of rules: ``python -m tests.data.oom_edges`` writes `oom_edges.txt` anew.

Each of them is changed in one figure, to exactly where a rule begins or ends. Where other things are said
then, they are kept: the cause, which rules speak, and all figures; no words.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from hfmem_widget.analysis.parts import LABELS
from hfmem_widget.features.oom import advice as savings
from hfmem_widget.features.oom import diagnosis as why
from hfmem_widget.features.oom.advice import KEPT_FROM, VARIES_FROM, advise
from hfmem_widget.features.oom.diagnosis import diagnose
from hfmem_widget.features.oom.html import batch
from hfmem_widget.features.oom.model import Blocks, Incident
from hfmem_widget.features.oom.report import headline
from hfmem_widget.session import HELD, Contents, Finding, Part
from hfmem_widget.text import GIB, MIB
from tests.data.drawn import figures
from tests.data.oom_incidents import CASES

FILE = Path(__file__).with_name("oom_edges.txt")
NAN = math.nan

OF = (
    "full of activations",
    "a batch of one long sequence",
    "the optimizer makes its states",
    "temporaries of a later",
    "full of float32 weights",
    "full of 16-bit weights",
    "pieces of segments",
    "another process has most",
    "more than the device has",
    "logits, by their size",
    "a limit on this process",
    "losses kept",
    "an evaluation that keeps",
    "cuBLAS beside",
    "pinned memory",
    "CPU: more than",
    "CPU: a MemoryError",
    "CPU: a limit",
    "CUDA says nothing",
    "attention that makes",
    "adapters that train",
    "an evaluation's batch",
    "a limit by which a request",
    "what else takes memory",
    "nothing known at all",
)
"""How the names of the incidents begin."""

Change = Callable[[Incident], Incident]


def _figure(name: str, value: Callable[[Incident], float]) -> Change:
    def change(one: Incident) -> Incident:
        changed: dict[str, Any] = {name: value(one)}
        return replace(one, **changed)

    return change


def _seen(**figures: float) -> Change:
    changed: dict[str, Any] = figures
    return lambda one: replace(one, seen=replace(one.seen, **changed))


def _part(name: str, value: Callable[[Incident], float]) -> Change:
    def change(one: Incident) -> Incident:
        if one.anatomy is None:
            return one
        others = tuple(part for part in one.anatomy.parts if part.name != name)
        changed = Part(name, LABELS[name], value(one))
        return replace(one, anatomy=replace(one.anatomy, parts=(*others, changed)))

    return change


def _counts(**counts: float) -> Change:
    def change(one: Incident) -> Incident:
        return replace(
            one,
            path=tuple(
                replace(span, counts={**span.counts, **counts}) if span.counts else span
                for span in one.path
            ),
        )

    return change


def _blocks(**more: Callable[[Incident], float]) -> Change:
    def change(one: Incident) -> Incident:
        known = one.blocks or Blocks(count=3, free=one.cache, largest_free=one.cache / 2)
        changed: dict[str, Any] = {name: value(one) for name, value in more.items()}
        return replace(one, blocks=replace(known, **changed))

    return change


def _grown(value: Callable[[Incident], float]) -> Change:
    return lambda one: replace(
        one, growth=Finding("leak", "warn", "Grows.", {"device": "cuda:0", "grown": value(one)})
    )


def _limit(value: Callable[[Incident], float]) -> Change:
    return lambda one: replace(one, host=replace(one.host, limit=value(one), used=GIB))


def _held(one: Incident) -> float:
    return sum(one.part(name) for name in HELD)


def _states(share: float) -> Callable[[Incident], float]:
    return lambda one: share * 2 * one.part("weights")


def _logits(share: float, more: float = 0.0) -> Change:
    def change(one: Incident) -> Incident:
        known = replace(one, model=replace(one.model, vocabulary=32_000))
        return replace(known, asked=share * known.batch_tokens * 32_000 * 4 + more)

    return change


EDGES: dict[str, Change] = {
    "asked nothing": _figure("asked", lambda _: 0.0),
    "asked unknown": _figure("asked", lambda _: NAN),
    "asked a byte": _figure("asked", lambda _: 1.0),
    "asked what is free": _figure("asked", lambda one: one.free),
    "asked what is free, and others'": _figure("asked", lambda one: one.free + one.others),
    "asked all": _figure("asked", lambda one: one.total),
    "asked the slack": _figure("asked", lambda one: one.slack),
    "asked the largest free": _figure("asked", lambda one: one.largest_free),
    "asked a third": _figure("asked", lambda one: why.HUGE_FROM * one.ceiling),
    "asked a tenth": _figure("asked", lambda one: why.LARGE_FROM * one.ceiling),
    "asked what the model leaves": _figure("asked", lambda one: one.ceiling - _held(one)),
    "asked what grew": _figure("asked", lambda one: one.grown),
    "asked ten times all": _figure("asked", lambda one: 10 * one.total),
    "asked 999.5 GiB": _figure("asked", lambda _: 999.5 * GIB),
    "asked 999.5 TiB": _figure("asked", lambda _: 999.5 * 1024 * GIB),
    "asked logits": _logits(1.0),
    "asked least of logits": _logits(0.97),
    "asked most of logits": _logits(1.01, 2 * MIB),
    "asked half of logits": _logits(0.5),
    "nothing asked for, nothing free": lambda one: replace(one, asked=0.0, free=0.0),
    "free: none": _figure("free", lambda _: 0.0),
    "free: unknown": _figure("free", lambda _: NAN),
    "free: a byte": _figure("free", lambda _: 1.0),
    "free: often": _figure("free", lambda one: why.OFTEN_FREE * one.total),
    "total: none": _figure("total", lambda _: 0.0),
    "total: unknown": _figure("total", lambda _: NAN),
    "total: the driver keeps most": _figure("total", lambda one: one.device.total / 1.02),
    "allowed: none": _figure("allowed", lambda _: 0.0),
    "allowed: half": _figure("allowed", lambda one: one.total / 2),
    "allocated: none": _figure("allocated", lambda _: 0.0),
    "allocated: unknown": _figure("allocated", lambda _: NAN),
    "allocated: a byte": _figure("allocated", lambda _: 1.0),
    "reserved: none": _figure("reserved", lambda _: 0.0),
    "reserved: what is allocated": _figure("reserved", lambda one: one.allocated),
    "reserved: a quarter GiB more": _figure("reserved", lambda one: one.allocated + GIB / 4),
    "others: none": _figure("others", lambda _: 0.0),
    "others: a tenth": _figure("others", lambda one: why.OTHERS_FROM * one.total),
    "others: what was asked less what is free": _figure("others", lambda one: one.asked - one.free),
    "processes: one": lambda one: replace(one, processes=((7, GIB),)),
    "processes: four": lambda one: replace(one, processes=((1, 1), (2, GIB), (3, 5), (4, 4))),
    "all asked for under a limit": lambda one: replace(
        one, asked=one.total, free=one.total, allowed=one.total / 2
    ),
    "preemptive": lambda one: replace(one, preemptive=not one.preemptive),
    "grown: by enough": _grown(lambda one: why.GROWN_FROM * one.ceiling),
    "grown: by what is missing": _grown(lambda one: one.asked - one.free),
    "grown: nobody knows by how much": lambda one: replace(
        one, growth=Finding("leak", "warn", "It.")
    ),
    "grown: by nothing": _grown(lambda _: 0),
    "grew: nothing": _figure("grown", lambda _: 0.0),
    "grew: a byte": _figure("grown", lambda _: 1.0),
    "grew: what was asked": _figure("grown", lambda one: one.asked),
    "blocks: unknown": lambda one: replace(one, blocks=None),
    "blocks: enough": _blocks(free=lambda one: why.FRAGMENTED_FROM * one.ceiling),
    "blocks: what was asked": _blocks(free=lambda one: one.asked),
    "blocks: the largest": _blocks(largest_free=lambda one: one.asked),
    "blocks: none": _blocks(largest_free=lambda _: 0.0),
    "blocks: private": _blocks(private_free=lambda one: one.asked),
    "host: just enough": _limit(lambda one: GIB + one.asked),
    "host: a byte too little": _limit(lambda one: GIB + one.asked - 1),
    "activations: just enough": _part(
        "activations", lambda one: savings.DOMINATES_FROM * one.allocated
    ),
    "activations: none": _part("activations", lambda _: 0.0),
    "states: just enough": _part("optimizer", lambda one: savings.STATES_FROM * one.allocated),
    "states: none": _part("optimizer", lambda _: 0.0),
    "states: as good as all": _part("optimizer", _states(0.9)),
    "states and weights: none": lambda one: _part("weights", lambda _: 0.0)(
        _part("optimizer", lambda _: 0.0)(one)
    ),
    "states: half": _part("optimizer", _states(0.5)),
    "gradients and states: just enough": _part(
        "gradients",
        lambda one: savings.DOMINATES_FROM * one.allocated - one.part("optimizer"),
    ),
    "gradients: none": _part("gradients", lambda _: 0.0),
    "gradients: a byte": _part("gradients", lambda _: 1.0),
    "weights: just enough": _part("weights", lambda one: savings.WEIGHTS_FROM * one.ceiling),
    "weights: none": _part("weights", lambda _: 0.0),
    "one sample": _counts(samples=1),
    "two samples": _counts(samples=2),
    "three samples": _counts(samples=3),
    "no samples": _counts(samples=0),
    "longest: 512": _counts(longest=512, samples=1),
    "longest: 511": _counts(longest=511, samples=1),
    "longest: one": _counts(longest=1),
    "longest: none": _counts(longest=0),
    "tokens: one": _counts(tokens=1),
    "tokens: none": _counts(tokens=0),
    "the largest of several batches": _counts(largest_batch=2048),
    "left: just enough": _seen(freed=KEPT_FROM),
    "left: a byte less": _seen(freed=KEPT_FROM - 1),
    "parameters: none": lambda one: replace(one, contents=Contents()),
    "parameters: half are trained": lambda one: replace(
        one, contents=replace(one.contents, trainable=one.contents.parameters // 2)
    ),
    "a card before bfloat16": lambda one: replace(one, capability=(7, 5)),
    "the first card with bfloat16": lambda one: replace(one, capability=(8, 0)),
    "autocast is off": lambda one: replace(one, autocast=False, capability=(9, 0)),
    "checkpointing is on": lambda one: replace(one, model=replace(one.model, checkpointing=True)),
    "lengths that vary": lambda one: replace(one, lengths=(100.0, VARIES_FROM * 100)),
    "lengths that vary less": lambda one: replace(one, lengths=(100.0, VARIES_FROM * 100 - 1)),
}
"""What is changed, and how."""


RULES = {
    "other_model": "earlier run",
    "no_graphs": "without their graphs",
    "less_cache": "fewer sequences",
    "truncate": "Truncate",
    "expandable": "expandable_segments",
    "even_lengths": "fixed lengths",
    "release_pools": "CUDA graphs",
    "end_processes": "Stop other processes",
    "raise_limit": "Raise the limit",
    "stop_growth": "accumulates",
    "give_cache_back": "empty_cache",
    "in_pieces": "rocess it in chunks",
    "left_behind": "%memfree errors",
    "fused_attention": "sdpa",
    "loss_in_pieces": "logits at once",
    "keep_predictions_on_the_host": "prediction_loss_only",
    "smaller_evaluation": "per_device_eval_batch_size",
    "fewer_states": "adafactor",
    "adapters": "LoRA",
    "fused_step": "fused optimizer",
    "checkpointing": "gradient checkpointing",
    "smaller_batch": "Halve the batch size",
    "bfloat16": "bf16=True",
    "shorter": "shorter sequences",
    "half_weights": "dtype=torch.bfloat16",
    "four_bits": "in 4 bit",
}
"""What each advice is called in the file, and words of its action."""


def _rule(action: str) -> str:
    (name,) = [name for name, words in RULES.items() if words in action]
    return name


def said_of(one: Incident) -> list[str]:
    """Return what is said of an incident, without its words: the cause, each advice, and the heading."""
    told = diagnose(one)
    return [
        f"{told.cause}{'' if told.is_sure else '?'}[{figures(told.sentence)}]",
        *(
            f"{_rule(said.action)}[{figures(said.sentence())}]" + "*" * said.is_measured
            for said in advise(one, told)
        ),
        f"heading[{figures(headline(one))}; {figures(batch(one))}]",
    ]


def difference(usual: list[str], said: list[str]) -> str:
    """Return what is said instead, in order, and what is not said any more."""
    kept, gone = (
        [one for one in said if one in usual],
        [one for one in usual[:-1] if one not in said],
    )
    in_order = [one for one in usual if one in said]
    new = said if kept != in_order else [one for one in said if one not in usual]
    return " ".join([*new, *(f"-{one.partition('[')[0]}" for one in gone)])


def of_incident(name: str) -> list[str]:
    """Return what is said of an incident, and what else where a figure of it is at an edge."""
    one = next(case.incident for case in CASES if case.name.startswith(name))
    usual = said_of(one)
    told = [f"== {name}: {' '.join(usual)}"]
    for edge, change in EDGES.items():
        if said := difference(usual, said_of(change(one))):
            told.append(f"{edge}: {said}")
    return told


def kept() -> dict[str, list[str]]:
    """Return what is kept, by incident."""
    blocks = FILE.read_text(encoding="utf-8").removeprefix("== ").split("\n== ")
    return {name: f"== {block}".splitlines() for name, block in zip(OF, blocks, strict=True)}


if __name__ == "__main__":
    lines = [line for name in OF for line in of_incident(name)]
    FILE.write_text("\n".join(lines) + "\n", encoding="utf-8")
