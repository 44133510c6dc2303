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

DRAWN_UP_TO = 1.0
"""A request up to so many times all there is stands in the bar; a larger one would leave no room for it."""

_HEIGHT = 18
_INSET = 2


def told_parts(incident: Incident) -> tuple[Part, ...]:
    """Return the parts: the device's, or of what this process has mapped where that met a limit."""
    parts = incident.anatomy.parts if incident.anatomy is not None else ()
    if not (parts and incident.met_a_limit):
        return parts
    heap = tuple(one for one in parts if one.name in OF_ALLOCATED)
    beside = incident.host.used - sum(one.bytes for one in heap)
    return (*heap, Part("cache", "mapped outside the heap", beside)) if beside > 0 else heap


def drawn_parts(incident: Incident) -> tuple[Part, ...]:
    """Return what the bar shows: all of the device, or what counts against a limit on this process."""
    parts = told_parts(incident)
    if incident.allowed > 0:
        return tuple(one for one in parts if one.name in OF_THE_PROCESS)
    return tuple(one for one in parts if one.name != "free")


def bar_html(incident: Incident) -> str:
    """Return the bar with its scale; empty where the parts or the capacity are not known."""
    parts, there_is = drawn_parts(incident), _capacity(incident)
    taken = sum(one.bytes for one in parts)
    if not (parts and there_is > 0):
        return ""
    asked = incident.asked if incident.asked <= DRAWN_UP_TO * there_is else 0.0
    full = max(there_is, taken + asked)
    pieces = (
        (palette.PARTS[one.name], one.bytes, f"{one.label} {size_text(one.bytes)}") for one in parts
    )
    end = 100 * there_is / full
    # Drawn over the rest, in the colour of text: it is what did not give way.
    limit = (
        f'<line x1="{end:.2f}%" x2="{end:.2f}%" y1="0" y2="{_HEIGHT}" stroke="currentColor" '
        f'stroke-width="{2 if end < 99.9 else 0}"/>'
    )
    drawn = bar(
        pieces,
        full,
        f"{_whose(incident)}: {size_text(taken)} used of {size_text(there_is)}",
        height=_HEIGHT,
        over=(_request(taken, asked, full) if asked else "") + limit,
        style=f";background:{palette.PARTS['free']}",
    )
    return drawn + _scale(incident, there_is, asked, overshoots=full > there_is)


def _capacity(incident: Incident) -> float:
    if incident.limit > 0:
        return incident.limit
    anatomy = incident.anatomy
    whole = sum(one.bytes for one in anatomy.parts) if anatomy is not None else 0.0
    return max(whole, incident.capacity) if incident.capacity > 0 else whole


def _request(left: float, asked: float, full: float) -> str:
    return (
        f'<rect x="{100 * left / full:.2f}%" y="{_INSET / 2}" width="{100 * asked / full:.2f}%" '
        f'height="{_HEIGHT - _INSET}" fill="none" stroke="{palette.BAD}" stroke-width="{_INSET}" '
        f'stroke-dasharray="4 3"><title>requested {size_text(asked)}</title></rect>'
    )


def _whose(incident: Incident) -> str:
    if incident.limit > 0:
        return "limit of this process"
    return "this machine" if incident.on_the_host else incident.device.key


def _scale(incident: Incident, there_is: float, asked: float, *, overshoots: bool) -> str:
    told = [f"{_whose(incident)}: {size_text(there_is)}"]
    if asked:
        end = ", past the end (the line)" if overshoots else ""
        told.insert(0, f"dashed: the request{end}")
    return (
        f'<div style="display:flex;flex-wrap:wrap;justify-content:space-between;gap:0 12px;font-size:11px;'
        f'{QUIET}">{"".join(f"<span>{shown(one).html}</span>" for one in told)}</div>'
    )
