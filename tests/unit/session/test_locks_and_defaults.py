"""What a session is where nothing is known, where a fork has left its locks held, and where writing fails."""

from __future__ import annotations

import io
import math
import os
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hfmem_widget.features.oom.observer import Blocks
from hfmem_widget.session import Device, Recorder, Sample, Series, Steps
from hfmem_widget.session.stacks import StackRecording, Stacks
from tests.unit.session.test_steps import one_step

PATIENCE = 5.0
"""Seconds: whoever waits for a lock that nobody gives back waits longer."""


def recorder_of(*values: float) -> Recorder:
    recorder = Recorder("run")
    recorder.adopt([Device("cuda:0", "NVIDIA H200")], [Series("cuda:0", "allocated")])
    for at, value in enumerate(values):
        recorder.append(Sample(float(at), (value,)))
    return recorder


def comes_back(call: Callable[[], object]) -> bool:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return not thread.is_alive()


@pytest.mark.parametrize("of_the_timeline", [True, False])
def test_a_forked_child_reads_a_session_whose_lock_was_held(*, of_the_timeline: bool) -> None:
    """The thread that held it does not exist there, and gives nothing back."""
    recorder = recorder_of(1.0, 2.0)
    session = recorder.session
    lock: Any = session.timeline._lock if of_the_timeline else recorder.lock
    assert comes_back(lock.acquire)
    recorder.replace_lock()

    assert comes_back(lambda: recorder.append(Sample(5.0, (7.0,))))
    assert comes_back(lambda: session.peak("cuda:0/allocated"))
    assert session.peak("cuda:0/allocated") == 7.0


def test_a_step_of_no_span_has_no_parent() -> None:
    """What a step was not counted of is not known, nor is what it never had."""
    recorder = recorder_of(1.0)
    session = recorder.session
    span = recorder.open_span("step", "step 7", session.last_sample)
    recorder.count(span.id, {"step": 7.0})
    recorder.append(Sample(3.0, (4.0,)))
    recorder.close_span(span.id, session.last_sample, {})
    (step,) = session.steps

    assert (step.parent, step.first, step.last, step.start, step.stop) == (0, 7, 7, 0.0, 3.0)
    assert all(map(math.isnan, (step.samples, step.longest, step.tokens, step.content_tokens)))


@pytest.mark.parametrize(("heights", "there"), [((0.0, 0.0), False), ((0.0, 0.5), True)])
def test_a_step_tells_of_the_devices_it_used(heights: tuple[float, ...], *, there: bool) -> None:
    """Where nothing was allocated there is nothing to tell; the least byte counts."""
    recorder = recorder_of(heights[0])
    session = recorder.session
    span = recorder.open_span("step", "step 1", session.last_sample)
    recorder.count(span.id, {"step": 1.0})
    recorder.append(Sample(1.0, (heights[1],)))
    recorder.close_span(span.id, session.last_sample, {})
    (step,) = session.steps

    assert ("cuda:0" in step.devices) is there


def test_of_blocks_that_nobody_has_read_nothing_is_claimed() -> None:
    """No free byte and no private pool is made up."""
    none = Blocks()

    assert (none.count, none.private_free, none.expandable) == (0, 0.0, False)
    assert none.biggest == ()
    assert math.isnan(none.free)
    assert math.isnan(none.largest_free)


def test_what_could_not_be_written_is_the_error_though_the_file_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has taken the half file away meanwhile does not hide why it is half."""
    path = tmp_path / "peak.pickle"

    class Full(io.FileIO):
        def write(self, _: object) -> int:
            path.unlink()
            message = "no space left"
            raise OSError(message)

    monkeypatch.setattr(os, "fdopen", Full)
    with pytest.raises(OSError, match="no space left"):
        Stacks((), StackRecording("allocator"), zlib.compress(b"x")).save(path)
    assert not path.exists()


@pytest.mark.parametrize("most", [8, 9, 16])
def test_steps_are_never_more_rows_than_there_may_be(most: int) -> None:
    """Not by one either; and as many as there may be, before the first are joined."""
    steps = Steps(most)
    rows = []
    for number in range(1, 2 * most + 2):
        steps.append(one_step(number))
        rows.append(len(steps))

    assert rows[:most] == list(range(1, most + 1))
    assert max(rows) == most
