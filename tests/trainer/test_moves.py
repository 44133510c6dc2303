"""What would fit: changes to a training that a watch has seen, by dry runs of its model."""

import gc
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import hfmem_widget
from hfmem_widget.errors import OptionError
from hfmem_widget.text import MIB
from tests.trainer.models import (
    MODELS,
    Make,
    bert_classifier,
    gpt2,
    gpt2_of_two_layers,
    llama,
    moves,
    options_of,
    peak_of,
    real_peak,
    resnet,
    t5,
    training,
    vit,
    whisper,
)
from tests.trainer.tiny import InOrder, Plain, make_trainer, rows, running_out, session_of, watched


def data_for(model: Any) -> list[dict[str, Any]]:
    """Return rows of several lengths; of a classifier, with one label each."""
    generator = torch.Generator().manual_seed(1)
    is_of_rows = "SequenceClassification" in type(model).__name__
    is_of_tokens = "TokenClassification" in type(model).__name__
    rows = []
    for length in (64, 40, 64, 9, 64, 64, 14, 57):
        ids = torch.randint(3, 64, (length,), generator=generator)
        labels = ids % 2 if is_of_tokens else ids
        rows.append({"input_ids": ids, "labels": ids[0] % 2 if is_of_rows else labels})
    return rows


def collated(batch: list[dict[str, Any]]) -> dict[str, Any]:
    """Pad every batch to 64 tokens, as a tokenizer with a fixed length does."""

    def full(tensor: Any, value: int) -> Any:
        return torch.nn.functional.pad(tensor, (0, 64 - len(tensor)), value=value)

    ids = torch.stack([full(row["input_ids"], 0) for row in batch])
    labels = [
        row["labels"] if row["labels"].ndim == 0 else full(row["labels"], -100) for row in batch
    ]
    mask = (ids > 0).long()
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.stack(labels)}


def trainer_of(folder: Path, make: Make, **options: Any) -> Any:
    """Return a Trainer of a new model, with rows that suit it."""
    model = make()
    return make_trainer(folder, model=model, data=data_for(model), collate=collated, **options)


def losses(folder: Path, make: Make, **options: Any) -> list[float]:
    """Return the losses of three steps of eight rows, from the same weights."""
    torch.manual_seed(0)
    usual = {"per_device_train_batch_size": 8, "num_train_epochs": 3}
    logged = {"logging_strategy": "steps", "logging_steps": 1, "max_grad_norm": 0.0}
    trainer = trainer_of(folder, make, **{**usual, **logged, **options})
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


EACH_MODEL = pytest.mark.parametrize(
    "make",
    [
        pytest.param(make, marks=() if name in {"gpt2", "bert_classifier"} else pytest.mark.full)
        for name, make in MODELS.items()
    ],
    ids=MODELS,
)


@EACH_MODEL
def test_the_loss_changes_as_the_row_says(tmp_path: Path, make: Make) -> None:
    """A real Trainer has the same loss where the row says so, and else as many times as much."""
    before = losses(tmp_path, make)
    listed = [move for move in moves(training(make)) if move.cost == "" or "times as" in move.cost]

    assert 4 in {move.batch for move in listed}
    for move in listed:
        found = re.search(r"(\d+) times", move.cost)
        times = int(found[1]) if found else 1
        after = losses(tmp_path, make, **options_of(move))
        assert after[0] == pytest.approx(times * before[0], rel=1e-3), move.name
        if times == 1:
            assert after == pytest.approx(before, rel=1e-3), move.name


@EACH_MODEL
def test_the_peak_of_a_change_is_that_of_a_real_step(make: Make) -> None:
    """Each change that a plain loop can make has the peak of a real step, within 1 %."""
    forecast, real = {}, {}
    [row, *_] = data_for(make())
    for move in moves(training(make)):
        changed = {change.name.rpartition("_")[2] for change in move.changes}
        if changed <= {"checkpointing", "size", "steps"}:
            forecast[move.name] = move.peak
            rows, checkpointing = collated([row] * move.batch), "checkpointing" in changed
            real[move.name] = real_peak(make, rows, checkpointing, move.accumulation)

    assert forecast == pytest.approx(real, rel=0.01)
    assert len(forecast) >= 1


def test_the_model_is_the_one_that_the_watch_has_trained(tmp_path: Path) -> None:
    """Each session has its own model, not a larger one of an earlier cell, and says when it is gone."""
    first = trainer_of(tmp_path, gpt2_of_two_layers)
    sessions = [session_of(first)]
    second = trainer_of(tmp_path, bert_classifier)
    sessions.append(session_of(second))
    models = [hfmem_widget.fit(session).forecast.model for session in sessions]
    del first
    gc.collect()

    assert models == ["GPT2LMHeadModel", "BertForSequenceClassification"]
    with pytest.raises(OptionError, match="no longer exists"):
        hfmem_widget.fit(sessions[0])


def test_a_loop_whose_steps_are_short_has_a_forecast() -> None:
    """The largest batch of a step that was measured alone counts; a note says that other models ran."""
    model, other = gpt2_of_two_layers(), bert_classifier()
    optimizer = torch.optim.AdamW(model.parameters())
    with hfmem_widget.watch("run", quiet=True) as session:
        with torch.no_grad():
            other(input_ids=torch.ones(1, 8, dtype=torch.int64))
        for step in range(150):
            ids = torch.ones(2, 8 + 4 * (step % 3), dtype=torch.int64)
            model(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    fitted = hfmem_widget.fit(session)

    assert fitted.forecast.setting.batch == 2
    assert fitted.forecast.setting.length in {8, 12, 16}
    assert sum(map(torch.numel, other.parameters())) > 0.1 * fitted.forecast.parameters
    assert "The measured figures are of all models of this process, not of this one alone." in repr(
        fitted
    )


def test_changes_that_keep_the_loss_come_first() -> None:
    """Changes that keep the loss come first; each needs less than the training did."""
    ran = training(llama)
    listed = moves(ran)

    assert [bool(move.cost) for move in listed] == sorted(bool(move.cost) for move in listed)
    assert all(move.fits for move in listed)
    assert {"bf16", "LoRA, r=16", "rows of at most 32 tokens"} <= {move.name for move in listed}


def test_two_changes_are_combined_if_one_is_not_enough() -> None:
    """Two changes that keep the loss are combined; where nothing fits, the two that need least are listed."""
    small: dict[str, Any] = {"length": 63, "precision": "bf16", "optimizer": "SGD"}
    ran = training(gpt2_of_two_layers, **small)
    alone = moves(replace(ran, room=1.01 * ran.held))
    both = moves(training(gpt2_of_two_layers, room=2.0 * alone[0].peak, **small))

    assert [move.fits for move in alone] == [False, False]
    assert len(alone[0].name.split(" and ")) == 2
    assert both[0].fits
    assert both[0].changes == alone[0].changes


def row_of(**sizes: Any) -> dict[str, Any]:
    """Return a row of whole numbers, or of numbers where the last size is no whole number's."""
    return {
        name: torch.ones(size, dtype=torch.int64)
        if name in {"input_ids", "labels"}
        else torch.rand(*size)
        for name, size in sizes.items()
    }


BATCHES: dict[str, tuple[Make, dict[str, Any]]] = {
    "images of the model's size": (vit, {"pixel_values": (3, 48, 48), "labels": ()}),
    "images of any size": (resnet, {"pixel_values": (3, 96, 96), "labels": ()}),
    "labels shorter than rows": (t5, {"input_ids": (64,), "labels": (9,)}),
    "labels longer than rows": (t5, {"input_ids": (9,), "labels": (64,)}),
    "sound": (whisper, {"input_features": (80, 200), "labels": (33,)}),
    "a class of the user's own": (Plain, {"input_ids": (64,), "labels": (64,)}),
}


@pytest.mark.parametrize(("make", "sizes"), BATCHES.values(), ids=BATCHES)
def test_dry_runs_have_similar_batches(tmp_path: Path, make: Make, sizes: dict[str, Any]) -> None:
    """A forecast is the peak of a real step of such a batch, within 3 %."""
    model = make()
    trainer = make_trainer(
        tmp_path, model=model, data=[row_of(**sizes)] * 12, collate=torch.utils.data.default_collate,
        remove_unused_columns=False,
    )  # fmt: skip
    fitted = hfmem_widget.fit(session_of(trainer))
    batch = torch.utils.data.default_collate([row_of(**sizes)] * 4)
    peak = peak_of(model, trainer.optimizer.optimizer, batch)

    assert fitted.forecast.setting.batch == 4
    assert fitted.forecast.total == pytest.approx(peak, rel=0.03)


def test_a_model_that_returns_no_loss_has_no_forecast() -> None:
    """One sentence says that what is computed outside of the model is unknown."""
    model = torch.nn.Sequential(torch.nn.Embedding(64, 8), torch.nn.Linear(8, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hfmem_widget.watch("fit", quiet=True) as session:
        hfmem_widget.follow(model)
        for _ in range(3):
            with hfmem_widget.span("step", tokens=64, longest=16):
                model(torch.ones(4, 16, dtype=torch.int64)).mean().backward()
                optimizer.step()
    with pytest.raises(OptionError, match="cannot be worked out: "):
        hfmem_widget.fit(session)


def test_the_forecast_is_of_the_trained_model_however_large_another_one_is(tmp_path: Path) -> None:
    """A model that is only read, such as the reference of a preference training, is left out."""
    reference = torch.nn.Linear(2000, 2000)
    trainer = make_trainer(tmp_path)
    with hfmem_widget.watch("fit", quiet=True) as session:
        hfmem_widget.follow(reference)
        trainer.train()
    assert hfmem_widget.fit(session).forecast.model == "GPT2LMHeadModel"


def test_fewer_rows_change_batch_statistics_and_so_the_loss() -> None:
    """The row of a model with batch normalisation names that as its cost."""

    def normed() -> Any:
        model = llama()
        model.model.norm = torch.nn.Sequential(torch.nn.BatchNorm1d(64), model.model.norm)
        return model

    [fewer] = [move for move in moves(training(normed)) if move.batch < 8]
    assert fewer.cost == "batch statistics of fewer rows"


def test_a_card_lists_what_would_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A card has the code of the changes, and the session has the same changes."""
    session = watched(running_out(tmp_path).train, quiet=False)
    printed = capsys.readouterr().out

    [fewer] = [move for move in session.moves if move.batch < 4]
    assert (fewer.batch, fewer.accumulation, fewer.cost) == (2, 2, "")
    assert "per_device_train_batch_size=2, gradient_accumulation_steps=2" in printed
    assert re.search(r"What fits in [\d.]+ [KMG]iB ", printed)


def test_the_steps_that_a_trainer_accumulates_stay_as_many_rows(tmp_path: Path) -> None:
    """A step keeps its rows, though memory ran out before the batches of a first step were counted."""
    session = watched(
        running_out(tmp_path, gradient_accumulation_steps=2, data=rows((5, 9, 4, 7) * 6)).train
    )

    [fewer] = [move for move in session.moves if move.batch < 4]
    assert (fewer.batch, fewer.accumulation) == (2, 4)


def test_a_training_that_ended_well_has_a_forecast(tmp_path: Path, trainer: Any) -> None:
    """`fit` of its session forecasts its largest step, and what would need less."""
    session = session_of(trainer)
    assert session.moves == []
    fitted = hfmem_widget.fit(session)

    assert session.moves == list(fitted.moves)
    assert fitted.verdicts[0].fits
    assert fitted.forecast.setting.batch == 4
    assert min(move.peak for move in fitted.moves) < fitted.forecast.total
    assert fitted.verdicts[0].room.available > MIB
    with pytest.raises(OptionError, match="only headroom and attempt"):
        hfmem_widget.fit(session, batch=8)


@pytest.mark.parametrize(
    ("how", "cost"),
    [
        ("own", "depends on the Trainer's own loss"),
        ("smoothed", ""),
        ("given", "depends on the Trainer's own loss"),
    ],
)
def test_fewer_rows_may_change_a_loss_of_the_users_own(tmp_path: Path, how: str, cost: str) -> None:
    """A subclass's loss may depend on the rows; smoothed labels, which the Trainer averages, do not."""

    class Own(InOrder):
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            return super().compute_loss(*args, **kwargs)

    options: dict[str, Any] = {"label_smoothing_factor": 0.1} if how == "smoothed" else {}
    trainer = make_trainer(tmp_path, kind=Own if how == "own" else InOrder, **options)
    if how == "given":
        trainer.compute_loss_func = lambda outputs, *_, **__: outputs["logits"].mean()
    session = session_of(trainer)

    fewer = [move for move in hfmem_widget.fit(session).moves if move.batch < 4]
    assert {move.cost for move in fewer if move.length > 4 and len(move.changes) == 2} == {cost}


def test_the_last_batch_of_an_epoch_does_not_set_the_number_of_rows(tmp_path: Path) -> None:
    """A step keeps as many rows as the Trainer's options have, though the last batch is smaller."""
    session = watched(running_out(tmp_path, after=1, data=rows((5, 9, 4, 7, 6))).train)

    assert {move.batch * move.accumulation for move in session.moves} == {4}


def test_memory_that_an_earlier_error_held_may_be_free() -> None:
    """A change may fit if the memory of an earlier error would be enough for it."""
    run = replace(training(gpt2, length=63), room=1.0, spare=1e12)

    listed = moves(run)
    assert {move.fits for move in listed} == {None}
    assert 4 in {move.batch for move in listed}


def test_changes_for_a_loop_of_ones_own_have_no_code() -> None:
    """Rows of a loop have what each change needs, and no arguments of a Trainer."""
    listed = moves(replace(training(gpt2, length=63), loss="loop"))

    assert {move.changes for move in listed} == {()}
    assert "the same loss, if each batch's is divided by 2" in {move.cost for move in listed}


def test_an_evaluation_that_ran_out_lists_no_changes_of_the_training(tmp_path: Path) -> None:
    """`fit` of its session is about the evaluation, which a smaller training batch would not change."""
    session = watched(running_out(tmp_path, evaluates=True, eval_strategy="epoch").train)

    assert session.moves == []
    fitted = hfmem_widget.fit(session)
    assert not fitted.forecast.setting.training
    assert {change.name for move in fitted.moves for change in move.changes} <= {
        "per_device_eval_batch_size"
    }


def test_an_evaluation_whose_predictions_are_unknown_has_no_forecast(tmp_path: Path) -> None:
    """A function of the user's may keep any part of the predictions."""
    trainer = running_out(tmp_path, evaluates=True, eval_strategy="epoch")
    trainer.compute_metrics = trainer.preprocess_logits_for_metrics = lambda *_: {}
    session = watched(trainer.train)

    with pytest.raises(OptionError, match="this evaluation or generation has no forecast"):
        hfmem_widget.fit(session)


@pytest.mark.parametrize(
    ("dtype", "precision"), [(torch.bfloat16, "bf16"), (torch.float16, "fp16"), (None, "fp32")]
)
def test_the_autocast_of_a_loop_is_in_its_forecast(dtype: Any, precision: str) -> None:
    """Autocast is seen where the loop calls its model."""
    model: Any = llama()
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.ones(2, 16, dtype=torch.long)
    with hfmem_widget.watch("train", steps="each", quiet=True) as session:
        for _ in range(4):
            with torch.autocast("cpu", dtype, enabled=dtype is not None):
                loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    assert hfmem_widget.fit(session).forecast.setting.precision == precision
