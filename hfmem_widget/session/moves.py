"""Changes to the user's code that make a training, an evaluation or a generation fit."""

import math
from dataclasses import dataclass
from typing import Literal

from hfmem_widget.text import format_bytes

Call = Literal["arguments", "model", "generate", "peft", "data", "evaluation", "ranks"]


@dataclass(frozen=True, slots=True)
class Change:
    """One thing to change in the user's code: an option and its value, as Python code."""

    target: (
        Call  # "evaluation": the existing Trainer's arguments; "ranks": those of a torchrun script
    )
    name: str
    value: str


VERDICTS = {True: "fits", None: "may fit", False: "does not fit"}
"""Whether something fits, in words; the key None means unsure."""


@dataclass(frozen=True, slots=True)
class Move:
    """A way to run a training, an evaluation or a generation in less memory. Sizes are bytes."""

    name: str  # in a few words
    changes: tuple[Change, ...]
    batch: int  # rows
    length: int  # tokens of a row
    accumulation: int  # batches of a step
    cost: str  # its side effects, in a few words; empty where the result is the same up to rounding
    peak: int  # allocated, of a step in a training, by a dry run of the user's own model
    low: float  # the least that it needs
    high: float  # the most that it needs, with the gaps between blocks; not finite where unknown
    room: float  # available to the training on its device, including what it has already
    spare: float = 0.0  # held by something else when it began, such as an error; may be free now
    largest_batch: int | None = None  # rows of its length that surely fit; None if not tried
    longest: int | None = None  # tokens of each row that surely fit; None if not tried
    tried: int | None = None  # bytes allocated at the peak of real steps; None without such steps
    seconds: float | None = None  # of such a step; None where memory ran out, too

    @property
    def fits(self) -> bool | None:
        """Whether a step fits; None where that is not sure."""
        if self.high <= self.room:
            return True
        return False if self.low > self.room + self.spare else None

    @property
    def need(self) -> str:
        """The peak in words: *at least* where something is not counted."""
        size = format_bytes(self.peak)
        return size if math.isfinite(self.high) else f"at least {size}"

    @property
    def code(self) -> str:
        """The options to set, such as ``gradient_checkpointing=True, bf16=True``."""
        calls = {
            "model": "from_pretrained(\u2026, {})",
            "peft": "LoraConfig({})",
            "evaluation": "trainer.args.{}",
        }
        return ", ".join(
            calls.get(change.target, "{}").format(f"{change.name}={change.value}")
            for change in self.changes
        )
