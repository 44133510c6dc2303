"""``generate`` as a span with its prefill and its decode, and the KV caches of whatever decodes.

In every decoding method, ``generate`` passes the result of a forward pass to one method of the model, once a
step and outside of compiled code; the first call is the end of the prefill. Without gradients, calls of the
model itself are followed, too: of nested models only the outermost.
"""

from __future__ import annotations

import copy
import math
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from typing import Any, Self

from hfmem_widget.drivers.span import number_on_host
from hfmem_widget.guard import entry, raised_by_handler
from hfmem_widget.monitor.batch import see_batch, shape_of
from hfmem_widget.monitor.monitor import Monitor, outcome_of
from hfmem_widget.monitor.patch import surround_inherited
from hfmem_widget.monitor.process import process_state
from hfmem_widget.monitor.shared import current_watch, running_monitor
from hfmem_widget.session import Session
from hfmem_widget.sources.heap.referents import variables_of
from hfmem_widget.sources.storages import growth_of, is_cache, tensors_in

NAMES = ("cache", "past_key_values", "cache_params", "state", "mems", "past_buckets_states")
"""The names of what models keep from one token to the next; as transformers' `ALL_CACHE_NAMES`."""

UNKNOWN = (
    *("assistant_early_exit", "assistant_model", "constraints", "custom_generate", "dola_layers"),
    *("force_words_ids", "guidance_scale", "num_beam_groups", "penalty_alpha"),
    *("prompt_lookup_num_tokens", "use_mtp"),
)
"""Options with which ``generate`` runs more than one model, or another loop: no dry run follows it."""

KEPT = ("output_attentions", "output_hidden_states", "output_logits", "output_scores")
"""Results that ``generate`` keeps of every step."""

STEP = "_update_model_kwargs_for_generation"
"""The method that gets the result of each forward pass of ``generate``."""


class GenerateContext(threading.local):
    """The generation, call and step that a thread is in."""

    generation: Generation | None = None
    in_call = False
    in_step = False


class Generation:
    """One call of ``generate``: a context manager that is notified of every step."""

    def __init__(
        self, monitor: Monitor, session: Session, model: object, prompt_counts: Mapping[str, float]
    ) -> None:
        self.model = id(model)
        self._monitor = monitor
        self._session = session
        self._prompt_counts = prompt_counts
        self._block = self._phase = 0
        self._counts: dict[str, float] = {}
        self._largest_caches: dict[str, float] = {}
        self._steps = 0
        self._new_tokens = 0.0
        self._began = self._latest = 0.0

    def __enter__(self) -> Self:
        self._block = self._monitor.open_span(self._session, "block", "generate").id
        process_state(GenerateContext).generation = self
        self._phase = self._monitor.open_span(self._session, "prefill", "prefill").id
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        context = process_state(GenerateContext)
        if context.generation is self:
            context.generation = None
        if not self._block or not self._monitor.is_open(self._session, self._block):
            return
        if error is not None:  # a prefill has handed no cache over yet
            self._monitor.attribution.cache_grew(*filter(is_cache, variables_of(error)))
        if self._phase and self._monitor.is_open(self._session, self._phase):
            self._monitor.close_span(
                self._session, self._phase, outcome_of(error), self._counts_now()
            )
        self._monitor.close_span(self._session, self._block, outcome_of(error))

    def stepped(self, caches: Collection[object], rows: float, new: float) -> None:
        """Note a step that made `new` tokens in each of `rows`; NaN if that is not known."""
        if not self._phase or not self._monitor.is_open(self._session, self._phase):
            return
        self._steps += 1
        largest = self._largest_caches  # of every step: samples are fewer
        for device, parts in self._monitor.attribution.caches.held_by(caches).items():
            largest[device] = max(parts["kv_cache"], largest.get(device, 0.0))
        now = time.monotonic()
        if self._steps == 1:
            growths = filter(None, map(growth_of, caches))
            self._end_prefill(next(growths, None), rows)
            return
        if self._steps == 2:
            # When the prefill ends on the host the device may still be busy with it; by now it is not.
            self._began = now
        else:
            self._new_tokens += new
        self._latest = now

    def _end_prefill(self, growth: Any, rows: float) -> None:
        self._counts = {"samples": rows} if rows else {}
        if growth is not None:
            named = asdict(growth)
            named["longest"] = named.pop("length")
            self._counts |= {name: float(size) for name, size in named.items() if size}
        self._monitor.close_span(self._session, self._phase, "done", self._prompt_counts)
        self._phase = self._monitor.open_span(self._session, "decode", "decode").id

    def _counts_now(self) -> dict[str, float]:
        if not self._steps:
            return dict(self._prompt_counts)
        largest = self._largest_caches.items()
        counts = self._counts | {f"{device}/kv_cache": size for device, size in largest if size}
        # The first token is the prefill's, and the step after it is not in `_new_tokens`.
        tokens = self._new_tokens + (self._steps > 1)
        if "longest" in counts:
            counts["longest"] += tokens
        counts["steps"] = float(self._steps - 1)
        counts["tokens"] = tokens * counts.get("samples", 1.0)
        passed = self._latest - self._began
        if self._new_tokens and passed > 0:
            counts["tokens_per_second"] = self._new_tokens * counts.get("samples", 1.0) / passed
        return {name: count for name, count in counts.items() if math.isfinite(count)}


def generating(model: object = None, *args: Any, **kwargs: Any) -> AbstractContextManager[object]:
    """Return the context of a call of ``generate``; an empty one within another, such as an assistant's."""
    watch, context = current_watch(), process_state(GenerateContext)
    if watch is None or context.generation is not None:
        return nullcontext()
    monitor, session = watch
    monitor.attribution.follow(model)
    context.in_step = False
    kwargs |= dict(zip(("generation_config",), args[1:], strict=False))
    surround_inherited(type(model), STEP, stepping, whole_call=True)
    main = str(getattr(model, "main_input_name", "")) if _has_encoder(model) else "input_ids"
    prompt = kwargs.get(main, kwargs.get("inputs", args[0] if args else None))
    inputs = {} if prompt is None else {**kwargs, main: prompt}
    shape = shape_of((), inputs)
    if shape:
        tensors = {name: tensor for name, tensor in inputs.items() if hasattr(tensor, "shape")}
        tensors.pop("inputs", None)
        options = _options_of(model, kwargs, shape)
        see_batch(model, (), tensors, shape, is_training=False, options=options)
    # The second dimension of a sound's features may be frequencies, not time.
    wanted = ("samples", "longest", "tokens") if main == "input_ids" else ("samples",)
    counts = {name: shape[name] for name in wanted if name in shape}
    return Generation(monitor, session, model, counts | _counts_of_call(model, kwargs, shape))


def _counts_of_call(
    model: object, kwargs: Mapping[str, Any], shape: Mapping[str, float]
) -> dict[str, float]:
    """Return the options that decide how much a generation takes; {} where its prompt is unknown."""
    option = partial(_option, model, kwargs)
    new, whole = option("max_new_tokens"), option("max_length")
    prompt, counts = shape.get("longest", 0.0), {}
    if _has_encoder(model):
        prompt = (
            float(getattr(kwargs.get("decoder_input_ids"), "shape", (1,))[-1]) if shape else 0.0
        )
        counts["answer"] = prompt
    if not prompt:
        return {}
    beams, returned = option("num_beams") or 1, option("num_return_sequences") or 1
    by_default = new or (20 if whole in (None, 20) and "max_length" not in kwargs else 0)
    return {
        **counts,
        "made_of_each": float(max(beams, returned)),
        "beams": float(beams),
        "whole": float(prompt + by_default if by_default else whole),
        "sampled": float(bool(option("do_sample"))),
    }


def _option(model: object, kwargs: Mapping[str, Any], name: str) -> Any:
    """Return the value of an option, as ``generate`` looks for it."""
    configs = (kwargs.get("generation_config"), getattr(model, "generation_config", None))
    values = (kwargs.get(name), *(getattr(config, name, None) for config in configs))
    return next((value for value in values if value is not None), None)


def _options_of(
    model: object, kwargs: Mapping[str, Any], shape: Mapping[str, float]
) -> dict[str, Any]:
    """Return what a dry run of ``generate`` needs beside the shapes, or why there is none ("refused")."""
    try:
        if refused := _refusal(model, kwargs):
            return {"refused": refused}
        config = kwargs.get("generation_config") or getattr(model, "generation_config", None)
        options = {
            name: copy.deepcopy(value) if is_cache(value) else value
            for name, value in kwargs.items()
            if hasattr(config, name) or is_cache(value) or isinstance(value, int | float)
        }
        whole = shape.get("tokens", 0.0)
        is_padded = shape.get("content_tokens", whole) < whole
        return {**options, "generation_config": copy.copy(config), "is_padded": is_padded}
    except Exception as error:
        # Caches of the user's own may raise anything, and options may be tensors.
        if raised_by_handler(error):
            raise
        return {"refused": "its options cannot be read or copied"}


def _refusal(model: object, kwargs: Mapping[str, Any]) -> str:
    """Return why a generation cannot be forecast, as the end of a sentence; empty if it can be."""
    option = partial(_option, model, kwargs)
    for name in (*UNKNOWN, *(KEPT if option("return_dict_in_generate") else ())):
        if (value := option(name)) is True or value not in (None, False, 0, 1):
            return f"what {name} needs is unknown"
    kind, settings = option("cache_implementation") or "", option("cache_config") or {}
    cache: Any = next((kwargs[name] for name in NAMES if kwargs.get(name) is not None), None)
    layers = getattr(cache, "layers", ())
    in_blocks = kind == "quantized" and settings.get("backend") != "fp8"
    in_blocks = in_blocks or any(hasattr(layer, "residual_length") for layer in layers)
    is_static = "static" in kind or (bool(layers) and getattr(cache, "is_compileable", False))
    on_host = getattr(getattr(model, "device", None), "type", "cpu") == "cpu"
    is_offloaded = "offloaded" in kind or getattr(cache, "offloading", False)
    is_compiled = is_static and not on_host and not option("disable_compile")
    reasons = {
        "its cache is of an unknown kind": cache is not None and not is_cache(cache),
        "its cache had tokens as it began": any(tensor.ndim > 1 for tensor in tensors_in(cache)),
        "its cache is offloaded to the host": is_offloaded,
        "its cache is quantised, many tokens at a time": in_blocks,
        "with a static cache, generate compiles the model": is_compiled,
    }
    return next((reason for reason, applies in reasons.items() if applies), "")


def _has_encoder(model: object) -> bool:
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


@contextmanager
def stepping(
    model: object = None, outputs: Any = None, *args: Any, **kwargs: Any
) -> Iterator[None]:
    """Note a step of ``generate``, whose forward pass has just returned."""
    monitor, context = running_monitor(), process_state(GenerateContext)
    if monitor is None or context.in_step:  # a model's own method may call the inherited one
        yield
        return
    caches = _caches_in(outputs) or _caches_in(args[0] if args else {})
    monitor.cache_grew(*caches)
    generation = context.generation
    if generation is not None and generation.model == id(model):
        new = kwargs.get("num_new_tokens", args[2] if len(args) > 2 else 1)
        number = number_on_host(new)
        generation.stepped(caches, _rows(outputs), math.nan if number is None else number)
    context.in_step = True
    try:
        yield
    finally:
        context.in_step = False


def is_let_alone() -> bool:
    """Return whether a call of a model is not followed; with gradients that is decided without a guard."""
    return sys.modules["torch"].is_grad_enabled() or _is_within_or_unwatched()


# Signals are only deferred while something is watched, which most calls are not.
@entry(otherwise=lambda: True, defers=False)
def _is_within_or_unwatched() -> bool:
    context = process_state(GenerateContext)
    return context.in_call or context.generation is not None or running_monitor() is None


class ModelCall:
    """One call of a model without gradients: a context manager that gets the result."""

    def __init__(self, model: object, *args: Any, **kwargs: Any) -> None:
        if (monitor := running_monitor()) is not None:
            see_batch(model, args, kwargs, shape_of(args, kwargs), is_training=False)
            monitor.attribution.called(model)
            monitor.rebase()

    def __enter__(self) -> None:
        process_state(GenerateContext).in_call = True

    def __exit__(self, *_: object) -> None:
        process_state(GenerateContext).in_call = False

    def returned(self, result: Any) -> None:
        """Count the caches in the result."""
        monitor, caches = running_monitor(), _caches_in(result)
        if monitor is not None and caches:
            monitor.cache_grew(*caches)


def _caches_in(outputs: Any) -> list[object]:
    """Return the caches in the result of a model: an output, a dict or a tuple."""
    if isinstance(outputs, Mapping):
        # Not read by attribute: transformers 5 warns of old names once, and that warning belongs to the user.
        return [cache for name, cache in outputs.items() if name in NAMES and cache is not None]
    return list(filter(is_cache, outputs)) if type(outputs) is tuple else []


def _rows(outputs: Any) -> float:
    logits = outputs.get("logits") if isinstance(outputs, Mapping) else None
    shape = getattr(logits, "shape", ())
    return float(shape[0]) if shape else 0.0
