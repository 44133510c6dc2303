"""The sampler makes one row of all sources, and reads none of them more often than it must."""

from __future__ import annotations

import math

import pytest

from hfmem_widget.monitor.sampler import FINE_SHARE, Sampler
from hfmem_widget.session import Device, Series
from hfmem_widget.sources.allocator import Instant
from tests.fakes.source import FakeSource
from tests.scenes import FakeClock

INSTANT = Instant(None, {})
"""Of which a `FakeSource` knows what it is told to."""


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def torch() -> FakeSource:
    devices = [Device("cuda:0", "NVIDIA H200")]
    series = [Series("cuda:0", "allocated"), Series("cuda:0", "reserved")]
    return FakeSource(devices, series, [1.0, 2.0], name="torch")


@pytest.fixture
def host() -> FakeSource:
    return FakeSource(
        [Device("cpu", "CPU")], [Series("cpu", "allocated")], [3.0], name="host", secondary=True
    )


@pytest.fixture
def sampler(torch: FakeSource, host: FakeSource, clock: FakeClock) -> Sampler:
    sampler = Sampler([torch, host], clock=clock)
    sampler.poll()
    return sampler


def test_known_values_are_not_read_again(sampler: Sampler, torch: FakeSource) -> None:
    """Values that were just read are in the row, and their source is not read."""
    reads, torch.known = torch.reads, [10.0, 20.0]

    assert sampler.edge(INSTANT) == (10.0, 20.0, 3.0)
    assert sampler.poll(INSTANT) == (10.0, 20.0, 3.0)
    assert torch.reads == reads


def test_a_device_that_its_source_has_not_seen_comes_in_by_reading(
    torch: FakeSource, host: FakeSource, clock: FakeClock
) -> None:
    """CUDA may come up between two readings: the source then reads, and the known values stand."""
    sampler, torch.known = Sampler([torch, host], clock=clock), [10.0, 20.0]

    assert sampler.edge(INSTANT) == (10.0, 20.0, 3.0)
    assert torch.reads == 1


def test_columns_stay_where_they_are_when_an_earlier_source_grows(
    torch: FakeSource, host: FakeSource
) -> None:
    """New series stand at the end of the row, whichever source they are from."""
    later, torch.series, torch.values = torch.series, (), []
    sampler = Sampler([torch, host])
    before = sampler.poll()
    torch.series, torch.values = later, [1.0, 2.0]

    assert before == (3.0,)
    assert sampler.poll() == (3.0, 1.0, 2.0)
    assert sampler.series[0].key == "cpu/allocated"


def test_an_edge_reads_the_host_anew(sampler: Sampler, torch: FakeSource, host: FakeSource) -> None:
    """At a cell's edge the host's figures are of that instant, however shortly before they were read."""
    torch.known, host.values = [1.0, 2.0], [4.0]

    assert sampler.edge(INSTANT)[-1] == 4.0


def test_beside_a_gpu_the_edges_of_steps_leave_the_host_to_the_poller(
    sampler: Sampler, torch: FakeSource, host: FakeSource, clock: FakeClock
) -> None:
    """There the host is read only where the poller has not done it for a second."""
    torch.known, host.values = [1.0, 2.0], [4.0]
    clock.advance(0.9)
    soon = sampler.edge(INSTANT, is_fine=True)
    clock.advance(0.2)

    assert soon[-1] == 3.0
    assert sampler.edge(INSTANT, is_fine=True)[-1] == 4.0


def test_without_a_gpu_fine_edges_are_read_as_often_as_reading_is_cheap(
    host: FakeSource, clock: FakeClock
) -> None:
    """A reading that takes long is not made again before it is a small part of the time."""
    sampler = Sampler([host], clock=clock)
    sampler.poll()
    seconds = 1e-4
    host.meanwhile = lambda: clock.advance(seconds)
    reads = [host.reads]
    for passed in (1.0, 0.9 * seconds / FINE_SHARE, 0.2 * seconds / FINE_SHARE):
        clock.advance(passed)
        sampler.edge(share=0.005)
        reads.append(host.reads - reads[0])

    assert reads[1:] == [1, 1, 2]


def test_without_a_gpu_fine_edges_are_fresh_where_reading_costs_nothing(
    host: FakeSource, clock: FakeClock
) -> None:
    """A step's parts may follow each other as closely as they like."""
    sampler = Sampler([host], clock=clock)
    sampler.poll()
    host.values = [4.0]

    assert sampler.edge(share=0.005)[-1] == 4.0


def test_fewer_values_than_series_are_filled_up(sampler: Sampler, torch: FakeSource) -> None:
    """Missing values of a source are NaN, and shift no other column."""
    torch.values = [7.0]
    row = sampler.poll()

    assert row[0] == 7.0
    assert math.isnan(row[1])
    assert row[2] == 3.0


def test_the_host_is_read_at_every_fifth_tick_while_cuda_is_up(
    sampler: Sampler, host: FakeSource, torch: FakeSource, clock: FakeClock
) -> None:
    """Beside a GPU the host's figures change more rarely; the GPU's are read at every tick."""
    hosts, gpus = host.reads, torch.reads
    for _ in range(10):
        clock.advance(0.1)
        sampler.poll()

    assert (host.reads - hosts, torch.reads - gpus) == (2, 10)


def test_without_a_gpu_the_host_is_read_at_every_tick(host: FakeSource, clock: FakeClock) -> None:
    """Where CUDA is not up, the host is what is watched."""
    sampler = Sampler([FakeSource([], [], name="torch"), host], clock=clock)
    for _ in range(10):
        clock.advance(0.1)
        sampler.poll()

    assert host.reads == 10
