"""What was live at the peak: a picture and tables, in HTML that needs no script, and plain text."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hfmem_widget.features.stacks.call_sites import NO_NAMES
from hfmem_widget.features.stacks.icicle import icicle_html
from hfmem_widget.session.stacks import By, LivePeak, Recording, Row, Stacks
from hfmem_widget.text import (
    MIB,
    format_bytes,
    format_count,
    format_duration,
    format_share,
    plain,
)
from hfmem_widget.view import html as kit
from hfmem_widget.view.table import Column, table
from hfmem_widget.view.table import Row as TableRow

MOST_ROWS = 15
NAME_LENGTH = 100
FEW = 0.1 * MIB
"""Below this, bytes are told as such."""

HEADS: tuple[tuple[By, str], ...] = (
    ("line", "by source line"),
    ("module", "by module"),
    ("operator", "by operator"),
)
VIEWER = "https://pytorch.org/memory_viz"
TITLE = "live at the peak"
SAVE = 'session.stacks.save("peak.pickle")'


def stacks_bundle(stacks: Stacks) -> dict[str, str]:
    """Return what was live at the peak of each device by MIME type; of a device that had nothing, nothing."""
    shown = [one for one in stacks.peaks if one.bytes or one.entries]
    if not shown:
        told = "No allocation was recorded"
        if stacks.recording.way == "operators":
            told = (
                "No torch operator of this thread allocated a tensor; allocations of NumPy, Python and other "
                "threads are not traced"
            )
        told = ". ".join((told, *stacks.recording.notes))
        return kit.bundle(kit.headed(TITLE), kit.note(told))
    facts = _facts(shown, stacks.recording)
    peaks = (_peak(one, is_first=at == 0) for at, one in enumerate(shown))
    return kit.bundle(kit.headed(TITLE), *peaks, *kit.notes(facts), _how_to_keep(stacks))


def _title(peak: LivePeak) -> str:
    when = "" if math.isnan(peak.time) else f", {format_duration(peak.time)} after the start"
    blocks = sum(site.blocks for site in peak.sites)
    what = "tensor" if peak.device == "cpu" else "block"
    what += "" if blocks == 1 else "s"
    return f"{peak.device}: {_size(peak.bytes)} in {format_count(blocks)} {what}{when}"


def _sums(peak: LivePeak) -> list[tuple[str, str]]:
    """Return what stands below each table: the sum, and how it comes to the allocator's own peak."""
    sums = [("live at the peak", _size(peak.bytes))]
    if peak.rounding >= 0:
        sums.append(("rounded up to whole blocks by the allocator", _size(peak.rounding)))
        sums.append(("peak allocated", _size(peak.allocated)))
    return sums


def _certainty(peak: LivePeak) -> str:
    """Say how the sum stands to the allocator's own figure."""
    if peak.device == "cpu":
        told = (
            "Counts the tensors that this thread's operators return, each storage once; temporaries inside "
            "an operator are not included."
        )
    elif peak.exact:
        told = (
            f"Matches the allocator's own peak to the byte: {format_count(peak.highest)} requested."
        )
    elif math.isnan(peak.requested):
        return "The allocator's exact peak is unknown, so this cannot be checked against it."
    else:
        off = abs(peak.requested - peak.highest)
        told = (
            f"Differs from the allocator's own peak by {format_bytes(off)} "
            f"({format_count(peak.requested)} bytes requested)."
        )
    if peak.wrapped and not peak.exact:
        told += (
            f" Only the last {format_count(peak.entries)} events were recorded, beginning "
            f"{format_duration(peak.since)} after the start; the peak may have been earlier."
        )
    return told


def _facts(peaks: Sequence[LivePeak], recording: Recording) -> list[str]:
    """Return the sentences below: how certain it is, and what recording cost."""
    several = len(peaks) > 1
    told = [f"{one.device}: {_certainty(one)}" if several else _certainty(one) for one in peaks]
    if recording.began >= 0.05:
        told.append(
            f"Recording began when CUDA was initialised, {format_duration(recording.began)} after the start."
        )
    count = sum(one.entries for one in peaks)
    events = "1 event" if count == 1 else f"{format_count(count)} events"
    kept = " (the last of them)" if any(one.wrapped for one in peaks) else ""
    cost = ""
    if not math.isnan(recording.seconds):
        about = "about " if recording.way == "allocator" else "at least "
        cost = f", which slowed the cell down by {about}{format_duration(recording.seconds)}"
    read = format_duration(recording.snapshot)
    told.append(f"{events} recorded{kept}{cost}; reading the record took {read} afterwards.")
    return [*told, *recording.notes]


def _how_to_keep(stacks: Stacks) -> kit.Fragment:
    """Return what belongs to the HTML alone: plain text has no link."""
    if not stacks.can_be_saved:
        return kit.NOTHING
    viewer = f'<a href="{VIEWER}" style="color:inherit">{VIEWER.removeprefix("https://")}</a>'
    told = kit.words(
        kit.words("With", kit.code("%%memwatch --stacks -o session")),
        kit.words(
            ",", kit.code(SAVE), "writes what", kit.Fragment(viewer), "reads. No file was written."
        ),
        between="",
    )
    return kit.Fragment(kit.note(told).html)


def _peak(peak: LivePeak, *, is_first: bool) -> kit.Fragment:
    tables = (_table(peak, by, head, is_open=is_first and by == "line") for by, head in HEADS)
    head = kit.Fragment(kit.quiet(_title(peak)).html, f"live at the peak of {plain(_title(peak))}")
    return kit.block(
        "margin:0 0 6px", kit.words(head, kit.Fragment(icicle_html(peak)), *tables, between="\n\n")
    )


def _table(peak: LivePeak, by: By, head: str, *, is_open: bool) -> kit.Fragment:
    rows = peak.rows(by)
    told = [_row(row) for row in rows[:MOST_ROWS]]
    if rows[MOST_ROWS:]:
        told.append(_everything_else(rows[MOST_ROWS:]))
    told += [
        TableRow((name, size, ""), is_quiet=True, is_ruled=at == 0)
        for at, (name, size) in enumerate(_sums(peak))
    ]
    columns = (Column(), Column(is_bold=True), Column(is_quiet=True))
    count = kit.quiet(format_count(len(rows)))
    summary = kit.Fragment(f"{head} {count.html}", head)
    return kit.fold(
        summary,
        table(columns, told, names_last=True, fills=True),
        is_open=is_open,
        style="margin:3px 0",
    )


def _row(row: Row) -> TableRow:
    name = plain(row.name, NAME_LENGTH)
    told: list[kit.Content] = [name if name in NO_NAMES else kit.code(name)]
    told += [kit.code(row.source, NAME_LENGTH, kit.QUIET)] if row.source else []
    told += (
        [kit.quiet(f"\u00d7 {format_count(row.blocks)}", style=kit.SMALL)] if row.blocks > 1 else []
    )
    return TableRow((kit.words(*told, between="  "), _size(row.bytes), format_share(row.share)))


def _everything_else(rows: Sequence[Row]) -> TableRow:
    size, share = sum(row.bytes for row in rows), sum(row.share for row in rows)
    name = f"everything else ({format_count(len(rows))})"
    return TableRow((name, _size(size), format_share(share)), is_quiet=True)


def _size(size: float) -> str:
    """Return bytes as text, in which a few are not told as none."""
    return f"{format_count(size)} B" if 0 < size < FEW else format_bytes(size)
