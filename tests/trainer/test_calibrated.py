"""What would fit is scaled by a step that was measured, where that took another peak than its forecast."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import hfmem_widget
from hfmem_widget.features.fit.model import Fit
from hfmem_widget.session import Contents, Finding
from hfmem_widget.text import MIB
from tests.scenes.stage import Stage
from tests.trainer.tiny import made, make_trainer, session_of

ROWS, LENGTH = 4, 9
STAYS = ("weights", "buffers", "optimizer")
CHANGE = "gradient checkpointing"


@pytest.fixture
def recipe(tmp_path: Path) -> Mapping[str, Any]:
    """Return what a real training keeps of its model; here it is said to have been on a GPU."""
    ids = {"bos_token_id": 0, "eos_token_id": None, "pad_token_id": 0}
    shape = {"vocab_size": 65536, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 2}
    session = session_of(make_trainer(tmp_path, model=made("GPT2LMHeadModel", **shape, **ids)))
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


def unmeasured(recipe: Mapping[str, Any], folder: Path) -> tuple[Fit, dict[str, float]]:
    """Return the fit of a training whose steps were another model's, and what stays in its forecast."""
    fit = fitted(recipe, folder, 10 * MIB, {"weights": 21440.0}, model="BertModel")
    return fit, {
        name: float(fit.forecast.bytes(name)) for name in STAYS if fit.forecast.bytes(name)
    }


def peaks(fit: Fit) -> dict[str, float]:
    """Return the peak of each change."""
    return {move.name: move.peak for move in fit.moves}


def test_a_step_that_agrees_changes_nothing(recipe: Mapping[str, Any], tmp_path: Path) -> None:
    """Up to two per cent; nor does a step of another model."""
    other, stays = unmeasured(recipe, tmp_path)
    agreeing = fitted(recipe, tmp_path, 1.01 * other.forecast.total, stays)

    assert other.calibration == agreeing.calibration == ""
    assert peaks(agreeing) == peaks(other)


@pytest.mark.parametrize("times", [0.5, 1.5, 3.0])
def test_what_a_step_makes_is_scaled(
    recipe: Mapping[str, Any], tmp_path: Path, times: float
) -> None:
    """A change has as many times what it makes, and its interval is wider than before."""
    first, stays = unmeasured(recipe, tmp_path)
    certain = map(first.forecast.bytes, ("libraries", "gradients"))
    held = sum(stays.values()) + sum(certain)
    made = first.forecast.total - held
    scaled = fitted(recipe, tmp_path, held + times * made, stays)

    assert "what would fit is scaled by that, part by part." in repr(scaled)
    assert scaled.forecast == first.forecast
    [move] = [each for each in scaled.moves if each.name == CHANGE]
    assert move.peak == pytest.approx(held + times * (peaks(first)[CHANGE] - held), rel=0.001)
    assert move.low < move.peak < move.high


def test_a_part_is_scaled_by_its_own(recipe: Mapping[str, Any], tmp_path: Path) -> None:
    """States that take twice as much do so in a change that keeps the optimizer, and in no other."""
    first, stays = unmeasured(recipe, tmp_path)
    more = stays | {"optimizer": 2 * stays["optimizer"]}
    scaled = fitted(recipe, tmp_path, first.forecast.total + stays["optimizer"], more)

    before, after = peaks(first), peaks(scaled)
    risen = {name: after[name] - before[name] for name in before.keys() & after.keys()}
    assert risen[CHANGE] == pytest.approx(stays["optimizer"], rel=0.01)
    assert risen["Adafactor"] == pytest.approx(0, abs=0.01 * stays["optimizer"])


def test_parts_that_were_not_measured_scale_nothing(
    recipe: Mapping[str, Any], tmp_path: Path
) -> None:
    """Then the card says that the two differ, and no more."""
    first, stays = unmeasured(recipe, tmp_path)
    fit = fitted(recipe, tmp_path, 1.5 * first.forecast.total, {"weights": stays["weights"]})

    assert "50.0 % more than forecast; its parts were not measured" in fit.calibration
    assert peaks(fit) == peaks(first)


def test_nothing_is_compared_after_an_error(recipe: Mapping[str, Any], tmp_path: Path) -> None:
    """The step that failed may have been another one than those before."""
    evidence = {"device": "cuda:0", "room": 5, "allocated": 9}
    error = Finding("oom", "critical", "Out.", evidence, (), 7)

    assert fitted(recipe, tmp_path, 10 * MIB, {"weights": 9.0}, error).calibration == ""
