"""The process' own memory."""

import ctypes
import gc
import math
import mmap
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfmem_widget.session.model import same
from hfmem_widget.sources.host import MANY_FREE_PIECES, DarwinMemory, HostSource, PsutilMemory
from hfmem_widget.sources.malloc import Arenas, Mallinfo, find_glibc_heap
from hfmem_widget.sources.procfs import LinuxMemory, Machine, Own, ResidentPeak, address_space
from tests.data.modules import run_alone
from tests.unit.sources.conftest import by_metric

MB = 10**6

LATER = 60.0
"""Seconds after which everything is read again, however long the last look at it took."""

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
glibc = pytest.mark.skipif(
    find_glibc_heap() is None, reason="needs glibc's own malloc, 2.33 or newer"
)


class FakeMemory(PsutilMemory):
    """A process and a machine whose figures a test sets."""

    what = LinuxMemory.what
    machine_total = 1000.0

    def __init__(self) -> None:
        self.now = Own(10.0, 20.0, 8.0, 5.0, 0.0)
        self.now_machine = Machine(500.0)
        self.lacking = 0.0

    def own(self) -> Own:
        return self.now

    def machine(self) -> Machine:
        return self.now_machine

    def lacking_in_heap(self) -> float:
        return self.lacking


def source_of(memory: PsutilMemory, heap: Mallinfo | None = None, **more: Any) -> HostSource:
    """Return the source of an invented process, in which Python has no arenas of its own."""
    given = {"find_python": lambda: None, "find_heap": lambda: heap and (lambda: heap)}
    return HostSource(memory, **(given | more))


@pytest.fixture
def source() -> Iterator[HostSource]:
    """Return the source of this process, without memory of other tests that is collected or used again."""
    gc.collect()
    gc.disable()
    getattr(ctypes.CDLL(None), "malloc_trim", abs)(0)  # glibc's
    source = HostSource()
    yield source
    gc.enable()


@glibc
def test_memory_that_is_touched_is_private_and_resident(source: HostSource) -> None:
    """200 MB of ones are 200 MB of private memory, within 1 %, and of resident set, with pages of files."""
    before = by_metric(source)
    array = np.ones(200 * MB, dtype=np.uint8)
    after = by_metric(source, LATER)
    array.sum()

    assert after["allocated"] - before["allocated"] == pytest.approx(200 * MB, rel=0.01)
    assert after["reserved"] - before["reserved"] == pytest.approx(200 * MB, rel=0.05)


@linux
def test_the_mark_is_this_programs_own() -> None:
    """A program started by a large process does not begin with that one's peak, as ru_maxrss would."""
    array = np.ones(300 * MB, dtype=np.uint8)
    code = "from hfmem_widget.sources.procfs import LinuxMemory as L; print(L().own().peak)"

    assert float(run_alone(code).stdout) < array.nbytes


def touch_and_return(size: int) -> None:
    """Take pages from the system, touch them, give them back; malloc might reuse resident ones."""
    with mmap.mmap(-1, size) as pages:
        for page in range(0, size, mmap.PAGESIZE):
            pages[page] = 1


@linux
def test_a_window_has_its_own_exact_peak() -> None:
    """A mark that is set back tells the highest resident set since."""
    touch_and_return(100 * MB)
    before = LinuxMemory().own().resident
    peak = ResidentPeak()
    if not peak.supported:
        pytest.skip("this kernel does not let the mark be set back")
    touch_and_return(50 * MB)

    assert peak.read() - before == pytest.approx(50 * MB, rel=0.1)


def test_where_the_mark_stays_the_window_has_no_peak(tmp_path: Path) -> None:
    """Where the kernel does not let the mark be set back, there is no figure rather than a wrong one."""
    assert math.isnan(ResidentPeak(tmp_path).read())


def test_the_machine_is_read_once_a_second() -> None:
    """The machine's memory is read once a second."""
    memory = FakeMemory()
    source = source_of(memory)
    by_metric(source, 0.0)
    memory.now_machine = Machine(600.0)

    assert by_metric(source, 0.9)["device_used"] == 500.0
    assert by_metric(source, 1.1)["device_used"] == 600.0


def test_what_malloc_and_python_have_free_is_not_in_it() -> None:
    """Private memory is without the free bytes of malloc and Python that take memory."""
    memory = FakeMemory()
    memory.now = Own(0.0, 0.0, 900.0 * MB)
    heap = Mallinfo(uordblks=300 * MB, fordblks=200 * MB)
    source = source_of(memory, heap, find_python=lambda: lambda: Arenas(60.0 * MB, 40.0 * MB))

    assert by_metric(source)["allocated"] == 660 * MB
    memory.lacking = 150.0 * MB
    values = by_metric(source, 10.0)
    assert values["allocated"] == 810 * MB
    assert (values["malloc"], values["python"], values["cached"]) == (300 * MB, 60 * MB, 50 * MB)


def test_what_malloc_hands_out_of_pages_that_were_not_in_memory_counts_once() -> None:
    """Bytes from pages that were absent count once, as do bytes from pages that were in memory."""
    memory, heap = FakeMemory(), Mallinfo(uordblks=300 * MB, fordblks=200 * MB)
    memory.now, memory.lacking = Own(0.0, 0.0, 900.0 * MB), 150.0 * MB
    source = source_of(memory, heap)
    before = by_metric(source, 1.0)["allocated"]
    heap.uordblks, heap.fordblks, memory.now = 320 * MB, 180 * MB, Own(0.0, 0.0, 920.0 * MB)
    absent = by_metric(source, 1.0)["allocated"]
    heap.uordblks, heap.fordblks = 350 * MB, 150 * MB
    present = by_metric(source, 1.0)["allocated"]

    assert (absent - before, present - absent) == (20 * MB, 30 * MB)


def test_without_a_known_heap_private_memory_has_what_is_free() -> None:
    """Without malloc's figures, private memory has its free bytes too, and one note says so."""
    source = source_of(FakeMemory())
    values = by_metric(source)
    by_metric(source, 5.0)

    assert values["allocated"] == 8.0
    assert "cached" not in values
    assert len(source.notes) == 1


def test_without_private_memory_the_heap_stands_in() -> None:
    """Without RssAnon, as in gVisor, the figure is the heap in use, with its label and one note."""
    memory = FakeMemory()
    memory.now = Own(10.0, 20.0)
    source = source_of(memory, Mallinfo(uordblks=7))

    assert by_metric(source)["allocated"] == 7.0
    assert next(one.label for one in source.series if one.metric == "allocated") == "heap in use"
    assert "RssAnon" in source.notes[0]


@linux
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_another_malloc_is_not_taken_for_glibcs(tmp_path: Path) -> None:
    """Where another malloc is preloaded, mallinfo2, which counts a heap that nobody uses, is not read."""
    bump = tmp_path / "bump.c"
    bump.write_text(
        "#include <sys/mman.h>\n#include <string.h>\n#include <stddef.h>\n"
        "void *malloc(size_t n) { size_t *p = mmap(0, n + 16, PROT_READ | PROT_WRITE,"
        " MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); *p = n; return p + 2; }\n"
        "void free(void *p) {}\n"
        "void *calloc(size_t a, size_t b) { return malloc(a * b); }\n"
        "void *realloc(void *p, size_t n) { void *q = malloc(n); if (p) { size_t m = ((size_t *)p)[-2];"
        " memcpy(q, p, m < n ? m : n); } return q; }\n"
    )
    library = tmp_path / "bump.so"
    flags = ["-shared", "-fPIC", "-O1", "-fno-builtin"]
    subprocess.run(["cc", *flags, "-o", library, bump], check=True)
    code = "from hfmem_widget.sources.malloc import find_glibc_heap; print(find_glibc_heap())"
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "LD_PRELOAD": str(library)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert run.stdout.strip() == "None"


def test_page_cache_shared_pinned_memory_and_swap_have_series() -> None:
    """Page cache, shared and pinned memory and swap have series, some from the first byte on."""
    memory = FakeMemory()
    memory.now_machine = Machine(500.0, 300.0, 25.0, 0.0)
    pinned = iter([0.0, 4096.0])
    source = source_of(memory, pinned=lambda: next(pinned))
    first = by_metric(source, 0.0)
    memory.now = memory.now._replace(swap=7.0)
    memory.now_machine = Machine(500.0, 0.0, 2.0, 9.0)
    second = by_metric(source, 10.0)

    assert (first["page_cache"], first["shared_memory"]) == (300.0, 20.0)
    assert not {"swap", "machine_swap", "pinned"} & set(first)
    assert (second["page_cache"], second["shared_memory"]) == (0.0, 0.0)
    assert (second["swap"], second["machine_swap"], second["pinned"]) == (7.0, 9.0, 4096.0)


def test_what_a_ulimit_leaves_has_a_series(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the limit less what is mapped, at every reading; without a limit there is no series."""
    limits = iter([(math.nan, math.nan, ""), (8.0, 3.0, "ulimit -v"), (8.0, 7.0, "ulimit -v")])
    monkeypatch.setattr("hfmem_widget.sources.procfs.address_space", lambda: next(limits))
    source = source_of(FakeMemory())

    assert [by_metric(source, at / 100).get("mappable") for at in range(3)] == [None, 5.0, 1.0]


def test_a_heap_in_very_many_pieces_is_read_less_often() -> None:
    """A heap with very many free pieces, each of which a reading walks, is read less often, with a note."""
    heap = Mock(return_value=Mallinfo(uordblks=1, ordblks=4 * MANY_FREE_PIECES))
    source = source_of(FakeMemory(), find_heap=lambda: heap)
    for now in (0.0, 0.1, 0.19, 0.21):
        source.read(now)

    assert heap.call_count == 2
    assert len(source.notes) == 1


def test_without_proc_nothing_is_available(tmp_path: Path) -> None:
    """Where /proc cannot be read, the values are NaN, and the heap is still read."""
    source = HostSource(LinuxMemory(tmp_path, tmp_path), find_heap=lambda: Mallinfo)
    values = by_metric(source)

    assert values["allocated"] == 0
    assert all(math.isnan(values[one]) for one in ("reserved", "peak", "device_used"))


class LibSystem:
    """macOS' library: it writes a struct rusage_info_v4 (XNU, bsd/sys/resource.h)."""

    def __init__(self, unit: int = MB) -> None:
        self.unit = unit
        self.fails = 0
        self.level = 1  # as kern.memorystatus_vm_pressure_level: 1, 2 or 4

    def sysctlbyname(self, name: bytes, out: object, size: object, *_new: object) -> int:
        """Write a value of the kernel's, and return 0, or -1 if it has none of that name."""
        assert name == b"kern.memorystatus_vm_pressure_level"
        ctypes.cast(out, ctypes.POINTER(ctypes.c_int))[0] = self.level  # type: ignore[arg-type]  # by reference
        return -self.fails

    def proc_pid_rusage(self, pid: int, flavor: int, buffer: object) -> int:
        """Write what a process takes, and return 0, or 1 if it fails."""
        assert (pid, flavor) == (os.getpid(), 4)
        words = ctypes.cast(buffer, ctypes.POINTER(ctypes.c_uint64))  # type: ignore[arg-type]  # by reference
        words[2 + 6], words[2 + 7], words[2 + 28] = (size * self.unit for size in (5, 700, 900))
        return self.fails


@pytest.mark.parametrize("unit", [MB, 1000])
def test_on_macos_the_footprint_stands_for_private_memory(unit: int) -> None:
    """On macOS the figure is the footprint with its peak; the resident set misses tensors on the GPU."""
    source = HostSource(DarwinMemory(LibSystem(unit)), find_heap=lambda: None)
    values = by_metric(source)
    labels = {series.metric: series.label for series in source.series}

    assert (values["allocated"], values["peak"]) == (700 * unit, 900 * unit)
    assert (labels["allocated"], labels["peak"]) == ("footprint", "footprint peak")
    assert 0 < values["reserved"] != 700 * unit
    assert "footprint" in source.notes[0]


@pytest.mark.parametrize(("level", "words"), [(1, ""), (2, "is short"), (4, "is critically short")])
def test_macos_says_when_memory_is_short(level: int, words: str) -> None:
    """Each level of memory pressure on macOS has one note; without pressure there is none."""
    library = LibSystem()
    library.level = level
    source = HostSource(DarwinMemory(library), find_heap=lambda: None)
    for now in (0.0, 10.0):
        source.read(now)
    notes = [note for note in source.notes if "macOS" in note]

    assert len(notes) == bool(words)
    assert all(words in note for note in notes)


@linux
def test_psutil_agrees_with_the_kernel() -> None:
    """Psutil gives the same resident set and machine as /proc."""
    ours, psutils = LinuxMemory(), PsutilMemory()

    assert psutils.own().resident == pytest.approx(ours.own().resident, rel=0.05)
    assert psutils.machine_total >= ours.machine_total
    assert math.isnan(psutils.own().peak)
    assert 0 < psutils.machine().in_use < psutils.machine_total


def test_a_reader_that_raises_is_a_note() -> None:
    """If the system refuses its figures, every value is NaN, and one note says so."""
    library = LibSystem()
    source = HostSource(DarwinMemory(library), find_heap=lambda: None)
    library.fails = 1

    assert all(math.isnan(one) for one in source.read(0.0))
    assert len(source.read(0.1)) == len(source.series)
    assert len([note for note in source.notes if "proc_pid_rusage" in note]) == 1


@given(st.binary(max_size=200))
def test_any_status_is_survived(content: bytes) -> None:
    """Whatever stands in /proc, reading it ends in values or NaN."""
    with TemporaryDirectory() as folder:
        proc = Path(folder)
        (proc / "self").mkdir()
        for name in ("self/status", "meminfo"):
            (proc / name).write_bytes(content)
        source = HostSource(LinuxMemory(proc, Path("/nowhere")))

        assert len(source.read(0.0)) == len(source.series)


def set_pages(proc: Path) -> Path:
    (proc / "self").mkdir()
    (proc / "self" / "statm").write_text("1000 10 5 1 0 9 0\n")
    return proc


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, (math.nan, math.nan, "")),
        ({"RLIMIT_AS": 8 << 30}, (8 << 30, 1000, "ulimit -v")),
        ({"RLIMIT_AS": 8 << 30, "RLIMIT_DATA": 1 << 20}, (1 << 20, 9, "ulimit -d")),
    ],
)
def test_the_lowest_limit_on_mapped_memory_counts(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    limits: dict[str, int],
    expected: tuple[float, float, str],
) -> None:
    """The lower limit counts, with the bytes that count towards it; without ``/proc`` the limit alone."""
    kinds = {getattr(resource, name): limit for name, limit in limits.items()}
    monkeypatch.setattr(
        resource, "getrlimit", lambda kind: (kinds.get(kind, resource.RLIM_INFINITY), -1)
    )
    limit, pages, command = expected
    in_bytes = limit, pages * os.sysconf("SC_PAGE_SIZE"), command

    assert same(address_space(set_pages(tmp_path)), in_bytes)
    if limits:
        assert same(address_space(tmp_path / "none")[:2], (8 << 30, math.nan))


@pytest.mark.parametrize(("is_beside", "looked"), [(False, 1), (True, 0)])
def test_beside_a_gpu_what_is_slow_is_read_seldom(
    monkeypatch: pytest.MonkeyPatch, *, is_beside: bool, looked: int
) -> None:
    """Beside a GPU, Python's arenas, which take 5 ms, are not read again while private memory is the same."""
    clock, look = count(0.0, 0.005), Mock(return_value=Arenas(2.0, 1.0))
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    source = source_of(FakeMemory(), find_python=lambda: look)
    source.is_beside = is_beside
    source.read(0.0)
    look.reset_mock()
    source.read(3.0)

    assert look.call_count == looked


def test_memory_that_was_freed_is_not_memory_that_was_not_written() -> None:
    """Python's arenas are read seldom: until then, less private memory is no more untouched memory."""
    fake = FakeMemory()
    fake.now = Own(9e9, 9e9, 8e9, 0.0, 0.0)
    heap = Mallinfo(uordblks=int(3e9))
    now = [Arenas(6e9, 0.0), Arenas(1e9, 0.0)]

    def look() -> Arenas:
        time.sleep(0.02)
        return now.pop(0)

    source = source_of(fake, heap, find_python=lambda: look)
    before = by_metric(source)["untouched"]
    fake.now = fake.now._replace(private=3e9)

    assert before == 1e9
    assert by_metric(source, 0.01)["untouched"] == before
    assert by_metric(source, 9.0)["untouched"] == 1e9
