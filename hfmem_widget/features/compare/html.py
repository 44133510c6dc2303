"""Watched cells side by side, and the list of those there are, in every form that a front end shows."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from hfmem_widget.analysis.record import DeviceRecord, Record
from hfmem_widget.features.compare.model import Comparison
from hfmem_widget.features.compare.plotly import plotly
from hfmem_widget.features.compare.scene import build_scene
from hfmem_widget.features.compare.svg import svg
from hfmem_widget.features.compare.text import (
    Cell,
    Column,
    about,
    aligned,
    figure_columns,
    heading,
    name_of,
    part_columns,
    text,
)
from hfmem_widget.session import Peak
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.text import for_html, format_bytes, format_counted, format_duration, plain
from hfmem_widget.view import palette
from hfmem_widget.view.chart.figure import PLOTLY_MIME
from hfmem_widget.view.line import peak_text
from hfmem_widget.view.root import SCROLLS, headed

_QUIET = "opacity:.72"
_VALUE = "padding:3px 0 3px 18px;text-align:right;vertical-align:top;white-space:nowrap;border:0"
_NAME = (
    "padding:3px 0;text-align:left;vertical-align:top;border:0;min-width:120px;max-width:260px;"
    "overflow-wrap:anywhere;font-weight:600"
)
_TABLE = (
    # What scrolls must be reached with the keyboard.
    f'<div tabindex="0" role="group" aria-label="figures" style="{SCROLLS};margin:8px 0 0">'
    '<table style="border-collapse:collapse;'
    'table-layout:auto;border:0;margin:0;font-size:13px;color:inherit">'
)
_WRAPS = ";white-space:normal;max-width:200px;overflow-wrap:anywhere"
CELL = "cell"
_HEAD = "font-size:11px;font-weight:normal;background:none"

NOTE_LENGTH = 400
"""Characters of a sentence of ours at most: two labels of the user's may stand in it."""


def table_bundle(comparison: Comparison) -> dict[str, str]:
    """Return the figures by MIME type: a table of what cells came to, and one of their parts."""
    figures = figure_columns(comparison)
    parts = part_columns(comparison)
    told = [
        headed("memcompare", *heading(comparison)),
        _table(comparison, CELL, [("", column) for column in figures]),
        _table(comparison, "at the peak", parts) if parts else "",
        *(
            f'<div style="margin:7px 0 0;font-size:11.5px;overflow-wrap:anywhere;opacity:.8">'
            f"{escape(plain(note, NOTE_LENGTH))}</div>"
            for note in comparison.notes
        ),
        "</div>",
    ]
    return {"text/html": "".join(told), "text/plain": text(comparison)}


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
    rows = [_listed(one) for one in runs.values()]
    html = "".join(
        (
            headed("memcompare", format_counted(len(records), "watched cell")),
            _TABLE,
            f'<thead style="border:0"><tr style="background:none">{_heads(_LISTED)}</tr></thead><tbody>',
            *(_list_row(row) for row in rows),
            "</tbody></table></div>",
            f'<div style="margin:7px 0 0;font-size:11.5px;{_QUIET}">{for_html(_HINT)}</div></div>',
        )
    )
    return {"text/html": html, "text/plain": f"{aligned([_LISTED, *rows])}\n{_HINT}"}


_LISTED = ("label", "cell", "runs", "device", "peak", "left behind", "duration", "")
_HINT = "%memcompare with labels or cell numbers lays them side by side."
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


def _list_row(row: Sequence[str]) -> str:
    name, *others = row
    return (
        f'<tr style="background:none"><th scope="row" style="{_NAME}">{for_html(name)}</th>'
        + "".join(f'<td style="{_VALUE}">{for_html(text)}</td>' for text in others)
        + "</tr>"
    )


def _heads(titles: Sequence[str]) -> str:
    return "".join(
        f'<th scope="col" style="{_NAME if at == 0 else _VALUE};{_HEAD}">'
        f'<span style="{_QUIET}">{for_html(title)}</span></th>'
        for at, title in enumerate(titles)
    )


def _table(comparison: Comparison, first: str, columns: Sequence[tuple[str, Column]]) -> str:
    """Return the figures, a row for each where there are fewer cells than figures: that is less wide."""
    titles = [_figure_head(part, column) for part, column in columns]
    cells = [_cell_head(comparison, at, told=first == CELL) for at in range(len(comparison.cells))]
    figures = [[_figure(cell) for cell in column.cells] for _, column in columns]
    if len(cells) < len(titles):
        return _drawn("" if first == CELL else first, cells, titles, figures)
    return _drawn(first, titles, cells, [list(row) for row in zip(*figures, strict=True)])


def _drawn(
    first: str, heads: Sequence[str], names: Sequence[str], rows: Sequence[Sequence[str]]
) -> str:
    top = "".join(
        f'<th scope="col" style="{_NAME if at == 0 else _VALUE}{_WRAPS if at else ""};{_HEAD}">{head}</th>'
        for at, head in enumerate((f'<span style="{_QUIET}">{for_html(first)}</span>', *heads))
    )
    body = "".join(
        # JupyterLab stripes rows; here they are the card's own.
        f'<tr style="background:none"><th scope="row" style="{_NAME}">{name}</th>{"".join(row)}</tr>'
        for name, row in zip(names, rows, strict=True)
    )
    return (
        f'{_TABLE}<thead style="border:0"><tr style="background:none">{top}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _figure_head(part: str, column: Column) -> str:
    colour = palette.PARTS.get(part, "")
    mark = f'<span aria-hidden="true" style="color:{colour}">■</span> ' if colour else ""
    title = f'<span style="{_QUIET};font-size:11.5px;font-weight:normal">{for_html(column.title)}</span>'
    return f"{mark}{title}"


def _cell_head(comparison: Comparison, at: int, *, told: bool) -> str:
    cell = comparison.cells[at]
    colour = palette.DEVICES[at % len(palette.DEVICES)][0]
    note = about(comparison, cell) if told else ""
    small = f'<div style="font-size:11px;font-weight:normal;{_QUIET}">{for_html(note)}</div>'
    return (
        '<span style="font-size:13px;font-weight:600">'
        f'<span aria-hidden="true" style="color:{colour}">●</span> '
        f"{for_html(name_of(cell))}</span>{small if note else ''}"
    )


def _figure(cell: Cell) -> str:
    below = "".join(
        f'<div style="font-size:11px;{_QUIET}">{for_html(told)}</div>'
        for told in (cell.spread, cell.change)
        if told
    )
    return f'<td style="{_VALUE}">{for_html(cell.value)}{below}</td>'
