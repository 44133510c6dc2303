"""One watched stretch of code: where the monitor meets what is shown."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import TracebackType
from typing import Any, Protocol

from hfmem_widget.companions import Companion, companions_for
from hfmem_widget.decorating import Decorates, failure
from hfmem_widget.errors import WatchStateError
from hfmem_widget.faults import harmless
from hfmem_widget.interrupts import interrupts_deferred
from hfmem_widget.monitor import Monitor, outcome_of
from hfmem_widget.optimizers import follow_optimizers
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import Session, Span, SpanKind
from hfmem_widget.view.live import CellView
from hfmem_widget.view.screen import Bundle, Screen


class Follower(Protocol):
    """What tells something within a watch apart, such as a model's forward passes."""

    def end(self) -> None:
        """Leave it alone again."""
        ...


Follow = Callable[[Monitor, Session], Follower | None]


class Watch(Decorates):
    """One watched stretch of code: a session, its outermost span, and what is shown of it.

    Parameters
    ----------
    options : WatchOptions
    monitor : Monitor
    screen : Screen
    kind : {"cell", "block"}
        What the stretch is.
    title : str
        What to call it if the options have no label.
    follow : callable, optional
        Takes the monitor and the session, and tells something within the watch apart until it ends; it may
        find nothing any more.
    subjects : tuple of object
        Models and optimizers whose tensors are counted; none is kept alive by it.
    also : tuple of Companion
        What goes along besides that which the options ask for.
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
        also: tuple[Companion, ...] = (),
    ) -> None:
        self._label = options.label or title or kind
        self._options = replace(options, label=self._label)
        self._monitor = monitor
        self._screen = screen
        self._kind = kind
        self._follow = follow
        self._monitor.attribution.follow(*subjects)
        self._follower: Follower | None = None
        self._session: Session | None = None
        self._span: Span | None = None
        self._view: CellView | None = None
        self._also = also
        self._companions: tuple[Companion, ...] = ()

    def start(self) -> Session:
        """Begin to watch.

        Raises
        ------
        OptionError
            If a device was asked for that is not there.
        WatchStateError
            If it watches already.
        """
        if self._session is not None:
            message = "this watch is running; make another one with hfmem_widget.watch()"
            raise WatchStateError(message)
        with interrupts_deferred():
            session = self._monitor.begin(self._options)
            harmless(follow_optimizers)
            if not self._options.quiet:
                self._view = CellView(
                    session,
                    self._screen,
                    chart=self._options.chart,
                    panel=self._options.panel,
                    aside=self._monitor.aside,
                )
                harmless(self._view.begin, self._label)
            self._span = self._monitor.open_span(session, self._kind, self._label)
            self._session = session
            if self._follow is not None:
                harmless(self._begin_to_follow, self._follow, session)
            self._companions = (*companions_for(self._options, self._screen), *self._also)
            for companion in self._companions:
                harmless(companion.begin, self._monitor, session, self._span)
        return session

    def stop(self, error: BaseException | None = None) -> None:
        """End the watch and show what it found; stopping again does nothing."""
        with interrupts_deferred():
            session, self._session = self._session, None
            if session is None or self._span is None:
                return
            follower, self._follower = self._follower, None
            if follower is not None:
                harmless(follower.end)
            companions, self._companions = self._companions, ()
            for companion in companions:
                harmless(companion.end, session, session.span(self._span.id), error)
            harmless(self._monitor.end, session, outcome_of(error))
            view, self._view = self._view, None
            if self._monitor.in_this_process:
                self._tell(view, companions, session, session.span(self._span.id))

    def _tell(
        self,
        view: CellView | None,
        companions: tuple[Companion, ...],
        session: Session,
        span: Span,
    ) -> None:
        """Show the card, which has what the companions found on it, and below it what else they tell."""
        below: list[Bundle] = []
        for companion in companions:
            harmless(lambda one=companion: below.append(one.report(session, span)))
        if view is None:
            return
        harmless(view.finish, span)
        for bundle in filter(None, below):
            harmless(self._screen.show, bundle)

    def _begin_to_follow(self, follow: Follow, session: Session) -> None:
        self._follower = follow(self._monitor, session)

    def _another(self) -> Watch:
        fresh = copy.copy(self)
        fresh._screen = copy.copy(self._screen)  # noqa: SLF001  (a watch copies its own kind)
        return fresh

    def __enter__(self) -> Session:
        try:
            return self.start()
        except WatchStateError:
            raise
        except BaseException as error:
            # An interrupt held back until now: the block is not entered, so nobody else would end the watch.
            self.stop(error)
            raise

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.stop(failure(error))


def kept_from_ending(error: BaseException | None) -> Iterator[Watch]:
    """Yield the watches at whose `__exit__` an error came before its first line was run.

    An interrupt that comes during a long operation at the end of a block is only raised there.
    """
    traceback = None if error is None else error.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame
        if frame.f_code is Watch.__exit__.__code__:
            yield frame.f_locals["self"]
        traceback = traceback.tb_next


def running_shell() -> Any:
    """Return the IPython shell this code runs in, or None."""
    ipython = sys.modules.get("IPython")
    get_ipython = getattr(ipython, "get_ipython", None)
    return get_ipython() if get_ipython is not None else None
