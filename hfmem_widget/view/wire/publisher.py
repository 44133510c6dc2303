"""Sends the news of a session, at a pace that neither floods the page nor outlives its readers."""

import json
import math
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter

from hfmem_widget.session import Ranks, Sample, Session, Span
from hfmem_widget.view.wire import protocol
from hfmem_widget.view.wire.protocol import BRIEF_NEWS, COARSE, FULL, NEWS, NOTHING, Detail, judged

Send = Callable[[protocol.Message, protocol.Buffers], None]


@dataclass(frozen=True, slots=True)
class SendingPace:
    """The pace of messages while no page has reported for up to `unseen` seconds."""

    unseen: float
    news: float  # seconds between messages
    outline: int  # messages for each coarse snapshot, which takes the place of news
    full: float  # seconds between full snapshots
    detail: Detail = NEWS  # of news
    rate: float = math.inf  # bytes a second beside full snapshots; more makes messages rarer
    ranks: float = 1.0  # seconds between two messages about all ranks of a run


PACES = (
    SendingPace(unseen=30.0, news=0.25, outline=20, full=30.0),
    SendingPace(
        unseen=150.0, news=0.5, outline=15, full=60.0, detail=BRIEF_NEWS, rate=3500.0, ranks=2.0
    ),
    SendingPace(
        unseen=300.0, news=1.5, outline=5, full=90.0, detail=BRIEF_NEWS, rate=1750.0, ranks=5.0
    ),
    SendingPace(
        unseen=math.inf, news=2.6, outline=3, full=600.0, detail=BRIEF_NEWS, rate=1000.0, ranks=15.0
    ),
)
"""A server without a connected page keeps every message (jupyter_server's `start_buffering`), so the pace
slows down while no page reports. It stays quick enough that a page opened or reloaded during a long run
soon shows it."""

ENVELOPE = 1300  # bytes of a message in the server beside its content: headers and objects
BURST = 6000  # bytes that may be sent ahead of the rate: those of a coarse snapshot of one device


NEWEST_COLUMNS = 8  # of the strip of all ranks, in one message


class Publisher:
    """Sends a session's news through `send`; called after each tick, on the poller's thread."""

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
        self._sent_at = self._full_at = -math.inf
        self._since_snapshot = 0
        self._debt = 0.0
        self._columns: tuple[int, int] | None = None
        self._outbox: list[tuple[float, tuple[float, ...]]] = []
        self._sent_until = -math.inf
        self._gap_until = -math.inf
        self._steps_until = -math.inf
        self._spans: dict[int, Span] = {}
        self._judged = NOTHING
        self._ranks: Ranks | None = None
        self._ranks_at = self._ranks_until = -math.inf

    def seen(self) -> None:
        """Keep or resume the quick pace: a page has reported."""
        self._seen_at = self._clock()

    def resync(self) -> None:
        """Send a full snapshot with the next tick."""
        self._full_at = -math.inf

    def __call__(self, session: Session, samples: Sequence[Sample]) -> None:
        """Collect the newest samples, and send the news if it is time to."""
        self._collect(session, samples)
        now = self._clock()
        pace = self._pace(now)
        if self._columns != _columns(session) or now - self._full_at >= pace.full:
            self._send_everything(now, pace.detail)
        elif now - self._sent_at >= pace.news and self._bytes_ahead(now, pace) <= BURST:
            if self._since_snapshot >= pace.outline - 1:
                # For pages that missed messages. The others get the news as rows, later.
                self._pass_on(now, *self._snapshot(now, COARSE))
            else:
                self._send_news(now, pace.detail)

    def finish(self) -> None:
        """Send the news, and a last snapshot."""
        self._send_everything(self._clock(), NEWS)

    def _collect(self, session: Session, samples: Sequence[Sample]) -> None:
        # The late edge of a span has the time of a sent sample, for which a page has a row already.
        new = [sample for sample in samples if sample.time > self._sent_until]
        if not new:
            return
        gaps = session.timeline.gaps
        if gaps and gaps[-1][0] >= self._sent_until and gaps[-1][1] > self._gap_until:
            start, self._gap_until = gaps[-1]
            self._outbox.append(((start + self._gap_until) / 2, ()))
        self._outbox += [(sample.time, sample.values) for sample in new]
        self._outbox.sort(key=itemgetter(0))
        self._sent_until = new[-1].time

    def _send_news(self, now: float, detail: Detail) -> None:
        spans = self._session.coarse_spans[-200:]
        changed = [span for span in spans if self._spans.get(span.id) is not span][-detail.spans :]
        samples, self._outbox = self._outbox, []
        until = self._session.steps.ended_at
        steps = protocol.new_steps(self._session, self._steps_until, detail)
        self._steps_until = until
        self._seq += 1
        self._since_snapshot += 1
        message, buffers = protocol.rows(
            self._session, self.run, self._seq, samples, changed, steps=steps, detail=detail
        )
        before, self._judged = self._judged, judged(self._session)
        message |= {name: rows for name, rows in self._judged.items() if rows != before[name]}
        self._pass_on(now, *protocol.with_ranks(message, buffers, self._news_of_ranks(now)))
        self._spans |= {span.id: span for span in changed}

    def _snapshot(self, now: float, detail: Detail) -> tuple[protocol.Message, protocol.Buffers]:
        self._since_snapshot = 0
        self._seq += 1
        self._count_ranks_as_sent(now)
        message, buffers = protocol.snapshot(
            self._session, self.run, self._seq, panel=self._panel, detail=detail
        )
        # A missing list in a snapshot means an empty one.
        self._judged = {name: message.get(name, []) for name in NOTHING}
        return message, buffers

    def _news_of_ranks(self, now: float) -> protocol.RanksMessage | None:
        # The table and the newest columns: the last one sent may have grown since.
        ranks, is_early = self._session.ranks, now - self._ranks_at < self._pace(now).ranks
        if ranks is None or ranks is self._ranks or is_early:
            return None
        new = sum(at >= self._ranks_until for at in ranks.strip.at)
        self._count_ranks_as_sent(now)
        strip = protocol.newest(ranks.strip, min(new, NEWEST_COLUMNS))
        return protocol.described(ranks, strip, is_whole=False)

    def _count_ranks_as_sent(self, now: float) -> None:
        if (ranks := self._session.ranks) is not None:
            self._ranks, self._ranks_at = ranks, now
            self._ranks_until = ranks.strip.at[-1] if ranks.strip.at else -math.inf

    def _send_everything(self, now: float, news: Detail) -> None:
        # A page that missed nothing keeps its own finer rows, so it needs the last news as rows.
        columns = _columns(self._session)
        has_steps = self._session.steps.ended_at > self._steps_until
        if (self._outbox or has_steps) and self._columns == columns:
            self._send_news(now, news)
        self._sent_at = self._full_at = now
        self._columns = columns
        self._outbox.clear()
        # Steps that end from now on may be sent twice; a page takes them once.
        self._steps_until = self._session.steps.ended_at
        spans = self._session.coarse_spans
        self._send(*self._snapshot(now, FULL))
        self._spans = {span.id: span for span in spans[-200:]}

    def _bytes_ahead(self, now: float, pace: SendingPace) -> float:
        return max(0.0, self._debt - (now - self._sent_at) * pace.rate)

    def _pass_on(self, now: float, message: protocol.Message, buffers: protocol.Buffers) -> None:
        size = ENVELOPE + len(json.dumps(message)) + sum(map(len, buffers))
        self._debt = self._bytes_ahead(now, self._pace(now)) + size
        self._sent_at = now
        self._send(message, buffers)

    def _pace(self, now: float) -> SendingPace:
        return next(pace for pace in PACES if now - self._seen_at <= pace.unseen)


def _columns(session: Session) -> tuple[int, int]:
    # Of samples and of steps; a new column needs a new schema.
    return len(session.series), session.steps.table.shape[1] if len(session.steps) else 0
