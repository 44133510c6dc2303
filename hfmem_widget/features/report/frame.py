"""The frame that the page's chart draws: that of the wire, as text."""

from __future__ import annotations

import base64
import gzip
import json
import sys

from hfmem_widget.session import Session
from hfmem_widget.view.wire import protocol
from hfmem_widget.view.wire.judgements import judged
from hfmem_widget.view.wire.rank_messages import describe_ranks, with_ranks

MOST_BYTES, MOST_STEP_BYTES = 8 << 20, 300_000
"""Bytes of samples and of steps at most, before they are compressed."""

MOST_SPANS = 400
FEWEST_ROWS = 240
SLACK = 0.9  # of the room is aimed at where a frame has turned out too large


def packed(session: Session, room: int) -> tuple[str, int]:
    """Return the whole session as a frame of at most `room` characters; what does not fit is folded.

    With it comes how many rows of samples it has. It is Base64 of the gzip of a line of JSON and, behind it,
    the buffers. Nothing in it can end a script.
    """
    row = 8 + 4 * len(protocol.charted(session))
    share = 1.0
    while True:
        rows = max(FEWEST_ROWS, int(share * MOST_BYTES) // row)
        detail = protocol.Detail(
            rows=rows,
            row_bytes=sys.maxsize,
            steps=sys.maxsize,
            step_bytes=int(share * MOST_STEP_BYTES),
            spans=max(1, int(share * MOST_SPANS)),
        )
        message, buffers = protocol.snapshot(session, "report", 0, panel=False, detail=detail)
        message |= {name: rows for name, rows in judged(session).items() if rows}
        ranks = None if session.ranks is None else describe_ranks(session.ranks)
        message, buffers = with_ranks(message, buffers, ranks)
        head = json.dumps({"content": message, "sizes": [len(each) for each in buffers]})
        data = gzip.compress(b"\n".join([head.encode(), b"".join(buffers)]), 9, mtime=0)
        text = base64.b64encode(data).decode()
        if len(text) <= room or rows == FEWEST_ROWS:
            return text, message["rows"]
        held = min(share, message["rows"] * row / MOST_BYTES)
        share = held * SLACK * room / len(text)
