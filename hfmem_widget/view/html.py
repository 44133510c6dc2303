"""The kit that cards and tables are made of: described once, shown as HTML and as plain text.

A `Fragment` is both. Text from outside becomes one here, and only here: made plain, capped and escaped.
The HTML has inline styles, no script, and no class but MathJax's: JupyterLab's sanitizer, nbconvert and
GitHub keep it as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from hfmem_widget.text import MIB, format_bytes, plain

AS_TEXT = "mathjax_ignore tex2jax_ignore"
"""Within these classes MathJax 3 (JupyterLab, Notebook) and 2 (nbviewer, nbconvert) find no formulas.

Entities would not do: they are dollars again by the time that it reads the page.
"""

LETTERS = (
    "font-family:var(--jp-ui-font-family,system-ui,sans-serif);"
    "color:var(--jp-ui-font-color1,inherit);font-variant-numeric:tabular-nums"
)
QUIET = "opacity:.72"
SMALL = f"font-size:11.5px;{QUIET}"
TINY = f"font-size:11px;{QUIET}"

NAME_LENGTH = 120
PATH_LENGTH = 140
NOTE_LENGTH = 500
"""Characters of a sentence of ours at most: labels of the user's may stand in it."""

UNBROKEN = "\u00a0"
SQUARE, BULLET = "\u25a0", "\u25cf"

_CODE = (
    "font-family:var(--jp-code-font-family,ui-monospace,monospace);font-size:.95em;"
    "background:none;padding:0;color:inherit;white-space:normal;overflow-wrap:anywhere"
)


@dataclass(frozen=True, slots=True)
class Fragment:
    """A piece of what is shown.

    Attributes
    ----------
    html : str
        Markup that this kit has made.
    text : str
        The same as plain text; empty for what is only drawn.
    is_section : bool
        True for what a blank line parts from its like in plain text.
    """

    html: str
    text: str = ""
    is_section: bool = False

    def __bool__(self) -> bool:
        return bool(self.html or self.text)


NOTHING = Fragment("")
Content = str | Fragment


def shown(content: Content, limit: int = NAME_LENGTH) -> Fragment:
    """Return a text as a fragment, plain and escaped; a fragment as it is."""
    if isinstance(content, Fragment):
        return content
    told = plain(content, limit)
    return Fragment(escape(told, quote=True), told)


def words(*contents: Content, between: str = " ", limit: int = NAME_LENGTH) -> Fragment:
    """Return contents one after the other, those that are empty left out."""
    found = [shown(one, limit) for one in contents if one]
    told = between.join(one.text for one in found if one.text)
    return Fragment(escape(between).join(one.html for one in found), told)


def _tag(name: str, style: str, *contents: Content, limit: int = NAME_LENGTH) -> Fragment:
    inside = words(*contents, limit=limit)
    styled = f' style="{style}"' if style else ""
    return Fragment(f"<{name}{styled}>{inside.html}</{name}>", inside.text)


def strong(content: Content) -> Fragment:
    """Return a content in bold."""
    return _tag("strong", "", content)


def code(text: str, limit: int = PATH_LENGTH, style: str = "") -> Fragment:
    """Return a name or a path as code, which MathJax leaves alone."""
    return _tag("code", f"{_CODE};{style}" if style else _CODE, text, limit=limit)


def quiet(*contents: Content, style: str = QUIET) -> Fragment:
    """Return contents in a fainter ink."""
    return _tag("span", style, *contents)


def marked(colour: str, content: Content = "", sign: str = SQUARE) -> Fragment:
    """Return a content behind a sign in a colour, which plain text and screen readers leave out."""
    told = shown(content)
    square = f'<span aria-hidden="true" style="color:{colour}">{sign}</span>'
    return Fragment(f"{square}{UNBROKEN}{told.html}" if told else square, told.text)


def block(style: str, *contents: Content, limit: int = NOTE_LENGTH) -> Fragment:
    """Return contents as a block of its own style; nothing if there are none."""
    inside = words(*contents, limit=limit)
    return Fragment(f'<div style="{style}">{inside.html}</div>', inside.text) if inside else NOTHING


def line(*contents: Content, style: str = "") -> Fragment:
    """Return a sentence in the size of the figures."""
    return block(f"margin:4px 0 0;overflow-wrap:anywhere{style}", *contents)


def note(*contents: Content, limit: int = NOTE_LENGTH) -> Fragment:
    """Return a small sentence below."""
    return block(f"margin:5px 0 0;overflow-wrap:anywhere;{SMALL}", *contents, limit=limit)


def notes(texts: Iterable[Content]) -> list[Fragment]:
    """Return a note for each text."""
    return [note(one) for one in texts]


def phrases(told: Sequence[Content], dot: str = " \u00b7") -> Fragment:
    """Return phrases with dots between them, none of them broken."""
    found = [shown(one) for one in told if one]
    last = len(found) - 1
    html = " ".join(
        f'<span style="white-space:nowrap">{one.html}{dot if at < last else ""}</span>'
        for at, one in enumerate(found)
    )
    return Fragment(html, " \u00b7 ".join(one.text for one in found))


def fold(summary: Content, *inside: Content, style: str = "", is_open: bool = False) -> Fragment:
    """Return what is one click away, and in plain text stands below its summary."""
    head, below = shown(summary), words(*inside, between="\n")
    styled = f' style="{style}"' if style else ""
    html = "".join(shown(one).html for one in inside)
    opening = f"<details{' open' * is_open}{styled}>"
    summed = f'<summary style="cursor:pointer;{SMALL}">{head.html}</summary>'
    return Fragment(f"{opening}{summed}{html}</details>", f"{head.text}\n{below.text}")


def figures(found: Iterable[tuple[str, str, str]], gap: int = 22) -> Fragment:
    """Return the figures of a card: what each is, what it reads, and what stands small below it."""
    drawn = "".join(
        '<div style="flex:1 1 84px;min-width:max-content;white-space:nowrap">'
        f'<div style="{TINY}">{shown(label).html}</div>'
        f'<div style="font-size:15px;font-weight:600">{shown(value).html}</div>'
        f"{block(TINY, below).html}</div>"
        for label, value, below in found
    )
    style = f"display:flex;flex-wrap:wrap;gap:8px {gap}px;margin:9px 0 0"
    return Fragment(f'<div style="{style}">{drawn}</div>')


def root(style: str) -> str:
    """Return the opening tag of an outermost element: in the page's own letters, and no formula."""
    return f'<div class="{AS_TEXT}" style="{style};{LETTERS}">'


_WIDE = "box-sizing:border-box;max-width:860px;margin:2px 0;font-size:13px;line-height:1.45"
BOX = root(_WIDE)
FRAMED = root(
    f"{_WIDE};padding:10px 14px 11px;border:1px solid var(--jp-border-color2,rgba(128,128,128,.35));"
    "border-radius:6px"
)
CHART = root("max-width:860px;font:11px/1.5 sans-serif")


def headed(name: Content, *told: Content, at_right: Content = "") -> Fragment:
    """Return a heading: what this is, and of what."""
    about = words(*(_tag("span", QUIET, one) for one in told if one))
    right = _tag("span", "margin-left:auto", at_right) if at_right else NOTHING
    return block(
        "display:flex;flex-wrap:wrap;align-items:baseline;gap:0 10px;margin:0 0 6px;overflow-wrap:anywhere",
        _tag("strong", "font-size:15px", name),
        about,
        right,
    )


def section(title: Content, about: Content, *inside: Fragment) -> Fragment:
    """Return a part of a whole with its own title, such as a device."""
    head = block("margin:0 0 4px", strong(title), quiet(about) if about else "")
    told = "\n".join(one.text for one in (head, *inside) if one.text)
    html = f'<div style="margin:0 0 10px">{head.html}{"".join(one.html for one in inside)}</div>'
    return Fragment(html, told, is_section=True)


def bundle(
    heading: Fragment, *inside: Fragment, title: str = "", frame: str = FRAMED
) -> dict[str, str]:
    """Return a framed output by MIME type.

    Parameters
    ----------
    heading : Fragment
        Of the frame; plain text does without it.
    inside : Fragment
    title : str, optional
        The first line of the plain text.
    frame : str, optional
        The opening tag.
    """
    told = [Fragment("", title)] if title else []
    told += [one for one in inside if one.text]
    text = "".join(
        f"{_between(told[at - 1], one) if at else ''}{one.text}" for at, one in enumerate(told)
    )
    html = "".join(one.html for one in (heading, *inside))
    return {"text/html": f"{frame}{html}</div>", "text/plain": text}


def _between(above: Fragment, below: Fragment) -> str:
    return "\n\n" if above.is_section and below.is_section else "\n"


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
        f'fill-opacity=".75"><text {place} y="11">{shown(text).html}</text></svg>'
    )


def bar(
    pieces: Iterable[tuple[str, float, str]],
    full: float,
    said: str,
    *,
    height: int = 16,
    over: str = "",
    style: str = "",
) -> str:
    """Return a bar of parts, one after the other.

    Parameters
    ----------
    pieces : iterable of (str, float, str)
        Colour and size of each, and what pointing at it says.
    full : float
        The size that is as long as the bar.
    said : str
        What the bar says to who does not see it; empty for nothing.
    over : str, optional
        SVG drawn over it.
    """
    left, boxes = 0.0, []
    for colour, size, tip in pieces:
        boxes.append(
            f'<rect x="{100 * left / full:.2f}%" width="{100 * size / full:.2f}%" height="{height}" '
            f'fill="{colour}"><title>{shown(tip).html}</title></rect>'
        )
        left += size
    role = f'role="img" aria-label="{shown(said).html}"' if said else 'aria-hidden="true"'
    # JupyterLab gives every svg `height: auto`; only an inline style stands above that.
    # In grey print parts are alike: a thin line keeps them apart.
    return drawing(
        f'<svg {role} width="100%" height="{height}" '
        f'style="display:block;width:100%;height:{height}px;max-width:none{style}">'
        f'<g stroke="#000" stroke-opacity=".3" stroke-width=".7">{"".join(boxes)}</g>{over}</svg>'
    )


def size_text(size: float) -> str:
    """Return bytes as text, in which a few are not told as none."""
    return f"<{format_bytes(0.01 * MIB)}" if 0 < size < 0.005 * MIB else format_bytes(size)
