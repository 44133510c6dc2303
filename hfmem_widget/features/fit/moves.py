"""Changes that make a watched training fit, each with the peak in a dry run of its model."""

import json
import math
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import chain
from typing import Any, Final, Literal

from hfmem_widget.analysis.facts import ran_out
from hfmem_widget.analysis.parts import OF_ALLOCATED
from hfmem_widget.errors import OptionError
from hfmem_widget.features.fit.beside import calibration_of
from hfmem_widget.features.fit.dry_run import counts_items, mixes_rows
from hfmem_widget.features.fit.inputs import positions_of
from hfmem_widget.features.fit.liger import can_have_liger
from hfmem_widget.features.fit.model import MEASURED, Fit, Forecast, Room, Tried, Verdict
from hfmem_widget.features.fit.on_meta import copy_of
from hfmem_widget.features.fit.optimizers import NAMES, Kind, kind_of
from hfmem_widget.features.fit.predict import changed_forecast, inputs_of, own_precision
from hfmem_widget.features.fit.recorded import NO_REPLICAS
from hfmem_widget.features.fit.search import MOST_TOKENS, most_that_fit
from hfmem_widget.features.fit.setting import Setting
from hfmem_widget.features.fit.sharding import layers_of
from hfmem_widget.features.fit.training import Training, margin_on, newest_training, training_of
from hfmem_widget.features.fit.what_if import what_if
from hfmem_widget.guard import warn
from hfmem_widget.session import HELD, Change, Finding, Move, Session, Span
from hfmem_widget.text import (
    checkpointing_option,
    format_bytes,
    format_count,
    format_counted,
    format_list,
)

SECONDS_AFTER_AN_ERROR: Final = 6.0
SECONDS_IF_ASKED: Final = 30.0
"""The time in which dry runs may begin; one takes 0.5 to 2 s."""

RANK: Final = 16
"""The rank of the LoRA adapters that are tried."""

LEAST_LENGTH: Final = 32
"""The shortest rows that are tried, in tokens."""

FOR_THE_LARGEST: Final = 0.5
"""The share of the remaining time for the largest batch and length with each change."""

OF_THE_TRAINING: Final = frozenset(
    {"training", "long rows", "fragmentation", "full", "limit", "huge", "others", "machine"}
)
"""The causes of an out-of-memory error that a smaller training removes."""


Attempt = Callable[[Any, Setting, Kind | None], Tried]
"""Makes real steps of a model in a setting, with an optimizer unless the setting names one of a Trainer's."""


@dataclass(frozen=True, slots=True)
class Option:
    """A change to a training: its name, and the options to set in the user's code and in a `Setting`."""

    name: str
    changes: Mapping[str, str]
    setting: Mapping[str, Any]
    cost: str = ""  # its side effects; empty if the loss stays the same
    target: Any = "arguments"  # as in a `Change`


class DryRuns:
    """The forecasts of a changed training, each made once; none begins after `until` (monotonic seconds)."""

    def __init__(self, training: Training, until: float) -> None:
        self._training, self._until = training, until
        self._known = {training.setting: training.forecast}

    @property
    def left(self) -> float:
        """Seconds in which further dry runs may begin."""
        return self._until - time.monotonic()

    @contextmanager
    def within(self, share: float) -> Iterator[None]:
        """Limit a block to a share of the remaining time; an interrupt ends all dry runs, also later ones."""
        until, now = self._until, time.monotonic()
        self._until = now + share * max(0.0, until - now)
        try:
            with suppress(TimeoutError):
                yield
        except KeyboardInterrupt:
            until = -math.inf
        self._until = until

    def __call__(self, setting: Setting) -> Forecast:
        """Return the forecast of a setting; raise TimeoutError if its dry run would begin too late."""
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


def moves_after_an_error(session: Session, _root: Span, error: Finding) -> list[Move]:
    """Return the changes with which a training that ran out of memory would fit; empty where unknown.

    An interrupt ends only the dry runs.
    """
    until = time.monotonic() + SECONDS_AFTER_AN_ERROR
    if error.evidence.get("cause") in OF_THE_TRAINING:
        with suppress(OptionError, KeyboardInterrupt):
            training = training_of(session, headroom=0.0)
            dry = DryRuns(training, until)
            moves = list(moves_of(training, dry))
            session.what_if = what_if(training, dry)
            return moves
    return []


def fit_training(session: Session, headroom: float, attempt: Attempt | None = None) -> Fit:
    """Return the forecast of the training that a session has watched, and the changes that make it fit.

    With an `attempt`, each change is tried. Raise OptionError where the forecast is unknown.
    """
    until = time.monotonic() + SECONDS_IF_ASKED
    training = training_of(session, headroom)
    raw, measured = training.forecast, dict[str, float]()
    if training.is_replicated:
        notes = (f"{NO_REPLICAS}; this is that of DistributedDataParallel.", *raw.notes)
        training = replace(training, forecast=replace(raw, notes=notes))
        raw = training.forecast
    elif not any(map(ran_out, session.findings)):
        peak = session.anatomy("peak", training.device.key)
        measured = {part.name: part.bytes for part in peak.parts if part.name in OF_ALLOCATED}
        if ":" in training.device.key:  # the host's memory holds much besides models
            measured["allocated"] = peak.allocated
        calibration = calibration_of(session, newest_training(session), training.device, raw)
        training = replace(training, calibration=calibration, forecast=calibration.of(raw, raw))
    dry = DryRuns(training, until)
    forecast, device, room = training.forecast, training.device, training.room
    listed = moves_of(training, dry)
    session.moves = list(listed)
    if attempt is not None:
        session.moves = tried_moves(training, listed, attempt)
    rows = None
    with suppress(TimeoutError):
        rows = largest(training, dry, training.setting, "batch")
    does_not = forecast.interval[0] > room + training.spare
    is_sure = training.fits(forecast) and not training.others
    on_device = Room(device.key, device.name, device.total, room)
    verdict = Verdict(on_device, 0, is_sure or (False if does_not else None), rows)
    session.what_if = what_if(training, dry)
    if others := training.others:
        note = f"What other models ({others}) take within a step is not counted."
        raw = replace(raw, left_out=(others,), notes=(note, *raw.notes))
    of_then = "the memory that is available is what the recorded run had"
    return Fit(
        session.label,
        raw,
        (verdict,),
        0.0,
        stored="" if session.is_of_here else of_then,
        moves=tuple(session.moves),
        measured=measured,
        can_write=session.is_of_here,
        what_if=session.what_if,
        calibration=training.calibration.text,
    )


def moves_of(training: Training, dry: DryRuns) -> dict[Move, Setting]:
    """Return the changes that make a training fit, with their settings, best first.

    Those that keep the loss come before others. Two changes are combined where one is not enough. Changes
    that save nothing are left out, and those that do not fit where others do.
    """
    tried: dict[Move, Setting] = {}
    now = format_bytes(training.forecast.total)
    with suppress(TimeoutError):
        for options in _launched(training, _ways(training, dry, tried)):
            changed = {name: value for each in options for name, value in each.setting.items()}
            with suppress(OptionError):  # for example, if peft does not know the architecture
                setting = replace(training.setting, **changed)
                forecast = dry(setting)
                # A saving that is lost in rounding is not listed.
                size = forecast.total
                saves = size < training.forecast.total and format_bytes(size) != now
                is_whole = not forecast.left_out or setting.shards
                is_new = setting not in tried.values()
                if is_new and is_whole and (saves or setting == training.setting):
                    tried[_move(training, options, forecast)] = setting
    fitting = [move for move in tried if move.fits is not False]
    kept = fitting or sorted(tried, key=lambda move: move.peak)[:2]
    moves = sorted(kept, key=lambda move: (move.fits is not True, bool(move.cost)))
    settings = [tried[move] for move in moves]
    with dry.within(FOR_THE_LARGEST):
        for at, setting in enumerate(settings):
            # A size that the change itself sets stays.
            if setting.batch == training.setting.batch:
                rows = largest(training, dry, setting, "batch")
                moves[at] = replace(moves[at], largest_batch=rows)
            if setting.length == training.setting.length:
                tokens = largest(training, dry, setting, "length")
                moves[at] = replace(moves[at], longest=tokens)
    if training.others:
        moves = [replace(move, high=math.inf) for move in moves]
    return dict(zip(moves, settings, strict=True))


def tried_moves(
    training: Training, settings: Mapping[Move, Setting], attempt: Attempt
) -> list[Move]:
    """Return the changes with what real steps took, in place of a peak that is only a lower bound.

    Why a change cannot be tried goes to stderr; an interrupt ends the attempts.
    """
    moves, reasons = list(settings), defaultdict[str, list[str]](list)
    with suppress(KeyboardInterrupt):
        for at, (move, setting) in enumerate(settings.items()):
            optimizer = None if setting.optimizer in NAMES else kind_of(training.optimizer)
            own = own_precision(training.model)
            given = setting if own == "fp32" else replace(setting, precision=own)
            try:
                tried = attempt(training.model, given, optimizer)
            except OptionError as error:
                reasons[str(error)].append(str(at + 1))
                continue
            seconds = None if math.isnan(tried.seconds) else tried.seconds
            moves[at] = replace(move, tried=tried.peak, seconds=seconds)
            if math.isnan(move.high) and seconds is not None:
                most = MEASURED[1] * tried.peak
                moves[at] = replace(moves[at], peak=tried.peak, low=tried.peak, high=most)
    for reason, numbers in reasons.items():
        noun = "Change" if len(numbers) == 1 else "Changes"
        warn(f"{noun} {format_list(numbers, len(numbers))}: {reason}.")
    return moves


def largest(
    training: Training, dry: DryRuns, setting: Setting, name: Literal["batch", "length"]
) -> int | None:
    """Return the largest batch or length of a setting that is sure to fit; None if unknown.

    A dry run of that size was made; the next size is too large if each row or token takes as much as so far.
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

    def need(at: int) -> float:
        other = dry(replace(setting, **dict[str, Any]({name: at})))
        if other.left_out:
            raise OptionError("a training of that size has no complete forecast")
        return training.most(other)

    try:
        fitting = most_that_fit(need, size, slope, training.room, high, next_too=False)
    except OptionError:
        return None
    return None if fitting >= high < most else fitting


def _move(training: Training, options: tuple[Option, ...], forecast: Forecast) -> Move:
    setting = forecast.setting
    # One process has no use for what several processes need.
    target = {"arguments": "ranks"} if training.is_replicated else {}
    return Move(
        name=" and ".join(each.name for each in options),
        changes=tuple(
            Change(target.get(each.target, each.target), name, value)
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


def _launched(
    training: Training, ways: Iterator[tuple[Option, ...]]
) -> Iterator[tuple[Option, ...]]:
    """Yield the ways, with DDP in place of replicas."""
    ddp = [*_on_several_gpus(training)][:1] if training.is_replicated else []
    for options in ways:
        has_ranks = any("shards" in each.setting for each in options)
        yield options if has_ranks else (*ddp, *options)


def _ways(
    training: Training, dry: DryRuns, tried: Mapping[Move, Setting]
) -> Iterator[tuple[Option, ...]]:
    """Yield the changes to try, alone and in pairs; which come next depends on those that fit so far."""
    setting = training.setting
    # If weights and states alone do not fit, fewer activations do not help.
    can_help = training.held <= training.room + training.spare
    checkpointing = _checkpointing(training) if can_help else None
    if checkpointing:
        yield (checkpointing,)
    smaller = _accumulated(training, dry, setting) if can_help else None
    same_loss = [each for each in (smaller, checkpointing) if each]
    if smaller:
        yield (smaller,)
    if len(same_loss) == 2 and not any(move.fits for move in tried):
        both = _accumulated(training, dry, replace(setting, checkpointing=True))
        same_loss = [each for each in (both, checkpointing) if each]
        yield tuple(same_loss)
    if can_help and _can_take_liger(training, dry):
        liger = Option("Liger's kernels", {"use_liger_kernel": "True"}, {"liger": True})
        yield (liger,)
        if checkpointing and not any(move.fits for move in tried):
            yield (liger, checkpointing)
    for other in chain(_on_several_gpus(training), _others(training)):
        yield (other,)
        # Of two sizes of a batch one would be lost.
        goes_with = same_loss and not other.setting.keys() & same_loss[-1].setting.keys()
        if goes_with and not any(move.fits for move in tried):
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


def _accumulated(training: Training, dry: DryRuns, setting: Setting) -> Option | None:
    """Return the largest batch that fits, with as many batches accumulated that a step has the same rows."""
    rows = [size for size in range(setting.batch - 1, 0, -1) if setting.batch % size == 0]
    if not rows:
        return None

    def at(batch: int) -> Setting:
        accumulation = setting.accumulation * (setting.batch // batch)
        return replace(setting, batch=batch, accumulation=accumulation)

    now, held = dry(setting), training.held
    # First the largest batch that is sure to fit; if there is none, the largest that fits with the spare
    # bytes. A step takes about as many bytes for each row above weights and states.
    for spare in (0.0, training.spare):
        left = (training.room + spare) / margin_on(training.device) - held
        share = left / max(1.0, now.total - held)
        likely = (at(size) for size in rows if size <= share * setting.batch)
        fitting = (size for size in likely if training.fits(dry(size), spare))
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


def _can_take_liger(training: Training, dry: DryRuns) -> bool:
    """Return whether Liger's kernels could replace the model's, its own loss included.

    After an error there is no time to import them.
    """
    setting, seen = training.setting, training.seen
    has_labels = seen is not None and "labels" in seen.given and training.loss in {"loop", "model"}
    is_new = setting.device == "cuda" and not setting.liger
    has_time = "liger_kernel" in sys.modules or dry.left > SECONDS_AFTER_AN_ERROR
    return is_new and has_labels and has_time and can_have_liger(training.model)


def _cost_of_accumulating(training: Training, chosen: Setting) -> str:
    """Return how a step's loss changes where its rows come in several batches; empty if it does not.

    A Trainer leaves the average over all batches to a model whose `forward` takes any keywords; many of
    those models ignore it.
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
    ratio = chosen.accumulation // setting.accumulation
    return "" if counts else f"logged loss and gradients {ratio} times as large"


def _checkpointing(training: Training) -> Option | None:
    can = getattr(training.model, "supports_gradient_checkpointing", False)
    if not can or training.setting.checkpointing:
        return None
    options = {checkpointing_option(): "True"}
    return Option("gradient checkpointing", options, {"checkpointing": True})


def _on_several_gpus(training: Training) -> Iterator[Option]:
    """Yield the ways to train on all GPUs that are here, with the rows of a step divided among them."""
    setting, gpus = training.setting, training.gpus
    if gpus < 2 or (setting.shards and not training.is_replicated):
        return
    batch, batches = setting.batch, setting.accumulation
    cost = f"a process for each GPU: torchrun --nproc-per-node {gpus}"
    if training.is_replicated:
        pass  # the setting is that of a process
    elif batch % gpus == 0:
        batch //= gpus
    elif batches % gpus == 0:
        batches //= gpus
    else:
        cost = f"{cost}; {gpus} times the rows in a step"
    rows = "" if training.is_replicated else f", {format_counted(batch, 'row')} on each"
    sizes = {} if batch == setting.batch else {"per_device_train_batch_size": str(batch)}
    if batches != setting.accumulation:
        sizes["gradient_accumulation_steps"] = str(batches)
    ways = [("ddp", "DistributedDataParallel", dict[str, str]())]
    if layers := layers_of(training.model):
        config = json.dumps({"version": 2, "transformer_layer_cls_to_wrap": layers})
        fsdp = {"fsdp": '"full_shard auto_wrap"', "fsdp_config": config}
        ways.append(("fsdp", "FSDP", fsdp))
    for way, name, options in ways:
        yield Option(
            f"{name} on {gpus} GPUs{rows}",
            {**options, **sizes},
            {"shards": f"{way}:{gpus}", "batch": batch, "accumulation": batches},
            cost,
            "ranks",
        )


def _others(training: Training) -> Iterator[Option]:
    """Yield the changes that also affect the result of the training."""
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
