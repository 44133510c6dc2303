"""The figures of a card: which devices, and what each number is made of."""

import math

import numpy as np
import pytest

import hfmem_widget
from hfmem_widget.analysis.facts import active_devices, did_nothing, facts_of
from hfmem_widget.analysis.others import untouched_text
from hfmem_widget.session import Series, Session, Span
from hfmem_widget.sources.malloc import find_glibc_heap
from hfmem_widget.text import GIB, MIB
from hfmem_widget.view.line import compact_bundle, line
from tests.data.recorders import KEY, cell_of, read, recorder_of

NAN = math.nan


def cell(
    seconds: float, after: float, peak: float = GIB, outcome: str = "done", before: float = GIB
) -> tuple[Session, Span]:
    """Return a cell that began with a GiB, unless `before` says otherwise."""
    return cell_of(before, after, every=seconds, peaks={KEY: peak}, outcome=outcome)


@pytest.mark.parametrize(
    ("read", "keys"),
    [
        ({"cuda:0": GIB, "cuda:1": 0.0, "cpu": GIB}, ["cuda:0"]),
        ({"cuda:0": GIB, "cuda:1": GIB, "cpu": GIB}, ["cuda:0", "cuda:1"]),
        ({"cuda:0": 0.0, "cuda:1": NAN, "cpu": GIB}, ["cpu"]),
        ({"cuda:0": GIB, "cuda:1": GIB}, ["cuda:0", "cuda:1"]),
    ],
)
def test_devices_with_allocations_are_shown(read: dict[str, float], keys: list[str]) -> None:
    """The host is shown only where no GPU was used, and no GPU is taken for it."""
    row = tuple(read.values())
    assert [device.key for device in active_devices(*cell_of(row, row, keys=list(read)))] == keys


@pytest.mark.parametrize(
    ("metrics", "reserved_peak", "total", "headroom"),
    [
        ({"reserved": 3, "device_used": 5, "driver_reserved": 0.5}, 10, 80, 80 - 0.5 - 2 - 10),
        ({"reserved": 3, "device_used": NAN}, NAN, 80, 77),
        ({"reserved": 1}, NAN, NAN, NAN),
        ({"reserved": 9}, NAN, 8, 0),
        ({"reserved": 3, "device_used": 60, "context": 0.5, "others": 1.5}, 10, 80, 80 - 2 - 10),
        ({"reserved": 3, "device_used": 5, "context": NAN, "others": 2}, 10, 80, 80 - 2 - 10),
    ],
    ids=[
        *("all known", "without NVML", "of unknown size", "more than there is"),
        *("cache returned since the driver was read", "in a container"),
    ],
)
def test_headroom_is_what_nobody_holds_at_the_peak(
    metrics: dict[str, float], reserved_peak: float, total: float, headroom: float
) -> None:
    """Headroom is never negative, and not known without a capacity; sizes are GiB."""
    peaks = {} if math.isnan(reserved_peak) else {"cuda:0/reserved": reserved_peak * GIB}
    row = (GIB, *(size * GIB for size in metrics.values()))
    metrics_read = ("allocated", *metrics)
    (facts,) = facts_of(*cell_of(row, metrics=metrics_read, peaks=peaks, total=total * GIB))

    assert facts.headroom / GIB == pytest.approx(headroom, nan_ok=True)


def test_headroom_is_what_the_shell_lets_the_process_map() -> None:
    """What was mapped at the peak alone can be mapped again, and so can what malloc keeps; sizes are GiB."""
    sizes = {"allocated": 1.0, "reserved": 1.0, "device_used": 4.0, "cached": 0.5, "mappable": 5.0}
    row = tuple(size * GIB for size in sizes.values())
    peaks = {"cpu/allocated": 3 * GIB}
    (facts,) = facts_of(*cell_of(row, keys=["cpu"], metrics=[*sizes], peaks=peaks))

    assert facts.headroom == (5 + 0.5 - (3 - 1)) * GIB


def test_an_allocation_between_two_samples_makes_a_device_active() -> None:
    """Such an allocation is in the exact peak alone."""
    assert facts_of(*cell_of(0.0, peaks={KEY: GIB}))[0].above_start == GIB


def test_nothing_was_allocated_before_an_allocator_came_to_be() -> None:
    """Its series is added when CUDA is first used, often by the watched cell itself."""
    recorder = recorder_of(GIB, metrics=["device_used"])
    session = recorder.session
    span = recorder.open_span("cell", "run", session.last_sample)
    recorder.adopt(session.devices, [*session.series, Series("cuda:0", "allocated")])
    span = recorder.close_span(span.id, read(recorder, 1.0, (GIB, 2 * GIB)), {})
    (facts,) = facts_of(session, span)
    assert (facts.before, facts.left_behind) == (0.0, 2 * GIB)


@pytest.mark.parametrize(
    ("watched", "text"),
    [
        (cell(1.0, GIB, before=NAN), "n/a → 1.00 GiB (n/a)"),
        (cell(1.0, 3 * GIB + 3 * MIB, peak=4 * GIB, before=3 * GIB), "3.00 → 3.00 GiB (+3.00 MiB)"),
    ],
    ids=["no reading at the start", "a small leak among gibibytes"],
)
def test_a_change_is_shown_as_far_as_it_is_known(watched: tuple[Session, Span], text: str) -> None:
    """An unread start is not zero, and a difference of MiB between levels in GiB is in MiB."""
    assert text in line(*watched)


def test_an_open_span_reads_up_to_now() -> None:
    """While a span is open, its time and its level are those of the last sample."""
    recorder = recorder_of(0.0)
    span = recorder.open_span("cell", "run", recorder.session.last_sample)
    read(recorder, 2.0, GIB)
    text = line(recorder.session, span)
    assert text.startswith('memwatch "run" · 2.0 s · running · cuda:0')
    assert "allocated 0.00 → 1.00" in text


@pytest.mark.parametrize(
    ("cell", "nothing"),
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
def test_a_short_cell_without_change_did_nothing(cell: tuple[Session, Span], nothing: bool) -> None:
    """Less than a second with less than a MiB of change is nothing; an unknown figure is not."""
    assert did_nothing(*cell) is nothing


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
