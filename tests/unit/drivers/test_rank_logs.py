"""What is logged of all ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from hfmem_widget.drivers.trainer import figures_of
from hfmem_widget.ranks.run import Run
from hfmem_widget.text import GIB
from tests.fakes.ranks import Script, SimulatedRun


def followed(tmp_path: Path) -> Run:
    """Return a run that was read here."""
    run = Run(tmp_path / "run")
    run.look()
    return run


def test_the_highest_the_median_and_the_lowest_peak_are_logged(tmp_path: Path) -> None:
    """In GiB and exact, with the rank that is the worst and how many were heard of."""
    run = SimulatedRun(Script(world=4, heavier={3: 1.1}))
    run.write(tmp_path / "run", 10.0, finish=False)
    entries = figures_of(followed(tmp_path))

    assert entries["hfmem/ranks/worst_rank"] == 3
    assert entries["hfmem/ranks/reporting"] == 4
    assert entries["hfmem/ranks/peak_allocated_gib_max"] * GIB == pytest.approx(run.ranks[3].peak)
    others = [run.ranks[rank].peak / GIB for rank in range(3)]
    assert entries["hfmem/ranks/peak_allocated_gib_min"] == pytest.approx(min(others))
    assert min(others) <= entries["hfmem/ranks/peak_allocated_gib_median"] <= max(others)


def test_before_a_rank_has_a_peak_nothing_is_logged(tmp_path: Path) -> None:
    """A directory in which nobody has written yet."""
    run = SimulatedRun(Script(world=4), ranks=())
    run.write(tmp_path / "run", 0.0)

    assert figures_of(followed(tmp_path)) == {}
