"""Changes to a training that share its rows among several GPUs, and changes tried in real steps."""

import math
import time
from dataclasses import replace
from typing import Any

import pytest
import torch

import hfmem_widget
from hfmem_widget.errors import OptionError
from hfmem_widget.features.fit.model import Tried
from hfmem_widget.features.fit.moves import DryRuns, moves_of, tried_moves
from hfmem_widget.features.fit.setting import Setting
from hfmem_widget.session import Device
from hfmem_widget.text import MIB
from tests.trainer.models import llama, moves, options_of, training
from tests.trainer.tiny import session_of


def on_gpus(**more: Any) -> Any:
    """Return a training that needs 1.5 times its room, where two GPUs are."""
    run = training(llama)
    return replace(run, device=Device("cuda:0", ""), gpus=2, room=run.forecast.total / 1.5, **more)


def test_gpus_that_are_idle_share_the_rows_of_a_step() -> None:
    """DDP has a whole forecast; FSDP has a lower bound, so it may fit, and its layers are named."""
    ddp, fsdp = (move for move in moves(on_gpus()) if "2 GPUs" in move.name)

    assert (ddp.name, ddp.batch, ddp.fits) == (
        "DistributedDataParallel on 2 GPUs, 4 rows on each",
        4,
        True,
    )
    assert (fsdp.batch, fsdp.fits, fsdp.need[:9]) == (4, None, "at least ")
    config = options_of(fsdp)["fsdp_config"]
    assert config == {"version": 2, "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]}
    assert "torchrun --nproc-per-node 2" in fsdp.cost


@pytest.mark.parametrize(
    ("rows", "each", "note"),
    [((8, 2), (4, 2), ""), ((3, 4), (3, 2), ""), ((3, 1), (3, 1), "2 times the rows in a step")],
)
def test_a_step_has_as_many_rows_on_two_gpus(rows: Any, each: Any, note: str) -> None:
    """A step has as many rows as before if they can be divided; else the row says that it has more."""
    run = training(llama, batch=rows[0], accumulation=rows[1])
    run = replace(run, device=Device("cuda:0", ""), gpus=2, room=run.forecast.total)
    listed = [move for move in moves(run) if move.name.startswith("FSDP on")]

    assert {(move.batch, move.accumulation) for move in listed} == {each}
    assert all(note in move.cost for move in listed)


def test_each_change_of_a_training_with_replicas_is_one_of_ddp_or_fsdp() -> None:
    """Replicas have changes to a script for torchrun, which are not written into the cell."""
    ddp = training(llama, batch=4, shards="ddp:2")
    ddp = replace(
        ddp, gpus=2, is_replicated=True, device=Device("cuda:0", ""), room=ddp.forecast.total
    )
    listed = moves(ddp)
    names = [move.name for move in listed]

    assert all(" on 2 GPUs" in name for name in names)
    assert len(set(names)) == len(names)
    assert "DistributedDataParallel on 2 GPUs" in names
    assert "DistributedDataParallel on 2 GPUs and gradient checkpointing" in names
    assert any(name.startswith("FSDP") for name in names)
    assert "arguments" not in {change.target for move in listed for change in move.changes}


def test_replicas_have_the_forecast_of_ddp(trainer: Any) -> None:
    """Replicas have half of the rows on each of two GPUs, and a note that the forecast is DDP's."""
    model = trainer.model
    wrapped = torch.nn.DataParallel(model)
    wrapped.device_ids = [0, 1]  # as on a machine with two GPUs
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.ones(4, 9, dtype=torch.long)
    with hfmem_widget.watch("train", steps="each", quiet=True) as session:
        for _ in range(3):
            model(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    fitted = hfmem_widget.fit(session)

    assert (fitted.forecast.setting.batch, fitted.forecast.setting.shards) == (2, "ddp:2")
    assert "nn.DataParallel has no forecast; this is that of DistributedDataParallel." in repr(
        fitted
    )
    assert fitted.measured == {}


def test_a_model_of_which_each_device_has_a_part_has_no_forecast() -> None:
    """A model over several devices, as with ``device_map``, has no forecast."""
    model: Any = llama()
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.ones(2, 16, dtype=torch.long)
    with hfmem_widget.watch("train", quiet=True) as session:
        for _ in range(2):
            with hfmem_widget.span("step", tokens=32, longest=16):
                model(input_ids=ids, labels=ids).loss.backward()
                optimizer.step()
                optimizer.zero_grad()
    model.elsewhere = torch.nn.Linear(1, 1, device="meta")
    with pytest.raises(OptionError, match="over several devices"):
        hfmem_widget.fit(session)


def test_changes_are_tried_in_real_steps(
    trainer: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A row has what a real step took, or that memory ran out; an impossible trial has a sentence."""
    session = session_of(trainer)
    given: list[Any] = []

    def attempt(_: Any, setting: Setting, optimizer: Any = None, **__: Any) -> Tried:
        given.append((setting, optimizer))
        if len(given) == 2:
            raise OptionError("a real step cannot be tried with this")
        return Tried(5 * int(MIB), math.nan if len(given) == 3 else 0.25, "cpu")

    monkeypatch.setattr("hfmem_widget.features.fit.trial.tried_step", attempt)
    fitted = hfmem_widget.fit(session, attempt=True)
    capture = capsys.readouterr()

    assert len(fitted.moves) == len(given) >= 3
    assert [(move.tried, move.seconds) for move in fitted.moves[:3]] == [
        (5 * MIB, 0.25), (None, None), (5 * MIB, None),
    ]  # fmt: skip
    assert "tried: 5.00 MiB, 250 ms a step" in repr(fitted)
    assert "tried: out of memory, with 5.00 MiB allocated" in repr(fitted)
    assert "Change 2: a real step cannot be tried with this." in capture.err
    assert {optimizer.name for setting, optimizer in given if optimizer} == {"AdamW"}
    assert session.moves == list(fitted.moves)


def test_a_least_peak_becomes_the_measured_one() -> None:
    """A lower bound, as of FSDP, is replaced by the measured peak, which fits or not."""
    run = on_gpus()
    settings = moves_of(run, DryRuns(run, time.monotonic() + 60))
    fsdp = next(move for move in settings if move.name.startswith("FSDP"))
    for fits, share in ((True, 0.5), (False, 2.0)):
        measured = Tried(int(share * run.room), 0.1, "cuda:0")
        [tried] = tried_moves(run, {fsdp: settings[fsdp]}, lambda *_, took=measured: took)
        assert (tried.fits, tried.peak) == (fits, measured.peak)
        assert not tried.need.startswith("at least")
