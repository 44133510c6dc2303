"""What would fit of an evaluation or a generation that ran out of memory, by dry runs of its passes.

What was allocated as it began was measured; only what its own passes take above that is forecast.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

from hfmem_widget.errors import OptionError
from hfmem_widget.features.fit.beside import others_of
from hfmem_widget.features.fit.model import MEASURED
from hfmem_widget.features.fit.moves import ON_THE_HOST, SECONDS_AFTER_AN_ERROR
from hfmem_widget.features.fit.setting import Setting
from hfmem_widget.monitor.batch import SeenBatch, SeenBatches
from hfmem_widget.monitor.process import process_state
from hfmem_widget.session import Change, Device, Finding, Move, Session, Span
from hfmem_widget.text import format_count, format_counted

GENERATING: Final = frozenset({"prefill", "decode"})
EVALUATING: Final = frozenset({"evaluate", "predict"})
PASSES: Final = GENERATING | EVALUATING

COPIES: Final = 4
"""Of the logits of the last token in float32, which choosing the next token takes: at most."""


@dataclass(frozen=True, slots=True)
class Need:
    """What passes take above what was allocated before them, in bytes."""

    peak: float
    high: float
    """With the pieces that a growing cache leaves between its blocks."""


@dataclass(frozen=True, slots=True)
class Passes:
    """An evaluation or a generation, as far as it is still there."""

    device: Device
    seen: SeenBatch
    model: Any
    base: float  # bytes that were allocated as it began
    room: float  # bytes that this process may have on the device
    spare: float  # bytes that something else had, which may be free by now
    precision: str
    until: float  # second of a monotonic clock after which no dry run is begun
    rows: int  # of a batch as it was to be
    each: int = 1  # rows made of each of them
    whole: int = 0  # tokens of a row at the end of a generation
    is_of_trainer: bool = False
    keeps: bool = False  # whether predictions stay on the device until the end

    @property
    def margin(self) -> float:
        """Times what is forecast that it may take."""
        return 1.0 if ":" in self.device.key else ON_THE_HOST


def failed_kinds(session: Session, root: Span) -> frozenset[str]:
    """Return the kinds of the spans that an error has ended."""
    failed = (span for span in session.spans if span.id >= root.id and span.outcome == root.outcome)
    return frozenset(span.kind for span in failed)


def moves_of_passes(session: Session, root: Span, error: Finding) -> list[Move]:
    """Return what would fit of an evaluation or a generation, best first; nothing where that is unknown."""
    try:
        passes = _passes_of(session, root, error)
        found = [] if passes is None else list(_moves(passes))
    except (OptionError, TimeoutError, KeyboardInterrupt):
        return []
    fitting = [move for move in found if move.fits is not False]
    return sorted(fitting, key=lambda move: (move.fits is not True, bool(move.cost)))


def _passes_of(session: Session, root: Span, error: Finding) -> Passes | None:
    kinds = failed_kinds(session, root)
    inside = [span for span in session.spans if span.id >= root.id and span.outcome == root.outcome]
    seen = next(
        (
            each
            for (_, was_training), each in reversed(process_state(SeenBatches).items())
            if not was_training
        ),
        None,
    )
    model = seen and seen.model()
    devices = {device.key: device for device in session.devices}
    device = devices.get(str(error.evidence.get("device", "")))
    figures = (error.evidence.get(name) for name in ("room", "allocated"))
    room = sum(float(value) if isinstance(value, int) else math.nan for value in figures)
    if seen is None or model is None or device is None or math.isnan(room):
        return None
    is_generation = bool(kinds & GENERATING)
    wanted = {"prefill"} if is_generation else EVALUATING
    spans = [span for span in session.spans if span.id >= root.id and span.kind in wanted]
    if not spans or not seen.rows:
        return None
    span, evaluations = spans[-1], [one for one in inside if one.kind in EVALUATING]
    counts = dict(span.counts)
    batch = evaluations[-1].counts.get("rows", 0.0) if evaluations else 0.0
    base = session.value(span.before, f"{device.key}/allocated")
    spare = others_of(session, root, device)
    if is_generation and "whole" not in counts:
        return None
    from hfmem_widget.features.fit.on_meta import uncompiled
    from hfmem_widget.features.fit.predict import precision_of_accelerate

    return Passes(
        device,
        seen,
        uncompiled(model),
        base,
        room,
        spare,
        "fp32" if is_generation else precision_of_accelerate(),
        time.monotonic() + SECONDS_AFTER_AN_ERROR,
        rows=max(seen.rows, int(batch)),
        each=int(counts.get("made_of_each", 1.0)),
        whole=int(counts.get("whole", 0.0)),
        is_of_trainer=bool(batch),
        keeps=counts.get("keeps", 0.0) > 0,
    )


def _moves(passes: Passes) -> Iterator[Move]:
    @cache
    def need(rows: int, whole: int = passes.whole) -> Need:
        if time.monotonic() > passes.until:
            raise TimeoutError
        return _need(passes, rows, whole)

    yield from _of_a_generation(passes, need) if passes.whole else _of_an_evaluation(passes, need)


def _of_an_evaluation(passes: Passes, need: Callable[[int], Need]) -> Iterator[Move]:
    rows = _most(passes, need, passes.rows)
    fewer = {} if rows == passes.rows else {"per_device_eval_batch_size": str(rows)}
    name = f"{format_counted(rows, 'row')} in a batch" if fewer else ""
    if not passes.keeps:
        if fewer:
            yield _move(passes, need(rows), rows, name, fewer)
        return
    ways = [("no predictions kept", {"prediction_loss_only": "True"}, "no metrics, the loss alone")]
    if ":" in passes.device.key:
        moved = "predictions moved to the host after each batch"
        ways.insert(0, (moved, {"eval_accumulation_steps": "1"}, ""))
    for what, changes, cost in ways:
        names = " and ".join(filter(None, (what, name)))
        yield _move(passes, need(rows), rows, names, {**changes, **fewer}, cost=cost)


def _of_a_generation(passes: Passes, need: Any) -> Iterator[Move]:
    rows = _most(passes, need, passes.rows)
    if rows < passes.rows:
        options = {"per_device_eval_batch_size": str(rows)} if passes.is_of_trainer else {}
        name = f"{format_counted(rows, 'sequence')} at a time instead of {passes.rows}"
        yield _move(passes, need(rows), rows, name, options)
    prompt = passes.seen.length
    wanted = passes.whole - prompt
    new = _most(passes, lambda new: need(passes.rows, prompt + new), wanted)
    shorter = need(passes.rows, prompt + new)
    if new < wanted and passes.base + shorter.peak <= passes.room:
        name = f"at most {format_count(new)} new tokens instead of {format_count(wanted)}"
        cost = "longer answers lose their end"
        if passes.is_of_trainer:
            options = {"generation_max_length": str(prompt + new)}
            yield _move(passes, shorter, passes.rows, name, options, cost=cost)
        else:
            move = _move(passes, shorter, passes.rows, name, {}, cost=cost)
            yield replace(move, changes=(Change("generate", "max_new_tokens", str(new)),))


def _most(passes: Passes, need: Callable[[int], Need], most: int) -> int:
    """Return the largest size up to `most` that is sure to fit; 1 if none is."""

    def fits(size: int, spare: float = 0.0) -> bool:
        return passes.base + need(size).high * passes.margin <= passes.room + spare

    for spare in (0.0, passes.spare):
        low, high = 0, most + 1
        # What a batch takes is nearly a straight line in its size.
        guess = most
        while high - low > 1:
            if fits(guess, spare):
                low = guess
            else:
                high = guess
            first, last = need(1).high, need(guess).high
            slope = (last - first) / max(1, guess - 1)
            left = (passes.room + spare - passes.base) / passes.margin - first
            guess = 1 + int(left / slope) if slope > 0 else high - 1
            if not low < guess < high:
                close = guess <= low + max(1, low // 64)
                if low and close:
                    break
                guess = (low + high) // 2
        if low:
            return low
    return 1


def _move(
    passes: Passes, need: Need, rows: int, name: str, options: Mapping[str, str], *, cost: str = ""
) -> Move:
    low, _ = MEASURED
    return Move(
        name=name,
        changes=tuple(Change("arguments", key, value) for key, value in options.items()),
        batch=rows,
        length=passes.seen.length,
        accumulation=1,
        cost=cost,
        peak=int(passes.base + need.peak),
        low=passes.base + low * need.peak,
        high=passes.base + need.high * passes.margin,
        room=passes.room,
        spare=passes.spare,
    )


def _need(passes: Passes, rows: int, whole: int) -> Need:
    """Return what one pass takes, or all of a generation."""
    from hfmem_widget.features.fit.dry_run import inference, last_token
    from hfmem_widget.features.fit.on_meta import copy_of
    from hfmem_widget.features.fit.predict import HALVES, inputs_of
    from hfmem_widget.features.fit.setting import foreign

    ghost, device = copy_of(passes.model), passes.device.key.partition(":")[0]
    setting = Setting(training=False, batch=rows * passes.each, length=max(1, passes.seen.length))
    _, high = MEASURED
    with foreign(f"{type(ghost).__name__} cannot run on PyTorch's meta device"):
        inputs = inputs_of(ghost, setting, passes.seen)
        if not whole:
            autocast = HALVES.get(passes.precision)
            run = inference(ghost, inputs, device=device, options={}, autocast=autocast)
            return Need(run.peak, high * run.peak)
        prefill = inference(ghost, inputs, device=device).peak
        longer = inputs_of(ghost, replace(setting, length=whole - 1), passes.seen)
        decode = last_token(ghost, longer, device=device)
        logits = COPIES * 4 * setting.batch * _vocabulary(ghost)
        # `generate` keeps the tokens and their mask, and makes both anew for each token.
        tokens = COPIES * 8 * setting.batch * whole
        peak = tokens + max(prefill, decode.peak, decode.kv_cache + logits)
        return Need(peak, max(high * prefill, high * peak + decode.kv_cache))


def _vocabulary(model: Any) -> int:
    head = model.get_output_embeddings()
    return 0 if head is None else int(head.weight.shape[0])
