"""A table, described once: HTML that needs no style sheet, and aligned plain text."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import zip_longest

from hfmem_widget.session import Peak
from hfmem_widget.text import for_markdown
from hfmem_widget.view import html as kit
from hfmem_widget.view.line import peak_text

GAP = "  "
LINE = 300  # characters in one cell, at most
MOST_LETTERS = 28

_NAME = "padding:2px 0;text-align:left;overflow-wrap:break-word"
_FIGURE = "padding:2px 0 2px 16px;text-align:right;white-space:nowrap"
_WORDS = "padding:2px 0 2px 16px;text-align:left"
_BELOW = f"{kit.SMALL};font-weight:normal;white-space:normal"
_SCROLLS = (
    "overflow-x:auto;background:linear-gradient(270deg,"
    "var(--vscode-editor-background,var(--jp-layout-color0)) 40%,#0000) "
    "right/28px 100% no-repeat local,linear-gradient(270deg,#8887,#0000) right/10px 100% no-repeat"
)
"""A shadow at the right where a table is wider than its frame, on a page whose ground is known."""

Cell = kit.Content | tuple[kit.Content, ...]
"""The content of a cell; of several, the first is the figure, the others stand small below it."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: figures stand at the right, words at the left.

    A name or words of more `letters` break where there is little room.
    """

    head: kit.Content = ""
    letters: int = MOST_LETTERS
    is_words: bool = False
    is_quiet: bool = False
    is_bold: bool = False


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row of a table; missing cells at its end are empty."""

    cells: tuple[Cell, ...]  # the first is its name
    facts: str = ""  # small below the name; in plain text behind it in parentheses
    below: tuple[kit.Content, ...] = ()  # lines below that
    is_sum: bool = False  # bold
    is_ruled: bool = False  # a line separates it from the rows above
    is_quiet: bool = False  # it matters less
    is_indented: bool = False  # it is a part of a row above


def table(
    columns: Sequence[Column],
    rows: Sequence[TableRow],
    *,
    names_last: bool = False,  # names are long: plain text has the figures first, and no heads
    fills: bool = False,  # the figures stand at the right of the page
    scrolls: str = "",  # the label of one that may be wider than the page: the keyboard reaches it
    size: float = 13,  # of its letters, in pixels
) -> kit.Fragment:
    """Return a table, whose first column has the names; nothing without rows."""
    if not rows:
        return kit.NOTHING
    text = _list_text(rows) if names_last else _aligned_text(columns, rows)
    heads = "".join(_head_html(at, columns, rows, size) for at in range(len(columns)))
    # JupyterLab and VS Code stripe rows; the former gives every table columns of the same width.
    head = (
        f'<thead style="border:0;background:none"><tr style="background:none">{heads}</tr></thead>'
    )
    body = "".join(_row_html(columns, row) for row in rows)
    filled = ";width:100%;max-width:680px" if fills else ""
    more = f' tabindex="0" role="group" aria-label="{kit.shown(scrolls).html}"' if scrolls else ""
    return kit.Fragment(
        f'<div{more} style="{_SCROLLS};margin:6px 0 0">'
        '<table style="border-collapse:collapse;table-layout:auto;border:0;margin:0;'
        f'font-size:{size:g}px;color:inherit{filled}">'
        f"{head if any(column.head for column in columns) else ''}<tbody>{body}</tbody></table></div>",
        text,
    )


def markdown(columns: Sequence[Column], rows: Sequence[TableRow]) -> str:
    """Return the same table in Markdown; what stands small below a figure follows in its cell."""
    if not rows:
        return ""
    heads = [kit.shown(column.head).text for column in columns]
    sides = ["---" if at == 0 or column.is_words else "---:" for at, column in enumerate(columns)]
    lines = [[*map(for_markdown, heads)], sides]
    for row in rows:
        cells = [cell if isinstance(cell, tuple) else (cell,) for cell in row.cells]
        cells[0] = *cells[0], row.facts, *row.below
        texts = ([for_markdown(kit.shown(part).text) for part in cell if part] for cell in cells)
        lines.append(["<br>".join(parts) for parts in texts])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def peak_cell(peak: Peak) -> kit.Fragment:
    """Return a peak as a figure, so that units stand below each other: how it is known is small below it."""
    text = peak_text(peak)
    size = text.removesuffix(f" {peak.certainty}")
    below = kit.block(_BELOW, peak.certainty).html if size != text else ""
    return kit.Fragment(f"{size}{below}", text)


def _place(at: int, column: Column) -> str:
    return _NAME if at == 0 else _WORDS if column.is_words else _FIGURE


def _head_html(at: int, columns: Sequence[Column], rows: Sequence[TableRow], size: float) -> str:
    column = columns[at]
    place = _place(at, column).replace(";white-space:nowrap", "")
    if at == 0 or column.is_words:
        longest = max(
            (len(_figure(row.cells[at])) for row in rows if at < len(row.cells)), default=0
        )
        place += f";min-width:{min(0.62 * longest, column.letters / 2) * size:.0f}px"
    faint = "font-weight:normal" + (f";{kit.TINY}" if isinstance(column.head, str) else "")
    # A head without words would be read out as one; so it is none.
    tag = 'th scope="col"' if column.head else "td"
    style = f"{place};vertical-align:bottom;{faint}"
    return f'<{tag} style="{style}">{kit.shown(column.head).html}</{tag[:2]}>'


def _row_html(columns: Sequence[Column], row: TableRow) -> str:
    small_ones = any(isinstance(cell, tuple) and any(cell[1:]) for cell in row.cells)
    is_high = row.facts or row.below or small_ones or any(it.is_words for it in columns[1:])
    top = ";vertical-align:top" if is_high else ""
    rule = ";border-top:1px solid rgba(128,128,128,.35)" if row.is_ruled else ""
    cells = (*row.cells, *[""] * (len(columns) - len(row.cells)))
    drawn = ""
    for at, (column, cell) in enumerate(zip(columns, cells, strict=True)):
        is_bold = column.is_bold or (row.is_sum and not (at and column.is_words))
        weight = ";font-weight:600" if is_bold and not row.is_quiet else ""
        style = _place(at, column) + top + rule
        style += weight or (";font-weight:normal" if at == 0 else "")
        style += f";{kit.FAINT}" if row.is_quiet or column.is_quiet else ""
        first, *small = cell if isinstance(cell, tuple) else (cell,)
        name = kit.shown(first, LINE)
        if at == 0:
            small += [row.facts, *row.below]
            style += ";padding-left:12px" * row.is_indented
            style += ";padding-left:1.2em;text-indent:-1.2em" * (kit.SQUARE in name.html)
        below = "".join(kit.block(_BELOW, content, limit=LINE).html for content in small if content)
        tag = 'th scope="row"' if at == 0 else "td"
        drawn += f'<{tag} style="{style}">{name.html}{below}</{tag[:2]}>'
    return f'<tr style="background:none">{drawn}</tr>'


def _figure(cell: Cell) -> str:
    return kit.shown(cell[0] if isinstance(cell, tuple) else cell).text


def _name(row: TableRow) -> str:
    facts = f"{GAP}({kit.shown(row.facts, LINE).text})" if row.facts else ""
    return f"{_figure(row.cells[0])}{facts}"


def _below(row: TableRow) -> list[str]:
    return [f"{GAP}{kit.shown(content).text}" for content in row.below if content]


def _list_text(rows: Sequence[TableRow]) -> str:
    count = max(len(row.cells) for row in rows) - 1
    lines = []
    for row in rows:
        figures = [*map(_figure, row.cells[1:])]
        lines.append([*figures, *[""] * (count - len(figures)), _name(row)])
        lines += [[*[""] * count, text] for text in _below(row)]
    return aligned(lines, {count})


def _aligned_text(columns: Sequence[Column], rows: Sequence[TableRow]) -> str:
    """Return names and figures below the heads; what stands small below figures has a line of its own."""
    heads = [kit.shown(column.head).text for column in columns]
    lines: list[list[str] | str] = [heads] if any(heads) else []
    for row in rows:
        lines += [""] if row.is_ruled else []
        lines.append([_name(row), *map(_figure, row.cells[1:])])
        small = [cell[1:] if isinstance(cell, tuple) else () for cell in row.cells[1:]]
        for contents in zip_longest(*small, fillvalue=""):
            texts = [kit.shown(content).text for content in contents]
            lines += [["", *texts]] if any(texts) else []
        lines += _below(row)
    return aligned(lines, {0, *(at for at, column in enumerate(columns) if column.is_words)})


def aligned(lines: Sequence[Sequence[str] | str], words: AbstractSet[int] = frozenset({0})) -> str:
    """Return rows as columns, those of `words` at the left; a text stays as it is, an empty one is a rule."""
    rows = (row for row in lines if not isinstance(row, str))
    widths = [max(map(len, column)) for column in zip_longest(*rows, fillvalue="")]
    text = []
    for row in lines:
        if isinstance(row, str):
            text.append(row or GAP.join("\u2500" * width for width in widths))
            continue
        cells = (
            cell.ljust(width) if at in words else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=False))
        )
        text.append(GAP.join(cells).rstrip())
    return "\n".join(text)
