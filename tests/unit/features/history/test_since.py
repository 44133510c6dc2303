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


@pytest.mark.parametrize(
    ("now", "says"),
    [
        (run(6 * GIB), "Since the last run: peak \u22122.00 GiB (\u221225 %)."),
        (run(9 * GIB, seconds=12.0), "Since the last run: peak +1.00 GiB (+12 %), 20 % slower."),
        (run(seconds=9.0), "Since the last run: the same peak, 10 % faster."),
        (run(8 * GIB + MIB), "Since the last run: peak +1.00 MiB (<0.1 %)."),
        (run(seconds=10.2), "Since the last run: the same peak."),
        (run(8.05 * GIB, "sampled"), "Since the last run: about the same peak."),
        (run(outcome="interrupted"), ""),
    ],
)
def test_a_second_run_is_compared_with_the_first(now: Record, says: str) -> None:
    """To the byte where both peaks are exact; what differs by chance is no difference."""
    assert since_text(run(), now).replace("(+<", "(<") == says


def test_the_time_of_a_step_counts_where_there_are_steps() -> None:
    """An evaluation more in the same cell makes no step slower."""
    before, now = run(steps=2.0), run(seconds=30.0, steps=2.0)
    assert since_text(before, now) == "Since the last run: the same peak."


def test_a_run_that_failed_is_not_compared() -> None:
    """How it failed and how far it came is what one wants to know."""
    failed = run(22 * GIB, outcome="raised OutOfMemoryError")
    said = "The last run raised OutOfMemoryError, at a peak of 22.0 GiB."
    assert since_text(failed, run()) == said
    assert since_text(run(outcome="interrupted"), run()) == ""


def test_other_devices_are_not_compared() -> None:
    """A cell that has moved to a GPU has no earlier peak there."""
    on_host = replace(run(), devices=(DeviceRecord(key="cpu", peak=Peak(GIB, "sampled")),))
    assert since_text(on_host, run()) == ""
