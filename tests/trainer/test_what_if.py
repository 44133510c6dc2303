"""What a training would take at other sizes is what dry runs of them give."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from hfmem_widget.features.fit.moves import DryRuns
from hfmem_widget.features.fit.what_if import what_if
from tests.trainer.test_moves import training
from tests.trainer.tiny import made

WIDE = {"vocab_size": 8000, "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 2,
        "num_attention_heads": 4, "max_position_embeddings": 1024, "pad_token_id": 0}  # fmt: skip
ELSEWHERE = ((3, 100), (6, 200), (12, 90), (16, 64), (2, 250))
"""Rows and tokens to which nothing was fitted."""


bert = partial(made, "BertForMaskedLM", **WIDE)
gpt2 = partial(made, "GPT2LMHeadModel", n_embd=256, n_layer=2, n_head=4, vocab_size=8000,
               bos_token_id=0, eos_token_id=0)  # fmt: skip
llama = partial(made, "LlamaForCausalLM", **WIDE)
t5 = partial(made, "T5ForConditionalGeneration", d_model=256, d_ff=1024, num_layers=2, num_heads=4,
             d_kv=64, vocab_size=8000, decoder_start_token_id=0)  # fmt: skip


def worked_out(of: Any, seconds: float = 600.0) -> tuple[Any, Any]:
    dry = DryRuns(of, time.monotonic() + seconds)
    return what_if(of, dry), dry


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("make", "attention"),
    [
        (bert, "sdpa"),
        (gpt2, "eager"),
        pytest.param(llama, "sdpa", marks=pytest.mark.full),
        pytest.param(llama, "eager", marks=pytest.mark.full),
        pytest.param(bert, "eager", marks=pytest.mark.full),
        pytest.param(gpt2, "sdpa", marks=pytest.mark.full),
        pytest.param(t5, "eager", marks=pytest.mark.full),
    ],
)
def test_other_sizes_take_what_their_dry_runs_say(make: Any, attention: str, device: str) -> None:
    """Within the interval of each, at sizes to which nothing was fitted: the peak is close to theirs.

    The models are so small that the blocks of a GPU's allocator count for much.
    """
    of = training(partial(make, attn_implementation=attention), length=128, device=device)
    known, dry = worked_out(of)

    assert (known.rows, known.lengths) == ((1, 16), (64, 256))
    assert {(each.checkpointing, each.precision) for each in known.variants} >= {
        (False, "fp32"),
        (True, "fp32"),
    }
    for each in known.variants:
        changed = replace(of.setting, checkpointing=each.checkpointing, precision=each.precision)
        for rows, length in ELSEWHERE:
            run = dry(replace(changed, batch=rows, length=length))
            peak = each.peak(rows, length)
            assert peak == pytest.approx(run.total, rel=0.05 if device == "cuda" else 0.02)
            assert each.low * peak <= run.total <= each.high * peak
        own = dry(changed)
        parts = each.parts(8, 128)
        for name in ("weights", "optimizer"):
            assert parts[name] == pytest.approx(own.bytes(name), rel=0.02)


def test_what_no_dry_run_was_made_of_is_not_offered() -> None:
    """Not where there is no time for it, and not of a training without tokens."""
    make = partial(gpt2, attn_implementation="eager")
    assert worked_out(training(make), seconds=-1)[0] is None
    assert worked_out(training(make, length=1))[0] is None


def test_rows_are_no_longer_than_the_model_takes() -> None:
    """Where the training has them as long already, shorter ones alone are known."""
    known, _ = worked_out(training(partial(gpt2, n_positions=64), length=64, batch=2))

    assert known.lengths[1] == 64
    assert known.knows(2, 32)
