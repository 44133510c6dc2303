"""What names hold more than before, as a table: HTML that needs no script, and plain text."""

from __future__ import annotations

from html import escape

from hfmem_widget.sources.heap.model import Grown, Growth
from hfmem_widget.text import MIB, format_count, format_duration, plain
from hfmem_widget.view.root import headed
from hfmem_widget.view.table_parts import (
    PATH_LENGTH,
    SMALL,
    TABLE,
    code,
    head_html,
    row_html,
    size_text,
)

MOST_ROWS = 25
NOTHING = "no name holds more than before"


def growth_bundle(growth: Growth, *, least: float = MIB) -> dict[str, str]:
    """Return a table for each device by MIME type.

    Parameters
    ----------
    growth : Growth
    least : float, optional
        Rows that grew by fewer bytes are told as one.
    """
    devices = list(dict.fromkeys(one.device for one in growth.rows))
    groups = {device: [one for one in growth.rows if one.device == device] for device in devices}
    html = "".join(_group_html(device, rows, least) for device, rows in groups.items())
    text = "\n\n".join(_group_text(device, rows, least) for device, rows in groups.items())
    below = _below(growth)
    return {
        "text/html": headed("memholders", "since the last time")
        + f'{html or escape(NOTHING)}<div style="{SMALL}">{escape(below)}</div></div>',
        "text/plain": f"{text or NOTHING}\n{below}",
    }


def _below(growth: Growth) -> str:
    told = [f"other names hold {size_text(growth.freed)} less"] if growth.freed else []
    told += [f"looked for in {format_duration(growth.seconds)}", growth.bound]
    return "; ".join(filter(None, told))


def _shown(rows: list[Grown], least: float) -> tuple[list[Grown], str]:
    shown = [one for one in rows if one.bytes >= least][:MOST_ROWS]
    others = len(rows) - len(shown)
    names = "name" if others == 1 else "names"
    return shown, f"{format_count(others)} other {names}" if others else ""


def _facts(row: Grown) -> str:
    kind = "" if row.kind == "tensors" else f"{row.kind} \u00b7 "
    tensors = "tensor" if row.tensors == 1 else "tensors"
    more = f"{format_count(row.tensors)} more {tensors} \u00b7 " if row.tensors > 0 else ""
    return f"{kind}{more}{size_text(row.now)} in all"


def _group_html(device: str, rows: list[Grown], least: float) -> str:
    shown, others = _shown(rows, least)
    body = "".join(
        row_html(
            f'{code(one.path)}<div style="{SMALL}">{escape(_facts(one))}</div>',
            f"+{size_text(one.bytes)}",
            strong=True,
        )
        for one in shown
    )
    if others:
        size = sum(one.bytes for one in rows[len(shown) :])
        body += row_html(escape(others), f"+{size_text(size)}")
    return (
        f'<div style="margin:0 0 8px"><strong>{escape(plain(device))}</strong>'
        f"{TABLE}{head_html('held by', 'more than before')}<tbody>{body}</tbody></table></div></div>"
    )


def _group_text(device: str, rows: list[Grown], least: float) -> str:
    shown, others = _shown(rows, least)
    lines = [
        (f"+{size_text(one.bytes)}", f"{plain(one.path, PATH_LENGTH)}  ({_facts(one)})")
        for one in shown
    ]
    if others:
        size = sum(one.bytes for one in rows[len(shown) :])
        lines.append((f"+{size_text(size)}", others))
    width = max((len(size) for size, _ in lines), default=0)
    return "\n".join((plain(device), *(f"{size:>{width}}  {text}" for size, text in lines)))
