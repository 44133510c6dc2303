"""The anatomy as bars and a table: HTML that needs no script and no kernel, and plain text."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from hfmem_widget.analysis.anatomy import END_MOMENT, NOW
from hfmem_widget.analysis.parts import LABELS
from hfmem_widget.session import HELD, Anatomy, Contents, Device, Part
from hfmem_widget.session.series import TABLE
from hfmem_widget.text import format_bytes, format_count, format_share, plain
from hfmem_widget.view import html as kit
from hfmem_widget.view import palette
from hfmem_widget.view.chart.scene import CAPACITY_FROM
from hfmem_widget.view.table import Column, TableRow, table

NOTE_LENGTH = 300
NOTHING_FOUND = "No model or optimizer with tensors on this device was found."
SUMS = ("allocated", "reserved", "process")

PROCESS = tuple(LABELS)[: tuple(LABELS).index("children") + 1]
BESIDE = ("driver", "shared_memory", "others", "unexplained", "page_cache")
BESIDE_UP_TO = 2.0
"""Other users of the device are drawn where they leave the process this share of the bar, as 1 to 2."""

DRAWN_FROM = 0.15
"""Share of the capacity from which on a bar of all of it shows more than a thin line."""

LEAST_DRAWN = 0.003
"""Share of a bar below which a part cannot be seen in it."""

_FIGURE = re.compile(r"[\d.,]+ [KMGTP]iB")
MOST_NAMES = 3
ALL = 0.9995  # from this share on, all parameters are said to be trainable


def anatomy_bundle(
    anatomies: Sequence[Anatomy],
    *,
    title: str = "",
    contents: str = "",
) -> dict[str, str]:
    """Return anatomies by MIME type: one table a device, one column a moment, in the order given."""
    by_device: dict[str, list[Anatomy]] = {}
    for anatomy in anatomies:
        by_device.setdefault(anatomy.device.key, []).append(anatomy)
    title = plain(title)
    return kit.bundle(
        kit.headed("memanatomy", title),
        kit.block(f"margin:0 0 6px;font-size:12px;{kit.FAINT}", plain(contents, NOTE_LENGTH)),
        *map(device_section, by_device.values()),
        title=title,
    )


def shown_anatomy(anatomy: Anatomy) -> Mapping[str, str]:
    """Return how one anatomy shows itself."""
    return anatomy_bundle([anatomy])


def moment_text(anatomy: Anatomy) -> str:
    """Return the moment as plain text, and of a peak how it is known."""
    moment = plain(anatomy.moment)
    return moment if moment in {NOW, END_MOMENT} else f"{moment} ({anatomy.certainty})"


def device_section(anatomies: Sequence[Anatomy]) -> kit.Fragment:
    """Return the bars, the table and the notes of one device at some moments."""
    device = anatomies[0].device
    about = [plain(device.name), format_bytes(device.total) if device.total > 0 else ""]
    by_words: dict[str, str] = {}  # of notes that differ in figures alone, the first moment's
    for anatomy in anatomies:
        for note in anatomy.notes:
            is_of_all = all(note in each.notes for each in anatomies)
            told = note if is_of_all else f"{anatomy.moment.capitalize()}: {note}"
            by_words.setdefault(_FIGURE.sub("", note), told)
    notes = list(by_words.values())
    if any(anatomy.allocated > 0 for anatomy in anatomies) and not any(
        anatomy.bytes(name) > 0 for anatomy in anatomies for name in HELD
    ):
        notes.append(NOTHING_FOUND)
    return kit.section(
        plain(device.key),
        " \N{MIDDLE DOT} ".join(text for text in about if text),
        kit.Fragment(bars_html(anatomies)),
        _table(anatomies),
        *kit.notes(plain(note, NOTE_LENGTH) for note in notes),
    )


def drawn_parts(anatomies: Sequence[Anatomy]) -> tuple[str, ...]:
    """Return the names of the parts that bars of these anatomies show.

    Those of the process always; others where they would not squeeze it; free memory where little is left.
    """
    ours, all_parts = _longest(anatomies, PROCESS), _longest(anatomies, (*PROCESS, *BESIDE))
    if 0 < ours * BESIDE_UP_TO < all_parts:
        return PROCESS
    is_full = all_parts >= CAPACITY_FROM * anatomies[0].device.total or not all_parts
    return (*PROCESS, *BESIDE, "free") if is_full else (*PROCESS, *BESIDE)


def bars_html(anatomies: Sequence[Anatomy]) -> str:
    """Return a bar for each moment of one device, all on one scale; empty where nothing is known."""
    names = drawn_parts(anatomies)
    full = _longest(anatomies, names)
    if not full > 0:
        return ""
    rows = "".join(
        '<div style="display:flex;flex-wrap:wrap;align-items:center;gap:0 10px;margin:0 0 4px">'
        f'<span style="flex:0 0 122px">{kit.caption(moment_text(anatomy))}</span> '
        f'<span style="flex:1 1 180px;min-width:0">{_bar(anatomy, names, full)}</span></div>'
        for anatomy in anatomies
    )
    total = anatomies[0].device.total
    of = f" of {format_bytes(total)}" if total > 0 else ""
    width = f"full width: {format_bytes(full)}{of}"
    scale = "" if "free" in names else kit.caption(width, at_right=True)
    return f"<div>{rows}{scale}</div>"


def full_width(used: float, capacity: float) -> float:
    """Return the bytes that are as wide as a bar: the capacity, or what is used where that is little."""
    return max(capacity if used >= DRAWN_FROM * capacity else used, used)


def bar_html(anatomy: Anatomy, names: Sequence[str], full: float) -> str:
    """Return these parts of one moment as a bar, on whose ground the rest of its width is free."""
    ground = f";margin:9px 0 0;background:{palette.PARTS['free']}"
    return _bar(anatomy, names, full, height=18, style=ground) if full > 0 else ""


def colour_of(part: Part) -> str:
    """Return the colour of a part, or of what a name keeps."""
    return palette.PARTS.get(part.name, palette.KEPT)


def _bar(
    anatomy: Anatomy, names: Sequence[str], full: float, *, height: int = 16, style: str = ""
) -> str:
    pieces = (
        (colour_of(part), part.bytes, f"{part.label} {format_bytes(part.bytes)}")
        for part in anatomy.parts
        if part.name in names and part.bytes >= LEAST_DRAWN * full
    )
    allocated = f"allocated {format_bytes(anatomy.allocated)}"
    label = f"{anatomy.device.key} {moment_text(anatomy)}: {allocated}"
    return kit.bar(pieces, full, label, height=height, style=style)


def _longest(anatomies: Sequence[Anatomy], names: Sequence[str]) -> float:
    return max(sum(part.bytes for part in each.parts if part.name in names) for each in anatomies)


def _table(anatomies: Sequence[Anatomy]) -> kit.Fragment:
    last = anatomies[-1]
    present = {part.name for anatomy in anatomies for part in anatomy.parts}
    parts = [name for name in LABELS if name in present]
    own = {part.name: part.label for anatomy in anatomies for part in anatomy.parts}
    labels = _labels(last.device) | own
    sums = [
        name
        for name in SUMS
        if name in labels and any(not math.isnan(_value(each, name)) for each in anatomies)
    ]
    names = (*parts, *sums)
    columns: list[tuple[Column, Sequence[str]]] = []  # each with its cells
    for anatomy in anatomies:
        is_bound = anatomy.certainty == "at least"
        values = [(name, _value(anatomy, name)) for name in names]
        cells = [
            text_if_known(value, "≥ " * (is_bound and name == "allocated") + format_bytes(value))
            for name, value in values
        ]
        columns.append((Column(moment_text(anatomy)), cells))
    if (total := last.device.total) > 0:
        # Of the last moment only, lest the table grow too wide to be read.
        shares = [
            text_if_known(value := _value(last, name), format_share(value / total))
            for name in names
        ]
        columns.append((Column(f"of {format_bytes(total)}", is_quiet=True), shares))
    notes = {
        part.name: part.note for each in reversed(anatomies) for part in each.parts if part.note
    }
    if any(name in notes for name in names):
        texts = [plain(notes.get(name, "")) for name in names]
        columns.append((Column(is_words=True, is_quiet=True), texts))
    rows = [
        TableRow(
            (
                kit.marked(palette.PARTS[name], labels[name]) if name in LABELS else labels[name],
                *(cells[at] for _, cells in columns),
            ),
            is_sum=at >= len(parts),
            is_ruled=at == len(parts),
        )
        for at, name in enumerate(names)
    ]
    return table([Column("part", letters=20), *(column for column, _ in columns)], rows)


def _labels(device: Device) -> dict[str, str]:
    is_host = ":" not in device.key
    labels = {name: row.called(is_host=is_host) for name, row in TABLE.items()}
    return labels if is_host else labels | {"process": "this process"}


def _value(anatomy: Anatomy, name: str) -> float:
    return float(getattr(anatomy, name)) if name in SUMS else anatomy.bytes(name)


def text_if_known(value: float, text: str) -> str:
    """Return the text for a figure; nothing where it is NaN."""
    return "" if math.isnan(value) else text


def contents_text(contents: Contents) -> str:
    """Return models and optimizers in one line; empty where none was found.

    Such as ``BertModel, AdamW · 110,000,000 parameters, all trainable · float32``.
    """
    texts = [", ".join((*_named(contents.modules), *_named(contents.optimizers)))]
    if contents.parameters:
        share = contents.trainable / contents.parameters
        percent = f"{100 * share:.1f}" if share >= 0.1 else f"{100 * share:.2g}"
        some = f"{format_count(contents.trainable)} ({percent} %)"
        trainable = "all" if share >= ALL else some if contents.trainable else "none"
        in_all = " in all" * (len(contents.modules) > 1)
        count = format_count(contents.parameters)
        texts.append(f"{count} parameters{in_all}, {trainable} trainable")
    types = sorted(contents.dtypes.items(), key=lambda item: -item[1])[:MOST_NAMES]
    texts += [
        plain(name) if len(types) == 1 else f"{plain(name)} {format_bytes(size)}"
        for name, size in types
    ]
    sizes = sorted(contents.libraries.items(), key=lambda item: -item[1])
    buffers = _named([f"{plain(name)} {format_bytes(size)}" for name, size in sizes if size > 0])
    texts += [f"{LABELS['libraries']}: {', '.join(buffers)}"] if buffers else []
    return " \N{MIDDLE DOT} ".join(text for text in texts if text)


def _named(names: Sequence[str]) -> list[str]:
    counted = Counter(map(plain, names))
    texts = [
        f"{n} \N{MULTIPLICATION SIGN} {name}" if n > 1 else name for name, n in counted.items()
    ]
    more = len(texts) - MOST_NAMES
    return texts if more <= 0 else [*texts[:MOST_NAMES], f"{more} more"]
