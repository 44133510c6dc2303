"""Large sets of parameters, of which `make test` tries some, and `make test-full` all."""

from collections.abc import Iterable
from typing import Any

import pytest


def some_of(all_of_them: Iterable[Any], always: Iterable[Any]) -> list[Any]:
    """Return parameters; all except those that are always tried have the mark ``full``."""
    usual, given = set(always), list(all_of_them)
    missing = usual - set(given)
    assert not missing, f"there is no {missing}"
    return [one if one in usual else pytest.param(one, marks=pytest.mark.full) for one in given]
