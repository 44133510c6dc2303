"""A fault of ours must not change the user's code that runs around it."""

from __future__ import annotations

import sys
from collections.abc import Callable

from hfmem_widget.interrupts import raised_by_handler


def harmless(action: Callable[..., object], *args: object, **kwargs: object) -> None:
    """Do something of ours; a fault in it costs one line on stderr, not the user's cell."""
    try:
        action(*args, **kwargs)
    except Exception as error:
        if raised_by_handler(error):
            raise
        warn(f"{type(error).__name__}: {error}")


def warn(sentence: str) -> None:
    """Say something on stderr."""
    print(f"memwatch: {sentence}", file=sys.stderr)  # noqa: T201
