"""An evaluation or a prediction by itself, of a model that nothing else has named."""

from __future__ import annotations

from pathlib import Path

import pytest

import hfmem_widget
from tests.trainer.tiny import make_trainer


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
