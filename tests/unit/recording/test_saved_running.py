"""A session that was saved while it ran, or whose process was killed: what its open cell says."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import hfmem_widget
from hfmem_widget.features.report.page import page
from hfmem_widget.session import Session
from hfmem_widget.text import GIB
from hfmem_widget.view.card import card_bundle
from hfmem_widget.view.line import line
from tests.scenes.stage import Stage


def saved_within_a_cell(path: Path, *, killed: bool = False) -> Session:
    """Return what is read of a cell that is not over, and had more on the GPU a moment before."""
    stage = Stage("fit", gpus=1)
    with stage.span("cell", "before"):
        stage.hold({"cpu": GIB}, 0.5)
    with stage.span("cell", "fit"):
        stage.hold({"cuda:0": 3 * GIB}, 1.0)
        stage.hold({"cuda:0": GIB}, 1.0)
        stage.session.save(path)
    if killed:
        path.write_bytes(path.read_bytes().rpartition(b'{"k":"end"')[0])
    read: Session = hfmem_widget.open(path)
    assert not read.running
    return read


@pytest.mark.parametrize(
    ("killed", "said"), [(False, "not ended when it was saved"), (True, "not watched to its end")]
)
def test_an_open_cell_does_not_run_any_more(tmp_path: Path, *, killed: bool, said: str) -> None:
    """On the line, the card and in a report's list of cells."""
    session = saved_within_a_cell(tmp_path / "fit.hfmem.jsonl", killed=killed)
    cell = session.spans[1]

    for text in (line(session, cell), *card_bundle(session, cell, with_chart=False).values()):
        assert said in text
        assert "running" not in text.replace("saved while it was running", "")
    assert said in page(session, static=True)


def test_while_it_runs_it_is_said_to_run() -> None:
    """The kernel knows it."""
    stage = Stage("fit", gpus=1)
    with stage.span("cell", "fit") as cell:
        assert "running" in line(stage.session, cell)


def test_the_peak_of_an_open_cell_is_that_of_its_samples(tmp_path: Path) -> None:
    """No recorder has followed it here: the highest is found among what was read."""
    session = saved_within_a_cell(tmp_path / "fit.hfmem.jsonl")
    cell = session.spans[1]

    assert session.highest_in(cell.id, "cuda:0/allocated") >= 2.8 * GIB
    assert "cuda:0" in line(session, cell)
    assert math.isnan(session.highest_in(cell.id, "cuda:0/none"))
