"""Real steps at a forecast's size, with random weights, to check the forecast.

A new process makes them, so that they touch nothing of the user's and leave nothing behind.
"""

from __future__ import annotations

import json
import math
import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict
from functools import partial, partialmethod
from importlib.util import find_spec
from subprocess import PIPE, Popen, TimeoutExpired
from typing import Any, Final

import torch
import transformers
from torch.nn import Linear, Parameter

from hfmem_widget.errors import OptionError
from hfmem_widget.features.fit.dry_run import cast_to_float, generation_options, loss_of
from hfmem_widget.features.fit.inputs import Batch, batch_for
from hfmem_widget.features.fit.live_bytes import LiveBytes
from hfmem_widget.features.fit.model import Tried
from hfmem_widget.features.fit.on_meta import enable_checkpointing, from_config, quantised
from hfmem_widget.features.fit.one_rank import WAYS, OneRank
from hfmem_widget.features.fit.optimizers import Kind, kind_named
from hfmem_widget.features.fit.predict import HALVES, as_trained, weights_type
from hfmem_widget.features.fit.room import rooms
from hfmem_widget.features.fit.setting import Setting, errors_as
from hfmem_widget.sources import loaded_allocator
from hfmem_widget.sources.allocator import reading_of
from hfmem_widget.text import plain

TIMED: Final = 3  # steps whose median is returned, after two others
ENOUGH: Final = 10.0  # seconds after which no further step is timed

_NUMBERS: Final = {"momentum": 0.9, "weight_decay": 0.01, "beta2_decay": -0.8}
"""The usual values of options that are numbers, of which a `Kind` knows whether they are 0."""

_OUT_OF_MEMORY: Final = re.compile("out of memory|not enough memory|allocate memory|ALLOC_FAILED")
# The code of a process that the kernel has killed, for example for the host's memory.
_KILLED: Final = -9


def tried_step(
    model_or_config: Any,
    setting: Setting,
    optimizer: Kind | None = None,
    *,
    seconds: float = 120.0,
    progress: Callable[[str], None] = lambda _: None,
) -> Tried:
    """Return the peak and the duration of real steps of a setting, or raise OptionError.

    A new process makes them, with a new model, on the current GPU, or on the host, where tensors are counted.
    Without an `optimizer`, it is the one that the setting names. The process is stopped after `seconds`.
    `progress` is called with a sentence about it, and with "" at the end.
    """
    model, config = model_or_config, getattr(model_or_config, "config", model_or_config)
    kind = optimizer or (kind_named(setting.optimizer) if setting.training else Kind("", {}))
    if unsupported := ", ".join(_unsupported(model, config, setting, kind)):
        raise OptionError(f"a real step cannot be tried with {unsupported}")
    is_up, named = torch.cuda.is_initialized(), getattr(model, "named_parameters", tuple)
    gpu = f"cuda:{torch.cuda.current_device() if is_up else 0}"
    document = {
        "device": gpu if setting.device == "cuda" else "cpu",
        "setting": asdict(setting),
        "optimizer": asdict(kind),
        "kind": type(config).__name__,
        "attention": getattr(config, "_attn_implementation", None),
        "frozen": [name for name, parameter in named() if not parameter.requires_grad],
    }
    with errors_as("a real step cannot be tried: the configuration is not JSON"):
        of_live = {} if model is config else {"architectures": [type(model).__name__]}
        text = json.dumps({**document, "config": config.to_dict() | of_live})
    progress("trying real steps in a new process …")
    try:
        with errors_as("the real step failed"):
            return Tried(**_answer(text, seconds))
    finally:
        progress("")


def _unsupported(model: Any, config: Any, setting: Setting, optimizer: Kind) -> Iterator[str]:
    """Yield reasons why a new process cannot make these steps, in a few words."""
    if setting.kv:
        yield "kv"
    way = setting.shards.partition(":")[0]
    if way and (way not in WAYS or setting.quantized):
        yield f"shards ({plain(' and '.join(filter(None, [way, setting.quantized])))})"
    elif way and find_spec("accelerate") is None:
        yield f"{way}, which needs accelerate"
    kinds = {type(model), type(config)}
    if others := [kind for kind in kinds if getattr(transformers, kind.__name__, None) is not kind]:
        yield f"{plain(others[0].__name__)}, which is not of transformers itself"
    of_bitsandbytes = setting.optimizer if optimizer.bits else ""
    needing = " and ".join(filter(None, [setting.quantized, of_bitsandbytes]))
    if needing and find_spec("bitsandbytes") is None:
        yield f"{needing}, which needs bitsandbytes"
    elif needing and all(room.device == "cpu" for room in rooms()[0]):
        yield f"{needing}, which needs a GPU"


def _answer(document: str, seconds: float) -> dict[str, Any]:
    """Return the answer of a new process, which imports the same modules and is not followed by a watch."""
    environment = {name: each for name, each in os.environ.items() if not name.startswith("HFMEM_")}
    # The current folder comes last: its files may have the names of modules that are not imported so far.
    places = os.pathsep.join([*filter(None, map(str, sys.path)), *["."] * ("" in sys.path)])
    environment |= {"PYTHONPATH": places, "HF_HUB_OFFLINE": "1"}
    with Popen(
        (sys.executable, "-P", "-m", "hfmem_widget.features.fit.trial_process"),
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        text=True,
        errors="replace",
        env=environment,
        start_new_session=True,
    ) as child:
        try:
            output, errors = child.communicate(document, timeout=seconds)
        except BaseException as error:
            with suppress(AttributeError, OSError):  # on Windows, and where it has just ended
                os.killpg(child.pid, -_KILLED)  # its session, and so the processes that it started
            child.kill()
            child.wait()
            if isinstance(error, TimeoutExpired):
                message = f"a real step took longer than {seconds:g} s, and was stopped"
                raise OptionError(message) from None
            raise
    if output:
        answer: dict[str, Any] = json.loads(output)
        if "error" in answer:
            raise OptionError(answer["error"])
        return answer
    *_, why = ("its process ended without an error", *errors.strip().splitlines())
    if child.returncode == _KILLED:
        why = "its process was killed, as where the host's memory runs out"
    raise OptionError(f"the real step failed: {plain(why, 200)}")


def tried(document: dict[str, Any]) -> dict[str, Any]:
    """Make the steps of a document, and return the fields of a `Tried`.

    The optimizer's states exist from the second step on, which is the first that counts.
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
            step = _step_of(document, device)
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


def _step_of(document: dict[str, Any], where: torch.device) -> partial[None]:
    device = where.type
    setting, kind = Setting(**document["setting"]), getattr(transformers, document["kind"])
    config = _config(kind, document["config"], attn_implementation=document["attention"])
    training, how = setting.training, setting.quantized
    dtype = weights_type(setting.precision, training=training, quantized=bool(how)) or torch.float32
    ghost = from_config(config, dtype, for_training=training)
    batch = batch_for(
        ghost, setting.batch, setting.length, with_labels=training, image=setting.image
    )
    rank = OneRank(setting, where) if setting.shards else None
    model = _built(ghost, dtype, rank.building() if rank else torch.device(device), how, device)
    for name, parameter in model.named_parameters():
        if name in document["frozen"]:
            parameter.requires_grad_(requires_grad=False)
    with rank.building() if rank else nullcontext():
        model = as_trained(model, setting, device)
    model.train(training)
    if setting.checkpointing:
        enable_checkpointing(model, {"use_reentrant": False})
    model = rank.wrapped(model) if rank else model
    optimizer = _optimizer(Kind(**document["optimizer"]), model) if training else None
    return partial(_step, model, optimizer, batch, setting, rank)


def _config(kind: Any, values: dict[str, Any], **more: Any) -> Any:
    """Return a configuration, even if its values contradict each other, such as layers and their types."""
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


def _step(model: Any, optimizer: Any, batch: Batch, setting: Setting, rank: OneRank | None) -> None:
    device = setting.device
    if optimizer is None:
        with torch.no_grad():
            model(**real_batch(batch, device), **generation_options(model))
        return
    # Accelerate has prepared the model of a rank for its precision.
    autocast = None if rank else HALVES.get(setting.precision)
    # A Trainer also keeps all batches on the device until the step is over.
    batches = [real_batch(batch, device) for _ in range(setting.accumulation)]
    for given in batches:
        is_last = given is batches[-1]
        with rank.accumulating(model, is_last=is_last) if rank else nullcontext():
            with torch.autocast(device, autocast, enabled=autocast is not None):
                outputs = model(**given)
            if autocast is not None:
                cast_to_float(outputs)
            loss = loss_of(outputs)
            del outputs
            loss.backward()
            del loss
    optimizer.step()
    optimizer.zero_grad()


def _built(
    ghost: Any, dtype: torch.dtype, place: AbstractContextManager[object], how: str, device: str
) -> Any:
    """Return a model with random weights; quantised layers are made one after the other."""
    init = Linear.__init__
    if how:
        Linear.__init__ = partialmethod(init, device="meta")
    with place:
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
    """Return a layer of bitsandbytes of the same shape, with random weights."""
    from bitsandbytes import nn

    shape = layer.weight.shape  # a Conv1D's is transposed
    shape = shape[::-1] if isinstance(layer, Linear) else shape
    if how == "int8":
        quantised_layer = nn.Linear8bitLt(*shape, bias=False, has_fp16_weights=False, threshold=6.0)
    else:
        options = {"compute_dtype": dtype, "compress_statistics": how == "nf4-double"}
        quantised_layer = nn.Linear4bit(*shape, bias=False, quant_type="nf4", **options)
    quantised_layer.weight.data = quantised_layer.weight.data.to(dtype)
    if layer.bias is not None:
        quantised_layer.bias = Parameter(torch.zeros(shape[1], dtype=dtype))
    return quantised_layer


def _optimizer(kind: Kind, model: Any) -> Any:
    trained = [one for one in model.parameters() if one.requires_grad]
    if (
        kind.name == "Adafactor" and "beta2_decay" not in kind.options
    ):  # transformers', not PyTorch's
        beta = {"beta1": 0.9} if kind.options.get("beta1") else {}
        usual = {"lr": 1e-3, "scale_parameter": False, "relative_step": False}
        return transformers.Adafactor(trained, **usual, **beta)
    if not kind.bits:
        given = {name: is_on for name, is_on in kind.options.items() if is_on is not None}
        numbers = {name: _NUMBERS[name] * given[name] for name in _NUMBERS.keys() & given.keys()}
        return getattr(torch.optim, kind.name)(trained, **{**given, **numbers})
    from bitsandbytes import optim

    manager = optim.GlobalOptimManager.get_instance()
    for module in model.modules() if kind.bits == 8 else ():
        if isinstance(module, torch.nn.Embedding):
            manager.register_module_override(module, "weight", {"optim_bits": 32})
    options = {"is_paged": True} if kind.paged else {}
    return getattr(optim, kind.base)(trained, optim_bits=kind.bits, **options)


def real_batch(batch: Batch, device: str) -> dict[str, Any]:
    """Return a batch with values; those that are not whole numbers are random."""

    def real(tensor: Any) -> Any:
        if not isinstance(tensor, torch.Tensor):
            return tensor
        if tensor.is_meta:
            return torch.randn(tensor.shape, dtype=tensor.dtype, device=device)
        return tensor.to(device, copy=True)

    return {name: real(one) for name, one in batch.given.items()}
