"""When the wire is used: what is new, at a pace that neither floods nor outlives its readers."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable

from hfmem_widget.session import Session, Span
from hfmem_widget.view import protocol

Send = Callable[[protocol.Message, protocol.Buffers], None]

PACES = (
    # unseen for up to seconds, seconds between messages, seconds between snapshots
    (120.0, 0.25, 5.0),
    (600.0, 1.0, 30.0),
    (math.inf, 10.0, 300.0),
)
"""A server without a connected page keeps every message (jupyter_server's `start_buffering`), so the pace
slows down while nobody is seen watching."""

OUTBOX_ROWS = 250
"""So much news goes out at once, whatever the pace."""


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
        self._sent_at = self._snapshot_at = -math.inf
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
        """Send a snapshot with the next tick."""
        self._snapshot_at = -math.inf

    def __call__(self, session: Session) -> None:
        """Take in the newest sample, and send what has come together if it is time to."""
        self._collect(session)
        now = self._clock()
        unseen = now - self._seen_at
        between, snapshots = next(pace[1:] for pace in PACES if unseen <= pace[0])
        if self._columns != _columns(session) or now - self._snapshot_at >= snapshots:
            self._send_everything(now)
        elif now - self._sent_at >= between or len(self._outbox) >= OUTBOX_ROWS:
            self._send_rows(now)

    def finish(self) -> None:
        """Send what is new, and a last snapshot."""
        self._send_everything(self._clock())

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

    def _send_rows(self, now: float) -> None:
        spans = protocol.told_as_spans(self._session.spans)[-200:]
        changed = [span for span in spans if self._spans.get(span.id) is not span]
        changed = changed[-protocol.SPANS_IN_ROWS :]
        self._sent_at = now
        self._seq += 1
        samples, self._outbox = self._outbox, []
        until = self._session.steps.ended_at
        steps = protocol.new_steps(self._session, self._steps_until)
        self._steps_until = until
        self._send(
            *protocol.rows(self._session, self.run, self._seq, samples, changed, steps=steps)
        )
        self._remember(changed)

    def _send_everything(self, now: float) -> None:
        # A page that missed nothing keeps its own finer rows, so these must come to it as rows.
        columns = _columns(self._session)
        has_steps = self._session.steps.ended_at > self._steps_until
        if (self._outbox or has_steps) and self._columns == columns:
            self._send_rows(now)
        self._sent_at = self._snapshot_at = now
        self._columns = columns
        self._seq += 1
        self._outbox.clear()
        # What ends from here on may come twice, which a page takes once.
        self._steps_until = self._session.steps.ended_at
        spans = protocol.told_as_spans(self._session.spans)
        self._send(*protocol.snapshot(self._session, self.run, self._seq, panel=self._panel))
        self._spans.clear()
        self._remember(spans[-200:])

    def _remember(self, spans: list[Span] | tuple[Span, ...]) -> None:
        self._spans.update((span.id, span) for span in spans)
        while len(self._spans) > 400:
            del self._spans[next(iter(self._spans))]


def _columns(session: Session) -> tuple[int, int]:
    """How many columns there are, of samples and of steps: a new one needs a new schema."""
    return len(session.series), len(session.steps.columns) if len(session.steps) else 0


def _time(row: tuple[float, tuple[float, ...]]) -> float:
    return row[0]
