"""What would fit of an evaluation or a generation that ran out of memory, by dry runs of its passes."""

import gc
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

import hfmem_widget
from hfmem_widget.errors import OptionError
from hfmem_widget.features.fit.live_bytes import LiveBytes
from hfmem_widget.features.fit.passes import moves_of_passes
from hfmem_widget.session import Move, Session
from tests.trainer import models
from tests.trainer.models import gpt2
from tests.trainer.tiny import TEXT, make_trainer, of_kind, watched

MODELS = {name: models.MODELS[name] for name in ("gpt2", "llama", "qwen3", "bert_masked")}


EACH_MODEL = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
ROWS, TOKENS, PROMPT, WHOLE = 8, 16, 4, 96


def failing_after(model: Any, passes: int) -> None:
    """Have the forward passes of a model run out of memory after so many."""
    counted: list[object] = []

    def fails(*_: object) -> None:
        counted.append(None)
        if len(counted) > passes:
            raise RuntimeError(TEXT)

    model.get_output_embeddings().register_forward_hook(fails)


def moves_with(session: Session, room: float) -> list[Move]:
    """Return the moves where so many bytes are free beside what was allocated as it began."""
    root, error = session.spans[0], session.findings[-1]
    began = next(span for span in session.spans if span.kind in {"prefill", "evaluate"})
    base = session.value(began.before, "cpu/allocated")
    allocated = error.evidence["allocated"]
    assert isinstance(allocated, int)
    evidence = {**error.evidence, "room": int(base + room) - allocated}
    return moves_of_passes(session, root, replace(error, evidence=evidence), seconds=60)


def rows(count: int = 4 * ROWS) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 60, (count, TOKENS), generator=generator)
    return [{"input_ids": each, "labels": each} for each in ids]


def evaluating(folder: Path, model: Any, metrics: Any = None, count: int = ROWS) -> Any:
    """Return a Trainer that evaluates batches of so many rows."""
    trainer = make_trainer(folder, model=model, per_device_eval_batch_size=count)
    trainer.eval_dataset, trainer.compute_metrics = rows(), metrics
    return trainer


def evaluated(folder: Path, model: Any, metrics: Any = None) -> Session:
    """Return a session of an evaluation that ran out of memory in its third batch."""
    trainer = evaluating(folder, model, metrics)
    failing_after(model, 2)
    return watched(trainer.evaluate)


def answering(model: Any, tokens: int = PROMPT, **options: Any) -> partial[Any]:
    """Return a function that generates up to `WHOLE` tokens from rows of so many."""
    ids = torch.stack([row["input_ids"][:tokens] for row in rows(ROWS)])
    usual = {"max_new_tokens": WHOLE - tokens, "do_sample": False, "eos_token_id": None}
    return partial(model.generate, **{"input_ids": ids, **usual, **options})


def peak_above(model: Any, run: Callable[[], object]) -> int:
    """Return the bytes of all tensors at the peak of something, beside a model's own."""
    live = LiveBytes(device="cpu")
    live.leave_out([*model.parameters(), *model.buffers()])
    with live:
        run()
    return live.peak


@EACH_MODEL
def test_evaluating_fewer_rows_takes_what_was_said(tmp_path: Path, make: Callable[[], Any]) -> None:
    """A real pass of the largest batch that fits takes no more than its row says."""
    model = make()
    session = evaluated(tmp_path, model)
    whole = peak_above(real := make().eval(), lambda: passed(real, ROWS))
    [move] = moves_with(session, room=1.1 * whole)
    peak = peak_above(real, lambda: passed(real, move.batch))

    assert move.cost == ""
    assert move.code == f"trainer.args.per_device_eval_batch_size={move.batch}"
    assert 1 < move.batch < ROWS
    assert move.fits
    assert torch.is_grad_enabled()
    assert began(session) + peak <= move.high


def passed(model: Any, count: int) -> object:
    batch = {
        name: torch.stack([row[name] for row in rows(count)]) for name in ("input_ids", "labels")
    }
    with torch.no_grad():
        return model(**batch, attention_mask=torch.ones_like(batch["input_ids"]))


def test_an_evaluation_of_which_predictions_are_kept_may_keep_none(tmp_path: Path) -> None:
    """Keeping none is listed with what it costs; on the host, nothing can be moved elsewhere."""
    model = gpt2()
    session = evaluated(tmp_path, model, metrics=lambda _: {})
    [move] = moves_with(session, room=1e9)

    assert move.name == "no predictions kept"
    assert move.code == "trainer.args.prediction_loss_only=True"
    assert move.cost == "no metrics, the loss alone"


@EACH_MODEL
@pytest.mark.parametrize("share", [1.02, 1.3])
def test_an_evaluation_that_keeps_its_predictions_takes_what_was_said(
    tmp_path: Path, make: Callable[[], Any], share: float
) -> None:
    """With fewer rows: their pass, beside all that was kept by then, or its last copy."""
    model = make()
    session = evaluated(tmp_path, model, metrics=lambda _: {})

    def measured(count: int) -> int:
        trainer = evaluating(tmp_path, make(), lambda _: {}, count)
        return peak_above(trainer.model, trainer.evaluate)

    fewer, alone = moves_with(session, room=2 * share * measured(1))

    assert fewer.name.endswith("in a batch (metrics not counted)")
    assert fewer.code == f"trainer.args.per_device_eval_batch_size={fewer.batch}"
    assert fewer.cost == ""
    assert alone.cost == "no metrics, the loss alone"
    assert fewer.peak - began(session) == pytest.approx(measured(fewer.batch), rel=0.02)


@pytest.mark.parametrize("preprocess", [None, lambda logits, _: logits.argmax(-1)])
def test_kept_rows_are_counted_unless_a_function_chooses(tmp_path: Path, preprocess: Any) -> None:
    """Rows of which a function of the user's may keep less are not counted."""
    trainer = evaluating(tmp_path, gpt2(), lambda _: {})
    trainer.eval_dataset = {"one": rows(), "two": rows(3)}
    trainer.preprocess_logits_for_metrics = preprocess
    with hfmem_widget.watch("run", quiet=True) as session:
        trainer.evaluate()
        trainer.evaluate(rows(5))
    counts = [one.counts.get("kept_rows") for one in of_kind(session, "evaluate")]

    assert counts == ([None] * 4 if preprocess else [0, 4 * ROWS, 3, 5])


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen3"])
def test_a_generation_has_fewer_rows_or_fewer_tokens(name: str) -> None:
    """Both changes need what a real run with them needs, within 2 %."""
    # Of a longer prompt, what the first pass calculates takes as much as the cache of the last.
    model, real = MODELS[name](), MODELS[name]()
    whole = peak_above(model, answering(model))
    failing_after(model, 3)
    session = watched(answering(model))
    fewer, shorter = moves_with(session, room=1.5 * whole)
    tokens = int(shorter.changes[0].value)
    ids = answering(real).keywords["input_ids"]
    took = peak_above(real, answering(real, input_ids=ids[: fewer.batch]))
    shortened = peak_above(real, answering(real, max_new_tokens=tokens))

    assert fewer.name == f"{fewer.batch} sequences at a time instead of {ROWS}"
    assert (fewer.cost, shorter.cost) == ("", "longer answers lose their end")
    assert 1 < fewer.batch < ROWS
    assert 1 < tokens < WHOLE - PROMPT
    assert fewer.peak - began(session) == pytest.approx(took, rel=0.02)
    assert shorter.peak - began(session) == pytest.approx(shortened, rel=0.02)


def test_an_answer_of_hardly_any_tokens_is_not_advised(monkeypatch: pytest.MonkeyPatch) -> None:
    """If less than an eighth of the tokens would fit, only fewer sequences are listed."""
    monkeypatch.setattr("hfmem_widget.features.fit.passes.others_of", lambda *_: 0.0)
    model = gpt2()
    whole = peak_above(model, answering(model, TOKENS))
    failing_after(model, 3)
    session = watched(answering(model, TOKENS))
    [move] = moves_with(session, room=0.98 * whole)

    assert move.name == f"{move.batch} sequences at a time instead of {ROWS}"


def test_fewer_sequences_have_other_random_draws() -> None:
    """With drawn tokens the result is not the same."""
    model, ids = gpt2(), torch.ones(ROWS, TOKENS, dtype=torch.int64)
    failing_after(model, 3)
    session = watched(lambda: model.generate(input_ids=ids, max_new_tokens=80, do_sample=True))

    assert "other random draws" in {move.cost for move in moves_with(session, room=1e6)}


def test_a_generation_within_a_training_has_changes_of_its_own(tmp_path: Path) -> None:
    """If a callback's generation runs out, no change of the training is listed."""

    class Samples(TrainerCallback):  # type: ignore[misc]  # transformers has no types
        def on_step_end(self, *_: Any, model: Any, **__: Any) -> None:
            model.generate(input_ids=torch.ones(ROWS, TOKENS, dtype=torch.int64), max_new_tokens=40)

    model = gpt2()
    trainer = make_trainer(tmp_path, model=model, callbacks=[Samples()])
    failing_after(model, 3)
    listed = moves_with(watched(trainer.train), room=5e5)

    assert listed
    assert all(move.accumulation == 1 for move in listed)
    assert {change.target for move in listed for change in move.changes} <= {"generate"}


def began(session: Session) -> float:
    span = next(one for one in session.spans if one.kind in {"prefill", "evaluate"})
    return session.value(span.before, "cpu/allocated")


@pytest.mark.parametrize("metrics", [None, lambda _: {}], ids=["loss alone", "predictions"])
def test_an_evaluation_that_went_well_has_a_forecast(tmp_path: Path, metrics: Any) -> None:
    """The forecast is the peak of a real evaluation; one that keeps no predictions needs less."""
    trainer = evaluating(tmp_path, gpt2(), metrics)
    with hfmem_widget.watch("run", quiet=True) as session:
        trainer.evaluate()
    peak = peak_above(trainer.model, trainer.evaluate)
    fitted = hfmem_widget.fit(session, headroom=0.999)

    assert fitted.forecast.total - began(session) == pytest.approx(peak, rel=0.02)
    assert fitted.forecast.setting.batch == ROWS
    assert [fitted.verdicts[0].fits, (fitted.verdicts[0].largest_batch or 0) > ROWS] == [True, True]
    assert [move.name for move in fitted.moves] == ["no predictions kept"] * bool(metrics)
    assert session.moves == list(fitted.moves)


def test_a_generation_that_went_well_has_a_forecast() -> None:
    """The forecast goes up to the last token, and is not of another model that ran afterwards."""
    model = gpt2()
    with hfmem_widget.watch("run", quiet=True) as session:
        answering(model)()
    peak = peak_above(model, answering(model))
    fitted = hfmem_widget.fit(session)

    assert fitted.forecast.setting.length == WHOLE
    assert fitted.forecast.total - began(session) == pytest.approx(peak, rel=0.02)

    other = models.gpt2_of_two_layers()
    with hfmem_widget.watch("other", quiet=True):
        answering(other)()
    again = hfmem_widget.fit(session).forecast
    assert (again.parameters, again.total) == (fitted.forecast.parameters, fitted.forecast.total)


def test_a_generation_whose_model_is_gone_has_no_forecast() -> None:
    """The error does not call the generation a training whose optimizer is missing."""
    model = gpt2()
    with hfmem_widget.watch("run", quiet=True) as session:
        model.generate(input_ids=torch.ones(2, 8, dtype=torch.int64), max_new_tokens=4)
    del model
    gc.collect()
    with pytest.raises(
        OptionError, match="this evaluation or generation has no forecast: its model is gone"
    ):
        hfmem_widget.fit(session)
