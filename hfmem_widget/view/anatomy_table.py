"""Anatomies of one device as a table: the parts, and below them the sums."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from hfmem_widget.analysis.anatomy import END_MOMENT, NOW
from hfmem_widget.analysis.parts import LABELS
from hfmem_widget.session import Anatomy, Device
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.session.series import TABLE
from hfmem_widget.text import MINUS, format_bytes, format_share, plain
from hfmem_widget.view import palette
from hfmem_widget.view.html import Content, Fragment, marked
from hfmem_widget.view.table import Column, Row, table

SUMS = ("allocated", "reserved", "process")

AT_LEAST = "\u2265 "

_Cells = tuple[Column, tuple[str, ...]]
"""A column with its cells, one for each row."""


def anatomy_table(anatomies: Sequence[Anatomy], predicted: Mapping[str, float]) -> Fragment:
    """Return the table of one device at one moment or several.

    Parameters
    ----------
    predicted : mapping of str to float
        Bytes by the name of a part or a sum, to compare with the last moment; no columns where empty.
    """
    device = anatomies[0].device
    told = {part.name for one in anatomies for part in one.parts} | set(predicted)
    parts = [name for name in LABELS if name in told]
    labels = _labels(device)
    sums = [
        name
        for name in SUMS
        if name in labels and any(not math.isnan(_value(one, name)) for one in anatomies)
    ]
    names = (*parts, *sums)
    columns = [_measured(one, names) for one in anatomies]
    if device.total > 0:
        columns.append(_shares(anatomies[-1], names))
    if predicted:
        columns += _predicted(anatomies[-1], names, predicted)
    notes = tuple(_note(anatomies, name) for name in names)
    if any(notes):
        columns.append((Column(is_words=True, is_quiet=True), notes))
    rows = [
        Row(
            (_marked(name, labels[name]), *(cells[at] for _, cells in columns)),
            is_sum=at >= len(parts),
            is_ruled=at == len(parts),
        )
        for at, name in enumerate(names)
    ]
    return table([Column("part"), *(column for column, _ in columns)], rows)


def _marked(name: str, label: str) -> Content:
    return marked(palette.PARTS[name], label) if name in LABELS else label


def moment_text(anatomy: Anatomy) -> str:
    """Return the moment as plain text, and of a peak how it is known."""
    moment = plain(anatomy.moment)
    return moment if moment in {NOW, END_MOMENT} else f"{moment} ({anatomy.certainty})"


def _labels(device: Device) -> dict[str, str]:
    is_host = ":" not in device.key
    labels = {name: row.called(is_host=is_host) for name, row in TABLE.items()}
    return labels if is_host else labels | {"process": "this process"}


def _value(anatomy: Anatomy, name: str) -> float:
    sums = {
        "allocated": anatomy.allocated,
        "reserved": anatomy.reserved,
        "process": anatomy.process,
    }
    return sums.get(name, anatomy.bytes(name))


def _measured(anatomy: Anatomy, names: Sequence[str]) -> _Cells:
    bound = AT_LEAST if anatomy.certainty == "at least" else ""
    cells = tuple(
        _known(value, (bound if name == "allocated" else "") + format_bytes(value))
        for name in names
        for value in [_value(anatomy, name)]
    )
    return Column(moment_text(anatomy)), cells


def _shares(anatomy: Anatomy, names: Sequence[str]) -> _Cells:
    """Return the shares of the device: of the last moment, lest the table grow too wide to be read."""
    values = [_value(anatomy, name) for name in names]
    shares = tuple(_known(one, format_share(one / anatomy.device.total)) for one in values)
    return Column(f"of {format_bytes(anatomy.device.total)}", is_quiet=True), shares


def _predicted(
    anatomy: Anatomy, names: Sequence[str], predicted: Mapping[str, float]
) -> list[_Cells]:
    values = [predicted.get(name, NOT_AVAILABLE) for name in names]
    measured = [_value(anatomy, name) for name in names]
    return [
        (Column("predicted"), tuple(_known(one, format_bytes(one)) for one in values)),
        (Column("off by"), tuple(map(_off, values, measured))),
    ]


def _off(predicted: float, measured: float) -> str:
    """Return the forecast less the figure, also in percent of the figure."""
    off = predicted - measured
    if math.isnan(off):
        return ""
    text = format_bytes(off, signed=True)
    if not measured > 0:
        return text
    percent = round(1000 * off / measured) / 10
    sign = "+" if percent > 0 else MINUS if percent < 0 else "\u00b1"
    return f"{text} ({sign}{abs(percent):.1f} %)"


def _known(value: float, text: str) -> str:
    return "" if math.isnan(value) else text


def _note(anatomies: Sequence[Anatomy], name: str) -> str:
    notes = (part.note for one in anatomies for part in one.parts if part.name == name)
    return plain(next((note for note in notes if note), ""))
