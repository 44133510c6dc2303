"""What would fit: changes to a watched training, each with the peak that a dry run of its model gives."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, Final, Literal

from hfmem_widget.analysis.facts import active_devices, ran_out
from hfmem_widget.analysis.parts import OF_ALLOCATED, known_of
from hfmem_widget.errors import OptionError
from hfmem_widget.features.fit.beside import (
    HOW_TO_RECORD,
    batches_of,
    calibration_of,
    failed_spans,
    others_of,
    others_that_ran,
    shape_of,
)
from hfmem_widget.features.fit.dry_run import GRANULARITY, counts_items, mixes_rows
from hfmem_widget.features.fit.inputs import positions_of
from hfmem_widget.features.fit.model import Fit, Forecast, Room, Verdict
from hfmem_widget.features.fit.on_meta import copy_of
from hfmem_widget.features.fit.optimizers import kind_of
from hfmem_widget.features.fit.predict import changed_forecast, inputs_of
from hfmem_widget.features.fit.recorded import CANNOT, Training, has_ranks, live, made_again
from hfmem_widget.features.fit.search import MOST_TOKENS, most_that_fit
from hfmem_widget.features.fit.setting import Setting
from hfmem_widget.features.fit.what_if import what_if
from hfmem_widget.session import HELD, Change, Finding, Move, Session, Span
from hfmem_widget.sources.procfs import address_space
from hfmem_widget.text import (
    MIB,
    checkpointing_option,
    format_bytes,
    format_count,
    format_counted,
    plain,
)

SECONDS_AFTER_AN_ERROR: Final = 6.0
SECONDS_IF_ASKED: Final = 30.0
"""Within which dry runs are begun; one takes 0.5 to 2 s."""

RANK: Final = 16
"""Of the LoRA adapters that are tried."""

LEAST_LENGTH: Final = 32
"""Tokens below which no shorter rows are looked for."""

LEAST_LEFT: Final = 256 * MIB
"""What this process must still be allowed to map: with less, PyTorch itself may crash in a dry run."""

NOT_TRAINING: Final = frozenset({"evaluate", "predict", "prefill", "decode", "save", "load"})

FOR_THE_LARGEST: Final = 0.5
"""Of the time that is left once all changes were tried, for the largest batch and length with each."""

SHAPE: Final = ("largest_batch", "tokens", "longest", "batches")

UNCOUNTED: Final = "What other models ({}) take within a step is not counted."

OF_THEN: Final = "the memory that is available is what the recorded run had"
LISTED: Final = "; the card of that cell lists what fits, and %memfit --write N writes it"


@dataclass(frozen=True, slots=True)
class Option:
    """One thing to change."""

    name: str
    changes: Mapping[str, str]
    setting: Mapping[str, Any]  # what it changes in a `Setting`
    cost: str = ""  # empty where the loss stays the same
    target: Any = "arguments"


class DryRuns:
    """The forecasts of a training with changes, each made once, up to some second of a monotonic clock."""

    def __init__(self, training: Training, until: float) -> None:
        self._training, self._until = training, until
        self._known = {training.setting: training.forecast}

    @contextmanager
    def within(self, share: float) -> Iterator[None]:
        """Begin dry runs in a share of the time that is left; an interrupt ends these, and all later ones."""
        until, now = self._until, time.monotonic()
        self._until = now + share * max(0.0, until - now)
        try:
            with suppress(TimeoutError):
                yield
        except KeyboardInterrupt:
            until = -math.inf
        self._until = until

    def __call__(self, setting: Setting) -> Forecast:
        """Return the forecast of a setting; raise TimeoutError where it would have to be begun too late."""
        if setting not in self._known:
            if time.monotonic() > self._until:
                raise TimeoutError
            training = self._training
            forecast = changed_forecast(
                training.model,
                setting,
                training.optimizer,
                training.seen,
                by_trainer=training.loss != "loop",
            )
            self._known[setting] = training.calibration.of(forecast, training.forecast)
        return self._known[setting]


def training_of(session: Session, headroom: float) -> Training:
    """Return the training that a session has watched, or raise OptionError.

    Where memory ran out, its room is what this process could have had then; else what it could have now, but
    for a share of `headroom`.
    """
    if session.ranks is not None or (session.is_of_here and has_ranks()):
        raise OptionError(f"{CANNOT}a training on several ranks is not supported yet")
    limit, used, _ = address_space()  # NaN without a limit
    if limit - used < LEAST_LEFT:
        left = format_bytes(limit - used)
        why = f"this process may map {left} more, too little for a dry run"
        raise OptionError(f"{CANNOT}{why}; %memholders --free errors may help")
    root = _newest_training(session)
    errors = [each for each in session.findings if ran_out(each) and each.span_id == root.id]
    error = errors[-1] if errors else None
    devices = {device.key: device for device in session.devices}
    failed_on = "" if error is None else str(error.evidence.get("device", ""))
    device = devices.get(failed_on) or active_devices(session)[0]
    key = device.key
    trained = live(session) if session.is_of_here else made_again(session.recipe)
    trainings = [
        span for span in session.coarse_spans if span.kind == "train" and span.id >= root.id
    ]
    counts = dict(trainings[-1].counts) if trainings else {}
    model, optimizer, seen = trained.model, trained.optimizer, trained.seen
    if seen is not None and not seen.length:  # as of images: its rows alone can change
        shape = {"largest_batch": float(seen.rows), "longest": 1.0, "batches": batches_of(session)}
    elif error is None:
        shape = shape_of(session, key, root.start)
    else:
        shape = _failed_shape(session, root, by_trainer=bool(trainings))
    kind, length = key.partition(":")[0], int(shape["longest"])
    if kind not in GRANULARITY:
        raise OptionError(f"forecasts support {' and '.join(GRANULARITY)}, not {plain(kind)}")
    # The last batch of an epoch has fewer rows.
    rows = round(max(shape["largest_batch"] / length, counts.get("rows", 0.0)))
    batches = int(max(1.0, counts.get("batches", shape["batches"])))
    setting = Setting(
        batch=max(1, rows), length=length, accumulation=batches, device=kind, **trained.ran
    )
    forecast = changed_forecast(model, setting, optimizer, seen, by_trainer=bool(trainings))
    if forecast.left_out:
        raise OptionError(f"{CANNOT}{' '.join(forecast.notes)}")
    held = {
        name: known_of(session.value(session.last_sample, f"{key}/{name}"), 0.0) for name in HELD
    }
    # Of other models, which stay beside this one.
    foreign = sum(max(0.0, held[name] - forecast.full(name)) for name in HELD)
    spare = 0.0
    if error is None:
        room = (1 - headroom) * trained.available.get(key, math.nan) + sum(held.values())
    else:
        figures = (error.evidence.get(name) for name in ("room", "allocated"))
        known = (float(value) if isinstance(value, int) else math.nan for value in figures)
        spare = others_of(session, root, device)
        room = sum(known) - spare
    loss: Any = next((name for name in ("own", "smoothed") if f"{name}_loss" in counts), "model")
    return Training(
        device,
        model,
        optimizer,
        setting,
        forecast,
        loss if trainings else "loop",
        room - foreign,
        spare,
        seen,
        others=others_that_ran(session, model)
        if session.is_of_here
        else plain(session.recipe.get("others", ""), 200),
    )


def _newest_training(session: Session) -> Span:
    """Return the outermost span that has trained or run out of memory last."""
    ended = {each.span_id for each in session.findings if ran_out(each)}
    trained = (
        span
        for span in reversed(session.coarse_spans)
        if span.parent is None
        if span.id in ended or any(each.kind == "step" for each in session.phases(span.id))
    )
    return next(trained, session.spans[0])


def _failed_shape(session: Session, root: Span, *, by_trainer: bool) -> dict[str, float]:
    """Return the size of the batch of the step that an error has ended, or raise OptionError."""
    failed = failed_spans(session, root)
    kinds = {span.kind for span in failed}
    if kinds & NOT_TRAINING:
        raise OptionError(
            f"{CANNOT}memory did not run out in a step of a training{LISTED if session.moves else ''}"
        )
    counts = {name: span.counts[name] for span in failed for name in SHAPE if name in span.counts}
    if "step" not in kinds or not counts.get("longest", 0) > 0:
        unseen = "it has no tokens, or the error came before the model saw it"
        why = unseen if by_trainer else HOW_TO_RECORD
        raise OptionError(f"{CANNOT}the size of the batch was not seen; {why}")
    return {"largest_batch": counts.get("tokens", 0.0), "batches": batches_of(session), **counts}


OF_THE_TRAINING: Final = frozenset(
    {"training", "long rows", "fragmentation", "full", "limit", "huge", "others", "machine"}
)
"""The causes of an out-of-memory error after which a training with less is the answer."""


def moves_after_an_error(session: Session, _root: Span, error: Finding) -> list[Move]:
    """Return what would fit where a training has ended for want of memory; nothing where that is unknown.

    An interrupt ends the dry runs, and nothing else.
    """
    until = time.monotonic() + SECONDS_AFTER_AN_ERROR
    if error.evidence.get("cause") in OF_THE_TRAINING:
        with suppress(OptionError, KeyboardInterrupt):
            training = training_of(session, headroom=0.0)
            dry = DryRuns(training, until)
            moves = moves_of(training, dry)
            session.what_if = what_if(training, dry)
            return moves
    return []


def fit_training(session: Session, headroom: float, seconds: float = SECONDS_IF_ASKED) -> Fit:
    """Return the forecast of the training that a session has watched, and what would make it fit.

    Raise OptionError where that is unknown. After so many seconds no further dry run is begun.
    """
    until = time.monotonic() + seconds
    training = training_of(session, headroom)
    raw, measured = training.forecast, dict[str, float]()
    if not any(map(ran_out, session.findings)):
        peak = session.anatomy("peak", training.device.key)
        measured = {part.name: part.bytes for part in peak.parts if part.name in OF_ALLOCATED}
        if ":" in training.device.key:  # the host's memory holds much besides models
            measured["allocated"] = peak.allocated
        found = calibration_of(session, _newest_training(session), training.device, raw)
        training = replace(training, calibration=found, forecast=found.of(raw, raw))
    dry = DryRuns(training, until)
    forecast, device, room = training.forecast, training.device, training.room
    session.moves = moves_of(training, dry)
    rows = None
    with suppress(TimeoutError):
        rows = largest(training, dry, training.setting, "batch")
    there = Room(device.key, device.name, device.total, room)
    does_not = forecast.interval[0] > room + training.spare
    is_sure = training.fits(forecast) and not training.others
    verdict = Verdict(there, 0, is_sure or (False if does_not else None), rows)
    session.what_if = what_if(training, dry)
    moves, is_here = tuple(session.moves), session.is_of_here
    stored, sliders, text = "" if is_here else OF_THEN, session.what_if, training.calibration.text
    if others := training.others:
        raw = replace(raw, left_out=(others,), notes=(UNCOUNTED.format(others), *raw.notes))
    return Fit(
        session.label, raw, (verdict,), 0.0, stored, None, moves, measured, is_here, sliders, text
    )


def moves_of(training: Training, dry: DryRuns) -> list[Move]:
    """Return what would make a training fit, best first: what keeps the loss the same comes before the rest.

    Two changes are combined where one is not enough. What needs no less is left out, and what does not fit
    where something else does.
    """
    found: dict[Move, Setting] = {}
    now = format_bytes(training.forecast.total)
    with suppress(TimeoutError):
        for options in _ways(training, dry, found):
            changed = {name: value for each in options for name, value in each.setting.items()}
            with suppress(OptionError):  # such as an architecture that peft does not know
                setting = replace(training.setting, **changed)
                forecast = dry(setting)
                saves = forecast.total < training.forecast.total
                # A saving that the figures do not show is not worth listing.
                if saves and format_bytes(forecast.total) != now and not forecast.left_out:
                    found[_move(training, options, forecast)] = setting
    fitting = [move for move in found if move.fits is not False]
    kept = fitting or sorted(found, key=lambda move: move.peak)[:2]
    moves = sorted(kept, key=lambda move: (move.fits is not True, bool(move.cost)))
    with dry.within(FOR_THE_LARGEST):
        for at, setting in enumerate([found[move] for move in moves]):
            # Not of what the change itself sets.
            if setting.batch == training.setting.batch:
                rows = largest(training, dry, setting, "batch")
                moves[at] = replace(moves[at], largest_batch=rows)
            if setting.length == training.setting.length:
                tokens = largest(training, dry, setting, "length")
                moves[at] = replace(moves[at], longest=tokens)
    return [replace(move, high=math.inf) for move in moves] if training.others else moves


def largest(
    training: Training, dry: DryRuns, setting: Setting, name: Literal["batch", "length"]
) -> int | None:
    """Return the largest batch or length of a setting that is sure to fit; None where that is unknown.

    A dry run was made of it itself; the next is too large by what each row or token has taken so far.
    """
    forecast, size, most = dry(setting), getattr(setting, name), MOST_TOKENS
    has_tokens = training.seen is None or training.seen.length > 0
    if name == "length":
        most = positions_of(getattr(training.model, "config", None)) or most
    is_known = math.isfinite(training.room) and not training.others
    if not is_known or (name == "length" and not has_tokens):
        return None
    grows: float = forecast.bytes("activations")
    if forecast.moment == "optimizer":
        passes = (peak for phase, peak in forecast.peaks.items() if phase != "optimizer")
        grows = max(passes, default=0) - sum(map(forecast.full, HELD))
    if grows <= 0:
        return None
    slope = grows / size * training.most(forecast) / forecast.total
    high = min(most, MOST_TOKENS * size // (setting.batch * setting.length))
    try:
        found = most_that_fit(
            lambda at: training.most(dry(replace(setting, **dict[str, Any]({name: at})))),
            *(size, slope, training.room),
            low=0,
            high=high,
            next_too=False,
        )
    except OptionError:
        return None
    return None if found >= high < most else found


def _move(training: Training, options: tuple[Option, ...], forecast: Forecast) -> Move:
    setting = forecast.setting
    return Move(
        name=" and ".join(each.name for each in options),
        changes=tuple(
            Change(each.target, name, value)
            for each in (() if training.loss == "loop" else options)
            for name, value in each.changes.items()
        ),
        batch=setting.batch,
        length=setting.length,
        accumulation=setting.accumulation,
        cost="; ".join(filter(None, (each.cost for each in options))),
        peak=forecast.total,
        low=forecast.interval[0],
        high=training.most(forecast),
        room=training.room,
        spare=training.spare,
    )


def _ways(
    training: Training, dry: DryRuns, found: Mapping[Move, Setting]
) -> Iterator[tuple[Option, ...]]:
    """Yield what to try, alone and in twos, by what was `found` so far to fit."""
    setting = training.setting
    # Where what stays does not fit, less for each row does not help.
    can_help = training.held <= training.room + training.spare
    checkpointing = _checkpointing(training) if can_help else None
    if checkpointing:
        yield (checkpointing,)
    smaller = _accumulated(training, dry, setting) if can_help else None
    same_loss = [each for each in (smaller, checkpointing) if each]
    if smaller:
        yield (smaller,)
    if len(same_loss) == 2 and not any(move.fits for move in found):
        both = _accumulated(training, dry, replace(setting, checkpointing=True))
        same_loss = [each for each in (both, checkpointing) if each]
        yield tuple(same_loss)
    for other in _others(training):
        yield (other,)
        if same_loss and not any(move.fits for move in found):
            yield (other, same_loss[-1])
    if setting.length >= 2 * LEAST_LENGTH:
        length = setting.length // 2
        while length > LEAST_LENGTH and not training.fits(
            dry(replace(setting, length=length)), training.spare
        ):
            length //= 2
        yield (
            Option(
                f"rows of at most {format_count(length)} tokens",
                {"max_length": str(length)},
                {"length": length},
                "longer rows lose their end",
                "data",
            ),
        )


def _checkpointing(training: Training) -> Option | None:
    can = getattr(training.model, "supports_gradient_checkpointing", False)
    if training.setting.checkpointing or not can:
        return None
    return Option(
        "gradient checkpointing", {checkpointing_option(): "True"}, {"checkpointing": True}
    )


def _accumulated(training: Training, dry: DryRuns, setting: Setting) -> Option | None:
    """Return the largest batch that fits, with as many more accumulated that a step has the same rows."""
    rows = [each for each in range(setting.batch - 1, 0, -1) if setting.batch % each == 0]
    if not rows:
        return None

    def at(batch: int) -> Setting:
        accumulation = setting.accumulation * (setting.batch // batch)
        return replace(setting, batch=batch, accumulation=accumulation)

    now, held = dry(setting), training.held
    # The largest that is sure to fit; if none is, the largest that would if the spare were free. Beside what
    # stays, a step takes nearly as much for each row.
    for spare in (0.0, training.spare):
        left = (training.room + spare) / training.margin - held
        share = left / max(1.0, now.total - held)
        likely = (at(each) for each in rows if each <= share * setting.batch)
        fitting = (each for each in likely if training.fits(dry(each), spare))
        chosen = next(fitting, at(rows[-1]))
        if training.fits(dry(chosen), spare):
            break
    return Option(
        f"{format_counted(chosen.batch, 'row')} in a batch, {chosen.accumulation} batches accumulated",
        {
            "per_device_train_batch_size": str(chosen.batch),
            "gradient_accumulation_steps": str(chosen.accumulation),
        },
        {"batch": chosen.batch, "accumulation": chosen.accumulation},
        _cost_of_accumulating(training, chosen),
    )


def _cost_of_accumulating(training: Training, chosen: Setting) -> str:
    """Return how the loss of a step changes where its rows come in several batches; empty if not at all.

    A Trainer leaves the average over all of them to a model whose `forward` takes any keywords, and many of
    those ignore it.
    """
    if mixes_rows(training.model):
        return "batch statistics of fewer rows"
    if training.loss != "model":
        return {
            "loop": f"the same loss, if each batch's is divided by {chosen.accumulation}",
            "own": "depends on the Trainer's own loss",
            "smoothed": "",
        }[training.loss]
    ghost, setting = copy_of(training.model), training.setting
    length = min(setting.length, 2 * LEAST_LENGTH)
    inputs = inputs_of(ghost, replace(setting, batch=1, length=length), training.seen)
    counts = counts_items(ghost, inputs, setting.device)
    if counts is None:
        return "the loss is the mean of the batches' means"
    times = chosen.accumulation // setting.accumulation
    return "" if counts else f"logged loss and gradients {times} times as large"


def _others(training: Training) -> Iterator[Option]:
    """Yield what changes the training as well."""
    setting = training.setting
    parameters = list(training.model.parameters())
    in_float = {str(each.dtype) for each in parameters} <= {"torch.float32"}
    if in_float and setting.precision == "fp32":
        yield Option("bf16", {"bf16": "True"}, {"precision": "bf16"}, "computes in bfloat16")
        yield Option(
            "weights in bfloat16",
            {"dtype": '"bfloat16"'},
            {"precision": "pure bf16"},
            "weights, gradients and states in bfloat16",
            "model",
        )
    kind = kind_of(training.optimizer).name.lower()
    if "adam" in kind and "8bit" not in kind:
        if setting.device == "cuda" and find_spec("bitsandbytes") is not None:
            yield Option(
                "8-bit AdamW",
                {"optim": '"adamw_8bit"'},
                {"optimizer": "adamw_8bit"},
                "optimizer states in 8 bits",
            )
        yield Option(
            "Adafactor", {"optim": '"adafactor"'}, {"optimizer": "adafactor"}, "another optimizer"
        )
    is_whole = all(each.requires_grad for each in parameters)
    if is_whole and find_spec("peft") is not None:
        yield Option(
            f"LoRA, r={RANK}",
            {"r": str(RANK)},
            {"lora": (RANK, ())},
            "trains adapters alone",
            "peft",
        )
