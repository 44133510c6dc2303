"""What holds memory as a table: HTML that needs no script and no kernel, and plain text."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from hfmem_widget.holding.model import Holder, Holders, Remainder
from hfmem_widget.labels import plain
from hfmem_widget.units import MIB, format_bytes, format_count, format_duration

MOST_ROWS = 25
PATH_LENGTH = 140
UNEXPLAINED = "not explained by any Python object that was reached"
UNEXPLAINED_ON_THE_HOST = "everything else in this process' heap"

_BOX = (
    '<div style="box-sizing:border-box;max-width:860px;margin:2px 0;font-size:13px;line-height:1.45;'
    "font-family:var(--jp-ui-font-family,system-ui,sans-serif);"
    'color:var(--jp-ui-font-color1,inherit);font-variant-numeric:tabular-nums">'
)
_CODE = (
    "font-family:var(--jp-code-font-family,ui-monospace,monospace);font-size:.95em;"
    "background:none;padding:0;color:inherit;white-space:normal;overflow-wrap:anywhere"
)
_NAME = "padding:3px 0;text-align:left;vertical-align:top;border:0;font-weight:normal"
_CELL = "padding:3px 0 3px 16px;text-align:right;vertical-align:top;white-space:nowrap;border:0"
_QUIET = "opacity:.75"
_SMALL = f"font-size:11.5px;{_QUIET}"
_HEAD = f";font-size:11px;font-weight:normal;{_QUIET}"
_RULE = ";border-top:1px solid rgba(128,128,128,.35)"


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
        "text/html": f'{_BOX}{html}{escape(nothing)}<div style="{_SMALL}">{escape(cost)}</div></div>',
        "text/plain": f"{text}\n{nothing}{cost}",
    }


def _cost(holders: Holders) -> str:
    looked = (
        f"{format_count(holders.objects)} objects looked at in {format_duration(holders.seconds)}"
    )
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
    how_much = "all" if row.graph_bytes == row.bytes else _size(row.graph_bytes)
    return f"{how_much} of it in the autograd {graphs} (grad_fn) of {whose}"


def _size(size: float) -> str:
    """Return bytes as text, in which a few are not told as none."""
    return f"<{format_bytes(0.01 * MIB)}" if 0 < size < 0.005 * MIB else format_bytes(size)


def _remainder_label(one: Remainder) -> str:
    return UNEXPLAINED_ON_THE_HOST if one.is_host else UNEXPLAINED


def _group_html(device: str, group: Holders, least: float, *, detail: bool) -> str:
    shown, others = _shown(group.rows, least)
    heads = "".join(
        f'<th scope="col" style="{_NAME if at == 0 else _CELL}{_HEAD}">{head}</th>'
        for at, head in enumerate(("held by", "held"))
    )
    rows = "".join(_row_html(row, detail=detail) for row in shown)
    if others:
        size = sum(one.bytes for one in group.rows[len(shown) :])
        rows += _line_html(others, _size(size))
    rows += "".join(
        _line_html(_remainder_label(one), _size(one.bytes), _RULE) for one in group.remainders
    )
    return (
        f'<div style="margin:0 0 8px"><strong>{escape(plain(device))}</strong>'
        '<div style="overflow-x:auto"><table style="border-collapse:collapse;border:0;margin:0;'
        'font-size:13px;color:inherit;width:100%;max-width:680px">'
        f'<thead style="border:0"><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div></div>'
    )


def _row_html(row: Holder, *, detail: bool) -> str:
    facts = " \u00b7 ".join(filter(None, (_kept(row), _biggest(row))))
    below = [escape(one) for one in (facts, _graph_note(row)) if one]
    if row.also:
        below.append("also " + ", ".join(map(_code, row.also)))
    if detail:
        below += [f"{escape(_size(size))} {_code(name)}" for name, size in row.parts]
    notes = "".join(f'<div style="{_SMALL}">{one}</div>' for one in below)
    return (
        # JupyterLab stripes rows; here they are the table's own.
        f'<tr style="background:none"><th scope="row" style="{_NAME}">{_code(row.path)}{notes}</th>'
        f'<td style="{_CELL};font-weight:600">{escape(_size(row.bytes))}</td></tr>'
    )


def _code(path: str) -> str:
    # MathJax, which reads what stands between dollars, leaves code alone.
    return f'<code style="{_CODE}">{escape(plain(path, PATH_LENGTH))}</code>'


def _line_html(label: str, size: str, style: str = "") -> str:
    return (
        f'<tr style="background:none"><th scope="row" style="{_NAME};{_QUIET}{style}">{escape(label)}</th>'
        f'<td style="{_CELL};{_QUIET}{style}">{escape(size)}</td></tr>'
    )


def _group_text(device: str, group: Holders, least: float, *, detail: bool) -> str:
    shown, others = _shown(group.rows, least)
    lines: list[tuple[str, str]] = []
    for row in shown:
        facts = " \u00b7 ".join(filter(None, (_kept(row), _biggest(row))))
        lines.append((_size(row.bytes), f"{plain(row.path, PATH_LENGTH)}  ({facts})"))
        if row.graph_bytes:
            lines.append(("", f"  {_graph_note(row)}"))
        if row.also:
            lines.append(("", "  also " + ", ".join(plain(one, PATH_LENGTH) for one in row.also)))
        if detail:
            lines += [
                ("", f"  {_size(size)}  {plain(name, PATH_LENGTH)}") for name, size in row.parts
            ]
    if others:
        size = sum(one.bytes for one in group.rows[len(shown) :])
        lines.append((_size(size), others))
    lines += [(_size(one.bytes), _remainder_label(one)) for one in group.remainders]
    width = max((len(size) for size, _ in lines), default=0)
    return "\n".join((plain(device), *(f"{size:>{width}}  {text}" for size, text in lines)))
