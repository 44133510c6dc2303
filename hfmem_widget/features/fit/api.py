"""Whether a model fits here, and how large a batch would."""

from __future__ import annotations

import math
from collections.abc import Iterable
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from hfmem_widget.errors import OptionError
from hfmem_widget.features.fit.checkpoint import read_config, read_stored
from hfmem_widget.features.fit.model import Fit, Forecast, Room, Verdict
from hfmem_widget.features.fit.room import check_headroom, rooms
from hfmem_widget.text import plain

if TYPE_CHECKING:
    from hfmem_widget.features.fit.predict import Lora

PROBE = 2
"""Rows of the larger of the two batches that the next ones are told from."""

MOST_ROWS = 1 << 20


def fit(
    model: Any,
    *,
    training: bool = True,
    batch: int = 1,
    length: int = 512,
    optimizer: str = "adamw_torch_fused",
    precision: str | None = None,
    checkpointing: bool = False,
    trainable: Iterable[str] | None = None,
    accumulation: int = 1,
    quantized: str = "",
    lora: Lora | None = None,
    headroom: float = 0.10,
) -> Fit:
    """Return what a model will need, and whether that fits the devices that are here. Nothing is loaded.

    Parameters
    ----------
    model : torch.nn.Module, transformers.PreTrainedConfig, str or PathLike
        A model, its configuration, a folder or JSON file that has one, or the name of one in the local cache.
        Of any other module weights, gradients and optimizer states are forecast, and no activations.
    training, batch, length, optimizer, precision, checkpointing, trainable, accumulation, quantized, lora
        As `hfmem_widget.features.fit.predict.predict` takes them. Weights on disk are taken to be of the type
        that they have there where `precision` says nothing.
    headroom : float
        Share of each device's room that is left alone.

    Returns
    -------
    Fit
        Shows itself as a card.

    Raises
    ------
    OptionError
        If there is no such model or choice; the message says why.
    """
    check_headroom(headroom)
    try:
        from hfmem_widget.features.fit.predict import predict
    except ImportError as error:
        message = f"a forecast needs torch and transformers ({plain(error)})"
        raise OptionError(message) from None
    trainable = None if trainable is None else tuple(trainable)
    name, subject, stored = type(model).__name__, model, ""
    if isinstance(model, str | PathLike):
        name = fspath(model)
        subject, folder = read_config(name)
        if folder is not None:
            found = read_stored(folder)
            stored = found.text()
            precision = precision or _precision_of(found.dtype)
    here, _ = rooms()
    gpus = tuple(room for room in here if room.device != "cpu")
    choices: dict[str, Any] = {
        "training": training,
        "length": length,
        "optimizer": optimizer,
        "precision": precision,
        "checkpointing": checkpointing,
        "trainable": trainable,
        "accumulation": accumulation,
        "quantized": quantized,
        "lora": lora,
        "device": "cuda" if gpus or quantized else "cpu",
        "partial": True,
    }
    forecast = predict(subject, batch=batch, **choices)
    one = forecast if batch == 1 else predict(subject, batch=1, **choices)
    more = forecast if batch == PROBE else predict(subject, batch=PROBE, **choices)
    held = _held(subject)
    verdicts = tuple(
        _verdict(room, held.get(room.device, 0), (forecast, one, more), headroom)
        for room in gpus or here
    )
    return Fit(name, forecast, verdicts, float(headroom), stored)


def largest_batch(one: Forecast, more: Forecast, room: float) -> int:
    """Return how many rows fit, by forecasts of one row and of `PROBE` rows; further rows take as much.

    Parameters
    ----------
    room : float
        Bytes.
    """
    rows = MOST_ROWS
    # The optimizer's step takes what it takes; forward and backward grow with the batch.
    for phase, first in one.peaks.items():
        row = (more.peaks[phase] - first) / (PROBE - 1)
        if first > room:
            return 0
        if row > 0:
            rows = min(rows, 1 + math.floor((room - first) / row))
    return rows


def _verdict(
    room: Room, held: int, forecasts: tuple[Forecast, Forecast, Forecast], headroom: float
) -> Verdict:
    forecast, one, more = forecasts
    if math.isnan(room.available):
        return Verdict(room, held, None, None)
    share = room.available * (1 - headroom) + held
    if forecast.bound == "lower":
        return Verdict(room, held, None if forecast.total <= share else False, None)
    return Verdict(room, held, forecast.total <= share, largest_batch(one, more, share))


def _held(model: Any) -> dict[str, int]:
    """Return the bytes of a model's tensors by device, which need no room any more."""
    found: dict[str, int] = {}
    seen: set[int] = set()
    for name in ("parameters", "buffers"):
        for tensor in getattr(model, name, tuple)():
            device = "cpu" if tensor.device.type == "cpu" else f"cuda:{tensor.device.index or 0}"
            storage = tensor.untyped_storage()
            key = storage._cdata  # noqa: SLF001  (the identity of a storage is nowhere public)
            if tensor.device.type in {"cpu", "cuda"} and key not in seen:
                seen.add(key)
                found[device] = found.get(device, 0) + storage.nbytes()
    return found


def _precision_of(dtype: str) -> str | None:
    return {"bfloat16": "pure bf16", "float16": "pure fp16"}.get(dtype)
