"""What a page is sent, message by message, is what it was: when, how much, and what it adds up to."""

from __future__ import annotations

import pytest

from tests.data.sent import EVERY, kept

KEPT = kept()


@pytest.mark.parametrize("name", EVERY)
def test_a_page_is_sent_what_is_kept(name: str) -> None:
    """Where a change is meant, ``python -m tests.data.sent`` keeps what is sent now."""
    assert EVERY[name]().lines == KEPT[name]
