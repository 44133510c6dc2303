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
    """Return what makes a batch for a model, full, without padding.

    Parameters
    ----------
    model : torch.nn.Module
        Of transformers, or one that says its `main_input_name` and `config` alike.
    batch, length : int
        Rows, and tokens of each; samples where sound is taken as it is.
    with_labels : bool
        Whether it computes a loss.

    Raises
    ------
    OptionError
        If it takes something else than `KNOWN`, or rows longer than it has positions.
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
    """Return the sub-models that have not run yet: their class by their place; each is gone once it runs.

    Of a model that reads images as well as text, the part for images gets nothing from `batch_for`.

    Parameters
    ----------
    model : torch.nn.Module
        It is hooked.
    """
    waiting: dict[str, str] = {}
    for name, module in model.named_modules():
        is_model = hasattr(module, "main_input_name") and hasattr(module, "config")
        if name and is_model and next(module.parameters(), None) is not None:
            waiting[name] = type(module).__name__
            module.register_forward_pre_hook(partial(_ran, waiting, name))
    return waiting


def _ran(waiting: dict[str, str], name: str, *_: Any) -> None:
    # With a part runs what it is a part of, also where that was not called: peft goes past its `__call__`.
    for other in [other for other in waiting if f"{name}.".startswith(f"{other}.")]:
        del waiting[other]


def _make(
    model: Any, config: Any, name: str, batch: int, length: int, *, with_labels: bool
) -> Mapping[str, Any]:
    takes = inspect.signature(model.forward).parameters
    made: dict[str, Any] = {name: _main(config, name, batch, length, model)}
    if name == "input_ids" and _takes(takes, "attention_mask"):
        made["attention_mask"] = _ids(batch, length)
    if name == "input_ids" and _is_pair_of_towers(takes, config):
        made["pixel_values"] = _main(config, "pixel_values", batch, length, model)
    if with_labels:
        made |= _labels(takes, config, type(model).__name__, batch, length)
    elif getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in takes:
        made["decoder_input_ids"] = _ids(batch, 1)
    return made


def _takes(parameters: Mapping[str, Any], name: str) -> bool:
    return name in parameters or any(
        one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values()
    )


def _is_pair_of_towers(takes: Mapping[str, Any], config: Any) -> bool:
    """Return whether images go beside the text, as in CLIP, and not into it, where tokens stand for them."""
    return "return_loss" in takes and "pixel_values" in takes and hasattr(config, "vision_config")


def _main(config: Any, name: str, batch: int, length: int, model: Any) -> torch.Tensor:
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    if name == "input_ids":
        return _ids(batch, length)
    if name == "pixel_values":
        # An image's encoder has a configuration of its own where it is not all there is.
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
        return {"labels": _classes(config, batch)}
    longest = getattr(config, "max_target_positions", None) or length
    return {"labels": _ids(batch, min(length, longest))}


def _classes(config: Any, batch: int) -> torch.Tensor:
    if getattr(config, "problem_type", None) == "multi_label_classification":
        return torch.empty(batch, config.num_labels, device="meta")
    return torch.empty(batch, device="meta") if config.num_labels == 1 else _ids(batch)


def _ids(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.int64, device="meta")
