"""What was live at the peak: a picture and tables, in HTML that needs no script, and plain text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

from hfmem_widget.features.stacks.call_sites import NO_NAMES
from hfmem_widget.features.stacks.icicle import icicle_html
from hfmem_widget.session.stacks import By, LivePeak, Recording, Row, Stacks
from hfmem_widget.text import (
    MIB,
    for_html,
    format_bytes,
    format_count,
    format_duration,
    format_share,
    plain,
)
from hfmem_widget.view.root import BOX

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
SAVE = 'session.stacks.save("peak.pickle")'

_CODE = (
    "font-family:var(--jp-code-font-family,ui-monospace,monospace);font-size:.95em;"
    "background:none;padding:0;color:inherit;white-space:normal;overflow-wrap:anywhere"
)
_NAME = "padding:2px 0;text-align:left;vertical-align:top;border:0;font-weight:normal"
_CELL = "padding:2px 0 2px 14px;text-align:right;vertical-align:top;white-space:nowrap;border:0"
_QUIET = "opacity:.75"
_SMALL = f"font-size:11.5px;{_QUIET}"
_RULE = ";border-top:1px solid rgba(128,128,128,.35)"


def stacks_bundle(stacks: Stacks) -> dict[str, str]:
    """Return what was live at the peak of each device by MIME type; of a device that had nothing, nothing."""
    shown = [one for one in stacks.peaks if one.bytes or one.entries]
    if not shown:
        told = "no allocation was recorded"
        if stacks.recording.way == "operators":
            told = (
                "no torch operator of this thread made a tensor; what NumPy, Python itself and other threads "
                "allocate is not followed"
            )
        told = ". ".join((told, *stacks.recording.notes))
        html = f'{BOX}<div style="{_SMALL}">{escape(told)}</div></div>'
        return {"text/html": html, "text/plain": told}
    html = "".join(_peak_html(one, is_first=at == 0) for at, one in enumerate(shown))
    facts = _facts(shown, stacks.recording)
    below = "".join(f'<div style="{_SMALL}">{escape(one)}</div>' for one in facts)
    return {
        "text/html": f"{BOX}{html}{below}{_how_to_keep(stacks)}</div>",
        "text/plain": "\n".join([*(_peak_text(one) for one in shown), *facts]),
    }


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
            "Counted are the tensors of this thread's operators, each storage once; not what an operator "
            "uses within itself."
        )
    elif peak.exact:
        told = f"Equal to the allocator's own peak to the byte: {format_count(peak.highest)} requested."
    elif math.isnan(peak.requested):
        return "The allocator's own exact peak is not known, so this cannot be compared with it."
    else:
        off = abs(peak.requested - peak.highest)
        told = (
            f"The allocator's own peak is {format_bytes(off)} away "
            f"({format_count(peak.requested)} bytes requested)."
        )
    if peak.wrapped and not peak.exact:
        told += (
            f" Only the last {format_count(peak.entries)} events were kept, from "
            f"{format_duration(peak.since)} after the start on: the peak itself may have been earlier."
        )
    return told


def _facts(peaks: Sequence[LivePeak], recording: Recording) -> list[str]:
    """Return the sentences below: how certain it is, and what recording cost."""
    several = len(peaks) > 1
    told = [f"{one.device}: {_certainty(one)}" if several else _certainty(one) for one in peaks]
    if recording.began >= 0.05:
        told.append(
            f"Recording began with CUDA, {format_duration(recording.began)} after the start."
        )
    count = sum(one.entries for one in peaks)
    events = "1 event" if count == 1 else f"{format_count(count)} events"
    kept = " (the last of them)" if any(one.wrapped for one in peaks) else ""
    cost = ""
    if not math.isnan(recording.seconds):
        about = "about " if recording.way == "allocator" else "at least "
        cost = f", which made the cell {about}{format_duration(recording.seconds)} slower"
    read = format_duration(recording.snapshot)
    told.append(f"{events} recorded{kept}{cost}; reading the record took {read} afterwards.")
    return [*told, *recording.notes]


def _how_to_keep(stacks: Stacks) -> str:
    if not stacks.can_be_saved:
        return ""
    return (
        f'<div style="{_SMALL}">With <code style="{_CODE}">%%memwatch --stacks -o session</code>, '
        f'<code style="{_CODE}">{escape(SAVE)}</code> writes what '
        f'<a href="{VIEWER}" style="color:inherit">{VIEWER.removeprefix("https://")}</a> reads. '
        "No file was written.</div>"
    )


def _peak_html(peak: LivePeak, *, is_first: bool) -> str:
    tables = "".join(
        _table_html(peak, by, head, is_open=is_first and by == "line") for by, head in HEADS
    )
    return (
        '<div style="margin:0 0 6px"><div style="margin:0 0 5px"><strong>Live at the peak</strong> '
        f'<span style="{_QUIET}">{for_html(_title(peak))}</span></div>{icicle_html(peak)}{tables}</div>'
    )


def _table_html(peak: LivePeak, by: By, head: str, *, is_open: bool) -> str:
    rows = peak.rows(by)
    drawn = "".join(_row_html(row) for row in rows[:MOST_ROWS])
    if rows[MOST_ROWS:]:
        name, size, share = _everything_else(rows[MOST_ROWS:])
        drawn += _line_html(name, size, share)
    for at, (name, size) in enumerate(_sums(peak)):
        drawn += _line_html(name, size, "", _RULE if at == 0 else "")
    opened = " open" if is_open else ""
    return (
        f'<details{opened} style="margin:3px 0"><summary style="cursor:pointer">{head} '
        f'<span style="{_SMALL}">{format_count(len(rows))}</span></summary>'
        '<div style="overflow-x:auto"><table style="border-collapse:collapse;border:0;margin:2px 0 4px;'
        f'font-size:12.5px;color:inherit;width:100%;table-layout:auto"><tbody>{drawn}</tbody></table></div></details>'
    )


def _row_html(row: Row) -> str:
    source = f' <code style="{_CODE};{_QUIET}">{escape(row.source)}</code>' if row.source else ""
    times = (
        f' <span style="{_SMALL}">\u00d7 {format_count(row.blocks)}</span>'
        if row.blocks > 1
        else ""
    )
    return (
        # JupyterLab stripes rows; here they are the table's own.
        f'<tr style="background:none"><th scope="row" style="{_NAME}">'
        f"{_name(row.name)}{source}{times}</th>"
        f'<td style="{_CELL};font-weight:600">{escape(_size(row.bytes))}</td>'
        f'<td style="{_CELL};{_QUIET}">{format_share(row.share)}</td></tr>'
    )


def _name(name: str) -> str:
    told = escape(plain(name, NAME_LENGTH))
    # MathJax, which reads what stands between dollars, leaves code alone.
    return told if name in NO_NAMES else f'<code style="{_CODE}">{told}</code>'


def _line_html(name: str, size: str, share: str, style: str = "") -> str:
    return (
        f'<tr style="background:none"><th scope="row" style="{_NAME};{_QUIET}{style}">{escape(name)}</th>'
        f'<td style="{_CELL};{_QUIET}{style}">{escape(size)}</td>'
        f'<td style="{_CELL};{_QUIET}{style}">{escape(share)}</td></tr>'
    )


def _everything_else(rows: Sequence[Row]) -> tuple[str, str, str]:
    name = f"everything else ({format_count(len(rows))})"
    return name, _size(sum(row.bytes for row in rows)), format_share(sum(row.share for row in rows))


def _peak_text(peak: LivePeak) -> str:
    parts = [f"live at the peak of {plain(_title(peak))}"]
    for by, head in HEADS:
        parts += ["", head, *_rows_text(peak, by)]
    return "\n".join(parts)


def _rows_text(peak: LivePeak, by: By) -> Iterable[str]:
    rows = peak.rows(by)
    lines = [(_size(row.bytes), format_share(row.share), _named(row)) for row in rows[:MOST_ROWS]]
    if rows[MOST_ROWS:]:
        name, size, share = _everything_else(rows[MOST_ROWS:])
        lines.append((size, share, name))
    lines += [(size, "", name) for name, size in _sums(peak)]
    width = max(len(size) for size, _, _ in lines)
    for size, share, name in lines:
        yield f"{size:>{width}}  {share:>7}  {name}"


def _named(row: Row) -> str:
    source = f"  {row.source}" if row.source else ""
    times = f"  \u00d7 {format_count(row.blocks)}" if row.blocks > 1 else ""
    return f"{plain(row.name, NAME_LENGTH)}{source}{times}"


def _size(size: float) -> str:
    """Return bytes as text, in which a few are not told as none."""
    return f"{format_count(size)} B" if 0 < size < FEW else format_bytes(size)
