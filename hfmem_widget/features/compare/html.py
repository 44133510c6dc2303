"""Watched cells side by side, and the list of those there are, as outputs of a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hfmem_widget.features.compare.model import Comparison
from hfmem_widget.features.compare.picture import build_scene, svg
from hfmem_widget.features.compare.text import (
    FigureRow,
    about,
    figure_columns,
    heading,
    name_of,
    part_columns,
    text,
    verdicts,
)
from hfmem_widget.text import plain
from hfmem_widget.view import html as kit
from hfmem_widget.view import palette
from hfmem_widget.view.table import Column, TableRow, table

CELL, AT_THE_PEAK = "cell", "at the peak"
LETTERS = 18  # of a figure's name in a line, where there is little room
NOTE_LENGTH = 400  # characters of a note, which may contain two of the user's labels


def table_bundle(comparison: Comparison) -> dict[str, str]:
    """Return the figures by MIME type: a table of the cells, and one of their parts."""
    # Where there is text alone, there is no chart.
    chartless = (
        f"{plain(cell.name)} has no data for the chart."
        for cell in comparison.cells
        if cell.line is None and cell.figures["peak"].runs
    )
    return kit.bundle(
        kit.headed("memcompare", *heading(comparison)),
        *map(kit.line, verdicts(comparison)),
        *_tables(comparison),
        *kit.notes(plain(note, NOTE_LENGTH) for note in (*comparison.notes, *chartless)),
    ) | {"text/plain": text(comparison)}


def whole_bundle(comparison: Comparison) -> dict[str, str]:
    """Return table and picture as one output."""
    table = table_bundle(comparison)
    return table | {"text/html": table["text/html"] + svg(build_scene(comparison))}


def _tables(comparison: Comparison) -> Iterator[kit.Fragment]:
    """Yield a table with a row for each figure and part; of many cells two, with a row for each cell."""
    names = [_cell_head(comparison, at) for at in range(len(comparison.cells))]
    wholes, parts = figure_columns(comparison), part_columns(comparison)
    if len(names) < len(wholes):
        title = (
            [TableRow((kit.faint(AT_THE_PEAK, style=kit.TINY),), is_ruled=True)] if parts else []
        )
        yield _table("", names, [*map(_row, wholes), *title, *map(_row, parts)])
    else:
        by_cell = zip(names, *(column.cells for column in wholes), strict=True)
        yield _table(CELL, map(_figure_head, wholes), map(TableRow, by_cell))
        yield _table(AT_THE_PEAK, names, map(_row, parts))


def _table(first: str, heads: Iterable[kit.Content], rows: Iterable[TableRow]) -> kit.Fragment:
    columns = [Column(first, LETTERS, is_bold=True), *map(Column, heads)]
    return table(columns, [*rows], scrolls="figures")


def _row(column: FigureRow) -> TableRow:
    return TableRow((_figure_head(column), *column.cells))


def _figure_head(column: FigureRow) -> kit.Content:
    title = kit.faint(column.title, style=f"{kit.TINY};font-weight:normal")
    return kit.marked(palette.PARTS[column.part], title) if column.part else title


def _cell_head(comparison: Comparison, at: int) -> kit.Content:
    cell = comparison.cells[at]
    name = kit.marked(palette.DEVICES[at % len(palette.DEVICES)][0], name_of(cell), kit.BULLET)
    bold = kit.faint(name, style="font-size:13px;font-weight:600")
    below = kit.block(f"{kit.TINY};font-weight:normal", about(comparison, cell))
    return kit.Fragment(bold.html + below.html, bold.text)
