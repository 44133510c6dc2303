"""Forecasts, part by part: of a model before it is loaded, and of one that is being trained."""

from __future__ import annotations

import sys
from collections.abc import Callable, Container
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatch
from functools import partial
from typing import Any, Final

import torch

from hfmem_widget.errors import OptionError
from hfmem_widget.features.fit import optimizers
from hfmem_widget.features.fit.allocator import (
    Allocator,
    Replay,
    ReplayPeak,
    allocate_all,
    allocator_of,
    play,
    play_twice,
)
from hfmem_widget.features.fit.backward import is_checkpointed
from hfmem_widget.features.fit.dry_run import (
    GRANULARITY,
    Inference,
    Step,
    inference,
    training_step,
    undisturbed,
)
from hfmem_widget.features.fit.inputs import CANNOT_RUN, Batch, batch_for, like_seen, parts_not_run
from hfmem_widget.features.fit.liger import give_liger, has_liger
from hfmem_widget.features.fit.model import Bound, Forecast, ForecastPart
from hfmem_widget.features.fit.on_meta import (
    RULES,
    copy_of,
    from_config,
    main_type,
    quantized_bytes,
    storages,
    with_lora,
)
from hfmem_widget.features.fit.optimizers import Needs, Trained
from hfmem_widget.features.fit.setting import Setting, errors_as
from hfmem_widget.features.fit.sharding import parsed, sharded
from hfmem_widget.features.fit.workspaces import of_cublas
from hfmem_widget.monitor.batch import SeenBatch
from hfmem_widget.text import format_bytes, plain, wrong_value

KV_BITS: Final = {"fp8": 8, "int8": 8, "int4": 4, "int2": 2}
"""The bits of an element of a quantised cache."""

HALVES: Final = {"bf16": torch.bfloat16, "fp16": torch.float16}

FROM_SHAPES: Final = "shapes and types"
FROM_A_RULE: Final = "rule for shapes"
FROM_A_DRY_RUN: Final = "dry run on meta device"


def predict(model_or_config: Any, setting: Setting, *, partial: bool = False) -> Forecast:
    """Return the memory that one device will need for a model, or raise OptionError.

    Nothing is loaded, and no device is touched. A model is left as it is, and its hooks do not run. With
    `partial`, models that cannot run on the meta device and modules whose inputs are unknown have a forecast
    without activations.
    """
    _check(setting)
    training, precision = setting.training, setting.precision
    dtype = weights_type(precision, training=training, quantized=bool(setting.quantized))
    is_config = not isinstance(model_or_config, torch.nn.Module)
    config = model_or_config if is_config else getattr(model_or_config, "config", None)
    if not hasattr(config, "model_type") and (is_config or not partial):
        kind = plain(type(model_or_config).__name__)
        raise OptionError(f"a forecast needs a transformers model or configuration, not {kind}")
    if is_config:
        model = from_config(model_or_config, dtype or torch.float32, for_training=training)
    else:
        model = copy_of(model_or_config)
        if precision and (not training or precision.startswith("pure")):
            model.to(dtype)
    optimizer = setting.optimizer if training else ""
    rule = optimizers.by_name(optimizer, setting.device) if training else None
    setting = replace(
        setting,
        precision=precision or own_precision(model),
        optimizer=optimizer,
        checkpointing=training and (setting.checkpointing or is_checkpointed(model)),
        liger=setting.liger or has_liger(model),
    )
    forecast = _forecast(model, setting, rule, partial=partial)
    named = getattr(config, "architectures", None)
    if not is_config or (isinstance(named, list | tuple) and forecast.model in named):
        return forecast
    assumed = (
        f"Assumed: {plain(forecast.model)}, since the configuration names no class of transformers. To name "
        'another, set its architectures, as in config.architectures = ["NameOfClass"].'
    )
    return replace(forecast, notes=(*forecast.notes, assumed))


def _check(setting: Setting) -> None:
    """Raise OptionError for unknown choices, and for choices that exclude each other."""
    if setting.device not in GRANULARITY:
        raise wrong_value(setting.device, "device", " or ".join(GRANULARITY))
    if setting.kv and (setting.kv not in KV_BITS or setting.training):
        raise wrong_value(setting.kv, "kv", f"one of {', '.join(KV_BITS)}, and is for inference")
    if setting.shards:
        parsed(setting.shards)
    if setting.liger and setting.device != "cuda":
        raise OptionError("Liger's kernels need a GPU")
    if setting.quantized not in {"", *RULES}:
        raise wrong_value(setting.quantized, "quantized", f"one of {', '.join(RULES)}")
    if setting.quantized and setting.training and setting.lora is None:
        message = "quantised weights cannot be trained; add LoRA adapters (lora=16, or --lora 16)"
        raise OptionError(message)


def changed_forecast(
    model: Any,
    setting: Setting,
    optimizer: Any,
    seen: SeenBatch | None = None,
    *,
    by_trainer: bool = True,
) -> Forecast:
    """Return the memory that a live model should need in a setting, or raise OptionError.

    The rule is the optimizer's unless the setting names one of a Trainer's. Batches are like the one `seen`.
    A Trainer moves all batches of a step to the device before it uses the first.
    """
    ghost = copy_of(model)
    if setting.precision.startswith("pure"):
        ghost.to(HALVES[setting.precision.removeprefix("pure ")])
    if setting.optimizer in optimizers.NAMES:
        rule = optimizers.by_name(setting.optimizer, setting.device)
    else:
        rule = optimizers.of_live(optimizer, setting.device)
    return _forecast(ghost, setting, rule, seen=seen, by_trainer=by_trainer)


def _forecast(
    model: Any,
    setting: Setting,
    optimizer: optimizers.Optimizer | None,
    *,
    partial: bool = False,
    seen: SeenBatch | None = None,
    by_trainer: bool = True,
) -> Forecast:
    name = plain(type(model).__name__)
    allocator = allocator_of(setting.device)
    sizes, largest = quantized_bytes(model, setting.quantized) if setting.quantized else ({}, 0)
    bare, model = model, as_trained(model, setting)
    parameters = list(storages(model.parameters()))
    of_weights = [size for one in parameters for size in sizes.get(id(one), (_bytes(one),))]
    of_buffers = [*map(_bytes, storages(model.buffers()))]
    weights, buffers = allocate_all(allocator, of_weights), allocate_all(allocator, of_buffers)
    held = Forecast(
        model=type(bare).__name__,
        setting=setting,
        parts=(
            _whole("weights", weights, "bitsandbytes' rule" if setting.quantized else FROM_SHAPES),
            _whole("buffers", buffers, FROM_SHAPES),
        ),
        total=weights + buffers,
        moment="",
        parameters=sum(parameter.numel() for parameter in parameters),
        trainable=sum(parameter.numel() for parameter in _trained(model)),
    )
    why = f"The inputs of {name} are unknown, so its activations are unknown too."
    try:
        with errors_as(f"{name} {CANNOT_RUN}"):
            if seen is not None or _is_of_transformers(model):
                inputs = inputs_of(bare, setting, seen)
                if not inputs.has_length:
                    setting = replace(setting, length=1)
                forecast = _dry(
                    model,
                    inputs,
                    replace(held, setting=setting),
                    optimizer,
                    allocator,
                    blocks=(*of_weights, *of_buffers),
                    unpacked=2 * largest,
                    at_once=setting.accumulation if by_trainer else 1,
                )
                if not setting.shards:
                    return forecast
                return sharded(forecast, _divisible(model, setting, weights))
    except OptionError as error:
        if not partial or error.__cause__ is None:
            raise
        why = f"{error}."
    fresh = allocator_of(setting.device)  # without the blocks of a failed run
    states = allocate_all(fresh, _needs(optimizer, model).sizes)
    gradients = allocate_all(fresh, map(_bytes, _trained(model))) if setting.training else 0
    parts = (_whole("optimizer", states, FROM_A_RULE), _whole("gradients", gradients, FROM_SHAPES))
    total = held.total + states + gradients
    forecast = replace(_completed(held, parts, "", {"": total}, (why,)), left_out=("activations",))
    return sharded(forecast, _divisible(model, setting, weights)) if setting.shards else forecast


def _is_of_transformers(model: Any) -> bool:
    return hasattr(getattr(model, "config", None), "model_type")


def inputs_of(model: Any, setting: Setting, seen: SeenBatch | None) -> Batch:
    """Return a batch for a model: like the one that it was seen with, or the usual one of its class."""
    size, training = (setting.batch, setting.length), setting.training
    usual = partial(batch_for, model, *size, with_labels=training, image=setting.image)
    if seen is None:
        return usual()
    batch = None
    if _is_of_transformers(model):
        with suppress(OptionError):
            batch = usual()
    return like_seen(batch, seen, *size)


def _trained(model: Any) -> list[torch.nn.Parameter]:
    """Return the parameters of a model that get gradients, each storage once."""
    return [one for one in storages(model.parameters()) if one.requires_grad]


def _needs(
    optimizer: optimizers.Optimizer | None, model: Any, unused: Container[int] = ()
) -> Needs:
    """Return an optimizer's needs: no states for weights that get no gradient."""
    if optimizer is None:
        return Needs((), 0, 0)
    embeddings = {
        id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)
    }
    used = (
        Trained(tuple(weight.shape), weight.element_size(), id(weight) in embeddings)
        for weight in _trained(model)
        if id(weight) not in unused
    )
    return optimizers.needs(optimizer, used)


def _bytes(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage().nbytes())


def _divisible(model: Any, setting: Setting, weights: int) -> float:
    """Return the share of the parameters that can be divided: of tensor parallelism those in its plan."""
    if not setting.shards.startswith("tp"):
        return 1.0
    plan = getattr(model, "tp_plan", None) or getattr(model, "_tp_plan", None) or {}
    divided = sum(
        _bytes(parameter)
        for name, parameter in model.named_parameters()
        if any(fnmatch(name, f"*{pattern}*") for pattern in plan)
    )
    return min(1.0, divided / max(1, weights))


def as_trained(model: Any, setting: Setting, device: str = "meta") -> Any:
    """Return the model with its adapters, with all else frozen, and with Liger's kernels."""
    if setting.liger:
        with undisturbed():
            give_liger(model)
    if setting.lora is not None:
        if setting.quantized:
            model.requires_grad_(requires_grad=False)
        model = with_lora(model, *setting.lora, device)
    if setting.trainable is not None:
        for name, parameter in model.named_parameters():
            is_trained = any(fnmatch(name, pattern) for pattern in setting.trainable)
            parameter.requires_grad_(is_trained)
    return model


def _dry(
    model: Any,
    inputs: Batch,
    held: Forecast,
    optimizer: optimizers.Optimizer | None,
    allocator: Allocator,
    *,
    blocks: tuple[int, ...],
    unpacked: int,
    at_once: int,
) -> Forecast:
    setting = held.setting
    if setting.device == "cuda":
        workspace, is_sure = of_cublas()
        workspaces = (workspace,) * (2 if setting.training else 1)
        size, blocks = allocate_all(allocator, workspaces), blocks + workspaces
        libraries = _whole("libraries", size, "cuBLAS' workspaces", "exact" if is_sure else "upper")
        held = replace(held, parts=(*held.parts, libraries))
    waiting = parts_not_run(model)
    if not setting.training:
        run = inference(model, inputs, device=setting.device)
        peak = play(run.events, allocator).peaks[-1].bytes + unpacked
        forecast = _of_inference(held, replace(run, peak=peak))
    else:
        run_once = partial(
            training_step,
            model,
            inputs,
            device=setting.device,
            autocast=HALVES.get(setting.precision),
            checkpointing=setting.checkpointing,
            accumulating=setting.accumulation > 1,
            at_once=at_once,
        )
        step, cached = _larger(model, run_once, checkpointing=setting.checkpointing)
        needs = _needs(optimizer, model, step.unused)
        states, second = play_twice(step.events, needs.sizes, allocator)
        forward, backward = (
            ReplayPeak(peak.bytes + unpacked, peak.marked) for peak in second.peaks[-2:]
        )
        step = replace(step, forward=forward, backward=backward, gradients=second.marked)
        forecast = _of_training(held, step, needs, states)
        replay = Replay(blocks, step.events, needs.sizes) if setting.device == "cuda" else None
        forecast = replace(forecast, notes=(*forecast.notes, *cached), replay=replay)
        if not step.has_loss and not hasattr(model, "config"):
            note = "The model returns no loss, and what its loss takes is unknown."
            forecast = replace(forecast, notes=(note,), left_out=("the loss",))
    # No event has the bytes that are unpacked or quantised on the way.
    is_whole = setting.device == "cuda" and not (setting.quantized or setting.kv)
    reserved = max(allocator.reserved, forecast.total) if is_whole else 0
    notes = (*forecast.notes, *inputs.notes)
    forecast = replace(forecast, notes=notes, reserved=reserved)
    if inputs.notes:
        forecast = _activations_as(forecast, "estimate")
    if not waiting:
        return forecast
    outer = {
        name: kind
        for name, kind in waiting.items()
        if not any(name.startswith(f"{other}.") for other in waiting)
    }
    names = ", ".join(f"{plain(name)} ({plain(kind)})" for name, kind in outer.items())
    get, their = ("get", "their") if len(outer) > 1 else ("gets", "its")
    counted = f"{their} weights are counted, {their} activations are not"
    note = f"{names} {get} no input in this forecast: {counted}."
    forecast = _activations_as(forecast, "lower")
    return replace(forecast, notes=(*forecast.notes, note), left_out=tuple(outer))


def _larger(
    model: Any, run: Callable[[], Step], *, checkpointing: bool
) -> tuple[Step, tuple[str, ...]]:
    """Return the larger step of those with and without a cache of keys and values, and a note on it."""
    step = run()
    config: Any = getattr(model, "config", None)
    # With checkpointing, transformers makes no cache.
    if getattr(config, "use_cache", None) is not True or checkpointing:
        return step, ()
    config.use_cache = False
    model.zero_grad()
    uncached = run()
    peaks = [max(one.forward.bytes, one.backward.bytes) for one in (step, uncached)]
    note = (
        "Counted with use_cache=True, as outside a Trainer, which sets it to False and needs less."
    )
    if peaks[1] > peaks[0]:
        step = uncached
        note = "Counted with use_cache=False, as in a Trainer; a loop of your own, with True, needs less."
    return step, (note,) if abs(peaks[0] - peaks[1]) > max(peaks) / 200 else ()


def _activations_as(forecast: Forecast, bound: Bound) -> Forecast:
    names = {"gradients", "activations"} if bound == "lower" else {"activations"}
    parts = tuple(
        replace(part, bound=bound) if part.name in names else part for part in forecast.parts
    )
    return replace(forecast, parts=parts)


def _whole(name: str, size: int, source: str, bound: Bound = "exact") -> ForecastPart:
    """Return a part of constant size."""
    return ForecastPart(name, size, size, source, bound)


def _of_training(held: Forecast, step: Step, needed: Needs, states: int) -> Forecast:
    """Return the forecast of a training step; `states` are the bytes of the blocks that they get."""
    # Above weights, buffers and states: everything, and the gradients in it.
    above = {
        "forward": step.forward,
        "backward": step.backward,
        "optimizer": (step.gradients + step.batches + needed.temporaries, step.gradients),
    }
    moment = max(above, key=lambda name: above[name][0])
    most, gradients = above[moment]
    by_rule = moment == "optimizer"
    parts = (
        ForecastPart("optimizer", states, states + needed.paged, FROM_A_RULE, "exact"),
        ForecastPart("gradients", gradients, step.gradients, FROM_SHAPES, "exact"),
        ForecastPart(
            "activations",
            most - gradients,
            max(total - complete for total, complete in above.values()),
            FROM_A_RULE if by_rule else FROM_A_DRY_RUN,
            "upper" if by_rule else _bound(held, step),
        ),
    )
    saved = f"{format_bytes(step.kept)} are saved by the forward pass for the backward pass."
    notes = [saved, _assumption(step)]
    if needed.paged:
        notes.append(
            f"{format_bytes(needed.paged)} of optimizer states are paged: they move to the host's memory "
            "when the device is full."
        )
    base = sum(part.bytes for part in held.parts) + states
    peaks = {name: base + total for name, (total, _) in above.items()}
    return _completed(held, parts, moment, peaks, tuple(notes))


def _of_inference(held: Forecast, run: Inference) -> Forecast:
    cache, rest = run.kv_cache, run.peak - run.kv_cache
    if held.setting.kv:
        bits = round(8 * held.bytes("weights") / max(1, held.parameters))
        usual = 16 if held.setting.quantized else max(1, bits)
        cache = min(cache, cache * KV_BITS[held.setting.kv] // usual)
    parts = (
        _whole("kv_cache", cache, FROM_A_DRY_RUN, "estimate" if held.setting.kv else "exact"),
        _whole("activations", rest, FROM_A_DRY_RUN, _bound(held, run)),
    )
    total = sum(part.bytes for part in (*held.parts, *parts))
    return _completed(held, parts, "forward", {"forward": total}, (_assumption(run),))


def _assumption(run: Step | Inference) -> str:
    if run.routes:
        return (
            "Each token is counted once per expert that it is routed to, and all experts are computed at "
            "once, as transformers does by default (grouped_mm)."
        )
    if run.assumed:
        return (
            "Where the model's code goes by values that only weights give, such as the experts of each "
            "token, tokens are spread evenly and masks are full."
        )
    return ""


def _bound(held: Forecast, run: Step | Inference) -> Bound:
    """Return how sure a dry run's figure is: kernels of a GPU, and of experts, take more."""
    is_sure = held.setting.device == "cpu" and not held.setting.quantized
    return "exact" if is_sure and not _assumption(run) else "estimate"


def _completed(
    held: Forecast,
    parts: tuple[ForecastPart, ...],
    moment: str,
    peaks: dict[str, int],
    notes: tuple[str, ...],
) -> Forecast:
    parts = tuple(part for part in (*held.parts, *parts) if part.full)
    held = replace(held, parts=parts, total=peaks[moment], moment=moment, peaks=peaks)
    return replace(held, notes=tuple(filter(None, notes)))


def weights_type(precision: str, *, training: bool, quantized: bool = False) -> torch.dtype | None:
    """Return the type of weights in a precision; None for the type that they have."""
    if not precision:
        return torch.bfloat16 if quantized else None
    half = HALVES.get(precision.removeprefix("pure "))
    is_autocast = training and not quantized and not precision.startswith("pure")
    return torch.float32 if half is None or is_autocast else half


def own_precision(model: Any) -> str:
    """Return the precision of a model's weights, as in a `Setting`."""
    types = {torch.bfloat16: "pure bf16", torch.float16: "pure fp16"}
    return types.get(main_type(model), "fp32")


def precision_of_accelerate() -> str:
    """Return the autocast of a training that accelerate prepared, or fp32."""
    state = getattr(sys.modules.get("accelerate.state"), "AcceleratorState", None)
    precision = str(getattr(state, "_shared_state", {}).get("_mixed_precision", "no"))
    return precision if precision in HALVES else "fp32"
