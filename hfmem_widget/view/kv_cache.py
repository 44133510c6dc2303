"""The sentence about the KV cache of a call of ``generate``."""

from __future__ import annotations

import math

from hfmem_widget.analysis.kv_cache import kv_cache
from hfmem_widget.session import Session, Span
from hfmem_widget.session.model import KVCache
from hfmem_widget.text import KIB, MIB, format_bytes, format_count, format_counted, number


def kv_cache_text(session: Session, span: Span) -> str:
    """Return how the KV cache of an outermost span grows, and what would fit; empty where there was none.

    Such as ``KV cache: 4.00 GiB; each token takes 512 KiB (4 sequences, all layers); about 61,000 tokens
    would fit in the free memory.``
    """
    cache = kv_cache(session, span)
    return "" if cache is None else sentence(cache)


def sentence(cache: KVCache) -> str:
    """Return it, for a cache."""
    begin = f"KV cache: {format_bytes(cache.bytes)}"
    if cache.limit:
        return (
            f"{begin}, allocated at once for at most {format_counted(cache.limit, 'token')}; "
            f"each takes {_each(cache)}."
        )
    window = format_counted(cache.window, "token")
    if cache.token_bytes:
        grows = f"each token takes {_each(cache)}"
        if cache.window_bytes:
            grows += f", and {_size(cache.window_bytes)} more up to {window}"
    elif cache.window_bytes:
        return f"{begin}; each token takes {_each(cache)}; it stops growing at {window}."
    else:
        return f"{begin}."
    if not math.isfinite(cache.longest):
        return f"{begin}; {grows}."
    return (
        f"{begin}; {grows}; about {_rounded(cache.longest)} tokens would fit in the memory that was free "
        "(an estimate: a tenth of it is left for temporaries, and a longer prompt needs more)."
    )


def _each(cache: KVCache) -> str:
    many = f"{format_counted(cache.sequences, 'sequence')}, " if cache.sequences > 1 else ""
    return f"{_size(cache.token_bytes or cache.window_bytes)} ({many}all layers)"


def _size(size: float) -> str:
    return format_bytes(size) if size >= MIB else f"{number(size, KIB)} KiB"


def _rounded(count: float) -> str:
    """Return an estimate of a count with two digits that mean something."""
    digits = max(0, int(math.log10(max(count, 1))) - 1)
    return format_count(math.floor(count / 10**digits) * 10**digits)
