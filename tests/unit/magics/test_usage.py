"""What all magics make of their line, and what they say of one that is wrong."""

from __future__ import annotations

from typing import Any

import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from hfmem_widget.magics import REPORTS, memwatch
from hfmem_widget.magics.memwatch import MemwatchMagics

HOSTILE = "a\u202e\x1b[31m b"


@pytest.fixture
def magics(shell: InteractiveShell) -> MemwatchMagics:
    found: MemwatchMagics = registered(shell, "memwatch")
    return found


def registered(shell: InteractiveShell, name: str) -> Any:
    """Return the magics of a shell that one is among."""
    return shell.magics_manager.registry[f"{name.capitalize()}Magics"]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("memwatch", f"on --output '{HOSTILE}'"),
        ("memcompare", f"a --output '{HOSTILE}'"),
        ("memfit", f"a --output '{HOSTILE}'"),
    ],
)
def test_a_name_that_is_none_is_told_as_plain_text(
    shell: InteractiveShell, name: str, line: str
) -> None:
    """By each magic that keeps something, in the same words."""
    with pytest.raises(UsageError) as raised:
        getattr(registered(shell, name), name)(line)

    assert str(raised.value) == "--output is the name of a variable, not 'a[31m b'"


@pytest.mark.parametrize("line", ["--label x", "off --quiet", "status -i 1", "'off' --output s"])
def test_what_takes_no_options_says_so(magics: MemwatchMagics, line: str) -> None:
    """Rather than to leave them aside; where they belong is told."""
    with pytest.raises(UsageError, match="takes no options: %%memwatch takes them for the cell"):
        magics.memwatch(line)


def test_options_that_are_refused_leave_every_cell_watched(magics: MemwatchMagics) -> None:
    """`%memwatch off` with an option has not turned it off."""
    magics.memwatch("on --quiet")
    with pytest.raises(UsageError):
        magics.memwatch("off --quiet")

    assert magics._every_cell is not None


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("on --budget 20", "1 MiB or more; not '20'"),
        ("on --budget 20GB", r"not '20GB'; did you mean 20GiB\?"),
        ("on --stop", "stop needs a budget"),
    ],
)
def test_a_budget_that_is_none_is_a_usage_error(
    magics: MemwatchMagics, line: str, says: str
) -> None:
    """In the words of `hfmem_widget.watch`."""
    with pytest.raises(UsageError, match=says):
        magics.memwatch(line)


def parser_of(name: str) -> Any:
    kinds = {"memwatch": MemwatchMagics, **{one.name: one for one in REPORTS}}
    return getattr(kinds[name], name).parser


@pytest.mark.parametrize(
    ("name", "line", "argument", "value"),
    [
        ("memwatch", "--memory-map", "map", True),
        ("memfit", "model --optimizer sgd", "optim", "sgd"),
        ("memfit", "model --training", "train", True),
        ("memfree", "--variables all", "variable", ["all"]),
        ("memfree", "--no-collect", "no_gc", True),
        ("memfree", "--no-empty-cache", "no_cache", True),
    ],
)
def test_an_option_may_be_called_as_the_functions_argument_is(
    name: str, line: str, argument: str, value: object
) -> None:
    """Where the two differ, both are taken."""
    assert getattr(parser_of(name).parse_args(line.split()), argument) == value


@pytest.mark.parametrize(
    ("name", "options"),
    [("memwatch", memwatch.OPTIONS), *((one.name, one.options) for one in REPORTS)],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_the_tab_key_offers_every_option(name: str, options: tuple[str, ...]) -> None:
    """By its first long name, and nothing that is no option."""
    long = [
        [one for one in action.option_strings if one.startswith("--")]
        for action in parser_of(name)._actions
    ]
    assert {one for one in options if one.startswith("-")} == {one[0] for one in long if one}
