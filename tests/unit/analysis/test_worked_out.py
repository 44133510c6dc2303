"""What is worked out of a session (what its memory was made of, how runs compare) is what it was."""

from __future__ import annotations

import pytest

from tests.data.worked_out import EVERY, kept

KEPT = kept()


@pytest.mark.parametrize("name", EVERY)
def test_what_is_worked_out_is_what_is_kept(name: str) -> None:
    """Where a change is meant, ``python -m tests.data.worked_out`` keeps what comes out now."""
    assert list(EVERY[name]()) == KEPT[name]
