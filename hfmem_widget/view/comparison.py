"""Watched cells side by side, and the list of those there are, in every form that a front end shows."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from hfmem_widget.analysis.comparison import Comparison
from hfmem_widget.analysis.record import DeviceRecord, Record
from hfmem_widget.labels import for_html, plain
from hfmem_widget.session import Peak
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.units import format_bytes, format_duration
from hfmem_widget.view import palette
from hfmem_widget.view.comparison_plotly import plotly
from hfmem_widget.view.comparison_scene import build_scene
from hfmem_widget.view.comparison_svg import svg
from hfmem_widget.view.comparison_text import (
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
from hfmem_widget.view.figure import PLOTLY_MIME
from hfmem_widget.view.line import peak_text
from hfmem_widget.view.root import FRAMED

_QUIET = "opacity:.72"
_VALUE = "padding:3px 0 3px 18px;text-align:right;vertical-align:top;white-space:nowrap;border:0"
_NAME = (
    "padding:3px 0;text-align:left;vertical-align:top;border:0;min-width:120px;max-width:260px;"
    "overflow-wrap:anywhere;font-weight:600"
)
_TABLE = (
    '<div style="overflow-x:auto;margin:8px 0 0"><table style="border-collapse:collapse;'
    'table-layout:auto;border:0;margin:0;font-size:13px;color:inherit">'
)
_HEAD = "font-size:11px;font-weight:normal;background:none"

NOTE_LENGTH = 400
"""Characters of a sentence of ours at most: two labels of the user's may stand in it."""


def table_bundle(comparison: Comparison) -> dict[str, str]:
    """Return the figures by MIME type: a table of what cells came to, and one of their parts."""
    figures = figure_columns(comparison)
    parts = part_columns(comparison)
    told = [
        FRAMED,
        _title(heading(comparison)),
        _table(comparison, "cell", [("", column) for column in figures]),
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
            FRAMED,
            _title([f"{len(records)} watched cells" if len(records) > 1 else "1 watched cell"]),
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
        "±0" if left.startswith("±0") else left,
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


def _title(phrases: Sequence[str]) -> str:
    told = "".join(
        f' <span style="{_QUIET};overflow-wrap:anywhere">{for_html(phrase)}</span>'
        for phrase in phrases
    )
    return (
        '<div style="display:flex;flex-wrap:wrap;align-items:baseline;gap:0 10px">'
        f'<strong style="font-size:15px">memcompare</strong>{told}</div>'
    )


def _heads(titles: Sequence[str], swatches: Sequence[str] = ()) -> str:
    drawn = []
    for at, title in enumerate(titles):
        colour = swatches[at] if swatches else ""
        mark = f'<span aria-hidden="true" style="color:{colour}">■</span> ' if colour else ""
        style = _NAME if at == 0 else _VALUE
        drawn.append(
            f'<th scope="col" style="{style};{_HEAD}">{mark}'
            f'<span style="{_QUIET}">{for_html(title)}</span></th>'
        )
    return "".join(drawn)


def _table(comparison: Comparison, first: str, columns: Sequence[tuple[str, Column]]) -> str:
    titles = [first, *(column.title for _, column in columns)]
    swatches = ["", *(palette.PARTS.get(part, "") for part, _ in columns)]
    rows = []
    for at, cell in enumerate(comparison.cells):
        colour = palette.DEVICES[at % len(palette.DEVICES)][0]
        note = "" if any(swatches) else about(comparison, cell)
        small = f'<div style="font-size:11px;font-weight:normal;{_QUIET}">{for_html(note)}</div>'
        rows.append(
            # JupyterLab stripes rows; here they are the card's own.
            f'<tr style="background:none"><th scope="row" style="{_NAME}">'
            f'<span aria-hidden="true" style="color:{colour}">●</span> {for_html(name_of(cell))}'
            f"{small if note else ''}</th>"
            + "".join(_figure(column.cells[at]) for _, column in columns)
            + "</tr>"
        )
    return (
        _TABLE
        + f'<thead style="border:0"><tr style="background:none">{_heads(titles, swatches)}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _figure(cell: Cell) -> str:
    below = "".join(
        f'<div style="font-size:11px;{_QUIET}">{for_html(told)}</div>'
        for told in (cell.spread, cell.change)
        if told
    )
    return f'<td style="{_VALUE}">{for_html(cell.value)}{below}</td>'
