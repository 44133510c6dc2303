"""Fragmentation found in what was sampled: where it made a span need more, and nowhere else."""

from __future__ import annotations

import math
from typing import Any

import pytest

from hfmem_widget.features.judgement import judge
from hfmem_widget.features.memory_map.holes import holes
from hfmem_widget.session import Finding, Peak
from hfmem_widget.text import GIB
from tests.data.recorders import KEY, cell_of, read, recorder_of

METRICS = ("allocated", "reserved", "inactive_split", "alloc_retries", "ooms")
Row = tuple[float, ...]


def found_in(
    *rows: Row, before: Row = (0.0, 0.0, 0.0, 0.0, 0.0), allocated: float | None = None
) -> list[Finding]:
    """Return what is found in a span of such samples: allocated, reserved and holes in GiB, and counts.

    `allocated` is the exact peak in GiB, where no sample saw it.
    """
    read = [(*(value * GIB for value in row[:3]), *row[3:]) for row in (before, *rows)]
    peaks = {
        f"cuda:0/{metric}": max(row[at] for row in read) for at, metric in enumerate(METRICS[:2])
    }
    if allocated is not None:
        peaks[KEY] = allocated * GIB
    session, closed = cell_of(*read, metrics=METRICS, peaks=peaks, total=140 * GIB, every=0.1)
    assert list(holes(session, closed)) == [
        one for one in judge(session, closed).findings if one.kind == "fragmentation"
    ]
    return list(holes(session, closed))


def test_holes_at_the_fullest_moment_are_a_finding() -> None:
    """Its title has the figure, its advice says what that would save."""
    (finding,) = found_in((5.0, 8.0, 2.5, 0, 0), (2.0, 8.0, 5.0, 0, 0))
    assert finding.title == (
        "2.50 GiB (31 %) of reserved memory on cuda:0 lay in holes between tensors when most was reserved."
    )
    assert finding.evidence["holes"] == 2.5 * GIB  # bytes, exact
    assert "expandable_segments:True" in finding.advice[0]
    assert "2.50 GiB" in finding.advice[0]


HEALTHY: dict[str, tuple[list[Row], dict[str, Any]]] = {
    "holes that are filled later": ([(7.5, 8.0, 0.4, 0, 0), (2.0, 8.0, 6.0, 0, 0)], {}),
    "less than 15 % of what is reserved": ([(30.0, 33.0, 3.0, 0, 0)], {}),
    "less than 512 MiB": ([(1.0, 1.4, 0.4, 0, 0)], {}),
    "an allocator that does not count holes": ([(5.0, 8.0, math.nan, 0, 0)], {}),
    "whole segments that are free": ([(5.0, 8.0, 0.0, 0, 0)], {}),
    "reserved before": ([(2.0, 8.0, 5.0, 0, 0)], {"before": (1.0, 8.0, 6.0, 0, 0)}),
    "a peak that no sample saw": ([(2.0, 8.0, 6.0, 0, 0)], {"allocated": 7.8}),
    "the retry of a request that failed": ([(7.0, 8.0, 0.0, 1, 1)], {}),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_span_has_no_finding(name: str) -> None:
    """Small holes, filled ones, free segments, those of earlier cells, and errors that tell themselves."""
    rows, options = HEALTHY[name]
    assert found_in(*rows, **options) == []


def test_retries_are_a_finding_without_holes() -> None:
    """The allocator ran out, emptied its cache and went on: that waits for the GPU."""
    (finding,) = found_in((7.0, 8.0, 0.0, 2, 0))
    assert finding.title.startswith("On cuda:0 the allocator ran out of memory 2 times")
    assert "smaller batch" in finding.advice[0]


def test_holes_and_retries_are_one_finding() -> None:
    """Where holes made the allocator run out, one sentence tells both."""
    (finding,) = found_in((5.0, 8.0, 2.5, 1, 0))
    assert "reserved, and the allocator ran out of memory once" in finding.title
    assert finding.evidence["retries"] == 1


NAN = math.nan


@pytest.mark.parametrize(
    ("rows", "holes"),
    [
        ([(5.0, 8.0, 2.5, 0, 0), (6.0, 8.0, NAN, 0, 0)], 2.0),
        ([(5.0, 8.0, 2.5, 0, 0), (NAN, 8.0, 7.0, 0, 0)], 2.5),
        ([(5.0, 8.0, 2.5, 0, 0), (5.5, 8.0, 2.2, 0, 0)], 2.2),
    ],
)
def test_holes_are_those_of_the_fullest_moment_that_is_known(
    rows: list[tuple[float, ...]], holes: float
) -> None:
    """A moment of which either figure is missing is passed over."""
    (finding,) = found_in(*rows)

    assert finding.evidence["holes"] == pytest.approx(holes * GIB)


@pytest.mark.parametrize(
    ("before", "after", "retries"), [(1.0, 3.0, 2), (3.0, 3.0, 0), (3.0, 1.0, 0), (NAN, 3.0, 0)]
)
def test_retries_are_those_of_the_span(before: float, after: float, retries: int) -> None:
    """What the allocator had to do before it does not count."""
    found = found_in((5.0, 8.0, 0.0, after, 0), before=(0.0, 0.0, 0.0, before, 0.0))

    assert [one.evidence["retries"] for one in found] == ([retries] if retries else [])


def test_holes_after_the_span_are_not_its_own() -> None:
    """Though it was fuller then."""
    recorder = recorder_of((0.0,) * 3, metrics=("allocated", "reserved", "inactive_split"))
    span = recorder.open_span("cell", "cell", recorder.session.last_sample)
    within = read(recorder, 1.0, (5 * GIB, 8 * GIB, 2 * GIB))
    peaks = {KEY: Peak(5 * GIB, "exact"), "cuda:0/reserved": Peak(8 * GIB, "exact")}
    closed = recorder.close_span(span.id, within, peaks)
    read(recorder, 2.0, (7 * GIB, 8 * GIB, 0.0))
    (found,) = holes(recorder.session, closed)

    assert found.evidence["holes"] == 2 * GIB


def test_holes_that_were_never_read_are_none() -> None:
    """Though what was reserved rose."""
    assert found_in((NAN, 8.0, NAN, 0, 0), (NAN, 8.0, 3.0, 0, 0), (5.0, 8.0, NAN, 0, 0)) == []
