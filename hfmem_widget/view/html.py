"""The elements of cards and tables, described once and shown as HTML and as plain text.

Text from outside becomes a `Fragment` here alone: made plain, capped and escaped.
But for `drawn_by_script` the HTML has inline styles, no script, and no class but MathJax's: JupyterLab's
sanitizer, nbconvert and GitHub keep it as it is.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path

from hfmem_widget.text import MIB, format_bytes, plain

AS_TEXT = "mathjax_ignore tex2jax_ignore"
"""Within these classes MathJax 3 (JupyterLab, Notebook) and 2 (nbviewer, nbconvert) find no formulas.

Entities do not help: they are dollars again when MathJax reads the page.
"""

FAINT = "opacity:.72"
SMALL = f"font-size:11.5px;{FAINT}"
TINY = f"font-size:11px;{FAINT}"

NAME_LENGTH = 120
PATH_LENGTH = 140
SHORT = 24  # letters that fit on a line of every page
NOTE_LENGTH = 500  # characters of one of our sentences at most: it may hold labels of the user's

UNBROKEN = "\u00a0"
SQUARE, BULLET = "\u25a0", "\u25cf"


def of_page(vscode: str, jupyter: str, otherwise: str) -> str:
    """Return the page's value of a style: VS Code's variable, else JupyterLab's, else our own."""
    # VS Code's first, since ipywidgets' style sheets bring JupyterLab's light ones to all its themes.
    return f"var(--vscode-{vscode},var(--jp-{jupyter},{otherwise}))"


_CODE = "font-size:.95em;background:none;padding:0;color:inherit;overflow-wrap:anywhere"


@dataclass(frozen=True, slots=True)
class Fragment:
    """A piece of an output."""

    html: str  # markup that this kit has made
    text: str = ""  # the same as plain text; empty for a drawing
    is_section: bool = False  # plain text has a blank line between two of these

    def __bool__(self) -> bool:
        return bool(self.html or self.text)


NOTHING = Fragment("")
Content = str | Fragment


def shown(content: Content, limit: int = NAME_LENGTH) -> Fragment:
    """Return a text as a fragment, plain and escaped; a fragment as it is."""
    if isinstance(content, Fragment):
        return content
    text = plain(content, limit)
    return Fragment(escape(text, quote=True), text)


def unbroken(content: Content) -> Fragment:
    """Return words that stay in one line, also where styles are removed; markup unchanged."""
    once = shown(content)
    return once if "<" in once.html else Fragment(once.html.replace(" ", UNBROKEN), once.text)


def whole(html: str, text: str) -> str:
    """Return markup that is broken only where it is wider than the page."""
    if len(text) <= SHORT and "<" not in html:
        return html.replace(" ", UNBROKEN)
    return f'<span style="display:inline-block">{html}</span>'


def words(*contents: Content, between: str = " ", limit: int = NAME_LENGTH) -> Fragment:
    """Return contents in a row, without empty ones."""
    fragments = [shown(content, limit) for content in contents if content]
    text = between.join(fragment.text for fragment in fragments if fragment.text)
    return Fragment(escape(between).join(fragment.html for fragment in fragments), text)


def _tag(name: str, style: str, *contents: Content, limit: int = NAME_LENGTH) -> Fragment:
    inside = words(*contents, limit=limit)
    styled = f' style="{style}"' if style else ""
    return Fragment(f"<{name}{styled}>{inside.html}</{name}>", inside.text)


def strong(content: Content) -> Fragment:
    """Return a content in bold."""
    return _tag("strong", "", content)


def code(text: Content, limit: int = PATH_LENGTH, style: str = "") -> Fragment:
    """Return a name or a path as code, which MathJax leaves alone."""
    return _tag("code", f"{_CODE};{style}" if style else _CODE, text, limit=limit)


def faint(*contents: Content, style: str = FAINT) -> Fragment:
    """Return contents in a fainter ink."""
    return _tag("span", style, *contents)


def marked(colour: str, content: Content = "", sign: str = SQUARE) -> Fragment:
    """Return a content behind a coloured sign, which plain text and screen readers do not have."""
    inside = shown(content)
    square = f'<span aria-hidden="true" style="color:{colour}">{sign}</span>'
    return Fragment(f"{square}{UNBROKEN}{inside.html}" if inside else square, inside.text)


def block(style: str, *contents: Content, limit: int = NOTE_LENGTH) -> Fragment:
    """Return contents as a block of its own style; nothing if there are none."""
    inside = words(*contents, limit=limit)
    return _tag("div", style, inside) if inside else NOTHING


def line(*contents: Content) -> Fragment:
    """Return a sentence in the size of the figures."""
    return block("margin:4px 0 0", *contents)


def note(*contents: Content, limit: int = NOTE_LENGTH) -> Fragment:
    """Return a small sentence below."""
    return block(f"margin:5px 0 0;{SMALL}", *contents, limit=limit)


def notes(texts: Iterable[Content]) -> list[Fragment]:
    """Return a note for each text."""
    return list(map(note, texts))


def phrases(contents: Sequence[Content]) -> Fragment:
    """Return phrases with dots between them, each broken only where it is wider than the page."""
    *dotted, last = [shown(content) for content in contents if content] or [NOTHING]
    html = [whole(f"{each.html} \u00b7", each.text) for each in dotted]
    html.append(whole(last.html, last.text) if dotted else last.html)
    return Fragment(" ".join(html), " \u00b7 ".join(each.text for each in (*dotted, last)))


def keys(contents: Iterable[Content], style: str = "") -> Fragment:
    """Return the meanings of a drawing's colours."""
    html = " ".join(f"<span>{shown(content).html}</span>" for content in contents if content)
    styled = f"display:flex;flex-wrap:wrap;gap:0 1em{style}"
    return Fragment(f'<div style="{styled}">{html}</div>') if html else NOTHING


def fold(summary: Content, *inside: Content, style: str = "", is_open: bool = False) -> Fragment:
    """Return contents behind a click on their summary; in plain text they are below it."""
    head, below = shown(summary), words(*inside, between="\n")
    styled = f' style="{style}"' if style else ""
    html = "".join(shown(content).html for content in inside)
    opening = f"<details{' open' * is_open}{styled}>"
    summed = f'<summary style="cursor:pointer;{SMALL}">{head.html}</summary>'
    return Fragment(f"{opening}{summed}{html}</details>", f"{head.text}\n{below.text}")


def drawn_by_script(name: str, data: str, without: Fragment, script: str = "") -> Fragment:
    """Return an element that a script draws from its data, with contents for pages without scripts."""
    return Fragment(f'<div {name}="{escape(data)}">{without.html}</div>{script}', without.text)


@cache
def built(name: str) -> str:
    """Return a file of the built front end; raise `FileNotFoundError` where it was not built."""
    return (Path(__file__).parents[1] / "static" / name).read_text(encoding="utf-8")


def script(name: str) -> str:
    """Return a script that an output carries with it; empty where the front end was not built."""
    try:
        code = built(f"{name}.js").replace("</", "<\\/")
    except FileNotFoundError:
        return ""
    return f"<script>{code}</script>"


def folds(*all_folds: tuple[Content, Sequence[Fragment]]) -> Fragment:
    """Return folds beside each other, each as its summary and its contents; none without contents."""
    full = ((name, inside) for name, inside in all_folds if any(inside))
    drawn = [fold(name, *inside, style="max-width:100%") for name, inside in full]
    if not drawn:
        return NOTHING
    rule = "border-top:1px solid #80808040"
    style = f"display:flex;flex-wrap:wrap;gap:2px 22px;margin:9px 0 0;padding:6px 0 0;{rule}"
    return Fragment(_tag("div", style, *drawn).html)


def figures(shown_figures: Iterable[tuple[str, str, str]]) -> Fragment:
    """Return the figures of a card, each as its label, its value, and the small text below."""
    drawn = "".join(
        f"<div>{block(FAINT, label).html}{_tag('strong', 'font-size:14px', value).html}"
        f"{block(FAINT, below).html}</div>"
        for label, value, below in shown_figures
    )
    columns = "repeat(auto-fit,minmax(min(100%,146px),1fr))"
    style = f"display:grid;grid-template-columns:{columns};gap:8px 12px"
    # A width, since a fold is as wide as its contents, and a grid as narrow as it may be.
    style += ";margin:9px 0 0;width:800px;max-width:100%;font-size:11px"
    return Fragment(f'<div style="{style}">{drawn}</div>')


def root(style: str) -> str:
    """Return the opening tag of an outermost element, with the page's own font and without formulas."""
    # With a background, since that of an Output widget is white in every theme of VS Code.
    font = of_page("font-family", "ui-font-family", "system-ui,sans-serif")
    ink = of_page("editor-foreground", "ui-font-color1", "inherit")
    return (
        f'<div class="{AS_TEXT}" style="{style};font-family:{font};color:{ink};'
        "background:var(--vscode-editor-background,none);font-variant-numeric:tabular-nums;"
        'overflow-wrap:anywhere">'
    )


_WIDE = "box-sizing:border-box;max-width:860px;margin:2px 0;font-size:13px;line-height:1.45"
BOX = root(_WIDE)
FRAMED = root(
    f"{_WIDE};padding:10px 14px 11px;border-radius:6px;"
    f"border:1px solid {of_page('panel-border', 'border-color2', '#80808059')}"
)
CHART = root("max-width:860px;font:11px/1.5 sans-serif")


def headed(name: Content, *about: Content, at_right: Content = "") -> Fragment:
    """Return a heading: a name, and what it is about."""
    return block(
        "display:flex;flex-wrap:wrap;align-items:baseline;gap:0 10px;margin:0 0 6px",
        _tag("strong", "font-size:15px", name),
        words(*(faint(content) for content in about if content)),
        _tag("span", "margin-left:auto", at_right) if at_right else "",
    )


def section(title: Content, about: Content, *inside: Fragment) -> Fragment:
    """Return a part of an output with its own title, such as a device."""
    parts = (block("margin:0 0 4px", strong(title), faint(about) if about else ""), *inside)
    html = "".join(part.html for part in parts)
    text = "\n".join(part.text for part in parts if part.text)
    return Fragment(f'<div style="margin:0 0 10px">{html}</div>', text, is_section=True)


def bundle(heading: Fragment, *inside: Fragment, title: str = "") -> dict[str, str]:
    """Return a framed output by MIME type; plain text has the title in place of the heading."""
    text, above = title, NOTHING
    for part in inside:
        if part.text:
            apart = "\n" * (1 + (above.is_section and part.is_section)) if text else ""
            text, above = f"{text}{apart}{part.text}", part
    html = "".join(part.html for part in (heading, *inside))
    return {"text/html": f"{FRAMED}{html}</div>", "text/plain": text}


def drawing(svg: str) -> str:
    """Return a drawing that leaves no words where it is removed."""
    # JupyterLab removes the drawings of an untrusted notebook, and leaves their words.
    return f'<div style="font-size:0">{svg}</div>'


def caption(text: str, *, at_right: bool = False) -> str:
    """Return small words about a drawing, which are removed together with drawings."""
    place = 'x="100%" text-anchor="end"' if at_right else 'x="0"'
    return drawing(
        '<svg style="display:block;width:100%;height:15px;font-size:11px" fill="currentColor" '
        f'fill-opacity=".75"><text {place} y="11">{shown(text).html}</text></svg>'
    )


def bar(
    pieces: Iterable[tuple[str, float, str]],  # the colour, the size and the tip of each
    full: float,  # the size that is as long as the bar
    label: str,  # for screen readers, if any
    *,
    height: int = 16,
    over: str = "",  # SVG drawn over it
    style: str = "",
) -> str:
    """Return a bar of parts, one after the other."""
    left, boxes = 0.0, ""
    for colour, size, tip in pieces:
        boxes += (
            f'<rect x="{round(100 * left / full, 2):g}%" width="{round(100 * size / full, 2):g}%" '
            f'height="{height}" fill="{colour}"><title>{shown(tip).html}</title></rect>'
        )
        left += size
    role = f'role="img" aria-label="{shown(label).html}"' if label else 'aria-hidden="true"'
    # JupyterLab gives every svg `height: auto`, which only an inline style overrides.
    # Thin lines separate the parts in grey print.
    return drawing(
        f'<svg {role} style="display:block;width:100%;height:{height}px{style}">'
        f'<g stroke="#0000004d" stroke-width=".7">{boxes}</g>{over}</svg>'
    )


def size_text(size: float) -> str:
    """Return bytes as text; a few read as "<0.01 MiB", not as none."""
    return f"<{format_bytes(0.01 * MIB)}" if 0 < size < 0.005 * MIB else format_bytes(size)


def below(lead: Mapping[str, str] | None, html: str, texts: Sequence[str]) -> dict[str, str]:
    """Return a card below its lead, if it has one."""
    above, lines = (lead["text/html"], [lead["text/plain"]]) if lead else ("", [])
    return {"text/html": f"{above}{html}", "text/plain": "\n".join((*lines, *texts))}
