"""What holds memory as a table: HTML that needs no script and no kernel, and plain text."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from hfmem_widget.sources.heap.model import Holder, Holders, Remainder
from hfmem_widget.text import MIB, format_count, format_counted, format_duration, plain
from hfmem_widget.view.root import headed
from hfmem_widget.view.table_parts import (
    PATH_LENGTH,
    QUIET,
    RULE,
    SMALL,
    TABLE,
    code,
    head_html,
    row_html,
    size_text,
)

MOST_ROWS = 25
UNEXPLAINED = "not explained by any Python object that was reached"
UNEXPLAINED_ON_THE_HOST = "everything else in this process' heap"


def holders_bundle(holders: Holders, *, least: float = MIB, detail: bool = False) -> dict[str, str]:
    """Return a table for each device by MIME type.

    Parameters
    ----------
    holders : Holders
    least : float, optional
        Rows with fewer bytes are told as one.
    detail : bool, optional
        Whether the biggest parts of each row are told.
    """
    held = [one.device for one in holders.rows]
    devices = list(dict.fromkeys([*held, *(one.device for one in holders.remainders)]))
    groups = [holders.of(device) for device in devices]
    cost = _cost(holders)
    html = "".join(
        _group_html(device, group, least, detail=detail)
        for device, group in zip(devices, groups, strict=True)
    )
    text = "\n\n".join(
        _group_text(device, group, least, detail=detail)
        for device, group in zip(devices, groups, strict=True)
    )
    nothing = "" if devices else "no tensor is held by any name\n"
    return {
        "text/html": headed("memholders")
        + f'{html}{escape(nothing)}<div style="{SMALL}">{escape(cost)}</div></div>',
        "text/plain": f"{text}\n{nothing}{cost}",
    }


def _cost(holders: Holders) -> str:
    objects = format_counted(holders.objects, "object")
    looked = f"{objects} looked at in {format_duration(holders.seconds)}"
    return f"{looked}; {holders.bound}" if holders.bound else looked


def _shown(rows: Sequence[Holder], least: float) -> tuple[list[Holder], str]:
    """Return the rows that are told one by one, and the others in a sentence."""
    shown = [one for one in rows if one.bytes >= least][:MOST_ROWS]
    others = rows[len(shown) :]
    if not others:
        return shown, ""
    names = "name" if len(others) == 1 else "names"
    return shown, f"{format_count(len(others))} smaller {names}"


def _kept(row: Holder) -> str:
    """Return what it is that is kept, such as ``gradients · 146 tensors``."""
    if row.tensors == 1:
        # The one tensor's shape stands beside it.
        return "" if row.kind == "tensors" else row.kind
    kind = "" if row.kind == "tensors" else f"{row.kind} \u00b7 "
    return f"{kind}{format_count(row.tensors)} tensors"


def _biggest(row: Holder) -> str:
    size = "\u00d7".join(map(str, row.shape)) or "scalar"
    return plain(f"{size} {row.dtype}" if row.tensors == 1 else f"biggest {size} {row.dtype}")


def _graph_note(row: Holder) -> str:
    if not row.graph_bytes:
        return ""
    graphs = "graph" if row.graphs == 1 else "graphs"
    whose = "1 tensor" if row.graphs == 1 else f"{format_count(row.graphs)} tensors"
    how_much = "all" if row.graph_bytes == row.bytes else size_text(row.graph_bytes)
    return f"{how_much} of it in the autograd {graphs} (grad_fn) of {whose}"


def _remainder_label(one: Remainder) -> str:
    return UNEXPLAINED_ON_THE_HOST if one.is_host else UNEXPLAINED


def _group_html(device: str, group: Holders, least: float, *, detail: bool) -> str:
    shown, others = _shown(group.rows, least)
    rows = "".join(_row_html(row, detail=detail) for row in shown)
    if others:
        size = sum(one.bytes for one in group.rows[len(shown) :])
        rows += _line_html(others, size_text(size))
    rows += "".join(
        _line_html(_remainder_label(one), size_text(one.bytes), RULE) for one in group.remainders
    )
    return (
        f'<div style="margin:0 0 8px"><strong>{escape(plain(device))}</strong>'
        f"{TABLE}{head_html('held by', 'held')}<tbody>{rows}</tbody></table></div></div>"
    )


def _row_html(row: Holder, *, detail: bool) -> str:
    facts = " \u00b7 ".join(filter(None, (_kept(row), _biggest(row))))
    below = [escape(one) for one in (facts, _graph_note(row)) if one]
    if row.also:
        below.append("also " + ", ".join(map(code, row.also)))
    if detail:
        below += [f"{escape(size_text(size))} {code(name)}" for name, size in row.parts]
    notes = "".join(f'<div style="{SMALL}">{one}</div>' for one in below)
    return row_html(code(row.path) + notes, size_text(row.bytes), strong=True)


def _line_html(label: str, size: str, style: str = "") -> str:
    return row_html(escape(label), size, style=f";{QUIET}{style}")


def _group_text(device: str, group: Holders, least: float, *, detail: bool) -> str:
    shown, others = _shown(group.rows, least)
    lines: list[tuple[str, str]] = []
    for row in shown:
        facts = " \u00b7 ".join(filter(None, (_kept(row), _biggest(row))))
        lines.append((size_text(row.bytes), f"{plain(row.path, PATH_LENGTH)}  ({facts})"))
        if row.graph_bytes:
            lines.append(("", f"  {_graph_note(row)}"))
        if row.also:
            lines.append(("", "  also " + ", ".join(plain(one, PATH_LENGTH) for one in row.also)))
        if detail:
            lines += [
                ("", f"  {size_text(size)}  {plain(name, PATH_LENGTH)}") for name, size in row.parts
            ]
    if others:
        size = sum(one.bytes for one in group.rows[len(shown) :])
        lines.append((size_text(size), others))
    lines += [(size_text(one.bytes), _remainder_label(one)) for one in group.remainders]
    width = max((len(size) for size, _ in lines), default=0)
    return "\n".join((plain(device), *(f"{size:>{width}}  {text}" for size, text in lines)))
