"""Text from outside is text.

Labels, device names and rank names reach HTML, SVG, Plotly and terminals. They are made plain once,
where they enter, and escaped again by each sink for its own syntax.
"""

from __future__ import annotations

import html
import re
import unicodedata

MAX_LENGTH = 120

DEVICE_KEY = re.compile(r"cuda:\d+|cpu")
"""What a device is called, everywhere."""


def plain(text: object, limit: int = MAX_LENGTH) -> str:
    """Return `text` on one line without control, format or bidi characters, at most `limit` long."""
    raw = str(text)[: 4 * limit + 1024]
    if len(raw) <= limit and raw.isascii() and raw.isprintable() and "  " not in raw:
        return raw.strip(" ")  # as nearly all are: spans are labelled while a model trains
    kept = (
        " " if char.isspace() else char
        for char in raw
        if char.isspace() or unicodedata.category(char) not in {"Cc", "Cf", "Cs", "Co", "Cn"}
    )
    line = " ".join("".join(kept).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def for_html(text: object) -> str:
    """Return `text` made plain and escaped for HTML and SVG, attributes included."""
    return html.escape(plain(text), quote=True)


def for_plotly(text: object) -> str:
    """Return `text` made plain, with Plotly's tags escaped and its MathJax switched off."""
    # Where MathJax is loaded, Plotly reads anything between dollars (plotly.js#8051:
    # \href{javascript:…} was reachable from titles and annotations); it decodes entities later.
    return html.escape(plain(text), quote=False).replace("$", "&#36;")
