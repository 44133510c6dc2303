"""A device when it ran out of memory, as one bar: its parts, its end, and the request that did not fit."""

from __future__ import annotations

from hfmem_widget.analysis.parts import LABELS, OF_ALLOCATED
from hfmem_widget.features.oom.model import Incident
from hfmem_widget.session import Part
from hfmem_widget.text import size_text
from hfmem_widget.view import palette
from hfmem_widget.view.html import QUIET, bar, shown

OF_THE_PROCESS = tuple(LABELS)[: tuple(LABELS).index("cache") + 1]
"""What counts against a limit on this process: all that PyTorch has reserved."""

_HEIGHT = 18
_INSET = 2


def parts_of(incident: Incident) -> tuple[Part, ...]:
    """Return the parts of the device, or those of what this process has mapped if that met a limit."""
    parts = incident.anatomy.parts if incident.anatomy is not None else ()
    if not (parts and incident.met_a_limit):
        return parts
    heap = tuple(part for part in parts if part.name in OF_ALLOCATED)
    beside = incident.host.used - sum(part.bytes for part in heap)
    return (*heap, Part("cache", "mapped outside the heap", beside)) if beside > 0 else heap


def drawn_parts(incident: Incident) -> tuple[Part, ...]:
    """Return what the bar shows: all of the device, or what counts against a limit on this process."""
    parts = parts_of(incident)
    if incident.allowed > 0:
        return tuple(part for part in parts if part.name in OF_THE_PROCESS)
    return tuple(part for part in parts if part.name != "free")


def bar_html(incident: Incident) -> str:
    """Return the bar with its scale; empty if the parts or the capacity are unknown."""
    parts, there_is = drawn_parts(incident), incident.limit
    if not there_is > 0:
        whole = sum(part.bytes for part in incident.anatomy.parts) if incident.anatomy else 0.0
        there_is = max(whole, incident.capacity if incident.capacity > 0 else 0.0)
    if not (parts and there_is > 0):
        return ""
    taken = sum(part.bytes for part in parts)
    # A larger request would leave no room for the parts.
    asked = incident.asked if incident.asked <= there_is else 0.0
    full = max(there_is, taken + asked)
    end = 100 * there_is / full
    # Drawn over the rest, in the colour of text: it is what did not give way.
    over = (
        f'<line x1="{end:.2f}%" x2="{end:.2f}%" y1="0" y2="{_HEIGHT}" stroke="currentColor" '
        f'stroke-width="{2 if end < 99.9 else 0}"/>'
    )
    whose = "limit of this process" if incident.limit > 0 else incident.place
    scale = [f"{whose}: {size_text(there_is)}"]
    if asked:
        scale.insert(
            0, f"dashed: the request{', past the end (the line)' if full > there_is else ''}"
        )
        over = (
            f'<rect x="{100 * taken / full:.2f}%" y="{_INSET / 2}" width="{100 * asked / full:.2f}%" '
            f'height="{_HEIGHT - _INSET}" fill="none" stroke="{palette.BAD}" stroke-width="{_INSET}" '
            f'stroke-dasharray="4 3"><title>requested {size_text(asked)}</title></rect>{over}'
        )
    drawn = bar(
        (
            (palette.PARTS[part.name], part.bytes, f"{part.label} {size_text(part.bytes)}")
            for part in parts
        ),
        full,
        f"{whose}: {size_text(taken)} used of {size_text(there_is)}",
        height=_HEIGHT,
        over=over,
        style=f";background:{palette.PARTS['free']}",
    )
    return (
        f'{drawn}<div style="display:flex;flex-wrap:wrap;justify-content:space-between;gap:0 12px;'
        f'font-size:11px;{QUIET}">{"".join(f"<span>{shown(text).html}</span>" for text in scale)}</div>'
    )
