"""Forecasts with Liger's kernels; a stand-in has the code around them, which run on a GPU alone."""

import sys
import time
import weakref
from dataclasses import replace
from functools import wraps
from types import MethodType, ModuleType
from typing import Any

import pytest
import torch
from transformers.models.llama import modeling_llama

import hfmem_widget
from hfmem_widget.errors import OptionError
from hfmem_widget.features.fit import dry_run
from hfmem_widget.features.fit.model import Forecast
from hfmem_widget.features.fit.moves import DryRuns, moves_of
from hfmem_widget.features.fit.predict import changed_forecast, predict
from hfmem_widget.features.fit.setting import Setting
from hfmem_widget.features.fit.training import Training
from hfmem_widget.monitor.batch import SeenBatch
from hfmem_widget.session import Device
from hfmem_widget.text import MIB
from tests.fakes import liger
from tests.trainer.tiny import made

ROWS, LENGTH, WORDS, WIDTH = 4, 64, 32000, 128


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Liger, as if it were installed and imported."""
    return liger.install(monkeypatch)


def llama() -> Any:
    return made(
        "LlamaForCausalLM", vocab_size=WORDS, hidden_size=WIDTH, intermediate_size=128,
        num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=LENGTH, pad_token_id=0,
    )  # fmt: skip


def forecast(model: Any, **options: Any) -> Forecast:
    setting = Setting(batch=ROWS, length=LENGTH, precision="pure bf16", device="cuda")
    optimizer = torch.optim.SGD(model.parameters())
    return changed_forecast(model, replace(setting, **options), optimizer)


def test_a_forecast_with_liger_has_no_logits(stand_in: ModuleType) -> None:
    """Liger's kernels make logits for a part of the rows at a time, and keep none."""
    model = llama()
    logits = ROWS * LENGTH * WORDS * 2

    saved = forecast(model).total - forecast(model, liger=True).total

    assert saved > 2 * logits  # with their gradient


def test_the_heads_gradient_is_summed_in_place_in_half_precision(stand_in: ModuleType) -> None:
    """A GPU adds each part to it; only other devices make a product as large as the head first."""
    head, logits = WORDS * WIDTH * 2, ROWS * LENGTH * WORDS * 2

    assert forecast(llama(), liger=True).bytes("activations") < logits / 2 + head + 8 * MIB


def test_a_model_with_ligers_kernels_has_their_forecast(stand_in: ModuleType) -> None:
    """A Trainer has given it the kernels, and accelerate has wrapped its `forward` since."""
    model, expected = llama(), forecast(llama(), liger=True).total
    model.forward = MethodType(stand_in.lce_forward, model)

    @wraps(model.forward)
    def in_autocast(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("the user's own forward ran")

    model.forward = in_autocast

    assert forecast(model).total == expected
    assert model.forward is in_autocast


def test_names_in_transformers_stay(stand_in: ModuleType) -> None:
    """Functions and classes that Liger replaces in a model's module are put back after a forecast."""
    before = dict(vars(modeling_llama))
    forward = modeling_llama.LlamaModel.forward

    forecast(llama(), liger=True)

    assert dict(vars(modeling_llama)) == before
    assert modeling_llama.LlamaModel.forward is forward


def test_kernels_still_run_on_other_tensors_during_a_dry_run(stand_in: ModuleType) -> None:
    """During a dry run only a launch with a meta tensor does nothing."""
    values = torch.zeros(3)
    with dry_run.undisturbed():
        stand_in.kernel[(1,)](values)
        stand_in.kernel[(1,)](torch.empty(3, device="meta"))

    assert values.tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="Triton"):
        stand_in.kernel[(1,)](torch.empty(3, device="meta"))


def test_liger_is_among_the_changes_of_a_training_with_labels(stand_in: ModuleType) -> None:
    """Liger keeps the loss, and is written as an argument of the Trainer."""
    model = llama()
    given = dict.fromkeys(("input_ids", "labels"), ((ROWS, LENGTH), torch.int64))
    seen = SeenBatch(weakref.ref(model), given, ROWS, LENGTH)
    setting = Setting(batch=ROWS, length=LENGTH, precision="fp32", device="cuda")
    ran = replace(setting, optimizer="AdamW")
    steps = torch.optim.AdamW(model.parameters())
    now = changed_forecast(model, ran, steps, seen)
    room = now.total - MIB
    training = Training(
        Device("cuda:0", ""), model, steps, ran, now, "model", room, seen=seen, others="Teacher"
    )

    moves = list(moves_of(training, DryRuns(training, time.monotonic() + 60)))

    [move] = [move for move in moves if move.name == "Liger's kernels"]
    assert [(each.target, each.name, each.value) for each in move.changes] == [
        ("arguments", "use_liger_kernel", "True")
    ]
    assert not move.cost
    unlabelled = replace(training, seen=replace(seen, given={"input_ids": given["input_ids"]}))
    others = list(moves_of(unlabelled, DryRuns(unlabelled, time.monotonic() + 60)))
    assert not any("Liger" in move.name for move in others)


def test_a_forecast_with_liger_needs_liger() -> None:
    """Without Liger one sentence says that it is not installed."""
    with pytest.raises(OptionError, match="Liger's kernels need liger-kernel, CUDA in use"):
        forecast(llama(), liger=True)


def test_a_liger_that_cannot_be_imported_is_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a working triton the forecast is refused, and nothing else fails."""
    monkeypatch.setitem(sys.modules, "liger_kernel", ModuleType("liger_kernel"))
    with pytest.raises(OptionError, match="Liger's kernels need liger-kernel"):
        forecast(llama(), liger=True)


def test_liger_needs_a_gpu() -> None:
    """Liger's kernels run on a GPU alone."""
    with pytest.raises(OptionError, match="Liger's kernels need a GPU"):
        predict(llama().config, Setting(liger=True, device="cpu"))
    with pytest.raises(OptionError, match="Liger's kernels need a GPU"):
        hfmem_widget.fit(llama(), liger=True)
