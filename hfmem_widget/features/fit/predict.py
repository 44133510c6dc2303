"""What a model will need, part by part, before anything is loaded; and what one that is there should need."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatch
from typing import Any, Final

import torch

from hfmem_widget.errors import OptionError
from hfmem_widget.features.fit import optimizers
from hfmem_widget.features.fit.assembled import Known, of_inference, of_training, of_what_is_held
from hfmem_widget.features.fit.checkpointing import is_checkpointed
from hfmem_widget.features.fit.dry_run import GRANULARITY, MakeInputs, inference, training_step
from hfmem_widget.features.fit.foreign import foreign
from hfmem_widget.features.fit.inputs import batch_for, idle
from hfmem_widget.features.fit.model import Forecast, Setting
from hfmem_widget.features.fit.on_meta import copy_of, from_config, storages, with_lora
from hfmem_widget.features.fit.optimizers import Trained
from hfmem_widget.features.fit.quantized import checked, quantized_bytes
from hfmem_widget.text import plain

HALVES: Final = {"bf16": torch.bfloat16, "fp16": torch.float16}
PRECISIONS: Final = ("fp32", "bf16", "fp16", "pure bf16", "pure fp16")

CANNOT_RUN: Final = "cannot run on PyTorch's meta device, so its activations are unknown"
UNKNOWN_INPUTS: Final = "The inputs of {} are unknown, so its activations are unknown too."
NO_INPUT: Final = (
    "gets no input in this forecast: its weights are counted, its activations are not.",
    "get no input in this forecast: their weights are counted, their activations are not.",
)

Lora = int | tuple[int, Iterable[str]]
"""The rank of the adapters, and where they go; without that, where peft puts them."""


def predict(
    model_or_config: Any,
    *,
    batch: int = 1,
    length: int = 512,
    optimizer: str = "adamw_torch",
    precision: str | None = None,
    checkpointing: bool = False,
    training: bool = True,
    trainable: Iterable[str] | None = None,
    accumulation: int = 1,
    quantized: str = "",
    lora: Lora | None = None,
    device: str = "cuda",
    partial: bool = False,
) -> Forecast:
    """Return what one device will need for a model. Nothing is loaded, and no device is touched.

    Parameters
    ----------
    model_or_config : torch.nn.Module or transformers.PreTrainedConfig
        A model is left as it is, and its hooks do not run.
    batch, length : int
        Rows, and tokens of each.
    optimizer : str
        As `TrainingArguments.optim` names it.
    precision : {"fp32", "bf16", "fp16", "pure bf16", "pure fp16"}, optional
        For training, ``bf16`` and ``fp16`` are float32 weights and autocast, as `TrainingArguments` has it;
        for inference they are the weights' own type. By default a model is as it is, and a configuration is
        float32.
    checkpointing : bool
        Whether layers are computed again in the backward pass.
    training : bool
        Whether it is trained, or only run forward.
    trainable : iterable of str, optional
        Patterns of the names of parameters that are trained, such as ``*.classifier.*``.
    accumulation : int
        Batches to a step.
    quantized : {"int8", "nf4", "nf4-double"}, optional
        How bitsandbytes keeps the weights of linear layers; the second of 4 bit has its scales quantised too.
    lora : int or (int, iterable of str), optional
        The rank of adapters, and where they go.
    device : {"cuda", "cpu"}
        What it is to run on.
    partial : bool
        Forecast weights, gradients and optimizer states of a model that cannot be run without being there,
        and of any module, whose inputs are not known.

    Raises
    ------
    OptionError
        If there is no such choice, or the model cannot be run without being there and `partial` is not
        wanted; the message says why.
    """
    _check(batch, length, precision, accumulation, device)
    is_config = not isinstance(model_or_config, torch.nn.Module)
    if quantized:
        checked(quantized)
        if training and lora is None:
            message = (
                "quantised weights cannot be trained; add LoRA adapters (lora=16, or --lora 16)"
            )
            raise OptionError(message)
    dtype = _weights_type(precision, training=training, quantized=bool(quantized))
    config = model_or_config if is_config else getattr(model_or_config, "config", None)
    if not hasattr(config, "model_type") and (is_config or not partial):
        message = (
            "a forecast needs a transformers model or configuration, not "
            f"{plain(type(model_or_config).__name__)}"
        )
        raise OptionError(message)
    if is_config:
        model = from_config(model_or_config, dtype or torch.float32, for_training=training)
    else:
        model = copy_of(model_or_config)
        if precision is not None and (not training or precision.startswith("pure")):
            model.to(dtype)
    known = optimizers.by_name(optimizer, device) if training else None
    return _forecast(
        model,
        Setting(
            training=training,
            batch=batch,
            length=length,
            precision=precision or _own_precision(model),
            optimizer=optimizer if training else "",
            checkpointing=training and (checkpointing or is_checkpointed(model)),
            accumulation=accumulation,
            quantized=quantized,
            lora=_lora_text(lora),
            device=device,
        ),
        known,
        trainable=trainable,
        lora=lora,
        partial=partial,
    )


def forecast_of(
    model: Any, optimizer: Any, counts: Mapping[str, float], device: str = ""
) -> Forecast:
    """Return what a model that is being trained should need.

    Parameters
    ----------
    model : torch.nn.Module
    optimizer : torch.optim.Optimizer
    counts : mapping
        Of a step, as spans have them: ``largest_batch`` and ``longest`` in tokens, ``batches`` where it
        accumulates.
    device : {"cuda", "cpu"}, optional
        What it runs on; that of its parameters by default.

    Raises
    ------
    OptionError
        If there is no telling; the message says why.
    """
    length = int(counts.get("longest", 0))
    if length <= 0:
        message = "no batch shape was recorded"
        raise OptionError(message)
    rows = max(1, round(counts.get("largest_batch", 0) / length))
    device = device or next((p.device.type for p in model.parameters()), "cpu")
    if device not in GRANULARITY:
        message = f"forecasts support {' and '.join(GRANULARITY)}, not {plain(device)}"
        raise OptionError(message)
    known = _live_optimizer(optimizer, device)
    return _forecast(
        copy_of(model),
        Setting(
            batch=rows,
            length=length,
            precision=_precision_of_accelerate(),
            optimizer=type(optimizer).__name__,
            checkpointing=is_checkpointed(model),
            accumulation=int(max(1.0, counts.get("batches", 1))),
            device=device,
        ),
        known,
    )


def parts_at_the_peak(forecast: Forecast) -> dict[str, int]:
    """Return a forecast's bytes by part, told as the anatomy of a device tells its own.

    There, gradients that are only being made are among the activations.
    """
    parts = {part.name: part.bytes for part in forecast.parts}
    if forecast.moment != "optimizer" and forecast.setting.accumulation == 1:
        parts["activations"] = parts.get("activations", 0) + parts.pop("gradients", 0)
    return parts


def _forecast(
    model: Any,
    setting: Setting,
    optimizer: optimizers.Optimizer | None,
    *,
    trainable: Iterable[str] | None = None,
    lora: Lora | None = None,
    partial: bool = False,
) -> Forecast:
    name = type(model).__name__
    has_inputs = hasattr(getattr(model, "config", None), "model_type")
    rounded = _rounder(setting.device)
    sizes, unpacked = _quantized(model, setting, rounded)
    inputs: MakeInputs = dict
    if has_inputs:
        inputs = batch_for(model, setting.batch, setting.length, with_labels=setting.training)
    model = _as_trained(model, setting, trainable, lora)
    parameters = list(storages(model.parameters()))
    trained = [one for one in parameters if one.requires_grad]
    known = Known(
        name,
        setting,
        weights=sum(sizes.get(id(one), rounded(_bytes(one))) for one in parameters),
        buffers=sum(rounded(_bytes(one)) for one in storages(model.buffers())),
        unpacked=unpacked,
        parameters=sum(one.numel() for one in parameters),
        trainable=sum(one.numel() for one in trained),
        gradients=sum(rounded(_bytes(one)) for one in trained) if setting.training else 0,
    )
    needed = None
    if optimizer is not None:
        needed = optimizers.needs(optimizer, _trained(model, trained), rounded)
    if not has_inputs:
        return of_what_is_held(known, needed, UNKNOWN_INPUTS.format(plain(name)))
    try:
        with foreign(f"{plain(name)} {CANNOT_RUN}"):
            return _dry(model, inputs, known, needed)
    except OptionError as error:
        # Of a choice that there is not, nothing can be told.
        if not partial or error.__cause__ is None:
            raise
        return of_what_is_held(known, needed, f"{error}.")


def _quantized(model: Any, setting: Setting, rounded: Any) -> tuple[dict[int, int], int]:
    """Return the bytes of quantised weights, and of the largest while it is unpacked."""
    if not setting.quantized:
        return {}, 0
    sizes, largest = quantized_bytes(model, setting.quantized, rounded)
    return sizes, rounded(largest * 2)


def _as_trained(
    model: Any, setting: Setting, trainable: Iterable[str] | None, lora: Lora | None
) -> Any:
    """Return the model with its adapters, and with all else frozen that is not trained."""
    if lora is not None:
        rank, targets = (lora, ()) if isinstance(lora, int) else lora
        if setting.quantized:
            model.requires_grad_(requires_grad=False)
        model = with_lora(model, rank, targets)
    if trainable is not None:
        patterns = list(trainable)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(any(fnmatch(name, one) for one in patterns))
    return model


def _dry(model: Any, inputs: MakeInputs, known: Known, needed: optimizers.Needs | None) -> Forecast:
    setting = known.setting
    waiting = idle(model)
    if needed is None:
        told = of_inference(known, inference(model, inputs, device=setting.device))
    else:
        step = training_step(
            model,
            inputs,
            device=setting.device,
            autocast=HALVES.get(setting.precision),
            checkpointing=setting.checkpointing,
            accumulating=setting.accumulation > 1,
        )
        told = of_training(known, step, needed)
    return _without(told, waiting)


def _without(told: Forecast, waiting: Mapping[str, str]) -> Forecast:
    """Return a forecast that says which parts of the model got no input."""
    if not waiting:
        return told
    outer = {
        name: kind
        for name, kind in waiting.items()
        if not any(name.startswith(f"{other}.") for other in waiting)
    }
    names = ", ".join(f"{plain(name)} ({plain(kind)})" for name, kind in outer.items())
    note = f"{names} {NO_INPUT[len(outer) > 1]}"
    parts = tuple(
        replace(part, bound="lower") if part.name in {"gradients", "activations"} else part
        for part in told.parts
    )
    return replace(told, parts=parts, notes=(*told.notes, note), left_out=tuple(outer))


def _trained(model: Any, parameters: Iterable[torch.nn.Parameter]) -> Iterator[Trained]:
    embeddings = {
        id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)
    }
    for one in parameters:
        yield Trained(tuple(one.shape), one.element_size(), id(one) in embeddings)


def _check(batch: int, length: int, precision: str | None, accumulation: int, device: str) -> None:
    counts: dict[str, object] = {"batch": batch, "length": length, "accumulation": accumulation}
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            message = f"{name} must be a whole number, 1 or more, not {plain(value)}"
            raise OptionError(message)
    if precision is not None and precision not in PRECISIONS:
        message = f"precision must be one of {', '.join(PRECISIONS)}, not {plain(precision)!r}"
        raise OptionError(message)
    if device not in GRANULARITY:
        message = f"device must be {' or '.join(GRANULARITY)}, not {plain(device)!r}"
        raise OptionError(message)


def _weights_type(precision: str | None, *, training: bool, quantized: bool) -> torch.dtype | None:
    if precision is None:
        return torch.bfloat16 if quantized else None
    half = HALVES.get(precision.removeprefix("pure "))
    is_autocast = training and not quantized and not precision.startswith("pure")
    return torch.float32 if half is None or is_autocast else half


def _own_precision(model: Any) -> str:
    """Return what most of a model's weights are, as a precision."""
    sizes: dict[torch.dtype, int] = {}
    for one in storages(model.parameters()):
        sizes[one.dtype] = sizes.get(one.dtype, 0) + one.numel()
    most = max(sizes, key=lambda dtype: sizes[dtype], default=torch.float32)
    return {torch.bfloat16: "pure bf16", torch.float16: "pure fp16"}.get(most, "fp32")


def _rounder(device: str) -> Any:
    granularity = GRANULARITY[device]
    return lambda size: -(-size // granularity) * granularity


def _bytes(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage().nbytes())


def _lora_text(lora: Lora | None) -> str:
    if lora is None:
        return ""
    if isinstance(lora, int):
        return f"r={lora}"
    rank, targets = lora
    named = ", ".join(plain(one) for one in targets)
    return f"r={rank} on {named}" if named else f"r={rank}"


def _precision_of_accelerate() -> str:
    """Return the precision of a training that accelerate prepared: its autocast, or none."""
    state = getattr(sys.modules.get("accelerate.state"), "AcceleratorState", None)
    shared = getattr(state, "_shared_state", {})
    precision = str(shared.get("_mixed_precision", "no"))
    return precision if precision in HALVES else "fp32"


def _live_optimizer(optimizer: Any, device: str) -> optimizers.Optimizer:
    within = getattr(optimizer, "optimizer", optimizer)  # accelerate's wraps the user's
    kind = type(within)
    if kind.__module__.startswith("bitsandbytes"):
        found = optimizers.of_bitsandbytes(
            kind.__name__,
            int(getattr(getattr(within, "args", None), "optim_bits", 32)),
            paged=bool(getattr(within, "is_paged", False)),
        )
    else:
        settings = dict(within.param_groups[0]) if within.param_groups else {}
        if settings.get("foreach") is None and device == "cpu":
            settings["foreach"] = False
        found = optimizers.of_class(kind.__name__, settings)
    if found is None:
        message = f"forecasts do not support the optimizer {plain(kind.__name__)}"
        raise OptionError(message)
    return found
