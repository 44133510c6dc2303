"""Changes that make an evaluation or a generation fit, by dry runs of its passes.

The bytes allocated at its beginning were measured; only those above them are forecast.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Literal

from hfmem_widget.analysis.facts import active_devices, failed_spans
from hfmem_widget.errors import OptionError
from hfmem_widget.features.fit.allocator import Replay, has_growing_segments
from hfmem_widget.features.fit.beside import error_of, others_of, room_before
from hfmem_widget.features.fit.dry_run import Inference, generation, inference
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
from hfmem_widget.features.fit.recorded import has_ranks
from hfmem_widget.features.fit.room import rooms
from hfmem_widget.features.fit.search import MOST_TOKENS, most_that_fit
from hfmem_widget.features.fit.setting import Setting, errors_as
from hfmem_widget.features.fit.training import margin_on
from hfmem_widget.features.fit.workspaces import of_cublas
from hfmem_widget.monitor.batch import SeenBatch
from hfmem_widget.session import Change, Device, Finding, Move, Session, Span
from hfmem_widget.text import format_bytes, format_count, format_counted, plain

GENERATING: Final = frozenset({"prefill", "decode"})
EVALUATING: Final = frozenset({"evaluate", "predict"})
PASSES: Final = GENERATING | EVALUATING

LEAST_SIZE: Final = 1 / 8
"""The least share of the new tokens, beams or source tokens that is advised."""

STEPS: Final = 3
"""The last steps that are run one by one: the first of them drops what a long prefill leaves behind."""

Need = tuple[float, float]
"""The bytes of passes above those allocated before them: the peak of a dry run, and the most."""


@dataclass(frozen=True, slots=True)
class Passes:
    """An evaluation or a generation that a session has watched, and its dry runs, each made once."""

    device: Device
    seen: SeenBatch
    ghost: Any  # a copy of the model on the meta device
    base: float  # bytes that were allocated at its beginning
    room: float  # bytes that this process may have on the device
    spare: float  # bytes that something else held, and that may be free by now
    precision: str
    until: float  # seconds of a monotonic clock after which no dry run begins
    rows: int  # of a batch as the user's code passed it
    sequences: int  # generated from each row
    whole: int  # tokens of a row at the end of a generation; 0 of an evaluation
    answer: int  # tokens that the decoder of an encoder-decoder begins with
    beams: int
    is_sampled: bool  # whether tokens are drawn at random
    is_of_trainer: bool
    keeps: bool  # whether predictions stay on the device until the end
    kept_rows: int  # of all predictions; 0 if unknown
    target: Literal["arguments", "evaluation"]
    """The arguments to change: those of the training, or those of an existing Trainer."""
    known: dict[tuple[int, ...], Inference] = field(default_factory=dict)

    def kept(self, rows: int) -> tuple[int, int]:
        """Return the bytes of predictions and of labels that each batch adds to those kept."""
        labels: Any = self.seen.given.get("labels")
        size = math.prod(labels[0]) * labels[1].itemsize if isinstance(labels, tuple) else 0
        predictions = self._run(rows, self.seen.length).predictions
        return predictions, size * rows // self.seen.rows if predictions else 0

    def evaluation(self, rows: int, *, keeping: bool = False) -> Need:
        """Return the need of a batch, or of two if the second reuses freed blocks of the first.

        With `keeping`, return the need of all batches, each of which copies the kept predictions.
        """
        run = self._run(rows, self.seen.length)
        peak, is_on_gpu, copied = run.peak + sum(self._libraries()), ":" in self.device.key, 0
        if keeping:
            predictions, labels = self.kept(rows)
            batches, rest = divmod(self.kept_rows, rows)
            if self.kept_rows > rows:
                copied = (2 * predictions + labels) * self.kept_rows // rows
            # A variable still has the newest predictions; from the third batch on, the kept ones have a copy.
            before, more = (
                max(0, count - 1 + (count > 2)) * (predictions + labels)
                for count in (batches, batches + 1)
            )
            peak = max(peak + before, peak * rest // rows + more if rest else 0, copied)
        most = MEASURED[1] * peak + copied * is_on_gpu  # copies leave free pieces behind
        if self._libraries() and not has_growing_segments():
            replay = Replay(self._libraries(), run.events, ())
            most = max(most, replay.needs(self.room - self.base))
        return peak, most

    def generation(
        self, rows: int, whole: int, *, beams: int | None = None, source: int | None = None
    ) -> Need:
        """Return the need of a generation until its rows have `whole` tokens."""
        size = rows, whole, beams or self.beams, source or self.seen.length
        prefill, last = self._generated(*size, is_last=False), self._generated(*size, is_last=True)
        peak = max(prefill.peak, last.peak) + sum(self._libraries())
        # A growing cache leaves gaps between an allocator's blocks.
        gaps = last.kv_cache if ":" in self.device.key else 0
        return peak, MEASURED[1] * peak + gaps

    def _libraries(self) -> tuple[int, ...]:
        """Return the bytes of cuBLAS' workspace, which the first matrix product takes unless it exists."""
        return (of_cublas()[0],) if ":" in self.device.key else ()

    def _run(self, rows: int, length: int) -> Inference:
        autocast = HALVES.get(self.precision)
        return self._once((rows, length), partial(inference, options={}, autocast=autocast))

    def _generated(
        self, rows: int, whole: int, beams: int, source: int, *, is_last: bool
    ) -> Inference:
        """Return the first or the last step; the latter after a prefill of nearly all other tokens."""
        begins = max(self.answer or source, whole - STEPS if is_last else 0)
        run = partial(
            generation,
            options={**self.seen.options, "num_beams": beams},
            begins=begins,
            steps=whole - begins if is_last else 1,
            whole=whole,
        )
        length = source if self.answer else begins
        return self._once((rows, length, whole, beams, begins, is_last), run)

    def _once(self, size: tuple[int, ...], run: Callable[..., Inference]) -> Inference:
        if size not in self.known:
            if time.monotonic() > self.until:
                raise TimeoutError
            setting = Setting(training=False, batch=size[0], length=max(1, size[1]))
            name = plain(type(self.ghost).__name__)
            with errors_as(f"{name} cannot run on PyTorch's meta device"):
                batch, device = inputs_of(self.ghost, setting, self.seen), self.device.key
                self.known[size] = run(self.ghost, batch, device=device.partition(":")[0])
        return self.known[size]


def moves_of_passes(
    session: Session, root: Span, error: Finding, *, seconds: float = SECONDS_AFTER_AN_ERROR
) -> list[Move]:
    """Return the changes that make an evaluation or a generation fit, best first; empty if unknown.

    No dry run begins after `seconds`.
    """
    with suppress(OptionError, KeyboardInterrupt):
        if passes := _passes_of(session, root, error, time.monotonic() + seconds):
            return _moves_of(passes)
    return []


def _moves_of(passes: Passes) -> list[Move]:
    moves: list[Move] = []
    with suppress(OptionError, TimeoutError, KeyboardInterrupt):
        for move in (_of_a_generation if passes.whole else _of_an_evaluation)(passes):
            moves.append(move)  # noqa: PERF402  (those found before the time is up are kept)
    fitting = [move for move in moves if move.fits is not False]
    return sorted(fitting, key=lambda move: (move.fits is not True, bool(move.cost)))


def fit_passes(session: Session, headroom: float) -> Fit | None:
    """Return the forecast of the evaluation or generation that a session has watched, and its moves.

    None where its newest outermost span has neither, or no longer has its model. After an error the room is
    what this process could have had when memory ran out.
    """
    roots = [span for span in session.coarse_spans if span.parent is None]
    if not roots or not session.is_of_here:
        return None
    kinds = {phase.kind for phase in session.phases(roots[-1].id)}
    error = error_of(session, roots[-1])
    if error:
        kinds = {span.kind for span in failed_spans(session, roots[-1])}
    until = time.monotonic() + SECONDS_IF_ASKED
    is_theirs = kinds & PASSES and (error or "step" not in kinds)
    passes = _passes_of(session, roots[-1], error, until, headroom) if is_theirs else None
    if passes is None or (passes.keeps and not passes.kept_rows):
        if "step" not in kinds and kinds & PASSES:
            raise OptionError(
                "this evaluation or generation has no forecast: its model is gone or was not seen to run, "
                "or predictions are kept of a data set whose length is unknown"
            )
        return None
    model, device, length = passes.ghost, passes.device, passes.seen.length
    weights = sum(weight.numel() for weight in storages(model.parameters()))

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
    name, peaks = type(model).__name__, {"forward": total}
    forecast = Forecast(name, setting, parts, total, "forward", peaks, weights)
    if passes.answer and length:
        note = f"Sources have {format_count(length)} tokens, answers up to {format_count(tokens)}."
        forecast = replace(forecast, notes=(note,))
    high, largest = max(passes.rows, MOST_TOKENS // setting.length), None
    with suppress(TimeoutError, OptionError):
        slope = took * margin_on(device) / passes.rows
        largest = most_that_fit(most, passes.rows, slope, passes.room, high)
    does_not = forecast.interval[0] > passes.room + passes.spare
    fits = most(passes.rows) <= passes.room or (False if does_not else None)
    session.moves = [move for move in _moves_of(passes) if move.peak < total]
    on_device = Room(device.key, device.name, device.total, passes.room)
    verdict = Verdict(on_device, 0, fits, None if largest == high else largest)
    return Fit(session.label, forecast, (verdict,), 0.0, moves=tuple(session.moves))


def _passes_of(
    session: Session, root: Span, error: Finding | None, until: float, headroom: float = 0.0
) -> Passes | None:
    no_smaller_pass_helps = error and error.evidence.get("cause") in {"another model", "graphs"}
    seen = session.evaluated[-1] if session.evaluated else None
    model = seen and seen.model()
    if has_ranks() or no_smaller_pass_helps or seen is None or model is None or not seen.rows:
        return None
    if error is None:
        device = active_devices(session)[0]
        free = {each.device: each.available for each in rooms()[0]}.get(device.key, math.nan)
        now = session.value(session.last_sample, f"{device.key}/allocated")
        room, spare = now + (1 - headroom) * free, 0.0
    else:
        failed_on = error.evidence.get("device")
        found = [each for each in session.devices if each.key == failed_on]
        if not found:
            return None
        device, room = found[0], room_before(error)
        spare = others_of(session, root, device)
    failed = failed_spans(session, root)
    kinds = {span.kind for span in failed}
    is_generation = bool(kinds & GENERATING)
    wanted = {"prefill"} if is_generation else EVALUATING
    spans = [span for span in session.spans if span.id >= root.id and span.kind in wanted]
    if not spans or math.isnan(room):
        return None
    counts = spans[-1].counts
    if is_generation and not (seen.options and "whole" in counts):
        return None
    refused = seen.options.get("refused") if is_generation else None
    if hasattr(model, "generate_with_fallback") and any(one.counts != counts for one in spans):
        refused = "its sounds were cut into unlike pieces"
    if refused:
        raise OptionError(f"this generation has no forecast: {refused}")
    evaluations = [span for span in failed if span.kind in EVALUATING]
    batch = evaluations[-1].counts.get("rows", 0.0) if evaluations else 0.0
    return Passes(
        device,
        seen,
        copy_of(uncompiled(model)),
        session.value(spans[-1].before, f"{device.key}/allocated"),
        room,
        spare,
        seen.autocast or ("fp32" if is_generation else precision_of_accelerate()),
        until,
        rows=max(seen.rows, int(batch)),
        sequences=int(counts.get("made_of_each", 1.0)),
        whole=int(counts.get("whole", 0.0)),
        answer=int(counts.get("answer", 0.0)),
        beams=int(counts.get("beams", 1.0)),
        is_sampled=counts.get("sampled", 0.0) > 0,
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
    for way, changes, cost in ways:
        names = " and ".join(filter(None, (way, name)))
        yield _move(passes, need, rows, names, {**changes, **fewer}, cost=cost)


def _of_a_generation(passes: Passes) -> Iterator[Move]:
    rows = _most(passes, partial(passes.generation, whole=passes.whole), passes.rows)
    if rows < passes.rows:
        options = {"per_device_eval_batch_size": str(rows)} if passes.is_of_trainer else {}
        before = format_count(passes.rows)
        name = f"{format_counted(rows, 'sequence')} at a time instead of {before}"
        cost = "other random draws" if passes.is_sampled else ""
        yield _move(passes, passes.generation(rows, passes.whole), rows, name, options, cost=cost)
    prompt, of_rows = passes.answer or passes.seen.length, partial(passes.generation, passes.rows)

    def option(in_trainer: str, in_call: str, size: int, added: int = 0) -> Change:
        if passes.is_of_trainer:
            return Change("arguments", in_trainer, str(added + size))
        return Change("generate", in_call, str(size))

    yield from _fewer(
        passes,
        passes.whole - prompt,
        lambda size: of_rows(prompt + size),
        name="at most {} new tokens instead of {}",
        cost="longer answers lose their end",
        change=partial(option, "generation_max_length", "max_new_tokens", added=prompt),
    )
    # No fewer beams can be asked for.
    returned = passes.seen.options.get("num_return_sequences") or 1
    if passes.beams == passes.sequences > 1 == returned:
        yield from _fewer(
            passes,
            passes.beams,
            lambda size: of_rows(passes.whole, beams=size),
            name="beams: {} instead of {}",
            cost="other answers",
            change=partial(option, "generation_num_beams", "num_beams"),
        )
    if passes.answer and passes.seen.length:
        yield from _fewer(
            passes,
            passes.seen.length,
            lambda size: of_rows(passes.whole, source=size),
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
    """Return the largest size up to `most` that is sure to fit; 1 if no size is."""
    slope = need(most)[1] / most
    for spare in (0.0, passes.spare):
        left = (passes.room + spare - passes.base) / margin_on(passes.device)
        if size := most_that_fit(
            lambda size: need(size)[1], most, slope, left, most, next_too=False
        ):
            return size
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
