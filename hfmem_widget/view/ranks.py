"""All ranks of a run: figures, a table, phases compared, and ranks by time as a picture."""

import base64
import math
import struct
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence

import numpy as np

from hfmem_widget.session import RankRow, Ranks, RankStrip, Session
from hfmem_widget.session.rank_records import (
    FULL_CELL,
    SHOWN_SINGLY,
    SILENT_CELL,
    STRIP_COLUMNS,
    TABLE_ROWS,
)
from hfmem_widget.text import (
    format_bytes,
    format_count,
    format_counted,
    format_duration,
    format_share,
    number,
    plain,
    unit_for,
)
from hfmem_widget.view import html as kit
from hfmem_widget.view import palette
from hfmem_widget.view.chart.shapes import Frame, Ticks, time_ticks
from hfmem_widget.view.chart.svg import FOOT, GUTTER, axes, picture, trimmed
from hfmem_widget.view.line import FEW, NAME, SAME, headroom_text, length
from hfmem_widget.view.table import Column, TableRow, table

Cells = list[list[str]]

_WORDS = {"node", "device", ""}  # heads of columns

FINE = 100  # a scale up to here has a colour for each cell; further up two share one, for a smaller image
EMPTY_CELL = 251  # of the image, before the first column
SILENT = "#b8bec5"
SCALE = (
    *("440154", "482475", "414487", "355f8d", "2a788e", "21918c"),
    *("22a884", "44bf70", "7ad151", "bddf26", "fde725"),
)
"""Viridis: distinguishable for every eye, in grey print, on white and on black."""

ENDS = (4, 10, 20, 50, 100, 150, FULL_CELL)
"""Cells at which a scale may end, from 2 to 100 %: few, so that colours seldom change in a run."""

_HIGH_ROW, _LOW_ROW, _LEAST_HEIGHT = 14, 2.25, 112  # pixels
_STRETCHED = 'preserveAspectRatio="none" style="image-rendering:pixelated"'
_BETWEEN = 12  # pixels from one word at the side to the next


def skew_of(ranks: Ranks) -> tuple[str, int, float] | None:
    """Return the phase, rank and share of the largest excess over the median, or over the other of two."""
    compared: list[tuple[str, int, float, float, float]] = [
        (phase.kind, phase.rank, phase.low, phase.median, phase.high) for phase in ranks.phases
    ]
    if not compared and (worst := ranks.worst) is not None:
        compared = [("peak", worst.rank, ranks.lowest, ranks.median, worst.peak)]
    skews = [
        (kind, rank, high / reference - 1)
        for kind, rank, low, median, high in compared
        if (reference := median if ranks.world > FEW else low) > 0 and high > 0
    ]
    return max(skews, key=lambda skew: skew[2], default=None)


def rank_figures(ranks: Ranks) -> list[tuple[str, str, str]]:
    """Return the figures of a card, each as its label, its value, and the small text below."""
    worst = ranks.worst or RankRow(0)
    has_peak = not math.isnan(worst.peak)
    certainty = f" ({worst.certainty})" if has_peak else ""
    where = kit.UNBROKEN.join(("rank", str(worst.rank)))
    bound = "≥ " if worst.certainty == "at least" else ""
    name = "worst peak" if ranks.world > 1 else "peak"
    on = f" · {plain(worst.host, NAME)}" if worst.host and ranks.nodes > 1 else ""
    figures = [(f"{name}{certainty}", bound + format_bytes(worst.peak), f"{where}{on}" * has_peak)]
    if ranks.world > FEW:
        of = f"of {format_counted(ranks.world, 'rank')}"
        figures.append(("median peak", format_bytes(ranks.median), of))
    if ranks.world > 1:
        figures.append(("lowest peak", format_bytes(ranks.lowest), f"rank {ranks.lowest_rank}"))
    headroom = "headroom of the worst" if ranks.world > 1 else "headroom"
    of = f"of {format_bytes(worst.total)}" if worst.total > 0 else ""
    figures.append((headroom, headroom_text(worst.total - worst.peak, worst.total), of))
    if (skew := skew_of(ranks)) is not None and ranks.world > 1:
        kind, rank, share = skew
        where = "skew of the peaks" if kind == "peak" else f"skew in {kind}"
        over = "the median" if ranks.world > FEW else "the other"
        text = (f"+{format_share(share)}", f"rank {rank} over {over}")
        figures.append((where, *(text if share >= SAME else ("<1 %", "between ranks"))))
    return figures


def flag_text(row: RankRow) -> str:
    """Return the text of a rank's flag: why the rank needs a look."""
    if row.flag == "silent" and row.silent > 0:
        whole = round(row.silent)
        return f"silent for {whole} s" if whole < 60 else f"silent for {format_duration(whole)}"
    return "out of memory" if row.flag == "oom" else row.flag


def rank_cells(ranks: Ranks) -> tuple[list[str], Cells]:
    """Return the heads of the table, and a row for each rank; without columns that say nothing."""
    rows = ranks.table[:TABLE_ROWS]
    peaks = [row.peak for row in rows if math.isfinite(row.peak)]
    divisor, unit = unit_for(max(peaks, default=math.nan))

    def bytes_(value: float, bound: str = "") -> str:
        return f"{bound}{number(value, divisor)}" if math.isfinite(value) else ""

    devices = [plain(row.device, NAME) for row in rows]
    columns = {
        "rank": [str(row.rank) for row in rows],
        "node": [plain(row.host, NAME) if ranks.nodes > 1 else "" for row in rows],
        "device": devices if len(set(devices)) > 1 else [""] * len(rows),
        f"peak, {unit}": [bytes_(row.peak, "≥ " * (row.certainty == "at least")) for row in rows],
        "weights": [bytes_(row.weights) for row in rows],
        "activations": [bytes_(row.activations) for row in rows],
        "step": [format_count(row.step) if row.step > 0 else "" for row in rows],
        "restarts": [format_count(row.attempt) if row.attempt > 0 else "" for row in rows],
        "": [flag_text(row) for row in rows],
    }
    full = {head: cells for head, cells in columns.items() if {*cells} - {"", "0.00"}}
    return list(full), [list(row) for row in zip(*full.values(), strict=True)]


def phase_cells(ranks: Ranks) -> tuple[list[str], Cells]:
    """Return the heads of the phases compared, and a row for each phase."""
    divisor, unit = unit_for(max((phase.high for phase in ranks.phases), default=math.nan))
    shown = {"low": "lowest", "median": "median", "high": "highest"}
    if ranks.world <= FEW:
        del shown["median"]
    rows = [
        [phase.kind, *(number(getattr(phase, name), divisor) for name in shown), str(phase.rank)]
        for phase in ranks.phases
    ]
    return [f"phase, {unit}", *shown.values(), "rank"], rows


def ranks_html(session: Session) -> kit.Fragment:
    """Return the strip, the table and the phases of an overview; nothing for any other session."""
    ranks = session.ranks
    if ranks is None or ranks.world < FEW:
        return kit.NOTHING
    flagged = [bool(row.flag) for row in ranks.table]
    drawn = [_drawn(*rank_cells(ranks), flagged), _drawn(*phase_cells(ranks))]
    tables = "".join(f'<div style="min-width:0">{each.html}</div>' for each in drawn if each)
    style = "display:flex;flex-wrap:wrap;gap:4px 44px;margin:8px 0 0"
    side_by_side = f'<div style="{style}">{tables}</div>' * bool(tables)
    return kit.Fragment(strip_html(ranks, length(session)).html + side_by_side)


def _drawn(heads: list[str], rows: Cells, flagged: Sequence[bool] = ()) -> kit.Fragment:
    columns = [Column(head, is_words=head in _WORDS, is_quiet=not head) for head in heads]
    lines = []
    for at, (first, *rest) in enumerate(rows):
        # An invisible mark keeps the names aligned.
        colour = palette.BAD if at < len(flagged) and flagged[at] else "transparent"
        name = kit.marked(colour, first, kit.BULLET) if any(flagged) else first
        lines.append(TableRow((name, *rest), is_sum=bool(flagged) and at == 0))
    return table(columns, lines, size=12)


def full_of(cells: bytes) -> int:
    """Return the cell at which the scale ends: a round share of the device that no cell exceeds, if any."""
    highest = max((cell for cell in cells if cell != SILENT_CELL), default=0)
    return next((end for end in ENDS if highest <= end), FULL_CELL)


def colour(cell: int, full: int = FULL_CELL) -> str:
    """Return the colour of a cell on a scale that ends at `full`, as ``rrggbb``."""
    if cell == SILENT_CELL:
        return SILENT[1:]
    place = min(1.0, cell / full) * (len(SCALE) - 1)
    at = min(int(place), len(SCALE) - 2)
    ends = zip(bytes.fromhex(SCALE[at]), bytes.fromhex(SCALE[at + 1]), strict=True)
    return bytes(int(low + (place - at) * (high - low) + 0.5) for low, high in ends).hex()


def height_of(rows: int) -> int:
    """Return the height in pixels of a strip of some rows."""
    is_high = rows <= SHOWN_SINGLY
    return _HIGH_ROW * rows if is_high else math.ceil(max(_LEAST_HEIGHT, _LOW_ROW * rows))


def row_of(strip: RankStrip, rank: int) -> int:
    """Return the row of a rank."""
    return max(0, bisect_right(strip.first, rank) - 1)


def side_words(ranks: Ranks, height: float) -> list[tuple[int, bool]]:
    """Return the rows with a word at the side, with room between them, and whether each is the worst."""
    strip, worst = ranks.strip, ranks.worst
    rows = len(strip.first)
    if not rows:
        return []
    named = [] if worst is None or ranks.world < 2 else [row_of(strip, worst.rank)]
    wanted = [*named, *(row_of(strip, row.rank) for row in ranks.table if row.flag), 0, rows - 1]
    wanted += range(rows) if rows <= SHOWN_SINGLY else []
    placed: list[int] = []
    for row in wanted:
        if all(abs(row - other) * height >= _BETWEEN * rows for other in placed):
            placed.append(row)
    return [(row, [row] == named) for row in placed]


def word_at(ranks: Ranks, row: int) -> str:
    """Return the number of a row's rank; of several, the flagged or worst one's, or the first."""
    first = ranks.strip.first
    until = first[row + 1] if row + 1 < len(first) else ranks.world
    looked_at = (each.rank for each in ranks.table if each.flag or each is ranks.worst)
    of_row = (rank for rank in looked_at if first[row] <= rank < until)
    is_last = row == len(first) - 1 and row > 0
    return str(next(of_row, until - 1 if is_last else first[row]))


def about(ranks: Ranks) -> str:
    """Return a description of the rows."""
    rows = len(ranks.strip.first)
    if rows == ranks.world:
        return "a row for each rank"
    size = ranks.world / rows
    ranks_a_row = format_count(size) if size == int(size) else f"about {size:.1f}"
    return f"{rows} rows, each the highest of {ranks_a_row} neighbouring ranks"


def strip_html(ranks: Ranks, duration: float) -> kit.Fragment:
    """Return the strip with words at its side and below; nothing without a strip."""
    strip = ranks.strip
    rows = len(strip.first)
    if not rows or not strip.at or not duration > 0:
        return kit.NOTHING
    height = height_of(rows)
    image = base64.b64encode(_image(strip, duration)).decode()
    frame = Frame(0.0, duration, 1.0, (1.0, ""), time_ticks(duration), Ticks((), ()))
    drawn = [
        f'<rect width="100%" height="{height}" fill="currentColor" fill-opacity=".05"/>',
        f'<image href="data:image/png;base64,{image}" width="100%" height="{height}" {_STRETCHED}/>',
        *_side(ranks, height),
        axes(frame, height),
    ]
    label = f"{format_count(ranks.world)} ranks over {format_duration(duration)}, {about(ranks)}"
    head = kit.words(kit.strong("ranks \N{MULTIPLICATION SIGN} time"), kit.faint(about(ranks)))
    title = kit.block(
        "margin:0 0 4px;display:flex;flex-wrap:wrap;gap:0 8px;align-items:baseline", head
    )
    body = picture(label, height + FOOT, "".join(drawn))
    html = f'<div style="padding:0 20px 0 {GUTTER}px">{body}</div>{_key(full_of(strip.cells))}'
    return kit.Fragment(f'<div style="margin:12px 0 0;font-size:12px">{title.html}{html}</div>')


def _side(ranks: Ranks, height: float) -> Iterator[str]:
    row_height = height / len(ranks.strip.first)
    for row, is_worst in side_words(ranks, height):
        y = (row + 0.5) * row_height
        ink = f'fill="{palette.PEAK}" font-weight="600"' if is_worst else 'fill-opacity=".75"'
        word = kit.shown(word_at(ranks, row)).html
        yield f'<text x="-9" y="{trimmed(y)}" dy=".35em" text-anchor="end" {ink}>{word}</text> '
        if is_worst:
            yield f'<path d="M-1 {trimmed(y)}l-5 -3.5v7z" fill="{palette.PEAK}"/>'
            yield (
                f'<svg x="100%" y="{trimmed(y)}" style="overflow:visible">'
                f'<path d="M1 0l5 -3.5v7z" fill="{palette.PEAK}"/></svg>'
            )


def _key(full: int) -> str:
    cells = range(0, FULL_CELL + 1, 10)
    boxes = "".join(
        f'<rect x="{at * 6}" width="6" height="9" fill="#{colour(cell)}"/>'
        for at, cell in enumerate(cells)
    )
    left, end = len(cells) * 6, format_share(full / FULL_CELL)
    drawn = (
        f'<g transform="translate(24)" fill-opacity="1">{boxes}<rect x="{left + 66}" width="10" height="9" '
        f'fill="{SILENT}"/></g><text x="0" y="9">0 %</text><text x="{left + 28}" y="9">{end}</text> '
        f'<text x="{left + 104}" y="9">silent</text>'
    )
    svg = (
        f'<svg role="img" aria-label="colours: share of the device" height="12" width="{left + 150}" '
        f'style="display:block;height:12px;max-width:none;font-size:10px" fill="currentColor" '
        f'fill-opacity=".75">{drawn}</svg>'
    )
    return f'<div style="margin:2px 0 0 {GUTTER}px">{kit.drawing(svg)}</div>'


def _image(strip: RankStrip, duration: float) -> bytes:
    """Return the cells as a PNG, with columns of equal length in time."""
    middles = (np.arange(STRIP_COLUMNS) + 0.5) / STRIP_COLUMNS * duration
    columns = np.searchsorted(strip.at, middles, side="right") - 1
    drawn = np.frombuffer(strip.cells, np.uint8).reshape(-1, len(strip.first))[columns].T
    full = full_of(strip.cells)
    step = 1 if full <= FINE else 2
    drawn = np.where(drawn > FULL_CELL, drawn, drawn - drawn % step)
    lines = np.where(columns < 0, EMPTY_CELL, drawn).astype(np.uint8)
    inks = "".join(colour(cell, full) for cell in range(256))
    # A PNG of indices into colours: rectangles would be 15,000 elements, and we do not depend on Pillow.
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", STRIP_COLUMNS, len(lines), 8, 3, 0, 0, 0)),
        (b"PLTE", bytes.fromhex(inks)),
        (b"tRNS", b"\xff" * EMPTY_CELL + b"\0"),
        (b"IDAT", zlib.compress(b"".join(b"\0" + bytes(line) for line in lines), 9)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )
