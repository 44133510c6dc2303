"""Whether a model fits here, and with how large a batch."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from itertools import chain
from os import PathLike, fspath
from typing import Any, Unpack

from hfmem_widget.errors import OptionError
from hfmem_widget.features.fit.beside import remember
from hfmem_widget.features.fit.checkpoint import read_config, read_stored
from hfmem_widget.features.fit.model import MOST_ROWS, Fit, Forecast, Verdict
from hfmem_widget.features.fit.room import rooms
from hfmem_widget.features.fit.setting import Setting, SettingKeywords
from hfmem_widget.options import lists_options
from hfmem_widget.text import plain

MOST_TOKENS = 1 << 20  # the longest rows that are looked for
TRIES = 6  # dry runs for these, and for the largest batch
CLOSE = 64  # the part of either that is not looked for any more
STEEP = 8  # times that the next tokens or rows may cost less than the first ones

PROBE = 2  # rows of the larger of the two batches from which others are extrapolated

STORED_AS = {"bfloat16": "pure bf16", "float16": "pure fp16"}
"""What weights on disk are taken to be; float32 otherwise."""


@partial(lists_options, declared=Setting, keywords=SettingKeywords)
def fit(model: Any, **choices: Unpack[SettingKeywords]) -> Fit:
    """Forecast the memory of a model, and whether it fits the devices that are here. Nothing is loaded.

    Parameters
    ----------
    model : torch.nn.Module, transformers.PreTrainedConfig, str or PathLike
        A model, its configuration, a folder or JSON file that has one, or the name of one in the local cache.
        Of other modules, weights, gradients and optimizer states are forecast, but no activations.
    **choices
        Options of a `Setting`.

    Returns
    -------
    Fit
        Shows itself as a card.

    Raises
    ------
    OptionError
        If there is no such model or choice; the message says why.
    """
    setting = Setting().changed(choices, "fit()")
    try:
        from hfmem_widget.features.fit.inputs import positions_of
        from hfmem_widget.features.fit.on_meta import uncompiled
        from hfmem_widget.features.fit.predict import predict
    except ImportError as error:
        raise OptionError(f"a forecast needs torch and transformers ({plain(error)})") from None
    name, subject, stored = type(model).__name__, model, ""
    if isinstance(model, str | PathLike):
        name = fspath(model)
        subject, folder = read_config(name)
        if folder is not None:
            stored_model = read_stored(folder)
            stored = stored_model.text()
            precision = setting.precision or STORED_AS.get(stored_model.dtype, "")
            setting = replace(setting, precision=precision)
    here, _ = rooms()
    gpus = tuple(room for room in here if room.device != "cpu")
    setting = replace(setting, device="cuda" if gpus or setting.quantized else "cpu")
    subject = uncompiled(subject)

    @cache  # several devices may have as much room
    def forecast_at(batch: int, length: int) -> Forecast:
        return predict(subject, replace(setting, batch=batch, length=length), partial=True)

    batch, length = setting.batch, setting.length
    forecast = forecast_at(batch, length)
    known: dict[int, float] = {batch: forecast.total}
    held = _held(subject)
    verdicts = []
    for gpu in gpus or here:
        # The forecast has cuBLAS' workspaces, which the context stands for elsewhere.
        context = max(0.0, gpu.context - forecast.bytes("libraries"))
        room = replace(gpu, context=context)
        there = held[room.device]
        share = room.available * (1 - setting.headroom) + there
        fits = None if math.isnan(room.available) else forecast.total <= share
        is_lower = forecast.bound == "lower"
        largest = None
        if fits is not None and not is_lower:
            largest = largest_batch(lambda rows: forecast_at(rows, length), share, known)
        tokens = None
        if setting.longest and largest is not None:
            most = positions_of(getattr(subject, "config", subject)) or MOST_TOKENS
            tokens = longest_rows(partial(forecast_at, batch), forecast, share, most)
        verdicts.append(Verdict(room, there, None if fits and is_lower else fits, largest, tokens))
    tried = None
    if setting.attempt:
        from hfmem_widget.features.fit.trial import tried_step

        tried = tried_step(subject, forecast.setting, progress=_on_one_line)
    remember(forecast)
    return Fit(name, forecast, tuple(verdicts), setting.headroom, stored, tried)


def _on_one_line(text: str) -> None:
    """Show what is being done on stderr, if that can be written to, over what was shown before."""
    with suppress(AttributeError, OSError, ValueError):
        sys.stderr.write(f"\r{text:40}" if text else f"\r{text:40}\r")
        sys.stderr.flush()


def longest_rows(
    at: Callable[[int], Forecast], first: Forecast, room: float, most: int = MOST_TOKENS
) -> int:
    """Return how many tokens a row, of `most`, fit some bytes, by forecasts at other lengths."""
    length = first.setting.length
    return _most_that_fit(
        lambda size: at(size).total, length, first.total / length, room, low=0, high=most
    )


def largest_batch(
    at: Callable[[int], Forecast], room: float, known: dict[int, float]
) -> int | None:
    """Return how many rows fit some bytes, by forecasts at other batches; None where some are not complete.

    `known` maps each batch that was forecast to its total; those that are forecast here are added. The first
    guess is extrapolated from one row and `PROBE` rows. A guess of more than `MOST_TOKENS` tokens is returned
    without a forecast, whose batch would take too much of the host's memory.
    """

    def total(rows: int) -> float:
        forecast = at(rows)
        if forecast.bound == "lower":
            raise OptionError("a batch of that size has no complete forecast")
        known[rows] = forecast.total
        return forecast.total

    one_row, more = at(1), at(PROBE)
    known |= {1: one_row.total, PROBE: more.total}
    rows, bytes_a_row = MOST_ROWS, 0.0
    # Forward and backward grow with the batch; the optimizer's step does not.
    for phase, first in one_row.peaks.items():
        row = (more.peaks[phase] - first) / (PROBE - 1)
        if first > room:
            return 0
        if row > 0:
            rows = min(rows, 1 + math.floor((room - first) / row))
            bytes_a_row = max(bytes_a_row, row)
    if not bytes_a_row:  # what a batch takes was not seen
        return None
    low = max((size for size, needed in known.items() if needed <= room), default=0)
    high = min((size for size, needed in known.items() if needed > room), default=MOST_ROWS + 1) - 1
    rows = min(max(rows, low), high)
    if high <= low or rows * one_row.setting.length > MOST_TOKENS:
        return rows
    try:
        return _most_that_fit(total, rows, bytes_a_row, room, low=low, high=high)
    except OptionError:
        return None


def _most_that_fit(
    at: Callable[[int], float], size: int, slope: float, room: float, *, low: int, high: int
) -> int:
    """Return the largest size that fits some bytes. It was forecast itself, or is the `low` that fits.

    The search begins at `size`, from which each further one takes `slope` bytes. It does not go above `high`.
    """
    total = at(size)
    for _ in range(TRIES):
        if total <= room:
            low = max(low, size)
        else:
            high = min(high, size - 1)
        aimed = size + math.floor((room - total) / slope)
        if aimed <= low and total > room:
            aimed = math.isqrt(max(low, 1) * max(high, 1))
        following = min(max(aimed, low + 1), high)
        if following <= low or following - low < low // CLOSE:
            break
        before, size, last = total, following, size
        total = at(size)
        slope = max((total - before) / (size - last), total / size / STEEP)
    return max(low, size) if total <= room else low


def _held(model: Any) -> Counter[str]:
    """Return the bytes of a model's tensors by device, which need no more room."""
    from hfmem_widget.features.fit.on_meta import storages

    held: Counter[str] = Counter()
    tensors: Iterable[Any] = chain(
        getattr(model, "parameters", tuple)(), getattr(model, "buffers", tuple)()
    )
    for tensor in storages(tensors):
        kind = tensor.device.type
        if kind in {"cpu", "cuda"}:
            device = kind if kind == "cpu" else f"cuda:{tensor.device.index or 0}"
            held[device] += tensor.untyped_storage().nbytes()
    return held
