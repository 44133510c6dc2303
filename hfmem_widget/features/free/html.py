"""What can be released, or was, as a table: HTML that needs no script and no kernel, and plain text."""

from __future__ import annotations

import math
from collections.abc import Sequence

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
from hfmem_widget.view import html as kit
from hfmem_widget.view.table import Column, Row, table

MOST_PARTS = 4
HOST_MOVED = MIB
"""Bytes by which the heap must have changed to be told of beside a GPU."""

ALL = ("errors", "outputs")
HOW_TO = "Nothing has been freed yet. %memfree all frees both; variables must be named."
DRY_RUN = "Nothing was freed: this was a dry run."


def release_bundle(release: Release) -> dict[str, str]:
    """Return what can be released, or was, by MIME type."""
    heads, rows = _measured(release) if release.done else _found(release)
    columns = [Column(head, is_bold=at > 0) for at, head in enumerate(heads)]
    steps = plain(" \u00b7 ".join(release.steps), 400)
    return kit.bundle(
        kit.headed("memfree"),
        *(kit.line(one) for one in (_what_stays(release) if release.done else [])),
        table(columns, rows, fills=True),
        *(kit.line(kit.quiet(one)) for one in ([] if release.done else _what_else(release))),
        *(kit.line(plain(one, 300)) for one in release.notes),
        *kit.notes([*([steps] if steps else []), _cost(release)]),
    )


def _found(release: Release) -> tuple[tuple[str, ...], list[Row]]:
    """Return what would be free, one column for each device."""
    everything = (*release.items, *release.variables)
    devices = sorted({device for one in everything for device in one.bytes}, key=_gpus_first)
    devices = devices or ["memory"]
    rows = [_item(one, devices) for one in release.items]
    if len(release.items) > 1:
        sizes = (kit.size_text(release.together.get(device, 0)) for device in devices)
        rows.append(Row(("total", *sizes), is_ruled=True))
    return ("could be freed", *devices), rows


def _item(one: Freeable, devices: Sequence[str]) -> Row:
    told = kit.words(*map(kit.code, one.what[:MOST_PARTS]), between=", ")
    more = len(one.what) - MOST_PARTS
    told = kit.words(told, f"and {format_count(more)} more") if more > 0 else told
    sizes = (kit.size_text(one.bytes.get(device, 0)) for device in devices)
    nothing = "" if one.total else "nothing held only here"
    return Row((kit.code(one.name), *sizes), below=(told or nothing,))


def _what_else(release: Release) -> list[kit.Content]:
    """Return what else could be done."""
    told: list[kit.Content] = []
    if release.cached:
        sizes = (f"{plain(device)} {format_bytes(size)}" for device, size in release.cached.items())
        told.append(f"CUDA's cache: at most {', '.join(sizes)}, plus what is freed.")
    told.append("Reference cycles may free more; the amount is known only after collection.")
    if release.variables:
        names = (
            kit.words(kit.code(one.name), kit.size_text(max(one.bytes.values())))
            for one in release.variables
        )
        told.append(_listed("Largest variables:", *names))
    is_all = tuple(one.name for one in release.items) == ALL
    return [*told, HOW_TO if is_all else DRY_RUN]


def _listed(head: str, *names: kit.Fragment) -> kit.Fragment:
    return kit.words(kit.words(head, kit.words(*names, between=", ")), ".", between="")


def _measured(release: Release) -> tuple[tuple[str, ...], list[Row]]:
    """Return what was measured, one row for each figure of a device."""
    rows = []
    for device in _worth_telling(release):
        for change in (one for one in release.changes if one.device == device):
            if math.isfinite(change.freed) and max(change.before, change.after) > 0:
                name = f"{plain(device)} {plain(change.label)}"
                moved = format_bytes(-change.freed, signed=True)
                rows.append(Row((name, format_change(change.before, change.after), moved)))
    return ("measured", "before \u2192 after", "change"), rows


def _what_stays(release: Release) -> list[kit.Content]:
    """Return for each device how much was freed, and who holds the rest."""
    told: list[kit.Content] = []
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
        holders = [
            kit.words(f"{kit.size_text(size)} by", kit.code(path)) for path, size in held.items()
        ]
        told.append(_listed(f"{sentence}; still held:", *holders) if holders else f"{sentence}.")
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
    looked = f"Inspected {objects} in {format_duration(release.seconds)}"
    return f"{looked}; {release.bound}, so the sizes are not certain" if release.bound else looked
