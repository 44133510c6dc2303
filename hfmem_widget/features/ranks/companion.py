"""Has the ranks that a watched cell starts followed, and shows all of them in its place."""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hfmem_widget.guard import harmless
from hfmem_widget.monitor.companion import NOTHING, Companion
from hfmem_widget.monitor.monitor import Monitor
from hfmem_widget.options import WatchOptions, expanded
from hfmem_widget.ranks.environment import Lent
from hfmem_widget.ranks.run import Run
from hfmem_widget.session import Recorder, Sample, Session, Span
from hfmem_widget.view.screen import Screen

EVERY = 0.5
"""Seconds between two looks for ranks, as long as there are none."""

PATIENCE = 5.0
"""Seconds that the end of a watch waits for what the ranks wrote last."""


class FollowedRanks(Companion):
    """Lends the environment in which ranks follow themselves, and collects them once there are some.

    Parameters
    ----------
    options : WatchOptions
    screen : Screen, optional
    clock : callable, optional
        Seconds.
    opened : callable, optional
        Takes the directory and makes the `Run`.
    """

    stands_above = True

    def __init__(
        self,
        options: WatchOptions,
        screen: Screen | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        opened: Callable[..., Run] = Run,
    ) -> None:
        del screen
        self._kept = bool(options.ranks)
        self._directory = expanded(options.ranks) if self._kept else _unused_directory()
        self._lent = Lent(self._directory)
        self._clock = clock
        self._opened = opened
        self._run: Run | None = None
        self._label = options.label
        self._due = 0.0

    def begin(self, monitor: Monitor, recorder: Recorder, span: Span) -> None:
        """Lend the environment, and look for ranks from now on."""
        del monitor
        self._label = self._label or span.label
        if self._lent.begin():
            recorder.subscribe(self._look)

    def end(self, recorder: Recorder, span: Span, error: BaseException | None) -> None:
        """Look for the last time, and put the environment back."""
        del span, error
        recorder.unsubscribe(self._look)
        self._lent.end()
        self._due = 0.0
        self._look(recorder.session)

    def report(self, session: Session, span: Span) -> Mapping[str, Any]:
        """Take in what the ranks wrote last, and return the card of all of them."""
        del session, span
        if self._run is None:
            return NOTHING
        self._run.finish(PATIENCE)
        return self._run.card()

    def _look(self, session: Session, samples: Sequence[Sample] = ()) -> None:
        """Begin to collect once a rank has made the directory; on the poller's thread."""
        del samples
        if self._run is not None or self._clock() < self._due:
            return
        self._due = self._clock() + EVERY
        if self._directory.is_dir():
            self._run = session.run = self._opened(
                self._directory,
                label=self._label,
                started_at=session.started_at,
                temporary=not self._kept,
            )
