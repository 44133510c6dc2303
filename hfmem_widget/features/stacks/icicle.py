"""A picture of what was live: source lines, the modules they ran, and the operators in those, by their bytes.

Plain HTML boxes, which survive without script and kernel, and take the page's colours. Those that are too
narrow to be read are one grey box at the right of their parent, so that widths always add up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from hfmem_widget.session.stacks import LivePeak, Site
from hfmem_widget.text import format_bytes, plain
from hfmem_widget.view.html import shown

NARROWEST = 0.006  # of the whole width; narrower boxes are put together
LEGIBLE = 0.03  # of the whole width; narrower boxes have no name on them
ROW = 22
KEPT_NAME = 60

TINTS = {
    "before": ("before the recording", "rgba(134,140,148,.34)"),
    "forward": ("forward", "rgba(230,159,0,.42)"),
    "backward": ("backward", "rgba(0,158,115,.40)"),
    "optimizer": ("optimizer step", "rgba(86,180,233,.46)"),
    "elsewhere": ("elsewhere", "rgba(204,121,167,.38)"),
    "": ("smaller", "rgba(128,128,128,.16)"),
}
"""What each kind is called, and its colour: thin enough for the page's own ink in both themes."""

Key = Callable[[Site], str]
LEVELS: tuple[Key, ...] = (
    lambda site: site.line,
    lambda site: site.module,
    lambda site: site.operator,
)


def icicle_html(peak: LivePeak) -> str:
    """Return the picture and its key; empty if nothing was live."""
    if not peak.bytes:
        return ""
    kinds = [kind for kind in TINTS if kind and any(site.kind == kind for site in peak.sites)]
    key = " ".join(
        '<span style="white-space:nowrap;margin-right:10px"><span aria-hidden="true" style="display:'
        f"inline-block;width:10px;height:10px;background:{TINTS[kind][1]};"
        f'margin-right:4px"></span>{TINTS[kind][0]}</span>'
        for kind in kinds
    )
    levels = "line \u203a module \u203a operator"
    drawn = _boxes(peak.sites, peak.bytes, peak.bytes, 0)
    return (
        f'<div role="img" aria-label="What was live at the peak, as boxes; the tables below list the same" '
        f'style="margin:4px 0 0;font-size:11px;line-height:{ROW - 1}px;height:{ROW * len(LEVELS)}px;'
        'overflow:hidden">'
        f'<div style="display:flex;width:100%">{drawn}</div></div>'
        f'<div style="margin:3px 0 5px;font-size:11.5px;opacity:.85">{key}'
        f'<span style="white-space:nowrap;opacity:.8">{levels}</span></div>'
    )


def _boxes(sites: Sequence[Site], parent: int, whole: int, level: int) -> str:
    """Return the boxes of one level within their parent, and theirs within them."""
    if level == len(LEVELS):
        return ""
    groups: dict[str, list[Site]] = {}
    for site in sites:
        groups.setdefault(LEVELS[level](site), []).append(site)
    sizes = {name: sum(site.bytes for site in group) for name, group in groups.items()}
    boxes, narrow = [], 0
    for name, size in sorted(sizes.items(), key=lambda item: -item[1]):
        if size < NARROWEST * whole:
            narrow += size
            continue
        group = groups[name]
        inside = "" if group[0].kind == "before" else _boxes(group, size, whole, level + 1)
        label = name if size >= LEGIBLE * whole else ""
        kinds: Counter[str] = Counter()
        for site in group:
            kinds[site.kind] += site.bytes
        kind = max(kinds, key=kinds.__getitem__)
        boxes.append(_box(label, _tip(name, size), 100 * size / parent, kind, inside))
    if narrow:
        boxes.append(_box("", _tip("smaller", narrow), 100 * narrow / parent, "", ""))
    return "".join(boxes)


def _tip(name: str, size: int) -> str:
    return shown(f"{plain(name, KEPT_NAME)}: {format_bytes(size)}").html


def _box(label: str, tip: str, percent: float, kind: str, inside: str) -> str:
    below = f'<div style="display:flex;width:100%">{inside}</div>' if inside else ""
    return (
        f'<div style="width:{percent:.3f}%;min-width:0;overflow:hidden;box-sizing:border-box">'
        f'<div title="{tip}" style="height:{ROW - 1}px;margin:0 1px 1px 0;padding:0 4px;'
        "overflow:hidden;white-space:nowrap;text-overflow:ellipsis;"
        f'background:{TINTS[kind][1]}">{shown(label, KEPT_NAME).html}</div>{below}</div>'
    )
