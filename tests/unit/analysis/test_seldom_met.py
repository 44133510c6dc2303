"""Errors that are seldom met: texts without figures, other makers, batches of which little is known."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from hfmem_widget.features.oom.diagnosis import diagnose, huge
from hfmem_widget.features.oom.errors import OutOfMemoryText, read_text
from hfmem_widget.features.oom.html import batch, where
from hfmem_widget.features.oom.incident import (
    CONTEXT_UP_TO,
    SAME_WITHIN,
    belongs_to,
    device_of,
    incident_of,
)
from hfmem_widget.features.oom.model import Failure, OomEvent
from hfmem_widget.features.oom.report import caught_finding, headline
from hfmem_widget.session import Device, Recorder, Sample, Series, Session, Span
from hfmem_widget.text import GIB
from tests.data.oom_incidents import incident, spans

NAN = math.nan
GPUS = tuple(Device(f"cuda:{at}", "NVIDIA H200", total=80 * GIB) for at in range(2))


def session_of(*used: float) -> tuple[Session, Sample]:
    recorder, sample = recorder_of(*used)
    return recorder.session, sample


def recorder_of(*used: float) -> tuple[Recorder, Sample]:
    """Return what writes a session of two GPUs that have so many GiB allocated, and its reading."""
    recorder = Recorder("run")
    series = [Series(one.key, metric) for one in GPUS for metric in ("allocated", "reserved")]
    recorder.adopt(GPUS, series)
    values = tuple(value * GIB for one in used for value in (one, one + 1))
    return recorder, recorder.append(Sample(0.0, values))


def told(origin: Any = "cuda", **more: Any) -> OutOfMemoryText:
    return OutOfMemoryText(origin, **more)


@pytest.mark.parametrize(
    ("used", "about", "key"),
    [
        ((1.0, 2.0), {}, "cuda:1"),
        ((2.0, 1.0), {}, "cuda:0"),
        ((NAN, 0.5), {}, "cuda:1"),
        ((0.0, NAN), {}, "cuda:0"),
        ((1.0, 2.0), {"device": "cuda:0"}, "cuda:0"),
        ((1.0, 2.0), {"device": "xpu:3"}, "xpu:3"),
    ],
)
def test_an_error_is_about_the_gpu_that_has_most(
    used: tuple[float, ...], about: dict[str, str], key: str
) -> None:
    """Unless it says itself which it is about."""
    session, _ = session_of(*used)

    assert device_of(session, told(**about), None).key == key


def test_what_apples_allocator_may_use_is_its_capacity() -> None:
    """It recommends a limit, and knows of no other."""
    session, sample = session_of(1.0, 2.0)
    text = told("mps", device="mps:0", allowed=20 * GIB, total=5.0)
    found = incident_of(session, Failure(text, sample))

    assert found.total == 20 * GIB
    assert math.isnan(found.allowed)


OURS, OTHER = (7, 4.0 * GIB), (8, 9.0 * GIB)


@pytest.mark.parametrize(
    ("reserved", "in_use", "foreign"),
    [
        (4.0, NAN, [8]),
        (4.0 - CONTEXT_UP_TO / GIB, NAN, [8]),
        (4.0 - CONTEXT_UP_TO / GIB - 0.01, NAN, [7, 8]),
        (4.01, NAN, [7, 8]),
        (NAN, NAN, [7, 8]),
        (4.0, 4.0, [7, 8]),
    ],
)
def test_a_process_as_large_as_this_one_is_this_one(
    reserved: float, in_use: float, foreign: list[int]
) -> None:
    """In a container, whose driver knows it by another id: what PyTorch has, and a context beside it."""
    recorder, _ = recorder_of(1.0, 2.0)
    session = recorder.session
    sample = recorder.append(Sample(1.0, (GIB, reserved * GIB, 0.0, 0.0)))
    text = told(device="cuda:0", processes=(OURS, OTHER), in_use=in_use * GIB, free=GIB)
    found = incident_of(session, Failure(text, sample))

    assert [pid for pid, _ in found.processes] == foreign
    assert found.others == sum(size for pid, size in (OURS, OTHER) if pid in foreign)


@pytest.mark.parametrize(
    ("free", "in_use", "processes", "others"),
    [
        (70.0, NAN, (), NAN),
        (66.0, NAN, (), NAN),
        (65.9, NAN, (), 2.1),
        (10.0, 15.0, (), 55.0),
        (70.0, 15.0, (), 0.0),
        (10.0, NAN, ((7, 12 * GIB),), 0.0),
    ],
)
def test_what_others_have_is_what_is_left_unless_it_may_be_ours(
    free: float, in_use: float, processes: tuple[tuple[int, float], ...], others: float
) -> None:
    """Beyond what PyTorch reserved there is a context of this process', of two GiB at most."""
    recorder, _ = recorder_of(1.0, 2.0)
    session = recorder.session
    sample = recorder.append(Sample(1.0, (10 * GIB, 12 * GIB, 0.0, 0.0)))
    text = told(
        device="cuda:0", total=80 * GIB, free=free * GIB, in_use=in_use * GIB, processes=processes
    )

    assert incident_of(session, Failure(text, sample)).others == pytest.approx(
        others * GIB, nan_ok=True
    )


@pytest.mark.parametrize(
    ("asked", "device", "origin", "same"),
    [
        (1.0, "cuda:0", "cuda", True),
        (1.0 + SAME_WITHIN, "cuda:0", "cuda", True),
        (1.0 + 2 * SAME_WITHIN, "cuda:0", "cuda", False),
        (NAN, "", "cuda", True),
        (NAN, "", "no batch size", True),
        (1.0, "cuda:1", "cuda", False),
        (1.0, "cuda:0", "cublas", False),
    ],
)
def test_an_error_is_of_an_event_if_it_asked_for_as_much(
    asked: float, device: str, origin: str, *, same: bool
) -> None:
    """Of the same device; a text has two decimals, and may say nothing."""
    event = OomEvent("cuda:0", GIB, 80 * GIB, 0.0)

    assert belongs_to(told(origin, device=device, asked=asked * GIB), event) is same


@pytest.mark.parametrize(
    ("text", "unallocated"),
    [
        ("2.00 GiB already allocated; 3.00 GiB reserved in total", GIB),
        ("2.00 GiB already allocated; 2.00 GiB reserved in total", 0.0),
        ("2.00 GiB already allocated; 1.00 GiB reserved in total", 0.0),
        ("2.00 GiB already allocated", NAN),
    ],
)
def test_what_is_reserved_beyond_tensors_is_worked_out(text: str, unallocated: float) -> None:
    """Where an older text does not say it itself; it is never less than nothing."""
    found = read_text(f"CUDA out of memory. Tried to allocate 1.00 GiB ({text} by PyTorch)")

    assert found is not None
    assert found.unallocated == pytest.approx(unallocated, nan_ok=True)


@pytest.mark.parametrize(
    ("asked", "parts", "how"),
    [
        (41.0, {"weights": 40.0}, "more than the 40.0 GiB of cuda:0"),
        (41.0, {"activations": 40.0}, "51 % of cuda:0"),
        (39.0, {"weights": 40.0}, "49 % of cuda:0"),
        (81.0, {"weights": 40.0}, "more than cuda:0 has in total"),
    ],
)
def test_a_huge_request_is_held_against_what_the_model_leaves(
    asked: float, parts: dict[str, float], how: str
) -> None:
    """Where the model itself holds something; else against all there is."""
    found = huge(incident(asked=asked, free=1.0, parts=parts))

    assert found is not None
    assert how in found.sentence


@pytest.mark.parametrize(("asked", "promised"), [(30.0, True), (1 / GIB, True), (0.0, False)])
def test_others_are_no_reason_for_what_nobody_asked_for(asked: float, *, promised: bool) -> None:
    """That it would have fit is said of a request."""
    sentence = diagnose(incident(asked=asked, free=1.0, others=40.0, allocated=1.0)).sentence

    assert ("would have fit" in sentence) is promised


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ({"samples": 8, "longest": 512, "tokens": 4096}, "8 \u00d7 512 tokens"),
        ({"samples": 8, "longest": 512, "tokens": 4095}, "4,095 tokens"),
        ({"samples": 0, "longest": 512, "tokens": 0}, ""),
        ({"samples": 1}, "1 sample"),
        ({"samples": 2}, "2 samples"),
        ({"samples": 2, "longest": 0, "tokens": 0}, "2 samples"),
        ({"tokens": 1}, "1 tokens"),
        ({}, ""),
    ],
)
def test_a_batch_is_told_as_far_as_it_is_known(counts: dict[str, float], words: str) -> None:
    """As a rectangle where it is one."""
    assert batch(incident(asked=1.0, free=0.5, path=spans("step", **counts))) == words


@pytest.mark.parametrize(
    ("asked", "free", "words"),
    [
        (1.0, 0.5, ": 1.00 GiB requested, 512.0 MiB free"),
        (0.0, 0.5, ": 512.0 MiB free"),
        (NAN, 0.0, ": 0.00 MiB free"),
        (1.0, NAN, ": 1.00 GiB requested"),
        (NAN, NAN, ""),
    ],
)
def test_a_heading_has_the_figures_that_are_known(asked: float, free: float, words: str) -> None:
    """Nothing is free, but nothing was not asked for."""
    assert headline(incident(asked=asked, free=free)) == f"Out of memory on cuda:0{words}"


@pytest.mark.parametrize(("count", "words"), [(1, "An out-of-memory error was"), (3, "3 out-of")])
def test_errors_that_were_caught_are_counted(count: int, words: str) -> None:
    """With what the last of them asked for."""
    last = OomEvent("cuda:0", 2 * GIB, 80 * GIB, GIB)
    found = caught_finding(last, count, Span(7, "cell", "x", 0.0, Sample(0.0, ())))

    assert found.title.startswith(words)
    assert found.evidence == {
        "device": "cuda:0", "caught": count, "asked": int(2 * GIB), "free": int(GIB)
    }  # fmt: skip
    assert (found.kind, found.severity, found.span_id) == ("oom", "info", 7)


def test_where_it_happened_is_told_once() -> None:
    """From the outside in, without the cell; the backward pass also where no span says it."""
    one = incident(asked=1.0, free=0.5, path=spans("train", "step", "forward", step=3))
    again = ("torch.utils.checkpoint.f", "torch.autograd.graph._engine_run_backward")

    assert where(one) == ("train", "step 3", "forward")
    assert where(replace(one, calls=again)) == (
        "train", "step 3", "forward", "backward pass", "checkpoint recomputation"
    )  # fmt: skip
