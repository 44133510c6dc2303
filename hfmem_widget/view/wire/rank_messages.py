"""The ranks on the wire: a table and phases each time, and the new columns of the strip."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from hfmem_widget.session import RankRow, Ranks, RankStrip, Session
from hfmem_widget.session.rank_records import SILENT_CELL, STRIP_COLUMNS, TABLE_ROWS
from hfmem_widget.session.steps import CERTAINTIES
from hfmem_widget.text import plain
from hfmem_widget.view.line import NAME

MOST_PHASES = 8
MOST_DEVICES = 4

NEWEST_COLUMNS = 8
OUTLINE_BYTES, FEWEST_COLUMNS = 1_400, 16
"""Bytes at most, and columns at least, of a strip in an outline."""

RanksMessage = tuple[dict[str, Any], bytes]


class RanksNews:
    """What of all ranks was sent so far."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._sent: Ranks | None = None
        self._sent_at = -math.inf
        self._until = -math.inf

    def news(self, now: float, interval: float) -> RanksMessage | None:
        """Return the table and the newest columns; None where nothing is new, or it is too early."""
        ranks = self._session.ranks
        if ranks is None or ranks is self._sent or now - self._sent_at < interval:
            return None
        # The last that was sent may have grown since.
        new = sum(at >= self._until for at in ranks.strip.at)
        self.mark_as_sent(now)
        return described(ranks, newest(ranks.strip, min(new, NEWEST_COLUMNS)), is_whole=False)

    def mark_as_sent(self, now: float) -> None:
        """Count everything as sent."""
        if (ranks := self._session.ranks) is not None:
            self._sent, self._sent_at = ranks, now
            self._until = ranks.strip.at[-1] if ranks.strip.at else -math.inf


def describe_ranks(ranks: Ranks, *, is_outline: bool = False) -> RanksMessage:
    """Return all ranks as JSON, and the cells of the whole strip; for an outline a coarser one."""
    rows = max(1, len(ranks.strip.first))
    most = max(FEWEST_COLUMNS, OUTLINE_BYTES // rows) if is_outline else STRIP_COLUMNS
    return described(ranks, folded(ranks.strip, most), is_whole=True)


def described(ranks: Ranks, strip: RankStrip, *, is_whole: bool) -> RanksMessage:
    """Return all ranks as JSON, and the cells of a strip; one that is whole says whose its rows are."""
    rows = ranks.table[:TABLE_ROWS]
    devices = list(dict.fromkeys(map(_device, rows)))[:MOST_DEVICES]
    columns: dict[str, Any] = {"at": [round(at, 3) for at in strip.at]}
    if is_whole:
        columns["first"] = list(strip.first)
    message = {
        "world": ranks.world,
        "nodes": ranks.nodes,
        "reporting": ranks.reporting,
        "engine": plain(ranks.engine, NAME),
        "lowest": _whole(ranks.lowest),
        "median": _whole(ranks.median),
        "lowest_rank": ranks.lowest_rank,
        "devices": list(map(list, devices)),
        "table": [_row(row, devices) for row in rows],
        "phases": [
            [phase.kind, _whole(phase.low), _whole(phase.median), _whole(phase.high), phase.rank]
            for phase in ranks.phases[:MOST_PHASES]
        ],
        "strip": columns,
    }
    return message, strip.cells


def _device(row: RankRow) -> tuple[str, int | None]:
    return plain(row.device, NAME), _whole(row.total)


def _row(row: RankRow, devices: list[tuple[str, int | None]]) -> list[Any]:
    device = _device(row)
    return [
        row.rank,
        row.attempt,
        plain(row.host, NAME),
        devices.index(device) if device in devices else None,
        CERTAINTIES.index(row.certainty),
        *map(_whole, (row.peak, row.weights, row.activations)),
        row.step,
        plain(row.phase, NAME),
        round(row.silent) if math.isfinite(row.silent) else 0,
        row.flag,
    ]


def _whole(value: float) -> int | None:
    return round(value) if math.isfinite(value) else None


def newest(strip: RankStrip, columns: int) -> RankStrip:
    """Return the last columns of a strip."""
    begin = len(strip.at) - columns
    return replace(strip, at=strip.at[begin:], cells=strip.cells[begin * len(strip.first) :])


def folded(strip: RankStrip, most: int) -> RankStrip:
    """Return a strip of at most so many columns, each with the highest of its neighbours that is heard of."""
    size, rows = -(-len(strip.at) // most), len(strip.first)
    if size <= 1 or not rows:
        return strip
    cells = np.frombuffer(strip.cells, np.uint8).reshape(-1, rows).astype(np.int16)
    cells[cells == SILENT_CELL] = -1
    highest = np.maximum.reduceat(cells, np.arange(0, len(cells), size))
    highest[highest < 0] = SILENT_CELL
    return RankStrip(strip.first, strip.at[::size], highest.astype(np.uint8).tobytes())
