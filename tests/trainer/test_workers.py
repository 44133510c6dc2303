"""The workers of a real DataLoader, as a watch sees them."""

from __future__ import annotations

import sys
import time

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import hfmem_widget
from hfmem_widget.session import Session
from hfmem_widget.text import MIB

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

EACH = 100 * MIB
PATIENCE = 240.0


class Hoard(Dataset):  # type: ignore[misc]  # torch is not checked here
    """Samples of a data set of which each worker keeps so many bytes for itself."""

    def __init__(self) -> None:
        self.own: torch.Tensor | None = None

    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.own is None:
            self.own = torch.ones(int(EACH), dtype=torch.uint8)
        return torch.full((1000,), index)


def latest(session: Session, metric: str) -> float:
    """Return the newest value of the host; its series are there once there is a child."""
    return session.value(session.last_sample, f"cpu/{metric}")


def wait_for_workers(session: Session, loader: DataLoader[torch.Tensor], count: int) -> None:
    """Read batches until so many workers have been counted with all that they hold."""
    until = time.monotonic() + PATIENCE
    for _ in loader:
        held, workers = latest(session, "children"), latest(session, "data_workers")
        if workers == count and held >= count * EACH:
            return
        assert time.monotonic() < until, [held, workers]


def test_the_workers_of_a_data_loader_are_counted() -> None:
    """How many there are, and what each has of its own; not what they share with this process."""
    shared = torch.ones(int(4 * EACH), dtype=torch.uint8)
    loader = DataLoader(Hoard(), batch_size=8, num_workers=2)
    with hfmem_widget.watch(quiet=True) as session:
        wait_for_workers(session, loader, 2)
        anatomy = session.anatomy(device="cpu")
        del loader
    held = session.peak("cpu/children")

    assert 2 * EACH <= held < 2 * EACH + shared.nbytes * 2 / 3 + 2 * 500 * MIB
    assert session.peak("cpu/data_workers") == 2
    (part,) = (part for part in anatomy.parts if part.name == "children")
    assert "2 DataLoader workers" in part.note
    assert not session.polling.stopped


def test_a_loader_without_workers_has_none() -> None:
    """Nothing is counted that is not there."""
    with hfmem_widget.watch(quiet=True) as session:
        for _ in zip(range(50), DataLoader(Hoard()), strict=False):
            pass

    assert not latest(session, "data_workers") > 0
