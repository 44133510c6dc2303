"""The anatomy as a table with its bars: HTML that needs no script and no kernel, and plain text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from hfmem_widget.analysis.parts import LABELS
from hfmem_widget.session import HELD, Anatomy
from hfmem_widget.text import format_bytes, plain
from hfmem_widget.view import palette
from hfmem_widget.view.anatomy_bar import bars_html
from hfmem_widget.view.anatomy_table import Column, Table, table_of
from hfmem_widget.view.root import headed

NOTE_LENGTH = 300
NOTHING_FOUND = "No model or optimizer was found that has tensors here, so nothing is attributed."

Predicted = Mapping[str, Mapping[str, float]]
"""Bytes by the name of a part, or of a sum ("allocated", "reserved", "process"), by device key."""

_QUIET = "opacity:.72"
_CELL = "padding:1px 0 1px 14px;text-align:right;white-space:nowrap;border:0"
_FIRST = (
    "min-width:118px;padding:1px 0;text-align:left;white-space:normal;border:0;font-weight:normal"
)
_HEAD = ";white-space:normal;vertical-align:bottom;font-size:11px;font-weight:normal;" + _QUIET
_RULE = ";border-top:1px solid rgba(128,128,128,.35)"


def anatomy_bundle(
    anatomies: Sequence[Anatomy],
    predicted: Predicted | None = None,
    *,
    title: str = "",
    contents: str = "",
) -> dict[str, str]:
    """Return anatomies by MIME type: one table a device, one column a moment.

    Parameters
    ----------
    anatomies : sequence of Anatomy
        Those of one device stand beside each other, in this order.
    predicted : mapping of str to mapping of str to float, optional
        What was forecast, in bytes: by device key, then by the name of a part or a sum. It is
        compared with the last moment of the device; the difference is the forecast less that.
    title : str, optional
        What the memory is of.
    contents : str, optional
        What is known of the models in it, in one line; see `contents_text`.
    """
    told: dict[str, list[Anatomy]] = {}
    for one in anatomies:
        told.setdefault(one.device.key, []).append(one)
    forecasts = predicted or {}
    groups = [(group, table_of(group, forecasts.get(key, {}))) for key, group in told.items()]
    head = headed("memanatomy", title)
    if contents:
        head += f'<div style="margin:0 0 6px;font-size:12px;{_QUIET}">{escape(contents)}</div>'
    html = head + "".join(_group_html(*one) for one in groups) + "</div>"
    text = "\n\n".join(_group_text(*one) for one in groups)
    above = "".join(f"{one}\n" for one in (plain(title), contents) if one)
    return {"text/html": html, "text/plain": above + text}


def notes_of(anatomies: Sequence[Anatomy]) -> list[str]:
    """Return what must be known to read the figures right, as plain sentences."""
    notes = [
        note if len(anatomies) == 1 else f"{one.moment.capitalize()}: {note}"
        for one in anatomies
        for note in one.notes
    ]
    if any(one.allocated > 0 for one in anatomies) and not any(
        one.bytes(name) > 0 for one in anatomies for name in HELD
    ):
        notes.append(NOTHING_FOUND)
    return [plain(note, NOTE_LENGTH) for note in notes]


def _heading(anatomy: Anatomy) -> tuple[str, str]:
    device = anatomy.device
    told = [plain(device.name)] if device.name else []
    if device.total > 0:
        told.append(format_bytes(device.total))
    return plain(device.key), " \u00b7 ".join(told)


def _group_html(anatomies: Sequence[Anatomy], table: Table) -> str:
    key, about = _heading(anatomies[0])
    notes = "".join(
        f'<div style="margin:5px 0 0;font-size:11.5px;overflow-wrap:anywhere;opacity:.8">{escape(note)}</div>'
        for note in notes_of(anatomies)
    )
    return (
        '<div style="margin:0 0 10px"><div style="margin:0 0 4px">'
        f'<strong>{escape(key)}</strong> <span style="{_QUIET}">{escape(about)}</span></div>'
        f"{bars_html(anatomies)}{_table_html(table)}{notes}</div>"
    )


def _table_html(table: Table) -> str:
    heads = "".join(
        f'<th scope="col" style="{_FIRST if at == 0 else _CELL}{_HEAD}">{escape(head)}</th>'
        for at, head in enumerate(("part", *(column.head for column in table.columns)))
    )
    rows = "".join(_row_html(table, row) for row in range(len(table.names)))
    return (
        '<div style="overflow-x:auto;margin:6px 0 0"><table style="border-collapse:collapse;'
        'table-layout:auto;border:0;margin:0;font-size:13px;color:inherit">'
        f'<thead style="border:0"><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def _row_html(table: Table, row: int) -> str:
    name = table.names[row]
    rule = _RULE if row == table.parts else ""
    weight = ";font-weight:600" if row >= table.parts else ""
    square = (
        f'<span aria-hidden="true" style="color:{palette.PARTS[name]}">\u25a0</span>\u00a0'
        if name in LABELS
        else ""
    )
    cells = "".join(
        f'<td style="{_style(column)}{rule}{weight}">{escape(column.cells[row])}</td>'
        for column in table.columns
    )
    return (
        # JupyterLab stripes rows; here they are the table's own.
        f'<tr style="background:none"><th scope="row" style="{_FIRST}{rule}{weight}">{square}'
        f"{escape(table.labels[row])}</th>{cells}</tr>"
    )


def _style(column: Column) -> str:
    style = _CELL
    if column.is_text:
        style += ";text-align:left"
    return f"{style};{_QUIET}" if column.is_text or column.is_quiet else style


def _group_text(anatomies: Sequence[Anatomy], table: Table) -> str:
    key, about = _heading(anatomies[0])
    columns = [Column("part", table.labels, is_text=True), *table.columns]
    widths = [max(map(len, (column.head, *column.cells))) for column in columns]

    def line(cells: Sequence[str]) -> str:
        aligned = [
            f"{cell:<{width}}" if column.is_text else f"{cell:>{width}}"
            for cell, width, column in zip(cells, widths, columns, strict=True)
        ]
        return "  ".join(aligned).rstrip()

    rows = [line([column.cells[row] for column in columns]) for row in range(len(table.names))]
    rows.insert(table.parts, "  ".join("\u2500" * width for width in widths))
    head = f"{key} {about}".rstrip()
    return "\n".join((head, line([one.head for one in columns]), *rows, *notes_of(anatomies)))


def shown_anatomy(anatomy: Anatomy) -> Mapping[str, str]:
    """Return how one anatomy shows itself."""
    return anatomy_bundle([anatomy])
