"""The errors of this package. Every message says what happened, what still works, and what to do."""

from __future__ import annotations


class HFMemError(Exception):
    """Base of everything this package raises."""


class OptionError(HFMemError, ValueError):
    """A value the user gave is not one we can use; the message says what is allowed."""


class SourceUnavailable(HFMemError):
    """A source cannot read memory on this machine; the message is one plain sentence with the remedy."""


class WatchStateError(HFMemError, RuntimeError):
    """An operation came at the wrong time, such as closing a span twice."""
