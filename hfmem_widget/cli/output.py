"""What a command prints, in the letters that the terminal has."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TextIO

from hfmem_widget.view.screen import printable

FINE, NO, WRONG = 0, 1, 2
"""Exit codes: done; the answer is no; it could not be done."""


def say(text: str) -> None:
    """Print on stdout; the line is out at once, for whoever reads a pipe."""
    _print(text, sys.stdout)


def complain(text: str) -> int:
    """Print on stderr, and return the exit code for what could not be done."""
    with suppress(OSError):  # nobody to tell
        _print(text, sys.stderr)
    return WRONG


def in_letters(text: str, stream: TextIO) -> str:
    """Return a text in the letters of a stream; in ASCII where the user's locale has no others."""
    # Python itself writes UTF-8 there (PEP 538), whatever the terminal shows of it.
    is_plain = (os.environ.get("LC_ALL") or os.environ.get("LANG")) in {"C", "POSIX"}
    return printable(text, "ascii" if is_plain else stream.encoding)


def _print(text: str, stream: TextIO | None) -> None:
    if stream is not None:  # closed by the shell: >&-
        print(in_letters(text, stream), file=stream, flush=True)
