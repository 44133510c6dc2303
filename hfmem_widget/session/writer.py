"""What those who read a session must know of who writes it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class Writer(Protocol):
    """Who writes a session.

    Attributes
    ----------
    lock : context manager
        Held while something is written, and while something is read that changes in place.
    """

    lock: AbstractContextManager[object]

    def catch_up(self) -> None:
        """Write what was left for later; called before spans are read, without the lock."""
        ...


class _Nobody:
    lock: AbstractContextManager[object] = nullcontext()

    def catch_up(self) -> None:
        """Nothing was left for later."""


NOBODY: Writer = _Nobody()
"""Who writes a session that has ended, a copy of one, and one that was built from data."""
