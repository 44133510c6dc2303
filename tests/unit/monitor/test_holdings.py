"""What models, optimizers and caches hold, against what their tensors say themselves."""

import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hfmem_widget.monitor.attribution import Attribution, Caches
from hfmem_widget.monitor.holdings import count, count_gradients, states_in
from hfmem_widget.monitor.subjects import Subjects
from hfmem_widget.sources.storages import growth_of, storages_in


def trained(optimizer: str = "AdamW", **options: Any) -> tuple[Any, Any]:
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32), torch.nn.Linear(32, 2)
    )
    chosen = getattr(torch.optim, optimizer)(model.parameters(), lr=0.01, **options)
    model(torch.randn(8, 16)).sum().backward()
    chosen.step()
    return model, chosen


def size_of(tensors: Any) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def test_every_part_is_counted() -> None:
    """Weights, buffers, gradients and states come to the bytes of their tensors."""
    model, optimizer = trained()

    held = count([model], [optimizer]).held["cpu"]

    states = [state for one in optimizer.state.values() for state in one.values()]
    assert held == {
        "weights": size_of(model.parameters()),
        "buffers": size_of(model.buffers()),
        "gradients": size_of(one.grad for one in model.parameters()),
        "optimizer": size_of(states),
    }


def test_gradients_alone_are_counted_by_the_optimizers() -> None:
    """The quick pass finds the gradients that the full one finds; after `zero_grad`, none."""
    model, optimizer = trained()

    held, _ = count_gradients([optimizer])

    assert held["cpu"]["gradients"] == count([model], [optimizer]).held["cpu"]["gradients"]
    optimizer.zero_grad()
    held, probe = count_gradients([optimizer])
    assert (held, probe()) == ({}, None)


def test_contents_have_classes_and_counts() -> None:
    """Contents have the classes, the elements, those that are trained, and the bytes of each type."""
    model, optimizer = trained()
    model[0].weight.requires_grad_(requires_grad=False)
    model[2].to(torch.bfloat16)

    contents = count([model], [optimizer]).contents

    total = sum(one.numel() for one in model.parameters())
    halves = sum(one.numel() for one in model[2].parameters())
    assert contents.modules == ("Sequential",)
    assert contents.optimizers == ("AdamW",)
    assert contents.parameters == total
    assert contents.trainable == total - 16 * 32
    assert contents.dtypes == {"float32": 4 * (total - halves), "bfloat16": 2 * halves}
    assert contents.tensors == 6


def test_states_are_seen_to_come() -> None:
    """The number of states grows with the first step: three for each parameter, and its place."""
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    before = states_in([optimizer])
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()

    assert (before, states_in([optimizer])) == (0, 8)


def test_reading_gradients_causes_no_warning() -> None:
    """A parameter that is not a leaf is skipped, since torch would warn the user."""
    leaf = torch.ones(3, requires_grad=True)

    class Odd:
        def parameters(self) -> Any:
            return iter([leaf * 2])

        def buffers(self) -> Any:
            return iter([])

    assert "gradients" not in count([Odd()], []).held["cpu"]


@contextmanager
def swapping() -> Iterator[None]:
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        yield
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


@pytest.mark.parametrize("by_optimizer", [True, False])
def test_parameters_that_were_counted_can_be_swapped(by_optimizer: bool) -> None:
    """No weak reference keeps `torch.utils.swap_tensors`, by which DTensors move, from a parameter."""
    model, optimizer = trained("SGD")
    counts = count_gradients([optimizer]) if by_optimizer else count([model], [])

    with swapping():
        model.to(torch.float64)

    assert counts is not None
    assert next(model.parameters()).dtype == torch.float64


@pytest.mark.parametrize("by_optimizer", [True, False])
def test_the_parameter_that_tells_of_gradients_is_found_again(by_optimizer: bool) -> None:
    """The parameter that tells whether there are gradients is found by its place, and is not kept alive."""
    model, optimizer = trained("SGD")
    probe = count_gradients([optimizer])[1] if by_optimizer else count([model], []).probe

    assert probe().grad is not None
    optimizer.zero_grad()
    assert probe().grad is None
    optimizer.param_groups.clear()
    assert by_optimizer is (probe() is None)
    del model, optimizer
    assert probe() is None


def test_parameters_side_by_side_in_one_storage_are_all_counted() -> None:
    """Parameters that share a storage, as an LSTM's on a GPU, are counted each, and its bytes once."""
    model, flat = torch.nn.Module(), torch.zeros(1000)
    model.first, model.second = (torch.nn.Parameter(half) for half in flat.split(500))
    model.tied = torch.nn.Parameter(model.second.data)

    found = count([model], [])

    assert found.contents.parameters == 1000
    assert found.held["cpu"]["weights"] == 4000


def test_an_unreadable_module_does_not_affect_the_others() -> None:
    """A class with its own `parameters`, and a half-made module, do not end the count."""

    class Own(torch.nn.Module):  # type: ignore[misc]  # torch is not checked here
        def parameters(self, group: str) -> Any:
            raise AssertionError(group)

    model = Own()
    model.weight = torch.nn.Parameter(torch.zeros(10))
    half_made = torch.nn.Module.__new__(torch.nn.Module)

    found = count([half_made, model, torch.nn.Linear(10, 1, bias=False)], [])

    assert found.held["cpu"]["weights"] == 80


class HQQLinear(torch.nn.Module):  # type: ignore[misc]  # torch is not checked here
    """Stands in for HQQ's: its packed weight is a parameter, what it is read with is in a dict."""

    def __init__(self, packed: Any, **meta: Any) -> None:
        super().__init__()
        self.W_q = torch.nn.Parameter(packed, requires_grad=False)
        self.meta = meta


def test_scales_of_hqq_are_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scales of HQQ's layers count as weights, also where they are quantised in turn."""
    monkeypatch.setitem(sys.modules, "hqq.core.quantize", sys.modules[__name__])
    packed = torch.zeros(64, 8, dtype=torch.uint8)
    inner = {"scale": torch.ones(4), "nbits": 8}
    scales = {"scale": torch.ones(16), "zero_q": torch.zeros(16, dtype=torch.uint8)}
    layer = HQQLinear(packed, **scales, meta_scale=inner, nbits=4, shape=(64, 16))
    found = count([torch.nn.Sequential(layer)], [])

    assert found.held["cpu"]["weights"] == size_of((packed, *scales.values(), torch.ones(4)))
    assert found.contents.dtypes == {"uint8": 64 * 8 + 16, "float32": 4 * 20}


def test_a_real_layer_of_hqq_is_counted_whole() -> None:
    """A real layer of HQQ has the bytes of all tensors that it keeps."""
    hqq = pytest.importorskip("hqq.core.quantize", reason="hqq is not installed")
    layer = hqq.HQQLinear(
        torch.nn.Linear(256, 256, bias=False),
        hqq.BaseQuantizeConfig(nbits=4, group_size=64),
        compute_dtype=torch.float32,
        device="cpu",
    )
    tensors = [one for one in layer.meta.values() if isinstance(one, torch.Tensor)]

    assert count([layer], []).held["cpu"]["weights"] == size_of((layer.W_q, *tensors))


@pytest.mark.parametrize("kind", ["qint8", "qint4"])
def test_real_weights_of_quanto_are_counted_whole(kind: str) -> None:
    """Real weights of quanto have the bytes of all tensors that their wrappers keep."""
    quanto = pytest.importorskip("optimum.quanto", reason="optimum-quanto is not installed")
    model = torch.nn.Sequential(torch.nn.Linear(256, 256, bias=False))
    quanto.quantize(model, weights=getattr(quanto, kind))
    quanto.freeze(model)
    weight = model[0].weight
    inner = [getattr(weight, name) for name in weight.__tensor_flatten__()[0]]
    packed = [getattr(one, "_data", one) for one in inner]

    assert count([model], []).held["cpu"]["weights"] == size_of(packed)


def layer(length: int = 3, **more: Any) -> SimpleNamespace:
    return SimpleNamespace(
        keys=torch.ones(1, 2, length, 4), values=torch.ones(1, 2, length, 4), **more
    )


class Kept(SimpleNamespace):
    """As transformers' caches: layers, and it can be referred to weakly."""


def cache(*layers: object) -> Kept:
    return Kept(layers=list(layers))


def test_each_storage_counts_once() -> None:
    """A storage counts once, also where two caches share it, or a tensor is a view of another."""
    caches = Caches()
    one = cache(layer())
    other = cache(one.layers[0], SimpleNamespace(keys=one.layers[0].keys[:, :1], values=None))
    caches.see(one)
    caches.see(other)

    assert caches.held() == {"cpu": {"kv_cache": 2 * 2 * 3 * 4 * 4}}


def test_a_view_counts_with_its_whole_storage() -> None:
    """A sliding window's slice keeps all of the prompt's keys."""
    kv_cache = cache(SimpleNamespace(keys=torch.ones(1, 2, 100, 4)[:, :, -3:], values=None))

    assert sum(size for _, _, size, _ in storages_in(kv_cache)) == 2 * 100 * 4 * 4


@pytest.mark.usefixtures("uncollected")
def test_a_cache_is_not_kept_and_is_gone_at_once() -> None:
    """A cache is not kept alive, and counts no longer as soon as it is freed."""
    caches, kv_cache = Caches(), cache(layer())
    reference = weakref.ref(kv_cache)
    caches.see(kv_cache)
    del kv_cache

    assert reference() is None
    assert caches.gone
    assert caches.held() == {}
    assert not caches.gone


def test_freed_caches_are_left_out_of_the_next_reading() -> None:
    """A freed cache is 0 in the poller's next reading, which reads no cache."""
    attribution = Attribution(subjects=Subjects(dict))
    kv_cache = cache(layer())
    attribution.cache_grew(kv_cache)
    source = attribution.source
    keys = [series.key for series in source.series]
    assert source.read(0.0)[keys.index("cpu/kv_cache")] == 192
    del kv_cache

    assert source.read(1.0)[keys.index("cpu/kv_cache")] == 0


def test_objects_without_tensors_are_skipped() -> None:
    """A model, a class, a function, a cycle and an unreadable object in a cache have no storages."""

    class Unreadable:
        @property
        def __dict__(self) -> Any:  # type: ignore[override]
            raise RuntimeError

    ring = cache(torch.nn.Linear(2, 2), torch.nn.Linear, print, Unreadable)
    ring.layers.append(ring)

    assert storages_in(ring) == ()


def test_a_cache_with_slots_is_not_counted_rather_than_kept() -> None:
    """A cache with slots, to which no weak reference can be made, is not counted."""

    class Slots:
        __slots__ = ("keys",)
        keys: Any

    caches, kv_cache = Caches(), Slots()
    kv_cache.keys = torch.ones(3)
    caches.see(kv_cache)

    assert caches.held() == {}


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ([layer(), layer()], {"token_bytes": 128, "length": 3}),
        (
            [layer(is_sliding=True, sliding_window=4, cumulative_length=9)],
            {"window_bytes": 64, "window": 4, "length": 9},
        ),
        ([layer(5, max_cache_len=5)], {"token_bytes": 64, "limit": 5, "length": 0}),
    ],
    ids=["growing", "with a window", "of a fixed length"],
)
def test_growth_is_read_from_the_layers(layers: list[object], expected: dict[str, int]) -> None:
    """A cache grows as its layers do; one with a part for an encoder, as the decoder's part."""
    kv_cache = cache(*layers)
    growth = growth_of(kv_cache)
    both = SimpleNamespace(self_attention_cache=kv_cache, cross_attention_cache=cache(layer()))

    assert {name: getattr(growth, name) for name in expected} == expected
    assert growth_of(both) == growth


def test_growth_of_unknown_caches_is_not_guessed() -> None:
    """States without a length, and other objects, have no growth."""
    assert growth_of(cache(SimpleNamespace(conv_states={0: torch.ones(2)}))) is None
    assert growth_of(object()) is None
    assert growth_of(((torch.ones(1, 2, 3, 4),) * 2,)) is not None
