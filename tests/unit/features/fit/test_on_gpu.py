"""The rules of a GPU's allocator and kernels in a forecast."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hfmem_widget.features.fit.allocator import (
    CachingAllocator,
    Heap,
    Moment,
    ReplayBlock,
    ReplayPeak,
    play,
)
from hfmem_widget.features.fit.as_on_device import AsOnDevice
from hfmem_widget.features.fit.live_bytes import LiveBytes
from hfmem_widget.features.fit.workspaces import prefers_cudnn, within

FUNCTIONAL = torch.nn.functional
KIB, MIB = 1 << 10, 1 << 20
LENGTH = 64
SCORES = 2 * LENGTH**2


def test_a_safe_softmax_has_masks_and_its_backward_pass_a_product() -> None:
    """Masks have a byte for each score and row; the product of gradient and result is made on a GPU only."""
    scores = torch.empty(2, LENGTH, LENGTH, device="meta")
    arguments = (scores, scores, -1, torch.float32)
    backward = torch.ops.aten._softmax_backward_data.default

    assert within(torch.ops.aten._safe_softmax.default, (scores, -1)) == SCORES + 2 * LENGTH
    assert within(backward, arguments) == 4 * SCORES
    assert within(backward, arguments, on_gpu=False) == 0


def test_wide_heads_sum_the_gradients_of_keys_and_values_too() -> None:
    """The efficient kernel does so in half precision, with sums in float32 and whole blocks."""
    query, key, value = (
        torch.empty(1, 2, LENGTH, width, dtype=torch.bfloat16, device="meta")
        for width in (192, 192, 128)
    )
    kernel = torch.ops.aten._scaled_dot_product_efficient_attention_backward.default

    of_queries = 2 * 128 * (4 + 192 * 4)
    assert within(kernel, (query, query, key, value)) == of_queries + 2 * LENGTH * (256 + 128) * 4
    assert within(kernel, (query, value, value, value)) == 2 * 128 * (4 + 128 * 4)


def test_flash_attention_sums_gradients_of_queries_and_of_shared_keys() -> None:
    """Sums of queries are in float32, and those of shared keys for each head; a matrix product needs none."""
    query, key = (
        torch.empty(2, heads, 128, 64, dtype=torch.bfloat16, device="meta") for heads in (4, 2)
    )
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_backward.default

    rows = 2 * 4 * 128
    sums, shared = rows * 4 + rows * 64 * 4, 2 * rows * 64 * 2
    assert within(kernel, (query, query, query, query)) == sums
    assert within(kernel, (query, query, key, key)) == sums + shared
    assert within(torch.ops.aten.mm.default, (query, key)) == 0


@pytest.mark.parametrize(
    ("shape", "dims", "mib"),
    [
        ((4096, 1024), [0], 32.0),
        ((4096, 4096), [0], 128.0),
        ((12608, 1024), [0], 98.5),
        ((12608, 4096), [0], 132.0),
        ((8, 2048, 1024), [0, 1], 128.0),
        ((4, 512, 128), [0, 1], 2.0),
        ((64, 1024), [0], 0.0),
        ((4096, 1024), [1], 0.0),
    ],
)
def test_row_sums_keep_partial_sums(shape: tuple[int, ...], dims: list[int], mib: float) -> None:
    """Measured on an H100: blocks of threads that share a sum store theirs in memory; a CPU does not."""
    values = torch.empty(shape, dtype=torch.bfloat16, device="meta")

    assert within(torch.ops.aten.sum.dim_IntList, (values, dims)) == mib * MIB
    assert within(torch.ops.aten.sum.dim_IntList, (values, dims), on_gpu=False) == 0


@pytest.mark.parametrize(
    ("dtype", "values", "weight", "stride", "mib"),
    [
        (torch.float32, (16, 3, 224, 224), (64, 3, 7, 7), 2, 58.22),
        (torch.float32, (16, 64, 56, 56), (64, 64, 3, 3), 1, 24.64),
        (torch.float32, (16, 128, 56, 56), (128, 128, 3, 3), 2, 31.19),
        (torch.bfloat16, (2, 512, 6399), (512, 512, 3), 2, 20.25),
        (torch.bfloat16, (2, 128, 384, 384), (32, 128, 3, 3), 1, 0.0),
    ],
)
def test_a_convolution_has_its_channels_copied(
    dtype: torch.dtype, values: tuple[int, ...], weight: tuple[int, ...], stride: int, mib: float
) -> None:
    """Measured on an H100 (ResNet, WavLM, DPT); not if they are last already, and not on a CPU."""
    inputs = torch.empty(values, dtype=dtype, device="meta")
    kernel = torch.empty(weight, dtype=dtype, device="meta")
    dimensions = len(values) - 2
    padding = [weight[-1] // 2 if dimensions == 2 else 0] * dimensions
    more = [stride] * dimensions, padding, [1] * dimensions, False, [0] * dimensions, 1
    func, back = torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default
    output = func(inputs, kernel, None, *more)

    assert within(func, (inputs, kernel, None, *more), output) / MIB == pytest.approx(mib, abs=0.01)
    assert within(back, (output, inputs, kernel, None, *more, [True] * 3)) / MIB == pytest.approx(
        mib, abs=0.01
    )
    assert within(func, (inputs, kernel, None, *more), output, on_gpu=False) == 0
    if dimensions == 2:
        last = inputs.to(memory_format=torch.channels_last)
        assert within(func, (last, kernel, None, *more), output) == 0


IS_CUDNN = pytest.mark.skipif(not prefers_cudnn(), reason="attention is flash's in this PyTorch")


@IS_CUDNN
@pytest.mark.parametrize(
    ("shape", "keys", "mib"), [((64, 16, 197, 64), 16, 50.02), ((8, 16, 2048, 64), 4, 129.0)]
)
def test_cudnn_sums_gradients(shape: tuple[int, int, int, int], keys: int, mib: float) -> None:
    """Measured on an H100: in float32, together with those of keys that several heads share."""
    query = torch.empty(shape, dtype=torch.bfloat16, device="meta")
    key = query[:, :keys]
    kernel = torch.ops.aten._scaled_dot_product_cudnn_attention_backward.default

    assert within(kernel, (query, query, key, key)) == pytest.approx(mib * MIB, rel=1e-4)


@IS_CUDNN
@pytest.mark.parametrize(("chosen", "name"), [("0", "Cudnn"), ("1", "Flash")])
def test_the_library_of_attention(chosen: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On Hopper it is cuDNN in half precision, unless PyTorch has another setting."""
    monkeypatch.setenv("TORCH_CUDNN_SDPA_DEPRIORITIZED", chosen)
    query = torch.empty(1, 2, LENGTH, 16, device="meta", dtype=torch.bfloat16, requires_grad=True)
    with AsOnDevice("cuda"):
        out = FUNCTIONAL.scaled_dot_product_attention(query, query, query)

    assert name in type(out.grad_fn).__name__


def kept_by(work: Any, *inputs: torch.Tensor) -> tuple[int, Any]:
    """Return the bytes that remain after work under autocast on a GPU, and its result."""
    live = LiveBytes()
    live.leave_out(inputs)
    with live, AsOnDevice("cuda", torch.bfloat16):
        result = work(*inputs)
        return live.now, result


LABELS = torch.zeros(128, dtype=torch.long, device="meta")


@pytest.mark.parametrize(
    ("work", "shape", "expected"),
    [
        # As `upsample_bilinear2d` in PyTorch's list, by whichever name it is asked for: as in DPT.
        (lambda one: FUNCTIONAL.interpolate(one, scale_factor=2.0, mode="bilinear"), (1, 2, 4, 4), 512),
        # A norm is told to compute in float32, and makes no copy of what goes in: as in ConvNeXt V2.
        (lambda one: torch.linalg.vector_norm(one, dim=1), (64, 32), 64 * 4),
        # `log_softmax` is told to stay in half precision; the loss, and the sum of the weights.
        (lambda one: FUNCTIONAL.cross_entropy(one, LABELS), (128, 64), 128 * 64 * (2 + 4) + 2 * 4),
    ],
    ids=["enlarged pictures", "norm", "cross entropy"],
)  # fmt: skip
def test_autocast_keeps_as_much_as_a_gpu(work: Any, shape: tuple[int, ...], expected: int) -> None:
    """From inputs in half precision, these operations give results in float32."""
    inputs = torch.empty(shape, device="meta", dtype=torch.bfloat16, requires_grad=True)
    kept, result = kept_by(work, inputs)

    assert result.dtype == torch.float32
    assert kept == expected


def test_operations_inside_pytorchs_functions_are_followed() -> None:
    """Autocast also casts within the attention of `MultiheadAttention`, as in SigLIP and WavLM."""
    module = torch.nn.MultiheadAttention(16, 2, batch_first=True, device="meta")
    rows = torch.empty(2, 8, 16, device="meta")

    _, (attended_rows, shares) = kept_by(lambda one: module(one, one, one), rows)

    assert attended_rows.dtype == torch.bfloat16
    assert shares.dtype == torch.float32


def attended(
    device: str,
    *,
    learned: bool = False,
    width: int = 16,
    dropout: float = 0.0,
    length: int = LENGTH,
    across: bool = False,
    dtype: torch.dtype = torch.float32,
    heads_of_keys: int = 2,
    mask_of: tuple[int, ...] = (1, 2),
) -> int:
    """Return the bytes that attention keeps for the backward pass; a mask may be laid `across` its rows."""
    query, key, value = (
        torch.empty(1, heads, length, size, device="meta", requires_grad=True, dtype=dtype)
        for heads, size in ((2, 16), (heads_of_keys, 16), (heads_of_keys, width))
    )
    mask = torch.empty(*mask_of, length, length, device="meta", dtype=dtype)
    mask = (mask.mT if across else mask).requires_grad_(learned)
    live = LiveBytes()
    live.leave_out([query, key, value, mask])
    with live, AsOnDevice(device):
        out = FUNCTIONAL.scaled_dot_product_attention(query, key, value, mask, dropout_p=dropout)
        kept = live.now
    assert out.shape[-1] == width
    return kept


def test_attention_without_a_kernel_keeps_bytes_of_dropout_and_computes_in_float32() -> None:
    """T5's learned mask lies across: each score keeps a byte and the result, beside the softmax."""
    plain, dropped, half = (
        attended("cuda", learned=True, across=True, **more)
        for more in ({}, {"dropout": 0.1}, {"dropout": 0.1, "dtype": torch.bfloat16})
    )

    assert dropped - plain == SCORES * (1 + 4)
    assert half > SCORES * (4 + 1 + 4)


def test_a_mask_of_three_dimensions_goes_to_the_efficient_kernel() -> None:
    """On an H100, cuDNN refuses such a mask."""
    padded = attended("cuda", length=49, mask_of=(2,), dtype=torch.bfloat16)

    assert padded >= attended("cuda", length=49, dtype=torch.bfloat16) + 2 * 49 * 56 * 2


HALF = torch.bfloat16


@pytest.mark.parametrize(
    ("device", "more", "needs_scores"),
    [
        # The efficient kernel returns a mask's gradient, as in Swin; the host's kernel does not.
        ("cuda", {"learned": True}, False),
        ("cuda", {"learned": True, "dtype": HALF}, False),
        ("cpu", {"learned": True}, True),
        ("cpu", {"learned": True, "dtype": HALF}, True),
        # No kernel of a GPU takes a mask that lies across its rows.
        ("cuda", {"across": True}, True),
        ("cuda", {"across": True, "learned": True}, True),
        # None takes a head of keys that is broadcast without `enable_gqa`: as in Falcon.
        ("cuda", {"heads_of_keys": 1, "dtype": HALF}, True),
        ("cpu", {"heads_of_keys": 1}, True),
        # Values may have another width on a GPU, in rows of whole 16 bytes.
        ("cuda", {"width": 32}, False),
        ("cuda", {"width": 20}, False),
        ("cuda", {"width": 18}, True),
        ("cpu", {"width": 32}, True),
        ("cpu", {"mask_of": (2,)}, True),
    ],
)
def test_kernels_keep_no_scores(device: str, more: dict[str, Any], *, needs_scores: bool) -> None:
    """Without a kernel, attention keeps at least one element for each pair of tokens."""
    size = more.get("dtype", torch.float32).itemsize

    assert (attended(device, **more) > SCORES * size) is needs_scores


def test_rows_of_a_mask_are_padded_for_the_efficient_kernel() -> None:
    """They have a multiple of 8 elements: Swin's windows of 49 keep a mask of 56."""
    padded = attended("cuda", length=49) - 2 * 49 * 16 * 4

    assert padded >= 2 * 49 * 56 * 4
    assert padded == pytest.approx(2 * 49 * 56 * 4, abs=2 * 64 * 4 + 64)


# Cases follow `DeviceCachingAllocator` in c10/cuda/CUDACachingAllocator.cpp of torch 2.11.
MADE, GONE, BESIDES, MARKED, RESTARTED = Moment


@pytest.mark.parametrize(
    ("before", "need", "served", "reserved"),
    [
        # A first one: a multiple of 512 bytes, or its whole segment where no more than 1 MiB is left.
        ([], 1, 512, 2 * MIB),
        ([], 513, 1024, 2 * MIB),
        ([], MIB, MIB, 2 * MIB),
        ([], MIB + 1, MIB + 512, 20 * MIB),
        ([], 9 * MIB + 1, 9 * MIB + 512, 20 * MIB),
        ([], 10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        ([], 10 * MIB, 10 * MIB, 10 * MIB),
        ([], 124 * MIB + 1, 124 * MIB + 512, 126 * MIB),
        ([], 125 * MIB - 512, 125 * MIB - 512, 126 * MIB),
        ([], 125 * MIB, 126 * MIB, 126 * MIB),
        # Of the small pool everything is cut off that is a block at all.
        ([1536], 1024, 1024, 2 * MIB),
        ([1 * MIB], 1 * MIB, 1 * MIB, 2 * MIB),
        # Of the large pool only more than 1 MiB is.
        ([32 * MIB], 31 * MIB, 32 * MIB, 32 * MIB),
        ([32 * MIB], 31 * MIB - 512, 31 * MIB - 512, 32 * MIB),
        ([12 * MIB], 2 * MIB, 2 * MIB, 12 * MIB),
        # The smallest that is large enough, whichever was freed last.
        ([40 * MIB, 14 * MIB, 20 * MIB], 13 * MIB, 14 * MIB, 74 * MIB),
        ([40 * MIB, 14 * MIB, 20 * MIB], 15 * MIB, 15 * MIB, 74 * MIB),
        ([40 * MIB, 14 * MIB, 20 * MIB], 41 * MIB, 42 * MIB, 116 * MIB),
        # Neither pool serves the other.
        ([40 * MIB], 512 * KIB, 512 * KIB, 42 * MIB),
        ([512 * KIB], 2 * MIB, 2 * MIB, 22 * MIB),
    ],
)
def test_freed_blocks_come_first(before: list[int], need: int, served: int, reserved: int) -> None:
    """A freed block is used even if it is larger than the request."""
    allocator = CachingAllocator()
    for block in [allocator.allocate(size) for size in before]:
        allocator.free(block)

    assert allocator.allocate(need).size == allocator.allocated == served
    assert allocator.reserved == reserved


@pytest.mark.parametrize(
    ("sizes", "freed", "need", "address", "reserved"),
    [
        # Of one size the lowest, in whatever order they were freed.
        ([12, 12, 12], (2, 1, 0), 12, 0, 36),
        # Free neighbours become one, in whatever order, and with what was left over beside them.
        *(([6, 6, 6], order, 20, 0, 20) for order in ((0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 0, 2))),
        # Neighbours in use keep them apart: two holes of 6 MiB do not serve 12.
        ([6, 2, 6, 6], (0, 2), 12, 20, 32),
        # Nor do segments become one, though one lies beside the other.
        ([12, 12], (0, 1), 24, 24, 48),
    ],
)
def test_the_address_of_a_request_after_others_were_freed(
    sizes: list[int], freed: tuple[int, ...], need: int, address: int, reserved: int
) -> None:
    """It is in a free block that is large enough, else in a new segment; all sizes are in MiB."""
    allocator = CachingAllocator()
    blocks = [allocator.allocate(size * MIB) for size in sizes]
    for at in freed:
        allocator.free(blocks[at])

    assert allocator.allocate(need * MIB).address == address * MIB
    assert allocator.reserved == reserved * MIB


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40 * MIB)), max_size=60))
@settings(max_examples=60)
def test_blocks_never_overlap(requests: list[tuple[int, int]]) -> None:
    """Each is large enough, and all are within the reserved memory."""
    allocator = CachingAllocator()
    blocks: list[ReplayBlock] = []
    for at, size in requests:
        if at < len(blocks):
            allocator.free(blocks.pop(at))
        blocks.append(allocator.allocate(size))
        assert blocks[-1].size >= size
    spans = sorted((block.address, block.address + block.size) for block in blocks)

    assert allocator.allocated == sum(block.size for block in blocks) <= allocator.reserved
    assert all(stop <= start for (_, stop), (start, _) in pairwise(spans))
    assert all(stop <= allocator.reserved for _, stop in spans)


def test_peaks_between_restarts() -> None:
    """Each peak has its marked bytes; bytes that an operation needs count only while it runs."""
    events = (
        (MADE, 1, 100),
        (RESTARTED, 0, 0),
        (MADE, 2, 50),
        (MARKED, 2, 0),
        (GONE, 1, 0),
        (RESTARTED, 0, 0),
        (BESIDES, 0, 500),
        (MADE, 3, 0),
        (GONE, 2, 0),
    )
    played = play(events, Heap())

    assert played.peaks == (ReplayPeak(100, 0), ReplayPeak(150, 0), ReplayPeak(550, 50))
    assert played.left == ()
    assert played.marked == 0


def test_freed_blocks_are_not_always_cut() -> None:
    """A request gets a whole block if little of it would be left."""
    request = ((MADE, 3, 12 * MIB + 512 * KIB),)
    fresh, used = CachingAllocator(), CachingAllocator()
    play(((MADE, 1, 40 * MIB), (GONE, 1, 0), (MADE, 2, 27 * MIB)), used)

    assert play(request, fresh).peaks == (ReplayPeak(12 * MIB + 512 * KIB, 0),)
    assert play(request, used).peaks == (ReplayPeak(13 * MIB, 0),)
