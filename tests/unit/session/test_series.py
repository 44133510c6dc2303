"""The table of what can be drawn of a device."""

from __future__ import annotations

import re

import pytest

from hfmem_widget.session import HELD, Series
from hfmem_widget.session.series import LINES, PARTS, TABLE
from hfmem_widget.view import palette


@pytest.mark.parametrize("name", TABLE)
def test_a_row_has_a_label_and_a_colour_that_can_be_drawn(name: str) -> None:
    """Opaque where a line or a layer of the stack is drawn with it."""
    row = TABLE[name]
    opaque = re.fullmatch(r"#[0-9A-F]{6}", row.color)

    assert row.label
    assert opaque or (re.fullmatch(r"rgba\(128,128,128,\.\d+\)", row.color) and not row.stacked)
    assert not (row.drawn and row.stacked)


def test_what_is_found_among_tensors_is_stacked_and_sent() -> None:
    """In the order of its columns, which is not that of the stack; child processes alone are a line, too."""
    assert HELD[:4] == ("weights", "buffers", "gradients", "optimizer")
    assert all(PARTS[name].stacked and PARTS[name].sent for name in HELD)
    assert {*LINES} & {*PARTS} == {"children"}


def test_layers_that_lie_on_one_another_have_colours_of_their_own() -> None:
    """No two layers of the stack have one colour, nor one label."""
    stack = [row for row in PARTS.values() if row.stacked]

    assert len({row.color for row in stack}) == len({row.label for row in stack}) == len(stack)
    assert {name: row.color for name, row in PARTS.items()} == palette.PARTS


@pytest.mark.parametrize(
    ("series", "label"),
    [
        (Series("cuda:0", "allocated"), "allocated"),
        (Series("cpu", "allocated"), "private memory"),
        (Series("cpu", "weights"), "weights"),
        (Series("cpu", "allocated", "resident"), "resident"),
        (Series("cuda:0", "utilization"), ""),
    ],
)
def test_a_series_has_the_label_of_the_table_unless_it_has_its_own(
    series: Series, label: str
) -> None:
    """What is no row of it has none by default."""
    assert series.label == label
