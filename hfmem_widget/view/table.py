"""A table, described once: HTML that needs no style sheet, and aligned plain text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hfmem_widget.view import html as kit

GAP = "  "
LINE = 300
"""Characters of what stands in one place, at most."""

MOST_LETTERS = 28
"""Of a name: a longer one breaks where there is little room."""

_NAME = "padding:2px 0;text-align:left;border:0;overflow-wrap:break-word"
_FIGURE = "padding:2px 0 2px 16px;text-align:right;white-space:nowrap;border:0"
_WORDS = "padding:2px 0 2px 16px;text-align:left;border:0"
_SCROLLS = (
    "overflow-x:auto;background:linear-gradient(to left,var(--jp-layout-color0,Canvas) 40%,transparent) "
    "right/28px 100% no-repeat local,linear-gradient(to left,rgba(128,128,128,.45),transparent) "
    "right/10px 100% no-repeat scroll"
)
"""Style of what may be wider than its frame: a shadow at the right for as long as there is more."""

Cell = kit.Content | tuple[kit.Content, ...]
"""What stands in a place; of several, the first is the figure, the others stand small below it."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes
    ----------
    head : str or Fragment
    is_words : bool
        True for words, at the left; figures stand at the right.
    is_quiet, is_bold : bool
    """

    head: kit.Content = ""
    is_words: bool = False
    is_quiet: bool = False
    is_bold: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table.

    Attributes
    ----------
    cells : tuple of Cell
        The first is its name; those missing at the end are empty.
    facts : str
        Small below the name; in plain text behind it in parentheses.
    below : tuple of (str or Fragment)
        Lines below that.
    is_sum : bool
        True where all of it is bold.
    is_ruled : bool
        True where a line parts it from the rows above.
    is_quiet : bool
        True where it is of less weight.
    is_indented : bool
        True where it is a part of a row above.
    """

    cells: tuple[Cell, ...]
    facts: str = ""
    below: tuple[kit.Content, ...] = ()
    is_sum: bool = False
    is_ruled: bool = False
    is_quiet: bool = False
    is_indented: bool = False

    @property
    def is_high(self) -> bool:
        """Whether it has more than one line."""
        return bool(self.facts or self.below or any(isinstance(one, tuple) for one in self.cells))


def table(
    columns: Sequence[Column],
    rows: Sequence[Row],
    *,
    names_last: bool = False,
    fills: bool = False,
    scrolls: str = "",
    size: float = 13,
) -> kit.Fragment:
    """Return a table; nothing without rows.

    Parameters
    ----------
    columns : sequence of Column
        The first is that of the names.
    rows : sequence of Row
    names_last : bool
        True where names are long: plain text has the figures first, and no heads.
    fills : bool
        True where the figures stand at the right of the page.
    scrolls : str
        What it is called where it may be wider than the page: it is then reached with the keyboard.
    size : float
        Of its letters, in pixels.
    """
    if not rows:
        return kit.NOTHING
    told = _list_text(rows) if names_last else _aligned_text(columns, rows)
    is_high = any(row.is_high for row in rows) or any(one.is_words for one in columns[1:])
    longest = max(len(_figure(row.cells[0])) for row in rows)
    width = f"{min(longest, MOST_LETTERS) * size / 2:.0f}px"
    heads = "".join(_head_html(at, one, width) for at, one in enumerate(columns))
    # JupyterLab stripes rows, and gives every table columns of the same width.
    head = f'<thead style="border:0"><tr style="background:none">{heads}</tr></thead>'
    body = "".join(_row_html(columns, row, is_high=is_high) for row in rows)
    filled = ";width:100%;max-width:680px" if fills else ""
    more = f' tabindex="0" role="group" aria-label="{kit.shown(scrolls).html}"' if scrolls else ""
    return kit.Fragment(
        f'<div{more} style="{_SCROLLS if scrolls else "overflow-x:auto"};margin:6px 0 0">'
        '<table style="border-collapse:collapse;table-layout:auto;border:0;margin:0;'
        f'font-size:{size:g}px;color:inherit{filled}">'
        f"{head if any(one.head for one in columns) else ''}<tbody>{body}</tbody></table></div>",
        told,
    )


def _head_html(at: int, column: Column, width: str) -> str:
    place = _NAME if at == 0 else _WORDS if column.is_words else _FIGURE
    place += f";min-width:{width}" if at == 0 else ";white-space:normal"
    faint = "font-weight:normal" + (f";{kit.TINY}" if isinstance(column.head, str) else "")
    return f'<th scope="col" style="{place};vertical-align:bottom;{faint}">{kit.shown(column.head).html}</th>'


def _row_html(columns: Sequence[Column], row: Row, *, is_high: bool) -> str:
    top = ";vertical-align:top" if is_high else ""
    rule = ";border-top:1px solid rgba(128,128,128,.35)" if row.is_ruled else ""
    cells = (*row.cells, *[""] * (len(columns) - len(row.cells)))
    drawn = []
    for at, (cell, column) in enumerate(zip(cells, columns, strict=True)):
        style = (_NAME if at == 0 else _WORDS if column.is_words else _FIGURE) + top + rule
        is_bold = column.is_bold or (row.is_sum and not (at and column.is_words))
        style += (
            ";font-weight:600"
            if is_bold and not row.is_quiet
            else ";font-weight:normal"
            if at == 0
            else ""
        )
        style += f";{kit.QUIET}" if row.is_quiet or column.is_quiet else ""
        style += ";padding-left:12px" if at == 0 and row.is_indented else ""
        first, *small = cell if isinstance(cell, tuple) else (cell,)
        small += [row.facts, *row.below] if at == 0 else []
        below = "".join(
            f'<div style="{kit.SMALL};font-weight:normal">{kit.shown(one, LINE).html}</div>'
            for one in small
            if one
        )
        tag = 'th scope="row"' if at == 0 else "td"
        drawn.append(f'<{tag} style="{style}">{kit.shown(first, LINE).html}{below}</{tag[:2]}>')
    return f'<tr style="background:none">{"".join(drawn)}</tr>'


def _figure(cell: Cell) -> str:
    return kit.shown(cell[0] if isinstance(cell, tuple) else cell).text


def _name(row: Row) -> str:
    return _figure(row.cells[0]) + (
        f"{GAP}({kit.shown(row.facts, LINE).text})" if row.facts else ""
    )


def _list_text(rows: Sequence[Row]) -> str:
    """Return the figures and, behind them, the names."""
    count = max(len(row.cells) for row in rows)
    figures = [[*map(_figure, row.cells[1:]), *[""] * (count - len(row.cells))] for row in rows]
    widths = [max(map(len, column)) for column in zip(*figures, strict=True)]
    indent = " " * (sum(widths) + len(GAP) * len(widths))
    told = []
    for row, found in zip(rows, figures, strict=True):
        aligned = [one.rjust(width) for one, width in zip(found, widths, strict=True)]
        told.append(GAP.join((*aligned, _name(row))))
        told += [f"{indent}{GAP}{kit.shown(one).text}" for one in row.below if one]
    return "\n".join(told)


def _aligned_text(columns: Sequence[Column], rows: Sequence[Row]) -> str:
    """Return names and figures below the heads; what stands small below figures has a line of its own."""
    heads = [kit.shown(one.head).text for one in columns]
    lines: list[list[str] | str] = [heads] if any(heads) else []
    for row in rows:
        if row.is_ruled:
            lines.append("")
        lines.append([_name(row), *map(_figure, row.cells[1:])])
        small = [list(one[1:]) if isinstance(one, tuple) else [] for one in row.cells[1:]]
        for at in range(max(map(len, small), default=0)):
            told = [kit.shown(one[at]).text if at < len(one) else "" for one in small]
            lines += [["", *told]] if any(told) else []
        lines += [f"{GAP}{kit.shown(one).text}" for one in row.below if one]
    return aligned(lines, {at for at, one in enumerate(columns) if one.is_words})


def aligned(
    lines: Sequence[Sequence[str] | str], words: frozenset[int] | set[int] = frozenset()
) -> str:
    """Return rows of text as columns.

    Parameters
    ----------
    lines : sequence of (sequence of str, or str)
        A text of its own stands as it is; an empty one is a rule.
    words : set of int
        The columns that stand at the left, as the first does; the others stand at the right.
    """
    rows = [one for one in lines if not isinstance(one, str)]
    count = max(map(len, rows), default=0)
    widths = [
        max((len(row[at]) for row in rows if at < len(row)), default=0) for at in range(count)
    ]
    told = []
    for row in lines:
        if isinstance(row, str):
            told.append(row or GAP.join("\u2500" * width for width in widths))
            continue
        cells = zip(row, widths, strict=False)
        told.append(
            GAP.join(
                text.ljust(width) if at == 0 or at in words else text.rjust(width)
                for at, (text, width) in enumerate(cells)
            ).rstrip()
        )
    return "\n".join(told)
