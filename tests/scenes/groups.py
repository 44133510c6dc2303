"""Adds steps to a table from the groups that are read of it."""

import math

from hfmem_widget.session import StepGroup, Steps
from hfmem_widget.session.steps import CERTAINTIES, FIGURES, PER_DEVICE, PHASES


def add_group(steps: Steps, group: StepGroup) -> None:
    """Add a step, or a group of steps, in the form of the table's own iterator."""
    devices = {}
    for key, memory in group.devices.items():
        figures = [getattr(memory, name) for name in PER_DEVICE[: -len(PHASES)]]
        figures[PER_DEVICE.index("certainty")] = CERTAINTIES.index(memory.certainty)
        devices[key] = [*figures, *(memory.phases.get(phase, math.nan) for phase in PHASES)]
    steps.add([getattr(group, name) for name in FIGURES], devices)
