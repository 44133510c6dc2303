"""The outputs of the running cell, in IPython and in marimo: shown, and replaced later."""

from __future__ import annotations

import os
import re
import secrets
import sys
import threading
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Any, Self

from hfmem_widget.guard import harmless
from hfmem_widget.view.front_end import draws_widgets, magics_of, replaces_outputs, running_shell

Bundle = Mapping[str, Any]

NOTHING: Bundle = {"text/html": ""}
"""An output of no height. The classic notebook shows no replacement of an output without data."""

MARK = "hfmem-widget"
"""The key of the metadata of an output that is to be replaced: its display id, which a reloaded page
forgets, and its bundle if nothing replaces it. JupyterLab's panel reads both (`panel/outputs.ts`)."""

_CALLS = {
    "%memholders --since": "hfmem_widget.holders().since(earlier)",
    "%memholders": "hfmem_widget.holders()",
    "%memanatomy --layout": "hfmem_widget.memory_map()",
    "%memanatomy": "session.anatomy()",
    "%memcompare": "hfmem_widget.compare(a, b)",
    "%memfit": "hfmem_widget.fit(session)",
}
_FREES = r"%memholders --free (errors|outputs|garbage|all)( --trim)?"
_MAGIC = re.compile(rf"{_FREES}|(?:{'|'.join(_CALLS)})\b(?! --)")
"""The commands in our texts, and the calls that stand for them where the magics are not loaded."""

STAND_INS = str.maketrans(
    {"·": "|", "→": "->", "±": "+-", "≥": ">=", "≤": "<=", "µ": "u", "…": "..."}
    | {"\N{MINUS SIGN}": "-", "\N{MULTIPLICATION SIGN}": "x", "\N{EN DASH}": "-"}
    | {"\u2500": "-", "\u2588": "#", "\u2593": "=", "\u2592": "-", "\u2591": ".", "\u203a": ">"}
)
"""Letters for a terminal, a pipe or a file that is not UTF-8."""


def wants_live_views() -> bool:
    """Return whether the environment leaves live views on."""
    return os.environ.get("HFMEM_WIDGET", "") not in {"static", "off"}


def request_of(publisher: Any) -> str:
    """Return the id of the request that outputs of this thread belong to; empty without one."""
    header = getattr(publisher, "parent_header", None) or {}
    return str(header.get("msg_id", ""))


def is_caught(request: str) -> bool:
    """Return whether an ``ipywidgets.Output`` catches the outputs of a request.

    While a widget has the request's id in `msg_id`, the page sends it all outputs of the request, and
    loses updates of displays.
    """
    output = sys.modules.get("ipywidgets.widgets.widget_output")
    base = sys.modules.get("ipywidgets.widgets.widget")
    if output is None or base is None or not request:
        return False
    # ipywidgets 7 keeps all widgets in `Widget.widgets`, which 8 deprecates.
    instances = base._instances if hasattr(base, "_instances") else base.Widget.widgets  # noqa: SLF001
    outputs = (each for each in list(instances.values()) if isinstance(each, output.Output))
    return any(each.msg_id == request for each in outputs)


class Clearing:
    """Announces calls of a publisher's `clear_output`; its own hooks see those of their own thread alone."""

    def __init__(self, publisher: Any) -> None:
        self._publisher = publisher
        self._usual = publisher.clear_output
        self._listeners: list[Callable[[], None]] = []
        publisher.clear_output = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the listeners, then clear."""
        for listener in tuple(self._listeners):
            harmless(listener)
        return self._usual(*args, **kwargs)

    @classmethod
    def of(cls, publisher: Any) -> Clearing:
        """Return the wrapper of a publisher, new if there is none."""
        usual = publisher.clear_output
        return usual if isinstance(usual, cls) else cls(publisher)

    def add(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call a listener before each clearing, and return a function that stops it."""
        self._listeners.append(listener)
        return lambda: self._remove(listener)

    def _remove(self, listener: Callable[[], None]) -> None:
        self._listeners.remove(listener)
        # Leave a wrapper in place that other code has put over ours since.
        if not self._listeners and vars(self._publisher).get("clear_output") is self:
            del self._publisher.clear_output


class Screen:
    """The outputs of an IPython shell, addressed by display ids; without a shell, plain text is printed."""

    def __init__(self, shell: Any = None) -> None:
        self._shell = shell
        self.cleared = False
        """Whether the user's code has cleared the outputs."""
        self._stop_listening: Callable[[], None] | None = None

    @property
    def live(self) -> bool:
        """Whether an output can be shown now and replaced later: a kernel's that nothing captures."""
        return (
            self._is_kernels
            and wants_live_views()
            and not is_caught(request_of(self._shell.display_pub))
            and replaces_outputs(self._request, os.environ)
        )

    @property
    def draws_widgets(self) -> bool:
        """Whether a page may draw a widget."""
        return draws_widgets(self._request, os.environ)

    @property
    def terminal(self) -> int | None:
        """The file descriptor of IPython's terminal; None elsewhere, or if live views are turned off."""
        if self._shell is None or self._is_kernels or not wants_live_views():
            return None
        from hfmem_widget.view.terminal import terminal_of

        return terminal_of(sys.stdout)

    @property
    def _request(self) -> Mapping[str, Any]:
        # The running execute request.
        get_parent = getattr(self._shell, "get_parent", None)
        return (get_parent() if get_parent is not None else None) or {}

    @property
    def _is_kernels(self) -> bool:
        publisher = getattr(self._shell, "display_pub", None)
        return getattr(publisher, "pub_socket", None) is not None

    def show(self, bundle: Bundle, *, lost: Bundle | None = None) -> str:
        """Show a bundle of MIME types as a new output, of no height if it is empty; return its display id.

        `lost` is the bundle in its place if nothing replaces it.
        """
        display_id = f"hfmem-{secrets.token_hex(8)}"
        self._publish(bundle, display_id, _mark(display_id, lost), update=False)
        return display_id

    def replace(
        self,
        display_id: str,
        bundle: Bundle,
        *,
        metadata: Mapping[str, Any] | None = None,
        lost: Bundle | None = None,
    ) -> None:
        """Replace an earlier output; show a new one if the user has cleared the old one."""
        metadata = {**(metadata or {}), **_mark(display_id, lost)}
        self._publish(bundle, display_id, metadata, update=not self.cleared)

    def bound(self, action: Callable[[], None]) -> Callable[[], None]:
        """Return a function for another thread whose outputs are those of the running cell."""
        return action

    def watch_clearing(self) -> None:
        """Watch from now on whether the user's code clears the outputs."""
        publisher: Any = getattr(self._shell, "display_pub", None)
        if self._stop_listening is not None or not hasattr(publisher, "clear_output"):
            return
        request = request_of(publisher)

        def notice() -> None:
            # A callback clears the outputs of its own request, and a widget the outputs that it catches.
            if request_of(publisher) == request and not is_caught(request):
                self.cleared = True

        self._stop_listening = Clearing.of(publisher).add(notice)

    def close(self) -> None:
        """Stop watching."""
        stop, self._stop_listening = self._stop_listening, None
        if stop is not None:
            stop()

    def _publish(
        self, bundle: Bundle, display_id: str, metadata: Mapping[str, Any], *, update: bool
    ) -> None:
        data = dict(bundle or NOTHING)
        if magics_of(self._shell) is None:
            data = with_calls(data)
        if not self._is_kernels and (text := data.get("text/plain")):
            data["text/plain"] = printable(text, getattr(sys.stdout, "encoding", None))
        if self._shell is None:
            print(data.get("text/plain", ""))  # noqa: T201  (the output of a script is its terminal)
            return
        transient = {"display_id": display_id}
        self._shell.display_pub.publish(
            data=data, metadata=metadata, transient=transient, update=update
        )


def _mark(display_id: str, lost: Bundle | None) -> dict[str, Any]:
    return {} if lost is None else {MARK: {"display_id": display_id, "lost": dict(lost)}}


def with_calls(bundle: Bundle) -> dict[str, Any]:
    """Return an output with calls of Python in place of magics."""
    texts = {key: bundle[key] for key in ("text/plain", "text/html") if key in bundle}
    return {**bundle, **{key: _MAGIC.sub(_call_of, text) for key, text in texts.items()}}


def _call_of(command: re.Match[str]) -> str:
    if command[1] is None:
        return _CALLS[command[0]]
    return f"hfmem_widget.free({command[1]!r}{', trim=True' * bool(command[2])})"


def printable(text: str, encoding: str | None) -> str:
    """Return a text with stand-ins for the letters that an encoding does not have."""
    encoding = encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.translate(STAND_INS).encode(encoding, errors="replace").decode(encoding)
    return text


PLOTLY = "application/vnd.plotly.v1+json"


def screen_here() -> Screen:
    """Return the screen of the running code."""
    marimo = sys.modules.get("marimo")
    if marimo is not None and marimo.running_in_notebook():
        return MarimoScreen(marimo)
    return Screen(running_shell())


class MarimoScreen(Screen):
    """The outputs of a cell of marimo, which has no updates of outputs: appended, and changed in place.

    marimo finds the cell of an output by the thread that writes it, so other threads pass theirs to a
    thread of marimo's own.
    """

    def __init__(self, marimo: Any) -> None:
        super().__init__()
        self._marimo = marimo
        self._places: dict[str, Any] = {}
        self._worker: _Worker | None = None

    def __copy__(self) -> Self:
        return type(self)(self._marimo)

    @property
    def live(self) -> bool:
        """Whether live views are wanted."""
        return wants_live_views()

    def bound(self, action: Callable[[], None]) -> Callable[[], None]:
        """Return a function that does it on a thread of marimo's, and waits for it."""
        worker = self._worker_of_cell()
        return lambda: worker.do(action)

    def close(self) -> None:
        """End marimo's thread."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.jobs.put(None)

    def _worker_of_cell(self) -> _Worker:
        if self._worker is None:
            self._worker = _Worker(self._marimo)
        return self._worker

    def _publish(
        self, bundle: Bundle, display_id: str, metadata: Mapping[str, Any], *, update: bool
    ) -> None:
        del metadata  # a reloaded page gets the output anyway
        bundle = with_calls(bundle)
        self._worker_of_cell().do(lambda: self._write(bundle, display_id, update=update))
        # marimo shows an error in place of all outputs, but for printed text.
        if sys.exception() is not None and PLOTLY not in bundle and "text/plain" in bundle:
            print(bundle["text/plain"])  # noqa: T201  (see above)

    def _write(self, bundle: Bundle, display_id: str, *, update: bool) -> None:
        from marimo._runtime.output._output import flush

        place = self._places.get(display_id)
        if place is None:
            place = self._places[display_id] = _place(self._marimo)
        place.fill(bundle)
        if update:
            place.was_read = False
            flush()
        # The user's code may have removed it.
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


class _Worker:
    """A thread of marimo's whose outputs are those of the cell that made it."""

    def __init__(self, marimo: Any) -> None:
        self._cell = threading.get_ident()
        self.jobs: SimpleQueue[tuple[Callable[[], None], threading.Event] | None] = SimpleQueue()
        # Made while the cell runs: a thread of marimo's belongs to the cell that makes it.
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
        self.jobs.put((action, done))
        done.wait()

    def _work(self) -> None:
        while (job := self.jobs.get()) is not None:
            action, done = job
            try:
                action()
            finally:
                done.set()
