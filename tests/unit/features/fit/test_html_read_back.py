"""Whether a model fits, read back: what is said where it is not known."""

from __future__ import annotations

import math

import pytest

from tests.unit.features.fit.test_html import verdict


@pytest.mark.parametrize(
    ("free", "told"),
    [
        (math.nan, "free memory unknown"),
        (
            4.0,
            "needs more than 8.00 GiB of 4.00 GiB available; whether it fits is unknown",
        ),
    ],
)
def test_where_it_is_not_known_what_is_known_is_said(free: float, told: str) -> None:
    """What is needed at least, where it is known how much is free."""
    assert verdict(free, fits=None, headroom=0.0) == f"cuda:0 H200: {told}"
