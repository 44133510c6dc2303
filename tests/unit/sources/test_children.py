"""What the children of this process hold on the host, from an invented ``/proc`` and from a real one."""

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from hfmem_widget.sources import children
from hfmem_widget.sources.children import MOST, PSS, WORKER, ChildSource, Held, LinuxProcesses
from hfmem_widget.sources.procfs import LinuxMemory
from tests.unit.sources.conftest import by_metric
from tests.unit.sources.test_procfs import add

MB = 10**6
KB = 1024
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


class Fake(children.PsutilProcesses):
    """Processes of which each has so many bytes, and takes some CPU time to read."""

    def __init__(self, held: dict[int, Held], seconds: float = 0.0) -> None:
        self.now = held
        self.seconds = seconds
        self.cpu = 0.0
        self.read: list[int] = []

    def pids(self) -> list[int]:
        return list(self.now)

    def lives(self, pid: int) -> bool:
        return pid in self.now

    def held(self, pid: int) -> Held:
        self.cpu += self.seconds
        self.read.append(pid)
        return self.now[pid]

    def source(self) -> ChildSource:
        return ChildSource(self, cpu=lambda: self.cpu)


def process(
    proc: Path, pid: int, parent: int, pss: int, *, shared: int = 0, name: str = "python"
) -> int:
    """Write a process that holds so many kB into an invented ``/proc``."""
    add(proc, pid, parent, name=name)
    (proc / str(pid) / "comm").write_text(f"{name}\n")
    text = f"5-7 ---p [rollup]\nRss: 9 kB\nPss: {pss} kB\nPss_Anon: 3 kB\nPss_Shmem: {shared} kB\n"
    (proc / str(pid) / "smaps_rollup").write_text(text)
    return pid


@pytest.fixture
def with_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "waitid", lambda *_: None)


@pytest.mark.usefixtures("with_children")
def test_workers_are_counted_apart_from_other_children(tmp_path: Path) -> None:
    """DataLoader workers are known by PyTorch's name for them; processes of others do not count."""
    loader = [process(tmp_path, pid, os.getpid(), 300, shared=50, name=WORKER) for pid in (11, 12)]
    process(tmp_path, 13, loader[0], 40, name="ffmpeg")
    process(tmp_path, 14, 1, 5000, name=WORKER)

    assert by_metric(ChildSource(LinuxProcesses(tmp_path)), 0.0) == {
        "children": 640 * KB,
        "child_processes": 3,
        "data_workers": 2,
        "children_shared": 100 * KB,
    }


@pytest.mark.usefixtures("with_children")
def test_without_pss_what_is_resident_stands_in(tmp_path: Path) -> None:
    """Without PSS the figure is the resident set, and the label and one note say so."""
    for pid in (11, 12):
        process(tmp_path, pid, os.getpid(), 1)
        (tmp_path / str(pid) / "smaps_rollup").unlink()
        (tmp_path / str(pid) / "statm").write_text("900 500 200 1 0 5 0")
    source = ChildSource(LinuxProcesses(tmp_path))

    assert by_metric(source, 0.0)["children"] == 2 * 300 * os.sysconf("SC_PAGE_SIZE")
    assert "resident" in source.series[0].label
    assert len(source.notes) == 1


@pytest.mark.usefixtures("with_children")
@pytest.mark.parametrize("broken", ["comm", "smaps_rollup", "all"])
def test_a_child_that_ends_while_it_is_read_is_none(tmp_path: Path, broken: str) -> None:
    """A child that has ended, waited for or not, has no memory and no note."""
    pid = process(tmp_path, 11, os.getpid(), 40)
    (tmp_path / "11" / "statm").write_text("0 0 0 0 0 0 0")
    for name in ("comm", "smaps_rollup", "statm"):
        if broken in {name, "all"}:
            (tmp_path / str(pid) / name).unlink()
    source = ChildSource(LinuxProcesses(tmp_path))

    assert by_metric(source, 0.0) == {}
    assert not source.notes


def test_without_children_none_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without children no process is read: the kernel says in one call that there are none."""
    monkeypatch.setattr(os, "waitid", Mock(side_effect=ChildProcessError))
    processes = LinuxProcesses(tmp_path / "missing")

    assert list(processes.pids()) == []
    assert by_metric(ChildSource(processes), 0.0) == {}


@linux
def test_a_fork_shares_what_it_has_not_written() -> None:
    """A fork has half of the pages that it shares, and whoever forked it can still wait for it."""
    common = bytearray(os.urandom(40 * MB))
    child = os.fork()
    if child == 0:
        while True:
            os.read(0, 0)
    try:
        processes = LinuxProcesses()
        assert child in processes.pids()
        held = processes.held(child)
        assert 20 * MB < held.bytes < 0.75 * LinuxMemory().own().resident
        assert held.how == PSS
    finally:
        os.kill(child, 9)
        del common
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert math.isnan(processes.held(child).bytes)
    processes.pids()
    assert os.waitpid(child, 0)[0] == child


@pytest.fixture
def child() -> Iterator[subprocess.Popen[str]]:
    """Return a process that holds 60 MB until it is killed."""
    code = "held = b'x' * 60_000_000; print(len(held), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as started:
        assert started.stdout is not None
        started.stdout.readline()
        yield started
        started.kill()


def test_psutil_finds_a_child_by_what_is_resident(child: subprocess.Popen[str]) -> None:
    """With psutil, as on macOS and Windows, a child has its resident set, with a note, until it has ended."""
    processes = children.PsutilProcesses()
    source = ChildSource(processes)
    values = by_metric(source, 0.0)

    assert child.pid in processes.pids()
    assert values["children"] > 60 * MB
    assert values["child_processes"] >= 1
    assert source.series[0].label == "child processes (resident)"
    assert len(source.notes) == 1
    child.kill()
    if hasattr(os, "waitid"):
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert math.isnan(processes.held(child.pid).bytes)
    assert child.wait() != 0
    assert math.isnan(processes.held(child.pid).bytes)
    assert child.pid not in processes.pids()


def test_there_are_no_series_before_there_is_a_child() -> None:
    """The series begin with the first child, and are 0 once it has ended."""
    fake = Fake({})
    source = fake.source()
    assert by_metric(source, 0.0) == {}
    fake.now[7] = Held(10.0, 4.0)
    assert by_metric(source, 0.5) == {}
    assert by_metric(source, 1.0)["children"] == 10
    fake.now.clear()

    assert set(by_metric(source, 2.0).values()) == {0.0}


def test_a_child_that_has_ended_holds_nothing_from_the_next_reading_on() -> None:
    """A child that has ended counts no longer, also between two looks for new children."""
    fake = Fake({7: Held(10.0, name=WORKER), 8: Held(5.0)})
    source = fake.source()
    assert by_metric(source, 1.0)["children"] == 15
    del fake.now[7]

    values = by_metric(source, 1.1)
    assert (values["children"], values["child_processes"], values["data_workers"]) == (5, 1, 0)


def test_reading_takes_a_hundredth_of_the_time() -> None:
    """Large processes are read one by one, the more rarely the longer that takes."""
    fake = Fake({pid: Held(10.0) for pid in range(4)}, seconds=0.1)
    source = fake.source()
    ticks = [tick / 10 for tick in range(2000)]
    first_whole = next(now for now in ticks if by_metric(source, now)["children"] == 40)
    for now in ticks[ticks.index(first_whole) + 1 :]:
        source.read(now)

    assert first_whole == pytest.approx(3.0, abs=0.2)
    assert fake.cpu <= 0.4 + 0.011 * ticks[-1]
    assert {pid: fake.read.count(pid) for pid in range(4)} == pytest.approx(
        dict.fromkeys(range(4), 1 + ticks[-1] / 40), abs=1
    )


def test_a_sum_is_not_known_before_all_are_read() -> None:
    """The sum is NaN until all children are read, of which a new one comes first; their number is known."""
    fake = Fake({1: Held(10.0)}, seconds=0.02)
    source = fake.source()
    source.read(0.0)
    fake.now[2] = Held(5.0)
    fake.now[3] = Held(5.0)
    assert math.isnan(by_metric(source, 2.0)["children"])
    assert fake.read == [1, 2]
    assert by_metric(source, 2.3)["children"] == 20


def test_the_number_of_counted_children_is_bounded() -> None:
    """Of very many children some are counted, and a note says so."""
    fake = Fake({pid: Held(1.0) for pid in range(MOST + 5)})
    source = fake.source()

    assert by_metric(source, 0.0)["child_processes"] == MOST
    assert len(source.notes) == 1


class OnlyThat(LinuxProcesses):
    """One child of this process; other tests may have left some that end by and by."""

    def __init__(self, child: int) -> None:
        super().__init__()
        self.child = child

    def pids(self) -> list[int]:
        return [self.child]


@linux
def test_what_a_fork_shares_with_this_process_does_not_count_with_it() -> None:
    """These pages are in this process' memory already; what the child has written itself counts."""
    common, (ready, tell) = bytearray(os.urandom(100 * MB)), os.pipe()
    child = os.fork()
    if child == 0:
        block = bytearray(os.urandom(20 * MB))
        os.write(tell, b"x")
        while block:
            os.read(0, 0)
    try:
        os.read(ready, 1)
        processes = OnlyThat(child)
        held = processes.held(child).bytes
        assert 20 * MB < by_metric(ChildSource(processes))["children"] < held - 40 * MB
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        del common
