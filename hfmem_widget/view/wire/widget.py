"""The chart in the notebook: an anywidget with a small loader, and a history for pages opened later."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import anywidget
import traitlets

from hfmem_widget.errors import OptionError
from hfmem_widget.options import seconds
from hfmem_widget.session import Session
from hfmem_widget.view.front_end import serves_labextensions
from hfmem_widget.view.html import built
from hfmem_widget.view.wire import protocol

ELSEWHERE = (
    "The live chart is on the page where this cell was run. If that watch has ended, its end was not seen "
    "here: the page was closed or reloaded, or the kernel stopped. Run the cell again for a chart that stays."
)
"""The text of a page without the widget: that of another person who shares the notebook, or of a notebook
that was saved while the cell ran."""


def _pack_history(history: tuple[Session, str, bool] | None, _widget: object) -> dict[str, Any]:
    if history is None:
        return {}
    session, run, panel = history
    message, buffers = protocol.snapshot(session, run, 0, panel=panel)
    names = ["time", "values"]
    names += ["step_rows"] * ("steps" in message) + ["strip"] * ("ranks" in message)
    return {**message, **dict(zip(names, buffers, strict=True))}


class MemoryWidget(anywidget.AnyWidget):
    """A live chart of one session; the publisher's messages belong to the `run`.

    Messages of the page become calls on the thread that handles them: a person watches (`on_seen`), the page
    missed messages (`on_resync`), a person has set the seconds between samples (`on_interval`).
    """

    # A Path instead of text would keep every widget alive through its file watcher (anywidget#929).
    _esm = ""
    # Never assigned again, so never sent by change; packed afresh whenever a page asks for the state.
    _history = traitlets.Any(None, allow_none=True).tag(sync=True, to_json=_pack_history)

    def __init__(
        self,
        session: Session,
        run: str,
        *,
        panel: bool = True,
        on_seen: Callable[[], None],
        on_resync: Callable[[], None],
        on_interval: Callable[[float], None] | None = None,
    ) -> None:
        self._on_interval = on_interval
        self._answers = {"seen": on_seen, "resync": on_resync}
        esm = built("widget.js" if serves_labextensions() else "chart.js")
        super().__init__(_esm=esm, _history=(session, run, panel))
        self.on_msg(self._receive)

    def open(self) -> None:
        """Open the comm so that the page's messages are handled while a cell runs."""
        super().open()
        # ipykernel 7.4 sends a comm's messages to the shell that last published on it, the busy one
        # (`BaseComm._reply_subshell_for`). The page has asked for a subshell, so leave them there.
        comm = self.comm
        if hasattr(comm, "_reply_subshell_for"):
            comm._reply_subshell_for = lambda _data, default: default  # noqa: SLF001

    def bundle(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the widget's output by MIME type, and the metadata, by which Colab finds its script."""
        data, metadata = self._repr_mimebundle_() or ({}, {})
        return {**data, "text/plain": ELSEWHERE}, metadata

    def publish(self, message: protocol.Message, buffers: protocol.Buffers) -> None:
        """Send a message of the wire; nothing happens once the widget is closed."""
        if self.comm is not None:
            self.send(message, buffers)

    def _receive(self, _widget: object, content: object, _buffers: object) -> None:
        if not isinstance(content, dict):
            return
        kind = content.get("kind")
        if isinstance(kind, str) and kind in self._answers:
            self._answers[kind]()
        elif kind == "bundle":
            self.publish({"kind": "bundle"}, [built("chart.js").encode()])
        elif kind == "interval" and self._on_interval is not None:
            with suppress(OptionError):
                if (interval := seconds(content.get("seconds"))) is not None:
                    self._on_interval(interval)
