"""The live line of a terminal: on a pseudo-terminal of 20 rows and 60 columns."""

import fcntl
import io
import os
import struct
import termios
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from hfmem_widget.view.screen import Screen
from hfmem_widget.view.terminal import BottomLine, terminal_of
from tests.scenes import FakeClock, scripted_run

SESSION = scripted_run("training")
RESERVED = "\x1b[1;19r"
GIVEN_BACK = "\x1b[r\x1b[20;1H\x1b[K"


class Terminal:
    def __init__(self) -> None:
        self._other, self.number = os.openpty()
        self.resize(20)
        os.set_blocking(self._other, False)
        self.clock = FakeClock()

    def resize(self, rows: int) -> None:
        fcntl.ioctl(self.number, termios.TIOCSWINSZ, struct.pack("HHHH", rows, 60, 0, 0))

    def read(self) -> str:
        try:
            return os.read(self._other, 1 << 16).decode()
        except BlockingIOError:
            return ""

    def line(self) -> BottomLine:
        return BottomLine(self.number, clock=self.clock)

    def drawn(self, line: BottomLine) -> str:
        """Return what a line writes at a tick, a second later."""
        self.clock.advance(1.0)
        line(SESSION, ())
        return self.read()

    def close(self) -> None:
        os.close(self._other)
        os.close(self.number)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    opened = Terminal()
    yield opened
    opened.close()


def test_the_last_row_is_kept_out_of_what_scrolls(terminal: Terminal) -> None:
    """The last row is reserved once, written by going there and back, and given back empty."""
    line = terminal.line()
    first, second = terminal.drawn(line), terminal.drawn(line)
    line.close()

    assert RESERVED in first
    assert RESERVED not in second
    assert '\x1b[20;1H\x1b[?7l\x1b[2mmemwatch "' in second
    assert second.startswith("\x1b7")
    assert second.endswith("\x1b8")
    assert GIVEN_BACK in terminal.read()


def test_it_is_as_long_as_the_terminal_is_wide(terminal: Terminal) -> None:
    """The line is cut to the terminal's width, since a line that wraps would scroll."""
    line = terminal.line()
    text = terminal.drawn(line)
    line.close()
    assert len(text.partition("\x1b[2m")[2].partition("\x1b[22m")[0]) == 59


def test_a_quick_cell_shows_no_live_line(terminal: Terminal) -> None:
    """Nothing is written in the first half second, nor at the end."""
    line = terminal.line()
    line(SESSION, ())
    line.close()

    assert terminal.read() == ""


def test_after_its_end_nothing_is_written(terminal: Terminal) -> None:
    """A tick that is under way when the cell ends writes nothing."""
    line = terminal.line()
    terminal.drawn(line)
    line.close()
    terminal.read()

    assert terminal.drawn(line) == ""


def test_of_two_watches_the_first_has_the_row(terminal: Terminal) -> None:
    """The first watch has the row, and once it has ended the other may have it."""
    first, second = (terminal.line() for _ in range(2))
    terminal.drawn(first)
    text = terminal.drawn(second)
    second.close()
    first.close()
    terminal.read()
    third = terminal.line()
    later = terminal.drawn(third)
    third.close()

    assert text == ""
    assert RESERVED in later


def test_another_height_reserves_another_row(terminal: Terminal) -> None:
    """A window that is resized keeps its line at the bottom."""
    line = terminal.line()
    terminal.drawn(line)
    terminal.resize(30)
    after = terminal.drawn(line)
    line.close()

    assert "\x1b[1;29r" in after


@pytest.mark.parametrize(("term", "is_able"), [("xterm-256color", True), ("dumb", False)])
def test_only_a_capable_terminal_has_a_live_line(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, term: str, *, is_able: bool
) -> None:
    """A file, a pipe and a dumb terminal have no live line."""
    monkeypatch.setenv("TERM", term)
    with os.fdopen(os.dup(terminal.number), "w") as stream:
        assert (terminal_of(stream) == stream.fileno()) is is_able
    assert terminal_of(io.StringIO()) is None


def test_a_live_line_needs_a_terminal(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """IPython in a terminal has one, unless live views are turned off."""
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(os.dup(terminal.number), "w") as stream:
        monkeypatch.setattr("sys.stdout", stream)
        in_terminal = Screen(SimpleNamespace(display_pub=SimpleNamespace()))
        kernels = Screen(SimpleNamespace(display_pub=SimpleNamespace(pub_socket=object())))
        terminals = [each.terminal for each in (in_terminal, kernels, Screen())]
        monkeypatch.setenv("HFMEM_WIDGET", "static")
        turned_off = in_terminal.terminal

        assert terminals == [stream.fileno(), None, None]
        assert turned_off is None
