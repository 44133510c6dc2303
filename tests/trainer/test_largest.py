"""The largest batch and the longest rows of a change, as dry runs find them."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

import pytest
import torch

from hfmem_widget.features.fit.moves import DryRuns, largest, moves_of
from hfmem_widget.features.fit.setting import Setting
from tests.trainer.test_moves import Make, gpt2, gpt2_of_two_layers, llama, moves, peak_of, training


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
        assert real_peak(make, most, length, checkpointing) <= 1.01 * room / 2
        more = math.ceil(1.04 * most) if most > usual else most
        longer = math.ceil(1.04 * length) if length > short else length
        assert real_peak(make, more, longer, checkpointing) > 0.99 * room / 2


def real_peak(make: Make, rows: int, length: int, checkpointing: bool) -> float:
    """Return the bytes at the peak of a real step of so many rows and tokens."""
    model = (ran := training(make)).model.train()
    if checkpointing:
        enable: Any = getattr(model, "activation_checkpointing_enable", None)
        (enable or model.gradient_checkpointing_enable)({"use_reentrant": False})
    ids = torch.randint(3, 64, (rows, length))
    return peak_of(
        model, ran.optimizer, {"input_ids": ids, "attention_mask": ids**0, "labels": ids}
    )


@pytest.mark.parametrize("ending", [TimeoutError, KeyboardInterrupt])
def test_what_there_was_no_time_for_is_left_away(ending: type[BaseException]) -> None:
    """And an interrupt ends the search for the largest alone: the changes are listed without."""
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
    known = moves_of(ran, Recorded(ran, until))  # of endless room nothing is the largest
    listed = moves_of(replace(ran, room=9 * ran.forecast.total), Ended(ran, until))

    assert [move.name for move in listed] == [move.name for move in known] != []
    assert {(move.largest_batch, move.longest) for move in listed} == {(None, None)}


def test_where_larger_sizes_have_no_whole_forecast_there_is_no_largest() -> None:
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
