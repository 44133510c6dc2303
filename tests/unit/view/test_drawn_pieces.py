"""Every picture has the pieces it had, where they were: a rule or a size that moved is seen here."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.data.drawn import every, kept, summary

KEPT = kept()


@pytest.mark.parametrize(("name", "make"), [pytest.param(*one, id=one[0]) for one in every()])
def test_a_picture_has_the_pieces_that_are_kept(name: str, make: Callable[[], list[str]]) -> None:
    """Where a change is meant, ``python -m tests.data.drawn`` keeps what is drawn now."""
    assert summary(make()) == KEPT[name], f"python -m tests.data.drawn {name} shows its pieces"


def test_every_picture_that_is_kept_is_drawn() -> None:
    """None is left of a view that went."""
    assert [name for name, _ in every()] == list(KEPT)
