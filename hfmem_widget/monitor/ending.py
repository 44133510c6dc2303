"""Where a watch may ask that a training end, and a training asks whether it should."""

from __future__ import annotations

from typing import Protocol

from hfmem_widget.monitor.process import process_state


class Decider(Protocol):
    """Decides at the end of a training's step whether the training is to end."""

    def __call__(self, step: int, *, alone: bool, is_last: bool = False) -> bool:
        """Return whether it is to end after a step; `alone` if the training has one process."""
        ...


class Deciders(list[Decider]):
    """Those who may end a training."""


def deciders() -> Deciders:
    """Return those of this process."""
    return process_state(Deciders)


def add_decider(decider: Decider) -> None:
    """Ask it from now on, until `remove_decider`."""
    deciders().append(decider)


def remove_decider(decider: Decider) -> None:
    """Ask it no longer; harmless if it was not asked."""
    if decider in deciders():
        deciders().remove(decider)


def should_end(step: int, *, alone: bool, is_last: bool = False) -> bool:
    """Return whether a training is to end after a step, because a watch asks for it."""
    answers = [
        decider(step, alone=alone, is_last=is_last) for decider in tuple(deciders())
    ]  # each is asked
    return any(answers)
