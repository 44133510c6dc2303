"""What would fit, from a recording alone: its training is forecast as if the model were there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    BertForSequenceClassification,
    GPT2LMHeadModel,
    default_data_collator,
)

import hfmem_widget
from hfmem_widget.cli.main import main
from hfmem_widget.errors import OptionError
from tests.trainer.test_moves import bart, bert_classifier, llama, resnet, vit
from tests.trainer.test_out_of_memory import failing
from tests.trainer.tiny import Plain, make_trainer, rows, session_of, tiny_model
from tests.unit.recording.test_moves import opened

Make = Callable[[], Any]

HIDDEN = "Rosebud"
"""What must be in no recording."""


def recipe_of(path: Path) -> Any:
    lines = map(json.loads, path.read_text().splitlines())
    return next(line["of"] for line in lines if line["k"] == "recipe")


def changed(path: Path, **of: Any) -> Path:
    """Return a copy of a recording with another recipe."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if line["k"] == "recipe":
            line["of"] |= of
    other = path.with_name(f"other{len(list(path.parent.iterdir()))}.hfmem.jsonl")
    other.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return other


def in_half() -> Any:
    return tiny_model().to(torch.bfloat16)


def eager_and_checkpointed() -> Any:
    model = llama()
    model.set_attn_implementation("eager")
    model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def partly_frozen() -> Any:
    model = bert_classifier()
    model.bert.requires_grad_(requires_grad=False)
    return model


def with_adapters() -> Any:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.1)
    return peft.get_peft_model(llama(), config)


def labelled() -> Any:
    config = bert_classifier().config
    config.id2label = dict(enumerate([HIDDEN, "b", "c"]))
    config.label2id = {name: at for at, name in config.id2label.items()}
    return BertForSequenceClassification(config)


def of_a_class(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "labels": row["labels"][0] % 2}


def training(folder: Path, model: Any, **options: Any) -> Any:
    """Return the Trainer of a short training of a model of text or of images."""
    data = rows((8, 8, 8, 8))
    kind = type(model).__name__
    if "ImageClassification" in kind:
        side = 48 if kind.startswith("ViT") else 96
        data = [{"pixel_values": torch.rand(3, side, side), "labels": 1} for _ in range(4)]
        options["remove_unused_columns"] = False
    elif "SequenceClassification" in kind:
        data = list(map(of_a_class, data))
    return make_trainer(folder, model=model, data=data, collate=default_data_collator, **options)


@pytest.mark.parametrize(
    ("make", "options"),
    [
        pytest.param(tiny_model, {"optim": "sgd", "bf16": True}, id="autocast"),
        pytest.param(in_half, {"optim": "adafactor"}, id="half"),
        pytest.param(eager_and_checkpointed, {"weight_decay": 0.1}, id="checkpointed"),
        pytest.param(partly_frozen, {"gradient_accumulation_steps": 2}, id="frozen"),
        pytest.param(with_adapters, {}, id="adapters"),
        pytest.param(labelled, {}, id="labels"),
        pytest.param(bart, {}, id="two halves", marks=pytest.mark.full),
        pytest.param(vit, {}, id="images"),
        pytest.param(resnet, {}, id="images of any size", marks=pytest.mark.full),
    ],
)
def test_it_is_what_the_live_model_gives(tmp_path: Path, make: Make, options: Any) -> None:
    """Every part of the forecast, and every move with its peak."""
    trainer = training(tmp_path, make(), **options)
    session = session_of(trainer)
    back = opened(session, tmp_path)
    live, recorded = hfmem_widget.fit(session), hfmem_widget.fit(back)

    assert recorded.forecast == live.forecast
    assert [(each.name, each.peak, each.cost) for each in recorded.moves] == [
        (each.name, each.peak, each.cost) for each in live.moves
    ]
    assert back.moves == list(recorded.moves)


def test_it_is_of_its_own_model_whatever_is_trained_here(tmp_path: Path) -> None:
    """And has the room that its own run had."""
    back = opened(session_of(make_trainer(tmp_path)), tmp_path)
    other = make_trainer(tmp_path, model=llama())
    session_of(other)
    room = {**back.recipe, "available": {"cpu": 12345.0}}
    held = hfmem_widget.fit(back).verdicts[0].room.available - 0.9 * back.recipe["available"]["cpu"]
    back.recipe = room
    fitted = hfmem_widget.fit(back)

    assert fitted.forecast.model == "GPT2LMHeadModel"
    assert fitted.verdicts[0].room.available == pytest.approx(0.9 * 12345 + held)
    assert fitted.verdicts[0].fits is False
    assert "available is what the recorded run had" in repr(fitted)


def test_a_training_that_ran_out_has_them_from_its_recording_too(tmp_path: Path) -> None:
    """The room is that of its error."""
    trainer = failing(tmp_path)
    path = tmp_path / "run.hfmem.jsonl"
    with pytest.raises(RuntimeError), hfmem_widget.watch(quiet=True, record=str(path)) as session:
        trainer.train()
    back = hfmem_widget.open(path)
    assert back.moves == session.moves != []

    fitted = hfmem_widget.fit(back)
    assert [(one.name, one.peak, one.room) for one in fitted.moves] == [
        (one.name, one.peak, one.room) for one in session.moves
    ]


def test_a_command_says_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As text, and as JSON; there is no cell to write into."""
    path = session_of(make_trainer(tmp_path)).save(tmp_path / "run.hfmem.jsonl.gz")
    capsys.readouterr()
    assert main(["fit", str(path)]) == 0
    said = capsys.readouterr().out
    assert "2 rows in a batch, 2 batches accumulated" in said
    assert "--write" not in said + hfmem_widget.fit(path)._repr_mimebundle_()["text/html"]

    assert main(["fit", str(path), "--json"]) == 0
    moves = json.loads(capsys.readouterr().out)["moves"]
    assert {"gradient_accumulation_steps=2" in each["code"] for each in moves} == {True, False}
    assert all(each["bytes"] > 0 and each["fits"] for each in moves)

    assert main(["fit", str(path), "--batch", "8"]) == 2
    assert "only headroom can be chosen" in capsys.readouterr().err


def test_no_name_of_a_file_and_no_label_is_recorded(tmp_path: Path) -> None:
    """Wherever the model came from, and whatever its labels are called."""
    folder = tmp_path / HIDDEN
    labelled().save_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    model.config.note = f"in {folder}"
    path = session_of(training(tmp_path, model)).save(tmp_path / "run.hfmem.jsonl")

    assert HIDDEN not in path.read_text()
    assert recipe_of(path)["config"]["num_labels"] == 3


def own_class() -> Any:
    return type("Mine", (GPT2LMHeadModel,), {})(tiny_model().config)


def quantised() -> Any:
    model = tiny_model()
    model.config.quantization_config = {"quant_method": "bitsandbytes"}
    return model


def compiled() -> Any:
    model = tiny_model()
    model.compile(backend="eager")
    return model


def endless() -> Any:
    model = tiny_model()
    model.config.numbers = list(range(20_000))
    return model


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (own_class, "Mine is not a class of transformers"),
        (Plain, "Plain is not a class of transformers"),
        (quantised, "the weights are quantised"),
        (compiled, "the model was compiled"),
        (endless, "the configuration is longer than 64 kB"),
    ],
)
def test_what_cannot_be_made_again_is_refused(tmp_path: Path, make: Make, why: str) -> None:
    """In one sentence, and the recording is as good as others."""
    trainer = make_trainer(tmp_path, model=tiny_model(), remove_unused_columns=False)
    trainer.model = trainer.model_wrapped = make()
    back = opened(session_of(trainer), tmp_path)

    assert back.recipe == {"refused": why}
    with pytest.raises(OptionError, match=f"cannot be worked out: {why}"):
        hfmem_widget.fit(back)


def test_a_model_that_was_changed_since_is_refused(tmp_path: Path) -> None:
    """Its configuration does not say what it has."""
    model = tiny_model()
    model.transformer.ln_f = torch.nn.Sequential(torch.nn.Linear(16, 16), model.transformer.ln_f)
    back = opened(session_of(make_trainer(tmp_path, model=model)), tmp_path)
    with pytest.raises(OptionError, match="is not what its configuration describes"):
        hfmem_widget.fit(back)


def test_a_recording_of_before_has_no_model(tmp_path: Path) -> None:
    """And one of no training neither."""
    with hfmem_widget.watch(quiet=True) as session:
        pass
    with pytest.raises(OptionError, match="the recording has no model to try it with"):
        hfmem_widget.fit(opened(session, tmp_path))


@pytest.mark.parametrize(
    "of",
    [
        {"model": "os"},
        {"model": "BertModel"},
        {"model": 5},
        {"config": {}},
        {"config": {"model_type": "../x"}},
        {"config": []},
        {"dtype": "load"},
        {"lora": [1]},
        {"lora": ["many", ["c_attn"], 0]},
        {"size": None},
        {"optimizer": {"name": "AdamW"}},
        {"optimizer": {"kind": "x"}},
        {"batch": {"given": {"input_ids": [[4, 8], "load"]}}},
        {"available": 3},
        {"refused": "<script>\x1b[31m"},
    ],
    ids=str,
)
def test_a_strangers_recipe_is_refused_in_a_sentence(tmp_path: Path, of: Any) -> None:
    """Whatever stands in it, nothing is run."""
    path = session_of(make_trainer(tmp_path)).save(tmp_path / "run.hfmem.jsonl")
    with pytest.raises(OptionError) as told:
        hfmem_widget.fit(changed(path, **of))
    assert str(told.value).startswith("What would fit cannot be worked out: ")
    assert "\x1b" not in str(told.value)
