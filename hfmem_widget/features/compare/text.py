"""Figures of a comparison as people read them, and the comparison in plain text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hfmem_widget.analysis.facts import NEXT_TO_NOTHING
from hfmem_widget.analysis.parts import OF_ALLOCATED
from hfmem_widget.features.compare.model import Compared, Comparison, Difference, Figure
from hfmem_widget.session.series import PARTS
from hfmem_widget.text import MINUS, format_bytes, format_duration, number, plain, unit_for
from hfmem_widget.view.table import Column, Row, table

TO = "\u2013"
NAME_LENGTH = 40


@dataclass(frozen=True, slots=True)
class Figures:
    """One figure of every cell: its value, its range over the runs, how far it is from the baseline's."""

    title: str
    cells: tuple[tuple[str, str, str], ...]


def name_of(cell: Compared, limit: int = NAME_LENGTH) -> str:
    """Return a cell's name, shortened where it is long."""
    return plain(cell.name, limit)


def heading(comparison: Comparison) -> list[str]:
    """Return what this is, as short phrases."""
    device = " ".join(plain(one) for one in (comparison.device, comparison.device_name) if one)
    told = [device]
    if len(comparison.cells) > 1:
        told.append(f"compared with {name_of(comparison.cells[comparison.baseline])}")
    return told


def about(comparison: Comparison, cell: Compared) -> str:
    """Return what stands small below a cell's name, such as ``baseline · 3 runs``."""
    told = []
    if len(comparison.cells) > 1 and cell is comparison.cells[comparison.baseline]:
        told.append("baseline")
    if cell.runs > 1:
        told.append(f"{cell.runs} runs")
    elif cell.records[-1].number is not None and cell.records[-1].label:
        told.append(f"cell [{cell.records[-1].number}]")
    return " · ".join(told)


def figure_columns(comparison: Comparison) -> list[Figures]:
    """Return the figures that are known of any cell."""
    per_second = ("samples_per_second", "samples/s")
    if not _is_known(comparison, "samples_per_second"):
        per_second = ("steps_per_second", "steps/s")
    wanted: list[tuple[str, str, Shown]] = [
        ("peak", f"{comparison.allocated_label}, peak", format_bytes),
        ("left_behind", "left behind", _signed_bytes),
        ("reserved_peak", f"{comparison.reserved_label}, peak", format_bytes),
        (*per_second, rate),
        ("tokens_per_second", "tokens/s", rate),
        ("duration", "duration", format_duration),
    ]
    return [
        Figures(title, tuple(_cell(comparison, cell, figure, shown) for cell in comparison.cells))
        for figure, title, shown in wanted
        if _is_known(comparison, figure)
    ]


def part_columns(comparison: Comparison) -> list[tuple[str, Figures]]:
    """Return the parts at the peak that any cell has, each with its name; from the bottom of a stack."""
    columns = []
    baseline = comparison.cells[comparison.baseline]
    for part in OF_ALLOCATED:
        if not any(cell.at_peak.get(part, 0.0) > 0 for cell in comparison.cells):
            continue
        cells = [_part(cell, baseline, part) for cell in comparison.cells]
        columns.append((part, Figures(part_label(part), tuple(cells))))
    return columns


def part_label(part: str) -> str:
    """Return what a part is called, in short."""
    return PARTS[part].short or PARTS[part].label


def text(comparison: Comparison) -> str:
    """Return the comparison as aligned plain text; below each figure its range and its difference."""
    names = []
    for cell in comparison.cells:
        note = about(comparison, cell)
        names.append(name_of(cell, 24) + (f" ({note})" if note else ""))
    parts = [column for _, column in part_columns(comparison)]
    drawn = [
        " · ".join(("memcompare", *heading(comparison))),
        _aligned("", names, figure_columns(comparison)),
        *([_aligned("at the peak", names, parts)] if parts else []),
        "\n".join(comparison.notes),
    ]
    return "\n\n".join(one for one in drawn if one)


def rate(value: float) -> str:
    """Return how many of something there are a second, such as ``34.8`` or ``2,804``."""
    return f"{value:,.0f}" if abs(value) >= 999.5 else number(value, 1.0)


def change_text(change: Difference, shown: Shown) -> str:
    """Return a difference with its sign and in percent, such as ``+0.50 GiB · +7.2 %``."""
    if math.isnan(change.value):
        return ""
    told = shown(abs(change.value))
    if not any(digit in told for digit in "123456789"):
        return "±0"
    percent = percent_text(change.percent)
    return f"{_sign(change.value)}{told}" + (f" · {percent}" if percent else "")


def percent_text(percent: float) -> str:
    """Return a signed percentage, such as ``+56 %`` or ``+3.4 %``; empty if unknown."""
    if math.isnan(percent):
        return ""
    told = f"{abs(percent):.0f}" if abs(percent) >= 9.95 else f"{abs(percent):.1f}"
    return "±0 %" if float(told) == 0 else f"{_sign(percent)}{told} %"


Shown = Callable[[float], str]


def _cell(comparison: Comparison, cell: Compared, name: str, shown: Shown) -> tuple[str, str, str]:
    figure = cell.figures[name]
    value = shown(figure.middle)
    if name == "peak" and figure.runs:
        value = f"≥ {value}" if cell.certainty == "at least" else f"{value} {cell.certainty}"
    if cell is comparison.cells[comparison.baseline]:
        return value, _spread(figure, shown), ""
    unsigned = format_bytes if shown is _signed_bytes else shown
    change = comparison.difference(cell, name)
    if unsigned is format_bytes:
        change = of_something(change, figure.middle)
    return value, _spread(figure, shown), change_text(change, unsigned)


def _part(cell: Compared, baseline: Compared, part: str) -> tuple[str, str, str]:
    if not cell.at_peak:
        return format_bytes(math.nan), "", ""
    value = cell.at_peak.get(part, 0.0)
    shown = format_bytes(value) if value > 0 else "0"
    if cell is baseline or not baseline.at_peak:
        return shown, "", ""
    before = baseline.at_peak.get(part, 0.0)
    percent = 100 * (value - before) / before if before > 0 and value > 0 else math.nan
    change = of_something(Difference(value - before, percent), value)
    return shown, "", change_text(change, format_bytes)


def of_something(change: Difference, value: float) -> Difference:
    """Leave out the percentage of next to nothing."""
    base = abs(value - change.value)
    return replace(change, percent=math.nan) if base < NEXT_TO_NOTHING else change


def _spread(figure: Figure, shown: Shown) -> str:
    """Return the lowest and the highest, the unit said once where both have it."""
    if figure.runs < 2:
        return ""
    if shown is rate or shown is format_duration:
        low, high = shown(figure.low), shown(figure.high)
        return "" if low == high else f"{low}{TO}{high}"
    divisor, unit = unit_for(max(abs(figure.low), abs(figure.high)))
    low, high = number(figure.low, divisor), number(figure.high, divisor)
    return (
        ""
        if low == high
        else f"{low} {TO} {high} {unit}"
        if figure.low < 0
        else f"{low}{TO}{high} {unit}"
    )


def _signed_bytes(value: float) -> str:
    return format_bytes(value, signed=True)


def _sign(value: float) -> str:
    return MINUS if value < 0 else "+"


def _is_known(comparison: Comparison, figure: str) -> bool:
    return any(cell.figures[figure].runs for cell in comparison.cells)


def _aligned(title: str, names: Sequence[str], figures: Sequence[Figures]) -> str:
    rows = [Row((name, *(one.cells[at] for one in figures))) for at, name in enumerate(names)]
    return table([*map(Column, (title, *(one.title for one in figures)))], rows).text
