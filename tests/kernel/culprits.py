"""Cells that keep memory, each with what is to be blamed for it: a person's ways of losing a tensor.

The same cells run on the CPU and on a GPU: there all tensors are made on the GPU.
"""

import json
import re
from typing import Any, NamedTuple

from tests.kernel.drive import Kernel, Result

BLOCK = 4 * 2**20
"""Bytes of what `block()` makes."""

PREPARE = """
%load_ext hfmem_widget
import collections, dataclasses, functools, gc, sys, types, weakref
import torch
gc.collect()
torch.set_num_threads(1)
def block(count=1):
    return torch.zeros(count, 2**20)
"""
FORGET = "%reset -f"
ASK = """
import dataclasses as _d, json as _j, hfmem_widget as _h
_told = _h.holders()
print(_j.dumps([[_d.asdict(one) for one in _told.rows], [_d.asdict(one) for one in _told.remainders]]))
"""


FORGET_NUMBERED = """
Out.clear()
for _name in [one for one in globals() if one[:1] == "_" and one[1:].isdigit()]: del globals()[_name]
"""


class Case(NamedTuple):
    """Cells that keep memory, and the name to blame for it."""

    cells: tuple[str, ...]
    path: str
    blocks: float
    kind: str


def case(path: str, *cells: str, blocks: float = 1, kind: str = "tensors") -> Case:
    return Case(cells, path, blocks, kind)


IN_A_FUNCTION = """
def train():
    activations = block()
    raise ValueError("no")
train()
"""
CASES = {
    "a list of losses with their graphs": case(
        "losses[0..4]",
        "weight = torch.nn.Parameter(torch.ones(2**20))\nlosses = []",
        "for _ in range(5): losses.append(weight.exp().sum())", blocks=5 + 5 * 4 / BLOCK,
    ),
    "a graph that a hook packed": case(
        "loss",
        ("weight = torch.nn.Parameter(torch.ones(8))\n"
         "pack = lambda one: ('packed', block().to(one.device))"),
        ("with torch.autograd.graph.saved_tensors_hooks(pack, lambda one: 1 / 0):\n"
         "    loss = weight.exp().sum()"),
        blocks=1 + 4 / BLOCK,
    ),
    "what a function of the user's own saved": case(
        "made",
        ("class Own(torch.autograd.Function):\n"
         "    @staticmethod\n"
         "    def forward(ctx, x): ctx.kept = block(); return x * 1\n"
         "    @staticmethod\n"
         "    def backward(ctx, g): return g\n"
         "made = Own.apply(torch.ones(1, requires_grad=True))"),
        blocks=1 + 8 / BLOCK,
    ),
    "a checkpointed block's inputs": case(
        "loss",
        ("from torch.utils.checkpoint import checkpoint\n"
         "def forward(x, given): return (x * given).sum()\n"
         "loss = checkpoint(forward, torch.ones(1, requires_grad=True), block(), use_reentrant=False,\n"
         "    preserve_rng_state=False)"),
        blocks=1 + 8 / BLOCK,
    ),
    "a cache that grows": case(
        "cache['step 0', … 20 keys]",
        "cache = {}\nfor step in range(20): cache[f'step {step}'] = block()", blocks=20,
    ),
    "an output": case("Out[N]", "block()", "1"),
    "the last output alone": case("_", "block()", FORGET_NUMBERED),
    "the last error": case("the error of cell [N] → train() → activations", IN_A_FUNCTION),
    "an error in a variable": case(
        "error → train() → activations",
        "def train():\n    activations = block()\n    raise ValueError",
        "try: train()\nexcept ValueError as caught: error = caught",
    ),
    "the error before an error": case(
        "error.__context__ → second() → first() → inner",
        "def first():\n    inner = block()\n    raise ValueError",
        "def second():\n    try: first()\n    except ValueError: raise TypeError",
        "try: second()\nexcept TypeError as caught: error = caught",
    ),
    "the caller of what caught an error": case(
        "error → outer() → big",
        "def inner():\n    try: 1 / 0\n    except ZeroDivisionError as caught: return caught",
        "def outer():\n    big = block()\n    return inner()",
        "error = outer()",
    ),
    "a closure": case(
        "step → kept",
        "def make():\n    kept = block()\n    return lambda: kept",
        "step = make()",
    ),
    "a function's default": case("step(memo=…)", "def step(memo=block()): pass"),
    "a method and a partial": case("step.func.__self__[0]", "step = functools.partial([block()].append, 1)"),
    "a function's cache": case(
        "made",
        "@functools.lru_cache\ndef made(n): return block()",
        "made(1); made(2);", blocks=2,
    ),
    "a module of the user's": case(
        "helpers.CACHE['a']",
        "with open('helpers.py', 'w') as file: file.write('CACHE = {}')",
        "sys.path.insert(0, '.'); import helpers; helpers.CACHE['a'] = block()",
    ),
    "a loader's iterator": case(
        "batches._dataset.tensors[0]",
        "from torch.utils.data import DataLoader, TensorDataset",
        "batches = iter(DataLoader(TensorDataset(block(8)), batch_size=2)); next(batches);", blocks=8,
    ),
    "a generator's frame": case(
        "it → batch",
        "def batches():\n    batch = block()\n    yield 1\n    yield 2",
        "it = batches(); next(it);",
    ),
    "an iterator in C": case("it[0]", "it = map(str, [block()])"),
    "nested dicts": case("state['run']['best']['logits']", "state = {'run': {'best': {'logits': block()}}}"),
    "an object's attribute": case(
        "run.cache[0]",
        "class Run:\n    def __init__(self): self.cache = [block()]",
        "run = Run()",
    ),
    "a slot": case(
        "run.cache",
        "class Run:\n    __slots__ = ('cache',)",
        "run = Run(); run.cache = block()",
    ),
    "a class' attribute": case("Run.cache", "class Run:\n    cache = block()"),
    "a dataclass": case(
        "batch.pixels",
        "@dataclasses.dataclass\nclass Batch:\n    pixels: object",
        "batch = Batch(block())",
    ),
    "a named tuple": case(
        "batch.pixels",
        "Batch = collections.namedtuple('Batch', 'ids pixels'); batch = Batch(1, block())",
    ),
    "a deque": case(
        "window[0..2]",
        "window = collections.deque((block() for _ in range(9)), maxlen=3)", blocks=3,
    ),
    "a set": case("seen{…}", "seen = {block()}"),
    "a hook that captures": case(
        "model._forward_hooks[N] → seen[0]",
        ("def watch(model):\n    seen = []\n"
         "    model.register_forward_hook(lambda m, i, o: seen.append(o))"),
        "model = torch.nn.Identity(); watch(model); model(block()); Out.clear(); _ = __ = 0",
        "1",
        "2",
        "3",
    ),
    "a static cache of a model": case(
        "model[0].cache.keys[0..1]",
        "model = torch.nn.Sequential(torch.nn.Identity()); model[0].cache = types.SimpleNamespace()",
        "model[0].cache.keys = [block(), block()]", blocks=2,
    ),
    "a slice of something big": case("head", "head = block(8)[0, :10]", blocks=8),
    "an expanded tensor": case("wide", "wide = torch.zeros(2**20, 1).expand(-1, 1000)"),
    "tied weights": case(
        "model",
        "model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024, bias=False) for _ in range(2)])",
        "model[1].weight = model[0].weight", kind="weights",
    ),
    "gradients": case(
        "model",
        ("model = torch.nn.Linear(1024, 1024, bias=False)\n"
         "model.weight.grad = torch.zeros(1024, 1024)\nmodel.weight.data = torch.zeros(1)"),
        kind="gradients",
    ),
    "a gradient of a tensor": case(
        "x.grad",
        "x = torch.ones(2**20, requires_grad=True); (x * 2).sum().backward(); x.data = torch.ones(1)",
    ),
    "an optimizer's states": case(
        "optimizer",
        ("model = torch.nn.Linear(1024, 1024, bias=False)\n"
         "optimizer = torch.optim.AdamW(model.parameters())\n"
         "model(torch.ones(1, 1024)).sum().backward(); optimizer.step()"),
        blocks=2 + 4 / BLOCK, kind="optimizer states",
    ),
    "the parameters of a model that is gone": case(
        "optimizer.param_groups[0]['params'][0]",
        ("model = torch.nn.Linear(1024, 1024, bias=False)\n"
         "optimizer = torch.optim.SGD(model.parameters()); del model"),
    ),
    "a model within an object": case(
        "run.model",
        "run = types.SimpleNamespace(model=torch.nn.Linear(1024, 1024, bias=False))",
        "weights = list(run.model.parameters())", kind="weights",
    ),
}  # fmt: skip


IN_C_PLUS_PLUS = """
module = torch.jit.script(torch.nn.Identity())._c
module._register_attribute("kept", torch._C.TensorType.get(), block(32))
"""
"""32 blocks in an object of C++, to which no name leads."""


def begin_anew(kernel: Kernel, device: str = "cpu") -> None:
    """Remove all traces of earlier cells, and make tensors on a device from now on."""
    prepare = PREPARE + ("" if device == "cpu" else f"torch.set_default_device({device!r})\n")
    # A small error takes the place of the last one; an empty result that of the last result.
    for cell in ("import sys; sys.modules.pop('helpers', None); 1 / 0", FORGET, prepare):
        kernel.run(cell)


def printed(result: Result) -> str:
    return "".join(one.content["text"] for one in result.of("stream"))


def ask(kernel: Kernel) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    result = kernel.run(ASK)
    assert result.status == "ok", result.errors
    rows, remainders = json.loads(printed(result))
    return rows, remainders


def without_numbers(path: str) -> str:
    """Return a path with N in place of the number of a cell or a hook, which tests do not know."""
    for name in (r"Out\[", r"cell \[", r"_forward_hooks\["):
        path = re.sub(rf"({name})\d+\]", r"\1N]", path)
    return path
