"""`run_cell_magic('memwatch', …)` runs code as the user's own."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from hfmem_widget.guard import CHANGED

TYPED = "def typed(x: int): pass\ntyped.__annotations__['x']"


def run(shell: InteractiveShell, cell: str, line: str = "--quiet") -> Any:
    """Run a cell as `%%memwatch` runs it where no input transformer sees it."""
    return shell.run_cell_magic("memwatch", line, cell)


def test_it_has_none_of_our_future_imports(shell: InteractiveShell) -> None:
    """Annotations are evaluated where the user's are."""
    assert run(shell, TYPED) is int


def test_it_has_the_users_future_imports(shell: InteractiveShell) -> None:
    """Those of cells before, as every cell has."""
    shell.run_cell("from __future__ import annotations")

    assert run(shell, TYPED) == "int"


@pytest.mark.parametrize(("cell", "value"), [("5", 5), ("5;", None), ("5; # ;", None)])
def test_a_trailing_semicolon_hides_the_value(
    shell: InteractiveShell, cell: str, value: int | None
) -> None:
    """As in a cell."""
    assert run(shell, cell) == value


def test_its_traceback_shows_its_lines(shell: InteractiveShell) -> None:
    """Under the name that the shell gives to cells."""
    with pytest.raises(ZeroDivisionError) as raised:
        run(shell, "def fail():\n    return 1 / 0\nfail()")

    frames = traceback.extract_tb(raised.value.__traceback__)[-2:]
    assert [frame.line for frame in frames] == ["fail()", "return 1 / 0"]
    assert shell.compile.format_code_name(frames[-1].filename) is not None


def test_an_action_is_refused(shell: InteractiveShell) -> None:
    """As it is in the first line of a cell."""
    with pytest.raises(UsageError, match="on its own line"):
        run(shell, "1", "on")


def test_two_first_lines_are_two_watches_of_one_cell(
    shell: InteractiveShell,
) -> None:
    """Which may await, and whose last value is the cell's."""
    shell.run_cell("import asyncio")
    result = shell.run_cell(
        "%%memwatch -q -o outer\n%%memwatch -q -o inner\nawait asyncio.sleep(0)\n5"
    )

    assert result.result == 5
    assert [shell.user_ns[name].running for name in ("outer", "inner")] == [False, False]


@pytest.mark.parametrize("way", ["{line}\nran = 1", "get_ipython().run_cell_magic({args})"])
def test_a_fault_in_making_a_watch_costs_one_line(
    shell: InteractiveShell,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    way: str,
) -> None:
    """Such as an import that fails: the cell runs."""
    # A module that is None cannot be imported.
    monkeypatch.setitem(sys.modules, "hfmem_widget.drivers.watch", None)
    args = "'memwatch', '', 'ran = 1'"
    shell.run_cell(way.replace("{line}", "%%memwatch").replace("{args}", args))

    assert shell.user_ns["ran"] == 1
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1
    assert told[0].startswith("memwatch: this cell runs unwatched (ModuleNotFoundError: ")
    assert CHANGED not in told[0]


def test_a_fault_after_our_files_have_changed_says_what_helps(
    shell: InteractiveShell,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """An upgrade under a running kernel, with or without autoreload: restart it."""
    newer = ModuleType("hfmem_widget.newer")
    newer.__file__ = str(tmp_path / "newer.py")
    Path(newer.__file__).touch()
    os.utime(newer.__file__, (2**33, 2**33))
    monkeypatch.setitem(sys.modules, newer.__name__, newer)
    monkeypatch.setitem(sys.modules, "hfmem_widget.drivers.watch", None)
    shell.run_cell("%%memwatch\nran = 1")

    assert shell.user_ns["ran"] == 1
    assert CHANGED in capsys.readouterr().err
