"""The words for the ranks of a run: figures, a table, and phases compared; as HTML and as plain text."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hfmem_widget.session import Peak, RankRow, Ranks, Session
from hfmem_widget.session.rank_records import TABLE_ROWS
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
from hfmem_widget.view.line import FEW, NAME, headroom_text, length, peak_text
from hfmem_widget.view.strip import strip_html
from hfmem_widget.view.table import Column, TableRow, table

SAME = 0.01
"""Share of a peak by which the rank that has it may differ: it was reported a moment earlier or later."""

Cells = list[list[str]]

_WORDS = {"node", "device", ""}
_FLAGS = {"oom": "out of memory"}


def peak_name(ranks: Ranks | None, peak: Peak) -> str:
    """Return what the peak in a chart is called: where it is the worst rank's, by that rank."""
    worst = ranks.worst if ranks is not None and ranks.world > 1 else None
    if worst is None or not abs(worst.peak - peak.value) <= SAME * peak.value:
        return f"peak {peak_text(peak)}"
    phase, own = plain(worst.phase, NAME), Peak(worst.peak, worst.certainty)
    return ", ".join((f"worst: rank {worst.rank}", peak_text(own), *([phase] if phase else [])))


def skew_of(ranks: Ranks) -> tuple[str, int, float] | None:
    """Return where one rank exceeds the median most, or the other of two: the phase, the rank, the share.

    Without phases it is that of the peaks.
    """
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
    """Return the figures of a card: the label, the value, and the small text below it."""
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
    """Return why a rank is worth looking at."""
    if row.flag == "silent" and row.silent > 0:
        whole = round(row.silent)
        return f"silent for {whole} s" if whole < 60 else f"silent for {format_duration(whole)}"
    return _FLAGS.get(row.flag, row.flag)


def rank_cells(ranks: Ranks) -> tuple[list[str], Cells]:
    """Return the table: its heads, and a row for each rank; only columns that say something."""
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
    telling = {head: cells for head, cells in columns.items() if {*cells} - {"", "0.00"}}
    return list(telling), [list(row) for row in zip(*telling.values(), strict=True)]


def phase_cells(ranks: Ranks) -> tuple[list[str], Cells]:
    """Return the phases compared: heads, and a row for each phase."""
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
    """Return the strip, the table and the phases of an overview; nothing of any other session."""
    ranks = session.ranks
    if ranks is None or ranks.world < FEW:
        return kit.NOTHING
    flagged = [bool(row.flag) for row in ranks.table]
    drawn = [_drawn(*rank_cells(ranks), flagged), _drawn(*phase_cells(ranks))]
    tables = "".join(f'<div style="min-width:0">{each.html}</div>' for each in drawn if each)
    side_by_side = (
        f'<div style="display:flex;flex-wrap:wrap;gap:4px 44px;margin:8px 0 0">{tables}</div>'
    )
    return kit.Fragment(strip_html(ranks, length(session)).html + side_by_side * bool(tables))


def _drawn(heads: list[str], rows: Cells, flagged: Sequence[bool] = ()) -> kit.Fragment:
    columns = [Column(head, is_words=head in _WORDS, is_quiet=not head) for head in heads]
    lines = []
    for at, (first, *rest) in enumerate(rows):
        # One that is not marked keeps the mark's place, so that all stand below each other.
        colour = palette.BAD if at < len(flagged) and flagged[at] else "transparent"
        name = kit.marked(colour, first, kit.BULLET) if any(flagged) else first
        lines.append(TableRow((name, *rest), is_sum=bool(flagged) and at == 0))
    return table(columns, lines, size=12)
