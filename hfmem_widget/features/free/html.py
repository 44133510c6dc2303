"""The result of freeing, or its preview, as a table: HTML without a script, and plain text."""

import math

from hfmem_widget.features.free.model import Change, Freeable, Release
from hfmem_widget.text import (
    MIB,
    format_bytes,
    format_change,
    format_count,
    number,
    plain,
    unit_for,
)
from hfmem_widget.view import html as kit
from hfmem_widget.view.table import Column, TableRow, table

MOST_PARTS = 4
LATER = 16 * MIB  # the least difference between prediction and measurement that is mentioned
HOST_MOVED = MIB  # the least change of the host's memory that is shown beside a GPU

HOW_TO = "Nothing has been freed yet. %memholders --free all frees both; variables must be named."


def release_bundle(release: Release) -> dict[str, str]:
    """Return the result or the preview by MIME type."""
    steps = plain(" \u00b7 ".join(release.steps), 400)
    bound = release.bound and f"{release.bound.capitalize()}, so the sizes are not certain."
    return kit.bundle(
        kit.headed("memholders --free"),
        *(kit.line(sentence) for sentence in (_what_stays(release) if release.done else [])),
        _changes(release) if release.done else _freeable(release),
        *(kit.line(kit.faint(text)) for text in ([] if release.done else _what_else(release))),
        *(kit.line(plain(note, 300)) for note in release.notes),
        *kit.notes(filter(None, (steps, bound))),
    )


def _freeable(release: Release) -> kit.Fragment:
    everything = (*release.items, *release.variables)
    devices = {device for freeable in everything for device in freeable.bytes}
    columns = sorted(devices, key=_gpus_first) or ["memory"]
    rows = []
    for item in release.items:
        parts = kit.words(*map(kit.code, item.what[:MOST_PARTS]), between=", ")
        more = len(item.what) - MOST_PARTS
        parts = kit.words(parts, f"and {format_count(more)} more") if more > 0 else parts
        sizes = (_size(item, device) for device in columns)
        nothing = "" if item.total else "nothing held only here"
        rows.append(TableRow((kit.code(item.name), *sizes), below=(parts or nothing,)))
    if len(release.items) > 1:
        total = Freeable("total", (), release.together, release.is_at_most)
        sizes = (_size(total, device) for device in columns)
        rows.append(TableRow(("total", *sizes), is_ruled=True))
    return _table(("could be freed", *columns), rows)


def _size(freeable: Freeable, device: str) -> str:
    size = freeable.bytes.get(device, 0)
    return f"{'up to ' if size and freeable.is_at_most else ''}{kit.size_text(size)}"


def _changes(release: Release) -> kit.Fragment:
    rows = []
    for device in _devices_in_use(release):
        for change in release.changes:
            is_known = math.isfinite(change.freed) and max(change.before, change.after) > 0
            if change.device == device and is_known:
                name = f"{plain(device)} {plain(change.label)}"
                moved = format_bytes(-change.freed, signed=True)
                rows.append(TableRow((name, format_change(change.before, change.after), moved)))
    return _table(("measured", "before \u2192 after", "change"), rows)


def _table(heads: tuple[str, ...], rows: list[TableRow]) -> kit.Fragment:
    columns = [Column(head, is_bold=at > 0) for at, head in enumerate(heads)]
    return table(columns, rows, fills=True)


def _what_else(release: Release) -> list[kit.Content]:
    texts: list[kit.Content] = []
    if release.cached:
        sizes = (f"{plain(device)} {format_bytes(size)}" for device, size in release.cached.items())
        texts.append(f"CUDA's cache: at most {', '.join(sizes)}, plus what is freed.")
    texts.append("Reference cycles may free more; the amount is known only after collection.")
    if release.variables:
        names = (
            kit.words(kit.code(one.name), _size(one, max(one.bytes, key=one.bytes.__getitem__)))
            for one in release.variables
        )
        texts.append(_listed("Largest variables:", *names))
    is_all = [item.name for item in release.items] == ["errors", "outputs"]
    return [*texts, HOW_TO if is_all else "Nothing was freed: this was a dry run."]


def _listed(head: str, *names: kit.Fragment) -> kit.Fragment:
    return kit.words(kit.words(head, kit.words(*names, between=", ")), ".", between="")


def _what_stays(release: Release) -> list[kit.Content]:
    sentences: list[kit.Content] = []
    for device, change in _devices_in_use(release).items():
        freed = max(change.freed, 0.0)
        divisor, unit = unit_for(change.before)
        of = f"{number(freed, divisor)} of {number(change.before, divisor)} {unit}"
        sentence = f"{plain(device)}: freed {of}"
        held: dict[str, int] = {}  # by name: a model has a row for weights and one for buffers
        for row in release.stays:
            if row.device == device:
                held[row.path] = held.get(row.path, 0) + row.bytes
        holders = [
            kit.words(f"{kit.size_text(size)} by", kit.code(path)) for path, size in held.items()
        ]
        sentences.append(
            _listed(f"{sentence}; still held:", *holders) if holders else f"{sentence}."
        )
        later = release.together.get(device, 0) - freed
        if device == "cpu" and later >= LATER:
            sentences.append(
                f"{format_bytes(later)} less than predicted: an allocator may keep it for reuse, as those of "
                "Arrow and polars do for a while, or something unseen holds it."
            )
    return sentences


def _devices_in_use(release: Release) -> dict[str, Change]:
    """Return the allocated memory of GPUs in use, and of the host if it is alone or its memory changed."""
    used: dict[str, Change] = {}
    for change in sorted(release.changes, key=lambda change: _gpus_first(change.device)):
        if change.metric != "allocated" or not math.isfinite(change.freed):
            continue
        is_gpu_in_use = ":" in change.device and max(change.before, change.after) > 0
        is_host = ":" not in change.device
        if is_gpu_in_use or (is_host and (not used or abs(change.freed) >= HOST_MOVED)):
            used[change.device] = change
    return used


def _gpus_first(device: str) -> tuple[bool, str]:
    return ":" not in device, device
