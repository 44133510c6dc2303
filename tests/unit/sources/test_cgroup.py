"""The memory limit of a container or a batch job."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from hfmem_widget.session.model import same
from hfmem_widget.sources.cgroup import find_cgroup

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


def test_the_limit_of_version_2(machine: Machine) -> None:
    """`memory.max` of the own group counts."""
    machine.member("0::/job")
    machine.group("job", memory__max=LIMIT)

    assert machine.limit() == LIMIT


def test_the_limit_of_version_1(machine: Machine) -> None:
    """`memory.limit_in_bytes` of the memory controller's group counts."""
    machine.member("9:cpu:/elsewhere", "4:memory:/job", "0::/")
    machine.group("memory/job", memory__limit_in_bytes=LIMIT)

    assert machine.limit() == LIMIT


def test_the_tightest_limit_upwards(machine: Machine) -> None:
    """A parent's limit binds its children too."""
    machine.member("0::/slice/job/step")
    machine.group("slice", memory__max=2 * LIMIT)
    machine.group("slice/job", memory__max=LIMIT)
    machine.group("slice/job/step", memory__max="max")

    assert machine.limit() == LIMIT


@pytest.mark.parametrize("path", ["/host/only/path", "/../../host"])
def test_a_path_of_the_host_means_the_mount(machine: Machine, path: str) -> None:
    """In a container that names the host's path, the mounted folder is the own group."""
    machine.member(f"0::{path}")
    machine.group("", memory__max=LIMIT)

    assert machine.limit() == LIMIT


@pytest.mark.parametrize(
    "content", ["max", "", "0", "-1", str(2**63 - 4096), str(int(MACHINE)), "nonsense"]
)
def test_no_limit_is_none(machine: Machine, content: str) -> None:
    """What is no number, or no less than the machine has, limits nothing."""
    machine.member("0::/job", "4:memory:/job")
    machine.group("job", memory__max=content)
    machine.group("memory/job", memory__limit_in_bytes=content)

    assert machine.limit() is None


def test_no_groups_at_all(machine: Machine) -> None:
    """A system without control groups has no limit."""
    assert machine.limit() is None


def test_what_is_in_use_is_without_page_cache(machine: Machine) -> None:
    """File cache is given back when memory is needed, whether idle or not; shared memory and swap are not."""
    machine.member("0::/job")
    stat = "anon 450\nshmem 50\ninactive_file 400\nactive_file 100\n"
    usage = {"memory__max": LIMIT, "memory__current": 1000, "memory__swap.current": 70}
    machine.group("job", memory__stat=stat, **usage)
    found = find_cgroup(machine.proc, machine.mount, MACHINE)

    assert found is not None
    assert found.now() == (500, 500, 50, 70)
    (machine.mount / "job" / "memory.stat").unlink()
    assert same(found.now(), (1000, math.nan, math.nan, math.nan))


def test_version_1_counts_the_groups_below_too(machine: Machine) -> None:
    """Its fields of that name begin with `total_`, as does its swap, where the kernel counts it."""
    machine.member("4:memory:/job")
    total = "total_inactive_file 400\ntotal_active_file 100\ntotal_shmem 50\ntotal_swap 70\n"
    usage = {"memory__limit_in_bytes": LIMIT, "memory__usage_in_bytes": 1000}
    machine.group("memory/job", memory__stat=f"inactive_file 1\nshmem 2\nswap 3\n{total}", **usage)
    found = find_cgroup(machine.proc, machine.mount, MACHINE)

    assert found is not None
    assert found.now() == (500, 500, 50, 70)
