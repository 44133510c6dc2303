"""The ranks of a run on a terminal's screen: figures, the newest seconds, and the ranks worth a look."""

from __future__ import annotations

import math
from textwrap import wrap
from typing import Any

import numpy as np

from hfmem_widget.analysis.facts import GRAVITY
from hfmem_widget.session import Finding, Ranks, Session
from hfmem_widget.session.series import OVERVIEW
from hfmem_widget.text import format_bytes, json_number
from hfmem_widget.view.line import rank_phrases
from hfmem_widget.view.rank_words import flag_text, rank_cells
from hfmem_widget.view.table import aligned

SECONDS = 120
"""Seconds that are drawn at most, a column each."""

_HEIGHT = 5
_LEAST_ROWS = 3
_ALL, _SOME = "\u2588", "\u2592"
_LESS_WANTED = ("device", "activations", "weights", "restarts", "node")
"""Columns that go first where there is little room."""

Range = tuple[float, float]


def gravest_first(session: Session) -> list[Finding]:
    """Return its findings."""
    return sorted(session.findings, key=lambda finding: GRAVITY[finding.severity])


def _course(session: Session) -> tuple[Range, ...]:
    """Return the lowest and the highest of each of the newest seconds, in bytes; NaN where unknown."""
    columns = [session.index(f"{OVERVIEW}/{metric}") for metric in ("lowest", "allocated")]
    if None in columns:
        return ()
    stop = math.floor(session.last_sample.time)
    start = max(0, stop - SECONDS + 1)
    part = session.between(
        start - 1.0, math.inf, [column for column in columns if column is not None]
    )
    if not len(part):
        return ()
    at = part.time.searchsorted(np.arange(start, stop + 1) + 1.0) - 1
    low, high = part.low[at, 0], part.high[at, 1]
    return tuple(zip(np.where(at < 0, np.nan, low).tolist(), high.tolist(), strict=True))


def ranks_head(session: Session, ranks: Ranks, width: int, room: int) -> list[str]:
    """Return the figures and, where it fits, the course."""
    lines = wrap(" · ".join(rank_phrases(ranks)), width)
    drawn = ["", *_picture(session, width)]
    return [*lines, *drawn] if room >= len(lines) + len(drawn) + _LEAST_ROWS + 2 else lines


def _picture(session: Session, width: int) -> list[str]:
    """Return a column for each of the newest seconds, and below it what it means."""
    course = _course(session)[-(width - 1) :]
    highest = max((high for _, high in course if high > 0), default=0.0)
    total = next((each.total for each in session.devices if each.key == OVERVIEW), math.nan)
    top = total if total > 0 and highest > 0.4 * total else highest
    if not top > 0:
        return []
    lines = []
    for row in range(_HEIGHT, 0, -1):
        level = (row - 0.5) / _HEIGHT * top
        cells = (_ALL if low >= level else _SOME if high >= level else " " for low, high in course)
        lines.append("".join(cells).rstrip())
    key = f"{_ALL} all ranks  {_SOME} the highest  of {format_bytes(top)}, newest {len(course)} s"
    return [*lines, key]


def ranks_table(ranks: Ranks, width: int, room: int) -> list[str]:
    """Return the heads and as many rows as fit: the worst, and those that are worth a look, come first."""
    heads, rows = rank_cells(ranks)
    room = max(_LEAST_ROWS, room - 1)
    flagged = [at for at, row in enumerate(ranks.table[: len(rows)]) if flag_text(row)]
    rest = [at for at in range(1, len(rows)) if at not in flagged]
    wanted = list(dict.fromkeys((*([0] if rows else []), *flagged, *rest)))[:room]
    rows = [rows[at] for at in sorted(wanted)]
    for gone in ("", *_LESS_WANTED):
        if gone in heads and gone:
            at = heads.index(gone)
            heads = [*heads[:at], *heads[at + 1 :]]
            rows = [[*row[:at], *row[at + 1 :]] for row in rows]
        words = {at for at, head in enumerate(heads) if head in {"rank", "node", "device", ""}}
        text = aligned([heads, *rows], words) if rows else ""
        if max(map(len, text.split("\n"))) <= width:
            break
    return text.split("\n")


def ranks_data(ranks: Ranks) -> dict[str, Any]:
    """Return them for a program: bytes and seconds, None where not known."""
    return {
        "world": ranks.world,
        "nodes": ranks.nodes,
        "reporting": ranks.reporting,
        "median": json_number(ranks.median),
        "lowest": json_number(ranks.lowest),
        "table": [
            {
                "rank": row.rank,
                "host": row.host,
                "peak": json_number(row.peak),
                "certainty": row.certainty,
                "step": row.step,
                "silent": round(row.silent, 1),
                "flag": row.flag,
            }
            for row in ranks.table
        ],
    }
