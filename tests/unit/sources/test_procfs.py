"""What is read from ``/proc``: processes started by this one, mapped files, the limit of a container."""

import math
import os
from pathlib import Path

import pynvml
import pytest

from hfmem_widget.session.model import same
from hfmem_widget.sources.children import Descendants
from hfmem_widget.sources.procfs import LinuxMemory, MappedFiles, find_cgroup
from tests.fakes.nvml import GIB, FakeGpu
from tests.fakes.nvml_source import HOST_NAMESPACE, Watched, make_proc
from tests.scenes import FakeClock

CONTAINER = "pid:[4026532000]"


def add(proc: Path, pid: int, parent: int, *files: str, name: str = "python") -> int:
    """Write a process into an invented ``/proc``."""
    (proc / str(pid) / "fd").mkdir(parents=True)
    (proc / str(pid) / "stat").write_text(f"{pid} ({name}) S {parent} {parent} 0 -1")
    for number, file in enumerate(files):
        (proc / str(pid) / "fd" / str(number)).symlink_to(file)
    return pid


def test_four_ranks_are_children_and_a_foreign_job_is_not(proc: Path) -> None:
    """Each device has the bytes of child processes alone, and each child counts once for all devices."""
    ranks = [add(proc, 100 + rank, os.getpid()) for rank in range(4)]
    foreign = add(proc, 999, 1)
    gpus = [
        FakeGpu(uuid=f"GPU-{at}", used=20 * GIB, processes={"Compute": [(rank, 15 * GIB)]})
        for at, rank in enumerate(ranks)
    ]
    gpus[0].processes["Compute"] += [(rank, 1 * GIB) for rank in ranks[1:]] + [(foreign, GIB)]
    values = Watched(gpus, proc)(0.0)

    assert [values[f"cuda:{at}/children"] for at in range(4)] == [18 * GIB, *[15 * GIB] * 3]
    assert values["cpu/gpu_children"] == 4


@pytest.mark.parametrize("name", ["torchrun", "a) S 1 (b", ""])
def test_children_of_children_count(proc: Path, name: str) -> None:
    """What `!torchrun` starts has a shell and an agent between; a name may have anything in it."""
    shell = add(proc, 50, os.getpid(), name=name)
    agent = add(proc, 60, shell)
    rank = add(proc, 70, agent)

    assert Descendants(proc).among([rank], ids_are_ours=True) == {rank}


def test_a_containers_process_1_has_children(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process whose id is 1, as in a container, has the children that it started."""
    monkeypatch.setattr(os, "getpid", lambda: 1)
    worker = add(proc, 70, 1)
    entered = add(proc, 80, 0)

    assert Descendants(proc).among([worker, entered], ids_are_ours=True) == {worker}


def test_a_rank_stays_a_child_after_its_agent_has_ended(proc: Path) -> None:
    """A rank stays a child when its agent has ended before it."""
    agent = add(proc, 60, os.getpid())
    rank = add(proc, 70, agent)
    descendants = Descendants(proc)
    descendants.among([rank], ids_are_ours=True)
    (proc / str(rank) / "stat").write_text(f"{rank} (python) S 1 1")

    assert descendants.among([rank], ids_are_ours=True) == {rank}
    assert descendants.among([], ids_are_ours=True) == set()
    assert descendants.among([rank], ids_are_ours=True) == set()


def test_a_circle_of_parents_and_a_missing_process_end_the_search(proc: Path) -> None:
    """Nonsense in /proc, read while processes come and go, ends the search."""
    add(proc, 10, 11)
    add(proc, 11, 10)
    (proc / "12").mkdir()
    (proc / "12" / "stat").write_text("12 (x")

    assert Descendants(proc).among([10, 12, 13], ids_are_ours=True) == set()


def test_a_child_that_just_ends_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that ends meanwhile is not counted, and the device is still read."""
    proc = make_proc(tmp_path, CONTAINER)
    child = add(proc, 70, os.getpid(), "/dev/nvidia-uvm")
    gpu = FakeGpu(processes={"Compute": [(child, GIB)]})
    for method in ("iterdir", "readlink"):
        with monkeypatch.context() as patched:
            watched = Watched([gpu], proc)

            def ended(path: Path, real: object = getattr(Path, method)) -> object:
                if "70" in path.parts:
                    raise ProcessLookupError
                return real(path)  # type: ignore[operator]

            patched.setattr(Path, method, ended)
            values = watched(0.0)
        assert values["cuda:0/children"] == 0
        assert values["cuda:0/device_used"] == GIB


def test_in_a_container_a_child_is_one_that_has_opened_cuda(tmp_path: Path) -> None:
    """In a container, where a listed id may be another process', a child has CUDA's files open."""
    proc = make_proc(tmp_path, CONTAINER)
    child = add(proc, 70, os.getpid(), "/dev/null", "/dev/nvidia0", "/dev/nvidiactl")
    gpu = FakeGpu(used=20 * GIB, processes={"Compute": [(child, 15 * GIB)]})
    watched = Watched([gpu], proc)
    assert watched(0.0)["cuda:0/children"] == watched(0.0)["cpu/gpu_children"] == 0
    (proc / "70" / "fd" / "9").symlink_to("/dev/nvidia-uvm")
    gpu.used += 1

    assert watched(0.1)["cuda:0/children"] == 15 * GIB


def test_where_this_process_is_listed_ids_are_its_own(tmp_path: Path) -> None:
    """Where the driver lists this process, its ids are those of this namespace."""
    proc = make_proc(tmp_path, CONTAINER)
    child = add(proc, 70, os.getpid())
    listed: list[tuple[int, float | None]] = [(os.getpid(), GIB), (child, 2 * GIB)]
    gpu = FakeGpu(used=4 * GIB, processes={"Compute": listed})

    assert Watched([gpu], proc)(0.0)["cuda:0/children"] == 2 * GIB


def test_without_a_process_list_nothing_is_known_of_children(proc: Path) -> None:
    """Without a list of processes, the number and the bytes of children are NaN."""
    gpu = FakeGpu(faults={"ComputeRunningProcesses": pynvml.NVML_ERROR_NOT_SUPPORTED})
    values = Watched([gpu], proc)(0.0)

    assert math.isnan(values["cuda:0/children"])
    assert math.isnan(values["cpu/gpu_children"])


@pytest.mark.parametrize(("foreign", "expected"), [(False, 9 * GIB), (True, math.nan)])
def test_children_without_sizes_may_have_all(proc: Path, *, foreign: bool, expected: float) -> None:
    """Children without listed sizes, as on MIG, have all that is in use if nobody else is there, else NaN."""
    child = add(proc, 70, os.getpid())
    listed: list[tuple[int, float | None]] = [(child, None), *([(999, None)] if foreign else [])]
    values = Watched([FakeGpu(used=9 * GIB, processes={"Compute": listed})], proc)(0.0)

    assert values["cuda:0/children"] == pytest.approx(expected, nan_ok=True)
    assert values["cpu/gpu_children"] == 1


def test_a_lost_device_has_no_children(proc: Path) -> None:
    """The last processes of a lost device count no longer."""
    child = add(proc, 70, os.getpid())
    gpus = [
        FakeGpu(uuid=uuid, processes={"Compute": [(child, GIB)]} if uuid else {})
        for uuid in ("GPU-a", "")
    ]
    watched = Watched(gpus, proc)
    assert watched(0.0)["cpu/gpu_children"] == 1
    gpus[0].faults["all"] = pynvml.NVML_ERROR_GPU_IS_LOST

    assert watched(0.1)["cpu/gpu_children"] == 0


def test_devices_that_come_later_have_their_series(tmp_path: Path) -> None:
    """The count of children stands once, before the series of all GPUs."""
    watched = Watched(
        [FakeGpu(uuid="GPU-a"), FakeGpu(uuid="GPU-b")],
        make_proc(tmp_path, HOST_NAMESPACE),
        environ={"CUDA_VISIBLE_DEVICES": "0"},
    )
    watched(0.0)
    del watched.environ["CUDA_VISIBLE_DEVICES"]
    values = watched(0.1)

    assert len(values) == len(watched.source.series)
    assert values["cuda:1/device_used"] == 1 * GIB


MAPS = """\
00001000-00002000 r-xp 00000000 fe:00 12                                 /usr/bin/python3
00002000-00003000 rw-p 00000000 00:00 0                                  [heap]
00003000-00004000 rw-p 00000000 00:00 0
00005000-00006000 rw-p 00000000 fe:00 13                                 /tmp/a name with blanks
"""


@pytest.mark.parametrize(
    ("address", "is_file"),
    [
        *((0xFFF, False), (0x1000, True), (0x1FFF, True), (0x2000, False)),
        *((0x3800, False), (0x4800, False), (0x5FFF, True), (0x6000, False)),
    ],
)
def test_what_has_a_path_is_a_file(tmp_path: Path, address: int, *, is_file: bool) -> None:
    """An address lies in a file if its mapping names one: the heap and what has no name are none."""
    maps = tmp_path / "maps"
    maps.write_text(MAPS)

    assert MappedFiles(maps).hold(address) is is_file


def test_the_list_is_read_again(tmp_path: Path) -> None:
    """A mapping that is gone by the next count is no file's any more."""
    maps, clock = tmp_path / "maps", FakeClock()
    maps.write_text(MAPS)
    files = MappedFiles(maps, clock=clock)
    before = files.hold(0x1000)
    maps.write_text("")
    clock.advance(1)

    assert (before, files.hold(0x1000)) == (True, False)


def test_where_there_is_no_list_nothing_is_mapped(tmp_path: Path) -> None:
    """On a system without it, memory counts as it always did."""
    assert not MappedFiles(tmp_path / "none").hold(0x1000)


MACHINE = 64 * 2.0**30
LIMIT = 8 * 2**30


class Machine:
    """Invented ``/proc`` and ``/sys/fs/cgroup``."""

    def __init__(self, folder: Path) -> None:
        self.proc = folder / "proc"
        self.mount = folder / "cgroup"
        (self.proc / "self").mkdir(parents=True)
        self.mount.mkdir()

    def member(self, *lines: str) -> None:
        (self.proc / "self" / "cgroup").write_text("".join(f"{line}\n" for line in lines))

    def group(self, path: str, **files: object) -> None:
        folder = self.mount / path
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name.replace("__", ".", 1)).write_text(f"{content}\n")

    def limit(self) -> float | None:
        group = find_cgroup(self.proc, self.mount, MACHINE)
        return None if group is None else group.limit


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize(
    ("members", "groups"),
    [
        (["0::/job"], {"job": {"memory__max": LIMIT}}),
        (
            ["9:cpu:/elsewhere", "4:memory:/job", "0::/"],
            {"memory/job": {"memory__limit_in_bytes": LIMIT}},
        ),
        (
            ["0::/slice/job/step"],
            {
                "slice": {"memory__max": 2 * LIMIT},
                "slice/job": {"memory__max": LIMIT},
                "slice/job/step": {"memory__max": "max"},
            },
        ),
        (["0::/host/only/path"], {"": {"memory__max": LIMIT}}),
        (["0::/../../host"], {"": {"memory__max": LIMIT}}),
    ],
    ids=["version 2", "version 1", "the tightest upwards", "in a container", "above a container"],
)
def test_the_limit_is_that_of_the_groups(
    machine: Machine, members: list[str], groups: dict[str, dict[str, object]]
) -> None:
    """The tightest limit of a group and its parents counts, in either version, as the container mounts it."""
    machine.member(*members)
    for path, files in groups.items():
        machine.group(path, **files)

    assert machine.limit() == LIMIT


@pytest.mark.parametrize(
    "content", ["max", "", "0", "-1", str(2**63 - 4096), str(int(MACHINE)), "nonsense"]
)
def test_no_limit_is_none(machine: Machine, content: str) -> None:
    """A limit that is no number, or no less than the machine has, is none."""
    assert machine.limit() is None
    machine.member("0::/job", "4:memory:/job")
    machine.group("job", memory__max=content)
    machine.group("memory/job", memory__limit_in_bytes=content)

    assert machine.limit() is None


V2 = "anon 450\nshmem 50\ninactive_file 400\nactive_file 100\n"
V1 = (
    "inactive_file 1\nshmem 2\nswap 3\ntotal_inactive_file 400\ntotal_active_file 100\n"
    "total_shmem 50\ntotal_swap 70\n"
)
USAGE_V2 = {"memory__max": LIMIT, "memory__current": 1000, "memory__swap.current": 70}
USAGE_V1 = {"memory__limit_in_bytes": LIMIT, "memory__usage_in_bytes": 1000}


@pytest.mark.parametrize(
    ("member", "path", "usage", "stat"),
    [("0::/job", "job", USAGE_V2, V2), ("4:memory:/job", "memory/job", USAGE_V1, V1)],
)
def test_what_is_in_use_is_without_page_cache(
    machine: Machine, member: str, path: str, usage: dict[str, object], stat: str
) -> None:
    """Page cache, which the kernel gives back, is not in use; shared memory and swap are."""
    machine.member(member)
    machine.group(path, memory__stat=stat, **usage)
    group = find_cgroup(machine.proc, machine.mount, MACHINE)

    assert group is not None
    assert group.now() == (500, 500, 50, 70)
    (machine.mount / path / "memory.stat").unlink()
    assert same(group.now(), (1000, math.nan, math.nan, math.nan))


def test_a_group_may_have_less_left_than_its_limit_allows(machine: Machine) -> None:
    """Where the machine is nearly full, a group has no more left than the machine."""
    machine.member("0::/")
    machine.group("", memory__max=600 * 1024, memory__current=200 * 1024)
    sizes = "MemTotal: 1000 kB\nMemFree: 50 kB\nMemAvailable: 100 kB\nShmem: 30 kB\n"
    (machine.proc / "meminfo").write_text(sizes)

    assert LinuxMemory(machine.proc, machine.mount).machine().in_use == 500 * 1024
    machine.group("", memory__max="max")
    memory = LinuxMemory(machine.proc, machine.mount).machine()
    assert memory[:3] == (900 * 1024, 50 * 1024, 30 * 1024)
