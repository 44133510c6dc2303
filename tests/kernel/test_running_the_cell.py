"""`%%memwatch` does not change the cell, and reports on it."""

import random
import re

import pytest

from tests.kernel.conftest import StartKernel
from tests.kernel.drive import Kernel, Message, Result, points_at

PLOTLY = "application/vnd.plotly.v1+json"
LEFT = """
import gc, threading
from hfmem_widget.monitor import process as _p
_magics = get_ipython().magics_manager.registry["MemwatchMagics"]
print(len(_magics._executions.watches), _p.this.monitor is not None and _p.this.monitor.poller.alive)
"""


def cards(result: Result) -> list[str]:
    shown = (one.content["data"] for one in result.displays)
    texts = (data.get("text/plain", "") for data in shown if PLOTLY not in data)
    return [text for text in texts if text.startswith("memwatch") and "running" not in text]


def kind_of(message: Message) -> str:
    """Return the kind of one of our messages to a widget: snapshot or rows; empty for other messages."""
    data = message.content.get("data", {}) if message.kind == "comm_msg" else {}
    return str(data.get("content", {}).get("kind", ""))


def assert_nothing_left(kernel: Kernel) -> None:
    assert kernel.run(LEFT).text().split()[:2] == ["0", "False"]


@pytest.mark.parametrize(
    ("cell", "value", "printed"),
    [
        ("%%memwatch --label 'two words'\nx = 41\nx + 1", "42", ""),
        ("%%memwatch\n!echo from the shell\n%time 1 + 1", "2", "from the shell"),
        ("%%memwatch\n%%time\n6 * 7", "42", "Wall time"),
        ("%%time\n%%memwatch\n6 * 7", "42", "Wall time"),
        ("%%memwatch\n%%bash\necho hello", "", "hello"),
        ("%%memwatch\n  x = 1\n  x + 41", "42", ""),
        ("%%memwatch\n\n  x = 41\n\n  x + 1", "42", ""),
    ],
    ids=["plain", "shell and magic", "time below", "time above", "bash", "indented", "empty lines"],
)
def test_cells_have_value_and_card(reloaded: Kernel, cell: str, value: str, printed: str) -> None:
    """A watched cell may have other magics, shell commands and indented lines, as without a watch."""
    result = reloaded.run(cell)

    assert result.status == "ok"
    assert result.value_text == value
    assert printed in result.text()
    assert ("Wall time" in result.text()) == ("%time" in cell)
    (card,) = cards(result)
    assert card.startswith('memwatch "two words"') or "two words" not in cell


def test_an_error_is_shown_once_with_the_right_line(reloaded: Kernel) -> None:
    """The reply is an error, the traceback is single and points at the user's line."""
    result = reloaded.run("%%memwatch\nx = 1\n1 / 0")

    assert result.status == "error"
    assert [one.content["ename"] for one in result.errors] == ["ZeroDivisionError"]
    assert points_at(without_colours("".join(result.errors[0].content["traceback"])), 3)
    assert len(cards(result)) == 1
    assert_nothing_left(reloaded)


def test_top_level_await_works(reloaded: Kernel) -> None:
    """A cell may await, and its watch lasts to the end of the coroutine."""
    result = reloaded.run("%%memwatch -o s\nimport asyncio\nawait asyncio.sleep(0.2)\n'awaited'")

    assert result.status == "ok"
    assert result.value_text == "'awaited'"
    assert reloaded.run("print(s.spans[0].duration > 0.19)").text() == "True\n"


@pytest.mark.parametrize("order", ["%%memwatch\n%%time\n", "%%time\n%%memwatch\n"])
def test_an_error_with_time_above_or_below_is_one_error(reloaded: Kernel, order: str) -> None:
    """In both orders it is shown once, and the reply is that under `%%time` alone."""
    alone = reloaded.run("%%time\n1 / 0")  # no error in IPython 8, whose `%%time` shows it itself
    result = reloaded.run(f"{order}1 / 0")

    assert result.status == alone.status
    assert len(result.errors) == len(alone.errors) == 1
    assert_nothing_left(reloaded)


def test_capture_above_keeps_the_cards_to_itself(reloaded: Kernel) -> None:
    """Under `%%capture` nothing is shown, and the next watch is as usual."""
    assert cards(reloaded.run("%%capture captured\n%%memwatch\n1 + 1")) == []
    assert len(cards(reloaded.run("%%memwatch\npass"))) == 1
    assert_nothing_left(reloaded)


@pytest.mark.parametrize(
    ("cell", "names", "is_watched"),
    [
        ("x = = 1", ["SyntaxError"], False),
        ("import sys\nsys.exit(3)", ["SystemExit"], True),
        ("%%bash\nexit 3", ["CalledProcessError"], True),
    ],
)
def test_a_cell_that_fails_fails_as_without_a_watch(
    reloaded: Kernel, cell: str, names: list[str], is_watched: bool
) -> None:
    """The error is the cell's own, and nothing is left; a cell that does not compile has no card."""
    result = reloaded.run(f"%%memwatch\n{cell}")

    assert result.status == "error"
    assert [error.content["ename"] for error in result.errors] == names
    assert bool(cards(result)) == is_watched
    assert_nothing_left(reloaded)


def test_watches_nest(reloaded: Kernel) -> None:
    """A `with watch()` inside a watched cell, and a watched cell run by another, each have their own card."""
    result = reloaded.run(
        "%%memwatch -l outer\nimport hfmem_widget\nwith hfmem_widget.watch('block'):\n    pass\n"
        "get_ipython().run_cell('%%memwatch -l inner\\n1')\n2"
    )

    assert result.status == "ok"
    assert sorted(card.split('"')[1] for card in cards(result)) == ["block", "inner", "outer"]
    assert_nothing_left(reloaded)


def test_an_empty_body_is_ipythons_own_error(reloaded: Kernel) -> None:
    """IPython calls a first line alone a line magic."""
    assert "cell body is empty" in reloaded.run("%%memwatch").text("stderr")


def test_run_cell_magic_from_code_works_too(reloaded: Kernel) -> None:
    """Called as a function the magic returns the value, raises the error, and shows a card."""
    result = reloaded.run("get_ipython().run_cell_magic('memwatch', '-l x', 'y = 20\\ny + 22')")
    failed = reloaded.run("get_ipython().run_cell_magic('memwatch', '', '1 / 0')")

    assert result.value_text == "42"
    assert len(cards(result)) == 1
    assert (failed.status, len(failed.errors)) == ("error", 1)


def test_memwatch_on_annotates_every_later_cell(reloaded: Kernel) -> None:
    """Each later cell has one line until `off`; lines of our own magics have none."""
    assert cards(reloaded.run("%memwatch on --min 0")) == []
    assert len(cards(reloaded.run("x = 1"))) == 1
    assert len(cards(reloaded.run("1 / 0"))) == 1
    status = reloaded.run("%memwatch")
    assert "memwatch is on: 2 cells so far" in status.text()
    assert cards(status) == []
    assert len(cards(reloaded.run("%%memwatch -l own\npass"))) == 1
    reloaded.run("%memwatch off")
    assert cards(reloaded.run("x = 2")) == []
    assert_nothing_left(reloaded)


def test_an_unwatched_moment_is_silent(reloaded: Kernel) -> None:
    """With `%memwatch on` and no running cell, nothing is sent, so an idle kernel can be culled."""
    reloaded.run("%memwatch on --min 0")
    reloaded.run("import time; time.sleep(0.5)")
    reloaded.read(0.5)

    assert [one.kind for one in reloaded.read(1.0)] == []


def test_a_live_chart_streams_while_the_cell_is_busy(reloaded: Kernel) -> None:
    """The widget appears after a moment and gets messages; at the end it is replaced."""
    seen = reloaded.folder / "seen"
    seen.unlink(missing_ok=True)
    cell = "import os, time\nwhile not os.path.exists('seen'): time.sleep(0.05)"
    running = reloaded.send(f"%%memwatch\n{cell}")
    for _ in range(4):
        reloaded.wait_for(lambda one: kind_of(one) == "rows")
    seen.touch()
    result = reloaded.collect(running)
    kinds = [kind for kind in map(kind_of, result.comms) if kind]
    shown = [set(one.content["data"]) for one in result.displays]

    assert kinds[0] == "snapshot"
    assert kinds.count("rows") >= 4
    assert any("application/vnd.jupyter.widget-view+json" in one for one in shown)
    last = {one.content["transient"]["display_id"]: one.content["data"] for one in result.displays}
    assert all("application/vnd.jupyter.widget-view+json" not in data for data in last.values())
    assert any("application/vnd.plotly.v1+json" in data for data in last.values())
    assert any("text/html" in data for data in last.values())


INTERRUPT = """
import signal
_magics = get_ipython().magics_manager.registry["MemwatchMagics"]
_arm = _magics.arm_cell
def _arm_and_interrupt(options):
    signal.setitimer(signal.ITIMER_REAL, seconds)
    _arm(options)
_magics.arm_cell = _arm_and_interrupt
_ = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
"""
"""Interrupts a watched cell so many `seconds` after it began to be armed."""


@pytest.mark.parametrize("interrupts", [12, pytest.param(50, marks=pytest.mark.full)])
def test_interrupts_at_random_instants(reloaded: Kernel, interrupts: int) -> None:
    """While the watch is armed or the cell runs: exactly one error each, and nothing is left behind."""
    instants = random.Random(0)
    assert reloaded.run(INTERRUPT).status == "ok"
    for _ in range(interrupts):
        reloaded.run(f"seconds = {instants.uniform(0.0005, 0.4)}")
        result = reloaded.run("%%memwatch -i 0.01\nimport time\nwhile True: time.sleep(0.01)")
        assert result.status == "error"
        assert [one.content["ename"] for one in result.errors] == ["KeyboardInterrupt"]
        assert_nothing_left(reloaded)


def test_a_cell_of_a_subshell_has_a_watch_of_its_own(reloaded: Kernel) -> None:
    """Of two cells that overlap, the one that began first ends first, each with its card."""
    subshell = reloaded.open_subshell()
    reloaded.run("import threading, time\nbegan = threading.Event()")
    first = reloaded.send("%%memwatch -l first -o session\nbegan.wait()")
    reloaded.wait_for(lambda one: one.kind == "display_data" and one.parent == first.request)
    cell = "began.set()\nwhile session.running: time.sleep(0.01)"
    second = reloaded.send(f"%%memwatch -l second\n{cell}", subshell=subshell)
    shown = [cards(reloaded.collect(one)) for one in (first, second)]

    assert [[card.split('"')[1] for card in one] for one in shown] == [["first"], ["second"]]
    assert_nothing_left(reloaded)


def test_an_interrupt_at_the_very_end_of_a_block_ends_its_watch(reloaded: Kernel) -> None:
    """An interrupt where `with watch()` is about to end leaves neither watch nor poller behind."""
    reloaded.run("import numpy, hfmem_widget\na = numpy.random.rand(2800, 2800)")
    reloaded.run("with hfmem_widget.watch(quiet=True): pass")
    result = reloaded.run(
        "with hfmem_widget.watch(quiet=True) as session:\n    open('begun', 'w').close()\n    b = a @ a",
        interrupt_once=reloaded.has_made("begun"),
    )
    ended = reloaded.run("print(session.running, session.spans[0].outcome)").text()

    assert result.status == "error"
    assert ended == "False interrupted\n"


def test_a_fault_of_ours_never_changes_the_cell(kernel: Kernel) -> None:
    """Value and status are the user's with sources, views and the end of a watch all broken."""
    kernel.run("%load_ext hfmem_widget")
    kernel.run(
        "import hfmem_widget.drivers.watch, hfmem_widget.view.live as live\n"
        "def broken(*a, **k): raise RuntimeError('ours')\n"
        "live.CellView.finish = broken"
    )
    result = kernel.run("%%memwatch\n6 * 7")
    kernel.run("hfmem_widget.drivers.watch.Watch.start = broken")
    unwatched = kernel.run("%%memwatch\n6 * 7")

    for one in (result, unwatched):
        assert one.status == "ok"
        assert one.value_text == "42"
        assert "ours" in one.text("stderr")
    assert_nothing_left(kernel)


BOOK = '%%memwatch --label "a whole book"'


def without_colours(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.mark.parametrize("above", ["", "# a comment\n\n"])
def test_a_traceback_shows_the_users_own_first_line(reloaded: Kernel, above: str) -> None:
    """In the error, by `%tb`, in linecache and in the history, with the lines' own numbers."""
    result = reloaded.run(f"{above}{BOOK}\ndef fail():\n    return 1 / 0\nfail()")
    first = above.count("\n") + 1
    traceback = without_colours("\n".join(result.errors[0].content["traceback"]))
    again = without_colours("\n".join(reloaded.run("%tb").errors[0].content["traceback"]))
    cached = reloaded.run("import linecache; print(linecache.getlines(fail.__code__.co_filename))")
    history = reloaded.run(f"%history {result.reply['execution_count']}")
    # IPython 8 leaves a comment at the beginning out.
    version = reloaded.run("import IPython; print(IPython.version_info[0])").text()
    shows_first = version.strip() != "8"

    for one in (traceback, again):
        assert "arm_cell" not in one
        assert f"{first} # {BOOK}" in one or not shows_first
        assert points_at(one, first + 2)
    assert "arm_cell" not in cached.text()
    assert BOOK in cached.text()
    assert BOOK in history.text()
    assert "arm_cell" not in history.text()


@pytest.mark.parametrize("line", ["-h\nran = True", "--label x --help\nran = True", "--help"])
def test_help_is_shown_and_the_cell_is_not_run(reloaded: Kernel, line: str) -> None:
    """The output says so; the cell is not an error."""
    result = reloaded.run(f"%%memwatch {line}")

    assert result.status == "ok"
    assert "--no-chart" in result.text()
    assert "cell was not run" in result.text()
    assert cards(result) == []
    assert reloaded.run("print('ran' in globals())").text() == "False\n"


def test_a_terminal_shows_only_the_end(start_kernel: StartKernel, bare_command: list[str]) -> None:
    """`jupyter console` prints the first display and none of its updates."""
    kernel = start_kernel({"JPY_SESSION_NAME": None}, command=bare_command)
    kernel.run("%load_ext hfmem_widget")
    kernel.run("import hfmem_widget, time")
    for way in ("%%memwatch -l blk\n", "with hfmem_widget.watch('blk'): "):
        result = kernel.collect(kernel.send(f"{way}time.sleep(0.5)", as_terminal=True))

        assert [one.kind for one in result.displays] == ["display_data"]
        assert cards(result)[0].startswith('memwatch "blk" · ')
