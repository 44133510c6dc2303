"""The memory limit of this process' control group, which is a container's or a batch job's machine.

Both versions of the interface, as the kernel documents them: admin-guide/cgroup-v2 and cgroup-v1/memory.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import NamedTuple

from hfmem_widget.session.model import NOT_AVAILABLE


class _Version(NamedTuple):
    limit: str
    usage: str
    idle_cache: str


_V1 = _Version("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = _Version("memory.max", "memory.current", "inactive_file")


class Cgroup(NamedTuple):
    """The group whose limit binds this process first: the bytes that its processes may use together."""

    folder: Path
    limit: float
    version: _Version

    def in_use(self) -> float:
        """Return the bytes it uses without idle file cache, which goes first; NaN if unknown."""
        usage = _number(self.folder / self.version.usage)
        try:
            stat = "\n" + _text(self.folder / "memory.stat")
            _, found, rest = stat.partition(f"\n{self.version.idle_cache} ")
            return max(usage - float(rest.partition("\n")[0]), 0.0) if found else usage
        except (OSError, ValueError):
            return usage


def find_cgroup(proc: Path, mount: Path, machine_total: float) -> Cgroup | None:
    """Return the tightest limit from this process' group upwards; None where nothing limits it.

    A limit that is not below the machine's memory (in bytes) limits nothing: v1 says "no limit" in this way.
    `proc` and `mount` are where ``/proc`` and ``/sys/fs/cgroup`` are.
    """
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return None
    found = []
    for line in lines:
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if hierarchy == "0":
            root, version = mount, _V2
        elif "memory" in controllers.split(","):
            root, version = mount / "memory", _V1
        else:
            continue
        # In a container the path may be the host's, or begin with "/.."; the root then is our own group.
        parts = [part for part in PurePosixPath(path).parts if part not in {"/", ".."}]
        for depth in range(len(parts), -1, -1):
            folder = root.joinpath(*parts[:depth])
            limit = _number(folder / version.limit)
            if 0 < limit < machine_total:
                found.append(Cgroup(folder, limit, version))
    return min(found, key=lambda group: group.limit, default=None)


def _text(path: Path) -> str:
    # `Path.read_text` takes longer than the reading itself, and this is read while a model trains.
    with path.open("rb", buffering=0) as file:
        return file.read().decode()


def _number(path: Path) -> float:
    try:
        return float(_text(path))
    except (OSError, ValueError):  # "max" is no number: no limit
        return NOT_AVAILABLE
