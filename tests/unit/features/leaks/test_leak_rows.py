"""What is growth, and how much of it, at the edge of being none: the same as it was, row by row."""

from __future__ import annotations

import re

import pytest

from tests.data.leak_rows import FILE, SHAPES, of_shape

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
