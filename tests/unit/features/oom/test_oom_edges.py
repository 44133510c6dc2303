"""At the edges of every rule an error is explained as it was: by the same rules, with the same figures."""

from __future__ import annotations

import pytest

from tests.data.oom_edges import OF, kept, of_incident

KEPT = kept()


@pytest.mark.parametrize("name", OF)
def test_what_is_said_at_the_edges_of_rules_is_what_is_kept(name: str) -> None:
    """Where a change is meant, ``python -m tests.data.oom_edges`` keeps what is said now."""
    assert of_incident(name) == KEPT[name]
