"""What a command prints, in the letters that the terminal has."""

import os
import sys
from contextlib import suppress
from typing import TextIO

from hfmem_widget.errors import HFMemError
from hfmem_widget.text import readable
from hfmem_widget.view.screen import printable

FINE, NO, WRONG = 0, 1, 2
"""Exit codes: success; the answer is no; the command failed."""


def say(text: str, end: str = "\n") -> bool:
    """Print on stdout, at once, and return whether anybody still reads it."""
    try:
        _print(text, sys.stdout, end)
    except BrokenPipeError:
        _hush()
        return False
    except OSError as error:
        _hush()
        raise HFMemError(f"the output cannot be written: {readable(error)}") from None
    return True


def settle() -> None:
    """Write what waits to be written; in silence if nobody reads it any more."""
    if sys.stdout is not None:
        try:
            sys.stdout.flush()
        except OSError:
            _hush()


def _hush() -> None:
    """Send what is still written nowhere: Python flushes when it ends, and would complain."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def complain(text: str) -> int:
    """Print on stderr, and return the exit code for what could not be done."""
    remark(text)
    return WRONG


def remark(text: str) -> None:
    """Print on stderr, beside what is the output."""
    with suppress(OSError):  # nobody reads it
        _print(text, sys.stderr)


def _print(text: str, stream: TextIO | None, end: str = "\n") -> None:
    if stream is not None:  # closed by the shell: >&-
        print(_in_letters(text, stream), file=stream, end=end, flush=True)


def _in_letters(text: str, stream: TextIO) -> str:
    """Return a text in the letters of a stream; in ASCII where the user's locale has no others."""
    # Python itself writes UTF-8 there (PEP 538), whatever the terminal shows of it.
    is_plain = (os.environ.get("LC_ALL") or os.environ.get("LANG")) in {"C", "POSIX"}
    return printable(text, "ascii" if is_plain else stream.encoding)
