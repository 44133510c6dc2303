"""Values on the meta device: those that follow from the batch are known, and shapes that depend on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from hfmem_widget.features.fit.as_on_device import AsOnDevice
from hfmem_widget.features.fit.live_bytes import MOST, LiveBytes, meta_copy, values_of

IDS = torch.tensor([[5, 9, 9, 9, 2], [5, 9, 9, 9, 2]])

SAME: dict[str, Callable[[Any], Any]] = {
    "a mask as an index": lambda ids: torch.empty(2, 5, 8, device=ids.device)[ids == 9].shape,
    "where": lambda ids: torch.where(ids == 9)[0].shape,
    "nonzero": lambda ids: (ids == 9).nonzero().shape,
    "masked_select": lambda ids: (
        torch.masked_select(torch.empty(2, 5, 8, device=ids.device), (ids == 9)[..., None]).shape
    ),
    "repeat_interleave": lambda ids: torch.repeat_interleave(ids[0], ids[0]).shape,
    "unique": lambda ids: torch.unique_consecutive(ids[0]).shape,
    "split by values": lambda ids: [one.shape for one in ids.new_zeros(34).split(ids[0].tolist())],
    "item": lambda ids: ids.sum().item(),
    "list": lambda ids: (ids * 2).tolist(),
    "numbers": lambda ids: torch.tensor([3, 4], device=ids.device).cumsum(0).tolist(),
    "a range": lambda ids: torch.arange(6, device=ids.device).view(2, 3)[1].tolist(),
    "set in place": lambda ids: ids.clone().fill_(3).tolist(),
    "set through a view": lambda ids: _set_first(ids.clone()).tolist(),
    "a name": lambda ids: f"expert_{ids[0, 0]}",
    "NumPy": lambda ids: ids.numpy().tolist(),
    "any": lambda ids: bool((ids == 9).any()),
    "to the host": lambda ids: (ids == 9).cpu().tolist(),
}
"""What code asks of a batch's values."""


def _set_first(ids: Any) -> Any:
    ids[0][1:] = 0
    return ids


@pytest.mark.parametrize("ask", SAME.values(), ids=SAME.keys())
def test_values_that_follow_from_the_batch_are_as_on_the_host(ask: Callable[[Any], Any]) -> None:
    """And so are shapes that depend on them."""
    with LiveBytes(), AsOnDevice("cpu"):
        told = ask(meta_copy(IDS))

    assert told == ask(IDS)


def test_tokens_are_spread_evenly_over_experts() -> None:
    """If weights choose, each expert gets the same number of tokens, and the assumption is marked."""
    live = LiveBytes()
    with live:
        chosen = torch.empty(12, 4, device="meta").topk(2, -1).indices
        assert not live.known.assumed
        counts = [torch.where(chosen == expert)[0].numel() for expert in range(4)]

    assert counts == [6] * 4
    assert live.known.assumed


def test_values_overwritten_with_unknown_ones_are_forgotten() -> None:
    """A number that follows from weights does not keep its former value."""
    with LiveBytes():
        ids = meta_copy(IDS)
        ids.copy_(torch.empty(2, 5, device="meta").mul(2).long())

    assert values_of(ids) is None


def test_values_of_large_tensors_are_not_kept() -> None:
    """A dry run needs no memory for the values of tensors that fill a device."""
    with LiveBytes():
        large = torch.zeros(MOST + 1, dtype=torch.int64, device="meta")

    assert values_of(large) is None


def test_stored_values_do_not_count() -> None:
    """They belong to the dry run itself."""
    live = LiveBytes()
    with live:
        ids = meta_copy(IDS)
        found = ids.nonzero()

    assert live.peak == 8 * (ids.numel() + found.numel())
