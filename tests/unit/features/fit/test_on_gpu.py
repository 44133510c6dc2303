"""What a GPU's allocator and kernels give and take, as a forecast counts it, and what would stop a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hfmem_widget.errors import OptionError
from hfmem_widget.features.fit import media
from hfmem_widget.features.fit.as_on_device import AsOnDevice
from hfmem_widget.features.fit.live_bytes import LiveBytes
from hfmem_widget.features.fit.trial import Checked
from hfmem_widget.features.fit.workspaces import within
from hfmem_widget.text import MIB

FUNCTIONAL = torch.nn.functional
LENGTH = 64
SCORES = 2 * LENGTH**2


@pytest.mark.parametrize(
    ("size", "given"),
    [
        (1, 512),
        (9 * MIB + 1, 9 * MIB + 512),
        (125 * MIB, 126 * MIB),
        (124 * MIB + 1, 124 * MIB + 512),
    ],
)
def test_a_large_tensor_gets_its_segment_whole(size: int, given: int) -> None:
    """Segments are multiples of 2 MiB, and one is not cut where no more than 1 MiB would be left."""
    assert LiveBytes(512).rounded(size) == given
    assert LiveBytes(1).rounded(size) == size


def test_a_safe_softmax_marks_what_is_infinite() -> None:
    """A byte for each score, and one for each row."""
    scores = torch.empty(2, LENGTH, LENGTH, device="meta")

    assert within(torch.ops.aten._safe_softmax.default, (scores, -1)) == SCORES + 2 * LENGTH


def test_wide_heads_sum_the_gradients_of_keys_and_values_too() -> None:
    """The efficient kernel does in half precision, in float32 and whole blocks."""
    query, key, value = (
        torch.empty(1, 2, LENGTH, width, dtype=torch.bfloat16, device="meta")
        for width in (192, 192, 128)
    )
    kernel = torch.ops.aten._scaled_dot_product_efficient_attention_backward.default

    of_queries = 2 * 128 * (4 + 192 * 4)
    assert within(kernel, (query, query, key, value)) == of_queries + 2 * LENGTH * (256 + 128) * 4
    assert within(kernel, (query, value, value, value)) == 2 * 128 * (4 + 128 * 4)


def attended(device: str, *, learned: bool, width: int = 16, dropout: float = 0.0) -> int:
    """Return the bytes that attention keeps for the backward pass."""
    query, key, value = (
        torch.empty(1, 2, LENGTH, size, device="meta", requires_grad=True)
        for size in (16, 16, width)
    )
    mask = torch.empty(1, 2, LENGTH, LENGTH, device="meta", requires_grad=learned)
    live = LiveBytes()
    live.leave_out([query, key, value, mask])
    with live, AsOnDevice(device):
        out = FUNCTIONAL.scaled_dot_product_attention(query, key, value, mask, dropout_p=dropout)
        kept = live.now
    assert out.shape[-1] == width
    return kept


def test_dropout_in_attention_with_a_learned_mask_keeps_bytes() -> None:
    """A byte and the result for each score, beside the softmax."""
    more = attended("cuda", learned=True, dropout=0.1) - attended("cuda", learned=True)

    assert more == SCORES * (1 + 4)


def test_values_of_another_width_need_no_scores() -> None:
    """The efficient kernel takes them on a GPU; on the host nothing does."""
    assert attended("cuda", learned=False, width=32) < SCORES * 4
    assert attended("cpu", learned=False, width=32) > SCORES * 4


def test_features_may_be_an_attribute_beside_the_output() -> None:
    """As in Idefics3, where the output has no key for them; the rest of it is not counted."""

    class Output(dict[str, Any]):
        pooler_output = torch.empty(2, 3, 8)

    class Model:
        training = False

        def get_image_features(self) -> Output:
            return Output(last_hidden_state=torch.empty(2, 12, 8))

        def get_input_embeddings(self) -> Any:
            return torch.nn.Embedding(4, 8)

        def eval(self) -> None:
            pass

        def train(self, mode: bool) -> None:
            pass

    assert media._features(Model(), "get_image_features", {}, 2) == 3


@pytest.mark.parametrize(
    "stop",
    [
        lambda: torch.zeros(2, 4).masked_scatter(torch.ones(2, 1, dtype=torch.bool), torch.ones(7)),
        lambda: FUNCTIONAL.embedding(torch.tensor([4]), torch.zeros(4, 2)),
        lambda: FUNCTIONAL.embedding(torch.tensor([-1]), torch.zeros(4, 2)),
        lambda: FUNCTIONAL.cross_entropy(torch.zeros(2, 3), torch.tensor([0, 3])),
    ],
    ids=["image", "token", "negative", "label"],
)
def test_values_out_of_range_never_reach_the_gpu(stop: Any) -> None:
    """They are refused before the operation that a GPU would not survive."""
    with Checked(), pytest.raises(OptionError):
        stop()


def test_values_in_range_pass() -> None:
    """Labels that are to be ignored, too."""
    with Checked():
        row = torch.zeros(2, 4).masked_scatter(torch.ones(2, 1, dtype=torch.bool), torch.ones(8))
        FUNCTIONAL.embedding(torch.tensor([0, 3]), row.T)
        loss = FUNCTIONAL.cross_entropy(torch.zeros(2, 3), torch.tensor([-100, 2]))

    assert row.sum() == 8
    assert loss > 0
