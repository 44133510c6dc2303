"""What can be released, or was, as a table: HTML that needs no script and no kernel, and plain text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

from hfmem_widget.features.free.model import Change, Freeable, Release
from hfmem_widget.text import (
    MIB,
    format_bytes,
    format_change,
    format_count,
    format_counted,
    format_duration,
    number,
    plain,
    unit_for,
)
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

MOST_PARTS = 4
HOST_MOVED = MIB
"""Bytes by which the heap must have changed to be told of beside a GPU."""

ALL = ("errors", "outputs")
HOW_TO = "Nothing was released yet: %memfree all lets go of both; variables go only by their names."
DRY_RUN = "Nothing was released: this was a dry run."
GAP = "  "

Named = Callable[[str], str]
"""How a name is written: as code, or as it is."""


class Row(NamedTuple):
    """A line of a table: a name with its figures, and what stands small below it."""

    name: str
    figures: tuple[str, ...]
    note: str = ""
    is_sum: bool = False


def release_bundle(release: Release) -> dict[str, str]:
    """Return what can be released, or was, by MIME type."""
    heads, rows = _measured(release) if release.done else _found(release, code)
    above, below = _sentences(release, code)
    notes = tuple(plain(note, 300) for note in release.notes)
    small = [
        *([plain(" \u00b7 ".join(release.steps), 400)] if release.steps else []),
        _cost(release),
    ]
    html = "".join(
        (
            headed("memfree"),
            *(_line(one) for one in above),
            _table(heads, rows),
            *(_line(one, QUIET) for one in below),
            *(_line(escape(note)) for note in notes),
            *(f'<div style="{SMALL}">{escape(one)}</div>' for one in small),
            "</div>",
        )
    )
    heads, rows = _measured(release) if release.done else _found(release, _as_it_is)
    above, below = _sentences(release, _as_it_is)
    text = "\n".join((*above, *_aligned(heads, rows), *below, *notes, *small))
    return {"text/html": html, "text/plain": text}


def _sentences(release: Release, named: Named) -> tuple[list[str], list[str]]:
    """Return what stands above the table, and what below it."""
    return (_what_stays(release, named), []) if release.done else ([], _what_else(release, named))


def _found(release: Release, named: Named) -> tuple[tuple[str, ...], list[Row]]:
    """Return what would be free, one column for each device."""
    everything = (*release.items, *release.variables)
    devices = sorted({device for one in everything for device in one.bytes}, key=_gpus_first)
    devices = devices or ["memory"]
    rows = [_item(one, devices, named) for one in release.items]
    if len(release.items) > 1:
        sizes = tuple(size_text(release.together.get(device, 0)) for device in devices)
        rows.append(Row("together", sizes, is_sum=True))
    return ("would be free", *devices), rows


def _item(one: Freeable, devices: Sequence[str], named: Named) -> Row:
    told = ", ".join(named(part) for part in one.what[:MOST_PARTS])
    more = len(one.what) - MOST_PARTS
    told += f" and {format_count(more)} more" if more > 0 else ""
    sizes = tuple(size_text(one.bytes.get(device, 0)) for device in devices)
    return Row(named(one.name), sizes, told or ("" if one.total else "keeps no tensor alone"))


def _what_else(release: Release, named: Named) -> list[str]:
    """Return what else could be done."""
    told = []
    if release.cached:
        sizes = (f"{plain(device)} {format_bytes(size)}" for device, size in release.cached.items())
        told.append(f"CUDA's cache: at most {', '.join(sizes)}, and what is let go of.")
    told.append("Garbage in cycles comes on top; how much is known once it is collected.")
    if release.variables:
        names = (
            f"{named(one.name)} {size_text(size)}"
            for one in release.variables
            for size in [max(one.bytes.values())]
        )
        told.append(f"Variables that alone keep most: {', '.join(names)}.")
    is_all = tuple(one.name for one in release.items) == ALL
    return [*told, HOW_TO if is_all else DRY_RUN]


def _measured(release: Release) -> tuple[tuple[str, ...], list[Row]]:
    """Return what was measured, one row for each figure of a device."""
    rows = []
    for device in _worth_telling(release):
        for change in (one for one in release.changes if one.device == device):
            if math.isfinite(change.freed) and max(change.before, change.after) > 0:
                name = f"{plain(device)} {plain(change.label)}"
                moved = format_bytes(-change.freed, signed=True)
                rows.append(Row(name, (format_change(change.before, change.after), moved)))
    return ("measured", "before \u2192 after", "change"), rows


def _what_stays(release: Release, named: Named) -> list[str]:
    """Return for each device how much was freed, and who holds the rest."""
    told = []
    for device in _worth_telling(release):
        change = _allocated(release, device)
        if change is None:
            continue
        freed = max(change.freed, 0.0)
        divisor, unit = unit_for(change.before)
        of = f"{number(freed, divisor)} of {number(change.before, divisor)} {unit}"
        sentence = f"{plain(device)}: freed {of}"
        held: dict[str, int] = {}  # a model's weights and buffers are one name's
        for row in release.stays:
            if row.device == device:
                held[row.path] = held.get(row.path, 0) + row.bytes
        holders = ", ".join(f"{size_text(size)} by {named(path)}" for path, size in held.items())
        told.append(f"{sentence}; still held: {holders}." if holders else f"{sentence}.")
    return told


def _worth_telling(release: Release) -> list[str]:
    """Return the devices in use; the host where there is no other, or where its heap has moved."""
    devices = list(dict.fromkeys(one.device for one in release.changes))
    used: list[str] = []
    for device in sorted(devices, key=_gpus_first):
        change = _allocated(release, device)
        if change is None:
            continue
        if ":" in device:
            is_told = max(change.before, change.after) > 0
        else:
            is_told = not used or abs(change.freed) >= HOST_MOVED
        used += [device] if is_told else []
    return used


def _allocated(release: Release, device: str) -> Change | None:
    wanted = (device, "allocated")
    found = (one for one in release.changes if (one.device, one.metric) == wanted)
    return next((one for one in found if math.isfinite(one.freed)), None)


def _gpus_first(device: str) -> tuple[bool, str]:
    return ":" not in device, device


def _cost(release: Release) -> str:
    objects = format_counted(release.objects, "object")
    looked = f"{objects} looked at in {format_duration(release.seconds)}"
    return (
        f"{looked}; {release.bound}, so what would be free is not certain"
        if release.bound
        else looked
    )


def _table(heads: Sequence[str], rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    body = "".join(
        row_html(
            row.name + (f'<div style="{SMALL}">{row.note}</div>' if row.note else ""),
            *row.figures,
            style=RULE if row.is_sum else "",
            strong=True,
        )
        for row in rows
    )
    return f"{TABLE}{head_html(*heads)}<tbody>{body}</tbody></table></div>"


def _line(html: str, style: str = "") -> str:
    return f'<div style="margin:4px 0 0;{style}">{html}</div>'


def _aligned(heads: Sequence[str], rows: Sequence[Row]) -> list[str]:
    lines = [list(heads), *([row.name, *row.figures] for row in rows)] if rows else []
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    told = []
    for line, row in zip(lines, (None, *rows), strict=True) if rows else ():
        figures = (text.rjust(width) for text, width in zip(line[1:], widths[1:], strict=True))
        told.append(GAP.join((line[0].ljust(widths[0]), *figures)).rstrip())
        if row is not None and row.note:
            told.append(f"{GAP}{row.note}")
    return told


def _as_it_is(name: str) -> str:
    return plain(name, PATH_LENGTH)
