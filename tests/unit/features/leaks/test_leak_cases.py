"""Real loops, leaking and not, judged by us and by "more than 1 MB an iteration"."""

from __future__ import annotations

import pytest

from tests.data.leak_cases import CASES, CRIES, Case
from tests.data.leak_played import played

LEAKING = tuple(one for one in CASES if one.leaks)
STILL = tuple(one for one in CASES if not one.leaks)


def name_of(case: Case) -> str:
    return case.name


def cries(case: Case) -> set[str]:
    """Return the rules of two numbers that call it a leak, as the table has them."""
    return {rule for rule, names in CRIES.items() if case.name in names}


def test_there_are_enough_of_both() -> None:
    """As many as it takes to mean something."""
    assert len(LEAKING) >= 13
    assert len(STILL) >= 13
    assert {one.name for one in CASES} >= frozenset().union(*CRIES.values())


@pytest.mark.parametrize("case", LEAKING, ids=name_of)
def test_a_loop_that_leaks_is_found(case: Case) -> None:
    """As a GPU's allocator counts it, and on the heap; it is told by what makes it grow.

    The other rules say of it what the table has.
    """
    told = played(case)

    assert told.on_gpu is not None
    assert told.on_host is not None
    assert told.on_gpu.what == case.what
    assert told.on_gpu.low <= told.on_gpu.slope <= told.on_gpu.high
    assert told.cries == cries(case)


@pytest.mark.parametrize("case", STILL, ids=name_of)
def test_a_loop_that_does_not_leak_is_left_alone(case: Case) -> None:
    """On both; the other rules say of it what the table has."""
    told = played(case)

    assert told.on_gpu is None
    assert told.on_host is None
    assert told.cries == cries(case)


@pytest.mark.parametrize("rule", CRIES)
def test_more_than_a_megabyte_an_iteration_misses_leaks_and_cries_wolf(rule: str) -> None:
    """Whether it looks at the mean or at each iteration."""
    missed = [one for one in LEAKING if one.name not in CRIES[rule]]
    false = [one for one in STILL if one.name in CRIES[rule]]

    assert len(missed) >= 5
    assert len(false) >= 2
