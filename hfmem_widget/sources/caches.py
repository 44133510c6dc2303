"""The tensors of a KV cache, and how it grows, by reading the objects that own them.

transformers' caches have layers, whose fields are tensors: of keys and values, packed ones with their scales,
convolutions' and recurrent states. Older models, and other libraries, pass tuples of tuples.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from hfmem_widget.sources.storages import Storage, storages_of, tensors_in


def storages_in(cache: object) -> tuple[Storage, ...]:
    """Return the storages of a cache, each once; none of them where it cannot be read."""
    try:
        return tuple(
            {one[0]: one for tensor in tensors_in(cache) for one in storages_of(tensor)}.values()
        )
    except Exception:  # noqa: BLE001  (a cache may be of the user's own, and raise what it likes)
        return ()


def is_cache(value: object) -> bool:
    """Return whether something is a cache of transformers, by its type alone."""
    kind = cache_kind()
    return kind is not None and issubclass(type(value), kind)


def cache_kind() -> type | None:
    """Return transformers' class of caches; None where it is not imported, or has none."""
    kind = getattr(sys.modules.get("transformers.cache_utils"), "Cache", None)
    return kind if isinstance(kind, type) else None


@dataclass(frozen=True, slots=True)
class CacheGrowth:
    """How a cache grows with each further token, over all layers and all sequences of the batch."""

    token_bytes: float = 0.0  # that each token adds; in a static cache, takes of what is allocated
    window_bytes: float = 0.0  # that it adds besides as long as there are fewer than `window`
    window: int = 0  # the longest sliding window, in tokens; 0 where there is none
    limit: int = 0  # the most tokens that it can hold; 0 where it has no bound
    length: int = 0  # the tokens that it holds; 0 where the device would have to be waited for


def growth_of(cache: object) -> CacheGrowth | None:
    """Return how a cache grows; None where that cannot be read from it."""
    try:
        return _growth(cache)
    except Exception:  # noqa: BLE001  (as above)
        return None


def _growth(cache: Any) -> CacheGrowth | None:
    # What an encoder has put into it stays as it is.
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
            # As it is now: the newest tokens are not packed yet.
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
    if not token_bytes and not window_bytes:
        return None
    return CacheGrowth(token_bytes, window_bytes, int(window), int(limit), length)


def _of(layer: object, name: str) -> Any:
    return getattr(layer, name, None)


def _sizes(tensor: Any) -> tuple[int, ...]:
    shape = getattr(tensor, "shape", ())
    return tuple(shape) if len(shape) >= 2 and all(type(size) is int for size in shape) else ()
