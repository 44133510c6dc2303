"""The anatomy as bars and a table, in HTML that needs no script and no kernel, and as plain text."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hfmem_widget.analysis.anatomy import END_MOMENT, NOW
from hfmem_widget.analysis.parts import LABELS, OF_ALLOCATED
from hfmem_widget.session import HELD, Anatomy, Contents
from hfmem_widget.session.series import TABLE
from hfmem_widget.text import format_bytes, format_count, format_share, plain
from hfmem_widget.view import html as kit
from hfmem_widget.view import palette
from hfmem_widget.view.chart.scene import CAPACITY_FROM
from hfmem_widget.view.line import NAME, NOTE_LENGTH, size_of
from hfmem_widget.view.table import Column, TableRow, table

NOTHING_FOUND = "No model or optimizer with tensors on this device was found."
SUMS = ("allocated", "reserved", "process")

PROCESS = tuple(LABELS)[: tuple(LABELS).index("children") + 1]
BESIDE = ("driver", "shared_memory", "others", "unexplained", "page_cache")
BESIDE_UP_TO = 2.0  # bytes of all users for one of the process up to which a bar shows the others
DRAWN_FROM = 0.15  # share of the capacity from which a bar of all of it shows more than a thin line
LEAST_DRAWN = 0.003  # share of a bar below which a part is too thin to be seen
LEAST_SEEN = 0.02  # share of the process's memory from which a part has a label below the bar

_FIGURE = re.compile(r"[\d.,]+ [KMGTP]iB")
MOST_NAMES = 3
ALL = 0.9995  # share of trainable parameters from which the text says "all"


def anatomy_bundle(
    anatomies: Sequence[Anatomy], *, title: str = "", contents: str = ""
) -> dict[str, str]:
    """Return anatomies by MIME type: a table for each device, with a column for each moment."""
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
    """Return the output of a single anatomy."""
    return anatomy_bundle([anatomy])


def moment_text(anatomy: Anatomy) -> str:
    """Return the moment as plain text, with the certainty of a peak."""
    moment = plain(anatomy.moment)
    return moment if moment in {NOW, END_MOMENT} else f"{moment} ({anatomy.certainty})"


def device_section(anatomies: Sequence[Anatomy]) -> kit.Fragment:
    """Return the bars, the table and the notes of one device at some moments."""
    device = anatomies[0].device
    about = [plain(device.name), format_bytes(device.total) if device.total > 0 else ""]
    by_words: dict[str, str] = {}  # the first of the notes that differ in figures alone
    for anatomy in anatomies:
        for note in anatomy.notes:
            is_of_all = all(note in each.notes for each in anatomies)
            text = note if is_of_all else f"{anatomy.moment.capitalize()}: {note}"
            by_words.setdefault(_FIGURE.sub("", note), text)
    notes = list(by_words.values())
    is_held = any(anatomy.bytes(name) > 0 for anatomy in anatomies for name in HELD)
    if any(anatomy.allocated > 0 for anatomy in anatomies) and not is_held:
        notes.append(NOTHING_FOUND)
    return kit.section(
        plain(device.key),
        " \N{MIDDLE DOT} ".join(text for text in about if text),
        _bars(anatomies),
        _table(anatomies),
        *kit.notes(plain(note, NOTE_LENGTH) for note in notes),
    )


def drawn_parts(anatomies: Sequence[Anatomy]) -> tuple[str, ...]:
    """Return the parts that bars show: no other users or free memory that would squeeze the process."""
    ours, all_parts = _longest(anatomies, PROCESS), _longest(anatomies, (*PROCESS, *BESIDE))
    if 0 < ours * BESIDE_UP_TO < all_parts:
        return PROCESS
    is_full = all_parts >= CAPACITY_FROM * anatomies[0].device.total or not all_parts
    return (*PROCESS, *BESIDE, "free") if is_full else (*PROCESS, *BESIDE)


def _bars(anatomies: Sequence[Anatomy]) -> kit.Fragment:
    names = drawn_parts(anatomies)
    full = _longest(anatomies, names)
    if not full > 0:
        return kit.NOTHING
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
    return kit.Fragment(f"<div>{rows}{scale}</div>")


def _bar(
    anatomy: Anatomy, names: Sequence[str], full: float, *, height: int = 16, style: str = ""
) -> str:
    pieces = (
        (palette.PARTS[part.name], part.bytes, f"{part.label} {format_bytes(part.bytes)}")
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
    is_host = ":" not in last.device.key
    named = {name: row.called(is_host=is_host) for name, row in TABLE.items()}
    labels = named | ({} if is_host else {"process": "this process"}) | own
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
        # Of the last moment alone, since the table must not grow too wide.
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


def _value(anatomy: Anatomy, name: str) -> float:
    return float(getattr(anatomy, name)) if name in SUMS else anatomy.bytes(name)


def text_if_known(value: float, text: str) -> str:
    """Return the text of a figure; empty where the figure is NaN."""
    return "" if math.isnan(value) else text


def bar_of(anatomy: Anatomy, capacity: float) -> kit.Fragment:
    """Return the memory at the peak as one bar with its labels; nothing where it is unknown."""
    names, free = drawn_parts([anatomy]), anatomy.bytes("free")
    known = [part for part in anatomy.parts if part.name != "free"]
    parts = [part for part in known if part.name in names]
    used = sum(part.bytes for part in parts)
    # The bar is as wide as the capacity, or as the memory in use where that is little of it.
    full = max(capacity if used >= DRAWN_FROM * capacity else used, used)
    if not full > 0:
        return kit.NOTHING
    ground = f";margin:9px 0 0;background:{palette.PARTS['free']}"
    bar = _bar(replace(anatomy, parts=tuple(parts)), names, full, height=18, style=ground)
    least = LEAST_SEEN * sum(part.bytes for part in parts if part.name not in BESIDE)
    labels: list[kit.Content] = [
        kit.marked(palette.PARTS[part.name], f"{part.label} {format_bytes(part.bytes)}")
        for part in parts
        if part.bytes >= least
    ]
    if full < capacity:
        whole = "in all" if len(parts) == len(known) else "this process"
        labels.append(f"{whole} {size_of(used, capacity)}")
    labels += [f"free {format_bytes(free)}"] if free > 0 else []
    return kit.Fragment(f"{bar}{kit.keys(labels, ';font-size:12px;margin:6px 0 0').html}")


def parts_text(anatomy: Anatomy) -> str:
    """Return the parts of a device's allocated memory, the largest first; empty where unknown."""
    known = [part for part in anatomy.parts if part.name in OF_ALLOCATED and part.bytes > 0]
    least = LEAST_SEEN * sum(part.bytes for part in known)
    seen = sorted((part for part in known if part.bytes >= least), key=lambda part: -part.bytes)
    if not {part.name for part in seen} & set(HELD):
        return ""
    return ", ".join(f"{plain(part.label, NAME)} {format_bytes(part.bytes)}" for part in seen)


def contents_text(contents: Contents) -> str:
    """Return one line such as ``BertModel, AdamW · 110,000,000 parameters, all trainable``, or nothing."""
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
