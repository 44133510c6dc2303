"""A watched training, and the room that it has."""

import math
from dataclasses import dataclass
from typing import Any, Final, Literal

from hfmem_widget.analysis.facts import active_devices, failed_spans, ran_out
from hfmem_widget.analysis.parts import known_of
from hfmem_widget.errors import OptionError
from hfmem_widget.features.fit.allocator import has_growing_segments
from hfmem_widget.features.fit.beside import (
    HOW_TO_RECORD,
    UNCALIBRATED,
    Calibration,
    batches_of,
    error_of,
    others_of,
    others_that_ran,
    room_before,
    shape_of,
)
from hfmem_widget.features.fit.dry_run import GRANULARITY
from hfmem_widget.features.fit.model import Forecast
from hfmem_widget.features.fit.predict import changed_forecast
from hfmem_widget.features.fit.recorded import CANNOT, live, made_again
from hfmem_widget.features.fit.setting import Setting
from hfmem_widget.monitor.batch import SeenBatch
from hfmem_widget.session import HELD, Device, Session, Span
from hfmem_widget.sources.procfs import address_space
from hfmem_widget.text import MIB, format_bytes, plain

LEAST_LEFT: Final = 256 * MIB
"""Bytes that this process must still be allowed to map: with fewer, PyTorch may crash in a dry run."""


def margin_on(device: Device) -> float:
    """Return the most that malloc may map for tensors, as a multiple of their bytes; 1 on a GPU.

    Factors of 1.4 to 1.9 were measured, counted as a limit on mapped memory counts.
    """
    return 1.0 if ":" in device.key else 2.0


@dataclass(frozen=True, slots=True)
class Training:
    """A watched training."""

    device: Device
    model: Any
    optimizer: Any
    setting: Setting
    forecast: Forecast
    loss: Literal["loop", "model", "own", "smoothed"]
    """The code that combines the losses of a step's batches: the user's loop, the model, or the Trainer."""
    room: float
    """Bytes that it may have on the device, including those that it has; NaN if unknown."""
    spare: float = 0.0
    """Bytes that something else held when it began, and that may be free by now."""
    seen: SeenBatch | None = None
    """Its largest batch."""
    calibration: Calibration = UNCALIBRATED
    gpus: int = 0
    """The GPUs that it could use, as far as they were watched; 0 without such, or where it uses several."""
    is_replicated: bool = False
    """Whether ``nn.DataParallel`` runs it on these GPUs; its own forecast is of one GPU with all rows."""
    others: str = ""
    """The classes of other models that ran meanwhile; forecasts leave out their bytes within a step."""

    @property
    def held(self) -> float:
        """Bytes that do not depend on the batch."""
        return sum(self.forecast.full(name) for name in HELD)

    def most(self, forecast: Forecast, spare: float = 0.0) -> float:
        """Return the most bytes that it may need, with the gaps between an allocator's blocks."""
        most, room = forecast.interval[1] * margin_on(self.device), self.room + spare
        if forecast.replay is None or most > room or has_growing_segments():
            return most
        return max(most, forecast.replay.needs(room))

    def fits(self, forecast: Forecast, spare: float = 0.0) -> bool:
        """Return whether a step is sure to fit, if the spare bytes are free."""
        return self.most(forecast, spare) <= self.room + spare


def training_of(session: Session, headroom: float) -> Training:
    """Return the training that a session has watched, or raise OptionError.

    Its room is what this process could have had when memory ran out; without an error, what it could have
    now, less a share of `headroom`.
    """
    if session.ranks is not None:
        raise OptionError(f"{CANNOT}a training on several ranks is not supported yet")
    limit, used, _ = address_space()  # NaN without a limit
    if limit - used < LEAST_LEFT:
        left = format_bytes(limit - used)
        why = f"this process may map {left} more, too little for a dry run"
        raise OptionError(f"{CANNOT}{why}; %memholders --free errors may help")
    root = newest_training(session)
    error = error_of(session, root)
    devices = {device.key: device for device in session.devices}
    failed_on = "" if error is None else str(error.evidence.get("device", ""))
    device = devices.get(failed_on) or active_devices(session)[0]
    key = device.key
    trained = live(session) if session.is_of_here else made_again(session.recipe)
    trainings = [
        span for span in session.coarse_spans if span.kind == "train" and span.id >= root.id
    ]
    by_trainer = bool(trainings)
    counts = dict(trainings[-1].counts) if trainings else {}
    model, optimizer, seen = trained.model, trained.optimizer, trained.seen
    if seen is not None and not seen.length:  # of images, for example: only the rows can change
        shape = {"largest_batch": float(seen.rows), "longest": 1.0, "batches": batches_of(session)}
    elif error is None:
        shape = shape_of(session, key, (trainings or [root])[-1].start)
    else:
        shape = _failed_shape(session, root, by_trainer=by_trainer)
    kind, length = key.partition(":")[0], int(shape["longest"])
    if kind not in GRANULARITY:
        raise OptionError(f"forecasts support {' and '.join(GRANULARITY)}, not {plain(kind)}")
    # The last batch of an epoch has fewer rows.
    rows = round(max(shape["largest_batch"] / length, counts.get("rows", 0.0)))
    batches = int(max(1.0, counts.get("batches", shape["batches"])))
    setting = Setting(
        batch=max(1, rows), length=length, accumulation=batches, device=kind, **trained.ran
    )
    forecast = changed_forecast(model, setting, optimizer, seen, by_trainer=by_trainer)
    if forecast.left_out:
        raise OptionError(f"{CANNOT}{' '.join(forecast.notes)}")
    held = {
        name: known_of(session.value(session.last_sample, f"{key}/{name}"), 0.0) for name in HELD
    }
    of_other_models = sum(max(0.0, held[name] - forecast.full(name)) for name in HELD)
    spare = 0.0 if error is None else others_of(session, root, device)
    if error is None:
        room = (1 - headroom) * trained.available.get(key, math.nan) + sum(held.values())
    else:
        room = room_before(error) - spare
    loss: Any = next((name for name in ("own", "smoothed") if f"{name}_loss" in counts), "model")
    return Training(
        device,
        model,
        optimizer,
        setting,
        forecast,
        loss if by_trainer else "loop",
        room - of_other_models,
        spare,
        seen,
        gpus=trained.replicas if trained.replicas > 1 else _gpus_for(session, device),
        is_replicated=trained.replicas > 1,
        others=others_that_ran(session, model)
        if session.is_of_here
        else plain(session.recipe.get("others", ""), 200),
    )


def _gpus_for(session: Session, device: Device) -> int:
    like = [
        each
        for each in session.devices
        if each.key.startswith("cuda:") and each.name == device.name
    ]
    return len(like) if active_devices(session) == (device,) and device in like else 0


def newest_training(session: Session) -> Span:
    """Return the newest outermost span that trained or ran out of memory."""
    ended = {each.span_id for each in session.findings if ran_out(each)}
    trained = (
        span
        for span in reversed(session.coarse_spans)
        if span.parent is None
        if span.id in ended or any(each.kind == "step" for each in session.phases(span.id))
    )
    return next(trained, session.spans[0])


def _failed_shape(session: Session, root: Span, *, by_trainer: bool) -> dict[str, float]:
    """Return the size of the batch of the step in which memory ran out, or raise OptionError."""
    failed = failed_spans(session, root)
    kinds = {span.kind for span in failed}
    if kinds & {"evaluate", "predict", "prefill", "decode", "save", "load"}:
        listed = "; the card of that cell lists what fits, and %memfit --write N writes it"
        raise OptionError(
            f"{CANNOT}memory did not run out in a step of a training{listed if session.moves else ''}"
        )
    names = ("largest_batch", "tokens", "longest", "batches")
    counts = {name: span.counts[name] for span in failed for name in names if name in span.counts}
    if "step" not in kinds or not counts.get("longest", 0) > 0:
        unseen = "it has no tokens, or the error came before the model saw it"
        reason = unseen if by_trainer else HOW_TO_RECORD
        raise OptionError(f"{CANNOT}the size of the batch was not seen; {reason}")
    return {"largest_batch": counts.get("tokens", 0.0), "batches": batches_of(session), **counts}
