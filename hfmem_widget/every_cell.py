"""``%memwatch on``: every later cell of the notebook is a span of one session."""

from __future__ import annotations

from dataclasses import replace

from hfmem_widget.interrupts import interrupts_deferred
from hfmem_widget.monitor import Monitor, outcome_of
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import Session, Span
from hfmem_widget.view.live import NotebookView
from hfmem_widget.view.screen import Screen


class EveryCell:
    """Watches cells as they come, and is silent between them.

    Parameters
    ----------
    options : WatchOptions
    monitor : Monitor
    screen : Screen
    """

    def __init__(self, options: WatchOptions, *, monitor: Monitor, screen: Screen) -> None:
        self._options = options
        self._monitor = monitor
        label = options.label or "every cell"
        self.session: Session = monitor.begin(replace(options, label=label))
        self._span: Span | None = None
        self._view = NotebookView(self.session, screen, chart=options.chart, panel=options.panel)
        if not options.quiet:
            self._view.begin()

    def cell_begins(self, title: str) -> None:
        """Open the span of a cell."""
        with interrupts_deferred():
            self._span = self._monitor.open_span(self.session, "cell", title)

    def cell_ends(self, error: BaseException | None, *, annotate: bool = True) -> None:
        """Close the cell's span and, if wanted, show what it did; without an open one it does nothing."""
        with interrupts_deferred():
            span, self._span = self._span, None
            if span is None:
                return
            span = self._monitor.close_span(self.session, span.id, outcome_of(error))
            if annotate and not self._options.quiet:
                self._view.annotate(span)

    def end(self) -> None:
        """End the session."""
        with interrupts_deferred():
            self._monitor.end(self.session)
            self._view.finish()
