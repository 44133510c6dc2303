"""What goes along with a watch."""

from typing import Any

import pytest

from hfmem_widget.features import companions_for
from hfmem_widget.options import WatchOptions

ALWAYS = {"OutOfMemory", "Shortage", "Leaks", "Fits", "FollowedRanks", "Historian"}


@pytest.mark.parametrize(
    ("options", "more"),
    [
        ({}, set()),
        ({"stacks": True}, {"StacksCompanion"}),
        ({"memory_map": True}, {"LiveMemoryMap"}),
        ({"memory_map": True, "quiet": True}, set()),
        ({"budget": 1e9}, {"Budget"}),
        ({"on_finding": print}, {"Alerts"}),
    ],
)
def test_a_feature_goes_along_where_asked_for(options: dict[str, Any], more: set[str]) -> None:
    """Some need no option; a live map has no place in a quiet watch."""
    found = [type(each).__name__ for each in companions_for(WatchOptions(**options))]

    assert sorted(found) == sorted(ALWAYS | more)
