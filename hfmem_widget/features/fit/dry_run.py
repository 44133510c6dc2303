"""One training step or forward pass on the meta device: the bytes of its tensors over time.

Nothing is computed or allocated. The model's own code runs, so that its tensors are counted in their order
and with their lifetimes.
"""

from __future__ import annotations

import inspect
import logging
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from hfmem_widget.features.fit.allocator import Event, ReplayPeak, round_up
from hfmem_widget.features.fit.as_on_device import AsOnDevice
from hfmem_widget.features.fit.backward import checkpoint_layers, run_backward
from hfmem_widget.features.fit.live_bytes import LiveBytes, storage_id
from hfmem_widget.sources.storages import tensors_in

GRANULARITY = {"cuda": 512, "cpu": 1}  # bytes that the allocator of a device rounds up to

_CACHES = {"cache", "past_key_values"}  # the names of keys and values in a model's results

_one_at_a_time = threading.RLock()

MakeInputs = Callable[[], Mapping[str, Any]]
"""Makes a batch on the meta device."""


@dataclass(frozen=True, slots=True)
class Step:
    """The bytes of a training step above weights, buffers and optimizer states; gradients are marked."""

    forward: ReplayPeak
    backward: ReplayPeak
    kept: int  # saved for the backward pass
    gradients: int  # when they are complete
    batches: int = 0  # of the input that a loop keeps until the step is over
    unused: frozenset[int] = frozenset()
    """Identities of parameters that the model's own loss does not reach."""
    routes: bool = False  # whether tokens went to experts
    assumed: bool = False  # whether anything followed from values that only weights would give
    events: tuple[Event, ...] = ()
    has_loss: bool = True  # whether the model computes it


@dataclass(frozen=True, slots=True)
class Inference:
    """The bytes of a forward pass above weights and buffers."""

    peak: int  # the cache included
    kv_cache: int
    routes: bool  # as in a `Step`
    assumed: bool
    events: tuple[Event, ...]
    predictions: int  # the results that a Trainer keeps for metrics
    left: int  # results and cache, after the pass
    largest: int  # the cache's largest tensor


def training_step(
    model: Any,
    inputs: MakeInputs,
    *,
    device: str = "cuda",
    autocast: torch.dtype | None = None,
    checkpointing: bool = False,
    accumulating: bool = False,
    at_once: int = 1,
) -> Step:
    """Run one batch forward and backward through a model on the meta device, which gets gradients.

    With `accumulating`, the gradients of an earlier batch exist from the beginning. `at_once` batches are on
    the device until the step is over.
    """
    counted: set[int] = set()
    reached: set[int] = set()

    def accumulated(leaf: torch.Tensor) -> None:
        reached.add(id(leaf))
        is_new = isinstance(leaf, torch.nn.Parameter) and id(leaf) not in counted
        if is_new and leaf.grad is not None:
            counted.add(id(leaf))
            live.mark(leaf.grad)

    model.train()
    again = checkpoint_layers(model, accumulated) if checkpointing else nullcontext()
    with again, _running(model, device, autocast) as (live, mode):
        if accumulating:
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.grad = torch.empty_like(parameter)
                    accumulated(parameter)
        reached.clear()
        live.restart()
        batches = sum(live.hold(inputs().values()) for _ in range(at_once - 1))
        given = inputs()
        batches += live.hold(given.values())
        outputs = model(**given)
        del given
        # Without a loss of its own, the user's may reach parameters that the first result does not.
        has_loss = _own_loss(outputs) is not None
        mode.leave_autocast()
        if autocast is not None:
            cast_to_float(outputs)
        roots: list[tuple[torch.Tensor, torch.Tensor | None]] = [(loss_of(outputs), None)]
        del outputs
        kept = live.now - live.played().marked
        live.restart()
        live.in_backward = True
        run_backward(roots, accumulated)
        played = live.played()
        routes, assumed, events = mode.routes, live.known.assumed, tuple(live.events)
    unused = frozenset(map(id, model.parameters())) - reached if has_loss else frozenset()
    forward, backward = played.peaks[-2:]
    gradients = played.marked
    return Step(
        forward, backward, kept, gradients, batches, unused, routes, assumed, events, has_loss
    )


@contextmanager
def _running(
    model: Any, device: str, autocast: torch.dtype | None
) -> Iterator[tuple[LiveBytes, AsOnDevice]]:
    """Count the tensors that a model makes on a device, without its weights and buffers."""
    live, mode = LiveBytes(GRANULARITY[device]), AsOnDevice(device, autocast)
    live.leave_out(chain(model.parameters(), model.buffers()))
    with undisturbed(), live, mode:
        yield live, mode


def inference(
    model: Any,
    inputs: MakeInputs,
    *,
    device: str = "cuda",
    options: Mapping[str, Any] | None = None,
    autocast: torch.dtype | None = None,
    is_last: bool = False,
    each: int = 1,
    answer: int = 0,
) -> Inference:
    """Run one batch forward through a model on the meta device, as the first step of `generate` does.

    With `is_last`, run its last step: one token after a batch of all others. `options` are the model's
    other arguments. With an `answer` of so many tokens, the batch is the encoder's and is not counted; the
    decoder makes `each` sequences of every row.
    """
    model.eval()
    source = dict(inputs()) if answer else {}
    options = generation_options(model) if options is None else options
    with torch.no_grad(), _running(model, device, autocast) as (live, mode):
        live.leave_out(source.values())
        if hasattr(model, "generate_with_fallback"):  # Whisper's `generate` copies its input
            source = {name: tensor.clone() for name, tensor in source.items()}
        batch = _encoded(model, source, each, answer) if answer else dict(inputs())
        outputs = model(**batch, **options)
        if is_last:
            (name, cache), *_ = _caches_in(outputs).items()
            tokens = "decoder_input_ids" if answer else "input_ids"
            ids = batch.pop(tokens)
            newest, masks = torch.ones_like(ids[:, :1]), {"attention_mask": torch.ones_like(ids)}
            if not answer:
                usual = {**masks, "position_ids": newest}
                batch = {key: tensor for key, tensor in usual.items() if key in batch}
            batch |= {tokens: newest, name: cache}
            # A real sliding window holds tensors of its own size; here they are views of longer ones.
            for layer in getattr(cache, "layers", ()):
                if getattr(layer, "is_sliding", False):
                    layer.keys, layer.values = layer.keys.clone(), layer.values.clone()
            del outputs, ids, cache
            live.restart()
            outputs = model(**batch, **options)
        mode.leave_autocast()
        if autocast is not None:
            cast_to_float(outputs)
        tensors = tensors_in([*_caches_in(outputs).values()])
        sizes = {storage_id(tensor): tensor.untyped_storage().nbytes() for tensor in tensors}
        return Inference(
            live.peak,
            kv_cache=sum(round_up(size, GRANULARITY[device]) for size in sizes.values()),
            routes=mode.routes,
            assumed=live.known.assumed,
            events=tuple(live.events),
            predictions=sum(tensor.nbytes for tensor in _predictions_in(model, outputs)),
            left=live.now,
            largest=max(sizes.values(), default=0),
        )


def _encoded(model: Any, batch: dict[str, Any], each: int, answer: int) -> dict[str, Any]:
    """Return a decoder's batch in `generate`: the encoder's states, their mask, and the tokens so far."""
    encoder = model.get_encoder()
    names = inspect.signature(encoder.forward).parameters.keys() & batch.keys()
    states = encoder(**{name: batch[name] for name in names}, return_dict=True)
    masks = {key: value for key, value in batch.items() if key == "attention_mask"}
    for named in (masks, states) if each > 1 else ():
        for key in [*named]:
            named[key] = named[key].repeat_interleave(each, dim=0)
    rows = each * batch[model.main_input_name].shape[0]
    ids = torch.ones(rows, answer, dtype=torch.int64, device="meta")
    return {**masks, "encoder_outputs": states, "decoder_input_ids": ids}


def _predictions_in(model: Any, outputs: Any) -> list[torch.Tensor]:
    """Return the results of a pass that a Trainer keeps in an evaluation."""
    config = getattr(model, "config", None)
    dropped = {"loss", *_CACHES, *getattr(config, "keys_to_ignore_at_inference", ())}
    named = outputs.items() if isinstance(outputs, Mapping) else ()
    return tensors_in([each for name, each in named if name not in dropped])


def _caches_in(outputs: Any) -> dict[str, Any]:
    # Not looked up by name: transformers warns of a renamed attribute once, and that is for the user.
    named = outputs.items() if isinstance(outputs, Mapping) else ()
    return {name: each for name, each in named if name in _CACHES and each is not None}


def mixes_rows(model: Any) -> bool:
    """Return whether a model's result for a row depends on the other rows of its batch."""
    return any(isinstance(each, torch.nn.modules.batchnorm._BatchNorm) for each in model.modules())  # noqa: SLF001  (the base of all of them)


def counts_items(model: Any, inputs: MakeInputs, device: str) -> bool | None:
    """Return whether a model on the meta device, which gets frozen, divides its loss by `num_items_in_batch`.

    None where a Trainer does not give that to the model, and divides the loss itself.
    """
    base = getattr(model, "get_base_model", lambda: model)()
    parameters = inspect.signature(base.forward).parameters.values()
    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters)
    if not getattr(base, "accepts_loss_kwargs", takes_any):
        return None
    model.eval().requires_grad_(requires_grad=False)  # which also turns checkpointing off
    count = torch.empty((), device="meta", requires_grad=True)
    with undisturbed(), LiveBytes(), AsOnDevice(device):
        loss = loss_of(model(**inputs(), num_items_in_batch=count))
    return bool(loss.requires_grad)


def generation_options(model: Any) -> dict[str, Any]:
    """Return the arguments beside the batch in the first step of `generate`."""
    parameters = inspect.signature(model.forward).parameters
    options = {"use_cache": True, "logits_to_keep": 1}
    return {name: value for name, value in options.items() if name in parameters}


@contextmanager
def undisturbed() -> Iterator[None]:
    """Keep the user's random numbers as they are, and messages about the dry run out of their log."""
    logger = logging.getLogger("transformers")
    # One at a time: of two dry runs, the last to end would restore the other's replacements.
    with _one_at_a_time:
        level, is_capturing = logger.level, torch.cuda.is_current_stream_capturing
        autocast = torch.autocast
        logger.setLevel(logging.ERROR)
        # transformers calls this for every mask, which initialises the driver where CUDA is not initialised.
        torch.cuda.is_current_stream_capturing = lambda: (
            torch.cuda.is_initialized() and is_capturing()
        )
        torch.autocast = _AutocastButOnMeta
        try:
            # Only the host's: reading a GPU's state would initialise CUDA.
            with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        finally:
            torch.autocast = autocast
            torch.cuda.is_current_stream_capturing = is_capturing
            logger.setLevel(level)


class _AutocastButOnMeta(torch.amp.autocast):  # type: ignore[misc]  # torch is not followed, so its classes are Any
    """Autocast that does nothing on the meta device, where PyTorch refuses it.

    transformers 4 turns autocast off for the angles of rotary embeddings, by the type of their device;
    transformers 5 does so except on the meta device.
    """

    def __new__(cls, device_type: str, *args: Any, **kwargs: Any) -> Any:
        if device_type == "meta":
            return nullcontext()
        return torch.amp.autocast(device_type, *args, **kwargs)


def cast_to_float(outputs: Any) -> None:
    """Cast a model's results to float32, as accelerate does around autocast."""
    for name, value in outputs.items() if isinstance(outputs, MutableMapping) else ():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            outputs[name] = value.float()


def _own_loss(outputs: Any) -> torch.Tensor | None:
    """Return the loss that a Trainer finds in a model's results; None without one."""
    if isinstance(outputs, Mapping):
        return outputs.get("loss")
    first = outputs[0] if isinstance(outputs, tuple | list) and outputs else outputs
    is_loss = isinstance(first, torch.Tensor) and first.numel() == 1 and first.requires_grad
    return first if is_loss else getattr(outputs, "loss", None)


def loss_of(outputs: Any) -> torch.Tensor:
    """Return a model's own loss, or the mean of its first result."""
    loss = _own_loss(outputs)
    if loss is not None:
        return loss
    first = next(
        leaf
        for leaf in tree_leaves(dict(outputs) if isinstance(outputs, Mapping) else outputs)
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
    )
    return first.float().mean()
