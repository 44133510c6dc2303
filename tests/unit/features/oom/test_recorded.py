"""Out-of-memory errors of an H200 (torch 2.11): text, observer's arguments, counters and blocks."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from hfmem_widget.features.oom.diagnosis import diagnose
from hfmem_widget.features.oom.errors import OutOfMemoryText, read_text
from hfmem_widget.features.oom.incident import belongs_to, incident_of
from hfmem_widget.features.oom.model import Failure
from hfmem_widget.features.oom.observer import OomEvent, OomObserver
from hfmem_widget.session import Device, Recorder, Sample, Session
from hfmem_widget.sources.torch_cuda import CudaAllocator
from tests.data import DATA
from tests.fakes.torch_oom import FakeCuda

RECORDED = json.loads((DATA / "oom_recorded.json").read_text(encoding="utf-8"))
H200 = 150_754_820_096.0
TOTAL = 139.8 * 2**30


def segments_of(one: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the blocks as the allocator told them."""
    return [
        {**segment, "blocks": [{"size": size, "state": state} for size, state in segment["blocks"]]}
        for segment in one["segments"]
    ]


def event_of(one: dict[str, Any]) -> OomEvent | None:
    """Replay what the allocator told its observer."""
    if "arguments" not in one:
        return None
    cuda = FakeCuda(segments_of(one))
    cuda.stats = one["stats"]
    told: list[OomEvent] = []
    observer = OomObserver(CudaAllocator(cuda.modules))
    observer.listen(told.append)
    _, asked, ceiling, free = one["arguments"]
    cuda.run_out(asked, free, ceiling)
    return told[0]


def session() -> Session:
    """Return a session that has seen nothing but its devices."""
    recorder = Recorder("recorded")
    recorder.adopt((Device("cuda:0", "NVIDIA H200", "", H200), Device("cpu", "", "", 128e9)), ())
    return recorder.session


def read(one: dict[str, Any]) -> OutOfMemoryText:
    told = read_text(one["text"])
    assert told is not None
    return told


@pytest.mark.parametrize("one", RECORDED, ids=lambda one: one["name"])
def test_the_reason_is_found(one: dict[str, Any]) -> None:
    """With what the allocator told, or by the text alone, the reason is the one that was provoked."""
    for event in (event_of(one), None):
        incident = incident_of(session(), Failure(read(one), Sample(0.0, ())), event)
        assert diagnose(incident).cause == one["cause"]


@pytest.mark.parametrize(
    "one", [one for one in RECORDED if "arguments" in one], ids=lambda one: one["name"]
)
def test_text_and_observer_agree(one: dict[str, Any]) -> None:
    """The text's figures, which have two decimals, are those of the observer."""
    told, event = read(one), event_of(one)
    assert event is not None
    assert belongs_to(told, event)
    assert told.asked == pytest.approx(event.asked, rel=0.01)
    assert told.free == pytest.approx(event.free, rel=0.01)
    assert told.allocated == pytest.approx(event.readings["allocated"], rel=0.01)
    if math.isfinite(told.allowed):
        assert told.allowed == pytest.approx(event.ceiling, rel=0.01)
