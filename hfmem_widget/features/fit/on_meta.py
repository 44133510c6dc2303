"""Models on the meta device: every shape and type, and no memory.

They are made from a configuration, or from a live model, whose weights are neither copied nor touched, and
whose hooks do not run. The sizes of bitsandbytes' quantised weights follow from rules on shapes.
"""

from __future__ import annotations

import copy
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode

from hfmem_widget.errors import OptionError
from hfmem_widget.features.fit.dry_run import undisturbed
from hfmem_widget.features.fit.liger import without_wrappers
from hfmem_widget.features.fit.live_bytes import storage_id
from hfmem_widget.features.fit.setting import errors_as
from hfmem_widget.text import plain

LORA_RANK_MOST = 4096

BLOCK: Final = 64  # weights that share a scale in 4 bit
_CODE: Final = 16 * 4  # bytes of the table of 4-bit values


def from_config(config: Any, dtype: torch.dtype, *, for_training: bool) -> Any:
    """Return the model that a configuration of transformers describes, or raise OptionError.

    A configuration that names no class gets a language model head where there is one, whatever its inputs.
    """
    kind = _class_of(config, for_training=for_training)
    config = copy.deepcopy(config)
    if getattr(config, "_attn_implementation", None) not in {None, "eager", "sdpa"}:
        config._attn_implementation = "sdpa"  # noqa: SLF001  (as transformers keeps it); its kernels need no package
    sentence = f"transformers cannot build {kind.__name__} from this configuration"
    with errors_as(sentence), undisturbed(), torch.device("meta"):
        model = kind._from_config(config, dtype=dtype)  # noqa: SLF001  (what AutoModel.from_config calls)
        for module in model.modules():
            # `torch.Tensor(size)`, which some use, ignores the default device.
            for name, parameter in module.named_parameters(recurse=False):
                if not parameter.is_meta:
                    setattr(module, name, _ghost(parameter))
    return model


def enable_checkpointing(model: Any, *options: Any) -> None:
    """Turn on a transformers model's checkpointing, which transformers 5 has renamed."""
    enable = getattr(model, "activation_checkpointing_enable", None)
    (enable or model.gradient_checkpointing_enable)(*options)


def config_of(fields: Mapping[str, Any]) -> Any:
    """Return a configuration of transformers from its fields; any exception if it has no such type."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return CONFIG_MAPPING[fields["model_type"]].from_dict(fields)


def dtype_of(name: str) -> torch.dtype:
    """Return torch's type of this name; any exception if there is none."""
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"no type {name}")
    return dtype


def uncompiled(model: Any) -> Any:
    """Return the model within the wrapper of `torch.compile`, which keeps `forward` in its own fields."""
    return getattr(model, "_modules", {}).get("_orig_mod") or model


def copy_of(model: Any) -> Any:
    """Return a copy of a live model on the meta device, or raise OptionError."""
    memo: dict[int, Any] = {}
    for tensor in chain(model.parameters(), model.buffers()):
        memo.setdefault(id(tensor), _ghost(tensor))
    for module in model.modules():
        for name, value in vars(module).items():
            if name.endswith(("_hooks", "_hooks_with_kwargs", "_hooks_always_called")):
                memo[id(value)] = OrderedDict()
    sentence = f"{type(model).__name__} cannot be copied to PyTorch's meta device"
    with errors_as(sentence), undisturbed(), _Ghosts():
        ghost = copy.deepcopy(model, memo)
    for module in ghost.modules():
        without_wrappers(module)
    return ghost


def with_lora(
    model: Any, rank: int, targets: Iterable[str], device: str = "meta", *, dropout: float = 0.0
) -> Any:
    """Return a model with LoRA adapters in the named layers, or in peft's choice; all else is frozen."""
    if not 1 <= rank <= LORA_RANK_MOST:
        raise OptionError(f"the LoRA rank must be 1 to {LORA_RANK_MOST}, not {rank}")
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise OptionError("a forecast with LoRA needs peft: pip install peft") from None
    sentence = f"peft cannot add LoRA to {type(model).__name__}"
    with errors_as(sentence), undisturbed(), torch.device(device):
        layers = list(targets) or None
        config = LoraConfig(r=rank, target_modules=layers, lora_dropout=dropout)
        return get_peft_model(model, config)


def storages(tensors: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield the first tensor of each storage: tied weights once."""
    seen: set[int] = set()
    for tensor in tensors:
        key = storage_id(tensor)
        if key not in seen:
            seen.add(key)
            yield tensor


def main_type(model: Any) -> torch.dtype:
    """Return the type of most of a model's weights."""
    sizes: Counter[torch.dtype] = Counter()
    for weight in storages(model.parameters()):
        sizes[weight.dtype] += weight.numel()
    return max(sizes, key=lambda dtype: sizes[dtype], default=torch.float32)


def _class_of(config: Any, *, for_training: bool) -> Any:
    import transformers

    named = getattr(config, "architectures", None)
    for name in named if isinstance(named, list | tuple) else ():
        kind = getattr(transformers, str(name), None)
        if isinstance(kind, type) and hasattr(kind, "_from_config"):
            return kind
    names = ["CAUSAL_LM", *(["MASKED_LM"] if for_training else []), "CTC"]
    if getattr(config, "is_encoder_decoder", False):
        names[:0] = ["SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ"]
    # A model of several parts may also be in the mapping for its text part alone.
    names.insert(0, "IMAGE_TEXT_TO_TEXT")
    for mapping in (
        *(getattr(transformers, f"MODEL_FOR_{name}_MAPPING", {}) for name in names),
        transformers.MODEL_MAPPING,
    ):
        if type(config) in mapping:
            kinds = mapping[type(config)]
            return kinds[0] if isinstance(kinds, tuple) else kinds
    kind = plain(type(config).__name__)
    message = f"transformers has no model for {kind}; its configuration should name one in 'architectures'"
    raise OptionError(message)


def _ghost(tensor: torch.Tensor) -> torch.Tensor:
    # Detached, since a parameter's clone on another device would be part of its graph.
    ghost = torch.empty_like(tensor.detach(), device="meta")
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(ghost, requires_grad=tensor.requires_grad)
    return ghost


class _Ghosts(TorchFunctionMode):  # type: ignore[misc]  # torch is not followed, so its classes are Any
    """Copies tensors to the meta device, wherever an object keeps them."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.Tensor.__deepcopy__:
            tensor, memo = args
            ghost = memo[id(tensor)] = _ghost(tensor)
            return ghost
        return func(*args, **(kwargs or {}))


def _nf4_double(numel: int) -> tuple[int, ...]:
    scales = math.ceil(numel / BLOCK)
    # Each scale of 256 scales, which have a table and an offset.
    of_scales = math.ceil(scales / 256) * 4
    return (math.ceil(numel / 2), scales, of_scales, _CODE, 256 * 4, 4)


RULES: Mapping[str, Callable[[int, int], tuple[int, ...]]] = {
    "int8": lambda rows, numel: (numel, rows * 4),
    "nf4": lambda _, numel: (math.ceil(numel / 2), math.ceil(numel / BLOCK) * 4, _CODE),
    "nf4-double": lambda _, numel: _nf4_double(numel),
}
"""The bytes of each tensor of a quantised matrix, by its rows and elements."""


def quantized_bytes(model: Any, how: str) -> tuple[dict[int, tuple[int, ...]], int]:
    """Return the bytes of each quantised weight's tensors, by its identity, and the largest one's elements.

    The largest is unpacked while it is used.
    """
    weights = list(quantised(model))
    sizes = {id(weight): RULES[how](weight.shape[0], weight.numel()) for weight in weights}
    return sizes, max((weight.numel() for weight in weights), default=0)


def quantised(model: Any) -> Iterator[Any]:
    """Yield the weights of linear layers except the head and the last one, as transformers chooses them."""
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    last = next(reversed(list(model.parameters())), None)
    for module in model.modules():
        is_last = any(own is last for own in module.parameters(recurse=False))
        if type(module).__name__ in {"Linear", "Conv1D"} and module is not head and not is_last:
            yield module.weight
