"""KV caches are counted once, by device, and none is kept alive."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import torch

from hfmem_widget.monitor.attribution import Attribution, Caches
from hfmem_widget.monitor.subjects import Subjects
from hfmem_widget.sources.caches import growth_of, storages_in


def layer(length: int = 3, **more: Any) -> SimpleNamespace:
    return SimpleNamespace(
        keys=torch.ones(1, 2, length, 4), values=torch.ones(1, 2, length, 4), **more
    )


class Kept(SimpleNamespace):
    """As transformers' caches: layers, and it can be referred to weakly."""


def cache(*layers: object) -> Kept:
    return Kept(layers=list(layers))


def test_each_storage_counts_once() -> None:
    """Also where two caches share it, or a tensor is a view of another."""
    caches = Caches()
    one = cache(layer())
    other = cache(one.layers[0], SimpleNamespace(keys=one.layers[0].keys[:, :1], values=None))
    caches.see(one)
    caches.see(other)

    assert caches.held() == {"cpu": {"kv_cache": 2 * 2 * 3 * 4 * 4}}


def test_a_view_counts_as_what_it_keeps() -> None:
    """A sliding window's slice keeps all of the prompt's keys."""
    kept = cache(SimpleNamespace(keys=torch.ones(1, 2, 100, 4)[:, :, -3:], values=None))

    assert sum(size for _, _, size, _ in storages_in(kept)) == 2 * 100 * 4 * 4


def test_a_cache_is_not_kept_and_is_gone_at_once() -> None:
    """Without the collector: the reference itself says so."""
    caches, kept = Caches(), cache(layer())
    reference = weakref.ref(kept)
    caches.see(kept)
    gc.disable()
    try:
        del kept
        assert reference() is None
    finally:
        gc.enable()

    assert caches.gone
    assert caches.held() == {}
    assert not caches.gone


def test_what_is_gone_is_left_out_of_the_next_reading() -> None:
    """Of the poller too, which touches no cache."""
    attribution = Attribution(subjects=Subjects(dict))
    kept = cache(layer())
    attribution.cache_grew(kept)
    source = attribution.source
    keys = [series.key for series in source.series]
    assert source.read(0.0)[keys.index("cpu/kv_cache")] == 192
    del kept

    assert source.read(1.0)[keys.index("cpu/kv_cache")] == 0


def test_what_holds_no_tensors_is_passed_over() -> None:
    """A model, a class, a function, a cache that holds itself, one that cannot be read."""

    class Unreadable:
        @property
        def __dict__(self) -> Any:  # type: ignore[override]
            raise RuntimeError

    ring = cache(torch.nn.Linear(2, 2), torch.nn.Linear, print, Unreadable)
    ring.layers.append(ring)

    assert storages_in(ring) == ()


def test_a_cache_with_slots_is_not_counted_rather_than_kept() -> None:
    """It cannot be referred to weakly."""

    class Slots:
        __slots__ = ("keys",)
        keys: Any

    caches, kept = Caches(), Slots()
    kept.keys = torch.ones(3)
    caches.see(kept)

    assert caches.held() == {}


def test_growth_is_read_from_the_layers() -> None:
    """Layers that grow, with a window, of a fixed length, and of an encoder's."""
    growing = growth_of(cache(layer(), layer()))
    assert growing is not None
    assert (growing.token_bytes, growing.length) == (2 * 2 * 2 * 4 * 4, 3)

    window = growth_of(cache(layer(is_sliding=True, sliding_window=4, cumulative_length=9)))
    assert window is not None
    assert (window.window_bytes, window.window, window.length) == (64, 4, 9)

    static = growth_of(cache(layer(5, max_cache_len=5)))
    assert static is not None
    assert (static.token_bytes, static.limit, static.length) == (64, 5, 0)

    both = SimpleNamespace(
        self_attention_cache=cache(layer()), cross_attention_cache=cache(layer())
    )
    assert growth_of(both) == growth_of(both.self_attention_cache)


def test_how_what_is_not_understood_grows_is_not_guessed() -> None:
    """Neither of states without a length, nor of anything else."""
    assert growth_of(cache(SimpleNamespace(conv_states={0: torch.ones(2)}))) is None
    assert growth_of(object()) is None
    assert growth_of(((torch.ones(1, 2, 3, 4),) * 2,)) is not None
