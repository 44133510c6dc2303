"""A watch of a cell, a block or every later cell: connects the monitor, the companions and the view."""

from __future__ import annotations

import copy
import mmap
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace

from hfmem_widget.drivers import install
from hfmem_widget.drivers.decorate import Decorates, failure
from hfmem_widget.drivers.training.forwards import Forwards, begin_passes, end_passes
from hfmem_widget.drivers.training.loop import begin_loop, end_loop
from hfmem_widget.errors import OptionError, WatchStateError
from hfmem_widget.features import companions_for, judge
from hfmem_widget.guard import entry, harmless, interrupts_deferred, raised_by_handler
from hfmem_widget.monitor.companion import Companion
from hfmem_widget.monitor.monitor import Monitor, outcome_of
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import Recorder, Sample, Session, Span, SpanKind
from hfmem_widget.view.live import CellView, NotebookView
from hfmem_widget.view.screen import Bundle, Screen

MOST_NESTED = 32
"""The most nested watches: the cost of each grows with their number, and a recursion would open hundreds."""

TOO_DEEP = f"A watch within {MOST_NESTED} others watches nothing."

RESERVE = 16 << 20
"""Bytes of addresses, without memory, that are free again when a watched stretch of code ends.

Under a limit such as ``ulimit -v`` nothing may be left after an error, not even the few bytes without which
Python loops forever in a handler that is more than 256 instructions into a function.
"""

Follow = Callable[[Monitor, Session], Forwards]


class Reserve:
    """Keeps `RESERVE` from the code that is watched, for what comes after it."""

    def __init__(self) -> None:
        self._addresses: mmap.mmap | None = None

    def take(self) -> None:
        """Take it, if there is as much."""
        with suppress(OSError):
            self._addresses = mmap.mmap(-1, RESERVE)

    def give_back(self) -> None:
        """Give it back; a second call does nothing."""
        if self._addresses is not None:
            self._addresses.close()


class Watch(Decorates):
    """One watched cell or block: a session, its outermost span, and what is shown of it.

    The default label is `title`. `follow` begins to follow a model's passes. The tensors of the `subjects`,
    models and optimizers, are counted, and not kept alive. The `last` companions come after the others.
    """

    def __init__(
        self,
        options: WatchOptions,
        *,
        monitor: Monitor,
        screen: Screen,
        kind: SpanKind = "block",
        title: str = "",
        follow: Follow | None = None,
        subjects: tuple[object, ...] = (),
        last: tuple[Companion, ...] = (),
    ) -> None:
        self._label = options.label or title or kind
        self._options = replace(options, label=self._label)
        self._monitor = monitor
        self._screen = screen
        self._kind = kind
        self._follow = follow
        self._monitor.attribution.follow(*subjects)
        self._follower: Forwards | None = None
        self._session: Session | None = None
        self._recorder: Recorder | None = None
        self._span: Span | None = None
        self._in_outer: tuple[Session, int] | None = None
        self._view: CellView | None = None
        self._last = last
        self._companions: list[Companion] = []
        self._reserve = Reserve()

    def _give_up(self, _error: BaseException | None = None) -> None:
        """End everything after a fault of ours, or an interrupt that was held back while the watch began."""
        session, error = self._session, sys.exception()
        if session is None:
            return
        span = self._span or Span(0, self._kind, self._label, 0.0, Sample(0.0, ()))
        is_fault = isinstance(error, Exception) and not raised_by_handler(error)
        harmless(self._end_all, span, None if is_fault else error)
        if not is_fault:
            harmless(self._monitor.end, session, outcome_of(error))
        self._monitor.break_off(session, error or RuntimeError())
        harmless(install.end)
        if self._span is not None:
            span = session.span(span.id)
        view, self._session, self._recorder, self._view = self._view, None, None, None
        if view is not None and self._monitor.in_this_process:
            harmless(view.finish, span)

    def start(self) -> Session:
        """Begin to watch; after a fault of ours nothing is watched, and the session returned has ended.

        Raises `OptionError` for a missing device or an unwritable recording, `WatchStateError` if running.
        """
        if self._session is not None:
            message = "this watch is running already; create another one with hfmem_widget.watch()"
            raise WatchStateError(message)
        return self._start()

    @entry(otherwise=lambda self: unwatched(self._label), undo=_give_up, lets=OptionError)
    def _start(self) -> Session:
        self._span = None
        around = self._monitor.around
        if len(around) >= MOST_NESTED:
            self._monitor.recorder(around[-1]).note(TOO_DEEP)
            return unwatched(self._label, TOO_DEEP)
        # Before anything begins: a companion may be refused, such as a recording whose file exists.
        companions = (*companions_for(self._options, self._screen), *self._last)
        self._session = session = self._monitor.begin(self._options)
        self._recorder = recorder = self._monitor.recorder(session)
        if around:
            harmless(self._open_in, around[-1])
        harmless(install.begin)
        if not self._options.quiet:
            self._view = CellView(
                recorder,
                self._screen,
                self._options,
                aside=self._monitor.poller.aside,
                prefer=self._monitor.prefer,
            )
            harmless(self._view.begin, self._label)
        self._span = self._monitor.open_span(session, self._kind, self._label)
        if self._follow is not None:
            self._follower = harmless(self._follow, self._monitor, session)
        harmless(begin_loop, self._monitor, session)
        harmless(begin_passes, self._monitor, session)
        for companion in companions:
            self._companions.append(companion)
            harmless(companion.begin, self._monitor, recorder, self._span)
        self._reserve.take()
        return session

    def shows(self, session: Session) -> bool:
        """Return whether a session is the running one of this watch."""
        return self._session is session

    @entry(undo=_give_up)
    def stop(self, error: BaseException | None = None) -> None:
        """End the watch and show what it found; stopping again does nothing."""
        self._reserve.give_back()
        session, span, companions = self._session, self._span, tuple(self._companions)
        if session is None or span is None:
            return
        self._end_all(span, error)
        self._monitor.end(session, outcome_of(error))
        if self._monitor.in_this_process:
            self._show(companions, session, session.span(span.id))
        install.end()
        self._session = self._recorder = self._view = None

    def _end_all(self, span: Span, error: BaseException | None) -> None:
        """End all parts; each is forgotten once it has ended, so that the rest can end after a fault."""
        if self._session is not None:
            end_passes(self._session)
            end_loop(self._session, outcome_of(error))
        if self._follower is not None:
            self._follower.end()
            self._follower = None
        while self._companions and self._recorder is not None:
            now = self._recorder.session.span(span.id)
            harmless(self._companions[0].end, self._recorder, now, error)
            self._companions.pop(0)
        if self._in_outer is not None:
            outer, span_id = self._in_outer
            if outer.running:
                harmless(self._monitor.close_span, outer, span_id, outcome_of(error))
            self._in_outer = None

    def _open_in(self, outer: Session) -> None:
        self._in_outer = outer, self._monitor.open_span(outer, "block", self._label).id

    def _show(self, companions: Sequence[Companion], session: Session, span: Span) -> None:
        """Show the card and the reports; that of an out-of-memory error comes first, before the traceback."""
        above, below = _reports(companions, session, span)
        view, self._view = self._view, None
        if view is None:
            return
        # There is room for one report above: memory may run out here while ranks go on.
        lead, *others = *above, None
        harmless(view.finish, span, lead)
        for bundle in filter(None, (*others, *below)):
            harmless(self._screen.show, bundle)

    @entry(otherwise=lambda self: nullcontext(unwatched(self._label)))
    def _another(self) -> Watch:
        fresh = copy.copy(self)
        fresh._screen = copy.copy(self._screen)  # noqa: SLF001  (a watch copies its own kind)
        fresh._follower, fresh._companions, fresh._in_outer = None, [], None  # noqa: SLF001
        fresh._reserve = Reserve()  # noqa: SLF001
        return fresh

    def __enter__(self) -> Session:
        return self.start()

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        self._reserve.give_back()  # before the guard, which needs some bytes itself
        self.stop(failure(error))


def unwatched(
    label: str, note: str = "Nothing was watched, because of a fault in hfmem_widget."
) -> Session:
    """Return a session that has ended before anything was read."""
    return Session(label, stopped_at=0.0, broken_off=True, notes=[note])


def kept_from_ending(error: BaseException | None) -> Iterator[Watch]:
    """Yield the watches whose `__exit__` was interrupted before its first line ran."""
    for frame, _ in traceback.walk_tb(None if error is None else error.__traceback__):
        if frame.f_code is Watch.__exit__.__code__:
            yield frame.f_locals["self"]


def _reports(
    companions: Sequence[Companion], session: Session, span: Span
) -> tuple[list[Bundle], list[Bundle]]:
    """Judge a span, and return what its companions show above the card, and below it."""
    harmless(judge, session, span)
    above: list[Bundle] = []
    below: list[Bundle] = []
    reports = [harmless(companion.report, session, span) for companion in companions]
    for companion, report in zip(companions, reports, strict=True):  # conclusions need all reports
        if shown := harmless(companion.conclude, session, span) or report:
            (above if companion.stands_above else below).append(shown)
    return above, below


class EveryCell:
    """Watches cells as they come; shows nothing of one that changed less than `least` bytes."""

    def __init__(
        self, options: WatchOptions, *, monitor: Monitor, screen: Screen, least: float = 0.0
    ) -> None:
        if options.record:
            message = (
                "%memwatch on cannot record: give --record to %%memwatch, or keep the session of all cells "
                "with %memwatch on -o NAME and write NAME.save(PATH)"
            )
            raise OptionError(message)
        companions_for(options)  # raises now if an option cannot be followed
        self._options = options
        self._monitor = monitor
        self._screen = screen
        label = options.label or "every cell"
        self.session: Session = monitor.begin(replace(options, label=label))
        self._recorder = monitor.recorder(self.session)
        harmless(install.begin)
        self._span: Span | None = None
        self._companions: tuple[Companion, ...] = ()
        self._reserve = Reserve()
        self.least = least
        prefer = monitor.prefer
        self._view = NotebookView(self._recorder, screen, options, prefer=prefer, least=least)
        if not options.quiet:
            self._view.begin()

    def cell_begins(self, title: str) -> None:
        """Open the span of a cell."""
        with interrupts_deferred():
            self._span = self._monitor.open_span(self.session, "cell", title)
            self._companions = companions_for(self._options, self._screen)
            harmless(begin_loop, self._monitor, self.session)
            harmless(begin_passes, self._monitor, self.session)
            for companion in self._companions:
                harmless(companion.begin, self._monitor, self._recorder, self._span)
            self._reserve.take()

    def cell_ends(self, error: BaseException | None, *, annotate: bool = True) -> None:
        """Close the cell's span, if one is open, and show its changes if it should `annotate`."""
        self._reserve.give_back()
        with interrupts_deferred():
            span, self._span = self._span, None
            if span is None:
                return
            companions, self._companions = self._companions, ()
            harmless(end_passes, self.session)
            harmless(end_loop, self.session, outcome_of(error))
            for companion in companions:
                harmless(companion.end, self._recorder, self.session.span(span.id), error)
            span = self._monitor.close_span(self.session, span.id, outcome_of(error))
            above, below = _reports(companions, self.session, span)
            if annotate and not self._options.quiet:
                self._view.annotate(span)
                for report in (*above, *below):
                    harmless(self._screen.show, report)

    def end(self) -> None:
        """End the session, and its open cell."""
        with interrupts_deferred():
            harmless(self.cell_ends, None, annotate=False)
            self._monitor.end(self.session)
            harmless(install.end)
            self._view.finish()
