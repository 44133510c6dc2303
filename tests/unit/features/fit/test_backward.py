"""The backward pass that does without autograd's engine."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hfmem_widget.features.fit.backward import run_backward
from hfmem_widget.features.fit.live_bytes import LiveBytes
from tests.data.fit_models import CONFIGS, batch, built


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_gradients_are_the_engines_bit_for_bit(config: Any) -> None:
    """Real tensors show that every node is called once, with all that it waits for."""
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


def test_a_tensor_used_twice_gets_both_gradients() -> None:
    """Contributions to one node are added before it is called."""
    leaf = torch.tensor([2.0, 3.0], requires_grad=True)
    middle = leaf * leaf
    run_backward([((middle + middle * 3).sum(), None)])

    assert leaf.grad is not None
    assert leaf.grad.tolist() == [16.0, 24.0]


def test_what_was_broadcast_is_summed() -> None:
    """The engine sums between nodes where shapes differ; so does this."""
    bias = torch.zeros(3, requires_grad=True)
    run_backward([((torch.ones(4, 3) + bias).sum(), None)])

    assert bias.grad is not None
    assert bias.grad.tolist() == [4.0, 4.0, 4.0]


def test_a_second_pass_adds() -> None:
    """Gradients that are there grow, and each leaf is told."""
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
    """On a device autograd writes into them; of meta tensors it would make others."""
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
