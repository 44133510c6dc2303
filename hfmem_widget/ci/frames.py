"""The frames of a failed test, whose variables hold what they had when it failed."""

from __future__ import annotations

import traceback


def clear(error: BaseException | None) -> None:
    """Clear the frames that an error went through, and those of the errors that led to it."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        traceback.clear_frames(each.__traceback__)
        for frame, _line in traceback.walk_tb(each.__traceback__):
            # Up to Python 3.12 who has read the variables, as pytest does, left a copy: this renews it.
            _ = frame.f_locals
        waiting += [each.__cause__, each.__context__, *getattr(each, "exceptions", ())]
