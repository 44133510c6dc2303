"""The shape of a batch, from what a model is called with, and nothing that waits for a device."""

import inspect
import sys
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hfmem_widget.guard import raised_by_handler
from hfmem_widget.monitor.process import process_state
from hfmem_widget.sources.storages import sizes_of

SEQUENCES = ("input_ids", "inputs_embeds", "input_features", "input_values")
"""Arguments of transformers' models whose second dimension is a length."""

MOST_SUMMED = 2**20
"""The most elements of a mask that is summed, which takes less than a millisecond."""

SAMPLES_ONLY = ("pixel_values", "images", "x")

OF_THE_STEP = "num_items_in_batch"
"""What a Trainer adds to a batch; for replicas it has an item for each."""

MOST_SEEN = 8  # models whose batches are kept

_WRAPPED = {"module", "_orig_mod"}
"""What DistributedDataParallel and the like, and what torch.compile call the model that they wrap."""


@dataclass(frozen=True, slots=True)
class SeenBatch:
    """What a model was called with: shapes and types, and no tensor."""

    model: weakref.ref[Any]
    given: Mapping[str, Any]  # (shape, dtype) or a bool, by argument of its ``forward``
    rows: int  # 0 where it is not made of any
    length: int  # in tokens; 0 of images and sounds
    options: Mapping[str, Any] = field(default_factory=dict)
    """What else a call of ``generate`` was asked for; {} of other calls."""
    autocast: str = ""
    """The type of the autocast around the call, bf16 or fp16; empty without one of them."""


class SeenBatches(dict[tuple[int, bool], SeenBatch]):
    """By the model's `id`, and whether it was trained; the newest last."""


def see_batch(
    model: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    counts: Mapping[str, float],
    *,
    is_training: bool,
    options: Mapping[str, Any] | None = None,
) -> None:
    """Keep the shapes of a model's newest batch; `counts` are those of `shape_of`."""
    inner = model
    while wrapped := _WRAPPED & getattr(inner, "_modules", {}).keys():
        inner = inner._modules[wrapped.pop()]  # noqa: SLF001  (no public way)
    named = args[0] if args and isinstance(args[0], Mapping) else {}
    if args and not named:
        parameters = inspect.signature(inner.forward).parameters.values()
        names = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
        named = dict(zip(names, args, strict=False))
    torch, named = sys.modules["torch"], {**named, **kwargs}
    with torch._C.DisableTorchFunction():  # noqa: SLF001  (no public way)
        given = {
            name: value if isinstance(value, bool) else (sizes_of(value), value.dtype)
            for name, value in named.items()
            if isinstance(value, bool) or (sizes_of(value) and hasattr(value, "dtype"))
            if name != OF_THE_STEP
        }
        devices = (value.device.type for value in named.values() if hasattr(value, "device"))
        autocast = _autocast_on(next(devices, "cpu"))
    seen = process_state(SeenBatches)
    seen.pop((id(model), is_training), None)
    rows, length = (int(counts.get(name, 0)) for name in ("samples", "longest"))
    if "input_features" in given:  # the second size may be one of frequencies
        length = 0
    reference = weakref.ref(model)
    batch = SeenBatch(reference, given, rows, length, options or {}, autocast)
    seen[id(model), is_training] = batch
    while len(seen) > MOST_SEEN:
        del seen[next(iter(seen))]


def _autocast_on(device: str) -> str:
    torch = sys.modules["torch"]
    try:
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    except RuntimeError:  # a device that knows no autocast
        return ""
    return {torch.bfloat16: "bf16", torch.float16: "fp16"}.get(dtype, "")


def seen_batch(model: Any = None, *, is_training: bool) -> SeenBatch | None:
    """Return the newest batch of a model or of a model around it; without a model the newest of all."""
    for (_, was_training), seen in reversed(process_state(SeenBatches).items()):
        if was_training is is_training:
            outermost = seen.model()
            modules = () if outermost is None else outermost.modules()
            if model is None or any(module is model for module in modules):
                return seen
    return None


def shape_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, float]:
    """Return what can be counted in a batch, given what a model is called with.

    No tensor is read that is not on the host. These are ``samples``; where it is made of sequences also
    ``longest`` (tokens of the longest) and ``tokens`` (all, padding included); where an attention mask is on
    the host also ``content_tokens`` (without padding). Empty if nothing is recognised, or cannot be read, and
    under `torch.vmap` and the like, where a shape is that of one sample.
    """
    try:
        if sys.modules["torch"]._C._functorch.peek_interpreter_stack() is not None:  # noqa: SLF001  (no public way)
            return {}
        # What `unnoticed` has, and below `sizes_of`, is written out: every step comes here, with cold caches.
        with sys.modules["torch"]._C.DisableTorchFunction():  # noqa: SLF001  (no public way)
            named = _named(args, kwargs) if args else kwargs
            for name in SEQUENCES:
                shape = getattr(named.get(name), "shape", ())
                if not isinstance(shape, tuple) or len(shape) < 2:
                    continue
                if type(shape[0]) is type(shape[1]) is int:
                    samples, longest = float(shape[0]), float(shape[1])
                    counts = {"samples": samples, "longest": longest, "tokens": samples * longest}
                    mask = named.get("attention_mask")
                    if mask is not None and (content := _content_of(mask, shape[:2])) is not None:
                        counts["content_tokens"] = content
                    return counts
            first = next((named[name] for name in SAMPLES_ONLY if sizes_of(named.get(name))), None)
            shape = sizes_of(args[0] if first is None and args else first)
            return {"samples": float(shape[0])} if shape else {}
    except Exception as error:
        # A batch may be an object of the user's, and raise what it likes.
        if raised_by_handler(error):
            raise
        return {}


def _named(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments by name; of positional ones only the first is named."""
    # Integers of two dimensions are ids; other types may be features.
    is_float = getattr(getattr(args[0], "dtype", None), "is_floating_point", True)
    if len(sizes_of(args[0])) == 2 and not is_float:
        return {"input_ids": args[0], **kwargs}
    return args[0] if isinstance(args[0], Mapping) else kwargs


def _content_of(mask: Any, shape: tuple[int, ...]) -> float | None:
    """Return the sum of a mask of this shape; None if it is large, or on a GPU, which would be waited for."""
    torch: Any = sys.modules.get("torch")
    if (
        torch is None
        or type(mask) is not torch.Tensor
        or not mask.is_cpu
        or mask.shape != shape
        or mask.numel() > MOST_SUMMED
    ):
        return None
    # By numpy: faster where it is of bytes. A dispatch mode of the user's is not to see it.
    with torch._C._DisableTorchDispatch():  # noqa: SLF001  (no public way)
        return float(mask.numpy().sum())
