"""Lines over the chart: what the watch was given, and what its data tell."""

from __future__ import annotations

from hfmem_widget.analysis.leaking.leaks import guide_of
from hfmem_widget.analysis.leaking.trends import trends_of
from hfmem_widget.session import Guide, Session


def guides_of(session: Session) -> tuple[Guide, ...]:
    """Return the lines that belong over a session's chart: its own, such as a budget, then its trends.

    Cheap enough to be asked once a second while the session runs.
    """
    return (*session.guides, *map(guide_of, trends_of(session)))
