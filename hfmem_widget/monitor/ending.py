"""Where a watch may ask that a training end, and a training asks whether it should."""

from __future__ import annotations

from typing import Protocol


class Ask(Protocol):
    """Decides at the end of a training's step whether the training is to end."""

    def __call__(self, step: int, *, alone: bool, is_last: bool = False) -> bool:
        """Return whether it is to end after a step; `alone` if the training has one process."""
        ...


asked: list[Ask] = []
"""Those who may end a training."""


def listen(ask: Ask) -> None:
    """Ask it from now on, until `forget`."""
    asked.append(ask)


def forget(ask: Ask) -> None:
    """Ask it no longer; harmless if it was not asked."""
    if ask in asked:
        asked.remove(ask)


def should_end(step: int, *, alone: bool, is_last: bool = False) -> bool:
    """Return whether a training is to end after a step, because a watch asks for it."""
    answers = [ask(step, alone=alone, is_last=is_last) for ask in tuple(asked)]  # each is asked
    return any(answers)
