"""What a cell shows while it is watched, and what it leaves behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from hfmem_widget.session import Session, Span
from hfmem_widget.view.card import card_bundle, compact_bundle, running_bundle
from hfmem_widget.view.figure import chart_bundle
from hfmem_widget.view.publisher import Publisher
from hfmem_widget.view.screen import Screen

if TYPE_CHECKING:
    from hfmem_widget.view.protocol import Buffers, Message
    from hfmem_widget.view.widget import MemoryWidget

PATIENCE = 0.3
"""Seconds before a live chart appears: a cell that is over by then never flickers."""

QUICK = 1.0
"""Seconds up to which a cell is annotated with one line where every cell is."""


class LiveChart:
    """A widget in one output, fed after each tick."""

    def __init__(self, session: Session, screen: Screen, display_id: str) -> None:
        from hfmem_widget.view.widget import MemoryWidget

        self._publisher = Publisher(session, self._send)
        self._widget: MemoryWidget | None = MemoryWidget(
            session,
            self._publisher.run,
            on_seen=self._publisher.seen,
            on_resync=self._publisher.resync,
        )
        screen.replace(display_id, self._widget.bundle())

    def __call__(self, session: Session) -> None:
        """Send what is new."""
        self._publisher(session)

    def refresh(self) -> None:
        """Send all there is, now."""
        self._publisher.finish()

    def close(self) -> None:
        """Take the widget away; its output is for somebody else to fill."""
        widget, self._widget = self._widget, None
        if widget is not None:
            widget.close()

    def _send(self, message: Message, buffers: Buffers) -> None:
        widget = self._widget
        if widget is not None:
            widget.publish(message, buffers)


class CellView:
    """A card and a live chart among a cell's outputs; afterwards their still forms, in the same places.

    Parameters
    ----------
    session : Session
    screen : Screen
    aside : callable
        Does something on a thread of its own; importing what the chart needs takes a while.
    chart : bool
        Whether there is a chart.
    clock : callable, optional
        Monotonic seconds.
    """

    def __init__(
        self,
        session: Session,
        screen: Screen,
        *,
        aside: Callable[[Callable[[], None]], None],
        chart: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = session
        self._screen = screen
        self._wants_chart = chart
        self._aside = aside
        self._clock = clock
        self._began = clock()
        self._card_id = ""
        self._chart_id = ""
        self._chart: LiveChart | None = None
        self._asked_for_chart = False
        self._finished = False
        self._lock = threading.Lock()

    def begin(self, label: str) -> None:
        """Take the places of card and chart at the top of the cell's outputs."""
        if not self._screen.live:
            return
        self._card_id = self._screen.show(running_bundle(label))
        self._screen.watch_clearing()
        if self._wants_chart:
            # No MIME type at all is an output of no height, until there is something to show.
            self._chart_id = self._screen.show({})
            self._session.subscribe(self._on_tick)

    def finish(self, span: Span) -> None:
        """Put the finished card and the still chart where the live ones were."""
        self._session.unsubscribe(self._on_tick)
        with self._lock:
            self._finished = True
        long_enough = bool(self._chart_id) and span.duration >= PATIENCE
        still = chart_bundle(self._session, span) if long_enough else None
        bundle = card_bundle(self._session, span, with_chart=still is not None)
        if self._card_id:
            self._screen.replace(self._card_id, bundle)
        else:
            self._screen.show(bundle)
        if still is not None or self._chart is not None:
            self._screen.replace(self._chart_id, still or {})
        self._screen.close()
        if self._chart is not None:
            self._chart.close()

    def _on_tick(self, session: Session) -> None:
        chart = self._chart
        if chart is not None:
            chart(session)
        elif not self._asked_for_chart and self._clock() - self._began >= PATIENCE:
            self._asked_for_chart = True
            self._aside(self._appear)

    def _appear(self) -> None:
        try:
            from hfmem_widget.view import widget  # noqa: F401  (takes long, so not under the lock)

            with self._lock:
                if not self._finished:
                    self._chart = LiveChart(self._session, self._screen, self._chart_id)
        except Exception as error:  # noqa: BLE001  (the cell and its card go on without)
            self._session.notes.append(
                f"There is no live chart ({type(error).__name__}: {error}). The card is complete."
            )


class NotebookView:
    """One live chart for a whole notebook, and an annotation under each of its cells."""

    def __init__(self, session: Session, screen: Screen, *, chart: bool = True) -> None:
        self._session = session
        self._screen = screen
        self._wants_chart = chart
        self._chart_id = ""
        self._chart: LiveChart | None = None

    def begin(self) -> None:
        """Show the live chart."""
        if self._screen.live and self._wants_chart:
            self._chart_id = self._screen.show({})
            self._chart = LiveChart(self._session, self._screen, self._chart_id)
            self._session.subscribe(self._chart)

    def annotate(self, span: Span) -> None:
        """Show what a finished cell did: one line for a quick one, a card for a long one."""
        if self._chart is not None:
            self._chart.refresh()
        if span.duration < QUICK:
            self._screen.show(compact_bundle(self._session, span))
        else:
            self._screen.show(card_bundle(self._session, span, with_chart=False))

    def finish(self) -> None:
        """Put a still chart of everything where the live one was."""
        chart, self._chart = self._chart, None
        if chart is None:
            return
        self._session.unsubscribe(chart)
        self._screen.replace(self._chart_id, chart_bundle(self._session) or {})
        chart.close()
