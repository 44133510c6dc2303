"""One training step, or one forward pass, on the meta device: what is alive at each moment of it.

Nothing is computed and nothing allocated. The model's own code runs, so that what is counted is what it
makes, in its order, with its lifetimes.
"""

from __future__ import annotations

import inspect
import logging
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from hfmem_widget.features.fit.as_on_device import AsOnDevice
from hfmem_widget.features.fit.backward import run_backward
from hfmem_widget.features.fit.checkpointing import checkpoint_layers
from hfmem_widget.features.fit.live_bytes import LiveBytes

GRANULARITY = {"cuda": 512, "cpu": 1}
"""What the allocator of a device rounds up to, in bytes."""

_one_at_a_time = threading.RLock()

MakeInputs = Callable[[], Mapping[str, Any]]
"""Makes a batch on the meta device."""


@dataclass(frozen=True, slots=True)
class Pass:
    """The highest that a pass through the model came to, above weights, buffers and optimizer states.

    Attributes
    ----------
    bytes : int
        At its peak, gradients included.
    gradients : int
        Of these, complete gradients.
    """

    bytes: int
    gradients: int


@dataclass(frozen=True, slots=True)
class Step:
    """What a training step takes above weights, buffers and optimizer states.

    Attributes
    ----------
    forward, backward : Pass
    kept : int
        Bytes alive between the two: what was saved for the backward pass, and the batch.
    gradients : int
        Bytes of all of them, when they are complete.
    routes : bool
        Whether tokens went to experts.
    """

    forward: Pass
    backward: Pass
    kept: int
    gradients: int
    routes: bool = False


@dataclass(frozen=True, slots=True)
class Inference:
    """What a forward pass takes above weights and buffers.

    Attributes
    ----------
    peak : int
        Bytes alive at its highest, the cache included.
    kv_cache : int
        Bytes of keys and values that are kept for the tokens to come.
    routes : bool
        Whether tokens went to experts.
    """

    peak: int
    kv_cache: int
    routes: bool = False


def training_step(
    model: Any,
    inputs: MakeInputs,
    *,
    device: str = "cuda",
    autocast: torch.dtype | None = None,
    checkpointing: bool = False,
    accumulating: bool = False,
) -> Step:
    """Run one batch forward and backward.

    Parameters
    ----------
    model : torch.nn.Module
        On the meta device. It is changed: its parameters get gradients.
    inputs : callable
    device : {"cuda", "cpu"}
    autocast : torch.dtype, optional
    checkpointing : bool
    accumulating : bool
        Whether gradients of a batch before are there.
    """
    live = LiveBytes(GRANULARITY[device])
    live.leave_out(_held(model))
    counted: set[int] = set()

    def accumulated(leaf: torch.Tensor) -> None:
        if (
            isinstance(leaf, torch.nn.Parameter)
            and id(leaf) not in counted
            and leaf.grad is not None
        ):
            counted.add(id(leaf))
            live.mark(leaf.grad)

    model.train()
    if checkpointing:
        checkpoint_layers(model, accumulated)
    mode = AsOnDevice(device, autocast)
    with undisturbed(), live, mode:
        if accumulating:
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.grad = torch.empty_like(parameter)
                    accumulated(parameter)
        live.restart()
        batch = dict(inputs())
        outputs = model(**batch)
        del batch
        mode.leave_autocast()
        if autocast is not None:
            outputs = _outputs_in_full(outputs)
        roots: list[tuple[torch.Tensor, torch.Tensor | None]] = [(_loss(outputs), None)]
        del outputs
        kept = live.now - live.marked
        forward = Pass(live.peak, live.marked_at_peak)
        live.restart()
        run_backward(roots, accumulated)
        backward = Pass(live.peak, live.marked_at_peak)
    return Step(forward, backward, kept, live.marked, mode.routes)


def inference(model: Any, inputs: MakeInputs, *, device: str = "cuda") -> Inference:
    """Run one batch forward, as the first step of `generate` does where the model can.

    Parameters
    ----------
    model : torch.nn.Module
        On the meta device.
    """
    live = LiveBytes(GRANULARITY[device])
    live.leave_out(_held(model))
    model.eval()
    takes = inspect.signature(model.forward).parameters
    extra: dict[str, Any] = {}
    if "use_cache" in takes:
        extra["use_cache"] = True
    if "logits_to_keep" in takes:
        extra["logits_to_keep"] = 1
    mode = AsOnDevice(device)
    with undisturbed(), torch.no_grad(), live, mode:
        batch = dict(inputs())
        outputs = model(**batch, **extra)
        cache = sum(
            live.rounded(size)
            for size in _storages(getattr(outputs, "past_key_values", None)).values()
        )
        return Inference(live.peak, cache, mode.routes)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Keep the user's random numbers as they are, and their log free of what is not about their model."""
    logger = logging.getLogger("transformers")
    # Else of two at a time the one that ends last would put back what the other had put there.
    with _one_at_a_time:
        level, is_capturing = logger.level, torch.cuda.is_current_stream_capturing
        autocast = torch.autocast
        logger.setLevel(logging.ERROR)
        # transformers asks it about every mask, and where CUDA is not up asking initialises the driver.
        torch.cuda.is_current_stream_capturing = lambda: (
            torch.cuda.is_initialized() and is_capturing()
        )
        torch.autocast = _AutocastButOnMeta
        try:
            # Only the host's: asking for the state of a GPU's would initialise CUDA.
            with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        finally:
            torch.autocast = autocast
            torch.cuda.is_current_stream_capturing = is_capturing
            logger.setLevel(level)


class _AutocastButOnMeta(torch.amp.autocast):  # type: ignore[misc]  # torch is not followed, so its classes are Any
    """Autocast as ever, and nothing on the meta device, which PyTorch refuses.

    transformers 4 turns it off for the angles of rotary embeddings, by the type of the device they are on;
    transformers 5 leaves the meta device out by itself.
    """

    def __new__(cls, device_type: str, *args: Any, **kwargs: Any) -> Any:
        if device_type == "meta":
            return nullcontext()
        return torch.amp.autocast(device_type, *args, **kwargs)


def _held(model: Any) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]


def _outputs_in_full(outputs: Any) -> Any:
    """Cast what the model returns to float32, as accelerate does around autocast."""
    if isinstance(outputs, MutableMapping):
        for name, value in outputs.items():
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                outputs[name] = value.float()
    return outputs


def _loss(outputs: Any) -> torch.Tensor:
    loss = getattr(outputs, "loss", None)
    if loss is not None:
        return loss
    first = next(
        leaf
        for leaf in tree_leaves(dict(outputs) if isinstance(outputs, Mapping) else outputs)
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
    )
    return first.float().mean()


def _storages(value: Any, depth: int = 4) -> dict[int, int]:
    """Return the bytes of all storages within a cache of keys and values, by identity."""
    if isinstance(value, torch.Tensor):
        storage = value.untyped_storage()
        return {storage._cdata: storage.nbytes()}  # noqa: SLF001  (the identity of a storage is nowhere public)
    if isinstance(value, Mapping):
        within: Any = value.values()
    elif isinstance(value, list | tuple):
        within = value
    else:
        within = vars(value).values() if hasattr(value, "__dict__") else ()
    found: dict[int, int] = {}
    if depth:
        for one in within:
            found |= _storages(one, depth - 1)
    return found
