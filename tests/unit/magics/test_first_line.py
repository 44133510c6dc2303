"""Variables in the options of `%%memwatch` are what IPython makes of them elsewhere."""

from __future__ import annotations

import pytest
from IPython.core.interactiveshell import InteractiveShell

from hfmem_widget.session import Session

WAYS = {
    "first line": "{line}\n1",
    "twice": "%%memwatch --quiet\n{line}\n1",
    "awaits": "{line}\nawait asyncio.sleep(0)",
    "below %%time": "%%time\n{line}\n1",
    "below %%capture": "%%capture\n{line}\n1",
    "above %%time": "{line}\n%%time\n1",
    "above an empty line and %%time": "{line}\n\n%%time\n1",
}


def label(shell: InteractiveShell, given: str, way: str = "first line") -> str:
    """Return the label of a cell that was watched under the one given."""
    line = f"%%memwatch --quiet --output session --label {given}"
    shell.run_cell(WAYS[way].replace("{line}", line))
    session: Session = shell.user_ns["session"]
    return session.label


@pytest.mark.parametrize("way", WAYS)
def test_a_variable_in_the_options_is_its_value(shell: InteractiveShell, way: str) -> None:
    """In each way in which the cell may be run."""
    shell.run_cell("import asyncio\nname = 'fine'\nrate = 2")

    assert label(shell, '"$name {rate * 10}"', way) == "fine 20"


@pytest.mark.parametrize("kind", ["line", "cell"])
def test_ipython_does_so_where_no_first_line_is_seen(shell: InteractiveShell, kind: str) -> None:
    """`%memwatch`, and `%%memwatch` as a function."""
    shell.run_cell("name = 'fine'")
    line = "--quiet --output session --label {name}"
    if kind == "line":
        shell.run_cell(f"%memwatch on {line}")
    else:
        shell.run_cell(f"get_ipython().run_cell_magic('memwatch', {line!r}, '1')")

    assert shell.user_ns["session"].label == "fine"


def test_the_names_of_labels_expand_where_they_are_asked_for(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    """`%memcompare` takes the name that `%%memwatch` was given."""
    shell.run_cell("name = 'fine'")
    label(shell, "{name}")
    shell.run_cell("%memcompare {name}")

    assert "there is no" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["{nope}", "$nope", "$\\alpha$ {", "{1/0}", "<b>{nope}</b>", "{}", "100 %"]
)
def test_what_is_no_variable_stays_as_it_is(shell: InteractiveShell, text: str) -> None:
    """Labels are any text."""
    assert label(shell, f"'{text}'") == text


def test_a_variable_may_be_a_budget(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    """And is refused as what it stands for."""
    shell.run_cell("large, small = '20GiB', '20'")
    assert shell.run_cell("%%memwatch --quiet --budget {large}\n1").result == 1
    capsys.readouterr()
    shell.run_cell("%%memwatch --quiet --budget {small}\nran = True")

    assert "not '20'" in "".join(capsys.readouterr())
    assert "ran" not in shell.user_ns


def test_a_fault_in_the_expansion_is_an_error_of_one_line(
    shell: InteractiveShell,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """And the cell does not run."""

    def broken(*_: object) -> str:
        message = "no variables\nhere"
        raise RuntimeError(message)

    monkeypatch.setattr(shell, "var_expand", broken)
    shell.run_cell("%%memwatch --quiet --label {x}\nran = True")

    said = "".join(capsys.readouterr())
    assert (
        "UsageError: cannot expand the variables in the first line: RuntimeError: no variables here"
        in said
    )
    assert "ran" not in shell.user_ns
