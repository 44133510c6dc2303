"""What the Tab key offers on the line of a magic."""

from __future__ import annotations

from typing import Any

import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell

from hfmem_widget.magics.memwatch import MemwatchMagics
from hfmem_widget.magics.reports import WORDS, ReportMagics


def offered(shell: InteractiveShell, text: str) -> list[str]:
    """Return what is offered where a text ends."""
    assert shell.Completer is not None
    with provisionalcompleter():
        return [one.text for one in shell.Completer.completions(text, len(text))]


@pytest.mark.parametrize("name", ["memwatch", *WORDS])
def test_every_option_is_offered_and_nothing_else(shell: InteractiveShell, name: str) -> None:
    """By its first long name; Python's own names begin with no dash."""
    kinds: dict[str, Any] = {"memwatch": MemwatchMagics, **dict.fromkeys(WORDS, ReportMagics)}
    actions = getattr(kinds[name], name).parser._actions
    long = [[one for one in each.option_strings if one.startswith("--")] for each in actions]

    assert offered(shell, f"%{name} --") == [one[0] for one in long if one]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("%%memwatch --la", ["--label"]),
        ("%%memwatch --label x --no", ["--no-ranks", "--no-chart", "--no-panel"]),
        ("%memwatch ", ["on", "off", "status"]),
        ("%memwatch o", ["on", "off"]),
    ],
)
def test_what_is_begun_is_what_is_offered(
    shell: InteractiveShell, text: str, words: list[str]
) -> None:
    """Options for a cell, and for a line on its own what it can do."""
    assert offered(shell, text)[: len(words)] == words


def test_the_value_of_an_option_may_be_anything(shell: InteractiveShell) -> None:
    """So no option is offered in its place."""
    assert "--label" not in offered(shell, "%%memwatch --output ")


def test_without_the_extension_nothing_is_offered(shell: InteractiveShell) -> None:
    """Unloading takes the completion back."""
    assert shell.Completer is not None
    shell.Completer.use_jedi = False  # which takes seconds to begin
    shell.run_cell("%unload_ext hfmem_widget")

    assert "--label" not in offered(shell, "%%memwatch --la")
