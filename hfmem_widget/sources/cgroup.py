"""The memory limit of this process' control group, which a container or a batch job has for a machine.

Both versions of the interface, as the kernel documents them: admin-guide/cgroup-v2 and cgroup-v1/memory.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import NamedTuple

from hfmem_widget.session.model import NOT_AVAILABLE


class _Version(NamedTuple):
    limit: str
    usage: str
    prefix: str  # of the fields of ``memory.stat`` that include the groups below


_V1 = _Version("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
_V2 = _Version("memory.max", "memory.current", "")


class Machine(NamedTuple):
    """The memory of a machine, or of a control group that limits it; bytes, NaN if unknown.

    `in_use` is without `page_cache`, which the kernel frees when memory is needed, and with `shared`, which
    it cannot free: ``/dev/shm``, tmpfs, segments of shared memory.
    """

    in_use: float
    page_cache: float = NOT_AVAILABLE
    shared: float = NOT_AVAILABLE
    swap: float = NOT_AVAILABLE


class Pool(NamedTuple):
    """The machine's memory if CPU and GPU share it, in bytes; `in_use` is without page cache.

    `own` is this process' memory without its GPU memory; if `is_all` with it, as on macOS. A group's limit
    does not include CUDA's memory: 12 GiB added 0.4 to ``memory.current`` (model-serving-minefield#57).
    """

    total: float
    in_use: float
    own: float
    is_all: bool = False


class Cgroup(NamedTuple):
    """The group whose limit binds this process first: the bytes that its processes may use together."""

    folder: Path
    limit: float
    version: _Version

    def now(self) -> Machine:
        """Return its memory now; all file cache counts as page cache, as in the kernel's MemAvailable."""
        usage = _number(self.folder / self.version.usage)
        try:
            lines = _text(self.folder / "memory.stat").splitlines()
            stat = {name: value for name, _, value in (line.partition(" ") for line in lines)}
            idle, active, shared = (
                float(stat.get(f"{self.version.prefix}{name}", 0))
                for name in ("inactive_file", "active_file", "shmem")
            )
        except (OSError, ValueError):
            return Machine(usage)
        # Version 1 reports swap in the same file, where the kernel counts it.
        swap = stat.get("total_swap") or _number(self.folder / "memory.swap.current")
        return Machine(max(usage - idle - active, 0.0), idle + active, shared, float(swap))


def find_cgroup(proc: Path, mount: Path, machine_total: float) -> Cgroup | None:
    """Return the tightest limit from this process' group upwards; None where nothing limits it.

    A limit that is not below the machine's memory (in bytes) limits nothing: v1 says "no limit" in this way.
    `proc` and `mount` are where ``/proc`` and ``/sys/fs/cgroup`` are.
    """
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return None
    limited = []
    for line in lines:
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if hierarchy == "0":
            root, version = mount, _V2
        elif "memory" in controllers.split(","):
            root, version = mount / "memory", _V1
        else:
            continue
        # In a container the path may be the host's, or begin with "/.."; then the root is our own group.
        parts = [part for part in PurePosixPath(path).parts if part not in {"/", ".."}]
        for depth in range(len(parts), -1, -1):
            folder = root.joinpath(*parts[:depth])
            limit = _number(folder / version.limit)
            if 0 < limit < machine_total:
                limited.append(Cgroup(folder, limit, version))
    return min(limited, key=lambda group: group.limit, default=None)


def _text(path: Path) -> str:
    # `Path.read_text` takes longer than the reading itself, and this runs while a model trains.
    with path.open("rb", buffering=0) as file:
        return file.read().decode()


def _number(path: Path) -> float:
    try:
        return float(_text(path))
    except (OSError, ValueError):  # "max" is not a number: no limit
        return NOT_AVAILABLE
