"""What `%memwatch` says of itself, and what it begins and ends."""

from __future__ import annotations

import re
import sys

import pytest
import torch.utils._python_dispatch as dispatch
from IPython.core.interactiveshell import InteractiveShell

from hfmem_widget.features.budget.companion import Budget
from hfmem_widget.features.oom.companion import OutOfMemory
from hfmem_widget.monitor.companion import begun
from hfmem_widget.session import Session

STEPS = """
import hfmem_widget
for _ in range(5):
    with hfmem_widget.span("step"):
        pass
"""


def test_spans_within_a_cell_are_no_cells(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    """One cell with five steps is one cell."""
    shell.run_cell("%memwatch on --quiet")
    shell.run_cell(STEPS)
    shell.run_cell("%memwatch status")

    assert "memwatch is on: 1 cell so far," in capsys.readouterr().out


def modes() -> int:
    return len(dispatch._get_current_dispatch_mode_stack())


def test_each_cell_has_stacks_of_its_own(shell: InteractiveShell) -> None:
    """All cells after `%memwatch on` are in one session, which has the stacks of the last."""
    shell.run_cell("%memwatch on --stacks --quiet -o session\nimport torch")
    shell.run_cell("one = torch.zeros(1000)")
    session: Session = shell.user_ns["session"]
    shell.run_cell("two = torch.zeros(5000)")
    assert session.stacks is not None
    assert [one.bytes for one in session.stacks.peaks] == [20_000]


def left() -> tuple[int, ...]:
    """Return what of ours there is beside the session."""
    return len(sys.meta_path), modes(), len(begun(OutOfMemory)), len(begun(Budget))


def test_the_end_of_a_session_ends_the_cell_in_it(shell: InteractiveShell) -> None:
    """`%unload_ext` and `%memwatch off` in a cell that is watched leave nothing of ours behind."""
    before = left()
    for end in ("%reload_ext hfmem_widget", "x = 1\n%memwatch off"):
        shell.run_cell("%memwatch on --stacks --quiet --budget 1GiB --stop")
        shell.run_cell("import torch; torch.zeros(3)")
        shell.run_cell(end)
        assert left() == before


@pytest.mark.parametrize("first", [True, False])
def test_another_shell_that_unloads_the_extension_ends_nothing_of_this_one(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str], first: bool
) -> None:
    """A process has one monitor, which goes with the last shell."""
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
    ("cell", "says"),
    [
        ("%memwatch\nx = 1", "two % signs"),
        ("# note\n\n%memwatch  \n\nx = 1", "two % signs"),
        ("%memwatch\n# note\n", "memwatch is off"),
        ("%memwatch", "memwatch is off"),
        ("x = 1\n%memwatch", "memwatch is off"),
    ],
)
def test_one_percent_sign_above_code_says_that_nothing_is_watched(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str], cell: str, says: str
) -> None:
    """For the cell two are meant; alone or at the end it says whether every cell is."""
    shell.run_cell(cell)

    assert says in capsys.readouterr().out


def test_of_cells_that_change_little_nothing_is_shown(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of others a short line, whose code is cut where it is long."""
    shell.run_cell("%memwatch on")
    assert "less than 10.0 MiB" in capsys.readouterr().out
    shell.run_cell("x = 1")
    quiet = capsys.readouterr().out
    shell.run_cell("kept = bytearray(40_000_000), 'and so on, and so on, and so on'")
    told = capsys.readouterr().out
    shell.run_cell("%memwatch")

    assert quiet == ""
    assert told.startswith('memwatch "[1] kept = bytearray(40_000_000), \'and …" · ')
    assert re.search(r"\(\+3[78]\.\d\)", told)  # what else was freed is less
    assert "headroom" not in told
    assert "less than 10.0 MiB" in capsys.readouterr().out


def test_every_cell_is_shown_where_that_is_asked_for(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    """By `--min 0`."""
    shell.run_cell("%memwatch on --min 0")
    assert capsys.readouterr().out == ""
    shell.run_cell("x = 1")

    assert capsys.readouterr().out.startswith('memwatch "[1] x = 1" · ')


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("%memwatch on --min 10MB", "did you mean 10MiB?"),
        ("%%memwatch --min 0\n1", "--min belongs to %memwatch on"),
    ],
)
def test_what_min_cannot_be_is_said(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str], line: str, says: str
) -> None:
    """In one line."""
    shell.run_cell(line)

    assert says in "".join(capsys.readouterr())


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
    """The first one after the extension was loaded, too, whatever stands in that cell."""
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
