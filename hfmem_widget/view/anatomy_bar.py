"""The anatomy as one bar a moment, all of one device on one scale: inline SVG."""

from __future__ import annotations

from collections.abc import Sequence

from hfmem_widget.analysis.parts import LABELS
from hfmem_widget.session import Anatomy
from hfmem_widget.text import format_bytes
from hfmem_widget.view import palette
from hfmem_widget.view.anatomy_table import moment_text
from hfmem_widget.view.chart.scene import CAPACITY_FROM
from hfmem_widget.view.html import bar, caption

PROCESS = tuple(LABELS)[: tuple(LABELS).index("context") + 1]
BESIDE = ("driver", "others", "unexplained")

BESIDE_UP_TO = 2.0
"""Who else uses the device is drawn where it leaves the process this share of the bar, as 1 to 2."""


def drawn_parts(anatomies: Sequence[Anatomy]) -> tuple[str, ...]:
    """Return the names of the parts that bars of these anatomies show.

    Those of the process always; others where they would not squeeze it; free memory where little is left.
    """
    ours, beside = _longest(anatomies, PROCESS), _longest(anatomies, (*PROCESS, *BESIDE))
    names = PROCESS
    if not 0 < ours * BESIDE_UP_TO < beside:
        names = (*names, *BESIDE)
        if beside >= CAPACITY_FROM * anatomies[0].device.total or not beside:
            names = (*names, "free")
    return names


def bars_html(anatomies: Sequence[Anatomy]) -> str:
    """Return a bar for each moment of one device; empty where nothing is known."""
    names = drawn_parts(anatomies)
    full = _longest(anatomies, names)
    if not full > 0:
        return ""
    rows = "".join(
        '<div style="display:flex;flex-wrap:wrap;align-items:center;gap:0 10px;margin:0 0 4px">'
        f'<span style="flex:0 0 122px">{caption(moment_text(one))}</span> '
        f'<span style="flex:1 1 180px;min-width:0">{_bar(one, names, full)}</span></div>'
        for one in anatomies
    )
    total = anatomies[0].device.total
    scale = "" if "free" in names else _scale(full, total)
    return f"<div>{rows}{scale}</div>"


def _scale(full: float, total: float) -> str:
    told = f"full width: {format_bytes(full)}"
    if total > 0:
        told += f" of {format_bytes(total)}"
    return caption(told, at_right=True)


def _longest(anatomies: Sequence[Anatomy], names: Sequence[str]) -> float:
    return max(sum(part.bytes for part in one.parts if part.name in names) for one in anatomies)


def _bar(anatomy: Anatomy, names: Sequence[str], full: float) -> str:
    pieces = (
        (palette.PARTS[part.name], part.bytes, f"{part.label} {format_bytes(part.bytes)}")
        for part in anatomy.parts
        if part.name in names
    )
    return bar(
        pieces,
        full,
        f"{anatomy.device.key} {moment_text(anatomy)}: allocated {format_bytes(anatomy.allocated)}",
    )
