"""What was watched in a notebook, for whoever asks about it afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hfmem_widget.session import Session


class History:
    """The watched cells of one notebook."""

    def __init__(self) -> None:
        self._latest: Session | None = None

    @property
    def latest(self) -> Session | None:
        """The session that was begun last, running or finished; None before the first."""
        return self._latest

    def begins(self, session: Session) -> None:
        """Note that a session has begun."""
        self._latest = session
