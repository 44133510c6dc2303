"""The outputs of a watched cell: live views while it runs, a card and a still chart afterwards.

The card and the chart are imported once the cell has run for some time, for a person waits for its beginning.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from hfmem_widget.analysis.facts import PATIENCE, QUICK, changed_less, did_nothing, findings_of
from hfmem_widget.analysis.others import movement
from hfmem_widget.guard import harmless
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import Recorder, Sample, Session, Span
from hfmem_widget.view.front_end import (
    enable_widgets_in_colab,
    finds_anywidget,
    host_name,
    serves_labextensions,
)
from hfmem_widget.view.line import LOST_RUN, compact_bundle, lost_bundle, running_bundle
from hfmem_widget.view.screen import Bundle, Screen

if TYPE_CHECKING:
    from hfmem_widget.view.terminal import BottomLine
    from hfmem_widget.view.wire.protocol import Buffers, Message
    from hfmem_widget.view.wire.widget import MemoryWidget

USUAL = WatchOptions()


class Broadcast:
    """A widget that gets news after each tick; JupyterLab's panel overhears it, also without a chart."""

    def __init__(
        self, session: Session, *, panel: bool, prefer: Callable[[float], None] | None = None
    ) -> None:
        from hfmem_widget.view.wire.publisher import Publisher
        from hfmem_widget.view.wire.widget import MemoryWidget

        self._publisher = Publisher(session, self._send, panel=panel)
        # The poller sends the news, the end of the watch the last message.
        self._lock = threading.Lock()
        self._widget: MemoryWidget | None = MemoryWidget(
            session,
            self._publisher.run,
            panel=panel,
            on_seen=self._publisher.seen,
            on_resync=self._publisher.resync,
            on_interval=prefer,
        )

    def __call__(self, session: Session, samples: Sequence[Sample]) -> None:
        """Send the news."""
        with self._lock:
            self._publisher(session, samples)

    def show(self, screen: Screen, display_id: str) -> None:
        """Replace an output by the chart."""
        if self._widget is not None:
            bundle, metadata = self._widget.bundle()
            screen.replace(display_id, bundle, metadata=metadata, lost={})

    def refresh(self) -> None:
        """Send everything now."""
        with self._lock:
            self._publisher.finish()

    def close(self) -> None:
        """Send the end and remove the widget; the caller replaces its output."""
        self.refresh()
        widget, self._widget = self._widget, None
        if widget is not None:
            # A closed widget leaves its layout open: a widget with a comm of its own.
            layout = widget.layout
            widget.close()
            layout.close()

    def _send(self, message: Message, buffers: Buffers) -> None:
        if (widget := self._widget) is not None:
            widget.publish(message, buffers)


@cache
def _unopened_comm() -> Any:
    from comm import create_comm

    return create_comm(target_name="jupyter.widget", primary=False)


def tell_panel(session: Session, *, panel: bool) -> None:
    """Send a run that has ended in one message, which JupyterLab's panel overhears.

    It takes no widget: opening one takes longer than a quick run, and a saved notebook would keep it.
    """
    from hfmem_widget.view.wire.publisher import Publisher

    def send(message: Message, buffers: Buffers) -> None:
        data = {"method": "custom", "content": message}
        _unopened_comm().publish_msg("comm_msg", data=data, buffers=buffers)

    Publisher(session, send, panel=panel).finish()


class _View:
    """A live chart in a cell's outputs; `prefer` takes the seconds between samples that the page has set."""

    def __init__(
        self,
        recorder: Recorder,
        screen: Screen,
        options: WatchOptions,
        prefer: Callable[[float], None] | None,
    ) -> None:
        self._recorder = recorder
        self._session = recorder.session
        self._screen = screen
        self._wants_chart, self._wants_panel = options.chart, options.panel
        self._prefer = prefer
        self._chart_id = ""
        self._chart_shown = False
        self._broadcast: Broadcast | None = None

    def _take_place_of_chart(self) -> None:
        # An output of no height, for the chart to replace.
        harmless(enable_widgets_in_colab)
        self._chart_id = self._screen.show({})

    def _open(self) -> Broadcast | None:
        if not (self._wants_chart or serves_labextensions()):
            return None
        broadcast = Broadcast(self._session, panel=self._wants_panel, prefer=self._prefer)
        if host_name() == "VS Code" and not finds_anywidget():
            self._session.notes.append(
                "VS Code may not find anywidget.js, and then shows no live chart: install anywidget with pip "
                "into the environment of this kernel. The card is complete."
            )
        self._show_chart(broadcast)
        return broadcast

    def _show_chart(self, broadcast: Broadcast) -> None:
        # An update of a display is lost while an Output widget catches the cell's outputs.
        if self._chart_id and not self._chart_shown and self._screen.live:
            self._chart_shown = True
            broadcast.show(self._screen, self._chart_id)

    def _note_without_chart(self, error: Exception, complete: str) -> None:
        reason = f"No live chart ({type(error).__name__}: {error})."
        # https://github.com/ipython/ipykernel/issues/1450: in 7.0 only the shell's thread sends on a comm.
        if isinstance(error, LookupError) and "shell_parent" in str(error):
            reason = "No live chart: ipykernel 7.0 does not support it. Upgrade to ipykernel 7.1 or newer."
        self._session.notes.append(f"{reason} {complete}")


class CellView(_View):
    """The placeholder of a card and a live chart; `aside` runs what imports much on another thread."""

    def __init__(
        self,
        recorder: Recorder,
        screen: Screen,
        options: WatchOptions = USUAL,
        *,
        aside: Callable[[Callable[[], None]], object],
        prefer: Callable[[float], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(recorder, screen, options, prefer)
        self._aside = aside
        self._clock = clock
        self._began = clock()
        self._card_id = ""
        self._to_appear: Callable[[], None] = self._appear
        self._asked_for_broadcast = self._asked_for_overview = False
        self._overview: Broadcast | None = None
        self._bottom: BottomLine | None = None
        self._finished = False
        self._lock = threading.Lock()

    def begin(self, label: str) -> None:
        """Show placeholders of card and chart at the top of the cell's outputs."""
        if not self._screen.live:
            terminal = self._screen.terminal if self._wants_chart else None
            if terminal is not None:
                from hfmem_widget.view.terminal import BottomLine

                self._bottom = BottomLine(terminal)
                self._recorder.subscribe(self._bottom)
            return
        self._card_id = self._screen.show(
            running_bundle(label, self._session.started_at), lost=lost_bundle(label)
        )
        self._screen.watch_clearing()
        if self._wants_chart:
            self._take_place_of_chart()
        if self._screen.draws_widgets and (self._wants_chart or self._wants_panel):
            self._to_appear = self._screen.bound(self._appear)
            self._recorder.subscribe(self._on_tick)

    def finish(self, span: Span, lead: Bundle | None = None) -> None:
        """Replace the live views by the card and the still chart; `lead` goes above the card."""
        self._recorder.unsubscribe(self._on_tick)
        if self._bottom is not None:
            self._recorder.unsubscribe(self._bottom)
            harmless(self._bottom.close)
        with self._lock:
            self._finished = True
        try:
            self._leave_still_forms(span, lead)
        finally:
            self._screen.close()
            # The ranks last: the panel keeps showing the run that ended last.
            for broadcast in filter(None, (self._broadcast, self._overview)):
                broadcast.close()
            has_panel = self._screen.draws_widgets and serves_labextensions()
            wants_any = self._wants_chart or self._wants_panel
            if self._broadcast is None and self._card_id and wants_any and has_panel:
                harmless(tell_panel, self._session, panel=self._wants_panel)

    def _leave_still_forms(self, span: Span, lead: Bundle | None) -> None:
        session = self._session
        is_quiet = (  # one line is enough
            lead is None
            and not session.notes
            and did_nothing(session, span)
            and not findings_of(session, span)
            and not movement(session, span).devices
        )
        still = None
        if self._chart_id and span.duration >= PATIENCE and not is_quiet:
            from hfmem_widget.view.chart.figure import chart_bundle

            run = session.run
            still = chart_bundle(session, span) if run is None else chart_bundle(run.overview)
        bundle: Bundle
        if is_quiet or (session.run is not None and lead is not None):
            bundle = compact_bundle(session, span, lead=lead)
        else:
            from hfmem_widget.view.card import card_bundle

            bundle = card_bundle(session, span, with_chart=still is not None, lead=lead)
        if self._card_id:
            self._screen.replace(self._card_id, bundle)
        else:
            self._screen.show(bundle)
        if self._chart_id and (still is not None or self._broadcast is not None):
            self._screen.replace(self._chart_id, still or {})

    def _on_tick(self, session: Session, samples: Sequence[Sample]) -> None:
        broadcast = self._broadcast
        if broadcast is not None:
            self._show_chart(self._overview or broadcast)
            broadcast(session, samples)
            if session.run is not None and not self._asked_for_overview:
                self._asked_for_overview = True
                self._aside(self._to_appear)
        elif not self._asked_for_broadcast and self._clock() - self._began >= PATIENCE:
            self._asked_for_broadcast = True
            self._aside(self._to_appear)

    def _appear(self) -> None:
        """Show the live chart; once ranks have started, that of all ranks in its place."""
        try:
            # Slow, so outside the lock. The first is for the end of the cell, which would wait for it.
            import hfmem_widget.view.card
            import hfmem_widget.view.wire.widget  # noqa: F401

            with self._lock:
                if self._finished:
                    return
                if self._broadcast is None:
                    self._broadcast = self._open()
                else:
                    recorder = self._session.run.recorder
                    overview = Broadcast(recorder.session, panel=self._wants_panel)
                    recorder.subscribe(overview)
                    self._overview, self._chart_shown = overview, False
        except Exception as error:  # noqa: BLE001  (the cell and its card go on without)
            self._note_without_chart(error, "The card is complete.")


class NotebookView(_View):
    """A notebook's chart, and a note under each cell that changed `least` bytes or more, or has a finding."""

    def __init__(
        self,
        recorder: Recorder,
        screen: Screen,
        options: WatchOptions = USUAL,
        *,
        prefer: Callable[[float], None] | None = None,
        least: float = 0.0,
    ) -> None:
        super().__init__(recorder, screen, options, prefer)
        self._least = least
        self._notes_shown = 0

    def begin(self) -> None:
        """Show the live chart."""
        if not self._screen.live or not (self._wants_chart or self._wants_panel):
            return
        if self._wants_chart:
            self._take_place_of_chart()
        try:
            self._broadcast = self._open() if self._screen.draws_widgets else None
            if self._broadcast is not None:
                self._recorder.subscribe(self._broadcast)
        except Exception as error:  # noqa: BLE001  (the cells and their cards go on without)
            self._note_without_chart(error, "The cards are complete.")

    def annotate(self, span: Span) -> None:
        """Show the result of a finished cell: one line for a quick one, a card for a long one."""
        if self._broadcast is not None:
            self._broadcast.refresh()
        session = self._session
        has_more = findings_of(session, span) or movement(session, span).devices
        if changed_less(session, span, self._least) and not has_more:
            return
        if span.duration < QUICK:
            self._screen.show(compact_bundle(session, span))
        else:
            from hfmem_widget.view.card import card_bundle

            card = card_bundle(session, span, with_chart=False, notes_shown=self._notes_shown)
            self._notes_shown = len(session.notes)
            self._screen.show(card)

    def finish(self) -> None:
        """Replace the live chart by a still chart of everything."""
        broadcast, self._broadcast = self._broadcast, None
        if broadcast is not None:
            self._recorder.unsubscribe(broadcast)
        if self._chart_id:
            from hfmem_widget.view.chart.figure import chart_bundle

            self._screen.replace(self._chart_id, chart_bundle(self._session) or {})
        if broadcast is not None:
            broadcast.close()


class RunView(NotebookView):
    """A live chart of a run in another process, then its card; the view keeps the run's `reader` alive."""

    def __init__(self, recorder: Recorder, screen: Screen, reader: object) -> None:
        super().__init__(recorder, screen)
        self._card_id = ""
        self._reader = reader
        self._ending = threading.Lock()

    def begin(self) -> None:
        """Show the live chart, below a placeholder of the card."""
        label, began = self._session.label, self._session.started_at
        self._card_id = self._screen.show(
            running_bundle(label, began), lost=lost_bundle(label, LOST_RUN)
        )
        super().begin()
        self._recorder.subscribe(self._end_with_the_run)
        if not self._session.running:  # it has ended while the chart was opened
            self._end_with_the_run(self._session, ())

    def _end_with_the_run(self, session: Session, samples: Sequence[Sample]) -> None:
        del samples
        if session.running:
            return
        self._recorder.unsubscribe(self._end_with_the_run)
        with self._ending:
            card_id, self._card_id = self._card_id, ""
        if card_id:  # else another thread was first
            from hfmem_widget.view.card import card_of

            self._screen.replace(card_id, card_of(session, with_chart=True))
            self.finish()
            self._reader = None
