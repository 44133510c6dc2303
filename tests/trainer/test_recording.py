"""A training that is recorded, and shown again by a process that has no part in it."""

import json
import subprocess
import sys
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
from hfmem_widget.drivers.training.run import TrainingRun
from hfmem_widget.errors import OptionError
from hfmem_widget.monitor.monitor import Monitor
from hfmem_widget.session import Session
from tests.data import ROOT
from tests.trainer.models import bart, bert_classifier, llama, resnet, vit
from tests.trainer.tiny import (
    Plain,
    make_trainer,
    of_kind,
    rows,
    running_out,
    session_of,
    tiny_model,
)
from tests.unit.recording.test_moves import opened

FACTS = """
import hfmem_widget

def facts(session, other):
    def text(shown):
        return shown._repr_mimebundle_()["text/plain"].splitlines()

    return {
        # Where the recording is, is not in the recording.
        "card": [line for line in text(session) if "The recording is in" not in line],
        "anatomy": text(session.anatomy()),
        "steps": session.steps.to_pandas().round(3).to_csv(),
        "findings": [finding.title for finding in session.findings],
        "compare": text(hfmem_widget.compare(session, other)),
        "figure": [trace.name for trace in session.figure().data],
    }
"""

ANOTHER_PROCESS = f"""{FACTS}
import json, sys
sessions = [hfmem_widget.open(path) for path in sys.argv[1:]]
known = facts(*sessions)
known["torch"] = "torch" in sys.modules
print(json.dumps(known))
"""


def test_another_process_shows_what_this_one_did(tmp_path: Path) -> None:
    """Card, anatomy, steps, findings, comparison and chart are those of the live session, without torch."""
    paths = [tmp_path / f"run-{size}.hfmem.jsonl" for size in (2, 4)]
    live = []
    for path, size in zip(paths, (2, 4), strict=True):
        trainer = make_trainer(tmp_path, per_device_train_batch_size=size, eval_strategy="epoch")
        with hfmem_widget.watch(f"batch {size}", quiet=True, record=path) as session:
            trainer.train()
        live.append(session)
    done = subprocess.run(
        [sys.executable, "-c", ANOTHER_PROCESS, *map(str, paths)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    known: dict[str, Any] = {}
    exec(FACTS, known)

    opened = json.loads(done.stdout)

    assert not opened.pop("torch")
    assert opened == json.loads(json.dumps(known["facts"](*live)))


def test_a_second_training_is_recorded_under_a_name_with_a_number(tmp_path: Path) -> None:
    """A callback may train twice: each training has a recording of its own."""
    callback = hfmem_widget.MemoryCallback(quiet=True, record=tmp_path / "run.hfmem.jsonl")
    trainer = make_trainer(tmp_path / "out", callbacks=[callback])
    for _ in range(2):
        trainer.train()
    names = ("run.hfmem.jsonl", "run-2.hfmem.jsonl")
    sessions = [hfmem_widget.open(tmp_path / name) for name in names]

    assert [len(of_kind(session, "train")) for session in sessions] == [1, 1]
    assert [session.steps.count for session in sessions] == [2, 2]


def test_a_name_that_is_taken_is_refused_when_the_callback_is_made(tmp_path: Path) -> None:
    """A name in use is an error long before the training, which would go on without us."""
    path = tmp_path / "run.hfmem.jsonl"
    path.write_text("mine", encoding="utf-8")

    with pytest.raises(OptionError, match="already exists"):
        hfmem_widget.MemoryCallback(record=path)


def test_where_a_recording_cannot_begin_the_training_is_watched_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name was taken meanwhile: one line on stderr says so at once, and a note on the card."""
    begun: list[Session] = []

    class Run(TrainingRun):
        def __init__(self, monitor: Monitor, session: Session, **given: Any) -> None:
            begun.append(session)
            super().__init__(monitor, session, **given)

    monkeypatch.setattr("hfmem_widget.drivers.trainer.TrainingRun", Run)
    path = tmp_path / "run.hfmem.jsonl"
    callback = hfmem_widget.MemoryCallback(quiet=True, record=path)
    path.write_text("mine", encoding="utf-8")

    make_trainer(tmp_path / "out", callbacks=[callback]).train()

    (session,) = begun
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "memwatch" in line]
    assert "There is no recording: " in line
    assert any(note in line for note in session.notes)
    assert session.steps.count == 2
    assert path.read_text(encoding="utf-8") == "mine"


def test_a_missing_device_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The training goes on unwatched, after one line on stderr."""
    callback = hfmem_widget.MemoryCallback(quiet=True, devices=["cuda:7"])

    make_trainer(tmp_path, callbacks=[callback]).train()

    lines = [line for line in capsys.readouterr().err.splitlines() if "memwatch" in line]
    assert len(lines) == 1
    assert "cuda:7" in lines[0]


Make = Callable[[], Any]

HIDDEN = "Rosebud"
"""What must be in no recording."""


def recipe_of(path: Path) -> Any:
    lines = map(json.loads, path.read_text().splitlines())
    return next(line["of"] for line in lines if line["k"] == "recipe")


def changed(path: Path, **changes: Any) -> Path:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    next(line for line in lines if line["k"] == "recipe")["of"] |= changes
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
    data = rows((7, 7, 7, 7))  # too short for what other sizes would take
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
def test_a_recording_has_the_live_models_forecast(tmp_path: Path, make: Make, options: Any) -> None:
    """Every part and every move of the forecast has the same peak as with the live model."""
    trainer = training(tmp_path, make(), **options)
    session = session_of(trainer)
    back = opened(session, tmp_path)
    live, recorded = hfmem_widget.fit(session), hfmem_widget.fit(back)

    assert recorded.forecast == live.forecast
    assert [(each.name, each.peak, each.cost) for each in recorded.moves] == [
        (each.name, each.peak, each.cost) for each in live.moves
    ]
    assert back.moves == list(recorded.moves)


def test_a_recordings_forecast_is_of_its_own_model_and_room(tmp_path: Path) -> None:
    """A recording's forecast does not depend on what this process trains."""
    back = opened(session_of(make_trainer(tmp_path)), tmp_path)
    session_of(other := make_trainer(tmp_path, model=llama()))
    held = hfmem_widget.fit(back).verdicts[0].room.available - 0.9 * back.recipe["available"]["cpu"]
    back.recipe = {**back.recipe, "available": {"cpu": 12345.0}}
    fitted = hfmem_widget.fit(back)

    assert other.model is not None
    assert fitted.forecast.model == "GPT2LMHeadModel"
    assert fitted.verdicts[0].room.available == pytest.approx(0.9 * 12345 + held)
    assert fitted.verdicts[0].fits is False
    assert "available is what the recorded run had" in repr(fitted)


def test_a_recording_of_a_training_that_ran_out_has_its_changes(tmp_path: Path) -> None:
    """Changes are for the room that the error left."""
    trainer = running_out(tmp_path)
    path = tmp_path / "run.hfmem.jsonl"
    with pytest.raises(RuntimeError), hfmem_widget.watch(quiet=True, record=str(path)) as session:
        trainer.train()
    back = hfmem_widget.open(path)
    assert back.moves == session.moves != []

    fitted = hfmem_widget.fit(back)
    assert [(one.name, one.peak, one.room) for one in fitted.moves] == [
        (one.name, one.peak, one.room) for one in session.moves
    ]


def test_a_command_prints_its_forecast(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints text or JSON; there is no cell to write into."""
    path = session_of(make_trainer(tmp_path)).save(tmp_path / "run.hfmem.jsonl.gz")
    capsys.readouterr()
    assert main(["fit", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "2 rows in a batch, 2 batches accumulated" in printed
    assert "--write" not in printed + hfmem_widget.fit(path)._repr_mimebundle_()["text/html"]

    assert main(["fit", str(path), "--json"]) == 0
    moves = json.loads(capsys.readouterr().out)["moves"]
    assert {"gradient_accumulation_steps=2" in each["code"] for each in moves} == {True, False}
    assert all(each["bytes"] > 0 and each["fits"] for each in moves)

    assert main(["fit", str(path), "--batch", "8"]) == 2
    assert "only headroom and attempt (--try) can be chosen" in capsys.readouterr().err


def test_no_name_of_a_file_and_no_label_is_recorded(tmp_path: Path) -> None:
    """A recording names neither the folder of a model nor its labels."""
    folder = tmp_path / HIDDEN
    labelled().save_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    model.config.note = f"in {folder}"
    path = session_of(training(tmp_path, model)).save(tmp_path / "run.hfmem.jsonl")

    assert HIDDEN not in path.read_text()
    assert recipe_of(path)["config"]["num_labels"] == 3


def own_class(model: Any) -> Any:
    return type("Mine", (GPT2LMHeadModel,), {})(model.config)


def quantised(model: Any) -> Any:
    model.config.quantization_config = {"quant_method": "bitsandbytes"}
    return model


def compiled(model: Any) -> Any:
    model.compile(backend="eager")
    return model


def endless(model: Any) -> Any:
    model.config.numbers = list(range(20_000))
    return model


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (own_class, "Mine is not a class of transformers"),
        (lambda _: Plain(), "Plain is not a class of transformers"),
        (quantised, "the weights are quantised"),
        (compiled, "the model was compiled"),
        (endless, "the configuration is longer than 64 kB"),
    ],
    ids=["own class", "own module", "quantised", "compiled", "endless"],
)
def test_a_model_that_cannot_be_made_again_is_refused(
    tmp_path: Path, change: Callable[[Any], Any], why: str
) -> None:
    """One sentence refuses a forecast, and all else of the recording is shown."""
    trainer = make_trainer(tmp_path, model=tiny_model(), remove_unused_columns=False)
    trainer.model = trainer.model_wrapped = change(tiny_model())
    back = opened(session_of(trainer), tmp_path)

    assert back.recipe == {"refused": why}
    with pytest.raises(OptionError, match=f"cannot be worked out: {why}"):
        hfmem_widget.fit(back)


def test_a_model_that_was_changed_since_is_refused(tmp_path: Path) -> None:
    """A model that differs from its configuration has no forecast."""
    model = tiny_model()
    model.transformer.ln_f = torch.nn.Sequential(torch.nn.Linear(16, 16), model.transformer.ln_f)
    back = opened(session_of(make_trainer(tmp_path, model=model)), tmp_path)
    with pytest.raises(OptionError, match="is not what its configuration describes"):
        hfmem_widget.fit(back)


def test_a_recording_without_a_training_has_no_model(tmp_path: Path) -> None:
    """A recording without a training has no forecast."""
    with hfmem_widget.watch(quiet=True) as session:
        pass
    with pytest.raises(OptionError, match="the recording has no model to try it with"):
        hfmem_widget.fit(opened(session, tmp_path))


@pytest.mark.parametrize(
    "changes",
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
def test_an_invalid_recipe_is_refused_in_a_sentence(tmp_path: Path, changes: Any) -> None:
    """Nothing that an invalid recipe names is run."""
    path = session_of(make_trainer(tmp_path)).save(tmp_path / "run.hfmem.jsonl")
    with pytest.raises(OptionError) as raised:
        hfmem_widget.fit(changed(path, **changes))
    assert str(raised.value).startswith("What would fit cannot be worked out: ")
    assert "\x1b" not in str(raised.value)
