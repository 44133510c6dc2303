"""The memory limit of a container or a batch job."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from hfmem_widget.session.model import same
from hfmem_widget.sources.procfs import LinuxMemory, find_cgroup

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
        found = find_cgroup(self.proc, self.mount, MACHINE)
        return None if found is None else found.limit


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
    """Of either version of the interface, and of the parents; a path of the host means what is mounted."""
    machine.member(*members)
    for path, files in groups.items():
        machine.group(path, **files)

    assert machine.limit() == LIMIT


@pytest.mark.parametrize(
    "content", ["max", "", "0", "-1", str(2**63 - 4096), str(int(MACHINE)), "nonsense"]
)
def test_no_limit_is_none(machine: Machine, content: str) -> None:
    """What is no number, or no less than the machine has, limits nothing; nor does one without groups."""
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
    """It is given back when memory is needed, idle or not; shared memory and swap are not."""
    machine.member(member)
    machine.group(path, memory__stat=stat, **usage)
    found = find_cgroup(machine.proc, machine.mount, MACHINE)

    assert found is not None
    assert found.now() == (500, 500, 50, 70)
    (machine.mount / path / "memory.stat").unlink()
    assert same(found.now(), (1000, math.nan, math.nan, math.nan))


def test_a_group_may_have_less_left_than_its_limit_allows(machine: Machine) -> None:
    """Where the machine itself is nearly full, no more is free than it has."""
    machine.member("0::/")
    machine.group("", memory__max=600 * 1024, memory__current=200 * 1024)
    sizes = "MemTotal: 1000 kB\nMemFree: 50 kB\nMemAvailable: 100 kB\nShmem: 30 kB\n"
    (machine.proc / "meminfo").write_text(sizes)

    assert LinuxMemory(machine.proc, machine.mount).machine().in_use == 500 * 1024
    machine.group("", memory__max="max")
    found = LinuxMemory(machine.proc, machine.mount).machine()
    assert found[:3] == (900 * 1024, 50 * 1024, 30 * 1024)
