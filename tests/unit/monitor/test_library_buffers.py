"""When buffers of libraries are counted, and what becomes of them between two counts."""

from __future__ import annotations

import torch
from torch.nn.parallel import DistributedDataParallel

from hfmem_widget.monitor.attribution import Attribution
from hfmem_widget.monitor.subjects import Subjects
from tests.unit.sources.test_libraries import FakeDdp

WEIGHTS = 64 * 48 * 4


def told(attribution: Attribution) -> dict[str, float]:
    return dict(attribution.source.counted.get("cpu", {}))


def test_a_bucket_is_gradients_while_there_are_any_and_a_buffer_when_there_are_none() -> None:
    """The reducer keeps it when the gradients, which are views of it, are dropped."""
    ddp = FakeDdp(str(WEIGHTS), is_view=True)
    attribution = Attribution(subjects=Subjects(dict))
    optimizer = torch.optim.SGD(ddp.parameters(), 0.1)
    attribution.follow(ddp, optimizer)
    attribution.at_edge("cell", begins=True)
    assert told(attribution)["libraries"] == WEIGHTS

    ddp.module.weight.grad = torch.ones(48, 64)
    attribution.optimizer_steps(optimizer)
    assert told(attribution)["gradients"] == WEIGHTS
    assert told(attribution)["libraries"] == 0

    optimizer.zero_grad()
    attribution.gradients_cleared()
    assert told(attribution)["libraries"] == WEIGHTS


def test_what_wraps_a_model_is_found_while_it_calls_it() -> None:
    """A model that a Trainer has wrapped does not know it, but torch knows whose forward pass this is."""
    ddp = FakeDdp()
    attribution = Attribution(subjects=Subjects(dict))
    attribution.follow(ddp.module)
    DistributedDataParallel._active_ddp_module = ddp
    try:
        attribution.at_edge("forward", begins=True)
    finally:
        DistributedDataParallel._active_ddp_module = None
    attribution.at_edge("train", begins=False)

    assert told(attribution)["libraries"] == 12288
