"""A limit on what this process may map."""

from __future__ import annotations

import math
import os
import resource
from pathlib import Path

import pytest

from hfmem_widget.sources.procfs import address_space


def test_no_limit_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody set one, neither figure is known."""
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (resource.RLIM_INFINITY,) * 2)
    assert all(map(math.isnan, address_space()[:2]))


def set_limits(monkeypatch: pytest.MonkeyPatch, **limits: int) -> None:
    """Set some limits; of the others there are none."""
    kinds = {getattr(resource, name): limit for name, limit in limits.items()}
    monkeypatch.setattr(
        resource, "getrlimit", lambda kind: (kinds.get(kind, resource.RLIM_INFINITY), -1)
    )


def set_pages(proc: Path) -> Path:
    """Say how many pages the process has."""
    (proc / "self").mkdir()
    (proc / "self" / "statm").write_text("1000 10 5 1 0 9 0\n")
    return proc


def test_a_limit_and_what_is_mapped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The limit is the one that holds now; what is mapped is the kernel's count of pages."""
    set_limits(monkeypatch, RLIMIT_AS=8 << 30)
    mapped = 1000 * os.sysconf("SC_PAGE_SIZE")
    assert address_space(set_pages(tmp_path)) == (8 << 30, mapped, "ulimit -v")


def test_of_two_limits_the_nearest_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A limit on data counts what the process has of its own, not what it maps of files."""
    set_limits(monkeypatch, RLIMIT_AS=8 << 30, RLIMIT_DATA=1 << 20)
    own = 9 * os.sysconf("SC_PAGE_SIZE")
    assert address_space(set_pages(tmp_path)) == (1 << 20, own, "ulimit -d")


def test_what_is_mapped_may_be_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without ``/proc`` the limit alone is told."""
    set_limits(monkeypatch, RLIMIT_AS=8 << 30)
    limit, mapped, _ = address_space(tmp_path)
    assert limit == 8 << 30
    assert math.isnan(mapped)
