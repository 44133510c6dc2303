"""What would fit of an evaluation or a generation that ran out of memory, by dry runs of its passes.

What was allocated as it began was measured; only what its own passes take above that is forecast.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Literal

from hfmem_widget.analysis.facts import active_devices, ran_out
from hfmem_widget.errors import OptionError
from hfmem_widget.features.fit.allocator import Replay, has_growing_segments
from hfmem_widget.features.fit.beside import failed_spans, others_of
from hfmem_widget.features.fit.dry_run import Inference, inference
from hfmem_widget.features.fit.inputs import with_positions
from hfmem_widget.features.fit.model import (
    MEASURED,
    Bound,
    Fit,
    Forecast,
    ForecastPart,
    Room,
    Verdict,
)
from hfmem_widget.features.fit.moves import SECONDS_AFTER_AN_ERROR, SECONDS_IF_ASKED
from hfmem_widget.features.fit.on_meta import copy_of, storages, uncompiled
from hfmem_widget.features.fit.predict import (
    FROM_A_DRY_RUN,
    HALVES,
    inputs_of,
    precision_of_accelerate,
)
from hfmem_widget.features.fit.recorded import has_ranks, margin_on
from hfmem_widget.features.fit.room import rooms
from hfmem_widget.features.fit.search import MOST_TOKENS, most_that_fit
from hfmem_widget.features.fit.setting import Setting, foreign
from hfmem_widget.features.fit.workspaces import of_cublas
from hfmem_widget.monitor.batch import SeenBatch
from hfmem_widget.session import Change, Device, Finding, Move, Session, Span
from hfmem_widget.text import format_bytes, format_count, format_counted, plain

GENERATING: Final = frozenset({"prefill", "decode"})
EVALUATING: Final = frozenset({"evaluate", "predict"})
PASSES: Final = GENERATING | EVALUATING

NOT_THEIRS: Final = frozenset({"another model", "graphs"})
"""The causes of an out-of-memory error that no smaller pass removes."""

LEAST_SIZE: Final = 1 / 8
"""The least share of the new tokens, beams or tokens of a source that is worth advising."""

OF_BEAMS: Final = 7
"""64-bit numbers that beam search keeps for each token of each beam: tokens, and the beams they belong to."""

OF_TOKENS: Final = 4
"""The same without beams: tokens and masks."""


NOT_FORECAST: Final = (
    "this evaluation or generation has no forecast: its model is gone or was not seen to run, its cache is "
    "not the usual one that grows, or predictions are kept of a data set whose length is unknown"
)

Need = tuple[float, float]
"""The bytes that passes take above what was allocated before them: their peak by a dry run, and at most."""


@dataclass(frozen=True, slots=True)
class Passes:
    """An evaluation or a generation, as far as it is still there, and dry runs of it, each made once."""

    device: Device
    seen: SeenBatch
    ghost: Any  # a copy of the model
    base: float  # bytes that were allocated as it began
    room: float  # bytes that this process may have on the device
    spare: float  # bytes that something else had, which may be free by now
    precision: str
    until: float  # second of a monotonic clock after which no dry run is begun
    rows: int  # of a batch as it was to be
    each: int = 1  # sequences that are made of each of them
    whole: int = 0  # tokens of a row at the end of a generation
    answer: int = 0  # tokens that the decoder of an encoder-decoder begins with
    beams: int = 1
    is_sampled: bool = False  # whether tokens are drawn at random
    is_reshaped: bool = False  # whether `generate` changes the scores of the model
    is_of_trainer: bool = False
    keeps: bool = False  # whether predictions stay on the device until the end
    kept_rows: int = 0  # of all of them; 0 where it is unknown what stays
    target: Literal["arguments", "evaluation"] = "arguments"
    """What takes a change: the training's arguments, or those of a Trainer that is there."""
    known: dict[tuple[int, ...], Inference] = field(default_factory=dict)

    def kept(self, rows: int) -> tuple[int, int]:
        """Return the bytes of predictions and of labels that a batch adds to what is kept."""
        given: Any = self.seen.given.get("labels")
        size = math.prod(given[0]) * given[1].itemsize if isinstance(given, tuple) else 0
        predictions = self._run(rows, self.seen.length).predictions
        return predictions, size * rows // self.seen.rows if predictions else 0

    def evaluation(self, rows: int, *, keeping: bool = False) -> Need:
        """Return what a batch takes; of two, for what the first one leaves free.

        Or what all of them take, `keeping` what they return: what is kept is copied with each batch.
        """
        run = self._run(rows, self.seen.length)
        peak, is_on_gpu, copied = run.peak + sum(self._libraries()), ":" in self.device.key, 0
        if keeping:
            predictions, labels = self.kept(rows)
            batches, rest = divmod(self.kept_rows, rows)
            if self.kept_rows > rows:
                copied = (2 * predictions + labels) * self.kept_rows // rows
            # The newest is still in a variable; what is kept by then is its copy from the third batch on.
            before, more = (
                max(0, each - 1 + (each > 2)) * (predictions + labels)
                for each in (batches, batches + 1)
            )
            peak = max(peak + before, peak * rest // rows + more if rest else 0, copied)
        most = MEASURED[1] * peak + copied * is_on_gpu  # pieces that copies leave behind
        if self._libraries() and not has_growing_segments():
            replay = Replay(self._libraries(), run.events, ())
            most = max(most, replay.needs(self.room - self.base))
        return peak, most

    def generation(
        self, rows: int, whole: int, *, each: int | None = None, source: int | None = None
    ) -> Need:
        """Return what all of it takes, up to rows of so many tokens."""
        each, source = each or self.each, source or self.seen.length
        made = rows * each
        if self.answer:
            prefill = self._run(rows, source, each=each, answer=self.answer).peak
            last = self._run(rows, source, is_last=True, each=each, answer=whole - 1)
        else:
            prefill = self._run(made, source).peak
            last = self._run(made, whole - 1, is_last=True)
        head = self.ghost.get_output_embeddings()
        logits = 4 * made * (0 if head is None else int(head.weight.shape[0]))
        # While the next token is computed, the scores of the last one are kept: twice where they are changed
        # or drawn from. Choosing takes as much once more. Beams reorder the cache, one tensor at a time.
        is_plain = each == 1 and not self.is_sampled and not self.is_reshaped
        kept = logits if is_plain else 2 * logits
        choosing = last.left + kept + logits
        if self.beams > 1 and each > 1:
            choosing = max(choosing, last.left + logits + last.largest)
        peak = max(prefill, last.peak + kept, choosing) + sum(self._libraries())
        peak += 8 * made * whole * (OF_BEAMS if self.beams > 1 else OF_TOKENS)
        # A growing cache leaves pieces between an allocator's blocks.
        pieces = last.kv_cache if ":" in self.device.key else 0
        return peak, MEASURED[1] * peak + pieces

    def _libraries(self) -> tuple[int, ...]:
        """Return the bytes that cuBLAS takes for itself with the first product; they may be there already."""
        return (of_cublas()[0],) if ":" in self.device.key else ()

    def _run(
        self, rows: int, length: int, *, is_last: bool = False, each: int = 1, answer: int = 0
    ) -> Inference:
        size = rows, length, is_last, each, answer
        if size in self.known:
            return self.known[size]
        if time.monotonic() > self.until:
            raise TimeoutError
        setting = Setting(training=False, batch=rows, length=max(1, length))
        with foreign(f"{plain(type(self.ghost).__name__)} cannot run on PyTorch's meta device"):
            batch = inputs_of(self.ghost, setting, self.seen)
            is_decoder = self.whole and not answer  # whose positions `generate` counts
            if is_decoder:
                batch = with_positions(self.ghost, batch, rows, setting.length)
            self.known[size] = inference(
                self.ghost,
                batch,
                device=self.device.key.partition(":")[0],
                options=None if self.whole else {},
                autocast=HALVES.get(self.precision),
                is_last=is_last,
                each=each,
                answer=answer,
            )
        return self.known[size]


def moves_of_passes(
    session: Session, root: Span, error: Finding, *, seconds: float = SECONDS_AFTER_AN_ERROR
) -> list[Move]:
    """Return what would fit of an evaluation or a generation, best first; nothing where that is unknown.

    After so many seconds no further dry run is begun.
    """
    with suppress(OptionError, KeyboardInterrupt):
        if passes := _passes_of(session, root, error, time.monotonic() + seconds):
            return _moves_of(passes)
    return []


def _moves_of(passes: Passes) -> list[Move]:
    found: list[Move] = []
    with suppress(OptionError, TimeoutError, KeyboardInterrupt):
        for move in (_of_a_generation if passes.whole else _of_an_evaluation)(passes):
            found.append(move)  # noqa: PERF402  (what was found before the time is up is kept)
    fitting = [move for move in found if move.fits is not False]
    return sorted(fitting, key=lambda move: (move.fits is not True, bool(move.cost)))


def fit_passes(session: Session, headroom: float) -> Fit | None:
    """Return the forecast of the evaluation or generation that a session has watched, and what takes less.

    None where the newest that it watched is none, or no longer there. An error's room is that of then.
    """
    roots = [span for span in session.coarse_spans if span.parent is None]
    if not roots or not session.is_of_here:
        return None
    kinds = {phase.kind for phase in session.phases(roots[-1].id)}
    errors = [each for each in session.findings if ran_out(each) and each.span_id == roots[-1].id]
    if errors:
        kinds = {span.kind for span in failed_spans(session, roots[-1])}
    until = time.monotonic() + SECONDS_IF_ASKED
    error = errors[-1] if errors else None
    is_theirs = kinds & PASSES and (errors or "step" not in kinds)
    passes = _passes_of(session, roots[-1], error, until, headroom) if is_theirs else None
    if passes is None or (passes.keeps and not passes.kept_rows):
        if "step" not in kinds and kinds & PASSES:
            raise OptionError(NOT_FORECAST)
        return None
    model, device, length = passes.ghost, passes.device, passes.seen.length
    name, count = type(model).__name__, sum(one.numel() for one in storages(model.parameters()))

    def need(rows: int) -> Need:
        if passes.whole:
            return passes.generation(rows, passes.whole)
        return passes.evaluation(rows, keeping=passes.keeps)

    def most(rows: int) -> float:
        return passes.base + need(rows)[1] * margin_on(device)

    took = int(need(passes.rows)[0])
    bound: Bound = "exact" if ":" not in device.key else "estimate"
    parts = (
        ForecastPart("before", int(passes.base), int(passes.base), "measured as it began", "exact"),
        ForecastPart("activations", took, took, FROM_A_DRY_RUN, bound),
    )
    kind, tokens = device.key.partition(":")[0], max(1, passes.whole or length)
    setting = Setting(batch=passes.rows, length=tokens, training=False, optimizer="", device=kind)
    setting = replace(setting, precision=passes.precision)
    total = int(passes.base) + took
    forecast = Forecast(name, setting, parts, total, "forward", {"forward": total}, count)
    if passes.answer and length:
        note = f"Sources have {format_count(length)} tokens, answers up to {format_count(tokens)}."
        forecast = replace(forecast, notes=(note,))
    high, largest = max(passes.rows, MOST_TOKENS // setting.length), None
    with suppress(TimeoutError, OptionError):
        slope = took * margin_on(device) / passes.rows
        largest = most_that_fit(most, passes.rows, slope, passes.room, low=0, high=high)
    does_not = forecast.interval[0] > passes.room + passes.spare
    fits = most(passes.rows) <= passes.room or (False if does_not else None)
    session.moves = [move for move in _moves_of(passes) if move.peak < total]
    there = Room(device.key, device.name, device.total, passes.room)
    verdict = Verdict(there, 0, fits, None if largest == high else largest)
    return Fit(session.label, forecast, (verdict,), 0.0, moves=tuple(session.moves))


def _passes_of(
    session: Session, root: Span, error: Finding | None, until: float, headroom: float = 0.0
) -> Passes | None:
    evidence = {} if error is None else error.evidence
    if has_ranks() or evidence.get("cause") in NOT_THEIRS:
        return None
    failed = failed_spans(session, root)
    kinds = {span.kind for span in failed}
    seen = session.evaluated[-1] if session.evaluated else None
    model = seen and seen.model()
    devices = {device.key: device for device in session.devices}
    device = devices.get(str(evidence.get("device", "")))
    figures = (evidence.get(name) for name in ("room", "allocated"))
    room = sum(float(value) if isinstance(value, int) else math.nan for value in figures)
    if error is None:
        device = active_devices(session)[0]
        free = {one.device: one.available for one in rooms()[0]}.get(device.key, math.nan)
        now = session.value(session.last_sample, f"{device.key}/allocated")
        room = now + (1 - headroom) * free
    if seen is None or model is None or device is None or math.isnan(room):
        return None
    is_generation = bool(kinds & GENERATING)
    wanted = {"prefill"} if is_generation else EVALUATING
    spans = [span for span in session.spans if span.id >= root.id and span.kind in wanted]
    if not spans or not seen.rows:
        return None
    span, evaluations = spans[-1], [one for one in failed if one.kind in EVALUATING]
    counts = dict(span.counts)
    batch = evaluations[-1].counts.get("rows", 0.0) if evaluations else 0.0
    base = session.value(span.before, f"{device.key}/allocated")
    spare = 0.0 if error is None else others_of(session, root, device)
    if is_generation and "whole" not in counts:
        return None
    return Passes(
        device,
        seen,
        copy_of(uncompiled(model)),
        base,
        room,
        spare,
        "fp32" if is_generation else precision_of_accelerate(),
        until,
        rows=max(seen.rows, int(batch)),
        each=int(counts.get("made_of_each", 1.0)),
        whole=int(counts.get("whole", 0.0)),
        answer=int(counts.get("answer", 0.0)),
        beams=int(counts.get("beams", 1.0)),
        is_sampled=counts.get("sampled", 0.0) > 0,
        is_reshaped=counts.get("reshaped", 0.0) > 0,
        is_of_trainer=bool(batch),
        keeps=counts.get("keeps", 0.0) > 0,
        kept_rows=int(counts.get("kept_rows", 0.0)),
        target="arguments" if "train" in kinds else "evaluation",
    )


def _of_an_evaluation(passes: Passes) -> Iterator[Move]:
    rows = _most(passes, passes.evaluation, passes.rows)
    fewer = {} if rows == passes.rows else {"per_device_eval_batch_size": str(rows)}
    name = f"{format_counted(rows, 'row')} in a batch" if fewer else ""
    need = passes.evaluation(rows)
    if not passes.keeps:
        if fewer:
            yield _move(passes, need, rows, name, fewer)
        return
    ways = [("no predictions kept", {"prediction_loss_only": "True"}, "no metrics, the loss alone")]
    is_on_gpu, size = ":" in passes.device.key, ""
    if passes.kept_rows and (predictions := passes.kept(rows)[0]):
        size = f" ({format_bytes(2 * predictions // rows * passes.kept_rows)} there)"
        keeping = partial(passes.evaluation, keeping=True)
        few = _most(passes, keeping, passes.rows)
        if few < passes.rows and passes.base + keeping(few)[0] <= passes.room:
            beside = "" if is_on_gpu else " (metrics not counted)"
            fewest = f"{format_counted(few, 'row')} in a batch{beside}"
            yield _move(passes, keeping(few), few, fewest, {"per_device_eval_batch_size": str(few)})
    if is_on_gpu:
        moved = f"predictions moved to the host after each batch{size}"
        ways.insert(0, (moved, {"eval_accumulation_steps": "1"}, ""))
    for what, changes, cost in ways:
        names = " and ".join(filter(None, (what, name)))
        yield _move(passes, need, rows, names, {**changes, **fewer}, cost=cost)


def _of_a_generation(passes: Passes) -> Iterator[Move]:
    rows = _most(passes, partial(passes.generation, whole=passes.whole), passes.rows)
    if rows < passes.rows:
        options = {"per_device_eval_batch_size": str(rows)} if passes.is_of_trainer else {}
        name = f"{format_counted(rows, 'sequence')} at a time instead of {passes.rows}"
        cost = "other random draws" if passes.is_sampled else ""
        yield _move(passes, passes.generation(rows, passes.whole), rows, name, options, cost=cost)
    prompt, made = passes.answer or passes.seen.length, partial(passes.generation, passes.rows)
    in_trainer = passes.is_of_trainer
    yield from _fewer(
        passes,
        passes.whole - prompt,
        lambda size: made(prompt + size),
        name="at most {} new tokens instead of {}",
        cost="longer answers lose their end",
        change=lambda size: (
            Change("arguments", "generation_max_length", str(prompt + size))
            if in_trainer
            else Change("generate", "max_new_tokens", str(size))
        ),
    )
    if passes.beams == passes.each > 1:
        yield from _fewer(
            passes,
            passes.beams,
            lambda size: made(passes.whole, each=size),
            name="beams: {} instead of {}",
            cost="other answers",
            change=lambda size: (
                Change("arguments", "generation_num_beams", str(size))
                if in_trainer
                else Change("generate", "num_beams", str(size))
            ),
        )
    if passes.answer and passes.seen.length:
        yield from _fewer(
            passes,
            passes.seen.length,
            lambda size: made(passes.whole, source=size),
            name="sources of at most {} tokens instead of {}",
            cost="longer sources lose their end",
        )


def _fewer(
    passes: Passes,
    most: int,
    need: Callable[[int], Need],
    *,
    name: str,
    cost: str,
    change: Callable[[int], Change] | None = None,
) -> Iterator[Move]:
    """Yield the move to the largest size that fits, if it is below `most` and still worth advising."""
    size = _most(passes, need, most)
    if LEAST_SIZE * most <= size < most and passes.base + need(size)[0] <= passes.room:
        name = name.format(format_count(size), format_count(most))
        move = _move(passes, need(size), passes.rows, name, {}, cost=cost)
        yield replace(move, changes=() if change is None else (change(size),))


def _most(passes: Passes, need: Callable[[int], Need], most: int) -> int:
    """Return the largest size up to `most` that is sure to fit; 1 if none is seen to."""
    slope = need(most)[1] / most
    for spare in (0.0, passes.spare):
        left = (passes.room + spare - passes.base) / margin_on(passes.device)
        if found := most_that_fit(
            lambda size: need(size)[1], most, slope, left, low=0, high=most, next_too=False
        ):
            return found
    return 1


def _move(
    passes: Passes, need: Need, rows: int, name: str, options: Mapping[str, str], *, cost: str = ""
) -> Move:
    return Move(
        name=name,
        changes=tuple(Change(passes.target, key, value) for key, value in options.items()),
        batch=rows,
        length=passes.seen.length,
        accumulation=1,
        cost=cost,
        peak=int(passes.base + need[0]),
        low=passes.base + MEASURED[0] * need[0],
        high=passes.base + need[1] * margin_on(passes.device),
        room=passes.room,
        spare=passes.spare,
    )
