"""Watched cells side by side, and the list of those there are, in every form that a front end shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hfmem_widget.analysis.record import DeviceRecord, Record
from hfmem_widget.features.compare.model import Comparison
from hfmem_widget.features.compare.plotly import plotly
from hfmem_widget.features.compare.scene import build_scene
from hfmem_widget.features.compare.svg import svg
from hfmem_widget.features.compare.text import (
    Figures,
    about,
    figure_columns,
    heading,
    name_of,
    part_columns,
    text,
)
from hfmem_widget.session import Peak
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.text import format_bytes, format_counted, format_duration, plain
from hfmem_widget.view import html as kit
from hfmem_widget.view import palette
from hfmem_widget.view.chart.figure import PLOTLY_MIME
from hfmem_widget.view.line import peak_text
from hfmem_widget.view.table import Cell, Column, Row, table

CELL = "cell"
NOTE_LENGTH = 400
"""Characters of a sentence of ours at most: two labels of the user's may stand in it."""


def table_bundle(comparison: Comparison) -> dict[str, str]:
    """Return the figures by MIME type: a table of what cells came to, and one of their parts."""
    figures = figure_columns(comparison)
    parts = part_columns(comparison)
    return kit.bundle(
        kit.headed("memcompare", *heading(comparison)),
        _table(comparison, CELL, [("", column) for column in figures]),
        _table(comparison, "at the peak", parts),
        *kit.notes(plain(one, NOTE_LENGTH) for one in comparison.notes),
    ) | {"text/plain": text(comparison)}


def chart_bundle(comparison: Comparison) -> dict[str, Any]:
    """Return the picture by MIME type; the Plotly part stays below 60 kB."""
    scene = build_scene(comparison)
    cells = ", ".join(cell.name for cell in scene.cells)
    return {
        PLOTLY_MIME: plotly(scene),
        "text/html": svg(scene),
        "text/plain": f"memcompare chart: {plain(scene.what)} of {plain(cells, 400)}",
    }


def whole_bundle(comparison: Comparison) -> dict[str, str]:
    """Return table and picture as one output."""
    table = table_bundle(comparison)
    picture = chart_bundle(comparison)["text/html"]
    return {"text/html": f"{table['text/html']}{picture}", "text/plain": table["text/plain"]}


def list_bundle(records: Sequence[Record]) -> dict[str, str]:
    """Return what can be compared by MIME type: a line for each label, or cell without one, newest first."""
    runs: dict[str, list[Record]] = {}
    for record in reversed(records):
        runs.setdefault(record.identity, []).insert(0, record)
    rows = [Row(_listed(one)) for one in runs.values()]
    columns = [Column(head, is_bold=at == 0) for at, head in enumerate(_LISTED)]
    return kit.bundle(
        kit.headed("memcompare", format_counted(len(records), "watched cell")),
        table(columns, rows, scrolls="figures"),
        kit.note(_HINT),
    )


_LISTED = ("label", "cell", "runs", "device", "peak", "left behind", "duration", "")
_HINT = "Run %memcompare LABEL LABEL to compare; cell numbers work too."
_MOST_NUMBERS = 4


def _listed(runs: Sequence[Record]) -> tuple[str, ...]:
    newest = runs[-1]
    device = max(newest.devices, key=_importance, default=None)
    peak = Peak(NOT_AVAILABLE, "sampled") if device is None else device.peak
    numbers = [str(one.number) for one in runs if one.number is not None]
    shown = [*(["…"] if len(numbers) > _MOST_NUMBERS else []), *numbers[-_MOST_NUMBERS:]]
    left = format_bytes(NOT_AVAILABLE if device is None else device.left_behind, signed=True)
    return (
        newest.name,
        ", ".join(shown),
        str(len(runs)),
        "" if device is None else device.key,
        peak_text(peak),
        left,
        format_duration(newest.duration),
        "" if newest.outcome == "done" else newest.outcome,
    )


def _importance(device: DeviceRecord) -> tuple[bool, float]:
    return (":" in device.key, device.peak.value)


def _table(
    comparison: Comparison, first: str, columns: Sequence[tuple[str, Figures]]
) -> kit.Fragment:
    """Return the figures, a row for each where there are fewer cells than figures: that is less wide."""
    titles = [_figure_head(part, column) for part, column in columns]
    cells = [_cell_head(comparison, at, told=first == CELL) for at in range(len(comparison.cells))]
    figures: list[list[Cell]] = [list(column.cells) for _, column in columns]
    heads, names = titles, cells
    if len(cells) < len(titles):
        first, heads, names = "" if first == CELL else first, cells, titles
    else:
        figures = [list(row) for row in zip(*figures, strict=True)]
    rows = [Row((name, *row)) for name, row in zip(names, figures, strict=True)] if columns else []
    return table([Column(first, is_bold=True), *map(Column, heads)], rows, scrolls="figures")


def _figure_head(part: str, column: Figures) -> kit.Content:
    title = kit.quiet(column.title, style=f"{kit.TINY};font-weight:normal")
    return kit.marked(palette.PARTS[part], title) if part else title


def _cell_head(comparison: Comparison, at: int, *, told: bool) -> kit.Content:
    cell = comparison.cells[at]
    name = kit.marked(palette.DEVICES[at % len(palette.DEVICES)][0], name_of(cell), kit.BULLET)
    bold = kit.quiet(name, style="font-size:13px;font-weight:600")
    below = kit.block(f"{kit.TINY};font-weight:normal", about(comparison, cell)) if told else ""
    return kit.Fragment(bold.html + kit.shown(below).html, bold.text)
