"""What a card says of the parts: what the peak was made of, and what stayed of it."""

from __future__ import annotations

from hfmem_widget.analysis.anatomy import devices_with_parts, end_of, peak_of
from hfmem_widget.analysis.facts import active_devices, allocated_peak
from hfmem_widget.analysis.parts import LABELS, OF_ALLOCATED
from hfmem_widget.session import Anatomy, Session, Span
from hfmem_widget.text import number, unit_for
from hfmem_widget.view import html as kit
from hfmem_widget.view import palette

OF_USE = tuple(name for name in OF_ALLOCATED if name != "rounding")
PASSING = {"activations"}
"""What nobody expects to stay."""

ZERO = "0.00"


def parts_html(session: Session, span: Span) -> str:
    """Return what the memory was for at a span's peak, and at its end where that is something else.

    Of several devices it is the one whose peak was the highest. Empty where nothing was found.
    """
    active = active_devices(session, span)
    known = [device for device in devices_with_parts(session) if device in active]
    if not known:
        return ""
    device = max(known, key=lambda one: allocated_peak(session, span, one.key).value)
    peak, end = peak_of(session, span, device), end_of(session, span, device)
    where = f"{device.key} " if len(active) > 1 else ""
    told = [_line(f"{where}{peak.moment}", peak)]
    if span.after is not None and _kinds(end) - PASSING != _kinds(peak) - PASSING:
        told.append(_line(f"{where}{end.moment}", end))
    return kit.block("margin:8px 0 0;font-size:12px", *told).html


def _shown(anatomy: Anatomy) -> list[tuple[str, str]]:
    """Return names and figures of what does not read as nothing beside the whole."""
    divisor, _ = unit_for(anatomy.allocated)
    figures = ((name, anatomy.bytes(name)) for name in OF_USE)
    told = [(name, number(value, divisor)) for name, value in figures if value > 0]
    return [(name, text) for name, text in told if text != ZERO]


def _kinds(anatomy: Anatomy) -> set[str]:
    return {name for name, _ in _shown(anatomy)}


def _line(moment: str, anatomy: Anatomy) -> kit.Fragment:
    """Return the parts in one row that may break between them; the unit is said once."""
    shown = _shown(anatomy)
    if not shown:
        return kit.NOTHING
    _, unit = unit_for(anatomy.allocated)
    told = [
        kit.marked(palette.PARTS[name], f"{LABELS[name]} {text}" + ("" if at else f" {unit}"))
        for at, (name, text) in enumerate(shown)
    ]
    return kit.block("margin:0", kit.words(kit.quiet(f"{moment}:"), kit.phrases(told)))
