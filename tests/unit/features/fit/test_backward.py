"""The backward pass without autograd's engine."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

from hfmem_widget.features.fit.backward import run_backward
from hfmem_widget.features.fit.live_bytes import LiveBytes
from tests.data.fit_models import CONFIGS, batch, built

Roots = list[tuple[torch.Tensor, torch.Tensor | None]]


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_gradients_are_the_engines_bit_for_bit(config: Any) -> None:
    """Real tensors show that every node is called once, after all nodes for which it waits."""
    torch.manual_seed(0)
    model, given = built(config), batch(config)
    state = torch.get_rng_state()
    model(**given).loss.backward()
    wanted = {name: one.grad for name, one in model.named_parameters()}
    model.zero_grad()
    torch.set_rng_state(state)
    run_backward([(model(**given).loss, None)])

    assert wanted
    for name, parameter in model.named_parameters():
        expected = wanted[name]
        assert (parameter.grad is None) == (expected is None), name
        assert expected is None or torch.equal(parameter.grad, expected), name


def run_engine(roots: Roots) -> None:
    """Run autograd's own engine."""
    torch.autograd.backward([output for output, _ in roots])


def allocations(make: Callable[[], torch.Tensor], run: Callable[[Roots], None]) -> list[int]:
    """Return the bytes of what a forward and a backward pass allocate, and below 0 of what they free.

    What is freed at one time, in whatever order, comes smallest first; the loss, which its caller may hold,
    is left out.
    """
    torch.manual_seed(0)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        roots: Roots = [(make(), None)]
        run(roots)
        roots.clear()
    memory = sorted(
        (event.start_ns(), event.nbytes())
        for event in seen.profiler.kineto_results.events()
        if event.name() == "[memory]"
    )
    sizes = [size for _, size in memory if abs(size) > 4]
    return [
        size
        for is_made, some in groupby(sizes, lambda size: size > 0)
        for size in (some if is_made else sorted(some))
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_a_models_memory_comes_and_goes_as_with_the_engine(config: Any, dtype: torch.dtype) -> None:
    """To the byte and in the same order, in float32 and under autocast."""
    model, given = built(config), batch(config)

    def loss() -> torch.Tensor:
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            result: torch.Tensor = model(**given).loss
        return result

    by_engine = allocations(loss, run_engine)
    model.zero_grad(set_to_none=True)

    assert allocations(loss, run_backward) == by_engine


class Swish(torch.autograd.Function):  # type: ignore[misc]  # torch is not followed, so its classes are Any
    """A function written in Python."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        share = x.sigmoid()
        return grad * (share + x * share * (1 - share))


HALF, CHANNELS = torch.bfloat16, torch.rand(512, requires_grad=True)
KERNEL = torch.rand(32, 4, 3, 3)


def response_norm(x: torch.Tensor) -> torch.Tensor:
    """Scale by a norm in float32, as ConvNeXt V2 does."""
    norm = torch.linalg.vector_norm(x, dim=1, keepdim=True, dtype=torch.float32)
    return CHANNELS * (x * (norm / (norm.mean(-1, keepdim=True) + 1e-6))) + CHANNELS + x


FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a norm in float32": response_norm,
    "a convolution": lambda x: functional.conv2d(x.view(2, 4, 16, 128), KERNEL, stride=2).relu(),
    "pooled and enlarged": lambda x: functional.interpolate(
        functional.avg_pool2d(x.view(2, 4, 16, 128), 2), scale_factor=2.0
    ),
    "a function in Python": lambda x: Swish.apply(x) + x,
    "used three times": lambda x: (x * 2).relu() + (x * 2).tanh() + x.exp(),
    "in place": lambda x: (x * 1).add_(2).relu_() + x,
    "chosen": lambda x: torch.where(x > 0, x * 2, x * 3),
    "parts": lambda x: (x * 1)[:, :8].sum(1) + (x * 1)[:, ::2].mean(1),
    "rows for experts": lambda x: torch.zeros(32, 512, dtype=x.dtype).index_add(
        0, torch.arange(20), x.view(32, 512)[:20] * 2
    ),
    "stacked": lambda x: torch.stack([x * at for at in range(4)]).mean(0),
    "broadcast": lambda x: (x[:, :1].expand(2, 16, 512) * x).relu(),
    "in two types": lambda x: (x.float() * 2).to(HALF) + x,
    "log of a sum": lambda x: x.logsumexp(-1) + x.max(-1).values,
}


@pytest.mark.parametrize("dtype", [torch.float32, HALF], ids=str)
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS.keys())
def test_memory_comes_and_goes_as_with_the_engine(
    function: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype
) -> None:
    """Inputs, outputs, saved tensors and sums, to the byte and in the engine's order."""
    leaves = x, _ = torch.randn(2, 16, 512).to(dtype).requires_grad_(True), CHANNELS

    def loss() -> torch.Tensor:
        with torch.autocast("cpu", HALF, enabled=dtype == HALF):
            return function(x).float().pow(2).mean()

    seen = []
    for run in (run_engine, run_backward):
        seen.append(allocations(loss, run))
        for leaf in leaves:
            leaf.grad = None
    by_engine, ours = seen

    assert ours == by_engine


def test_a_second_pass_adds() -> None:
    """Existing gradients are added to, and each leaf is reported."""
    leaf = torch.ones(2, requires_grad=True)
    told: list[torch.Tensor] = []
    for _ in range(2):
        run_backward([((leaf * 5).sum(), None)], told.append)

    assert leaf.grad is not None
    assert leaf.grad.tolist() == [10.0, 10.0]
    assert len(told) == 2


@pytest.mark.parametrize(
    "select",
    [
        lambda scores, places: scores.gather(1, places),
        lambda scores, places: scores[places[0]],
        lambda scores, _: scores.max(1).values,
    ],
    ids=["gather", "index", "max"],
)
def test_zeros_for_a_gradient_are_made_once(select: Any) -> None:
    """On a device autograd writes into them in place; for meta tensors it would make others."""
    leaf = torch.empty(64, 64, device="meta", requires_grad=True)
    places = torch.zeros(64, 1, dtype=torch.long, device="meta")
    live = LiveBytes()
    live.leave_out([leaf, places])
    with live:
        loss = select(leaf, places).sum()
        kept = live.now
        live.in_backward = True
        run_backward([(loss, None)])

    assert live.peak - kept < 1.5 * leaf.untyped_storage().nbytes()
