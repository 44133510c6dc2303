"""What a training would take at other sizes: a table, above which a script of the page puts sliders."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, astuple
from functools import cache
from pathlib import Path

from hfmem_widget.analysis.parts import LABELS
from hfmem_widget.session import WhatIf
from hfmem_widget.text import format_bytes, format_count
from hfmem_widget.view import html as kit
from hfmem_widget.view import palette
from hfmem_widget.view.table import Column, TableRow, table

_SCRIPT = Path(__file__).parents[1] / "static" / "what_if.js"
_COLUMNS = (Column("batch \N{MULTIPLICATION SIGN} tokens", is_bold=True), Column("peak"),
            Column("expected", is_words=True), Column("", is_words=True))  # fmt: skip


def what_if_html(what: WhatIf | None, *, scripted: bool = True) -> kit.Fragment:
    """Return the table, and the script unless the page has it already; nothing where nothing is known."""
    if what is None:
        return kit.NOTHING
    title = kit.block("margin:10px 0 4px", kit.strong("What if"),
                      kit.faint("(by dry runs of this model; no kernel is needed)"))  # fmt: skip
    sizes = kit.fold("a few sizes as a table", _table(what), is_open=True)
    data = json.dumps(_data(what), separators=(",", ":"))
    drawn = kit.drawn_by_script("data-hfmem-what-if", data, sizes, _script() if scripted else "")
    return kit.Fragment(f"{title.html}{drawn.html}", f"{title.text}\n{_table(what).text}")


def _table(what: WhatIf) -> kit.Fragment:
    batch, length = what.batch, what.length
    sizes = [(batch, length), (batch // 2, length), (2 * batch, length), (batch, length // 2),
             (batch, 2 * length)]  # fmt: skip
    return table(_COLUMNS, [_row(what, *size) for size in sizes if what.knows(*size)], size=12)


def _row(what: WhatIf, rows: int, length: int) -> TableRow:
    own = what.variants[0]
    peak = own.peak(rows, length)
    fits = what.fits(peak * own.low, peak * own.high)
    between = f"{format_bytes(peak * own.low)} to {format_bytes(peak * own.high)}"
    name = f"{format_count(rows)} \N{MULTIPLICATION SIGN} {format_count(length)}"
    word = (
        ""
        if math.isnan(what.room)
        else {True: "fits", None: "may fit", False: "does not fit"}[fits]
    )
    return TableRow((name, format_bytes(peak), between, word))


def _data(what: WhatIf) -> dict[str, object]:
    """Return what the script computes with, in whole bytes where these are many."""
    variants = []
    for each in what.variants:
        moments = [[float(f"{size:.8g}") for size in astuple(moment)] for moment in each.moments]
        shares = {name: round(getattr(each, name), 4) for name in ("low", "high", "off")}
        variants.append({**asdict(each), "moments": moments, **shares})
    names = {*what.variants[0].held, "gradients", "activations"}
    return {
        **asdict(what),
        "room": what.room if math.isfinite(what.room) else None,
        "variants": variants,
        "parts": {name: (LABELS[name], palette.PARTS.get(name, palette.SAVE)) for name in names},
    }


@cache
def _script() -> str:
    """Return the script; empty where the front end was not built."""
    try:
        return _SCRIPT.read_text(encoding="utf-8").replace("</", "<\\/")
    except FileNotFoundError:
        return ""
