"""What held memory over time, as a stack of bands: inline SVG without a script."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise

import numpy as np

from hfmem_widget.features.stacks.over_time import OTHERS
from hfmem_widget.session.stacks import BEFORE, By, OverTime
from hfmem_widget.text import format_bytes, plain, unit_for
from hfmem_widget.view import palette
from hfmem_widget.view.chart import svg as paint
from hfmem_widget.view.chart.shapes import Curve, Frame, PointMark, Word, time_ticks, value_ticks

HEIGHT = 170  # pixels
COLUMNS = 150  # a slope is at most as wide as one
HEADROOM = 1.16  # above the peak, for its words
NAME_LENGTH = 52  # characters of a band's name below the chart


def colours_of(over_time: OverTime, by: By) -> Mapping[str, str]:
    """Return the colour of each band by its name."""
    fixed = {BEFORE: palette.PARTS["before"], OTHERS: palette.PARTS["unattributed"]}
    hues = iter(palette.BANDS)
    return {
        band.name: fixed[band.name] if band.name in fixed else next(hues)
        for band in over_time.bands[by]
    }


def chart_html(over_time: OverTime, by: By, title: str) -> str:
    """Return the bands with axes and a legend; empty where nothing changed."""
    peak = max(over_time.allocated)
    if not peak or len(over_time.moments) < 2:
        return ""
    frame, curves = _frame(over_time, peak), [*_curves(over_time, by)]
    tipped = [replace(curve, is_key=False) for curve in curves]  # those of a legend have no tips
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
    """Return what each band held at each moment, for a script: Base64 of the gzip of JSON."""
    colours = colours_of(over_time, by)
    bands = [
        [
            *(plain(text, NAME_LENGTH) for text in (band.name, band.source)),
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
    """Yield the upper edges of the bands, the highest first: each is drawn over those above it."""
    bands, colours = over_time.bands[by], colours_of(over_time, by)
    edges = np.cumsum(np.array([band.sizes for band in bands], dtype=np.int64), axis=0)
    for band, edge in zip(reversed(bands), reversed(edges.tolist()), strict=True):
        points = [*zip(over_time.moments, edge, strict=True)]
        points = [points[0], *_drawn(points)]
        name = plain(f"{band.name}  {band.source}".strip(), NAME_LENGTH)
        tip = f"{name}: at most {format_bytes(band.highest)}"
        yield Curve(points, fill=colours[band.name], name=name, tip=tip)


def _drawn(points: list[tuple[float, int]]) -> Iterator[tuple[float, float]]:
    """Yield what follows the first point: a height stays until the next moment, or slopes to it if near."""
    near = (points[-1][0] - points[0][0]) / COLUMNS
    for (since, before), (at, after) in pairwise(points):
        if before != after and at - since > near:
            yield at, before
        yield at, after
