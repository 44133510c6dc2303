"""Real loops, leaking and not, judged by us and by "more than 1 MB an iteration"."""

from __future__ import annotations

import re

import pytest

from tests.data.breadth import some_of
from tests.data.leak_cases import CASES, CRIES, Case
from tests.data.leak_played import played
from tests.data.leak_rows import FILE, SHAPES, of_shape

BY_NAME = {one.name: one for one in CASES}
LEAKING = [name for name, one in BY_NAME.items() if one.leaks]
STILL = [name for name, one in BY_NAME.items() if not one.leaks]

ALWAYS_LEAKING = ["a hook registered anew at every step"]
ALWAYS_STILL = ["workspaces of cuBLAS"]


def cries(case: Case) -> set[str]:
    """Return the rules of two numbers that call it a leak, as the table has them."""
    return {rule for rule, names in CRIES.items() if case.name in names}


def test_there_are_enough_of_both() -> None:
    """As many as it takes to mean something."""
    assert len(LEAKING) >= 13
    assert len(STILL) >= 13
    assert BY_NAME.keys() >= frozenset().union(*CRIES.values())


@pytest.mark.parametrize("name", some_of(LEAKING, ALWAYS_LEAKING))
def test_a_loop_that_leaks_is_found(name: str) -> None:
    """As a GPU's allocator counts it, and on the heap; it is told by what makes it grow.

    The other rules say of it what the table has.
    """
    case = BY_NAME[name]
    told = played(case)

    assert told.on_gpu is not None
    assert told.on_host is not None
    assert told.on_gpu.what == case.what
    assert told.on_gpu.low <= told.on_gpu.slope <= told.on_gpu.high
    assert told.cries == cries(case)


@pytest.mark.parametrize("name", some_of(STILL, ALWAYS_STILL))
def test_a_loop_that_does_not_leak_is_left_alone(name: str) -> None:
    """On both; the other rules say of it what the table has."""
    case = BY_NAME[name]
    told = played(case)

    assert told.on_gpu is None
    assert told.on_host is None
    assert told.cries == cries(case)


@pytest.mark.parametrize("rule", CRIES)
def test_more_than_a_megabyte_an_iteration_misses_leaks_and_cries_wolf(rule: str) -> None:
    """Whether it looks at the mean or at each iteration."""
    missed = [one for one in LEAKING if one not in CRIES[rule]]
    false = [one for one in STILL if one in CRIES[rule]]

    assert len(missed) >= 5
    assert len(false) >= 2


NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]\d+)?")


KEPT = FILE.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("name", SHAPES)
def test_the_trend_that_is_found_is_the_one_that_is_kept(name: str) -> None:
    """Where a change is meant, ``python -m tests.data.leak_rows`` keeps what is found now."""
    found, kept = of_shape(name), [one for one in KEPT if one.startswith(f"{name}, ")]

    assert [NUMBER.sub("#", one) for one in found] == [NUMBER.sub("#", one) for one in kept]
    for one, other in zip(found, kept, strict=True):
        assert [*map(float, NUMBER.findall(one))] == pytest.approx(
            [*map(float, NUMBER.findall(other))], rel=1e-4, abs=1e-3
        ), other
