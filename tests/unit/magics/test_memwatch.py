"""`%memwatch`: its texts, the watches that it begins and ends, and the first line of a cell."""

import gc
import os
import re
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import pytest
import torch.utils._python_dispatch as dispatch
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

import hfmem_widget
from hfmem_widget.features.budget.companion import Budget
from hfmem_widget.features.oom.companion import OutOfMemory
from hfmem_widget.guard import CHANGED
from hfmem_widget.monitor.companion import begun
from hfmem_widget.session import Session
from hfmem_widget.session.stacks import Snapshot
from tests.data.torch_snapshots import training
from tests.unit.magics.conftest import Output

STEPS = """
import hfmem_widget
for _ in range(5):
    with hfmem_widget.span("step"):
        pass
"""


def test_spans_within_a_cell_are_not_cells(output: Output) -> None:
    """One cell with five steps is one cell."""
    text = output("%memwatch on --quiet", STEPS, "%memwatch status")
    assert "memwatch is on: 1 cell so far," in text


def modes() -> int:
    return len(dispatch._get_current_dispatch_mode_stack())


def test_each_cell_has_stacks_of_its_own(shell: InteractiveShell) -> None:
    """All cells after `%memwatch on` share a session, which has the stacks of the last."""
    shell.run_cell("%memwatch on --stacks --quiet -o session\nimport torch")
    shell.run_cell("one = torch.zeros(1000)")
    session: Session = shell.user_ns["session"]
    shell.run_cell("two = torch.zeros(5000)")
    assert session.stacks is not None
    assert [one.bytes for one in session.stacks.peaks] == [20_000]


def test_a_snapshot_of_torch_is_opened(shell: InteractiveShell, tmp_path: Path) -> None:
    """A snapshot is shown, and stored under the given name."""
    (tmp_path / "peak.pickle").write_bytes(training(1, layers=2).dump())
    shell.run_cell(f"%memwatch open {tmp_path / 'peak.pickle'} -o back")

    assert isinstance(shell.user_ns["back"], Snapshot)


def our_objects() -> tuple[int, ...]:
    """Return the objects of ours that exist besides the session."""
    return len(sys.meta_path), modes(), len(begun(OutOfMemory)), len(begun(Budget))


def test_the_end_of_a_session_ends_the_cell_in_it(shell: InteractiveShell) -> None:
    """`%unload_ext` and `%memwatch off` in a watched cell leave nothing of ours behind."""
    before = our_objects()
    for end in ("%reload_ext hfmem_widget", "x = 1\n%memwatch off"):
        shell.run_cell("%memwatch on --stacks --quiet --budget 1GiB --stop")
        shell.run_cell("import torch; torch.zeros(3)")
        shell.run_cell(end)
        assert our_objects() == before


@pytest.mark.parametrize("first", [True, False])
def test_another_shell_that_unloads_the_extension_ends_nothing_of_this_one(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str], first: bool
) -> None:
    """A process has one monitor, which ends with the last shell."""
    other = InteractiveShell()
    other.run_cell("%load_ext hfmem_widget")
    staying, leaving = (shell, other) if first else (other, shell)
    staying.run_cell("%memwatch on --quiet --output session")
    leaving.run_cell("%unload_ext hfmem_widget")
    capsys.readouterr()
    staying.run_cell("x = 1")

    session: Session = staying.user_ns["session"]
    assert session.running
    assert len(session.spans) == 1
    assert capsys.readouterr().err == ""
    staying.run_cell("%unload_ext hfmem_widget")
    assert not session.running


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        ("%memwatch\nx = 1", "two % signs"),
        ("# note\n\n%memwatch  \n\nx = 1", "two % signs"),
        ("%memwatch\n# note\n", "memwatch is off"),
        ("%memwatch", "memwatch is off"),
        ("x = 1\n%memwatch", "memwatch is off"),
        ("x = 1\n%%memwatch", "%%memwatch must be the first line of its cell"),
    ],
)
def test_one_percent_sign_above_code_watches_nothing(output: Output, cell: str, text: str) -> None:
    """A watched cell needs two; alone or at the end, one shows whether every cell is watched."""
    assert text in output(cell)


def test_the_end_of_every_cell_sums_up_the_cells(output: Output) -> None:
    """`%memwatch off` has the number of cells and the highest peak; a second one has nothing to end."""
    output("%memwatch on", "kept = bytearray(40_000_000)")
    end, again = output("%memwatch off", "%memwatch off").splitlines()

    assert re.match(r"memwatch is off\. 1 cell watched, peak .* in \[\d+\] kept = ", end)
    assert again == "memwatch is already off."


def test_cells_that_change_little_show_nothing(output: Output) -> None:
    """Others show a short line, with their code cut if it is long."""
    assert "less than 10.0 MiB" in output("%memwatch on")
    assert output("x = 1") == ""
    gc.collect()  # what the cell frees beside it would be missing in its figure
    text = output("kept = bytearray(40_000_000), 'and so on, and so on, and so on'")
    assert text.startswith('memwatch "[1] kept = bytearray(40_000_000), \'and …" · ')
    assert re.search(r"\(\+3[78]\.\d\)", text)  # what else was freed is less
    assert "headroom" not in text
    assert "less than 10.0 MiB" in output("%memwatch")


def test_every_cell_is_shown_on_request(output: Output) -> None:
    """`--min 0` shows every cell, labelled with its first line of code."""
    assert output("%memwatch on --min 0") == ""
    assert output("# settings\nx = 1").startswith('memwatch "[1] x = 1" · ')


FIRST = "%load_ext hfmem_widget\n"
ON = "%memwatch on --quiet -o session\n"


@pytest.mark.parametrize(
    ("cells", "labels"),
    [
        ([FIRST + ON, "x = 1", "x = 2"], ["[2] x = 1", "[3] x = 2"]),
        ([ON, "x = 1", "x = 2"], ["[2] x = 1", "[3] x = 2"]),
        ([f"y = 1\n{FIRST}{ON}y = 2", "x = 1"], ["[2] x = 1"]),
        ([FIRST, "%%memwatch --quiet\n" + ON, "x = 1"], ["[3] x = 1"]),
        ([FIRST, ON, "1 / 0", "x = = 1", "x = 1"], ["[3] 1 / 0", "[4] x = = 1", "[5] x = 1"]),
    ],
)
def test_a_cell_has_the_number_beside_it(cells: list[str], labels: list[str]) -> None:
    """The first cell after the extension was loaded has its number, too, whatever it contains."""
    shell = InteractiveShell.instance()
    if not cells[0].startswith((FIRST, "y")):
        shell.run_cell(FIRST)
    try:
        for cell in cells:
            shell.run_cell(cell, store_history=True)
            shell.run_cell("z = 1", silent=True)
        session: Session = shell.user_ns["session"]
        assert [span.label for span in session.spans] == labels
    finally:
        shell.run_cell("%unload_ext hfmem_widget")
        InteractiveShell.clear_instance()


def test_a_cell_that_is_not_stored_does_not_move_the_numbers(shell: InteractiveShell) -> None:
    """IPython itself does not count it."""
    shell.run_cell(ON, store_history=True)
    shell.run_cell("x = 1")
    shell.run_cell("x = 2", store_history=True)
    session: Session = shell.user_ns["session"]
    assert [span.label for span in session.spans] == ["[2] x = 1", "[2] x = 2"]


def test_without_ids_cells_of_one_text_are_one_cell(shell: InteractiveShell) -> None:
    """A terminal names no cell; cells that only begin alike are different ones."""
    for code in ("x = 1\ny = 1", "x = 1\ny = 1", "x = 1\ny = 2"):
        shell.run_cell(f"%%memwatch --quiet\n{code}", store_history=True)

    first, again, other = [run.identity for run in hfmem_widget.history().runs][-3:]
    assert first == again != other


TYPED = "def typed(x: int): pass\ntyped.__annotations__['x']"


def run(shell: InteractiveShell, cell: str, line: str = "--quiet") -> Any:
    """Run a cell as `%%memwatch` does if no input transformer sees it."""
    return shell.run_cell_magic("memwatch", line, cell)


@pytest.mark.parametrize(
    ("before", "cell", "value"),
    [
        ("", TYPED, int),
        ("from __future__ import annotations", TYPED, "int"),
        ("", "5", 5),
        ("", "5;", None),
        ("", "5; # ;", None),
    ],
)
def test_it_has_its_value(shell: InteractiveShell, before: str, cell: str, value: object) -> None:
    """Future imports of earlier cells hold, ours do not; a trailing semicolon hides the value."""
    shell.run_cell(before)

    assert run(shell, cell) == value


def test_its_traceback_shows_its_lines(shell: InteractiveShell) -> None:
    """Under the file name that the shell gives to cells."""
    with pytest.raises(ZeroDivisionError) as raised:
        run(shell, "def fail():\n    return 1 / 0\nfail()")

    frames = traceback.extract_tb(raised.value.__traceback__)[-2:]
    assert [frame.line for frame in frames] == ["fail()", "return 1 / 0"]
    assert shell.compile.format_code_name(frames[-1].filename) is not None


def test_an_action_is_refused(shell: InteractiveShell) -> None:
    """An action has no place in the first line of a cell."""
    with pytest.raises(UsageError, match="on its own line"):
        run(shell, "1", "on")


def test_two_first_lines_are_two_watches_of_one_cell(shell: InteractiveShell) -> None:
    """The cell may await, and its last value is shown."""
    shell.run_cell("import asyncio")
    lines = "%%memwatch -q -o outer\n%%memwatch -q -o inner"

    assert shell.run_cell(f"{lines}\nawait asyncio.sleep(0)\n5").result == 5
    assert [shell.user_ns[name].running for name in ("outer", "inner")] == [False, False]


@pytest.mark.parametrize("way", ["{line}\nran = 1", "get_ipython().run_cell_magic({args})"])
def test_a_fault_in_making_a_watch_costs_one_line(
    shell: InteractiveShell,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    way: str,
) -> None:
    """The cell still runs after a failing import of ours."""
    # A module that is None cannot be imported.
    monkeypatch.setitem(sys.modules, "hfmem_widget.drivers.watch", None)
    args = "'memwatch', '', 'ran = 1'"
    shell.run_cell(way.replace("{line}", "%%memwatch").replace("{args}", args))

    assert shell.user_ns["ran"] == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("memwatch: this cell runs unwatched (ModuleNotFoundError: ")
    assert CHANGED not in lines[0]


def test_a_fault_after_our_files_have_changed_says_what_helps(
    shell: InteractiveShell,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """After an upgrade under a running kernel the line advises a restart."""
    newer = ModuleType("hfmem_widget.newer")
    newer.__file__ = str(tmp_path / "newer.py")
    Path(newer.__file__).touch()
    os.utime(newer.__file__, (2**33, 2**33))
    monkeypatch.setitem(sys.modules, newer.__name__, newer)
    monkeypatch.setitem(sys.modules, "hfmem_widget.drivers.watch", None)
    shell.run_cell("%%memwatch\nran = 1")

    assert shell.user_ns["ran"] == 1
    assert CHANGED in capsys.readouterr().err


WAYS = {
    "first line": "{line}\n1",
    "twice": "%%memwatch --quiet\n{line}\n1",
    "awaits": "{line}\nawait asyncio.sleep(0)",
    "below %%time": "%%time\n{line}\n1",
    "below %%capture": "%%capture\n{line}\n1",
    "above %%time": "{line}\n%%time\n1",
    "above an empty line and %%time": "{line}\n\n%%time\n1",
}


def label(shell: InteractiveShell, name: str, way: str = "first line") -> str:
    line = f"%%memwatch --quiet --output session --label {name}"
    shell.run_cell(WAYS[way].replace("{line}", line))
    session: Session = shell.user_ns["session"]
    return session.label


@pytest.mark.parametrize("way", WAYS)
def test_a_variable_in_the_options_is_its_value(shell: InteractiveShell, way: str) -> None:
    """The value is that of the variable, however the cell is run."""
    shell.run_cell("import asyncio\nname = 'fine'\nrate = 2")

    assert label(shell, '"$name {rate * 10}"', way) == "fine 20"


@pytest.mark.parametrize("kind", ["line", "cell"])
def test_ipython_expands_variables_without_a_first_line(shell: InteractiveShell, kind: str) -> None:
    """IPython expands the line of `%memwatch`, and of `%%memwatch` as a function."""
    shell.run_cell("name = 'fine'")
    line = "--quiet --output session --label {name}"
    if kind == "line":
        shell.run_cell(f"%memwatch on {line}")
    else:
        shell.run_cell(f"get_ipython().run_cell_magic('memwatch', {line!r}, '1')")

    assert shell.user_ns["session"].label == "fine"


def test_variables_in_names_of_labels_expand(shell: InteractiveShell, output: Output) -> None:
    """`%memcompare` takes the name that `%%memwatch` was given."""
    shell.run_cell("name = 'fine'")
    label(shell, "{name}")

    assert "there is no" not in output("%memcompare {name}")


def test_a_baseline_joins_the_names(shell: InteractiveShell) -> None:
    """The baseline is compared although it is not among the names."""
    for name in ("base", "lora"):
        shell.run_cell(f"%%memwatch --quiet --label {name}\n1")
    shell.run_cell("%memcompare lora --baseline ba -o seen")

    seen = shell.user_ns["seen"]
    assert [cell.name for cell in seen.cells] == ["lora", "base"]
    assert seen.baseline == 1


@pytest.mark.parametrize(
    "text", ["{nope}", "$nope", "$\\alpha$ {", "{1/0}", "<b>{nope}</b>", "{}", "100 %"]
)
def test_text_that_is_not_a_variable_stays(shell: InteractiveShell, text: str) -> None:
    """Labels are any text."""
    assert label(shell, f"'{text}'") == text


def test_a_variable_may_be_a_budget(shell: InteractiveShell, output: Output) -> None:
    """Its value is checked like a typed one."""
    shell.run_cell("large, small = '20GiB', '20'")
    assert shell.run_cell("%%memwatch --quiet --budget {large}\n1").result == 1
    assert "not '20'" in output("%%memwatch --quiet --budget {small}\nran = True")
    assert "ran" not in shell.user_ns


def test_a_fault_in_the_expansion_is_an_error_of_one_line(
    shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch, output: Output
) -> None:
    """The cell does not run."""
    monkeypatch.setattr(shell, "var_expand", Mock(side_effect=RuntimeError("no variables\nhere")))
    text = output("%%memwatch --quiet --label {x}\nran = True")

    assert (
        "UsageError: cannot expand the variables in the first line: RuntimeError: no variables here"
        in text
    )
    assert "ran" not in shell.user_ns
