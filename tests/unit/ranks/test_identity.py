"""Who a process is in a distributed run: launchers' variables, and what makes no sense in them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfmem_widget.ranks.identity import ENGINES, rank_of_process, runs_here, safe_host
from hfmem_widget.session.rank_records import Rank

TORCH = {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}
SLURM = {"SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NTASKS": "8"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "8",
}
HYDRA = {"PMI_RANK": "5", "MPI_LOCALRANKID": "1", "PMI_SIZE": "8"}
PMIX = {"PMIX_RANK": "5", "PMIX_LOCAL_RANK": "1", "PMIX_SIZE": "8"}
ELASTIC = TORCH | {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "2"}

KNOWN: tuple[tuple[str, int, Mapping[str, str]], ...] = (
    ("torchrun", 2, ELASTIC),
    ("torchrun", 2, ELASTIC | {"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}),
    ("torchrun", 2, ELASTIC | {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}),
    ("accelerate launch", 2, ELASTIC | {"ACCELERATE_MIXED_PRECISION": "no"}),
    ("notebook_launcher", 2, ELASTIC | {"NPROC": "8", "MIXED_PRECISION": "no"}),
    ("notebook_launcher", 0, TORCH | {"FORK_LAUNCHED": "1"}),
    ("DeepSpeed", 0, TORCH | {"CROSS_RANK": "0", "CROSS_SIZE": "2", "LOCAL_SIZE": "4"}),
    ("Ray Train", 0, TORCH | {"RAY_JOB_ID": "01000000"}),
    ("Slurm", 0, SLURM),
    ("Slurm", 1, SLURM | {"SLURM_RESTART_COUNT": "1"}),
    ("Slurm", 0, SLURM | TORCH),
    ("Slurm", 0, SLURM | {"PMIX_RANK": "5"}),
    ("Open MPI", 0, OPEN_MPI),
    ("Open MPI", 0, OPEN_MPI | PMIX),
    ("MPI", 0, HYDRA),
    ("MPI", 0, PMIX),
    ("torch.distributed", 0, TORCH),
)


@pytest.mark.parametrize(
    ("engine", "attempt", "environ"), KNOWN, ids=[f"{row[0]} {n}" for n, row in enumerate(KNOWN)]
)
def test_every_launcher_is_known_by_what_it_sets(
    engine: str, attempt: int, environ: Mapping[str, str]
) -> None:
    """Rank 5 of 8, the second on its host, whoever has started it."""
    rank = rank_of_process(environ, host="node0001", pid=4711)

    assert rank == Rank(5, 1, 8, attempt, "node0001", 4711, engine)


def test_every_launcher_has_a_row_here() -> None:
    """None of the table goes untried."""
    assert {engine.name for engine in ENGINES} == {row[0] for row in KNOWN}


def test_a_process_without_a_launcher_is_no_rank() -> None:
    """A kernel, a script in a terminal."""
    assert rank_of_process({"PATH": "/bin", "WORLD_SIZE": "8"}) is None


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
@pytest.mark.parametrize(
    "bad", ["", "-1", "x", "1.5", "1_0", "\u0663", "9" * 5000, "1048577", "8", "\0"]
)
def test_a_rank_that_makes_no_sense_is_none(engine: Any, bad: str) -> None:
    """Negative, huge, no number, or beyond the world."""
    environ = {**dict.fromkeys(engine.sets, "1"), engine.rank: bad, engine.world: "8"}

    assert rank_of_process(environ) is None


@pytest.mark.parametrize("bad", ["", "-1", "x", "9" * 20])
def test_what_else_makes_no_sense_is_passed_over(bad: str) -> None:
    """Without a number on its host it has its own, without a count of restarts there were none."""
    environ = ELASTIC | {"LOCAL_RANK": bad, "TORCHELASTIC_RESTART_COUNT": bad}

    assert rank_of_process(environ, host="h", pid=1) == Rank(5, 5, 8, 0, "h", 1, "torchrun")


def test_torch_is_believed_before_the_environment() -> None:
    """What Slurm's variables say of a job step of one task is not what the group has."""
    stale = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_LOCALID": "0"}

    assert rank_of_process(stale, (3, 4), host="h", pid=1) == Rank(3, 0, 4, 0, "h", 1, "Slurm")
    assert rank_of_process({}, (3, 4), host="h", pid=1) == Rank(
        3, 3, 4, 0, "h", 1, "torch.distributed"
    )


@given(
    st.dictionaries(
        st.sampled_from([name for row in ENGINES for name in row[2:]]),
        st.text("-0189x\u0663", max_size=8),
    )
)
def test_no_environment_raises(environ: dict[str, str]) -> None:
    """Whatever the variables say, it is a rank within its world or none."""
    rank = rank_of_process({**environ, "RANK": "0"}, host="h", pid=1)

    assert rank is None or 0 <= rank.rank < rank.world


@pytest.mark.parametrize(
    ("host", "safe"),
    [
        ("node0001", "node0001"),
        ("GPU-Box.Example.ORG", "gpu-box.example.org"),
        ("../../etc/passwd", "etc-passwd"),
        ("", "host"),
        ("...", "host"),
        ("a" * 64, "a" * 32),
        ("b\u00fcro \0x", "b-ro-x"),
    ],
)
def test_hosts_are_safe_in_names_of_files(host: str, safe: str) -> None:
    """Letters, digits, dots and hyphens, 32 at most, and none that leads out of the folder."""
    assert safe_host(host) == safe


def test_a_process_of_this_host_runs_until_it_has_ended() -> None:
    """One that has ended and was not waited for runs no more."""
    here = rank_of_process({"RANK": "0", "WORLD_SIZE": "1"})
    assert here is not None
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        other = replace(here, pid=child.pid)
        assert runs_here(here)
        assert runs_here(other)
        os.kill(child.pid, signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not runs_here(other)

    assert not runs_here(other)
    assert not runs_here(replace(here, pid=0))
