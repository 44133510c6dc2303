"""Writes a session to a file while it runs, on its own thread: a slow disk delays nothing else."""

import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hfmem_widget.guard import warn
from hfmem_widget.monitor.companion import Companion
from hfmem_widget.monitor.monitor import Monitor
from hfmem_widget.monitor.ticker import Ticker
from hfmem_widget.options import WatchOptions, expanded
from hfmem_widget.ranks.directory import Member
from hfmem_widget.ranks.identity import ALONE, MOST_WITH_SAMPLES, seconds_between_writes
from hfmem_widget.recording.file import GrowingFile, claim, path_for, release
from hfmem_widget.recording.lines import Lines
from hfmem_widget.session import LocalNote, Recorder, Sample, Session, Span
from hfmem_widget.text import format_count, format_counted, plain

MOST_WAITING = 6000  # samples (ten minutes by default) that wait for the disk; older ones are lost
PATIENCE = 5.0  # seconds that the end of a watch waits for the disk
MOST_BEFORE_REPORT = 30.0  # seconds from the end of a session to its report
TRIES = 3  # attempts to write before the recording ends
PAUSE = 10.0  # seconds between two attempts


class FileRecording(Companion):
    """Records a session to the file of the options, or for a rank (`member`) to one in its run's directory.

    `clock` returns seconds since the epoch; `opened` creates the file at a path.
    """

    def __init__(
        self,
        options: WatchOptions,
        *,
        member: Member | None = None,
        clock: Callable[[], float] = time.time,
        opened: Callable[[Path], GrowingFile] = GrowingFile,
    ) -> None:
        self._clock = clock
        self._member = member
        # Checked here, so that a watch with a wrong path is refused before the user's code runs.
        path = member.directory if member else path_for(options.record, options.label, clock())
        self._name = plain(path)
        self._path = expanded(os.fspath(path))  # absolute: the user's code may change the directory
        self._opened = opened
        self._file: GrowingFile | None = None
        self._waiting: deque[Sample] = deque(maxlen=MOST_WAITING)
        self._lost = 0
        self._unwritten: list[bytes] = []
        self._failed = 0
        self._not_before = 0.0
        self._seen, self._trains = (0, 0), False
        world = 1 if member is None else member.rank.world
        self._only_folds = world > MOST_WITH_SAMPLES
        self._ticker = Ticker(self.tick, seconds_between_writes(world))
        self._is_over = self._is_closed = self._is_broken = False

    def begin(self, monitor: Monitor, recorder: Recorder, span: Span) -> None:
        """Claim the path, and queue every sample from now on."""
        rank = self._member.rank if self._member else None
        if rank is None:
            claim(self._path)
        self._session = recorder.session
        self._lines = Lines(self._session, rank, only_folds=self._only_folds)
        self._unwritten.extend(self._lines.timeline())
        self._began, self._written = self._session.last_sample.time, self._session.timeline.samples
        recorder.subscribe(self._take)
        self._ticker.start()

    def end(self, recorder: Recorder, span: Span, error: BaseException | None) -> None:
        """Queue no more samples; findings at the end are written by `conclude`."""
        recorder.unsubscribe(self._take)

    def conclude(self, session: Session, span: Span) -> None:
        """Write the end, and note where the recording is or why it is incomplete."""
        self._is_over = True
        if self._ticker.alive:
            self._ticker.tick_now(PATIENCE)
        else:
            self.tick()  # no thread could be started
        self._ticker.stop(0.0)
        if not self._is_closed:
            note = f"The recording is not complete: the disk is slow ({self._name})."
            session.notes.append(LocalNote(note))
        elif not self._is_broken:
            session.notes.append(LocalNote(f"The recording is in {self._name}."))
        if self._lost:
            samples = format_counted(self._lost, "sample")
            waited = f"more than {format_count(MOST_WAITING)} waited to be written"
            session.notes.append(f"{samples} could not be recorded: {waited}.")

    def tick(self) -> None:
        """Write what is new; called once a second, and at the end."""
        session, lines = self._session, self._lines
        if self._is_closed:
            self._ticker.stop(0.0)
            return
        # A session without a report, because of a fault of ours, is also completed. Dry runs may precede a
        # report.
        stopped = session.stopped_at
        is_late = stopped is not None and self._clock() > stopped + MOST_BEFORE_REPORT
        is_last = self._is_over or is_late
        try:
            self._unwritten.extend(self._news(session, lines, is_last=is_last))
            self._write(lines, is_last=is_last)
        except Exception as error:  # noqa: BLE001  (the disk may raise anything; the cell goes on)
            self._failed += 1
            self._not_before = self._clock() + PAUSE
            if is_last or self._failed >= TRIES or not isinstance(error, OSError):
                self._give_up(session, error)

    def _news(self, session: Session, lines: Lines, *, is_last: bool) -> Iterator[bytes]:
        now = self._clock()
        samples_waiting = [self._waiting.popleft() for _ in range(len(self._waiting))]
        samples = [sample for sample in samples_waiting if sample.time > self._began]
        self._written += len(samples)
        if is_last:
            samples += _newest(session, session.timeline.samples - self._written - self._lost)
        yield from lines.samples(samples, now)
        if is_last:
            yield lines.fold()
        yield from lines.changed(everything=is_last)
        if is_last:
            yield lines.end(session.stopped_at or now)

    def _write(self, lines: Lines, *, is_last: bool) -> None:
        if self._clock() < self._not_before and not is_last:
            return
        # Opened here, not in `begin`, because a disk that hangs must not delay the user's code.
        if self._file is None:
            run = ""
            if self._member is not None:
                self._path, run = self._member.join()
            self._file = self._opened(self._path)
            self._unwritten.insert(0, lines.head(run))
        self._file.write(b"".join(self._unwritten))
        self._unwritten.clear()
        self._failed = 0
        if is_last:
            self._file.close()
            self._is_closed = True
            release(self._path)

    def _give_up(self, session: Session, error: Exception) -> None:
        self._is_closed = self._is_broken = True
        release(self._path)
        self._ticker.stop(0.0)
        strerror = getattr(error, "strerror", None)
        reason = f"{plain(strerror)} ({self._name})" if strerror else plain(error)
        session.notes.append(LocalNote(f"The recording ended early: {reason}."))
        rank = self._member.rank if self._member else None
        # One rank of each host warns; the file of a process that turns out to be a launcher is removed.
        if rank is not None and not rank.local and (self._file is None or rank.engine != ALONE):
            how = "not" if self._file is None else "no longer"
            warn(f"rank {rank.rank} is {how} followed: {reason}")

    def _take(self, session: Session, samples: Sequence[Sample]) -> None:
        """Keep samples until they are written; on the poller's thread."""
        self._lost += max(0, len(self._waiting) + len(samples) - MOST_WAITING)
        self._waiting.extend(samples)
        if self._member is not None and self._has_news(session):
            self._ticker.tick_now(0.0)

    def _has_news(self, session: Session) -> bool:
        seen, self._seen = self._seen, (len(session.findings), len(session.guides))
        trained, self._trains = self._trains, any(s.kind == "train" for s in session.open_spans)
        return (trained and not self._trains) or seen != self._seen


def _newest(session: Session, count: int) -> list[Sample]:
    rows = session.between(-math.inf, math.inf)
    if rows.bucket > 1:
        return [session.last_sample] if count > 0 else []
    pairs = list(zip(rows.time.tolist(), rows.high.tolist(), strict=True))
    return [Sample(time, tuple(values)) for time, values in pairs[len(pairs) - max(0, count) :]]
