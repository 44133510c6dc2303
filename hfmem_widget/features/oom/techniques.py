"""What each way of saving memory saved where it was measured: ratios from ``docs/measured/anatomy.md``.

BERT of bert-large's shape, float32, AdamW, four sequences of 512 tokens, an H200; one change at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

MEASURED_ON = "bert-large, 4 \u00d7 512 tokens, float32, AdamW, on an H200"


@dataclass(frozen=True, slots=True)
class Technique:
    """One change to a training, beside the same training without it.

    Attributes
    ----------
    row : str
        Its row in the table.
    part : str
        The part that it makes smaller.
    left : float
        What is left of that part, as a share.
    peak : float
        What is left of the whole peak, as a share.
    speed : float
        Samples a second, as a share.
    """

    row: str
    part: str
    left: float
    peak: float
    speed: float

    def saved(self, size: float) -> float:
        """Return what it saves of a part of so many bytes, if it does the same there."""
        return (1 - self.left) * size


TECHNIQUES: Mapping[str, Technique] = MappingProxyType(
    {
        "checkpointing": Technique("checkpointing", "activations", 1313 / 3256, 5217 / 7159, 25.9 / 35.1),
        "accumulation": Technique(
            "accumulation, 4 batches of 1", "activations", 821 / 3256, 6003 / 7159, 21.2 / 35.1
        ),
        "bf16": Technique("bf16", "activations", 2676 / 3256, 6580 / 7159, 54.3 / 35.1),
        "adafactor": Technique("Adafactor", "optimizer", 3 / 2557, 4604 / 7159, 20.6 / 35.1),
        "adam8bit": Technique("8-bit Adam", "optimizer", 831 / 2557, 5434 / 7159, 27.8 / 35.1),
    }
)  # fmt: skip
