"""The figures of a card: which devices, and what each number is made of."""

from __future__ import annotations

import math

import numpy as np
import pytest

import hfmem_widget
from hfmem_widget.analysis.facts import active_devices, did_nothing, facts_of
from hfmem_widget.analysis.others import untouched_text
from hfmem_widget.session import Device, Peak, Recorder, Sample, Series, Session, Span
from hfmem_widget.sources.malloc import find_glibc_heap
from hfmem_widget.text import GIB, MIB
from hfmem_widget.view.line import compact_bundle, line

NAN = math.nan


def keys(session: Session, span: Span | None = None) -> list[str]:
    return [device.key for device in active_devices(session, span)]


def two_gpus(first: float, second: float, *, host: bool = True) -> tuple[Session, Span]:
    recorder = Recorder("run")
    session = recorder.session
    names = ["cuda:0", "cuda:1", *(["cpu"] if host else [])]
    recorder.adopt(
        [Device(name, name, total=80 * GIB) for name in names],
        [Series(name, "allocated", "allocated") for name in names],
    )
    values = (first, second, *([GIB] if host else []))
    span = recorder.open_span("cell", "run", recorder.append(Sample(0.0, values)))
    return session, recorder.close_span(span.id, recorder.append(Sample(1.0, values)), {})


def one_gpu(
    *metrics: tuple[str, float], peaks: dict[str, Peak], total: float
) -> tuple[Session, Span]:
    recorder = Recorder("run")
    session = recorder.session
    recorder.adopt(
        [Device("cuda:0", "GPU", total=total)], [Series("cuda:0", one) for one, _ in metrics]
    )
    sample = recorder.append(Sample(0.0, tuple(value for _, value in metrics)))
    span = recorder.open_span("cell", "run", sample)
    return session, recorder.close_span(span.id, sample, peaks)


def cell(
    seconds: float, after: float, peak: float = GIB, outcome: str = "done", before: float = GIB
) -> tuple[Session, Span]:
    """Return a cell that began with a GiB, unless told."""
    recorder = Recorder("run")
    session = recorder.session
    recorder.adopt([Device("cuda:0", "GPU", total=80 * GIB)], [Series("cuda:0", "allocated")])
    span = recorder.open_span("cell", "run", recorder.append(Sample(0.0, (before,))))
    peaks = {"cuda:0/allocated": Peak(peak, "exact")}
    end = recorder.append(Sample(seconds, (after,)))
    return session, recorder.close_span(span.id, end, peaks, outcome)


@pytest.mark.parametrize(
    ("first", "second", "host", "shown"),
    [
        (GIB, 0.0, True, ["cuda:0"]),
        (GIB, GIB, True, ["cuda:0", "cuda:1"]),
        (0.0, NAN, True, ["cpu"]),
        (GIB, GIB, False, ["cuda:0", "cuda:1"]),
    ],
)
def test_devices_on_which_something_was_allocated_are_shown(
    first: float, second: float, *, host: bool, shown: list[str]
) -> None:
    """The host only where no GPU was used, and none of the GPUs is taken for it."""
    assert keys(*two_gpus(first, second, host=host)) == shown


@pytest.mark.parametrize(
    ("metrics", "reserved_peak", "total", "headroom"),
    [
        (
            {"reserved": 3, "device_used": 5, "driver_reserved": 0.5},
            10,
            80,
            80 - 0.5 - (5 - 3) - 10,
        ),
        ({"reserved": 3, "device_used": NAN}, NAN, 80, 77),
        ({"reserved": 1}, NAN, NAN, NAN),
        ({"reserved": 9}, NAN, 8, 0),
    ],
    ids=["all known", "without NVML", "of unknown size", "more than there is"],
)
def test_headroom_is_what_neither_we_nor_others_nor_the_driver_hold_at_the_peak(
    metrics: dict[str, float], reserved_peak: float, total: float, headroom: float
) -> None:
    """It is never negative, and not known without a capacity; sizes are GiB."""
    peaks = (
        {} if math.isnan(reserved_peak) else {"cuda:0/reserved": Peak(reserved_peak * GIB, "exact")}
    )
    read = (("allocated", GIB), *((metric, size * GIB) for metric, size in metrics.items()))
    (facts,) = facts_of(*one_gpu(*read, peaks=peaks, total=total * GIB))

    assert facts.headroom / GIB == pytest.approx(headroom, nan_ok=True)


def test_an_allocation_between_two_samples_makes_a_device_active() -> None:
    """Only the exact peak knows of it."""
    session, span = one_gpu(
        ("allocated", 0.0), peaks={"cuda:0/allocated": Peak(GIB, "exact")}, total=80 * GIB
    )
    assert facts_of(session, span)[0].above_start == GIB


def test_nothing_was_allocated_before_an_allocator_came_to_be() -> None:
    """Its series is added when CUDA is first used, often by the watched cell itself."""
    recorder = Recorder("run")
    session = recorder.session
    recorder.adopt([Device("cuda:0", "GPU")], [Series("cuda:0", "device_used")])
    span = recorder.open_span("cell", "run", recorder.append(Sample(0.0, (GIB,))))
    recorder.adopt(
        [Device("cuda:0", "GPU")], [Series("cuda:0", "device_used"), Series("cuda:0", "allocated")]
    )
    span = recorder.close_span(span.id, recorder.append(Sample(1.0, (GIB, 2 * GIB))), {})
    assert (facts_of(session, span)[0].before, facts_of(session, span)[0].left_behind) == (
        0.0,
        2 * GIB,
    )


def test_a_reading_that_failed_at_the_start_is_not_taken_for_zero() -> None:
    """An unread start is "n/a", and so is what was left behind."""
    assert "n/a → 1.00 GiB (n/a)" in line(*cell(1.0, GIB, before=NAN))


def test_a_small_leak_does_not_vanish_among_gibibytes() -> None:
    """A difference of MiB between levels in GiB is told in MiB."""
    leaked = cell(1.0, 3 * GIB + 3 * MIB, peak=4 * GIB, before=3 * GIB)
    assert "3.00 → 3.00 GiB (+3.00 MiB)" in line(*leaked)


def test_an_open_span_reads_up_to_now() -> None:
    """While a span is open, its time and its level are those of the last sample."""
    recorder = Recorder("run")
    session = recorder.session
    recorder.adopt([Device("cuda:0", "GPU")], [Series("cuda:0", "allocated", "allocated")])
    span = recorder.open_span("cell", "run", recorder.append(Sample(0.0, (0.0,))))
    recorder.append(Sample(2.0, (GIB,)))
    text = line(session, span)
    assert text.startswith('memwatch "run" · 2.0 s · running · cuda:0')
    assert "allocated 0.00 → 1.00" in text


@pytest.mark.parametrize(
    ("told", "nothing"),
    [
        (cell(0.01, GIB), True),
        (cell(0.9, GIB + 0.9 * MIB), True),
        (cell(1.1, GIB), False),
        (cell(0.01, GIB + 2 * MIB), False),
        (cell(0.01, GIB - 2 * MIB), False),
        (cell(0.01, GIB, peak=GIB + 2 * MIB), False),
        (cell(0.01, GIB, outcome="raised ValueError"), False),
        (cell(0.01, NAN, peak=NAN, before=NAN), False),
    ],
)
def test_a_cell_did_nothing_if_it_was_short_and_changed_nothing(
    told: tuple[Session, Span], nothing: bool
) -> None:
    """Less than a second, less than a MiB at the end and at the peak; what is not known is not nothing."""
    assert did_nothing(*told) is nothing


glibc = pytest.mark.skipif(find_glibc_heap() is None, reason="needs glibc's own malloc")


@glibc
def test_what_was_not_written_is_said_on_the_card() -> None:
    """An array of zeros takes no memory until it is filled, and the card says why nothing was left behind."""
    with hfmem_widget.watch("zeros", quiet=True) as session:
        array = np.zeros(200_000_000)
    with hfmem_widget.watch("ones", quiet=True) as filled:
        array[:25_000_000] = 1.0
    (span,), (after,) = session.spans, filled.spans

    assert "was allocated and not written yet" in untouched_text(session, span)
    assert untouched_text(session, span) in compact_bundle(session, span)["text/plain"]
    assert untouched_text(filled, after) == ""
