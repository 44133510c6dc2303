"""When the wire is used: what is new, at a pace that neither floods nor outlives its readers."""

from __future__ import annotations

import json
import math
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from hfmem_widget.session import Session, Span
from hfmem_widget.view import protocol
from hfmem_widget.view.protocol import BRIEF_NEWS, COARSE, FULL, NEWS, Detail

Send = Callable[[protocol.Message, protocol.Buffers], None]


@dataclass(frozen=True, slots=True)
class Pace:
    """How often what is sent while nobody has been seen for up to `unseen` seconds.

    Attributes
    ----------
    news, coarse, full : float
        Seconds between messages of what is new, between coarse snapshots, and between full ones.
    detail : Detail
        How much of what is new goes into one message.
    rate : float
        Bytes a second that each of the three may take; larger messages come less often.
    """

    unseen: float
    news: float
    coarse: float
    full: float
    detail: Detail = NEWS
    rate: float = math.inf


PACES = (
    Pace(60.0, 0.25, 5.0, 30.0),
    Pace(300.0, 1.0, 9.0, 60.0, BRIEF_NEWS, rate=1200.0),
    Pace(math.inf, 3.0, 9.0, 300.0, BRIEF_NEWS, rate=400.0),
)
"""A server without a connected page keeps every message (jupyter_server's `start_buffering`), so the pace
slows down while nobody is seen watching. It stays quick enough that a page which is reloaded, or opened
anew, in the middle of a long run soon shows it."""

NEVER = (-math.inf, 0)

ENVELOPE = 1000
"""Bytes that a message takes beside its content: headers, and the server's own objects."""


class Publisher:
    """Sends a session's news through `send`; called after each tick, on the poller's thread.

    Parameters
    ----------
    session : Session
    send : callable
        Takes a message and its buffers.
    panel : bool, optional
        Whether JupyterLab's panel may open by itself.
    clock : callable, optional
        Monotonic seconds.
    """

    def __init__(
        self,
        session: Session,
        send: Send,
        *,
        panel: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.run = secrets.token_hex(4)
        self._session = session
        self._send = send
        self._panel = panel
        self._clock = clock
        self._seq = 0
        self._seen_at = clock()
        self._news = self._coarse = self._full = NEVER
        self._columns: tuple[int, int] | None = None
        self._outbox: list[tuple[float, tuple[float, ...]]] = []
        self._sent_until = -math.inf
        self._gap_until = -math.inf
        self._steps_until = -math.inf
        self._spans: dict[int, Span] = {}

    def seen(self) -> None:
        """Somebody is watching: keep, or take up again, the quick pace."""
        self._seen_at = self._clock()

    def resync(self) -> None:
        """Send a full snapshot with the next tick."""
        self._full = NEVER

    def __call__(self, session: Session) -> None:
        """Take in the newest sample, and send what has come together if it is time to."""
        self._collect(session)
        now = self._clock()
        pace = next(pace for pace in PACES if now - self._seen_at <= pace.unseen)

        def is_due(last: tuple[float, int], every: float) -> bool:
            at, size = last
            return now - at >= max(every, size / pace.rate)

        if self._columns != _columns(session) or is_due(self._full, pace.full):
            self._send_everything(now, FULL, pace.detail)
        elif is_due(self._coarse, pace.coarse):
            self._send_everything(now, COARSE, pace.detail)
        elif is_due(self._news, pace.news):
            self._send_rows(now, pace.detail)

    def finish(self) -> None:
        """Send what is new, and a last snapshot."""
        self._send_everything(self._clock(), FULL, NEWS)

    def _collect(self, session: Session) -> None:
        # More than one: the edges of spans are read between ticks.
        new = session.since(self._sent_until)
        if not new:
            return
        gaps = session.timeline.gaps
        if gaps and gaps[-1][0] >= self._sent_until and gaps[-1][1] > self._gap_until:
            start, self._gap_until = gaps[-1]
            self._outbox.append(((start + self._gap_until) / 2, ()))
        self._outbox += [(sample.time, sample.values) for sample in new]
        self._outbox.sort(key=_time)
        self._sent_until = new[-1].time

    def _send_rows(self, now: float, detail: Detail) -> None:
        spans = protocol.told_as_spans(self._session.spans)[-200:]
        changed = [span for span in spans if self._spans.get(span.id) is not span][-detail.spans :]
        self._seq += 1
        samples, self._outbox = self._outbox, []
        until = self._session.steps.ended_at
        steps = protocol.new_steps(self._session, self._steps_until, detail)
        self._steps_until = until
        size = self._pass_on(
            *protocol.rows(
                self._session, self.run, self._seq, samples, changed, steps=steps, detail=detail
            )
        )
        self._news = (now, size)
        self._remember(changed)

    def _send_everything(self, now: float, detail: Detail, news: Detail) -> None:
        # A page that missed nothing keeps its own finer rows, so these must come to it as rows.
        columns = _columns(self._session)
        has_steps = self._session.steps.ended_at > self._steps_until
        if (self._outbox or has_steps) and self._columns == columns:
            self._send_rows(now, news)
        self._columns = columns
        self._seq += 1
        self._outbox.clear()
        # What ends from here on may come twice, which a page takes once.
        self._steps_until = self._session.steps.ended_at
        spans = protocol.told_as_spans(self._session.spans)
        size = self._pass_on(
            *protocol.snapshot(self._session, self.run, self._seq, panel=self._panel, detail=detail)
        )
        self._coarse = (now, size)
        if detail is FULL:
            self._full, self._coarse = self._coarse, (now, 0)
            self._spans.clear()
            self._remember(spans[-200:])

    def _pass_on(self, message: protocol.Message, buffers: protocol.Buffers) -> int:
        self._send(message, buffers)
        return ENVELOPE + len(json.dumps(message)) + sum(map(len, buffers))

    def _remember(self, spans: list[Span] | tuple[Span, ...]) -> None:
        self._spans.update((span.id, span) for span in spans)
        while len(self._spans) > 400:
            del self._spans[next(iter(self._spans))]


def _columns(session: Session) -> tuple[int, int]:
    """How many columns there are, of samples and of steps: a new one needs a new schema."""
    return len(session.series), len(session.steps.columns) if len(session.steps) else 0


def _time(row: tuple[float, tuple[float, ...]]) -> float:
    return row[0]
