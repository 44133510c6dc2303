"""The outputs of a cell of marimo, which has neither an IPython shell nor updates of outputs."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Any, Self

from hfmem_widget.view.front_end import running_shell
from hfmem_widget.view.screen import Bundle, Screen, wants_live_views, with_calls

PLOTLY = "application/vnd.plotly.v1+json"


def screen_here() -> Screen:
    """Return where the code that runs now shows its outputs."""
    marimo = sys.modules.get("marimo")
    if marimo is not None and marimo.running_in_notebook():
        return MarimoScreen(marimo)
    return Screen(running_shell())


class MarimoScreen(Screen):
    """What ``mo.output`` appends to the running cell, changed in place.

    marimo knows a cell's output by the thread that it is written on, so another thread hands what it shows to
    one of marimo's own.
    """

    def __init__(self, marimo: Any) -> None:
        super().__init__()
        self._marimo = marimo
        self._places: dict[str, Any] = {}
        self._hand: _Hand | None = None

    def __copy__(self) -> Self:
        return type(self)(self._marimo)

    @property
    def live(self) -> bool:
        """Whether live views are wanted."""
        return wants_live_views()

    def bound(self, action: Callable[[], None]) -> Callable[[], None]:
        """Return what does it on a thread of marimo's, and waits for it."""
        hand = self._of_cell()
        return lambda: hand.do(action)

    def close(self) -> None:
        """Let marimo's thread end."""
        hand, self._hand = self._hand, None
        if hand is not None:
            hand.let_go()

    def _of_cell(self) -> _Hand:
        if self._hand is None:
            self._hand = _Hand(self._marimo)
        return self._hand

    def _publish(
        self, bundle: Bundle, display_id: str, metadata: Mapping[str, Any], *, update: bool
    ) -> None:
        del metadata  # a page that was reloaded gets the output as it is
        bundle = with_calls(bundle)
        self._of_cell().do(lambda: self._write(bundle, display_id, update=update))
        # marimo shows an error alone, in the place of all outputs.
        if sys.exception() is not None and PLOTLY not in bundle and "text/plain" in bundle:
            print(bundle["text/plain"])  # noqa: T201  (what a cell prints stays)

    def _write(self, bundle: Bundle, display_id: str, *, update: bool) -> None:
        from marimo._runtime.output._output import flush

        place = self._places.get(display_id)
        if place is None:
            place = self._places[display_id] = _place(self._marimo)
        place.fill(bundle)
        if update:
            place.was_read = False
            flush()
        # The user's code may have taken it away.
        if not update or not place.was_read:
            self._marimo.output.append(place)


def _place(marimo: Any) -> Any:
    class RefillableHtml(marimo.Html):  # type: ignore[misc]  # marimo is not there to be type-checked
        was_read = False

        def __init__(self) -> None:
            self._shown = ""
            super().__init__("")

        @property
        def text(self) -> str:
            self.was_read = True
            return self._shown

        def fill(self, bundle: Bundle) -> None:
            html = bundle.get("text/html")
            self._shown = (
                marimo.as_html(_Shown(bundle)).text if bundle and html is None else html or ""
            )

    return RefillableHtml()


class _Shown:
    def __init__(self, bundle: Bundle) -> None:
        self._bundle = dict(bundle)

    def _repr_mimebundle_(self, **_: object) -> dict[str, Any]:
        return self._bundle


class _Hand:
    """Does something as the cell that made it would, on whichever thread it is asked to."""

    def __init__(self, marimo: Any) -> None:
        self._cell = threading.get_ident()
        self._jobs: SimpleQueue[tuple[Callable[[], None], threading.Event] | None] = SimpleQueue()
        # Made while the cell runs: marimo's threads belong to the cell that makes them.
        self._thread = marimo.Thread(target=self._work, daemon=True)
        self._lock = threading.Lock()

    def do(self, action: Callable[[], None]) -> None:
        if threading.get_ident() in {self._cell, self._thread.ident}:
            action()
            return
        with self._lock:
            if self._thread.ident is None:
                self._thread.start()
        done = threading.Event()
        self._jobs.put((action, done))
        done.wait()

    def let_go(self) -> None:
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            action, done = job
            try:
                action()
            finally:
                done.set()
