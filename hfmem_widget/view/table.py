"""A table, described once: as HTML without a style sheet, as aligned plain text, as Markdown."""

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

_ROW = "background:none"  # JupyterLab and VS Code stripe rows
_FIGURE = "padding:2px 8px"  # at the right, as JupyterLab and VS Code have all cells
_WORDS = f"{_FIGURE};text-align:left"
_SCROLLS = (  # a shadow at the right of a table that is wider than its frame
    "overflow-x:auto;background:linear-gradient(270deg,"
    "var(--vscode-editor-background,var(--jp-layout-color0)) 40%,#0000) "
    "right/28px no-repeat local,linear-gradient(270deg,#8887,#0000) right/10px no-repeat"
)
Cell = kit.Content | tuple[kit.Content, ...]
"""The content of a cell: a figure, and small contents below it."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: figures are at the right, words at the left.

    Names and words of more than `letters` break where there is little room.
    Heads are small and faint, unless that of the first column is a fragment.
    """

    head: kit.Content = ""
    letters: int = 28
    is_words: bool = False
    is_quiet: bool = False
    is_bold: bool = False


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row of a table; missing cells at its end are empty."""

    cells: tuple[Cell, ...]  # the first is its name
    facts: str = ""  # small below the name; in plain text after it, in parentheses
    below: tuple[kit.Content, ...] = ()  # lines below the facts
    is_sum: bool = False  # bold
    is_ruled: bool = False  # with a line above it
    is_quiet: bool = False  # faint
    is_indented: bool = False  # a part of a row above


def table(
    columns: Sequence[Column],
    rows: Sequence[TableRow],
    *,
    names_last: bool = False,  # for long names: plain text has the figures first, and no heads
    fills: bool = False,  # the figures are at the right of the page
    scrolls: str = "",  # the label of a table that may be wider than the page: the keyboard can scroll it
    size: float = 13,  # of letters, in pixels
) -> kit.Fragment:
    """Return a table, whose first column has the names; nothing without rows."""
    if not rows:
        return kit.NOTHING
    text = _list_text(rows) if names_last else _aligned_text(columns, rows)
    heads = _heads_html(columns, rows, size) if any(column.head for column in columns) else ""
    body = "".join(_row_html(columns, row) for row in rows)
    filled = ";width:calc(100% + 8px);max-width:680px" if fills else ""
    more = f' tabindex="0" role="group" aria-label="{kit.shown(scrolls).html}"' if scrolls else ""
    return kit.Fragment(
        f'<div{more} style="{_SCROLLS};margin:6px 0 0">'
        # JupyterLab has columns of equal width. A page's rules for cells override inherited styles.
        '<table style="border-collapse:collapse;table-layout:auto;border:0;margin:0 0 0 -8px;'
        f'text-align:right;overflow-wrap:break-word;font-size:{size:g}px;color:inherit{filled}">'
        f"{heads}{body}</table></div>",
        text,
    )


def markdown(columns: Sequence[Column], rows: Sequence[TableRow]) -> str:
    """Return the same table in Markdown, the small contents below a figure in its cell."""
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
    """Return a peak as a figure with its certainty below, so that units are aligned."""
    text = peak_text(peak)
    size = text.removesuffix(f" {peak.certainty}")
    below = kit.block(kit.SMALL, peak.certainty).html if size != text else ""
    return kit.Fragment(f"{kit.unbroken(size).html}{below}", text)


def _place(at: int, column: Column) -> str:
    return _WORDS if at == 0 or column.is_words else _FIGURE


def _heads_html(columns: Sequence[Column], rows: Sequence[TableRow], size: float) -> str:
    heads, drawn = [], ""
    for at, column in enumerate(columns):
        cells = [row.cells[at] for row in rows if at < len(row.cells)]
        longest = max((len(_figure(cell)) for cell in cells), default=0)
        head, style = kit.shown(column.head), f"{_place(at, column)};font-weight:400"
        if _place(at, column) == _FIGURE:
            head = kit.unbroken(head) if len(head.text) <= longest else head
        elif any(" " in cell if isinstance(cell, str) else cell for cell in cells):
            style += f";min-width:{min(0.62 * longest, column.letters / 2) * size:.0f}px"
        heads.append((head, style))
    low = ";vertical-align:bottom" * any(" " in head.html for head, _ in heads)
    for head, style in heads:
        # Screen readers would announce an empty head.
        tag = 'th scope="col"' if head else "td"
        drawn += f'<{tag} style="{style}{low}">{head.html}</{tag[:2]}>'
    row = f"{_ROW};{kit.TINY}" if isinstance(columns[0].head, str) else _ROW
    return f'<thead style="border:0;background:none"><tr style="{row}">{drawn}</tr></thead>'


def _row_html(columns: Sequence[Column], row: TableRow) -> str:
    small_ones = any(isinstance(cell, tuple) and any(cell[1:]) for cell in row.cells)
    is_high = row.facts or row.below or small_ones or any(it.is_words for it in columns[1:])
    top = ";vertical-align:top" if is_high else ""
    cells = (*row.cells, *[""] * (len(columns) - len(row.cells)))
    drawn = ""
    for at, (column, cell) in enumerate(zip(columns, cells, strict=True)):
        is_bold = column.is_bold or (row.is_sum and not (at and column.is_words))
        weight = ";font-weight:600" if is_bold and not row.is_quiet else ""
        style = _place(at, column) + top + (weight or ";font-weight:400" * (at == 0))
        style += f";{kit.FAINT}" if column.is_quiet and not row.is_quiet else ""
        first, *small = cell if isinstance(cell, tuple) else (cell,)
        name = kit.shown(first, LINE)
        name = kit.unbroken(name) if _place(at, column) == _FIGURE else name
        if at == 0:
            small += [row.facts, *row.below]
            style += ";padding-left:20px" * row.is_indented
            style += ";padding-left:22px;text-indent:-14px" * (kit.SQUARE in name.html)
        light = f"{kit.SMALL};font-weight:400" if weight else kit.SMALL
        below = "".join(kit.block(light, content, limit=LINE).html for content in small if content)
        tag = 'th scope="row"' if at == 0 else "td"
        drawn += f'<{tag} style="{style}">{name.html}{below}</{tag[:2]}>'
    rule = ";border-top:1px solid #80808059" if row.is_ruled else ""
    return f'<tr style="{_ROW}{rule}{f";{kit.FAINT}" if row.is_quiet else ""}">{drawn}</tr>'


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
    # The small contents below figures have a line of their own.
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
    """Return rows as aligned columns, those of `words` at the left; a text is a line, an empty one a rule."""
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
