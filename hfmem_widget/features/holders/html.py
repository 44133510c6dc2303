"""What holds memory as a table: HTML that needs no script and no kernel, and plain text."""

from __future__ import annotations

from collections.abc import Sequence

from hfmem_widget.sources.heap.model import Holder, Holders, Remainder
from hfmem_widget.text import MIB, format_count, format_counted, format_duration, plain
from hfmem_widget.view import html as kit
from hfmem_widget.view.table import Column, Row, table

MOST_ROWS = 25
UNEXPLAINED = "not held by any Python object found"
UNEXPLAINED_ON_THE_HOST = "everything else in this process's heap"


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
    return kit.bundle(
        kit.headed("memholders"),
        *(_section(one, holders.of(one), least, detail=detail) for one in devices),
        *([] if devices else [kit.line("No variable holds a tensor.")]),
        kit.note(_cost(holders)),
    )


def _cost(holders: Holders) -> str:
    objects = format_counted(holders.objects, "object")
    looked = f"Inspected {objects} in {format_duration(holders.seconds)}"
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
    how_much = "all" if row.graph_bytes == row.bytes else kit.size_text(row.graph_bytes)
    return f"{how_much} of that is held by the autograd {graphs} of {whose}"


def _remainder_label(one: Remainder) -> str:
    return UNEXPLAINED_ON_THE_HOST if one.is_host else UNEXPLAINED


def _section(device: str, group: Holders, least: float, *, detail: bool) -> kit.Fragment:
    shown, others = _shown(group.rows, least)
    rows = [_row(one, detail=detail) for one in shown]
    if others:
        size = sum(one.bytes for one in group.rows[len(shown) :])
        rows.append(Row((others, kit.size_text(size)), is_quiet=True))
    rows += [
        Row((_remainder_label(one), kit.size_text(one.bytes)), is_quiet=True, is_ruled=True)
        for one in group.remainders
    ]
    columns = (Column("held by"), Column("held", is_bold=True))
    return kit.section(device, "", table(columns, rows, names_last=True, fills=True))


def _row(row: Holder, *, detail: bool) -> Row:
    also = kit.words("also", kit.words(*map(kit.code, row.also), between=", ")) if row.also else ""
    parts = [
        kit.words(kit.size_text(size), kit.code(name), between="  ") for name, size in row.parts
    ]
    return Row(
        (kit.code(row.path), kit.size_text(row.bytes)),
        facts=" \u00b7 ".join(filter(None, (_kept(row), _biggest(row)))),
        below=(_graph_note(row), also, *(parts if detail else [])),
    )
