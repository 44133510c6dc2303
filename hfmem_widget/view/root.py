"""How each piece of our HTML begins: in the page's own letters, and with nothing read as a formula."""

from __future__ import annotations

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

CHART = root(f"max-width:860px;font:11px/1.5 sans-serif;{LETTERS}")


def drawing(svg: str) -> str:
    """Return a drawing whose only words are its tips.

    JupyterLab takes the drawings out of a notebook that it does not trust, and leaves their words: without a
    size they are not seen.
    """
    return f'<div style="font-size:0">{svg}</div>'
