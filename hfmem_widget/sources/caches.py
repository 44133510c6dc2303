"""The tensors of a KV cache, and its growth, read from the objects that own them.

transformers' caches have layers with tensors as fields: keys and values, packed ones with their scales, and
states of convolutions and recurrences. Older models, and other libraries, pass tuples of tuples.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from hfmem_widget.sources.storages import Storage, storages_of, tensors_in


def storages_in(cache: object) -> tuple[Storage, ...]:
    """Return the storages of a cache, each once; () if it cannot be read."""
    try:
        storages = (storage for tensor in tensors_in(cache) for storage in storages_of(tensor))
        return tuple({storage[0]: storage for storage in storages}.values())
    except Exception:  # noqa: BLE001  (a cache may be of the user's own, and raise anything)
        return ()


def is_cache(value: object) -> bool:
    """Return whether an object is a cache of transformers, by its type alone."""
    kind = cache_kind()
    return kind is not None and issubclass(type(value), kind)


def cache_kind() -> type | None:
    """Return transformers' class of caches; None if it is not imported, or has none."""
    kind = getattr(sys.modules.get("transformers.cache_utils"), "Cache", None)
    return kind if isinstance(kind, type) else None


@dataclass(frozen=True, slots=True)
class CacheGrowth:
    """The growth of a cache with each further token, over all layers and all sequences of the batch."""

    token_bytes: float = (
        0.0  # added by each token; in a static cache, taken from its allocated bytes
    )
    window_bytes: float = 0.0  # added besides as long as there are fewer tokens than `window`
    window: int = 0  # the longest sliding window, in tokens; 0 if there is none
    limit: int = 0  # the most tokens that it can hold; 0 if it has no bound
    length: int = 0  # the tokens that it holds; 0 if reading them would wait for the device


def growth_of(cache: object) -> CacheGrowth | None:
    """Return a cache's growth; None if it cannot be read."""
    try:
        return _growth(cache)
    except Exception:  # noqa: BLE001  (as above)
        return None


def _growth(cache: Any) -> CacheGrowth | None:
    # The encoder's part does not grow.
    cache = getattr(cache, "self_attention_cache", cache)
    layers = getattr(cache, "layers", cache)
    if not isinstance(layers, (list, tuple)):
        return None
    token_bytes = window_bytes = 0.0
    window = limit = length = 0
    for layer in layers:
        is_tuple = isinstance(layer, (list, tuple))
        pair = tuple(layer[:2]) if is_tuple else (_of(layer, "keys"), _of(layer, "values"))
        sizes = [_sizes(tensor) for tensor in pair]
        cumulative = _of(layer, "cumulative_length")
        held = cumulative if type(cumulative) is int else 0
        if held and _of(layer, "_quantized_keys") is not None:
            # The average so far: the newest tokens are not packed yet.
            token_bytes += sum(size for _, _, size, _ in storages_in(layer)) / held
            length = max(length, held)
            continue
        if not all(sizes) or not all(shape[-2] for shape in sizes):
            continue
        a_token = sum(each.nbytes / shape[-2] for each, shape in zip(pair, sizes, strict=True))
        most = _of(layer, "max_cache_len")
        if _of(layer, "is_sliding") is True:
            window_bytes += a_token
            window = max(window, most or _of(layer, "sliding_window") or 0)
            length = max(length, held)
        else:
            token_bytes += a_token
            limit = max(limit, most or 0)
            length = length if most else max(length, sizes[0][-2])
    growth = CacheGrowth(token_bytes, window_bytes, int(window), int(limit), length)
    return growth if token_bytes or window_bytes else None


def _of(layer: object, name: str) -> Any:
    return getattr(layer, name, None)


def _sizes(tensor: Any) -> tuple[int, ...]:
    shape = getattr(tensor, "shape", ())
    return tuple(shape) if len(shape) >= 2 and all(type(size) is int for size in shape) else ()
