"""What a card says of the last run of the same cell."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hfmem_widget.analysis.record import DeviceRecord, Pace, Record
from hfmem_widget.features.history.companion import since_text
from hfmem_widget.session import Certainty, Peak
from hfmem_widget.text import GIB, MIB


def run(
    peak: float = 8 * GIB,
    certainty: Certainty = "exact",
    *,
    seconds: float = 10.0,
    steps: float = float("nan"),
    outcome: str = "done",
) -> Record:
    device = DeviceRecord(key="cuda:0", peak=Peak(peak, certainty))
    pace = Pace(steps_per_second=steps)
    return Record(identity="x", duration=seconds, devices=(device,), outcome=outcome, pace=pace)


SAME = "Since the last run: the same peak."
FAILED = run(22 * GIB, outcome="raised OutOfMemoryError")
ON_HOST = replace(run(), devices=(DeviceRecord(key="cpu", peak=Peak(GIB, "sampled")),))


@pytest.mark.parametrize(
    ("before", "now", "says"),
    [
        (run(), run(6 * GIB), "Since the last run: peak \u22122.00 GiB (\u221225 %)."),
        (run(), run(9 * GIB, seconds=12.0), "Since the last run: peak +1.00 GiB (+12 %), 20 % slower."),
        (run(), run(seconds=9.0), "Since the last run: the same peak, 10 % faster."),
        (run(), run(8 * GIB + MIB), "Since the last run: peak +1.00 MiB (<0.1 %)."),
        (run(), run(seconds=10.2), SAME),
        (run(), run(8.05 * GIB, "sampled"), "Since the last run: about the same peak."),
        (run(), run(outcome="interrupted"), ""),
        # An evaluation more in the same cell makes no step slower.
        (run(steps=2.0), run(seconds=30.0, steps=2.0), SAME),
        (FAILED, run(), "The last run raised OutOfMemoryError, at a peak of 22.0 GiB."),
        (run(outcome="interrupted"), run(), ""),
        # A cell that has moved to a GPU has no earlier peak there.
        (ON_HOST, run(), ""),
    ],
)  # fmt: skip
def test_a_second_run_is_compared_with_the_first(before: Record, now: Record, says: str) -> None:
    """To the byte where both peaks are exact; what differs by chance is none. How one failed is told."""
    assert since_text(before, now).replace("(+<", "(<") == says
