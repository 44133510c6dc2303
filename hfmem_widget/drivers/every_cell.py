"""``%memwatch on``: every later cell of the notebook is a span of one session."""

from __future__ import annotations

from dataclasses import replace

from hfmem_widget.drivers import install
from hfmem_widget.drivers.training.forwards import begin_passes, end_passes
from hfmem_widget.drivers.training.loop import begin_loop, end_loop
from hfmem_widget.errors import OptionError
from hfmem_widget.features import companions_for
from hfmem_widget.features.judgement import judge
from hfmem_widget.guard import harmless, interrupts_deferred
from hfmem_widget.monitor.companion import Companion
from hfmem_widget.monitor.monitor import Monitor, outcome_of
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import Session, Span
from hfmem_widget.view.live import NotebookView
from hfmem_widget.view.screen import Bundle, Screen


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
        # An option that cannot be followed is refused now.
        companions_for(options)
        self._options = options
        self._monitor = monitor
        self._screen = screen
        label = options.label or "every cell"
        self.session: Session = monitor.begin(replace(options, label=label))
        self._recorder = monitor.recorder(self.session)
        harmless(install.begin)
        self._span: Span | None = None
        self._companions: tuple[Companion, ...] = ()
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

    def cell_ends(self, error: BaseException | None, *, annotate: bool = True) -> None:
        """Close the cell's span and, if wanted, show what it did; without an open one it does nothing."""
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
            harmless(judge, self.session, span)
            reports: list[Bundle] = []
            for companion in companions:
                harmless(
                    lambda companion=companion: reports.append(companion.report(self.session, span))
                )
            if annotate and not self._options.quiet:
                self._view.annotate(span)
                for report in filter(None, reports):
                    harmless(self._screen.show, report)

    def end(self) -> None:
        """End the session, and the cell that is open in it."""
        with interrupts_deferred():
            harmless(self.cell_ends, None, annotate=False)
            self._monitor.end(self.session)
            harmless(install.end)
            self._view.finish()
