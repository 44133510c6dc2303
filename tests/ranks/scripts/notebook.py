"""What a cell does with notebook_launcher, in a process that watches."""

import json
import os
import sys

import torch
import torch._dynamo  # which an optimizer would import, in each rank
from accelerate import Accelerator, notebook_launcher

import hfmem_widget


def train() -> None:
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters())
    model, optimizer = accelerator.prepare(model, optimizer)
    for _ in range(4):
        with hfmem_widget.span("step"):
            optimizer.zero_grad()
            model(torch.ones(2, 64)).sum().backward()
            optimizer.step()


if __name__ == "__main__":
    before = dict(os.environ)
    with hfmem_widget.watch("cell", quiet=True, ranks=sys.argv[1]) as session:
        notebook_launcher(train, num_processes=2, use_port=sys.argv[2])
    same = {name: os.environ.get(name) for name in before} == before
    print(
        json.dumps({"same": same, "steps": len(session.steps), "outcome": session.spans[0].outcome})
    )
