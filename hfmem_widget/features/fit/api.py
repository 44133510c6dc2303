"""`fit`: whether a model fits the devices here, and with how large a batch."""

import math
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from itertools import chain
from os import PathLike
from typing import Any, Unpack

from hfmem_widget.errors import OptionError
from hfmem_widget.features.fit.beside import remember
from hfmem_widget.features.fit.checkpoint import read_config, read_stored
from hfmem_widget.features.fit.model import Fit, Forecast, Tried, Verdict
from hfmem_widget.features.fit.optimizers import Kind
from hfmem_widget.features.fit.room import rooms
from hfmem_widget.features.fit.search import MOST_TOKENS, largest_batch, most_that_fit
from hfmem_widget.features.fit.setting import Setting, SettingKeywords
from hfmem_widget.options import lists_options, path_text
from hfmem_widget.recording.file import checked_path, read
from hfmem_widget.recording.limits import ENDINGS
from hfmem_widget.session import Session
from hfmem_widget.text import plain


@partial(lists_options, declared=Setting, keywords=SettingKeywords)
def fit(model: Any, **choices: Unpack[SettingKeywords]) -> Fit:
    """Forecast the memory of a model, and whether it fits this machine's devices. Nothing is loaded.

    Parameters
    ----------
    model : torch.nn.Module, transformers.PreTrainedConfig, Session, str or PathLike
        A model, its configuration, a folder or JSON file with a configuration, or the name of a model in the
        local cache. The forecast of other modules has weights, gradients and optimizer states, but no
        activations. A session stands for the training that it watched, whose model must still exist; the
        result has the changes that make it fit. A recording does the same without the model.
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
    model = _opened(model)
    if isinstance(model, Session):
        from hfmem_widget.features.fit.moves import fit_training
        from hfmem_widget.features.fit.passes import fit_passes

        if choices.keys() - {"headroom", "attempt"}:
            raise OptionError(
                "a watched training has its own setting; only headroom and attempt (--try) can be chosen"
            )
        of_passes = fit_passes(model, setting.headroom)
        if of_passes and setting.attempt:
            raise OptionError("only the changes of a training can be tried")
        attempt = _tried if setting.attempt else None
        return of_passes or fit_training(model, setting.headroom, attempt)
    name, subject, stored = type(model).__name__, model, ""
    if isinstance(model, str):
        name = model
        subject, stored, setting = _read(name, setting)
    here, _ = rooms()
    gpus = tuple(room for room in here if room.device != "cpu")
    setting = replace(setting, device="cuda" if gpus or setting.quantized else "cpu")
    subject = uncompiled(subject)

    @cache  # several devices may try the same sizes
    def forecast_at(batch: int, length: int) -> Forecast:
        return predict(subject, replace(setting, batch=batch, length=length), partial=True)

    batch, length = setting.batch, setting.length
    forecast = forecast_at(batch, length)
    known: dict[int, float] = {batch: forecast.total}
    held = _held(subject)
    verdicts = []
    for device in gpus or here:
        # The forecast counts cuBLAS' workspaces, which the room counts with the context.
        room = replace(device, context=max(0.0, device.context - forecast.bytes("libraries")))
        share = room.available * (1 - setting.headroom) + held[room.device]
        fits = None if math.isnan(room.available) else forecast.total <= share
        is_lower = forecast.bound == "lower"
        rows = tokens = None
        if fits is not None and not is_lower:
            rows = largest_batch(lambda rows: forecast_at(rows, length), share, known)
        has_length = forecast.setting.length == length  # rows of images have none: it is then 1
        if setting.longest and rows is not None and has_length:
            tokens = most_that_fit(
                lambda tokens: forecast_at(batch, tokens).total,
                length,
                forecast.total / length,
                share,
                positions_of(getattr(subject, "config", subject)) or MOST_TOKENS,
            )
        fits = None if fits and is_lower else fits
        verdicts.append(Verdict(room, held[room.device], fits, rows, tokens))
    tried = _tried(subject, forecast.setting) if setting.attempt else None
    remember(forecast)
    return Fit(name, forecast, tuple(verdicts), setting.headroom, stored, tried)


def _tried(model: Any, setting: Setting, optimizer: Kind | None = None) -> Tried:
    from hfmem_widget.features.fit.trial import tried_step

    return tried_step(model, setting, optimizer, progress=_on_one_line)


def _opened(model: Any) -> Any:
    """Return the session of a recording, or anything else as it is."""
    if isinstance(model, type):
        name = plain(model.__name__)
        raise OptionError(f"{name} is a class; name an object of it, such as {name}()")
    if isinstance(model, PathLike):
        model = path_text(model, "model")
    is_recording = isinstance(model, str) and model.endswith(ENDINGS)
    return read(checked_path(model)) if is_recording else model


def _read(name: str, setting: Setting) -> tuple[Any, str, Setting]:
    """Return a configuration, a text on its files, and the setting with the precision of the weights."""
    config, folder = read_config(name)
    if folder is None:
        return config, "", setting
    dtype, stored = read_stored(folder)
    own = {"bfloat16": "pure bf16", "float16": "pure fp16"}.get(dtype, "")
    return config, stored, replace(setting, precision=setting.precision or own)


def _on_one_line(text: str) -> None:
    """Replace the progress line on stderr, if stderr can be written."""
    with suppress(AttributeError, OSError, ValueError):
        sys.stderr.write(f"\r{text:40}" if text else f"\r{text:40}\r")
        sys.stderr.flush()


def _held(model: Any) -> Counter[str]:
    """Return the bytes of a model's tensors by device, which are allocated already."""
    from hfmem_widget.features.fit.on_meta import storages

    held: Counter[str] = Counter()
    tensors: Iterable[Any] = chain(
        getattr(model, "parameters", tuple)(), getattr(model, "buffers", tuple)()
    )
    for tensor in storages(tensors):
        held[str(tensor.device)] += tensor.untyped_storage().nbytes()
    return held
