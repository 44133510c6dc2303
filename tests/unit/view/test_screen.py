"""Screens: a script's, a terminal's, and marimo's, played by a stand-in.

The stand-in does what `marimo.output` of 0.25.2 does (`_runtime/output/_output.py`);
`tests/browser/test_hosts.py` runs marimo itself.
"""

import copy
import io
import sys
import threading
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from hfmem_widget.view.screen import MarimoScreen, Screen, screen_here

LINE = 'memwatch "läuft" · heap 95.2 → 95.3 MiB (±0) · peak ≥ 96 MiB · 6 µs …'


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [
        ("utf-8", LINE),
        ("ascii", 'memwatch "l?uft" | heap 95.2 -> 95.3 MiB (+-0) | peak >= 96 MiB | 6 us ...'),
        ("cp1252", 'memwatch "läuft" | heap 95.2 -> 95.3 MiB (+-0) | peak >= 96 MiB | 6 us ...'),
    ],
)
def test_letters_have_stand_ins(monkeypatch: pytest.MonkeyPatch, encoding: str, shown: str) -> None:
    """Symbols that an encoding has not have stand-ins of more than one letter, other text a question mark."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    Screen().show({"text/plain": LINE})
    sys.stdout.flush()

    assert written.getvalue().decode(encoding) == f"{shown}\n"


@pytest.mark.parametrize(("is_kernel", "shown"), [(True, "a → b"), (False, "a -> b")])
def test_a_shell_in_a_terminal_gets_letters_that_its_terminal_can_print(
    monkeypatch: pytest.MonkeyPatch, is_kernel: bool, shown: str
) -> None:
    """A kernel sends its outputs to a page, whatever its own terminal can print."""
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    published: list[dict[str, Any]] = []
    publisher = SimpleNamespace(
        pub_socket=object() if is_kernel else None,
        publish=lambda **message: published.append(message["data"]),
    )
    Screen(SimpleNamespace(display_pub=publisher)).show({"text/plain": "a → b"})

    assert published == [{"text/plain": shown}]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("%memholders lists what holds it.", "hfmem_widget.holders() lists what holds it."),
        ("run %memholders --free errors first", "run hfmem_widget.free('errors') first"),
        ("%memholders --free garbage --trim", "hfmem_widget.free('garbage', trim=True)"),
        ("<code>%memfit</code> lists", "<code>hfmem_widget.fit(session)</code> lists"),
        ("%memanatomy --layout", "hfmem_widget.memory_map()"),
        ("100 %memory", "100 %memory"),
    ],
)
def test_where_there_are_no_magics_calls_are_advised(
    capsys: pytest.CaptureFixture[str], text: str, shown: str
) -> None:
    """A script, a notebook that has not loaded the extension: what is advised can be done there."""
    published: list[dict[str, Any]] = []
    publisher = SimpleNamespace(publish=lambda **message: published.append(message["data"]))
    Screen().show({"text/plain": text})
    Screen(SimpleNamespace(display_pub=publisher)).show({"text/html": text})
    registry = SimpleNamespace(registry={"MemwatchMagics": object()})
    Screen(SimpleNamespace(display_pub=publisher, magics_manager=registry)).show(
        {"text/html": text}
    )

    assert capsys.readouterr().out == f"{shown}\n"
    assert published == [{"text/html": shown}, {"text/html": text}]


CARD = {"text/html": "<b>card</b>", "text/plain": "card"}


class Html:
    def __init__(self, text: str) -> None:
        self._text = text

    @property
    def text(self) -> str:
        return self._text


class Cell:
    """A running cell: its outputs, and what its page shows of them."""

    def __init__(self) -> None:
        self.outputs: list[Html] = []
        self.page: list[str] = []
        self.writers: set[int] = set()

    def append(self, output: Html) -> None:
        self.outputs.append(output)
        self.flush()

    def flush(self) -> None:
        self.writers.add(threading.get_ident())
        self.page = [output.text for output in self.outputs]


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Cell:
    cell = Cell()
    module: Any = ModuleType("marimo")
    module.Html, module.Thread = Html, threading.Thread
    module.output = SimpleNamespace(append=cell.append)
    module.as_html = lambda shown: Html(f"as html: {sorted(shown._repr_mimebundle_())}")
    module.running_in_notebook = lambda: True
    written: Any = ModuleType("marimo._runtime.output._output")
    written.flush = cell.flush
    monkeypatch.setitem(sys.modules, "marimo", module)
    monkeypatch.setitem(sys.modules, written.__name__, written)
    return cell


@pytest.fixture
def screen(cell: Cell) -> Screen:
    screen = screen_here()
    assert isinstance(screen, MarimoScreen)
    return screen


def test_an_output_is_replaced_in_its_place(cell: Cell, screen: Screen) -> None:
    """The new output takes the place of the old one, above what was shown later."""
    first = screen.show({})
    screen.show({"text/html": "second"})
    screen.replace(first, CARD)

    assert cell.page == ["<b>card</b>", "second"]


def test_an_output_that_the_users_code_removed_is_shown_again(cell: Cell, screen: Screen) -> None:
    """An output that `mo.output.replace` in the cell took away is shown again."""
    first = screen.show({})
    cell.outputs[:] = [Html("progress")]
    screen.replace(first, CARD)

    assert cell.page == ["progress", "<b>card</b>"]


def test_a_widget_is_shown_as_marimo_shows_it(cell: Cell, screen: Screen) -> None:
    """Marimo makes its own element of a widget's view."""
    screen.show({"application/vnd.jupyter.widget-view+json": {}, "text/plain": "text"})

    assert cell.page == ["as html: ['application/vnd.jupyter.widget-view+json', 'text/plain']"]


def test_another_thread_writes_by_way_of_one_of_marimos(cell: Cell, screen: Screen) -> None:
    """Both what it does by itself and what was bound; marimo's thread ends with the screen."""
    shown = screen.show({})
    poller = threading.Thread(target=screen.replace, args=(shown, CARD))
    others: set[int] = set()
    bound = screen.bound(lambda: others.add(threading.get_ident()))
    helper = threading.Thread(target=bound)
    for thread in (poller, helper):
        thread.start()
        thread.join()
    screen.close()

    assert cell.page == ["<b>card</b>"]
    assert poller.ident not in cell.writers
    assert len(others | cell.writers) == 2  # the cell's and marimo's


def test_after_an_error_the_line_is_printed(
    cell: Cell, screen: Screen, capsys: pytest.CaptureFixture[str]
) -> None:
    """Marimo shows an error in the place of the outputs; what was printed stays."""
    shown = screen.show({})
    try:
        int("no number")
    except ValueError:
        screen.replace(shown, CARD)
        screen.show({"application/vnd.plotly.v1+json": {}, "text/html": "", "text/plain": "chart"})

    assert capsys.readouterr().out == "card\n"


def test_a_copy_belongs_to_another_cell(screen: Screen) -> None:
    """A watch that is entered in several cells has a screen for each."""
    screen.show({})

    assert vars(copy.copy(screen)) == vars(MarimoScreen(sys.modules["marimo"]))


def test_live_views_can_be_turned_off(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment turns live views off, as elsewhere."""
    assert screen.live
    monkeypatch.setenv("HFMEM_WIDGET", "static")
    assert not screen.live
