"""The live memory at the peak as a picture and tables, in HTML that needs no script and in plain text."""

import base64
import gzip
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from hfmem_widget.features.stacks.live_at_peak import OTHERS
from hfmem_widget.session.stacks import (
    BEFORE,
    NO_NAMES,
    By,
    LivePeak,
    OverTime,
    Row,
    StackRecording,
    Stacks,
)
from hfmem_widget.text import (
    MIB,
    format_bytes,
    format_count,
    format_counted,
    format_duration,
    format_share,
    plain,
    unit_for,
)
from hfmem_widget.view import html as kit
from hfmem_widget.view import palette
from hfmem_widget.view.chart import svg as paint
from hfmem_widget.view.chart.shapes import Curve, Frame, PointMark, Word, time_ticks, value_ticks
from hfmem_widget.view.table import Column, TableRow, table

MOST_ROWS = 15
NAME_LENGTH = 100
FEW = 0.1 * MIB  # smaller sizes are given in bytes

HEADS: tuple[tuple[By, str], ...] = (
    ("line", "by source line"),
    ("module", "by module"),
    ("operator", "by operator"),
)

VIEWER = "https://pytorch.org/memory_viz"
TITLE = "live at the peak"
SAVE = 'session.stacks.save("peak.pickle")'


def stacks_bundle(stacks: Stacks) -> dict[str, str]:
    """Return the live memory at each device's peak by MIME type, without devices that have no events."""
    shown = [peak for peak in stacks.peaks if peak.bytes or peak.entries]
    if not shown:
        nothing = "No allocation was recorded"
        if stacks.recording.way == "operators":
            nothing = (
                "No torch operator of this thread allocated a tensor; allocations of NumPy, Python and other "
                "threads are not traced"
            )
        return kit.bundle(
            kit.headed(TITLE), kit.note(". ".join((nothing, *stacks.recording.notes)))
        )
    facts = _facts(shown, stacks.recording)
    script = kit.script("moments") if any(peak.over_time for peak in shown) else ""
    return kit.bundle(
        kit.headed(TITLE),
        *peaks_shown(shown, scripted=True),
        *kit.notes(facts),
        _how_to_keep(stacks),
        kit.Fragment(script),
    )


def peaks_shown(peaks: Sequence[LivePeak], *, scripted: bool = False) -> list[kit.Fragment]:
    """Return the pictures and tables of each device; if `scripted`, with the data for a script's clicks."""
    return [_peak(peak, is_first=peak is peaks[0], scripted=scripted) for peak in peaks]


def _facts(peaks: Sequence[LivePeak], recording: StackRecording) -> list[str]:
    sentences = [(f"{peak.device}: " if len(peaks) > 1 else "") + peak.certainty for peak in peaks]
    if recording.began >= 0.05:
        began = format_duration(recording.began)
        kind = peaks[0].device.partition(":")[0].upper()
        sentences.append(f"Recording began when {kind} was initialised, {began} after the start.")
    events = format_counted(sum(peak.entries for peak in peaks), "event")
    kept = " (the last of them)" if any(peak.wrapped for peak in peaks) else ""
    cost = ""
    if not math.isnan(recording.seconds):
        about = "about" if recording.way == "allocator" else "at least"
        cost = f", which slowed the cell down by {about} {format_duration(recording.seconds)}"
    took = f"; reading the record took {format_duration(recording.snapshot)} afterwards"
    took = "" if math.isnan(recording.snapshot) else took  # unknown in a session from a file
    sentences.append(f"{events} recorded{kept}{cost}{took}.")
    return [*sentences, *recording.notes]


def _how_to_keep(stacks: Stacks) -> kit.Fragment:
    if not stacks.pickled:
        return kit.NOTHING
    viewer = f'<a href="{VIEWER}" style="color:inherit">{VIEWER.removeprefix("https://")}</a>'
    note = kit.words(
        kit.words("With", kit.code("%%memwatch --stacks -o session")),
        kit.words(
            ",", kit.code(SAVE), "writes what", kit.Fragment(viewer), "reads. No file was written."
        ),
        between="",
    )
    return kit.Fragment(kit.note(note).html)


def _peak(peak: LivePeak, *, is_first: bool, scripted: bool) -> kit.Fragment:
    when = "" if math.isnan(peak.time) else f", {format_duration(peak.time)} after the start"
    blocks = sum(site.blocks for site in peak.sites)
    counted = format_counted(blocks, "tensor" if peak.device == "cpu" else "block")
    title = f"{peak.device}: {_size(peak.bytes)} in {counted}{when}"
    head = kit.Fragment(kit.faint(title).html, f"live {peak.moment} on {plain(title)}")
    charts = {by: _chart(peak, by, name, scripted=scripted) for by, name in HEADS}
    chart = kit.Fragment(charts.pop("line"))
    tables = (
        _table(peak, by, name, charts.get(by, ""), is_open=is_first and by == "line")
        for by, name in HEADS
    )
    return kit.block("margin:0 0 6px", kit.words(head, chart, *tables, between="\n\n"))


def _chart(peak: LivePeak, by: By, head: str, *, scripted: bool) -> str:
    title = (
        f"What was allocated on {plain(peak.device)} over time, {head}; the tables below list it"
    )
    chart = "" if peak.over_time is None else chart_html(peak.over_time, by, title)
    if peak.over_time is None or not chart or not scripted:
        return chart
    data = moments_data(peak.over_time, by)
    return kit.drawn_by_script("data-hfmem-moments", data, kit.Fragment(chart)).html


def _table(peak: LivePeak, by: By, head: str, chart: str, *, is_open: bool) -> kit.Fragment:
    peaks, over_time = peak.rows(by), peak.over_time
    bands = over_time.bands[by] if over_time is not None else ()
    colours = colours_of(over_time, by) if over_time is not None else {}
    highest = {band.name: band.highest for band in bands if band.name != OTHERS}
    shown = [row for at, row in enumerate(peaks) if at < MOST_ROWS or row.name in highest]
    rows = [_row(row, colours.get(row.name, ""), highest.pop(row.name, 0)) for row in shown]
    if others := [row for row in peaks if row not in shown]:
        size, share = sum(row.bytes for row in others), sum(row.share for row in others)
        name = f"everything else ({format_count(len(others))})"
        rows.append(TableRow((name, _size(size), format_share(share)), is_quiet=True))
    # The steps from the sum to the allocator's own peak.
    sums: dict[str, float] = {f"live {peak.moment}": peak.bytes}
    if peak.rounding >= 0:
        sums["rounded up to whole blocks by the allocator"] = peak.rounding
        sums["peak allocated"] = peak.allocated
    rows += [
        TableRow((name, _size(size), ""), is_quiet=True, is_ruled=at == 0)
        for at, (name, size) in enumerate(sums.items())
    ]
    columns = [Column(), Column(is_bold=True), Column(is_quiet=True)]
    plain_rows = [replace(row, cells=row.cells[:3]) for row in rows]
    html_table = text_table = table(columns, plain_rows, names_last=True, fills=True)
    if bands:  # plain text has no heads to tell these figures apart
        gone = (
            Row(band.name, 0, 0, 0.0, "", band.source) for band in bands if band.name in highest
        )
        rows[len(shown) : len(shown)] = [
            _row(row, colours[row.name], highest[row.name]) for row in gone
        ]
        heads = ("", "at the peak", "", "most at any time")
        columns = [Column(head, is_bold=at == 1, is_quiet=at > 1) for at, head in enumerate(heads)]
        html_table = table(columns, rows, fills=True, scrolls=head)
    return kit.fold(
        kit.Fragment(f"{head} {format_count(len(peaks))}", head),
        kit.Fragment(chart + html_table.html, text_table.text),
        is_open=is_open,
        style="margin:3px 0",
    )


def _row(row: Row, colour: str, highest: int) -> TableRow:
    name = plain(row.name, NAME_LENGTH)
    contents: list[kit.Content] = [name if name in NO_NAMES else kit.code(name)]
    if row.source:
        contents.append(kit.code(row.source, NAME_LENGTH, kit.FAINT))
    if row.blocks > 1:
        contents.append(kit.faint(f"\u00d7 {format_count(row.blocks)}", style=kit.SMALL))
    label = kit.words(*contents, between="  ")
    label = kit.marked(colour, label) if colour else label
    most = (kit.Fragment(kit.shown(_size(highest)).html),) if highest else ()
    return TableRow((label, _size(row.bytes), format_share(row.share), *most))


def _size(size: float) -> str:
    return f"{format_count(size)} B" if 0 < size < FEW else format_bytes(size)


HEIGHT = 170  # pixels
COLUMNS = 150  # of the chart; a slope is at most one column wide
HEADROOM = 1.16  # height of the chart by the peak, for the peak's words
BAND_LENGTH = 52  # characters of a band's name below the chart


def colours_of(over_time: OverTime, by: By) -> Mapping[str, str]:
    """Return the colour of each band by its name."""
    fixed = {BEFORE: palette.PARTS["before"], OTHERS: palette.PARTS["unattributed"]}
    hues = iter(palette.BANDS)
    return {
        band.name: fixed[band.name] if band.name in fixed else next(hues)
        for band in over_time.bands[by]
    }


def chart_html(over_time: OverTime, by: By, title: str) -> str:
    """Return the bands with axes and a legend; empty if nothing changed."""
    peak = max(over_time.allocated)
    if not peak or len(over_time.moments) < 2:
        return ""
    frame, curves = _frame(over_time, peak), [*_curves(over_time, by)]
    tipped = [replace(curve, is_key=False) for curve in curves]  # curves with a key have no tips
    at = over_time.moments[over_time.allocated.index(peak)]
    words = f"{format_bytes(peak)} at the peak"
    share = frame.share(at)
    side = "" if 0.15 < share < 0.85 else "right" if share < 0.5 else "left"
    drawn = [
        paint.axes(frame, HEIGHT),
        paint.stretched(HEIGHT, paint.curves_svg(tipped, frame, HEIGHT)),
        paint.mark_svg(PointMark("triangle", at, peak, words), frame, HEIGHT),
        paint.word_svg(Word(words, peak, side, at, is_off=True), frame, HEIGHT),
    ]
    picture = paint.picture(title, HEIGHT + paint.FOOT, "".join(drawn))
    keys = paint.legend(reversed(curves), f";margin:2px 0 6px {paint.GUTTER}px;font-size:11.5px")
    return f'<div style="padding:4px 20px 0 {paint.GUTTER}px">{picture}</div>{keys}'


def moments_data(over_time: OverTime, by: By) -> str:
    """Return the bytes of each band at each moment for a script, as Base64 of gzipped JSON."""
    colours = colours_of(over_time, by)
    bands = [
        [
            *(plain(text, BAND_LENGTH) for text in (band.name, band.source)),
            colours[band.name],
            band.sizes,
        ]
        for band in over_time.bands[by]
    ]
    moments = [round(moment, 6) for moment in over_time.moments]
    held = {"moments": moments, "isTimed": over_time.is_timed, "bands": bands}
    packed = gzip.compress(json.dumps(held, separators=(",", ":")).encode(), mtime=0)
    return base64.b64encode(packed).decode()


def _frame(over_time: OverTime, peak: int) -> Frame:
    first, last = min(0.0, over_time.moments[0]), over_time.moments[-1]
    unit = unit_for(peak)
    ticks = time_ticks(last) if over_time.is_timed else value_ticks(last, "events")
    return Frame(first, last, peak * HEADROOM, unit, ticks, value_ticks(peak / unit[0], unit[1]))


def _curves(over_time: OverTime, by: By) -> Iterator[Curve]:
    bands, colours = over_time.bands[by], colours_of(over_time, by)
    edges = np.cumsum(np.array([band.sizes for band in bands], dtype=np.int64), axis=0)
    for band, edge in zip(reversed(bands), reversed(edges.tolist()), strict=True):
        points = [*zip(over_time.moments, edge, strict=True)]
        points = [points[0], *_drawn(points)]
        name = plain(f"{band.name}  {band.source}".strip(), BAND_LENGTH)
        tip = f"{name}: at most {format_bytes(band.highest)}"
        yield Curve(points, fill=colours[band.name], name=name, tip=tip)


def _drawn(points: list[tuple[float, int]]) -> Iterator[tuple[float, float]]:
    """Yield the points after the first one: steps to the next moment's height, or slopes if it is near."""
    near = (points[-1][0] - points[0][0]) / COLUMNS
    for (since, before), (at, after) in pairwise(points):
        if before != after and at - since > near:
            yield at, before
        yield at, after
