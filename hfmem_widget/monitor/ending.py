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
    """Those who may end a training, because a watch asks for it."""

    def should_end(self, step: int, *, alone: bool, is_last: bool = False) -> bool:
        """Return whether a training is to end after a step; all of them are asked."""
        answers = [decider(step, alone=alone, is_last=is_last) for decider in tuple(self)]
        return any(answers)


def deciders() -> Deciders:
    """Return those of this process."""
    return process_state(Deciders)
