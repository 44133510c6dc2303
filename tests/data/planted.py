"""Twelve memory faults, each planted in the cell of a notebook, and what a reader of its text must find."""

from __future__ import annotations

from typing import NamedTuple

PREPARE = """
%load_ext hfmem_widget
import copy, functools, gc, torch
from torch import nn
torch.set_num_threads(1)
ROWS, WIDTH = 4096, 512
def network():
    return nn.Sequential(nn.LayerNorm(WIDTH), nn.GELU())
def batches(tensors=1):
    for _ in range(24 // tensors):
        yield torch.randn(ROWS, WIDTH)
gc.collect();
"""
"""A batch, and what a layer makes of it, have 8 MiB; 192 MiB stay if so many `tensors` of a step do."""


class Fault(NamedTuple):
    """A cell, and the words that its text has: the name that holds memory, and how."""

    cell: str
    words: tuple[str, ...]
    status: str = "ok"


FAULTS = {
    "losses with their graphs": Fault(
        """
model, losses = network(), []
for batch in batches(3):
    losses.append(model(batch).pow(2).mean())
""",
        ("losses", "graph"),
    ),
    "a sum of losses": Fault(
        """
model, total = network(), 0.0
for batch in batches(3):
    total = total + model(batch).pow(2).mean()
""",
        ("total", "graph"),
    ),
    "predictions of an evaluation": Fault(
        """
model, predictions = network(), []
with torch.no_grad():
    for batch in batches():
        predictions.append(model(batch))
""",
        ("predictions",),
    ),
    "hidden states by step": Fault(
        """
model, seen = network(), {}
for step, batch in enumerate(batches(2)):
    hidden = batch
    for layer in model:
        hidden = layer(hidden)
        seen.setdefault(step, []).append(hidden.detach())
""",
        ("seen",),
    ),
    "what a hook collects": Fault(
        """
model, maps = network(), []
model[0].register_forward_hook(lambda layer, given, made: maps.append(made.detach()))
with torch.no_grad():
    for batch in batches():
        model(batch)
""",
        ("maps",),
    ),
    "caches of keys and values": Fault(
        """
from transformers import GPT2Config, GPT2LMHeadModel
config = GPT2Config(n_layer=8, n_embd=64, n_head=1, vocab_size=1000)
model, caches = GPT2LMHeadModel(config).eval(), []
with torch.no_grad():
    for batch in batches(8):
        rows = torch.randint(0, 1000, (64, 256))
        caches.append(model.transformer(rows, use_cache=True).past_key_values)
""",
        ("caches",),
    ),
    "a cached function": Fault(
        """
model = network()
@functools.lru_cache(maxsize=None)
def encoded(number):
    with torch.no_grad():
        return model(torch.randn(ROWS, WIDTH))
for number, _ in enumerate(batches()):
    encoded(number)
""",
        ("encoded[",),
    ),
    "models of a class": Fault(
        """
class Tracked(nn.Module):
    made = []
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4096, WIDTH)
        Tracked.made.append(self)
for batch in batches():
    score = Tracked().layer.weight.sum().item()
""",
        ("Tracked.made",),
    ),
    "an error that holds its frame": Fault(
        """
model = network()
def evaluate():
    outputs = [model(batch) for batch in batches(2)]
    return torch.stack(outputs).mean() / undefined
evaluate()
""",
        ("error of cell",),
        "error",
    ),
    "functions that hold a batch": Fault(
        """
model, callbacks = network(), []
for batch in batches(3):
    output = model(batch)
    callbacks.append(lambda output=output: output.sum().item())
""",
        ("callbacks",),
    ),
    "a checkpoint of each epoch": Fault(
        """
model, checkpoints = nn.Linear(4096, WIDTH), []
for batch in batches():
    checkpoints.append(copy.deepcopy(model.state_dict()))
""",
        ("checkpoints",),
    ),
    "a history on an object": Fault(
        """
class Logger:
    def __init__(self):
        self.history = []
    def log(self, **values):
        self.history.append(values)
model, logger = network(), Logger()
for step, batch in enumerate(batches()):
    output = model(batch).detach()
    logger.log(step=step, loss=output.pow(2).mean().item(), output=output)
""",
        ("logger.history",),
    ),
}
