"""What models and optimizers hold, against what their tensors say themselves."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hfmem_widget.monitor.holdings import count, count_gradients, states_in  # noqa: E402  (torch's)


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


def test_gradients_alone_are_counted_by_what_is_optimised() -> None:
    """The quick pass over gradients finds what the whole one finds."""
    model, optimizer = trained()

    held, probe = count_gradients([optimizer])

    assert held["cpu"]["gradients"] == count([model], [optimizer]).held["cpu"]["gradients"]
    assert probe().grad is not None


def test_without_gradients_there_is_no_probe() -> None:
    """After zero_grad nothing is counted, and nothing points at a gradient."""
    _, optimizer = trained()
    optimizer.zero_grad()

    held, probe = count_gradients([optimizer])

    assert held == {}
    assert probe() is None


def test_contents_tell_kinds_and_numbers() -> None:
    """What was found is told: classes, elements, what is trained, and types."""
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
    """How many states there are changes with the first step: three for each parameter, and its place."""
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    before = states_in([optimizer])
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()

    assert (before, states_in([optimizer])) == (0, 8)


def test_asking_for_gradients_warns_nobody() -> None:
    """A parameter that is no leaf is passed over: torch would warn the user."""
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
    """`torch.utils.swap_tensors`, by which DTensors move, wants no weak reference to a parameter."""
    model, optimizer = trained("SGD")
    kept = count_gradients([optimizer]) if by_optimizer else count([model], [])

    with swapping():
        model.to(torch.float64)

    assert kept is not None
    assert next(model.parameters()).dtype == torch.float64


@pytest.mark.parametrize("by_optimizer", [True, False])
def test_the_parameter_that_tells_of_gradients_is_found_again(by_optimizer: bool) -> None:
    """The parameter that tells whether gradients are there is found by its place, and keeps nothing alive."""
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
    """Parameters that share a storage, as an LSTM's on a GPU, are counted one by one, and its bytes once."""
    model, flat = torch.nn.Module(), torch.zeros(1000)
    model.first, model.second = (torch.nn.Parameter(half) for half in flat.split(500))
    model.tied = torch.nn.Parameter(model.second.data)

    found = count([model], [])

    assert found.contents.parameters == 1000
    assert found.held["cpu"]["weights"] == 4000


def test_a_module_that_cannot_be_asked_costs_the_others_nothing() -> None:
    """A class with a `parameters` of its own, and a module that is half made, do not end all counting."""

    class Own(torch.nn.Module):  # type: ignore[misc, name-defined]  # torch may be absent
        def parameters(self, group: str) -> Any:
            raise AssertionError(group)

    model = Own()
    model.weight = torch.nn.Parameter(torch.zeros(10))
    half_made = torch.nn.Module.__new__(torch.nn.Module)

    found = count([half_made, model, torch.nn.Linear(10, 1, bias=False)], [])

    assert found.held["cpu"]["weights"] == 80


class HQQLinear(torch.nn.Module):  # type: ignore[misc, name-defined]  # torch is not checked here
    """Stands in for HQQ's: its packed weight is a parameter, what it is read with is in a dict."""

    def __init__(self, packed: Any, **meta: Any) -> None:
        super().__init__()
        self.W_q = torch.nn.Parameter(packed, requires_grad=False)
        self.meta = meta


def test_scales_of_hqq_are_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where these are quantised in turn; what else the dict has is none."""
    monkeypatch.setitem(sys.modules, "hqq.core.quantize", sys.modules[__name__])
    packed = torch.zeros(64, 8, dtype=torch.uint8)
    inner = {"scale": torch.ones(4), "nbits": 8}
    scales = {"scale": torch.ones(16), "zero_q": torch.zeros(16, dtype=torch.uint8)}
    layer = HQQLinear(packed, **scales, meta_scale=inner, nbits=4, shape=(64, 16))
    found = count([torch.nn.Sequential(layer)], [])

    assert found.held["cpu"]["weights"] == size_of((packed, *scales.values(), torch.ones(4)))
    assert found.contents.dtypes == {"uint8": 64 * 8 + 16, "float32": 4 * 20}


def test_a_real_layer_of_hqq_is_counted_whole() -> None:
    """To the byte of all tensors that it keeps."""
    hqq = pytest.importorskip("hqq.core.quantize", reason="hqq is not installed")
    layer = hqq.HQQLinear(
        torch.nn.Linear(256, 256, bias=False),
        hqq.BaseQuantizeConfig(nbits=4, group_size=64),
        compute_dtype=torch.float32,
        device="cpu",
    )
    kept = [one for one in layer.meta.values() if isinstance(one, torch.Tensor)]

    assert count([layer], []).held["cpu"]["weights"] == size_of((layer.W_q, *kept))


@pytest.mark.parametrize("kind", ["qint8", "qint4"])
def test_real_weights_of_quanto_are_counted_whole(kind: str) -> None:
    """To the byte of all tensors that its wrappers keep."""
    quanto = pytest.importorskip("optimum.quanto", reason="optimum-quanto is not installed")
    model = torch.nn.Sequential(torch.nn.Linear(256, 256, bias=False))
    quanto.quantize(model, weights=getattr(quanto, kind))
    quanto.freeze(model)
    weight = model[0].weight
    inner = [getattr(weight, name) for name in weight.__tensor_flatten__()[0]]
    packed = [getattr(one, "_data", one) for one in inner]

    assert count([model], []).held["cpu"]["weights"] == size_of(packed)
