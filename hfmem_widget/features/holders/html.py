"""Tables of what holds memory, or holds more than before: HTML without a script, and plain text."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from hfmem_widget.sources.heap.model import Grown, Growth, Holder, Holders
from hfmem_widget.sources.heap.roots import beyond_names, of_views
from hfmem_widget.sources.storages import MANAGED
from hfmem_widget.text import MIB, format_count, format_counted, plain
from hfmem_widget.view import html as kit
from hfmem_widget.view.table import Column, TableRow, table

Held = TypeVar("Held", Holder, Grown)

MOST_ROWS = 25
UNEXPLAINED = "not held by any Python object found"


def holders_bundle(holders: Holders, *, least: float = MIB, detail: bool = False) -> dict[str, str]:
    """Return a table for each device by MIME type; rows with fewer bytes than `least` are summed in one."""
    sections = []
    devices = [row.device for row in holders.rows]
    devices += [remainder.device for remainder in holders.remainders]
    for device in dict.fromkeys(devices):
        group = holders.of(device)
        rows = _rows(group.rows, least, partial(_held, detail=detail), "smaller name")
        for remainder in (each for each in group.remainders if each.bytes > 0):
            label = "everything else in this process" if remainder.is_host else UNEXPLAINED
            cells = label, kit.size_text(remainder.bytes)
            rows.append(TableRow(cells, is_quiet=True, is_ruled=True))
        sections += [_section(device, "held", rows)] if rows else []
    return kit.bundle(
        kit.headed("memholders"),
        *(sections or [kit.line("No variable holds a tensor, an array or a data frame.")]),
        kit.note(holders.bound.capitalize()),
    )


def growth_bundle(growth: Growth, *, least: float = MIB) -> dict[str, str]:
    """Return a table for each device by MIME type; rows that grew by less than `least` are summed in one."""
    sections = []
    for device in dict.fromkeys(row.device for row in growth.rows):
        grown = [row for row in growth.rows if row.device == device]
        rows = _rows(grown, least, _grown, "other name", sign="+")
        sections.append(_section(device, "more than before", rows))
    freed = f"Other variables hold {kit.size_text(growth.freed)} less." if growth.freed else ""
    return kit.bundle(
        kit.headed("memholders", "growth since the last %memholders"),
        *(sections or [kit.line("Nothing grew.")]),
        *kit.notes(filter(None, (freed, growth.bound.capitalize()))),
    )


def _rows(
    held: Sequence[Held], least: float, row: Callable[[Held], TableRow], others: str, sign: str = ""
) -> list[TableRow]:
    """Return a row for each of up to `MOST_ROWS` names of at least `least` bytes, and one for the others."""
    count: int = sum(each.bytes >= least for each in held[:MOST_ROWS])
    rows = [*map(row, held[:count])]
    if len(held) > count:
        size = kit.size_text(sum(each.bytes for each in held[count:]))
        name = format_counted(len(held) - count, others)
        rows.append(TableRow((name, f"{sign}{size}"), is_quiet=True))
    return rows


def _section(device: str, head: str, rows: Sequence[TableRow]) -> kit.Fragment:
    columns = (Column("held by"), Column(head, is_bold=True))
    about = "mapped files, shared memory and pinned memory" if device == MANAGED else ""
    return kit.section(device, about, table(columns, rows, names_last=True, fills=True))


def _held(row: Holder, *, detail: bool) -> TableRow:
    also = kit.words("also", kit.words(*map(kit.code, row.also), between=", ")) if row.also else ""
    note = beyond_names(row) or of_views(row)
    parts = [
        kit.words(kit.size_text(size), kit.code(name), between="  ") for name, size in row.parts
    ]
    return TableRow(
        (kit.code(row.path), kit.size_text(row.bytes)),
        facts=_holder_facts(row),
        below=(_graph_note(row), also, note, *(parts if detail else [])),
    )


def _holder_facts(row: Holder) -> str:
    """Return what a name holds, such as ``gradients · 146 tensors · biggest 64 float32``."""
    if row.kind in {"Python objects", "shared memory"}:
        return " \u00b7 ".join(filter(None, (row.kind, plain(row.dtype))))
    shape = "\u00d7".join(map(format_count, row.shape)) or "scalar"
    is_one = row.tensors == 1 or not row.dtype
    facts = [
        "" if row.kind == "tensors" else row.kind,
        f"{format_counted(row.views, 'view')} of larger memory" if row.views else "",
        "" if is_one else f"{format_count(row.tensors)} {_noun(row)}s",
        plain(f"{'' if is_one else 'biggest '}{shape} {row.dtype}"),
    ]
    return " \u00b7 ".join(filter(None, facts))


def _grown(row: Grown) -> TableRow:
    """Return the row of a name that grew, such as ``gradients · 2 more tensors · 2.00 MiB in total``."""
    facts = [
        "" if row.kind == "tensors" else row.kind,
        format_counted(row.tensors, f"more {_noun(row)}") if row.tensors > 0 else "",
        f"{kit.size_text(row.now)} in total",
    ]
    size = f"+{kit.size_text(row.bytes)}"
    return TableRow((kit.code(row.path), size), facts=" \u00b7 ".join(filter(None, facts)))


def _noun(row: Holder | Grown) -> str:
    nouns = {"NumPy": "array", "pandas": "array", "polars": "frame", "Arrow": "buffer"}
    nouns |= {"PIL": "image", "Python objects": "item", "shared memory": "block"}
    return nouns.get(row.kind, "tensor")


def _graph_note(row: Holder) -> str:
    if not row.graph_bytes:
        return ""
    size = "all" if row.graph_bytes == row.bytes else kit.size_text(row.graph_bytes)
    graphs = "graph" if row.graphs == 1 else "graphs"
    tensors = format_counted(row.graphs, "tensor")
    return f"{size} of that is held by the autograd {graphs} of {tensors}"
