"""One training step or forward pass on the meta device: the bytes of its tensors over time.

Nothing is computed or allocated. The model's own code runs, so that its tensors are counted in their order
and with their lifetimes.
"""

from __future__ import annotations

import copy
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
from hfmem_widget.features.fit.liger import kernels_on_meta
from hfmem_widget.features.fit.live_bytes import LiveBytes, meta_copy, storage_id
from hfmem_widget.monitor.patch import original_of
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
    return Step(
        forward, backward, kept, played.marked, batches, unused, routes, assumed, events, has_loss
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
) -> Inference:
    """Run one batch forward through a model on the meta device, as the first step of `generate` does.

    `options` are the model's other arguments.
    """
    model.eval()
    options = generation_options(model) if options is None else options
    with torch.no_grad(), _running(model, device, autocast) as (live, mode):
        outputs = model(**inputs(), **options)
        mode.leave_autocast()
        if autocast is not None:
            cast_to_float(outputs)
        return _of_results(model, outputs, device, live, mode)


def generation(
    model: Any,
    inputs: MakeInputs,
    options: Mapping[str, Any],
    *,
    device: str,
    begins: int,
    steps: int,
    whole: int,
) -> Inference:
    """Run `generate` on the meta device, and return the bytes of the last of so many steps.

    A row `begins` with so many tokens, and would have `whole` at the end. The inputs are not counted.
    """
    model.eval()
    batch, asked = dict(inputs()), copy.deepcopy(dict(options))
    config, is_padded = asked["generation_config"], asked.pop("is_padded")
    if is_pair := model.config.is_encoder_decoder:
        start = config.decoder_start_token_id
        shape = batch[model.main_input_name].shape[0], begins
        ids = torch.full(shape, config.bos_token_id if start is None else start)
        batch["decoder_input_ids"] = meta_copy(ids)
    # Some have a `generate` of their own around this one, which is the one that was seen.
    owner = next(kind for kind in type(model).__mro__ if kind.__name__ == "GenerationMixin")
    generate = original_of(owner, "generate")
    with torch.no_grad(), _running(model, device, None) as (live, mode):
        live.leave_out(batch.values())
        if is_pair and hasattr(model, "generate_with_fallback"):  # Whisper's copies its input
            batch = {name: one.clone() for name, one in batch.items()}
        if is_padded and "attention_mask" in batch:
            batch["attention_mask"][:, 0] = 0
        count = iter(range(steps))

        def goes_on(*_: Any, **__: Any) -> bool:
            if (step := next(count, None)) == steps - 1 > 0:
                live.restart()
            return step is not None

        # Nothing else ends it, since no token is known.
        model._has_unfinished_sequences = goes_on  # noqa: SLF001  (there is no public way)
        if device == "cpu":  # elsewhere experts take other operations for single tokens
            model._optimize_model_for_decode = nullcontext  # noqa: SLF001  (as above)
        if steps > 1:
            asked["prefill_chunk_size"] = None
        asked |= {"max_length": whole, "max_new_tokens": None, "stop_strings": None}
        asked |= {"output_scores": False, "output_logits": False, "return_dict_in_generate": True}
        return _of_results(model, generate(model, **batch, **asked), device, live, mode)


def _of_results(
    model: Any, outputs: Any, device: str, live: LiveBytes, mode: AsOnDevice
) -> Inference:
    # Not looked up by name: transformers warns of a renamed attribute once, and that is for the user.
    named = outputs if isinstance(outputs, Mapping) else {}
    caches = tensors_in([value for name, value in named.items() if name in _CACHES])
    sizes = {storage_id(tensor): tensor.untyped_storage().nbytes() for tensor in caches}
    # What a Trainer keeps in an evaluation:
    ignored = getattr(getattr(model, "config", None), "keys_to_ignore_at_inference", ())
    dropped = {"loss", *_CACHES, *ignored}
    predictions = tensors_in([value for name, value in named.items() if name not in dropped])
    return Inference(
        live.peak,
        kv_cache=sum(round_up(size, GRANULARITY[device]) for size in sizes.values()),
        routes=mode.routes,
        assumed=live.known.assumed,
        events=tuple(live.events),
        predictions=sum(tensor.nbytes for tensor in predictions),
    )


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
            rng = torch.random.fork_rng(devices=[])
            with rng, kernels_on_meta(), warnings.catch_warnings():
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
