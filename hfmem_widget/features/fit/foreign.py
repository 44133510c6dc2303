"""Files and code of others: whatever goes wrong in them becomes one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hfmem_widget.errors import OptionError
from hfmem_widget.text import plain


@contextmanager
def foreign(sentence: str) -> Iterator[None]:
    """Turn an exception of the block into an OptionError: the sentence, and the exception's own first one.

    The sentence has no full stop, and text from outside in it is `plain` already.
    """
    try:
        yield
    except OptionError:
        raise
    except Exception as error:
        first, _, _ = plain(error, 200).partition(". ")  # what follows is advice for others
        raise OptionError(f"{sentence}: {type(error).__name__}: {first.rstrip('.!')}") from error
