"""What is said of a training where another model runs as well, as a teacher does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import hfmem_widget
from hfmem_widget.session import Session
from hfmem_widget.text import MIB
from tests.trainer.test_calibrated import fitted, recipe
from tests.trainer.tiny import VOCABULARY, InOrder, made, make_trainer, padded, session_of

__all__ = ["recipe"]  # a fixture

SAID = "What other models (LlamaForCausalLM) take within a step is not counted."


def teacher() -> Any:
    heads = {"num_attention_heads": 2, "num_hidden_layers": 1, "pad_token_id": 0}
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 32}
    return made("LlamaForCausalLM", **sizes, **heads).eval()


class Distilling(InOrder):
    """A Trainer whose loss asks a teacher, without gradients."""

    asked: Any = None

    def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
        """Return the model's loss, and how far it is from the teacher."""
        with torch.no_grad():
            wanted = self.asked(**inputs).logits
        outputs = model(**inputs)
        return outputs.loss + (outputs.logits - wanted).square().mean()


def distilled(folder: Path, asked: Any) -> tuple[Any, Session]:
    trainer = make_trainer(folder, kind=Distilling)
    trainer.asked = asked
    return trainer, session_of(trainer)


def test_where_a_teacher_runs_nothing_is_sure_to_fit(tmp_path: Path) -> None:
    """The forecast is a lower bound, and says why; so does that of a recording."""
    trainer, session = distilled(tmp_path, asked := teacher())
    live = hfmem_widget.fit(session)
    recorded = hfmem_widget.fit(hfmem_widget.open(session.save(tmp_path / "run.hfmem.jsonl")))
    del trainer, asked

    for fit in (live, recorded):
        assert SAID in repr(fit)
        assert fit.forecast.bound == "lower"
        assert fit.verdicts[0].fits is None
        assert fit.what_if is None
        assert {move.fits for move in fit.moves} == {None}
        assert {move.largest_batch for move in fit.moves} == {None}


def test_a_part_of_the_model_is_no_other_model(tmp_path: Path) -> None:
    """Nor is the model itself, asked without gradients."""
    trainer = make_trainer(tmp_path, kind=Distilling)
    trainer.asked = trainer.model
    fit = hfmem_widget.fit(session_of(trainer))

    assert "other models" not in repr(fit)
    assert fit.verdicts[0].fits


def asked(trainer: Any, other: Any) -> None:
    with torch.no_grad():
        other(**padded(trainer.train_dataset))


def trained(trainer: Any, other: Any) -> None:
    make_trainer(Path(trainer.args.output_dir), model=other).train()


def loop(trainer: Any, other: Any) -> None:
    """Train the model of a Trainer without it, and ask the other one before and after all steps."""
    asked(trainer, other)
    trainer.optimizer = torch.optim.AdamW(trainer.model.parameters())
    for _ in range(3):
        with hfmem_widget.span("step", tokens=72, longest=9):
            trainer.model(**padded(trainer.train_dataset)).loss.backward()
            trainer.optimizer.step()
            trainer.optimizer.zero_grad()
    asked(trainer, other)


def train(trainer: Any, _other: Any) -> None:
    trainer.train()


APART = {
    "asked before": (asked, train),
    "asked after": (train, asked),
    "trained before": (trained, train),
    "asked around a loop": (loop,),
}


@pytest.mark.parametrize("acts", APART.values(), ids=APART)
def test_a_model_that_ran_before_or_after_is_no_other(tmp_path: Path, acts: Any) -> None:
    """Only models that ran while this one trained make its forecast a lower bound."""
    trainer, other = make_trainer(tmp_path), teacher()
    with hfmem_widget.watch(quiet=True) as session:
        for act in acts:
            act(trainer, other)
    fit = hfmem_widget.fit(session)

    assert "other models" not in repr(fit)
    assert fit.forecast.bound == "exact"
    assert fit.verdicts[0].fits


def test_the_newest_of_two_trainings_is_forecast(tmp_path: Path) -> None:
    """By its own batch, also where the first one had the larger model."""
    small = make_trainer(tmp_path, model=teacher(), per_device_train_batch_size=1)
    large = make_trainer(tmp_path, per_device_train_batch_size=8)
    with hfmem_widget.watch(quiet=True) as session:
        large.train()
        small.train()
    forecast = hfmem_widget.fit(session).forecast

    assert (forecast.model, forecast.setting.batch) == ("LlamaForCausalLM", 1)


def test_a_teacher_of_a_single_step_counts(tmp_path: Path) -> None:
    """What ran before the first step's end counts where there is no second one."""
    trainer = make_trainer(tmp_path, kind=Distilling, max_steps=1)
    trainer.asked = wanted = teacher()

    assert SAID in repr(hfmem_widget.fit(session_of(trainer)))
    del wanted


@pytest.mark.slow
def test_what_another_model_holds_is_no_room(recipe: Any, tmp_path: Path) -> None:
    """Its weights, and its optimizer's states, as a discriminator's, stay beside this model."""
    available = 200 * MIB
    held = {"weights": 100.0 * MIB, "optimizer": 200.0 * MIB}
    own = {**recipe, "available": {"cuda:0": available}}
    fit = fitted(own, tmp_path, 400 * MIB, held, model="BertModel")
    of_this = sum(map(fit.forecast.full, held))

    assert of_this < sum(held.values())
    assert fit.verdicts[0].room.free == pytest.approx(0.9 * available + of_this, abs=1)


class DistillingPlainly(InOrder):
    """A Trainer whose loss asks a module that is none of transformers'."""

    asked: Any = None

    def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
        """Return the model's loss, and what the module says."""
        with torch.no_grad():
            wanted = self.asked.eval()(inputs["input_ids"])
        return model(**inputs).loss + wanted.mean()


def test_a_teacher_may_be_any_module(tmp_path: Path) -> None:
    """One of torch's own has a name, too."""
    trainer = make_trainer(tmp_path, kind=DistillingPlainly)
    trainer.asked = torch.nn.Sequential(torch.nn.Embedding(VOCABULARY, 16))
    session = session_of(trainer)

    assert SAID.replace("LlamaForCausalLM", "Sequential") in repr(hfmem_widget.fit(session))
