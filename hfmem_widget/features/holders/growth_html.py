"""What names hold more than before, as a table: HTML that needs no script, and plain text."""

from __future__ import annotations

from hfmem_widget.sources.heap.model import Grown, Growth
from hfmem_widget.text import MIB, format_count, format_duration
from hfmem_widget.view import html as kit
from hfmem_widget.view.table import Column, Row, table

MOST_ROWS = 25
NOTHING = "Nothing grew."


def growth_bundle(growth: Growth, *, least: float = MIB) -> dict[str, str]:
    """Return a table for each device by MIME type.

    Parameters
    ----------
    growth : Growth
    least : float, optional
        Rows that grew by fewer bytes are told as one.
    """
    devices = list(dict.fromkeys(one.device for one in growth.rows))
    return kit.bundle(
        kit.headed("memholders", "growth since the last %memholders"),
        *(
            _section(key, [one for one in growth.rows if one.device == key], least)
            for key in devices
        ),
        *([] if devices else [kit.line(NOTHING)]),
        kit.note(_below(growth)),
    )


def _below(growth: Growth) -> str:
    told = [f"Other variables hold {kit.size_text(growth.freed)} less"] if growth.freed else []
    told += [f"searched in {format_duration(growth.seconds)}", growth.bound]
    text = "; ".join(filter(None, told))
    return f"{text[:1].upper()}{text[1:]}"


def _shown(rows: list[Grown], least: float) -> tuple[list[Grown], str]:
    shown = [one for one in rows if one.bytes >= least][:MOST_ROWS]
    others = len(rows) - len(shown)
    names = "name" if others == 1 else "names"
    return shown, f"{format_count(others)} other {names}" if others else ""


def _facts(row: Grown) -> str:
    kind = "" if row.kind == "tensors" else f"{row.kind} \u00b7 "
    tensors = "tensor" if row.tensors == 1 else "tensors"
    more = f"{format_count(row.tensors)} more {tensors} \u00b7 " if row.tensors > 0 else ""
    return f"{kind}{more}{kit.size_text(row.now)} in total"


def _section(device: str, grown: list[Grown], least: float) -> kit.Fragment:
    shown, others = _shown(grown, least)
    rows = [
        Row((kit.code(one.path), f"+{kit.size_text(one.bytes)}"), facts=_facts(one))
        for one in shown
    ]
    if others:
        size = sum(one.bytes for one in grown[len(shown) :])
        rows.append(Row((others, f"+{kit.size_text(size)}"), is_quiet=True))
    columns = (Column("held by"), Column("more than before", is_bold=True))
    return kit.section(device, "", table(columns, rows, names_last=True, fills=True))
