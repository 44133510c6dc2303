"""What is worked out of a decode: how its KV cache grows, and what would fit."""

import math
from collections.abc import Mapping
from typing import Any

import pytest

from hfmem_widget.analysis.kv_cache import LEFT_FOR_TEMPORARIES, kv_cache
from hfmem_widget.session import Device, KVCache, Peak, Session
from hfmem_widget.text import GIB, KIB, MIB
from hfmem_widget.view.card import card_bundle
from hfmem_widget.view.tokens import kv_cache_text, sentence
from tests.data.recorders import read, recorder_of

METRICS = ("allocated", "reserved", "device_used", "kv_cache")
TOTAL = 16 * GIB


def decoded(counts: Mapping[str, float], *, key: str = "cuda:0", held: float = GIB) -> Session:
    """Return a session of one decode, at whose peak 4 of 6 reserved GiB are allocated; 1 GiB is others'."""
    first = (2 * GIB, 3 * GIB, 4 * GIB, 0.0)
    recorder = recorder_of(first, keys=[key], metrics=METRICS, total=TOTAL)
    before = recorder.session.last_sample
    after = read(recorder, 0.1, (3 * GIB, 6 * GIB, 7 * GIB, held))
    cell = recorder.open_span("cell", "cell", before)
    span = recorder.open_span("decode", "decode", before)
    peaks = {f"{key}/allocated": Peak(4 * GIB, "exact"), f"{key}/reserved": Peak(6 * GIB, "exact")}
    recorder.close_span(span.id, after, peaks, counts=counts)
    recorder.close_span(cell.id, after, peaks)
    recorder.stop(1.0)
    return recorder.session


USUAL: dict[str, float] = {"samples": 4, "longest": 1000, "token_bytes": MIB}


def cache_of(session: Session) -> KVCache:
    cache = session.kv_cache()
    assert cache is not None
    return cache


def test_what_would_fit_is_what_is_free_and_what_the_allocator_holds_unused() -> None:
    """Of 16 GiB, others have 1 and 4 are allocated; a host, whose memory is everybody's, has no figure."""
    room = TOTAL - GIB - 4 * GIB
    longest = 1000 + (1 - LEFT_FOR_TEMPORARIES) * room / MIB

    assert cache_of(decoded(USUAL)).longest == pytest.approx(longest)
    assert math.isnan(cache_of(decoded(USUAL, key="cpu")).longest)


@pytest.mark.parametrize(
    ("counts", "grows", "longest"),
    [
        (USUAL | {"limit": 2048}, (MIB, 0.0, 0, 2048), math.nan),
        ({"longest": 9, "window_bytes": 5.0, "window": 8}, (0.0, 5.0, 8, 0), math.inf),
        ({"token_bytes": MIB}, (MIB, 0.0, 0, 0), math.nan),
        ({}, (0.0, 0.0, 0, 0), math.nan),
    ],
)
def test_growth_counts(counts: dict[str, float], grows: tuple[float, ...], longest: float) -> None:
    """A static cache is full at its limit, and one that has stopped growing fits for ever."""
    cache = cache_of(decoded(counts))

    assert (cache.token_bytes, cache.window_bytes, cache.window, cache.limit) == grows
    assert cache.bytes == GIB
    assert cache.longest == pytest.approx(longest, nan_ok=True)


def test_without_a_cache_nothing_is_told() -> None:
    """A session without a cache, or without a decode, has no sentence."""
    session = decoded(USUAL, held=0.0)

    assert session.kv_cache() is None
    assert kv_cache(Session()) is None
    assert kv_cache_text(session, session.spans[0]) == ""


def cache(**values: Any) -> KVCache:
    defaults = {"bytes": 4 * GIB, "sequences": 4, "length": 8192, "token_bytes": 512 * KIB}
    return KVCache(**{"device": Device("cuda:0", "one"), **defaults, **values})


@pytest.mark.parametrize(
    ("cache", "parts"),
    [
        (cache(longest=61_234.0), ["4.00 GiB", "512.0 KiB (4 sequences, all layers)", "61,000"]),
        (cache(sequences=1), ["512.0 KiB (all layers)."]),
        (cache(limit=4096), ["at most 4,096 tokens", "each takes 512.0 KiB"]),
        (cache(window_bytes=MIB, window=1024), ["and 1.00 MiB more up to 1,024 tokens"]),
        (cache(token_bytes=0, window_bytes=MIB, window=1024), ["stops growing at 1,024 tokens"]),
        (cache(token_bytes=0), ["KV cache: 4.00 GiB."]),
    ],
)
def test_the_sentence_says_how_it_grows(cache: KVCache, parts: list[str]) -> None:
    """One sentence; a length comes with what it assumes."""
    text = sentence(cache)

    assert all(part in text for part in parts)
    assert ("an estimate" in text) == (cache.longest > 0)


def test_the_card_says_it() -> None:
    """The sentence stands beside the card's figures and in its text."""
    session = decoded(USUAL)
    card = card_bundle(session, session.spans[0], with_chart=True)

    assert "KV cache: 1.00 GiB" in card["text/plain"]
    assert "KV cache: 1.00 GiB" in card["text/html"]
    assert kv_cache(session, session.spans[0]) == session.kv_cache()
