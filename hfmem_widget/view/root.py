"""How each piece of our HTML begins: in the page's own letters, and with nothing read as a formula."""

from __future__ import annotations

from hfmem_widget.text import for_html

AS_TEXT = "mathjax_ignore tex2jax_ignore"
"""Within these classes MathJax 3 (JupyterLab, Notebook) and 2 (nbviewer, nbconvert) find no formulas.

Entities would not do: they are dollars again by the time that it reads the page.
"""

LETTERS = (
    "font-family:var(--jp-ui-font-family,system-ui,sans-serif);"
    "color:var(--jp-ui-font-color1,inherit);font-variant-numeric:tabular-nums"
)


def root(style: str) -> str:
    """Return the opening tag of an outermost element."""
    return f'<div class="{AS_TEXT}" style="{style}">'


_WIDE = "box-sizing:border-box;max-width:860px;margin:2px 0;font-size:13px;line-height:1.45"

BOX = root(f"{_WIDE};{LETTERS}")

FRAMED = root(
    f"{_WIDE};padding:10px 14px 11px;border:1px solid var(--jp-border-color2,rgba(128,128,128,.35));"
    f"border-radius:6px;{LETTERS}"
)

SCROLLS = (
    "overflow-x:auto;background:linear-gradient(to left,var(--jp-layout-color0,Canvas) 40%,transparent) "
    "right/28px 100% no-repeat local,linear-gradient(to left,rgba(128,128,128,.45),transparent) "
    "right/10px 100% no-repeat scroll"
)
"""Style of what may be wider than its frame: a shadow at the right for as long as there is more."""

QUIET = "opacity:.72"


def headed(name: str, *phrases: str) -> str:
    """Return the opening of a frame with its heading: what this is, and of what, as plain text."""
    told = "".join(
        f' <span style="{QUIET};overflow-wrap:anywhere">{for_html(phrase)}</span>'
        for phrase in phrases
        if phrase
    )
    return (
        f'{FRAMED}<div style="display:flex;flex-wrap:wrap;align-items:baseline;gap:0 10px;margin:0 0 6px">'
        f'<strong style="font-size:15px">{for_html(name)}</strong>{told}</div>'
    )


CHART = root(f"max-width:860px;font:11px/1.5 sans-serif;{LETTERS}")


def drawing(svg: str) -> str:
    """Return a drawing whose only words are its tips.

    JupyterLab takes the drawings out of a notebook that it does not trust, and leaves their words: without a
    size they are not seen.
    """
    return f'<div style="font-size:0">{svg}</div>'


def caption(text: str, *, at_right: bool = False) -> str:
    """Return small words about a drawing, which go with it where drawings are taken out."""
    place = 'x="100%" text-anchor="end"' if at_right else 'x="0"'
    return drawing(
        '<svg style="display:block;width:100%;height:15px;font-size:11px" fill="currentColor" '
        f'fill-opacity=".75"><text {place} y="11">{for_html(text)}</text></svg>'
    )
