"""Which process of a distributed run this is, by what launchers leave in its environment, or by its group."""

import os
import re
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from hfmem_widget.display import resolve
from hfmem_widget.monitor.patch import Place
from hfmem_widget.recording.limits import MOST_RANKS
from hfmem_widget.session.rank_records import Rank
from hfmem_widget.text import plain

ALONE = "one process"
"""The engine of a process that no launcher has made a rank: it is followed alone."""

MOST_WITH_SAMPLES = 64
"""Ranks of a world in which each has its samples written every second; in a larger one their folds alone."""

WRITES_PER_SECOND = 256
"""The most writes a second of all ranks of a larger world together, for the sake of a file server."""

_NUMBER = re.compile(r"[0-9]{1,7}")
_UNSAFE = re.compile(r"[^a-z0-9.-]+")


class _Engine(NamedTuple):
    """A launcher: the variables that identify it, all of them, and those with the numbers."""

    name: str
    sets: tuple[str, ...]
    rank: str
    local: str
    world: str
    attempt: str = ""


_TORCH = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT")

ENGINES = (
    _Engine("notebook_launcher", ("NPROC", "MIXED_PRECISION", "TORCHELASTIC_RUN_ID"), *_TORCH),
    _Engine("notebook_launcher", ("FORK_LAUNCHED",), *_TORCH),
    _Engine("Ray Train", ("RAY_JOB_ID",), *_TORCH),
    _Engine("Ray Train", ("RAY_RAYLET_PID",), *_TORCH),
    _Engine("accelerate launch", ("ACCELERATE_MIXED_PRECISION",), *_TORCH),
    _Engine("torchrun", ("TORCHELASTIC_RUN_ID",), *_TORCH),
    _Engine("DeepSpeed", ("CROSS_RANK",), *_TORCH),
    _Engine(
        "Open MPI", ("OMPI_COMM_WORLD_RANK",),
        "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE",
    ),
    _Engine("MPI", ("PMI_RANK",), "PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE"),
    _Engine("MPI", ("PMIX_RANK",), "PMIX_RANK", "PMIX_LOCAL_RANK", "PMIX_SIZE"),
    _Engine(
        "Slurm", ("SLURM_PROCID",),
        "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_RESTART_COUNT",
    ),
    _Engine("torch.distributed", ("RANK",), *_TORCH),
)  # fmt: skip
"""The first that matches counts: launchers that start others, such as Slurm, come after these."""


def rank_of_process(
    environ: Mapping[str, str], in_group: tuple[int, int] | None = None
) -> Rank | None:
    """Return the rank of this process; None if its environment names none.

    Variables that make no sense are ignored. `in_group` is the rank and the world size that
    torch.distributed knows.
    """
    host, pid = this_host(), os.getpid()
    for engine in ENGINES:
        if not all(name in environ for name in engine.sets):
            continue
        rank, world = _number(environ, engine.rank), _number(environ, engine.world)
        if rank is None or world is None or (in_group is None and rank >= world):
            continue
        rank, world = in_group or (rank, world)
        local, attempt = _number(environ, engine.local), _number(environ, engine.attempt) or 0
        within = rank if local is None else local
        return Rank(rank, within, world, attempt, host, pid, engine.name)
    if in_group is None:
        return None
    return Rank(in_group[0], in_group[0], in_group[1], 0, host, pid, "torch.distributed")


def only_rank() -> Rank:
    """Return the rank of a process that is the only one of its run."""
    return Rank(0, 0, 1, 0, this_host(), os.getpid(), ALONE)


def this_host() -> str:
    """Return the host on which this process runs."""
    return plain(socket.gethostname(), 64)


def seconds_between_writes(world: int) -> float:
    """Return the seconds between two writes of a rank: the most that is lost if its process is killed."""
    return max(1.0, world / WRITES_PER_SECOND)


def runs_here(rank: Rank) -> bool:
    """Return whether the process of a rank of this host runs: a zombie does not."""
    import psutil

    try:
        return rank.pid > 0 and psutil.Process(rank.pid).status() != psutil.STATUS_ZOMBIE
    except psutil.AccessDenied:
        return True
    except (psutil.NoSuchProcess, OverflowError):
        return False


def safe_host(host: str) -> str:
    """Return a host as it may stand in the name of a file: at most 32 letters of ``[a-z0-9.-]``."""
    return _UNSAFE.sub("-", host.lower()).strip(".-")[:32] or "host"


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "").strip()
    number = int(text) if _NUMBER.fullmatch(text) else MOST_RANKS + 1
    return number if number <= MOST_RANKS else None


GROUPS = "torch.distributed"
"""Never imported here. DDP, FSDP, the Trainer, Accelerate, DeepSpeed and vLLM all come by its
``init_process_group``."""


def rank_in_group() -> tuple[int, int] | None:
    """Return the rank and the world that torch.distributed knows; None where it is not up."""
    distributed: Any = sys.modules.get(GROUPS)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return int(distributed.get_rank()), int(distributed.get_world_size())


@contextmanager
def _joining(*_: object) -> Iterator[None]:
    yield
    resolve("hfmem_widget.drivers.follow:joined")()


PLACES = tuple(
    Place(home, "", "init_process_group", _joining)
    for home in (f"{GROUPS}.distributed_c10d", GROUPS)
)
"""The second home takes it from the first."""
