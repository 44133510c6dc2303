"""What to change in the user's code so that a training, an evaluation or a generation fits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Call = Literal["arguments", "model", "generate", "peft", "data", "evaluation"]


@dataclass(frozen=True, slots=True)
class Change:
    """One thing to change in the user's code: an option and its value, as Python code."""

    target: Call  # of an "evaluation": the arguments of the Trainer that is there
    name: str
    value: str


VERDICTS = {True: "fits", None: "may fit", False: "does not fit"}
"""Whether something fits, in words; None where that is not sure."""


@dataclass(frozen=True, slots=True)
class Move:
    """A way to run a training, an evaluation or a generation in less memory. Sizes are bytes."""

    name: str  # in a few words
    changes: tuple[Change, ...]
    batch: int  # rows
    length: int  # tokens of a row
    accumulation: int  # batches of a step
    cost: str  # what else it changes, in a few words; empty where the result is the same up to rounding
    peak: int  # allocated, of a step where it is a training, by a dry run of the user's own model
    low: float  # needed at least
    high: float
    """And at most as far as is known: with the pieces that an allocator leaves between its blocks where they
    would not fit."""
    room: float  # what the training may have on its device, with what it has already
    spare: float = 0.0
    """What something else had when it began, such as an earlier error: it may be free by now."""
    largest_batch: int | None = None
    """The most rows of its length that are sure to fit, 0 if not even one; None where that was not tried."""
    longest: int | None = None
    """The most tokens in each row of its batch that are sure to fit, likewise."""

    @property
    def fits(self) -> bool | None:
        """Whether a step fits; None where that is not sure."""
        if self.high <= self.room:
            return True
        return False if self.low > self.room + self.spare else None

    @property
    def code(self) -> str:
        """What to set, such as ``gradient_checkpointing=True, bf16=True``."""
        calls = {
            "model": "from_pretrained(\u2026, {})",
            "peft": "LoraConfig({})",
            "evaluation": "trainer.args.{}",
        }
        return ", ".join(
            calls.get(change.target, "{}").format(f"{change.name}={change.value}")
            for change in self.changes
        )
