"""The errors of this package. Every message says what happened, what still works, and what to do."""

import errno
from collections.abc import Iterator

LIMITS = errno.EMFILE, errno.ENFILE, errno.ENOMEM


class HFMemError(Exception):
    """Base of everything this package raises."""


class OptionError(HFMemError, ValueError):
    """A value the user gave is not one we can use; the message says what is allowed."""


class SourceUnavailable(HFMemError):
    """A source cannot read memory on this machine; the message is one plain sentence with the remedy."""


class WatchStateError(HFMemError, RuntimeError):
    """An operation came at the wrong time, such as closing a span twice."""


def is_limit(error: BaseException | None) -> bool:
    """Return whether an error is a limit of the moment, such as of memory or recursion, and no fault."""
    if isinstance(error, OSError):
        return error.errno in LIMITS
    return isinstance(error, (MemoryError, RecursionError))


def chain_of(
    error: BaseException | None, *, with_suppressed: bool = True
) -> Iterator[BaseException]:
    """Yield an error and the errors that led to it, each once."""
    waiting, seen = [error], set[int]()
    while waiting:
        cause = waiting.pop(0)
        if cause is None or id(cause) in seen:
            continue
        seen.add(id(cause))
        yield cause
        waiting.append(cause.__cause__)
        if with_suppressed or not cause.__suppress_context__:
            waiting.append(cause.__context__)
        waiting += cause.exceptions if isinstance(cause, BaseExceptionGroup) else ()
