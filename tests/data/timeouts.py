"""A timeout of the user's, as code sets one by ``signal.alarm``."""

import signal


class TimeIsUpError(Exception):
    """The exception of a handler of the user's."""


def raises(_number: int, _frame: object) -> None:
    raise TimeIsUpError


def time_is_up() -> None:
    """Make the timeout expire now."""
    signal.raise_signal(signal.SIGALRM)
