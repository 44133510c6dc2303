"""One of two ranks that wrap a model, and say what is told of the buffers: ``buffers.py FOLDER HOW``."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import hfmem_widget
from hfmem_widget.monitor.shared import read_once
from hfmem_widget.session import Sample

FOLDER, HOW = Path(sys.argv[1]), sys.argv[2]


class Net(nn.Sequential):  # type: ignore[misc]  # torch has no types for it
    """A model whose forward pass is a span of its own, as in a Trainer."""

    def forward(self, x: torch.Tensor) -> Any:
        """Apply each layer."""
        with hfmem_widget.span("forward"):
            return super().forward(x)


def parts(session: hfmem_widget.Session, sample: Sample) -> dict[str, float]:
    """Return what a sample tells."""
    names = ("weights", "gradients", "libraries", "unattributed")
    return {name: session.value(sample, f"cpu/{name}") for name in names}


def hidden() -> Callable[[], nn.Module]:
    """Return a function that returns the wrapped model: no variable of the script has it."""
    inner = Net(*[nn.Linear(500, 500) for _ in range(4)])
    if HOW.startswith("ddp"):
        model = DistributedDataParallel(inner, gradient_as_bucket_view="views" in HOW)
    else:
        for layer in inner:
            fully_shard(layer)
        model = fully_shard(inner)
    return lambda: model


dist.init_process_group("gloo")
wrapped = hidden()
model = wrapped().module if HOW == "ddp-hidden" else wrapped()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
said = {"parameters": sum(each.nbytes for each in model.parameters())}
with hfmem_widget.watch("train", quiet=True, interval=60.0) as session:
    for number in range(4):
        with hfmem_widget.span("step"):
            wrapped()(torch.ones(2, 500)).sum().backward()
            with hfmem_widget.span("optimizer"):
                optimizer.step()
            if HOW == "ddp-views-held" and number == 0:  # as NCCL's group of processes does
                held = [each.grad.detach() for each in model.parameters()]
            elif number == 2:
                held = []
            optimizer.zero_grad()
said["steps"] = [parts(session, span.before) for span in session.spans if span.kind == "step"]
said["owners"] = dict(session.contents.libraries)
if HOW.startswith("ddp"):
    buckets = wrapped().reducer._get_zeros_like_grad_buckets()
    said["buckets"] = sum(each.buffer().nbytes for each in buckets)
else:
    model.unshard()
    for layer in model:
        layer.unshard()
    gathered = read_once()
    said["gathered"] = parts(gathered, gathered.last_sample)
    said["owners"] = dict(gathered.contents.libraries)
    for layer in (*model, model):
        layer.reshard()
    sharded = read_once()
    said["sharded"] = parts(sharded, sharded.last_sample)
if dist.get_rank() == 0:
    (FOLDER / "said.json").write_text(json.dumps(said))
dist.destroy_process_group()
