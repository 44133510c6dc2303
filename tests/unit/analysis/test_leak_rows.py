"""What is growth, and how much of it, at the edge of being none: the same as it was, row by row."""

from __future__ import annotations

import re

import pytest

from tests.unit.analysis.leak_rows import FILE, SHAPES, every

NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]\d+)?")


def by_shape(lines: list[str]) -> dict[str, list[str]]:
    return {name: [one for one in lines if one.startswith(f"{name}, ")] for name in SHAPES}


FOUND = by_shape(list(every()))
KEPT = by_shape(FILE.read_text(encoding="utf-8").splitlines())


@pytest.mark.parametrize("name", SHAPES)
def test_the_trend_that_is_found_is_the_one_that_is_kept(name: str) -> None:
    """Where a change is meant, ``python -m tests.unit.analysis.leak_rows`` keeps what is found now."""
    found, kept = ([NUMBER.sub("#", one) for one in rows[name]] for rows in (FOUND, KEPT))
    assert found == kept
    for one, other in zip(FOUND[name], KEPT[name], strict=True):
        assert [*map(float, NUMBER.findall(one))] == pytest.approx(
            [*map(float, NUMBER.findall(other))], rel=1e-4, abs=1e-3
        ), other
