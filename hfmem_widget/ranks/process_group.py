"""Hears when this process joins a group of torch.distributed: from then on it is a rank, and knows which.

DDP, FSDP, the Trainer, Accelerate, DeepSpeed and vLLM all come by ``init_process_group``. It is surrounded
once torch.distributed has been imported by others, which is never done here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hfmem_widget.display import resolve
from hfmem_widget.monitor.patch import Place

GROUPS = "torch.distributed"


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
