"""The figures and sentences of a comparison as text, and the comparison in plain text and Markdown."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from hfmem_widget.analysis.facts import NEXT_TO_NOTHING
from hfmem_widget.analysis.parts import OF_ALLOCATED
from hfmem_widget.features.compare.by_line import sentence
from hfmem_widget.features.compare.model import Change, Compared, Comparison, Figure, percent_of
from hfmem_widget.session import Peak
from hfmem_widget.session.series import OVERVIEW, PARTS
from hfmem_widget.session.stacks import NO_NAMES
from hfmem_widget.session.steps import PHASES
from hfmem_widget.text import (
    MIB,
    MINUS,
    for_markdown,
    format_bytes,
    format_duration,
    format_rate,
    number,
    plain,
    unit_for,
)
from hfmem_widget.view import html as kit
from hfmem_widget.view.table import Column, TableRow, peak_cell, table
from hfmem_widget.view.table import markdown as as_markdown

TO = "\u2013"
ABOVE = "above the start"
NAME_LENGTH = 40
NOTE_LENGTH = 400  # characters of a note, which may contain two of the user's labels
MOST_CHANGES = 15
LEAST_CHANGE = 0.005 * MIB  # less reads as none

Format = Callable[[float], str]
# A value, its range over the runs, and its difference to the baseline's.
Cell = tuple[kit.Content, str, str]


@dataclass(frozen=True, slots=True)
class FigureRow:
    """One figure of every cell."""

    title: str
    cells: tuple[Cell, ...]
    part: str = ""  # the name of a part; empty for other figures


def name_of(cell: Compared, limit: int = NAME_LENGTH) -> str:
    """Return a cell's name with at most `limit` characters."""
    return plain(cell.name, limit)


def heading(comparison: Comparison) -> list[str]:
    """Return the device and the baseline, as short phrases."""
    key = "" if comparison.device == OVERVIEW else comparison.device  # its name says how many
    device = " ".join(map(plain, filter(None, (key, comparison.device_name))))
    baseline = comparison.cells[comparison.baseline]
    others = [f"compared with {name_of(baseline)}"] if len(comparison.cells) > 1 else []
    return [device, *others]


def about(comparison: Comparison, cell: Compared) -> str:
    """Return the small text below a cell's name, such as ``baseline · 3 runs``."""
    is_baseline = len(comparison.cells) > 1 and cell is comparison.cells[comparison.baseline]
    phrases, newest = ["baseline"] * is_baseline, cell.records[-1]
    if cell.runs > 1:
        phrases.append(f"{cell.runs} runs")
    elif newest.number is not None and newest.label:
        phrases.append(f"cell [{newest.number}]")
    return " · ".join(phrases)


def figure_columns(comparison: Comparison) -> list[FigureRow]:
    """Return the figures that are known of any cell."""
    figures = [cell.figures for cell in comparison.cells]
    with_runs = {name for each in figures for name, figure in each.items() if figure.runs}
    starts = (each["peak"].middle - each["above_start"].middle for each in figures)
    if not any(start >= NEXT_TO_NOTHING for start in starts):
        with_runs.discard("above_start")  # it equals the peak
    if "samples_per_second" in with_runs:
        with_runs.discard("steps_per_second")
    formats: list[tuple[str, str, Format]] = [
        ("above_start", ABOVE, format_bytes),
        ("peak", f"{comparison.allocated_label}, peak", format_bytes),
        ("median", "median rank", format_bytes),
        ("lowest", "lowest rank", format_bytes),
        *((phase, f"{phase}, highest rank", format_bytes) for phase in PHASES),
        ("left_behind", "left behind", _signed_bytes),
        ("reserved_peak", f"{comparison.reserved_label}, peak", format_bytes),
        ("samples_per_second", "samples/s in steps", format_rate),
        ("steps_per_second", "steps/s", format_rate),
        ("tokens_per_second", "tokens/s in steps", format_rate),
        ("duration", "duration", format_duration),
    ]
    return [
        FigureRow(title, tuple(_cell(comparison, cell, figure, shown) for cell in comparison.cells))
        for figure, title, shown in formats
        if figure in with_runs
    ]


def part_columns(comparison: Comparison) -> list[FigureRow]:
    """Return the parts at the peak of any cell, in the order in which they are stacked."""
    cells, baseline = comparison.cells, comparison.cells[comparison.baseline]
    return [
        FigureRow(part_label(part), tuple(_part(cell, baseline, part) for cell in cells), part)
        for part in OF_ALLOCATED
        if any(cell.usual.at_peak.get(part, 0.0) > 0 for cell in cells)
    ]


def part_label(part: str) -> str:
    """Return a part's short name."""
    return PARTS[part].short or PARTS[part].label


def verdicts(comparison: Comparison) -> list[str]:
    """Return a sentence for each cell but the baseline: the difference, and the part that explains it."""
    cells, baseline = comparison.cells, comparison.cells[comparison.baseline]
    by_place = filter(None, (sentence(cell, baseline) for cell in cells))
    return [*by_place, *(_verdict(comparison, cell) for cell in cells if cell is not baseline)]


def _verdict(comparison: Comparison, cell: Compared) -> str:
    baseline = comparison.cells[comparison.baseline]
    has_starts = any(column.title == ABOVE for column in figure_columns(comparison))
    name = "above_start" if has_starts else "peak"
    value, before = cell.figures[name].middle, baseline.figures[name].middle
    change = value - before
    if math.isnan(change):
        return ""
    figure = "memory above its start" if has_starts else "memory at its peak"
    if abs(change) < NEXT_TO_NOTHING:
        return f"{name_of(cell)} needs as much {figure} as {name_of(baseline)}."
    how = "more" if change > 0 else "less"
    percent = percent_text(percent_of(value, before))
    percent = f" ({percent})" if percent else ""
    parts = {
        part: _certain_change(cell, baseline, part, above_start=has_starts)
        for part in OF_ALLOCATED
        if part not in {"unattributed", "before"}
    }
    largest = max(parts, key=lambda part: math.copysign(parts[part], parts[part] * change))
    size = cell.usual.at_peak.get(largest, 0.0) - baseline.usual.at_peak.get(largest, 0.0)
    size -= _more_at_start(cell, baseline, largest) if has_starts else 0.0
    # A part is named if it makes up at least half of the difference.
    is_half = 2 * parts[largest] * change >= change**2
    is_known = cell.usual.at_peak and baseline.usual.at_peak and is_half
    reason = f": {part_label(largest)} {_sign(size)}{format_bytes(abs(size))}" if is_known else ""
    needs = f"{name_of(cell)} needs {format_bytes(abs(change))} {how} {figure}{percent}"
    return f"{needs} than {name_of(baseline)}{reason}."


def text(comparison: Comparison) -> str:
    """Return the comparison as aligned plain text, with range and difference below each figure."""
    tables = (table(*each).text for each in _tables(comparison))
    head = " · ".join(("memcompare", *heading(comparison)))
    return _joined(head, ["\n".join(verdicts(comparison)), *tables], comparison.notes)


def markdown(comparison: Comparison) -> str:
    """Return the comparison in Markdown, such as for a comment on a pull request."""
    head = " · ".join(("**memcompare**", *map(for_markdown, heading(comparison))))
    tables = (as_markdown(*each) for each in _tables(comparison))
    sentences = "\n".join(for_markdown(each, NOTE_LENGTH) for each in verdicts(comparison))
    notes = (for_markdown(note, NOTE_LENGTH) for note in comparison.notes)
    return _joined(head, [sentences, *tables], notes)


def _joined(head: str, tables: Iterable[str], notes: Iterable[str]) -> str:
    return "\n\n".join(filter(None, (head, *tables, "\n".join(notes))))


def _tables(comparison: Comparison) -> Iterator[tuple[list[Column], list[TableRow]]]:
    names = []
    for cell in comparison.cells:
        note = about(comparison, cell)
        names.append(name_of(cell, 24) + (f" ({note})" if note else ""))
    groups = (("", figure_columns(comparison)), ("at the peak", part_columns(comparison)))
    for title, figures in groups:
        if figures:
            rows = zip(names, *(figure.cells for figure in figures), strict=True)
            heads = title, *(figure.title for figure in figures)
            yield [*map(Column, heads)], [*map(TableRow, rows)]
    yield from change_tables(comparison)


def change_tables(comparison: Comparison) -> Iterator[tuple[list[Column], list[TableRow]]]:
    """Yield a table of each cell's changes, the largest first, with the sum in the last row."""
    baseline = comparison.cells[comparison.baseline]
    for cell in comparison.cells:
        if cell.changes is None or cell.usual.live is None or baseline.usual.live is None:
            continue
        shown = [each for each in cell.changes[:MOST_CHANGES] if abs(each.bytes) >= LEAST_CHANGE]
        others = cell.changes[len(shown) :]
        sums = sum(each.before for each in others), sum(each.after for each in others)
        rest = [TableRow((f"other changes ({len(others)})", *_sizes(*sums)), is_quiet=True)]
        total = "live at the peak", *_sizes(baseline.usual.live.bytes, cell.usual.live.bytes)
        heads = "allocated in", "change", name_of(baseline, 24), name_of(cell, 24)
        rows = [*map(_change_row, shown), *(rest if others else ())]
        yield [*map(Column, heads)], [*rows, TableRow(total, is_quiet=True, is_ruled=True)]


def _change_row(change: Change) -> TableRow:
    name = change.name if change.name in NO_NAMES else kit.code(change.name)
    text = [kit.code(change.source)] if change.source else []
    was = [kit.words("was", kit.code(change.was))] if change.was else []
    cells = name, *_sizes(change.before, change.after)
    return TableRow(cells, facts=change.function, below=(*text, *was))


def _sizes(before: float, after: float) -> tuple[str, str, str]:
    change = change_text(after, before, format_bytes, NEXT_TO_NOTHING if after else math.inf)
    how = "" if before and after else " · new" if after else " · gone"
    was, now = (kit.size_text(size) if size else "0" for size in (before, after))
    return change + how, was, now


def change_text(value: float, baseline: float, shown: Format, least: float = 0.0) -> str:
    """Return the difference to a baseline with its sign and in percent, such as ``+0.50 GiB · +7.2 %``.

    A baseline of at most `least` has no percent.
    """
    change = value - baseline
    if math.isnan(change):
        return ""
    size = shown(abs(change))
    if not any(digit in size for digit in "123456789"):
        return "±0"
    percent = percent_text(percent_of(value, baseline, least))
    return f"{_sign(change)}{size}" + (f" · {percent}" if percent else "")


def percent_text(percent: float) -> str:
    """Return a signed percentage, such as ``+56 %`` or ``+3.4 %``; empty if unknown."""
    if math.isnan(percent):
        return ""
    size = f"{abs(percent):.0f}" if abs(percent) >= 9.95 else f"{abs(percent):.1f}"
    return "±0 %" if float(size) == 0 else f"{_sign(percent)}{size} %"


def _cell(comparison: Comparison, cell: Compared, name: str, shown: Format) -> Cell:
    figure = cell.figures[name]
    peak = Peak(figure.middle, cell.certainty)
    value = peak_cell(peak) if name == "peak" else shown(figure.middle)
    change = ""
    baseline = comparison.cells[comparison.baseline]
    if cell is not baseline:
        unsigned = format_bytes if shown is _signed_bytes else shown
        least = NEXT_TO_NOTHING if unsigned is format_bytes else 0.0
        change = change_text(figure.middle, baseline.figures[name].middle, unsigned, least)
    return value, _spread(figure, shown), change


def _part(cell: Compared, baseline: Compared, part: str) -> Cell:
    if not cell.usual.at_peak:
        return format_bytes(math.nan), "", ""
    value = cell.usual.at_peak.get(part, 0.0)
    shown = format_bytes(value) if value > 0 else "0"
    if cell is baseline or not baseline.usual.at_peak:
        return shown, "", ""
    # Memory held before the cells began is not a difference between them, such as all of "here before".
    start = cell.usual.at_start.get(part, 0.0)
    if part == "before" or abs(_more_at_start(cell, baseline, part)) >= NEXT_TO_NOTHING:
        return shown, f"{format_bytes(start)} at the start" if start else "", ""
    before = baseline.usual.at_peak.get(part, 0.0)
    least = NEXT_TO_NOTHING if value > 0 else math.inf
    return shown, "", change_text(value, before, format_bytes, least)


def _certain_change(cell: Compared, baseline: Compared, part: str, *, above_start: bool) -> float:
    """Return the least difference of a part in bytes, whatever `made` may be among the activations."""
    (low, high), (before, most) = (_bounds(each, part) for each in (cell, baseline))
    at_start = _more_at_start(cell, baseline, part) if above_start else 0.0
    return max(low - most - at_start, 0.0) + min(high - before - at_start, 0.0)


def _bounds(cell: Compared, part: str) -> tuple[float, float]:
    made, size = cell.usual.made, cell.usual.at_peak.get(part, 0.0)
    if part == "activations":
        return size - sum(made.values()), size
    return size, size + made.get(part, 0.0)


def _more_at_start(cell: Compared, baseline: Compared, part: str) -> float:
    return cell.usual.at_start.get(part, 0.0) - baseline.usual.at_start.get(part, 0.0)


def _spread(figure: Figure, shown: Format) -> str:
    if shown is format_rate or shown is format_duration:
        low, high = shown(figure.low), shown(figure.high)
        return "" if low == high else f"{low}{TO}{high}"
    divisor, unit = unit_for(max(abs(figure.low), abs(figure.high)))
    low, high = number(figure.low, divisor), number(figure.high, divisor)
    to = f" {TO} " if figure.low < 0 else TO
    return "" if low == high else f"{low}{to}{high} {unit}"


def _signed_bytes(value: float) -> str:
    return format_bytes(value, signed=True)


def _sign(value: float) -> str:
    return MINUS if value < 0 else "+"
