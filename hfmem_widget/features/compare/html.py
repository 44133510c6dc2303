"""Watched cells side by side, and the list of those there are, as outputs of a notebook."""

from __future__ import annotations

from collections.abc import Sequence

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
from hfmem_widget.view.table import Cell, Column, TableRow, table

CELL = "cell"
NOTE_LENGTH = 400  # characters of a note, which may contain two of the user's labels


def table_bundle(comparison: Comparison) -> dict[str, str]:
    """Return the figures by MIME type: a table of the cells, and one of their parts."""
    tables = ((CELL, figure_columns(comparison)), ("at the peak", part_columns(comparison)))
    # Where there is text alone, there is no chart.
    chartless = (
        f"{plain(cell.name)} has no data for the chart."
        for cell in comparison.cells
        if cell.line is None and cell.figures["peak"].runs
    )
    return kit.bundle(
        kit.headed("memcompare", *heading(comparison)),
        *map(kit.line, verdicts(comparison)),
        *(_table(comparison, first, columns) for first, columns in tables if columns),
        *kit.notes(plain(note, NOTE_LENGTH) for note in (*comparison.notes, *chartless)),
    ) | {"text/plain": text(comparison)}


def whole_bundle(comparison: Comparison) -> dict[str, str]:
    """Return table and picture as one output."""
    table = table_bundle(comparison)
    return table | {"text/html": table["text/html"] + svg(build_scene(comparison))}


def _table(comparison: Comparison, first: str, columns: Sequence[FigureRow]) -> kit.Fragment:
    """Return the figures with a row for each cell, or for each figure where that is less wide."""
    heads = list(map(_figure_head, columns))
    cells = range(len(comparison.cells))
    names = [_cell_head(comparison, at, is_full=first == CELL) for at in cells]
    figures: list[tuple[Cell, ...]] = [column.cells for column in columns]
    if len(names) < len(heads):
        first, heads, names = "" if first == CELL else first, names, heads
    else:
        figures = list(zip(*figures, strict=True))
    rows = [TableRow((name, *row)) for name, row in zip(names, figures, strict=True)]
    return table([Column(first, is_bold=True), *map(Column, heads)], rows, scrolls="figures")


def _figure_head(column: FigureRow) -> kit.Content:
    title = kit.faint(column.title, style=f"{kit.TINY};font-weight:normal")
    return kit.marked(palette.PARTS[column.part], title) if column.part else title


def _cell_head(comparison: Comparison, at: int, *, is_full: bool) -> kit.Content:
    cell = comparison.cells[at]
    name = kit.marked(palette.DEVICES[at % len(palette.DEVICES)][0], name_of(cell), kit.BULLET)
    bold = kit.faint(name, style="font-size:13px;font-weight:600")
    below = kit.block(f"{kit.TINY};font-weight:normal", about(comparison, cell)) if is_full else ""
    return kit.Fragment(bold.html + kit.shown(below).html, bold.text)
