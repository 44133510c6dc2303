"""Joining a group of torch.distributed is heard of, and torch.distributed is never imported for it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hfmem_widget.drivers import follow, install
from hfmem_widget.monitor.patch import restore_all, surround_all
from hfmem_widget.ranks.identity import PLACES, rank_in_group


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
    heard: list[str] = []
    monkeypatch.setattr(follow, "joined", lambda: heard.append("joined"))
    return heard


def test_joining_is_heard_wherever_the_function_was_taken_from(
    distributed: Any, joins: list[str]
) -> None:
    """Of torch.distributed and of its own module; once for each call, with its result unchanged."""
    surround_all(PLACES)
    surround_all(PLACES)

    assert distributed.init_process_group() == "joined"
    assert distributed.home.init_process_group("gloo") == "joined"
    assert len(joins) == 2


def test_a_group_that_could_not_be_joined_is_none(distributed: Any, joins: list[str]) -> None:
    """The error is the user's, and nothing begins."""
    surround_all(PLACES)

    with pytest.raises(ValueError, match="bad"):
        distributed.init_process_group("bad")
    assert joins == []


def test_the_original_is_put_back(distributed: Any, joins: list[str]) -> None:
    """In both modules."""
    original = distributed.init_process_group
    surround_all(PLACES)
    assert distributed.init_process_group is not original
    restore_all(PLACES)

    assert distributed.init_process_group is distributed.home.init_process_group is original
    assert joins == []


def test_the_extension_hears_of_it_and_leaves_it(distributed: Any) -> None:
    """What ``%load_ext`` has surrounded, ``%unload_ext`` restores."""
    original = distributed.init_process_group
    install.detach()
    install.attach()
    assert distributed.init_process_group is not original
    install.detach()

    assert distributed.init_process_group is original


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
def test_the_truth_is_that_of_the_group(
    distributed: Any, up: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank and world once it is up; before that, and without torch, none."""
    monkeypatch.setattr(distributed, "is_initialized", lambda: up)

    assert rank_in_group() == ((1, 2) if up else None)
    monkeypatch.delitem(sys.modules, "torch.distributed")
    assert rank_in_group() is None
