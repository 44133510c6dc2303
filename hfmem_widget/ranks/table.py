"""How all ranks stand at a moment: the rows of the table, and the phases compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hfmem_widget.ranks.aggregate import Floats, spread
from hfmem_widget.ranks.findings import Judged, phase_of_peak
from hfmem_widget.ranks.look import LOST, Look
from hfmem_widget.session import PhaseSkew, RankRow, SpanKind
from hfmem_widget.session.ranks import TABLE_ROWS, Flag

WORST_ROWS = 8
"""Rows that the ranks with the highest peaks have in it, where there are more ranks than rows."""

_GRAVITY: tuple[Flag, ...] = ("oom", "outlier", "behind", "lost", "silent")
_OF_A_STEP: tuple[SpanKind, ...] = ("forward", "backward", "optimizer")
_OTHERS: tuple[SpanKind, ...] = ("evaluate", "predict", "save")


def flags_of(look: Look, judged: Judged) -> Mapping[int, Flag]:
    """Return why a rank is worth looking at, by place."""
    flags: dict[int, Flag] = {one.place: "outlier" for one in judged.outliers}
    flags |= dict.fromkeys(judged.behind, "behind")
    for place in np.flatnonzero(look.silent > 0).tolist():
        is_lost = look.silent[place] >= LOST or look.streams[place].is_gone
        flags[place] = "lost" if is_lost else "silent"
    flags |= {place: "oom" for place, one in enumerate(look.streams) if one.oom is not None}
    return flags


def table_of(look: Look, flags: Mapping[int, Flag], peaks: Floats) -> tuple[RankRow, ...]:
    """Return at most `TABLE_ROWS` rows: the worst first, then the lowest and those worth looking at."""
    order: list[int] = np.argsort(-np.nan_to_num(peaks, nan=-1.0), kind="stable").tolist()
    if len(order) > TABLE_ROWS:
        lowest = [spread(peaks).lowest] if not np.isnan(peaks).all() else []
        flagged = sorted(flags, key=lambda place: (_GRAVITY.index(flags[place]), place))
        order = list(dict.fromkeys([*order[:WORST_ROWS], *lowest, *flagged]))[:TABLE_ROWS]
    return rows_of(look, flags, order)


def rows_of(look: Look, flags: Mapping[int, Flag], places: Sequence[int]) -> tuple[RankRow, ...]:
    """Return the rows of some ranks."""
    return tuple(_row_or_less(look, place, flags.get(place, "")) for place in places)


def _row_or_less(look: Look, place: int, flag: Flag) -> RankRow:
    try:
        return _row(look, place, flag)
    except Exception:  # noqa: BLE001  (a fault of ours costs the figures of one rank)
        stream = look.streams[place]
        rank = stream.rank
        return RankRow(rank.rank, rank.attempt, rank.host, step=stream.newest_step, flag=flag)


def _row(look: Look, place: int, flag: Flag) -> RankRow:
    stream = look.streams[place]
    rank, device, peak, at = stream.rank, stream.described, stream.peak, stream.at
    running = "" if at is None or stream.is_over else at.label or at.kind
    return RankRow(
        rank=rank.rank,
        attempt=rank.attempt,
        host=rank.host,
        device=device.name,
        total=device.total,
        peak=peak.value,
        certainty=peak.certainty,
        allocated=stream.latest("allocated"),
        weights=stream.latest("weights"),
        activations=stream.activations,
        step=stream.newest_step,
        phase=stream.raised or phase_of_peak(look, place) or running,
        silent=float(look.silent[place]),
        flag=flag,
    )


def phases_of(look: Look) -> tuple[PhaseSkew, ...]:
    """Return how the peaks of each phase spread over the ranks."""
    # Short steps have their phases measured so rarely that the newest may have none.
    peaks = np.where(np.isnan(look.phase_peaks), look.highest_phases, look.phase_peaks)
    columns = {kind: peaks[:, at] for at, kind in enumerate(_OF_A_STEP)}
    for other in _OTHERS:
        columns[other] = np.array([one.span_peak(other).value for one in look.streams])
    found = []
    for kind, peaks in columns.items():
        over = spread(peaks)
        if over.high > 0:
            rank = look.streams[over.highest].rank.rank
            found.append(PhaseSkew(kind, over.low, over.median, over.high, rank))
    return tuple(found)
