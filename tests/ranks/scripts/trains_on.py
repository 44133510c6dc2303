"""An elastic script: it averages gradients over all ranks, and goes on after its last checkpoint."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

checkpoint, flag = map(Path, sys.argv[1:])
node = os.environ["NODE"]
socket.gethostname = lambda: node
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
done, more = 0, 10
if checkpoint.exists():
    done, state = torch.load(checkpoint)
    model.load_state_dict(state)
while more:
    batch = torch.full((8, 64), 1.0 + done)
    loss = model(batch).square().mean()
    loss.backward()
    for weights in model.parameters():
        dist.all_reduce(weights.grad)
        weights.grad /= dist.get_world_size()
    optimizer.step()
    optimizer.zero_grad()
    done += 1
    # Until a node is lost; the ranks of the one that is left make so many steps more.
    more -= dist.get_world_size() == 2 and flag.exists()
    if dist.get_rank() == 0:
        torch.save((done, model.state_dict()), checkpoint.with_suffix(".new"))
        checkpoint.with_suffix(".new").replace(checkpoint)
    time.sleep(0.1)
if dist.get_rank() == 0:
    print(json.dumps({"steps": done, "attempt": os.environ["TORCHELASTIC_RESTART_COUNT"]}))
