"""At the edges of every rule an error is explained as it was: by the same rules, with the same figures."""

from __future__ import annotations

from itertools import groupby

import pytest

from tests.unit.analysis.oom_edges import FILE, OF, every


def by_incident(lines: list[str]) -> list[list[str]]:
    """Return the lines of each incident, its own first."""
    begun = 0

    def number(line: str) -> int:
        nonlocal begun
        begun += line.startswith("== ")
        return begun

    return [list(group) for _, group in groupby(lines, key=number)]


SAID = by_incident(list(every()))
KEPT = by_incident(FILE.read_text(encoding="utf-8").splitlines())


@pytest.mark.parametrize("at", range(len(OF)), ids=OF)
def test_what_is_said_at_the_edges_of_rules_is_what_is_kept(at: int) -> None:
    """Where a change is meant, ``python -m tests.unit.analysis.oom_edges`` keeps what is said now."""
    assert SAID[at] == KEPT[at]
