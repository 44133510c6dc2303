"""A batch on the meta device, of the shape that a model takes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from hfmem_widget.errors import OptionError
from hfmem_widget.features.fit.dry_run import MakeInputs

KNOWN = ("input_ids", "pixel_values", "input_features", "input_values")


def batch_for(model: Any, batch: int, length: int, *, with_labels: bool) -> MakeInputs:
    """Return what makes a full batch for a model of transformers, or raise OptionError.

    `batch` are rows, and `length` the tokens of each; samples where the model takes raw sound.
    """
    name = getattr(model, "main_input_name", "input_ids")
    if name not in KNOWN:
        message = f"{type(model).__name__} takes {name!r}; forecasts support {', '.join(KNOWN)}"
        raise OptionError(message)
    config = model.config
    positions = getattr(getattr(config, "text_config", config), "max_position_embeddings", None)
    if name == "input_ids" and isinstance(positions, int) and 0 < positions < length:
        message = (
            f"{type(model).__name__} has {positions} positions, so a length of {length} is too long"
        )
        raise OptionError(message)
    return partial(_make, model, config, name, batch, length, with_labels=with_labels)


def idle(model: Any) -> dict[str, str]:
    """Return the classes of sub-models by their names, from which each is removed when it runs, by a hook.

    The part for images of a model that reads images and text, for example, gets nothing from `batch_for`.
    """
    waiting: dict[str, str] = {}
    for name, module in model.named_modules():
        is_model = hasattr(module, "main_input_name") and hasattr(module, "config")
        if name and is_model and next(module.parameters(), None) is not None:
            waiting[name] = type(module).__name__
            module.register_forward_pre_hook(partial(_ran, waiting, name))
    return waiting


def _ran(waiting: dict[str, str], name: str, *_: Any) -> None:
    # What contains it runs too, even where it was not called: peft bypasses its `__call__`.
    for other in [other for other in waiting if f"{name}.".startswith(f"{other}.")]:
        del waiting[other]


def _make(
    model: Any, config: Any, name: str, batch: int, length: int, *, with_labels: bool
) -> Mapping[str, Any]:
    takes = inspect.signature(model.forward).parameters
    made: dict[str, Any] = {name: _main(config, name, batch, length, model)}
    if name == "input_ids":
        takes_any = any(each.kind is each.VAR_KEYWORD for each in takes.values())
        if takes_any or "attention_mask" in takes:
            made["attention_mask"] = _ids(batch, length)
        # In CLIP images go beside the text; elsewhere into it, where tokens stand for them.
        if {"return_loss", "pixel_values"} <= takes.keys() and hasattr(config, "vision_config"):
            made["pixel_values"] = _main(config, "pixel_values", batch, length, model)
    if with_labels:
        made |= _labels(takes, config, type(model).__name__, batch, length)
    elif getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in takes:
        made["decoder_input_ids"] = _ids(batch, 1)
    return made


def _main(config: Any, name: str, batch: int, length: int, model: Any) -> torch.Tensor:
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    if name == "input_ids":
        return _ids(batch, length)
    if name == "pixel_values":
        # The encoder for images may have a configuration of its own.
        parts = (config, *(getattr(config, part, None) for part in ("vision_config", "encoder")))
        seen = next((part for part in parts if hasattr(part, "image_size")), config)
        size = getattr(seen, "image_size", 224)
        height, width = size if isinstance(size, list | tuple) else (size, size)
        shape: tuple[int, ...] = (batch, getattr(seen, "num_channels", 3), height, width)
    elif name == "input_features":
        shape = (batch, config.num_mel_bins, 2 * config.max_source_positions)
    else:
        shape = (batch, length)
    return torch.empty(shape, dtype=dtype, device="meta")


def _labels(
    takes: Mapping[str, Any], config: Any, name: str, batch: int, length: int
) -> dict[str, Any]:
    if "return_loss" in takes:
        return {"return_loss": True}
    if "start_positions" in takes:
        return {"start_positions": _ids(batch), "end_positions": _ids(batch)}
    if "labels" not in takes:
        is_pair = getattr(config, "is_encoder_decoder", False)
        return {"decoder_input_ids": _ids(batch, length)} if is_pair else {}
    if name.endswith(("SequenceClassification", "ImageClassification", "NextSentencePrediction")):
        if getattr(config, "problem_type", None) == "multi_label_classification":
            return {"labels": torch.empty(batch, config.num_labels, device="meta")}
        is_regression = config.num_labels == 1
        return {"labels": torch.empty(batch, device="meta") if is_regression else _ids(batch)}
    longest = getattr(config, "max_target_positions", None) or length
    return {"labels": _ids(batch, min(length, longest))}


def _ids(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.int64, device="meta")
