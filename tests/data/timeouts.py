"""A timeout of the user's, as code sets one by ``signal.alarm``."""

from __future__ import annotations

import signal


class TimeIsUpError(Exception):
    """What a handler of the user's raises."""


def raises(_number: int, _frame: object) -> None:
    raise TimeIsUpError


def time_is_up() -> None:
    """Have the time be up now."""
    signal.raise_signal(signal.SIGALRM)
