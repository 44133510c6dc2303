"""The KV cache of a call of ``generate``: how it grows, and the longest sequence that would fit."""

import math
from operator import itemgetter

from hfmem_widget.analysis.facts import end_of, facts_of
from hfmem_widget.analysis.parts import known_values
from hfmem_widget.session import Device, Session, Span, outermost
from hfmem_widget.session.model import NOT_AVAILABLE, KVCache

LEFT_FOR_TEMPORARIES = 0.1
"""Share of the free memory: temporaries of attention and of concatenation grow with the sequence, too."""


def kv_cache(session: Session, span: Span | None = None) -> KVCache | None:
    """Return the KV cache of the decode that rose highest, in a session or in one of its outermost spans."""
    roots = outermost(session.spans) if span is None else [span]
    phases = [phase for root in roots for phase in session.phases(root.id)]
    decodes = [phase.highest for phase in phases if phase.kind == "decode"]
    caches = []
    for device in session.devices:
        key = f"{device.key}/allocated"
        spans = [highest[key] for highest in decodes if key in highest]
        if spans:
            decode = max(spans, key=lambda span: span.peaks[key].value)
            held, end = f"{device.key}/kv_cache", end_of(session, decode)
            if "steps" in decode.counts:  # of a call of `generate`, which counts its own cache
                size = decode.counts.get(held, 0.0)
            else:
                size = max(known_values(session, held, decode.start, end), default=0.0)
            caches.append((size, device, decode))
    if not any(held > 0 for held, *_ in caches):
        return None
    size, device, decode = max(caches, key=itemgetter(0))
    counts = decode.counts
    share = size / sum(held for held, *_ in caches)
    return KVCache(
        device=device,
        bytes=size,
        sequences=int(counts.get("samples", 0)),
        length=int(counts.get("longest", 0)),
        token_bytes=counts.get("token_bytes", 0.0),
        window_bytes=counts.get("window_bytes", 0.0),
        window=int(counts.get("window", 0)),
        limit=int(counts.get("limit", 0)),
        longest=_longest(session, device, decode, share),
        tokens_per_second=counts.get("tokens_per_second", NOT_AVAILABLE),
    )


def _longest(session: Session, device: Device, decode: Span, share: float) -> float:
    counts = decode.counts
    length, a_token = counts.get("longest", 0.0), counts.get("token_bytes", 0.0) * share
    if counts.get("limit") or not length:
        return NOT_AVAILABLE
    if not a_token:
        return math.inf if counts.get("window") else NOT_AVAILABLE
    facts = next((each for each in facts_of(session, decode) if each.device == device), None)
    if facts is None or ":" not in device.key:
        return NOT_AVAILABLE
    # What the allocator has reserved and not handed out is free for a cache as well.
    room = facts.headroom + facts.reserved_peak - facts.peak.value
    return length + max(0.0, room) * (1 - LEFT_FOR_TEMPORARIES) / a_token
