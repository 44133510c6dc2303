"""Two ranks that wrap models; the first writes figures of their buffers: ``buffers.py FOLDER PORT HOW ...``.

A Trainer comes first, which makes the group of processes and wraps its model by itself.
"""

import gc
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from transformers import Trainer, TrainingArguments

import hfmem_widget
from hfmem_widget.monitor.shared import read_once
from hfmem_widget.session import Sample


class WithLoss(nn.Module):  # type: ignore[misc]  # torch has no types for it
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (self.layer(x) - labels).square().mean()}


class Net(nn.Sequential):  # type: ignore[misc]  # torch has no types for it
    """A model whose forward pass is a span of its own, as in a Trainer."""

    def forward(self, x: torch.Tensor) -> Any:
        with hfmem_widget.span("forward"):
            return super().forward(x)


def parts(session: hfmem_widget.Session, sample: Sample) -> dict[str, float]:
    names = ("weights", "gradients", "libraries", "unattributed")
    return {name: session.value(sample, f"cpu/{name}") for name in names}


def hidden(how: str) -> Callable[[], nn.Module]:
    """Return a function that returns the wrapped model: no variable of the script has it."""
    inner = Net(*[nn.Linear(1500, 1500) for _ in range(4)])
    if how.startswith("ddp"):
        model = DistributedDataParallel(inner, gradient_as_bucket_view="views" in how)
    else:
        for layer in inner:
            fully_shard(layer)
        model = fully_shard(inner)
    return lambda: model


def fsdp_figures(model: nn.Module) -> dict[str, Any]:
    """Return the figures while the parameters are gathered, and once they no longer are."""
    model.unshard()
    for layer in model:
        layer.unshard()
    gathered = read_once()
    figures = {"gathered": parts(gathered, gathered.last_sample)}
    for layer in (*model, model):
        layer.reshard()
    sharded = read_once()
    owners = dict(gathered.contents.libraries)
    return {**figures, "sharded": parts(sharded, sharded.last_sample), "owners": owners}


def trainer_figures(folder: str) -> dict[str, Any]:
    """Train with a Trainer, and return the figures of the model that it has wrapped."""
    rows = [{"x": torch.ones(64), "labels": torch.zeros(64)}] * 16
    arguments = TrainingArguments(
        folder, max_steps=3, use_cpu=True, ddp_backend="gloo", report_to=[], save_strategy="no",
        disable_tqdm=True, remove_unused_columns=False,
    )  # fmt: skip
    trainer = Trainer(WithLoss(), arguments, train_dataset=rows)
    with hfmem_widget.watch("train", quiet=True, interval=60.0) as session:
        trainer.train()
    steps = [each.before for each in session.spans if each.kind == "step"]
    forecast = hfmem_widget.fit(session).forecast
    return {
        "forecast": [forecast.setting.shards, forecast.full("libraries")],
        "recorded": session.recipe.get("refused", ""),
        "parameters": sum(each.nbytes for each in trainer.model.parameters()),
        "libraries": [session.value(sample, "cpu/libraries") for sample in steps],
        "models": list(session.contents.modules),
    }


folder, port, *ways = sys.argv[1:]
gc.freeze()
second = os.fork()  # both have what takes long to import
rank = "0" if second else "1"
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
os.environ |= {"RANK": rank, "LOCAL_RANK": rank}
report = {"trainer": trainer_figures(folder)}
gc.collect()  # a wrapped model is in a circle, and would be there for the next one
# The models are variables of the script, where they are found before their first step.
for how in ways:
    wrapped = hidden(how)
    model = wrapped().module if how == "ddp-hidden" else wrapped()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    sizes: dict[str, Any] = {"parameters": sum(each.nbytes for each in model.parameters())}
    with hfmem_widget.watch("train", quiet=True, interval=60.0) as session:
        for number in range(4):
            gc.collect()  # what a step has left in circles would go at any instant
            with hfmem_widget.span("step"):
                wrapped()(torch.ones(2, 1500)).sum().backward()
                with hfmem_widget.span("optimizer"):
                    optimizer.step()
                if how == "ddp-views-held" and number == 0:  # as NCCL's group of processes does
                    held = [each.grad.detach() for each in model.parameters()]
                elif number == 2:
                    held = []
                optimizer.zero_grad()
    sizes["steps"] = [parts(session, span.before) for span in session.spans if span.kind == "step"]
    if how.startswith("ddp"):
        sizes["owners"] = dict(session.contents.libraries)
        buckets = wrapped().reducer._get_zeros_like_grad_buckets()
        sizes["buckets"] = sum(each.buffer().nbytes for each in buckets)
        del buckets
    else:
        sizes |= fsdp_figures(model)
    report[how] = sizes
    del wrapped, model, optimizer
    gc.collect()
dist.destroy_process_group()
if second:
    assert os.waitpid(second, 0)[1] == 0
    (Path(folder) / "report.json").write_text(json.dumps(report))
