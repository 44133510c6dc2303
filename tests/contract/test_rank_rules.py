"""Sentences and pictures of all ranks, as one table that Python and the page both play.

The front end's part is `js/tests/rank_rules.test.ts`.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hfmem_widget.session import Certainty, Peak, PhaseSkew, RankRow, Ranks, RankStrip
from hfmem_widget.session.series import TABLE, over_ranks, row_of
from hfmem_widget.view.chart.scene import BAND
from hfmem_widget.view.line import peak_name, reporting_text
from hfmem_widget.view.ranks import (
    about,
    colour,
    full_of,
    height_of,
    phase_cells,
    rank_cells,
    side_words,
    word_at,
)
from hfmem_widget.view.wire.protocol import folded

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


DRAWN: dict[str, Callable[..., object]] = {
    "drawn": over_ranks,  # in order of drawing
    "reporting": lambda reporting, world: reporting_text(Ranks(world, reporting=reporting)),
    "colours": colour,
    "scales": lambda cells: full_of(bytes(cells)),
    "heights": height_of,
}


@pytest.mark.parametrize(
    ("rule", "given", "wanted"),
    [(rule, row[:-1], row[-1]) for rule in DRAWN for row in RULES[rule]],
)
def test_lines_and_strip_are_the_live_charts(rule: str, given: list[Any], wanted: object) -> None:
    """Which lines there are, how many ranks report, and a strip's colours, scale and height."""
    assert DRAWN[rule](*given) == wanted


CELLS = {"tables": rank_cells, "phase_tables": phase_cells}


@pytest.mark.parametrize(
    ("rule", "case"),
    [pytest.param(rule, case, id=str(case["name"])) for rule in CELLS for case in RULES[rule]],
)
def test_a_table_is_that_of_the_live_chart(rule: str, case: dict[str, Any]) -> None:
    """A table of ranks or of phases has only columns that say something, and figures in one unit."""
    heads, rows = CELLS[rule](ranks_of(case))
    assert [heads, rows] == [case["heads"], case["rows"]]


@pytest.mark.parametrize(("device", "metric", "look"), RULES["looks"])
def test_a_line_looks_as_in_the_live_chart(device: str, metric: str, look: str) -> None:
    """The line of all ranks together looks like that of the highest rank."""
    assert row_of(device, metric) is TABLE[look]


def test_the_band_is_called_as_in_the_live_chart() -> None:
    """In the legend."""
    assert RULES["band"] == BAND


@pytest.mark.parametrize("case", RULES["peaks"], ids=lambda case: str(case["name"]))
def test_the_peak_is_called_as_in_the_live_chart(case: dict[str, Any]) -> None:
    """The label names the worst rank where the peak is that rank's, with its certainty."""
    certainty: Certainty = case["certainty"]

    assert peak_name(ranks_of(case), Peak(case["bytes"], certainty)) == case["called"]


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
    """A folded column has the highest of neighbours, and is silent only where all are."""
    strip = RankStrip(tuple(case["first"]), tuple(case["at"]), bytes(case["cells"]))
    found = folded(strip, case["most"])

    assert [list(found.at), list(found.cells)] == case["folded"]
