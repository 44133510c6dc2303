"""Makes real steps with random weights, in the process that `trial_process` begins."""

from __future__ import annotations

import math
import re
import statistics
import time
from contextlib import nullcontext
from functools import partial, partialmethod
from typing import Any, Final

import torch
import transformers
from torch.nn import Linear, Parameter

from hfmem_widget.features.fit.dry_run import cast_to_float, generation_options, loss_of
from hfmem_widget.features.fit.inputs import Batch, batch_for
from hfmem_widget.features.fit.live_bytes import LiveBytes
from hfmem_widget.features.fit.on_meta import from_config, quantised
from hfmem_widget.features.fit.optimizers import OF_TORCH, kind_named
from hfmem_widget.features.fit.predict import HALVES, as_trained, weights_type
from hfmem_widget.features.fit.setting import Setting
from hfmem_widget.sources import loaded_allocator
from hfmem_widget.sources.allocator import reading_of

TIMED: Final = 3  # steps of which the median is told, after two others
ENOUGH: Final = 10.0  # seconds after which no further step is timed

_OUT_OF_MEMORY: Final = re.compile("out of memory|not enough memory|allocate memory|ALLOC_FAILED")


def tried(document: dict[str, Any]) -> dict[str, Any]:
    """Return what a step of `trial`'s document takes, as a `Tried` has it.

    The optimizer's states are there from the second step on, which is the first that counts.
    """
    device = torch.device(document["device"])
    is_on_gpu, live = device.type == "cuda", LiveBytes(device="cpu")
    allocator = loaded_allocator()

    def seconds() -> float:
        began = time.perf_counter()
        step()
        if is_on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter() - began

    times: list[float] = []
    try:
        if is_on_gpu:
            torch.cuda.set_device(device)
        with nullcontext() if is_on_gpu else live:
            step = _step_of(document, device.type)
            seconds()
            live.restart()
            if is_on_gpu:
                allocator.reset_peak(device.index)
            seconds()
        while len(times) < TIMED and sum(times) < ENOUGH:
            times.append(seconds())
    except Exception as error:
        if not isinstance(error, MemoryError) and not _OUT_OF_MEMORY.search(str(error)):
            raise
        times = [math.nan]
    peak = live.peak
    if is_on_gpu and torch.cuda.is_initialized():
        peak = int(reading_of(allocator.stats(device.index)).peak)
    return {"peak": peak, "seconds": statistics.median(times), "device": document["device"]}


def _step_of(document: dict[str, Any], device: str) -> partial[None]:
    """Build the model, and return what makes a step."""
    setting, kind = Setting(**document["setting"]), getattr(transformers, document["kind"])
    config = _config(kind, document["config"], attn_implementation=document["attention"])
    training, how = setting.training, setting.quantized
    dtype = weights_type(setting.precision, training=training, quantized=bool(how)) or torch.float32
    ghost = from_config(config, dtype, for_training=training)
    batch = batch_for(
        ghost, setting.batch, setting.length, with_labels=training, image=setting.image
    )
    model = _built(ghost, dtype, device, how)
    for name, parameter in model.named_parameters():
        if name in document["frozen"]:
            parameter.requires_grad_(requires_grad=False)
    model = as_trained(model, setting, device)
    model.train(training)
    if setting.checkpointing:
        # Renamed in transformers 5.
        enable: Any = getattr(model, "activation_checkpointing_enable", None)
        (enable or model.gradient_checkpointing_enable)({"use_reentrant": False})
    optimizer = _optimizer(setting.optimizer, model) if training else None
    return partial(_step, model, optimizer, batch, setting, device)


def _config(kind: Any, values: dict[str, Any], **more: Any) -> Any:
    """Return a configuration, though its values may not go together, such as layers and their types."""
    try:
        return kind.from_dict(values, **more)
    except Exception:  # noqa: BLE001  (transformers 5 has its own kinds of errors)
        known, parts = transformers.CONFIG_MAPPING, dict[str, Any]()
        for name, value in values.items():
            if isinstance(value, dict):
                type_of_part = value.get("model_type")
                is_part = type_of_part in known
                parts[name] = _config(known[type_of_part], value) if is_part else value
        config = kind.from_dict(parts, **more)
        for name in values.keys() - parts.keys() - {"dtype"}:
            setattr(config, name, values[name])
        return config


def _step(model: Any, optimizer: Any, batch: Batch, setting: Setting, device: str) -> None:
    if optimizer is None:
        with torch.no_grad():
            model(**real_batch(batch, device), **generation_options(model))
        return
    autocast = HALVES.get(setting.precision)
    for _ in range(setting.accumulation):
        with torch.autocast(device, autocast, enabled=autocast is not None):
            outputs = model(**real_batch(batch, device))
        if autocast is not None:
            cast_to_float(outputs)
        loss = loss_of(outputs)
        del outputs
        loss.backward()
        del loss
    optimizer.step()
    optimizer.zero_grad()


def _built(ghost: Any, dtype: torch.dtype, device: str, how: str) -> Any:
    """Return a model with random weights; layers that are quantised are made one after the other."""
    init = Linear.__init__
    if how:
        Linear.__init__ = partialmethod(init, device="meta")
    with torch.device(device):
        model = type(ghost)._from_config(ghost.config, dtype=dtype)  # noqa: SLF001  (what AutoModel.from_config calls)
    if not how:
        return model
    Linear.__init__ = init
    chosen = set(map(id, quantised(model)))
    for module in list(model.modules()):
        for name, layer in list(module.named_children()):
            if id(getattr(layer, "weight", None)) in chosen:
                setattr(module, name, _in_few_bits(layer, dtype, how).to(device))  # which quantises
    for module in model.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            if weight.is_meta:
                values = torch.randn(weight.shape, dtype=weight.dtype, device=device)
                setattr(module, name, Parameter(values / 50))
    setattr(model, f"is_loaded_in_{8 if how == 'int8' else 4}bit", True)  # which peft looks at
    return model


def _in_few_bits(layer: Any, dtype: torch.dtype, how: str) -> Any:
    """Return a layer of bitsandbytes that has the shape of another, with its own random weights."""
    from bitsandbytes import nn

    shape = layer.weight.shape  # that of a Conv1D lies the other way round
    shape = shape[::-1] if isinstance(layer, Linear) else shape
    if how == "int8":
        made = nn.Linear8bitLt(*shape, bias=False, has_fp16_weights=False, threshold=6.0)
    else:
        options = {"compute_dtype": dtype, "compress_statistics": how == "nf4-double"}
        made = nn.Linear4bit(*shape, bias=False, quant_type="nf4", **options)
    made.weight.data = made.weight.data.to(dtype)
    if layer.bias is not None:
        made.bias = Parameter(torch.zeros(shape[1], dtype=dtype))
    return made


def _optimizer(name: str, model: Any) -> Any:
    """Return an optimizer as a Trainer makes it."""
    trained = [one for one in model.parameters() if one.requires_grad]
    if name == "adafactor":
        return transformers.Adafactor(trained, lr=1e-3, scale_parameter=False, relative_step=False)
    kind = kind_named(name)
    if name in OF_TORCH:
        options = {"fused": True} if kind.options["fused"] else {}
        return getattr(torch.optim, kind.name)(trained, **options)
    from bitsandbytes import optim

    manager = optim.GlobalOptimManager.get_instance()
    for module in model.modules() if kind.bits == 8 else ():
        if isinstance(module, torch.nn.Embedding):
            manager.register_module_override(module, "weight", {"optim_bits": 32})
    options = {"is_paged": True} if kind.paged else {}
    return getattr(optim, kind.name)(trained, optim_bits=kind.bits, **options)


def real_batch(batch: Batch, device: str) -> dict[str, Any]:
    """Return a batch with values, random where they are not whole numbers."""

    def real(tensor: Any) -> Any:
        if not isinstance(tensor, torch.Tensor):
            return tensor
        if tensor.is_meta:
            return torch.randn(tensor.shape, dtype=tensor.dtype, device=device)
        return tensor.to(device, copy=True)

    return {name: real(one) for name, one in batch.given.items()}
