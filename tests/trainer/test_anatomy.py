"""What a real Trainer's memory is for: counted, and beside it forecasts, which a measured step scales."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import hfmem_widget
from hfmem_widget.errors import OptionError
from hfmem_widget.features.fit.model import Fit
from hfmem_widget.session import Contents, Finding, Polling, Session
from hfmem_widget.text import MIB
from hfmem_widget.view.card import card_bundle
from tests.scenes.stage import Stage
from tests.trainer.tiny import (
    VOCABULARY,
    InOrder,
    made,
    make_trainer,
    of_kind,
    padded,
    session_of,
    tiny_model,
)


def size_of(tensors: Any) -> float:
    return float(sum(tensor.untyped_storage().nbytes() for tensor in tensors))


def states_of(trainer: Any) -> float:
    return size_of(one for state in trainer.optimizer.state.values() for one in state.values())


@pytest.mark.parametrize("accumulated", [1, 2])
def test_parts_at_a_step_have_the_bytes_of_their_storages(tmp_path: Path, accumulated: int) -> None:
    """Weights, gradients and states are exact to the byte before and after an optimizer step."""
    trainer = make_trainer(tmp_path, gradient_accumulation_steps=accumulated, max_steps=3)
    session = session_of(trainer)

    weights = size_of(trainer.model.parameters())
    optimizers = of_kind(session, "optimizer")
    assert len(optimizers) == 3
    for number, span in enumerate(optimizers):
        assert span.after is not None
        before, after = (
            [session.value(edge, f"cpu/{name}") for name in ("weights", "gradients", "optimizer")]
            for edge in (span.before, span.after)
        )
        assert before == [weights, weights, states_of(trainer) if number else 0.0]
        assert after == [weights, weights, states_of(trainer)]


def test_no_gradients_are_counted_between_steps(tmp_path: Path) -> None:
    """A Trainer frees the gradients at the end of each step."""
    session = session_of(make_trainer(tmp_path, max_steps=2))

    steps = of_kind(session, "step")
    assert [session.value(span.before, "cpu/gradients") for span in steps] == [0.0, 0.0]


def test_a_forecast_stands_beside_what_was_measured(tmp_path: Path) -> None:
    """A forecast has the weights and states of the live model, beside those that were measured."""
    trainer = make_trainer(tmp_path, max_steps=2)
    session_of(trainer)  # from now on its parts are known at each sample, whichever is the highest
    fitted = hfmem_widget.fit(session_of(trainer))

    forecast = {part.name: part.full for part in fitted.forecast.parts}
    weights, states = size_of(trainer.model.parameters()), states_of(trainer)
    assert forecast["weights"] == fitted.measured["weights"] == weights
    assert forecast["optimizer"] == pytest.approx(states, rel=0.02)
    assert forecast["activations"] > 0
    assert "measured" in str(fitted)


def test_the_optimizer_of_a_forecast_is_the_models_own(trainer: Any) -> None:
    """An optimizer with which another model was trained afterwards is not the one of the forecast."""
    with hfmem_widget.watch(quiet=True) as session:
        trainer.train()
        small = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(small.parameters())
        small(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    forecast = hfmem_widget.fit(session).forecast
    assert forecast.full("optimizer") == pytest.approx(states_of(trainer), rel=0.02)


def test_a_forecast_leaves_the_training_alone(tmp_path: Path) -> None:
    """A training goes on after a forecast with the same losses as without one."""
    losses = []
    for forecasts in (False, True):
        trainer = make_trainer(tmp_path, max_steps=2)
        session = session_of(trainer)
        if forecasts:
            hfmem_widget.fit(session)
        losses.append(trainer.train().training_loss)

    assert losses[0] == losses[1]


def test_a_training_that_was_not_watched_has_no_forecast(trainer: Any) -> None:
    """The error says that no training was watched, not that its model is gone."""
    trainer.train()
    with hfmem_widget.watch("fit", quiet=True) as session:
        pass
    with pytest.raises(OptionError, match="no training was watched"):
        hfmem_widget.fit(session)


@pytest.mark.parametrize("method", ["evaluate", "predict"])
def test_the_model_of_an_evaluation_is_counted(trainer: Any, method: str) -> None:
    """Weights are a part from the first batch of an evaluation on."""
    given = (trainer.eval_dataset,) if method == "predict" else ()
    with hfmem_widget.watch(quiet=True) as session:
        getattr(trainer, method)(*given)

    weights = sum(one.nbytes for one in trainer.model.parameters())
    assert session.latest("cpu/weights") == weights
    (span,) = of_kind(session, method)
    assert session.value(span.before, "cpu/weights") == weights


PARTS = 4
EACH = 220  # bytes of a further part, in the bar and below it


def test_the_card_of_a_training_is_small(trainer: Any) -> None:
    """A card has at most 6 kB of HTML with four parts in its bar, and 220 bytes for each further one."""
    session = session_of(trainer)
    session.polling = Polling()  # a busy machine has a note more
    html = card_bundle(session, session.spans[0], with_chart=True)["text/html"]

    assert "steps and phases" in html
    assert len(html.encode()) <= 6_000 + EACH * max(0, html.count("<rect") - PARTS)


ROWS, LENGTH = 4, 9
STAYS = ("weights", "buffers", "optimizer")
CHANGE = "gradient checkpointing"


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """Return what a real training keeps of its model; it says that it was on a GPU."""
    folder = tmp_path_factory.mktemp("trained")
    ids = {"bos_token_id": 0, "eos_token_id": None, "pad_token_id": 0}
    shape = {"vocab_size": 65536, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 2}
    session = session_of(make_trainer(folder, model=made("GPT2LMHeadModel", **shape, **ids)))
    return {**session.recipe, "available": {"cuda:0": 10_000.0 * MIB}}


def fitted(
    recipe: Mapping[str, Any],
    folder: Path,
    peak: float,
    parts: Mapping[str, float],
    *findings: Finding,
    model: str = "GPT2LMHeadModel",
) -> Fit:
    """Return the fit of a training on a GPU whose second step had this peak, with such parts."""
    stage = Stage("fine-tune", gpus=1)
    held = sum(parts.values())
    with stage.span("cell", "fine-tune"):
        stage.hold({"cuda:0": held}, 0.3, parts)
        stage.session.contents = Contents(modules=(model,), parameters=recipe["size"][0])
        for number in (1, 2):
            with stage.span("step", f"step {number}") as span:
                sizes = {"samples": ROWS, "longest": LENGTH, "tokens": ROWS * LENGTH}
                counts = {"step": number, **sizes, "largest_batch": ROWS * LENGTH}
                stage.recorder.count(span.id, counts)
                stage.hold({"cuda:0": peak}, 0.5)
                stage.hold({"cuda:0": held}, 0.1)
    session = stage.finish()
    session.findings += findings
    session.recipe = recipe
    file = folder / f"{len(list(folder.iterdir()))}.hfmem.jsonl"
    return hfmem_widget.fit(hfmem_widget.open(session.save(file)))


Unmeasured = tuple[Fit, dict[str, float]]


@pytest.fixture(scope="module")
def unmeasured(recipe: Mapping[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Unmeasured:
    """Return the fit of a training whose steps were another model's, and what stays in its forecast."""
    folder = tmp_path_factory.mktemp("unmeasured")
    fit = fitted(recipe, folder, 10 * MIB, {"weights": 21440.0}, model="BertModel")
    sizes = {name: float(fit.forecast.bytes(name)) for name in STAYS}
    return fit, {name: size for name, size in sizes.items() if size}


def peaks(fit: Fit) -> dict[str, float]:
    return {move.name: move.peak for move in fit.moves}


def test_a_step_that_agrees_changes_nothing(
    recipe: Any, unmeasured: Unmeasured, tmp_path: Path
) -> None:
    """A measured step within 2 % of its forecast changes no peak, nor does a step of another model."""
    other, stays = unmeasured
    agreeing = fitted(recipe, tmp_path, 1.01 * other.forecast.total, stays)

    assert other.calibration == agreeing.calibration == ""
    assert peaks(agreeing) == peaks(other)


@pytest.mark.parametrize("times", [0.5, 1.5, 3.0])
def test_a_steps_memory_is_scaled(
    recipe: Any, unmeasured: Unmeasured, tmp_path: Path, times: float
) -> None:
    """If a step took more or less than its forecast, each change is scaled by as much."""
    first, stays = unmeasured
    certain = map(first.forecast.bytes, ("libraries", "gradients"))
    held = sum(stays.values()) + sum(certain)
    made = first.forecast.total - held
    scaled = fitted(recipe, tmp_path, held + times * made, stays)

    assert "what would fit is scaled by that, part by part." in repr(scaled)
    assert scaled.forecast == first.forecast
    [move] = [each for each in scaled.moves if each.name == CHANGE]
    assert move.peak == pytest.approx(held + times * (peaks(first)[CHANGE] - held), rel=0.001)
    assert move.low < move.peak < move.high


def test_a_part_is_scaled_by_its_own(recipe: Any, unmeasured: Unmeasured, tmp_path: Path) -> None:
    """States of twice the size are so in a change that keeps the optimizer, and in no other."""
    first, stays = unmeasured
    more = stays | {"optimizer": 2 * stays["optimizer"]}
    scaled = fitted(recipe, tmp_path, first.forecast.total + stays["optimizer"], more)

    before, after = peaks(first), peaks(scaled)
    risen = {name: after[name] - before[name] for name in before.keys() & after.keys()}
    assert risen[CHANGE] == pytest.approx(stays["optimizer"], rel=0.01)
    assert risen["Adafactor"] == pytest.approx(0, abs=0.01 * stays["optimizer"])


def test_unmeasured_parts_scale_nothing(
    recipe: Any, unmeasured: Unmeasured, tmp_path: Path
) -> None:
    """If the parts of a step were not measured, the card says only that step and forecast differ."""
    first, stays = unmeasured
    fit = fitted(recipe, tmp_path, 1.5 * first.forecast.total, {"weights": stays["weights"]})

    assert "50.0 % more than forecast; its parts were not measured" in fit.calibration
    assert peaks(fit) == peaks(first)


def test_nothing_is_compared_after_an_error(recipe: Mapping[str, Any], tmp_path: Path) -> None:
    """After an error no step is compared: the one that failed may have had another batch."""
    evidence = {"device": "cuda:0", "room": 5, "allocated": 9}
    error = Finding("oom", "critical", "Out.", evidence, (), 7)

    assert fitted(recipe, tmp_path, 10 * MIB, {"weights": 9.0}, error).calibration == ""


NOT_COUNTED = "What other models (LlamaForCausalLM) take within a step is not counted."


def teacher() -> Any:
    heads = {"num_attention_heads": 2, "num_hidden_layers": 1, "pad_token_id": 0}
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 32}
    return made("LlamaForCausalLM", **sizes, **heads).eval()


class Distilling(InOrder):
    """A Trainer whose loss asks a teacher, without gradients."""

    teacher: Any = None

    def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
        """Return the model's loss, and how far it is from the teacher."""
        with torch.no_grad():
            target = self.teacher(**inputs).logits
        outputs = model(**inputs)
        return outputs.loss + (outputs.logits - target).square().mean()


def distilled(folder: Path, model: Any) -> tuple[Any, Session]:
    trainer = make_trainer(folder, kind=Distilling)
    trainer.teacher = model
    return trainer, session_of(trainer)


def test_a_training_with_a_teacher_is_not_said_to_fit(tmp_path: Path) -> None:
    """The forecast is a lower bound, and says why; so does that of a recording."""
    trainer, session = distilled(tmp_path, other := teacher())
    live = hfmem_widget.fit(session)
    recorded = hfmem_widget.fit(hfmem_widget.open(session.save(tmp_path / "run.hfmem.jsonl")))
    del trainer, other

    for fit in (live, recorded):
        assert NOT_COUNTED in repr(fit)
        assert fit.forecast.bound == "lower"
        assert fit.verdicts[0].fits is None
        assert fit.what_if is None
        assert {move.fits for move in fit.moves} == {None}
        assert {move.largest_batch for move in fit.moves} == {None}


def test_a_part_of_the_model_is_not_another_model(tmp_path: Path) -> None:
    """A model that is also called without gradients is not another model."""
    trainer = make_trainer(tmp_path, kind=Distilling)
    trainer.teacher = trainer.model
    fit = hfmem_widget.fit(session_of(trainer))

    assert "other models" not in repr(fit)
    assert fit.verdicts[0].fits


def ask(trainer: Any, other: Any) -> None:
    with torch.no_grad():
        other(**padded(trainer.train_dataset))


def train_other(trainer: Any, other: Any) -> None:
    make_trainer(Path(trainer.args.output_dir), model=other).train()


def loop(trainer: Any, other: Any) -> None:
    """Train the model of a Trainer without it, and ask the other one before and after all steps."""
    ask(trainer, other)
    trainer.optimizer = torch.optim.AdamW(trainer.model.parameters())
    for _ in range(3):
        with hfmem_widget.span("step", tokens=72, longest=9):
            trainer.model(**padded(trainer.train_dataset)).loss.backward()
            trainer.optimizer.step()
            trainer.optimizer.zero_grad()
    ask(trainer, other)


def train(trainer: Any, _other: Any) -> None:
    trainer.train()


APART = {
    "asked before": (ask, train),
    "asked after": (train, ask),
    "trained before": (train_other, train),
    "asked around a loop": (loop,),
}


@pytest.mark.parametrize("acts", APART.values(), ids=APART)
def test_a_model_that_ran_before_or_afterwards_does_not_count(tmp_path: Path, acts: Any) -> None:
    """Only models that ran while this one trained make its forecast a lower bound."""
    trainer, other = make_trainer(tmp_path), teacher()
    with hfmem_widget.watch(quiet=True) as session:
        for act in acts:
            act(trainer, other)
    fit = hfmem_widget.fit(session)

    assert "other models" not in repr(fit)
    assert fit.forecast.bound == "exact"
    assert fit.verdicts[0].fits


def test_the_newest_of_several_trainings_is_forecast(tmp_path: Path) -> None:
    """A forecast has the batch of the newest training, though an earlier model was larger or as large."""
    models = (tiny_model(), teacher(), teacher())
    trainers = [
        make_trainer(tmp_path, model=model, per_device_train_batch_size=rows)
        for model, rows in zip(models, (8, 2, 1), strict=True)
    ]
    with hfmem_widget.watch(quiet=True) as session:
        for trainer in trainers:
            trainer.train()
    forecast = hfmem_widget.fit(session).forecast

    assert (forecast.model, forecast.setting.batch) == ("LlamaForCausalLM", 1)
    assert forecast.full("weights") == sum(weight.nbytes for weight in models[-1].parameters())


def test_a_teacher_of_a_single_step_counts(tmp_path: Path) -> None:
    """Models that ran before the end of the first step count if there is no second one."""
    trainer = make_trainer(tmp_path, kind=Distilling, max_steps=1)
    trainer.teacher = kept = teacher()

    assert NOT_COUNTED in repr(hfmem_widget.fit(session_of(trainer)))
    del kept


@pytest.mark.slow
def test_memory_of_another_model_is_not_available(recipe: Any, tmp_path: Path) -> None:
    """Weights and states of another model, such as a discriminator, stay."""
    available = 200 * MIB
    held = {"weights": 100.0 * MIB, "optimizer": 200.0 * MIB}
    own = {**recipe, "available": {"cuda:0": available}}
    fit = fitted(own, tmp_path, 400 * MIB, held, model="BertModel")
    of_this = sum(map(fit.forecast.full, held))

    assert of_this < sum(held.values())
    assert fit.verdicts[0].room.free == pytest.approx(0.9 * available + of_this, abs=1)


class DistillingPlainly(InOrder):
    """A Trainer whose loss asks a module that is none of transformers'."""

    teacher: Any = None

    def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
        """Return the model's loss, and what the module says."""
        with torch.no_grad():
            target = self.teacher.eval()(inputs["input_ids"])
        return model(**inputs).loss + target.mean()


def test_a_teacher_may_be_any_module(tmp_path: Path) -> None:
    """A teacher that is a plain module of torch is named, too."""
    trainer = make_trainer(tmp_path, kind=DistillingPlainly)
    trainer.teacher = torch.nn.Sequential(torch.nn.Embedding(VOCABULARY, 16))
    session = session_of(trainer)

    assert NOT_COUNTED.replace("LlamaForCausalLM", "Sequential") in repr(hfmem_widget.fit(session))
