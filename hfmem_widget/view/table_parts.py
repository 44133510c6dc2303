"""What the tables that tell of names and bytes have in common: styles, and how a name is written."""

from __future__ import annotations

from html import escape

from hfmem_widget.text import MIB, format_bytes, plain

PATH_LENGTH = 140

TABLE = (
    # JupyterLab gives every table columns of the same width.
    '<div style="overflow-x:auto"><table style="border-collapse:collapse;table-layout:auto;border:0;margin:0;'
    'font-size:13px;color:inherit;width:100%;max-width:680px">'
)
NAME = "padding:3px 0;text-align:left;vertical-align:top;border:0;font-weight:normal"
CELL = "padding:3px 0 3px 16px;text-align:right;vertical-align:top;white-space:nowrap;border:0"
QUIET = "opacity:.75"
SMALL = f"font-size:11.5px;{QUIET}"
HEAD = f";font-size:11px;font-weight:normal;{QUIET}"
RULE = ";border-top:1px solid rgba(128,128,128,.35)"

_CODE = (
    "font-family:var(--jp-code-font-family,ui-monospace,monospace);font-size:.95em;"
    "background:none;padding:0;color:inherit;white-space:normal;overflow-wrap:anywhere"
)


def code(text: str) -> str:
    """Return a name or a path as code."""
    # MathJax, which reads what stands between dollars, leaves code alone.
    return f'<code style="{_CODE}">{escape(plain(text, PATH_LENGTH))}</code>'


def size_text(size: float) -> str:
    """Return bytes as text, in which a few are not told as none."""
    return f"<{format_bytes(0.01 * MIB)}" if 0 < size < 0.005 * MIB else format_bytes(size)


def head_html(*heads: str) -> str:
    """Return the heads of columns, of which the first is of names."""
    cells = "".join(
        f'<th scope="col" style="{NAME if at == 0 else CELL}{HEAD}">{escape(head)}</th>'
        for at, head in enumerate(heads)
    )
    return f'<thead style="border:0"><tr>{cells}</tr></thead>'


def row_html(name: str, *figures: str, style: str = "", strong: bool = False) -> str:
    """Return a row of a name, which is HTML, and figures, which are text."""
    weight = ";font-weight:600" if strong else ""
    cells = "".join(f'<td style="{CELL}{weight}{style}">{escape(one)}</td>' for one in figures)
    # JupyterLab stripes rows; here they are the table's own.
    return (
        f'<tr style="background:none"><th scope="row" style="{NAME}{style}">{name}</th>{cells}</tr>'
    )
