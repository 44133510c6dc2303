"""Folds of a large world, of which each rank writes one a second."""

from __future__ import annotations

import math

import pytest

from hfmem_widget.ranks.stream import RankStream
from tests.fakes.ranks import Script, SimulatedRun


def lines_of_a_rank(seconds: float) -> list[bytes]:
    """Return what the first rank of a large world writes."""
    run = SimulatedRun(Script(world=65), ranks=[0])
    return [line for _, data in run.advance(seconds) for line in data.splitlines(keepends=True)]


@pytest.mark.parametrize("bad", [b"null", b"1e999", b"-", b"1e30", b"eeee"])
def test_a_fold_without_a_figure_takes_no_peak_away(bad: bytes) -> None:
    """A figure may be missing; with anything else in its place the line is counted and left out."""
    head, *rest = lines_of_a_rank(1.0)
    fold = b'{"k":"fold","n":9,"t":[8,9],"samples":1,"low":[0],"high":[%s],"last":[%s]}\n'
    stream = RankStream("one")
    for line in (head, *rest, fold % (bad, bad)):
        stream.feed(line)
    is_missing = bad == b"null"
    assert math.isnan(stream.latest("allocated")) == is_missing
    assert stream.dropped == (not is_missing)
    assert stream.peak.value > 0


@pytest.mark.parametrize(
    "fold",
    [
        b'{"k":"fold","n":9,"t":[9,8],"samples":1,"low":[0],"high":[1],"last":[1]}\n',
        b'{"k":"fold","n":9,"t":[8,9],"samples":1,"low":[0],"high":[1,2],"last":[1]}\n',
        b'{"k":"fold","n":9,"t":[8,9],"samples":1,"low":[%b],"high":[%b],"last":[%b]}\n'
        % ((b",".join([b"0"] * 99),) * 3),
    ],
)
def test_a_fold_that_does_not_fit_is_dropped(fold: bytes) -> None:
    """One that ends before it begins, or has other columns than there are, is counted and left out."""
    stream = RankStream("one")
    for line in lines_of_a_rank(1.0):
        stream.feed(line)
    before = stream.reached
    assert stream.feed(fold) == []
    assert (stream.dropped, stream.reached) == (1, before)
