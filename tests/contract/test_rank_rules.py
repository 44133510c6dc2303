"""What is said and drawn of all ranks, as one table that Python and the page both play.

The front end's part is `js/tests/rank_rules.test.ts`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hfmem_widget.session import Certainty, Peak, PhaseSkew, RankRow, Ranks, RankStrip
from hfmem_widget.session.series import TABLE, over_ranks, row_of
from hfmem_widget.view.chart.scene_shapes import BAND
from hfmem_widget.view.line import reporting_text
from hfmem_widget.view.rank_words import peak_name, phase_cells, rank_cells
from hfmem_widget.view.strip import about, colour, full_of, height_of, side_words, word_at
from hfmem_widget.view.wire.rank_messages import folded

RULES = json.loads((Path(__file__).parent / "rank_rules.json").read_text(encoding="utf-8"))


def ranks_of(case: dict[str, Any]) -> Ranks:
    phases = (PhaseSkew(*phase) for phase in case.get("phases", ()))
    first = case.get("first", ())
    # So many rows, each of as many neighbours.
    first = range(0, case["world"], case["world"] // first) if isinstance(first, int) else first
    return Ranks(
        case["world"],
        case.get("nodes", 1),
        table=tuple(RankRow(**{"certainty": "exact", **row}) for row in case.get("table", ())),
        phases=tuple(phases),
        strip=RankStrip(tuple(first)),
    )


@pytest.mark.parametrize(("metrics", "worst", "drawn"), RULES["drawn"])
def test_the_lines_of_all_ranks_are_those_of_the_live_chart(
    metrics: list[str], worst: int | None, drawn: list[str]
) -> None:
    """Each rank by itself where there are so few, else a band; in order of drawing."""
    assert over_ranks(metrics, worst) == drawn


@pytest.mark.parametrize(("device", "metric", "look"), RULES["looks"])
def test_a_line_looks_as_in_the_live_chart(device: str, metric: str, look: str) -> None:
    """What all ranks together had allocated is that of the highest."""
    assert row_of(device, metric) is TABLE[look]


def test_the_band_is_called_as_in_the_live_chart() -> None:
    """In the legend."""
    assert RULES["band"] == BAND


@pytest.mark.parametrize("case", RULES["peaks"], ids=lambda case: str(case["name"]))
def test_the_peak_is_called_as_in_the_live_chart(case: dict[str, Any]) -> None:
    """By the worst rank, where it is that rank's, and as that rank knows it."""
    certainty: Certainty = case["certainty"]

    assert peak_name(ranks_of(case), Peak(case["bytes"], certainty)) == case["called"]


@pytest.mark.parametrize("case", RULES["tables"], ids=lambda case: str(case["name"]))
def test_the_table_is_that_of_the_live_chart(case: dict[str, Any]) -> None:
    """Only columns that say something, figures in one unit."""
    heads, rows = rank_cells(ranks_of(case))

    assert [heads, rows] == [case["heads"], case["rows"]]


@pytest.mark.parametrize("case", RULES["phase_tables"], ids=lambda case: str(case["name"]))
def test_the_phases_are_those_of_the_live_chart(case: dict[str, Any]) -> None:
    """Two ranks have no median."""
    heads, rows = phase_cells(ranks_of(case))

    assert [heads, rows] == [case["heads"], case["rows"]]


@pytest.mark.parametrize(("reporting", "world", "said"), RULES["reporting"])
def test_how_many_report_is_said_as_in_the_live_headline(
    reporting: int, world: int, said: str
) -> None:
    """Only where some do not."""
    assert reporting_text(Ranks(world, reporting=reporting)) == said


@pytest.mark.parametrize(("cell", "full", "ink"), RULES["colours"])
def test_a_cell_has_the_colour_of_the_live_strip(cell: int, full: int, ink: str) -> None:
    """By how full the device is; a silent rank is grey."""
    assert colour(cell, full) == ink


@pytest.mark.parametrize(("cells", "full"), RULES["scales"])
def test_the_scale_ends_where_that_of_the_live_strip_does(cells: list[int], full: int) -> None:
    """At a round share of the device."""
    assert full_of(bytes(cells)) == full


@pytest.mark.parametrize(("rows", "height"), RULES["heights"])
def test_a_strip_is_as_high_as_the_live_one(rows: int, height: int) -> None:
    """A few ranks have rows that can be told apart, and many do not fill the screen."""
    assert height_of(rows) == height


@pytest.mark.parametrize("case", RULES["sides"], ids=lambda case: str(case["name"]))
def test_the_rows_are_named_as_in_the_live_strip(case: dict[str, Any]) -> None:
    """The worst first, then those that are worth a look, and both ends, with room between them."""
    ranks = ranks_of(case)
    height = height_of(len(ranks.strip.first))
    words = [[row, word_at(ranks, row), is_worst] for row, is_worst in side_words(ranks, height)]

    assert words == case["words"]
    assert about(ranks) == case["about"]


@pytest.mark.parametrize("case", RULES["folds"], ids=lambda case: str(case["name"]))
def test_columns_fold_as_in_the_live_strip(case: dict[str, Any]) -> None:
    """To the highest of neighbours, which is silent only where all are."""
    strip = RankStrip(tuple(case["first"]), tuple(case["at"]), bytes(case["cells"]))
    found = folded(strip, case["most"])

    assert [list(found.at), list(found.cells)] == case["folded"]
