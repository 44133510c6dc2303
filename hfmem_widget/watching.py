"""``with hfmem_widget.watch("label") as session``: where the monitor meets what is shown.

The module is not called ``watch`` because the function is, and a package cannot hold both names.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from contextlib import ContextDecorator
from dataclasses import replace
from types import TracebackType
from typing import Any

from hfmem_widget.errors import WatchStateError
from hfmem_widget.faults import harmless
from hfmem_widget.interrupts import interrupts_deferred
from hfmem_widget.monitor import Monitor, outcome_of, shared_monitor
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import Session, Span, SpanKind
from hfmem_widget.view.live import CellView
from hfmem_widget.view.screen import Screen


class Watch(ContextDecorator):
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
    """

    def __init__(
        self,
        options: WatchOptions,
        *,
        monitor: Monitor,
        screen: Screen,
        kind: SpanKind = "block",
        title: str = "",
    ) -> None:
        self._label = options.label or title or kind
        self._options = replace(options, label=self._label)
        self._monitor = monitor
        self._screen = screen
        self._kind = kind
        self._session: Session | None = None
        self._span: Span | None = None
        self._view: CellView | None = None

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
            if not self._options.quiet:
                self._view = CellView(
                    session, self._screen, chart=self._options.chart, aside=self._monitor.aside
                )
                harmless(self._view.begin, self._label)
            self._span = self._monitor.open_span(session, self._kind, self._label)
            self._session = session
        return session

    def stop(self, error: BaseException | None = None) -> None:
        """End the watch and show what it found; stopping again does nothing."""
        with interrupts_deferred():
            session, self._session = self._session, None
            if session is None or self._span is None:
                return
            harmless(self._monitor.end, session, outcome_of(error))
            view, self._view = self._view, None
            if view is not None and self._monitor.in_this_process:
                harmless(view.finish, session.span(self._span.id))

    def _recreate_cm(self) -> Watch:
        # `ContextDecorator` asks for one of these for each call: calls may nest, or come from many threads.
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
        self.stop(error)


def watch(
    label: str = "",
    *,
    interval: float = 0.1,
    devices: Sequence[str] = (),
    chart: bool = True,
    quiet: bool = False,
    ledger: bool = True,
    resident_peak: bool = False,
) -> Watch:
    """Watch the memory of a ``with`` block, or of every call of a function it decorates.

    In a notebook the chart and the card stand in the cell's output; elsewhere one line is printed
    at the end.

    Parameters
    ----------
    label : str, optional
        What to call it; shown as plain text.
    interval : float, optional
        Seconds between samples, from 0.01 to 3600.
    devices : sequence of str, optional
        Only these, such as ``["cuda:0"]``; all by default.
    chart : bool, optional
        Whether to show a chart.
    quiet : bool, optional
        Show nothing; the session is all you get.
    ledger : bool, optional
        Keep exact peaks. Without, the allocator's peak counters are left alone and peaks are
        lower bounds.
    resident_peak : bool, optional
        Take the exact peak of the resident set, by resetting the kernel's mark of it. This also resets
        what ``resource.getrusage`` calls ``ru_maxrss``.

    Returns
    -------
    Watch
        Entering it returns the `Session`.

    Raises
    ------
    OptionError
        If a value is not one of those allowed; on entering, if a device is not there.

    Examples
    --------
    >>> with hfmem_widget.watch("load", quiet=True) as session:
    ...     model = load()
    >>> session.peak("cuda:0/allocated")
    1342177280.0
    """
    options = WatchOptions(
        label=label,
        interval=interval,
        devices=tuple(devices),
        chart=chart,
        quiet=quiet,
        ledger=ledger,
        resident_peak=resident_peak,
    )
    return Watch(options, monitor=shared_monitor(), screen=Screen(running_shell()))


def running_shell() -> Any:
    """Return the IPython shell this code runs in, or None."""
    ipython = sys.modules.get("IPython")
    get_ipython = getattr(ipython, "get_ipython", None)
    return get_ipython() if get_ipython is not None else None
