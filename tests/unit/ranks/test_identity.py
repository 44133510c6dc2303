"""Who a process is in a distributed run: launchers' variables, and what makes no sense in them."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfmem_widget.drivers import follow, install
from hfmem_widget.monitor.patch import restore_all, surround_all
from hfmem_widget.ranks.identity import (
    ENGINES,
    PLACES,
    rank_in_group,
    rank_of_process,
    runs_here,
    safe_host,
    this_host,
)
from hfmem_widget.session.rank_records import Rank

HERE = this_host(), os.getpid()

TORCH = {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}
SLURM = {"SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NTASKS": "8"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
OPEN_MPI["OMPI_COMM_WORLD_SIZE"] = "8"
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
def test_launchers_are_recognised(engine: str, attempt: int, environ: Mapping[str, str]) -> None:
    """Rank 5 of 8, the second on its host, is recognised whoever has started it."""
    assert rank_of_process(environ) == Rank(5, 1, 8, attempt, *HERE, engine)


def test_every_launcher_has_a_row_here() -> None:
    """Each launcher that the package knows is tried."""
    assert {engine.name for engine in ENGINES} == {row[0] for row in KNOWN}


def test_a_process_without_a_launcher_is_no_rank() -> None:
    """A kernel and a script in a terminal have no launcher."""
    assert rank_of_process({"PATH": "/bin", "WORLD_SIZE": "8"}) is None


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
@pytest.mark.parametrize(
    "number", ["", "-1", "x", "1.5", "1_0", "\u0663", "9" * 5000, "1048577", "8", "\0"]
)
def test_a_rank_that_makes_no_sense_is_none(engine: Any, number: str) -> None:
    """A negative, huge or invalid number, or one beyond the world, is no rank."""
    environ = {**dict.fromkeys(engine.sets, "1"), engine.rank: number, engine.world: "8"}

    assert rank_of_process(environ) is None


@pytest.mark.parametrize("number", ["", "-1", "x", "9" * 20])
def test_what_else_makes_no_sense_is_passed_over(number: str) -> None:
    """A bad number on the host is replaced by the rank, a bad count of restarts by zero."""
    environ = ELASTIC | {"LOCAL_RANK": number, "TORCHELASTIC_RESTART_COUNT": number}

    assert rank_of_process(environ) == Rank(5, 5, 8, 0, *HERE, "torchrun")


def test_torch_is_believed_before_the_environment() -> None:
    """Slurm's variables may be those of a job step of one task; the group knows better."""
    stale = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_LOCALID": "0"}

    assert rank_of_process(stale, (3, 4)) == Rank(3, 0, 4, 0, *HERE, "Slurm")
    assert rank_of_process({}, (3, 4)) == Rank(3, 3, 4, 0, *HERE, "torch.distributed")


@given(
    st.dictionaries(
        st.sampled_from([name for row in ENGINES for name in row[2:]]),
        st.text("-0189x\u0663", max_size=8),
    )
)
def test_no_environment_raises(environ: dict[str, str]) -> None:
    """Any environment gives a rank within its world, or none."""
    rank = rank_of_process({**environ, "RANK": "0"})

    assert rank is None or 0 <= rank.rank < rank.world


@pytest.mark.parametrize(
    ("host", "expected"),
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
def test_hosts_are_safe_in_names_of_files(host: str, expected: str) -> None:
    """A name has letters, digits, dots and hyphens, 32 at most, and does not lead out of the folder."""
    assert safe_host(host) == expected


def test_a_process_of_this_host_runs_until_it_has_ended() -> None:
    """A process that has ended and was not waited for runs no more."""
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


@pytest.fixture
def distributed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return what stands for torch.distributed, whose function is in two modules."""

    def init_process_group(backend: str = "") -> str:
        if backend == "bad":
            raise ValueError(backend)
        return "joined"

    group, home = ModuleType("torch.distributed"), ModuleType("torch.distributed.distributed_c10d")
    for module in (group, home):
        vars(module)["init_process_group"] = init_process_group
        monkeypatch.setitem(sys.modules, module.__name__, module)
    vars(group).update(home=home, is_available=lambda: True, is_initialized=lambda: True)
    vars(group).update(get_rank=lambda: 1, get_world_size=lambda: 2)
    yield group
    restore_all(PLACES)


@pytest.fixture
def joins(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets an entry for each time that a group was joined."""
    calls: list[str] = []
    monkeypatch.setattr(follow, "joined", lambda: calls.append("joined"))
    return calls


def test_joining_is_noticed_through_either_module(distributed: Any, joins: list[str]) -> None:
    """Each call is noticed once, in torch.distributed and in its own module, with its result or error."""
    surround_all(PLACES)
    surround_all(PLACES)
    with pytest.raises(ValueError, match="bad"):
        distributed.init_process_group("bad")
    assert joins == []

    assert distributed.init_process_group() == "joined"
    assert distributed.home.init_process_group("gloo") == "joined"
    assert len(joins) == 2


def test_the_extension_hears_of_it_and_leaves_it(distributed: Any) -> None:
    """What ``%load_ext`` has surrounded, ``%unload_ext`` restores."""
    original = distributed.init_process_group
    install.detach()
    install.attach()
    assert original not in (distributed.init_process_group, distributed.home.init_process_group)
    install.detach()

    assert distributed.init_process_group is distributed.home.init_process_group is original


def test_what_is_imported_later_is_heard_too(tmp_path: Path) -> None:
    """Before that nothing of torch is loaded; it is laid out as torch's own."""
    group = tmp_path / "torch" / "distributed"
    group.mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").touch()
    (group / "distributed_c10d.py").write_text("def init_process_group(): pass\n")
    (group / "__init__.py").write_text("from .distributed_c10d import init_process_group\n")
    code = (
        "import sys; from hfmem_widget.drivers.install import attach, detach; attach(); attach()\n"
        "assert not any(name.startswith('torch') for name in sys.modules)\n"
        "import torch, torch.distributed as d, torch.distributed.distributed_c10d as home\n"
        "assert d.init_process_group.__wrapped__ is home.init_process_group.__wrapped__\n"
        "detach(); assert d.init_process_group is home.init_process_group"
    )
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    run = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": paths},
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("up", [True, False])
def test_a_group_has_the_rank(distributed: Any, up: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group has rank and world once it is up; before that, and without torch, there is none."""
    monkeypatch.setattr(distributed, "is_initialized", lambda: up)

    assert rank_in_group() == ((1, 2) if up else None)
    monkeypatch.delitem(sys.modules, "torch.distributed")
    assert rank_in_group() is None
