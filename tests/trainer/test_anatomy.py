"""What a real Trainer's memory is for: counted, and beside it predicted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import hfmem_widget
from hfmem_widget.errors import OptionError
from tests.trainer.tiny import make_trainer, session_of, tiny_model


def size_of(tensors: Any) -> float:
    return float(sum(tensor.untyped_storage().nbytes() for tensor in tensors))


def states_of(trainer: Any) -> float:
    states = trainer.optimizer.state.values()
    return size_of(one for state in states for one in state.values())


@pytest.mark.parametrize("accumulated", [1, 2])
def test_every_part_of_an_optimizer_step_is_its_storages(tmp_path: Path, accumulated: int) -> None:
    """Weights, gradients and states at each edge of an optimizer step, to the byte."""
    trainer = make_trainer(tmp_path, gradient_accumulation_steps=accumulated, max_steps=3)
    session = session_of(trainer)

    weights = size_of(trainer.model.parameters())
    optimizers = [span for span in session.spans if span.kind == "optimizer"]
    assert len(optimizers) == 3
    for number, span in enumerate(optimizers):
        assert span.after is not None
        before, after = (
            [session.value(edge, f"cpu/{name}") for name in ("weights", "gradients", "optimizer")]
            for edge in (span.before, span.after)
        )
        assert before == [weights, weights, states_of(trainer) if number else 0.0]
        assert after == [weights, weights, states_of(trainer)]


def test_gradients_are_gone_after_the_step(tmp_path: Path) -> None:
    """A Trainer frees them, and at the edge of the step none are told."""
    session = session_of(make_trainer(tmp_path, max_steps=2))

    steps = [span for span in session.spans if span.kind == "step"]
    assert [session.value(span.before, "cpu/gradients") for span in steps] == [0.0, 0.0]


def test_a_forecast_stands_beside_what_was_measured(tmp_path: Path) -> None:
    """A dry run of the live model knows its weights and states; the peak has as much."""
    trainer = make_trainer(tmp_path, max_steps=2)
    session_of(trainer)  # from now on its parts are known at each sample, whichever is the highest
    fitted = hfmem_widget.fit(session_of(trainer))

    forecast = {part.name: part.full for part in fitted.forecast.parts}
    weights, states = size_of(trainer.model.parameters()), states_of(trainer)
    assert forecast["weights"] == fitted.measured["weights"] == weights
    assert forecast["optimizer"] == pytest.approx(states, rel=0.02)
    assert forecast["activations"] > 0
    assert "measured" in str(fitted)


def test_a_forecast_beside_other_models_is_of_the_one_that_is_trained(tmp_path: Path) -> None:
    """The newest, of several that are as large."""
    trainers = [make_trainer(tmp_path, model=tiny_model(), max_steps=2) for _ in range(3)]
    with hfmem_widget.watch(quiet=True) as session:
        for trainer in trainers:
            trainer.train()

    forecast = hfmem_widget.fit(session).forecast
    assert forecast.full("weights") == size_of(trainers[-1].model.parameters())


def test_the_optimizer_of_a_forecast_is_the_models_own(tmp_path: Path) -> None:
    """Not one that another model was trained with since."""
    trainer = make_trainer(tmp_path, max_steps=2)
    with hfmem_widget.watch(quiet=True) as session:
        trainer.train()
        small = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(small.parameters())
        small(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    forecast = hfmem_widget.fit(session).forecast
    assert forecast.full("optimizer") == pytest.approx(states_of(trainer), rel=0.02)


def test_a_forecast_leaves_the_training_alone(tmp_path: Path) -> None:
    """The model trains on to the same weights as one that nothing was forecast of."""
    losses = []
    for forecasts in (False, True):
        trainer = make_trainer(tmp_path, max_steps=2)
        session = session_of(trainer)
        if forecasts:
            hfmem_widget.fit(session)
        losses.append(trainer.train().training_loss)

    assert losses[0] == losses[1]


def test_without_steps_there_is_no_forecast(tmp_path: Path) -> None:
    """It then says what is missing."""
    trainer = make_trainer(tmp_path, max_steps=1)
    trainer.train()
    with hfmem_widget.watch(quiet=True) as session:
        pass

    with pytest.raises(OptionError, match=r"steps|no training was watched"):
        hfmem_widget.fit(session)


@pytest.mark.parametrize("method", ["evaluate", "predict"])
def test_the_model_of_an_evaluation_is_counted(tmp_path: Path, method: str) -> None:
    """Its weights are a part from the first batch on."""
    trainer = make_trainer(tmp_path)
    given = (trainer.eval_dataset,) if method == "predict" else ()
    with hfmem_widget.watch(quiet=True) as session:
        getattr(trainer, method)(*given)

    weights = sum(one.nbytes for one in trainer.model.parameters())
    assert session.latest("cpu/weights") == weights
    span = next(span for span in session.spans if span.kind == method)
    assert session.value(span.before, "cpu/weights") == weights
