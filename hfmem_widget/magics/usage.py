"""What all magics make of their line, and of what is wrong with it."""

from __future__ import annotations

import keyword
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from hfmem_widget.errors import OptionError
from hfmem_widget.labels import plain

_SHELLS = re.compile(r"__\w+__|In|Out|_{1,3}|_\d+|_i{1,3}|_i\d+|_[iod]h|exit|quit|get_ipython")
"""What IPython keeps in the user's namespace, or puts there in the course of time."""


def words_of(line: str) -> list[str]:
    """Return the words of a magic's line, without their quotes.

    Raises
    ------
    UsageError
        If a quotation has no end.
    """
    # IPython's own parse_argstring leaves the quotes in --label "fine-tune".
    try:
        return shlex.split(line)
    except ValueError as error:
        message = f"{error} in: {plain(line)}"
        raise UsageError(message) from None


def check_output(name: str, shell: InteractiveShell) -> None:
    """Raise UsageError unless what ``--output`` was given can be a variable, or nothing was."""
    if name and (not name.isidentifier() or keyword.iskeyword(name)):
        message = f"--output is the name of a variable, not {plain(name)!r}"
        raise UsageError(message)
    if _SHELLS.fullmatch(name) or name in shell.user_ns_hidden:
        message = f"--output is the name of a variable of yours; {plain(name)!r} is the shell's own"
        raise UsageError(message)


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turn an OptionError into the UsageError that IPython tells in one line."""
    try:
        yield
    except OptionError as error:
        raise UsageError(str(error)) from None
