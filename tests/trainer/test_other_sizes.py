"""What a training would take at other sizes, and the largest that fit, as dry runs find them."""

import math
import time
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from hfmem_widget.features.fit.moves import DryRuns, largest, moves_of
from hfmem_widget.features.fit.setting import Setting
from hfmem_widget.features.fit.what_if import what_if
from tests.trainer.models import Make, gpt2, gpt2_of_two_layers, llama, moves, real_peak, training
from tests.trainer.tiny import made


@pytest.mark.parametrize("make", [gpt2_of_two_layers, llama], ids=["gpt2", "llama"])
def test_the_largest_batch_and_length_fit_in_real_steps(make: Make) -> None:
    """A step of either is within the room, as malloc may map twice its tensors; one of 4 % more is not."""
    ran = training(make)
    room = 2.5 * ran.forecast.total
    listed = moves(replace(ran, room=room))
    sizes = {
        (rows, length, "checkpointing" in move.name): (move.batch, move.length)
        for move in listed
        if move.name == "gradient checkpointing" or "tokens" in move.name
        for rows, length in ((move.largest_batch, move.length), (move.batch, move.longest))
        if rows and length and length < 128
    }
    assert len(sizes) >= 2
    for (most, length, checkpointing), (usual, short) in sizes.items():
        assert most > usual or length > short
        assert step_of(make, most, length, checkpointing) <= 1.01 * room / 2
        more = math.ceil(1.04 * most) if most > usual else most
        longer = math.ceil(1.04 * length) if length > short else length
        assert step_of(make, more, longer, checkpointing) > 0.99 * room / 2


def step_of(make: Make, rows: int, length: int, checkpointing: bool) -> float:
    """Return the bytes at the peak of a real step of so many rows and tokens."""
    ids = torch.randint(3, 64, (rows, length))
    batch = {"input_ids": ids, "attention_mask": ids**0, "labels": ids}
    return real_peak(make, batch, checkpointing)


@pytest.mark.parametrize("ending", [TimeoutError, KeyboardInterrupt])
def test_the_largest_sizes_are_left_out_if_time_runs_out(ending: type[BaseException]) -> None:
    """An interrupt ends only the search for the largest sizes: the changes are listed without them."""
    ran = training(gpt2)
    made: set[Setting] = set()

    class Recorded(DryRuns):
        def __call__(self, setting: Setting) -> Any:
            made.add(setting)
            return super().__call__(setting)

    class Ended(DryRuns):
        def __call__(self, setting: Setting) -> Any:
            if setting not in made:
                raise ending
            return super().__call__(setting)

    until = time.monotonic() + 60
    known = list(moves_of(ran, Recorded(ran, until)))  # of endless room nothing is the largest
    listed = list(moves_of(replace(ran, room=9 * ran.forecast.total), Ended(ran, until)))

    assert [move.name for move in listed] == [move.name for move in known] != []
    assert {(move.largest_batch, move.longest) for move in listed} == {(None, None)}


def test_the_largest_size_is_unknown_if_larger_ones_have_no_whole_forecast() -> None:
    """Such as of a rank of DistributedDataParallel whose forward pass has the peak there."""
    ran = training(gpt2)
    own = ran.setting.batch * ran.setting.length

    class Incomplete(DryRuns):
        def __call__(self, setting: Setting) -> Any:
            left_out = ("copies",) * (setting.batch * setting.length > own)
            return replace(super().__call__(setting), left_out=left_out)

    roomy = replace(ran, room=9 * ran.forecast.total)
    dry = Incomplete(roomy, time.monotonic() + 60)
    sizes = [largest(roomy, dry, ran.setting, name) for name in ("batch", "length")]

    assert sizes == [None, None]


WIDE = {"vocab_size": 8000, "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 2,
        "num_attention_heads": 4, "max_position_embeddings": 1024, "pad_token_id": 0}  # fmt: skip
ELSEWHERE = ((3, 100), (6, 200), (12, 90), (16, 64), (2, 250))
"""Rows and tokens to which nothing was fitted."""


bert = partial(made, "BertForMaskedLM", **WIDE)
wide_gpt2 = partial(made, "GPT2LMHeadModel", n_embd=256, n_layer=2, n_head=4, vocab_size=8000,
               bos_token_id=0, eos_token_id=0)  # fmt: skip
wide_llama = partial(made, "LlamaForCausalLM", **WIDE)
t5 = partial(made, "T5ForConditionalGeneration", d_model=256, d_ff=1024, num_layers=2, num_heads=4,
             d_kv=64, vocab_size=8000, decoder_start_token_id=0)  # fmt: skip


def worked_out(run: Any, seconds: float = 600.0) -> tuple[Any, Any]:
    dry = DryRuns(run, time.monotonic() + seconds)
    return what_if(run, dry), dry


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("make", "attention"),
    [
        (bert, "sdpa"),
        (wide_gpt2, "eager"),
        pytest.param(wide_llama, "sdpa", marks=pytest.mark.full),
        pytest.param(wide_llama, "eager", marks=pytest.mark.full),
        pytest.param(bert, "eager", marks=pytest.mark.full),
        pytest.param(wide_gpt2, "sdpa", marks=pytest.mark.full),
        pytest.param(t5, "eager", marks=pytest.mark.full),
    ],
)
def test_other_sizes_take_what_their_dry_runs_say(make: Any, attention: str, device: str) -> None:
    """Within the interval of each, at sizes to which nothing was fitted: the peak is close to theirs.

    The models are so small that the blocks of a GPU's allocator count for much.
    """
    base = training(partial(make, attn_implementation=attention), length=128, device=device)
    known, dry = worked_out(base)

    assert (known.rows, known.lengths) == ((1, 16), (64, 256))
    assert {(each.checkpointing, each.precision) for each in known.variants} >= {
        (False, "fp32"),
        (True, "fp32"),
    }
    for each in known.variants:
        changed = replace(base.setting, checkpointing=each.checkpointing, precision=each.precision)
        for rows, length in ELSEWHERE:
            run = dry(replace(changed, batch=rows, length=length))
            peak = each.peak(rows, length)
            assert peak == pytest.approx(run.total, rel=0.05 if device == "cuda" else 0.02)
            assert each.low * peak <= run.total <= each.high * peak
        own = dry(changed)
        parts = each.parts(8, 128)
        for name in ("weights", "optimizer"):
            assert parts[name] == pytest.approx(own.bytes(name), rel=0.02)


def test_sizes_without_a_dry_run_are_not_offered() -> None:
    """There is none without time for it, or for a training without tokens."""
    make = partial(wide_gpt2, attn_implementation="eager")
    assert worked_out(training(make), seconds=-1)[0] is None
    assert worked_out(training(make, length=1))[0] is None


def test_rows_are_no_longer_than_the_model_takes() -> None:
    """If the rows are as long as the model takes, only shorter ones are known."""
    known, _ = worked_out(training(partial(wide_gpt2, n_positions=64), length=64, batch=2))

    assert known.lengths[1] == 64
    assert known.knows(2, 32)
