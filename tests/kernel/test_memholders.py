"""`%memholders` in a real kernel: culprits of every kind are found, first in the list, to the byte."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.kernel.drive import Kernel, Result

BLOCK = 4 * 2**20
"""Bytes of what `block()` makes."""

PREPARE = """
%load_ext hfmem_widget
import collections, dataclasses, functools, gc, sys, types, weakref
import torch
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


class Case(NamedTuple):
    """Cells that keep memory, and what is to be blamed for it."""

    cells: tuple[str, ...]
    path: str
    blocks: float = 1
    kind: str = "tensors"


IN_A_FUNCTION = """
def train():
    activations = block()
    raise ValueError("no")
train()
"""
CASES = {
    "a list of losses with their graphs": Case(
        (
            "weight = torch.nn.Parameter(torch.ones(2**20))\nlosses = []",
            "for _ in range(5): losses.append(weight.exp().sum())",
        ),
        "losses[0..4]",
        5 + 5 * 4 / BLOCK,
    ),
    "a graph that a hook packed": Case(
        (
            "weight = torch.nn.Parameter(torch.ones(8))\npack = lambda one: ('packed', block())",
            ("with torch.autograd.graph.saved_tensors_hooks(pack, lambda one: 1 / 0):\n"
            "    loss = weight.exp().sum()"),
        ),
        "loss",
        1 + 4 / BLOCK,
    ),
    "what a function of the user's own saved": Case(
        (
            ("class Own(torch.autograd.Function):\n"
            "    @staticmethod\n"
            "    def forward(ctx, x): ctx.kept = block(); return x * 1\n"
            "    @staticmethod\n"
            "    def backward(ctx, g): return g\n"
            "made = Own.apply(torch.ones(1, requires_grad=True))"),
        ),
        "made",
        1 + 8 / BLOCK,
    ),
    "a checkpointed block's inputs": Case(
        (
            ("from torch.utils.checkpoint import checkpoint\n"
            "def forward(x, given): return (x * given).sum()\n"
            "loss = checkpoint(forward, torch.ones(1, requires_grad=True), block(), use_reentrant=False,\n"
            "    preserve_rng_state=False)"),
        ),
        "loss",
        1 + 8 / BLOCK,
    ),
    "a cache that grows": Case(
        ("cache = {}\nfor step in range(20): cache[f'step {step}'] = block()",),
        "cache['step 0', … 20 keys]",
        20,
    ),
    "an output": Case(("block()", "1"), "Out[N]"),
    "the last output alone": Case(("block()", "Out.clear(); del _2"), "_"),
    "the last error": Case((IN_A_FUNCTION,), "the error of cell [N] → train() → activations"),
    "an error in a variable": Case(
        (
            "def train():\n    activations = block()\n    raise ValueError",
            "try: train()\nexcept ValueError as caught: error = caught",
        ),
        "error → train() → activations",
    ),
    "the error before an error": Case(
        (
            "def first():\n    inner = block()\n    raise ValueError",
            "def second():\n    try: first()\n    except ValueError: raise TypeError",
            "try: second()\nexcept TypeError as caught: error = caught",
        ),
        "error.__context__ → second() → first() → inner",
    ),
    "the caller of what caught an error": Case(
        (
            "def inner():\n    try: 1 / 0\n    except ZeroDivisionError as caught: return caught",
            "def outer():\n    big = block()\n    return inner()",
            "error = outer()",
        ),
        "error → outer() → big",
    ),
    "a closure": Case(
        ("def make():\n    kept = block()\n    return lambda: kept", "step = make()"), "step → kept"
    ),
    "a function's default": Case(("def step(memo=block()): pass",), "step(memo=…)"),
    "a method and a partial": Case(
        ("step = functools.partial([block()].append, 1)",), "step.func.__self__[0]"
    ),
    "a function's cache": Case(
        ("@functools.lru_cache\ndef made(n): return block()", "made(1); made(2);"), "made", 2
    ),
    "a module of the user's": Case(
        (
            "with open('helpers.py', 'w') as file: file.write('CACHE = {}')",
            "sys.path.insert(0, '.'); import helpers; helpers.CACHE['a'] = block()",
        ),
        "helpers.CACHE['a']",
    ),
    "a loader's iterator": Case(
        (
            "from torch.utils.data import DataLoader, TensorDataset",
            "batches = iter(DataLoader(TensorDataset(block(8)), batch_size=2)); next(batches);",
        ),
        "batches._dataset.tensors[0]",
        8,
    ),
    "a generator's frame": Case(
        ("def batches():\n    batch = block()\n    yield 1\n    yield 2", "it = batches(); next(it);"),
        "it → batch",
    ),
    "an iterator in C": Case(("it = map(str, [block()])",), "it[0]"),
    "nested dicts": Case(
        ("state = {'run': {'best': {'logits': block()}}}",), "state['run']['best']['logits']"
    ),
    "an object's attribute": Case(
        ("class Run:\n    def __init__(self): self.cache = [block()]", "run = Run()"), "run.cache[0]"
    ),
    "a slot": Case(
        ("class Run:\n    __slots__ = ('cache',)", "run = Run(); run.cache = block()"), "run.cache"
    ),
    "a class' attribute": Case(("class Run:\n    cache = block()",), "Run.cache"),
    "a dataclass": Case(
        ("@dataclasses.dataclass\nclass Batch:\n    pixels: object", "batch = Batch(block())"),
        "batch.pixels",
    ),
    "a named tuple": Case(
        ("Batch = collections.namedtuple('Batch', 'ids pixels'); batch = Batch(1, block())",),
        "batch.pixels",
    ),
    "a deque": Case(
        ("window = collections.deque((block() for _ in range(9)), maxlen=3)",), "window[0..2]", 3
    ),
    "a set": Case(("seen = {block()}",), "seen{…}"),
    "a hook that captures": Case(
        (
            ("def watch(model):\n    seen = []\n"
            "    model.register_forward_hook(lambda m, i, o: seen.append(o))"),
            "model = torch.nn.Identity(); watch(model); model(block()); Out.clear(); _ = __ = 0",
            "1", "2", "3",
        ),
        "model._forward_hooks[N] → seen[0]",
    ),
    "a static cache of a model": Case(
        (
            "model = torch.nn.Sequential(torch.nn.Identity()); model[0].cache = types.SimpleNamespace()",
            "model[0].cache.keys = [block(), block()]",
        ),
        "model[0].cache.keys[0..1]",
        2,
    ),
    "a slice of something big": Case(("head = block(8)[0, :10]",), "head", 8),
    "an expanded tensor": Case(("wide = torch.zeros(2**20, 1).expand(-1, 1000)",), "wide"),
    "tied weights": Case(
        (
            "model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024, bias=False) for _ in range(2)])",
            "model[1].weight = model[0].weight",
        ),
        "model",
        1,
        "weights",
    ),
    "gradients": Case(
        (
            ("model = torch.nn.Linear(1024, 1024, bias=False)\n"
            "model.weight.grad = torch.zeros(1024, 1024)\nmodel.weight.data = torch.zeros(1)"),
        ),
        "model",
        1,
        "gradients",
    ),
    "a gradient of a tensor": Case(
        ("x = torch.ones(2**20, requires_grad=True); (x * 2).sum().backward(); x.data = torch.ones(1)",),
        "x.grad",
    ),
    "an optimizer's states": Case(
        (
            ("model = torch.nn.Linear(1024, 1024, bias=False)\n"
            "optimizer = torch.optim.AdamW(model.parameters())\n"
            "model(torch.ones(1, 1024)).sum().backward(); optimizer.step()"),
        ),
        "optimizer",
        2 + 4 / BLOCK,
        "optimizer states",
    ),
    "the parameters of a model that is gone": Case(
        (
            ("model = torch.nn.Linear(1024, 1024, bias=False)\n"
            "optimizer = torch.optim.SGD(model.parameters()); del model"),
        ),
        "optimizer.param_groups[0]['params'][0]",
    ),
    "a model within an object": Case(
        (
            "run = types.SimpleNamespace(model=torch.nn.Linear(1024, 1024, bias=False))",
            "weights = list(run.model.parameters())",
        ),
        "run.model",
        1,
        "weights",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def notebook() -> Iterator[Kernel]:
    """One kernel for all cases: each begins where nothing is left of the others."""
    with Kernel() as kernel:
        yield kernel


@pytest.fixture
def fresh(notebook: Kernel) -> Kernel:
    # A small error takes the place of the last one; an empty result that of the last result.
    for cell in (FORGET, "import sys; sys.modules.pop('helpers', None)", "1 / 0", FORGET, PREPARE):
        notebook.run(cell)
    return notebook


def printed(result: Result) -> str:
    return "".join(one.content["text"] for one in result.of("stream"))


def ask(kernel: Kernel) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    result = kernel.run(ASK)
    assert result.status == "ok", result.errors
    rows, remainders = json.loads(printed(result))
    return rows, remainders


def told(kernel: Kernel, line: str = "%memholders") -> dict[str, Any]:
    result = kernel.run(line)
    assert result.status == "ok", printed(result)
    (display,) = result.displays
    return dict(display.content["data"])


def without_numbers(path: str) -> str:
    """Return a path where the number of a cell or a hook, which no test knows, is N."""
    for name in (r"Out\[", r"cell \[", r"_forward_hooks\["):
        path = re.sub(rf"({name})\d+\]", r"\1N]", path)
    return path


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_culprit_is_the_first_row(fresh: Kernel, case: Case) -> None:
    """Its path begins with a name that a person knows, and its bytes are exact."""
    for cell in case.cells:
        fresh.run(cell)
    rows, _ = ask(fresh)
    assert without_numbers(rows[0]["path"]) == case.path
    assert rows[0]["kind"] == case.kind
    assert rows[0]["bytes"] == round(case.blocks * BLOCK)


@pytest.mark.parametrize(
    "cells",
    [
        ("kept = block(); seen = weakref.ref(kept); del kept",),
        ("table = weakref.WeakValueDictionary(); kept = block(); table[1] = kept; del kept",),
    ],
)
def test_a_weak_reference_holds_nothing(fresh: Kernel, cells: tuple[str, ...]) -> None:
    for cell in cells:
        fresh.run(cell)
    rows, _ = ask(fresh)
    assert all(one["bytes"] < BLOCK for one in rows)


IN_C_PLUS_PLUS = """
module = torch.jit.script(torch.nn.Identity())._c
module._register_attribute("kept", torch._C.TensorType.get(), block(32))
"""


def test_what_only_c_plus_plus_holds_is_not_explained(fresh: Kernel) -> None:
    """A tensor within a C++ object has no name; the heap says that it is there."""
    before_rows, (before,) = ask(fresh)
    fresh.run(IN_C_PLUS_PLUS)
    rows, (after,) = ask(fresh)
    assert sum(one["bytes"] for one in rows) == sum(one["bytes"] for one in before_rows)
    assert 31 * BLOCK < after["bytes"] - before["bytes"] < 34 * BLOCK


LAZY = """
ran = []
class Lazy:
    def __getattr__(self, name): ran.append(name); raise RuntimeError(name)
    def __getattribute__(self, name): ran.append(name); raise RuntimeError(name)
    def __iter__(self): ran.append("iter"); raise RuntimeError
    def __len__(self): ran.append("len"); return 1
    def __eq__(self, other): ran.append("eq"); raise RuntimeError
    def __hash__(self): return 1
    def __repr__(self): ran.append("repr"); return ""
    def __bool__(self): ran.append("bool"); return True
    @property
    def __class__(self): ran.append("class"); return dict
    @property
    def made(self): ran.append("made"); return block()
class Items(dict):
    def items(self): ran.append("items"); return []
    def __iter__(self): ran.append("iter"); return iter(())
class Own(torch.Tensor):
    @classmethod
    def __torch_function__(cls, *args, **kwargs): ran.append("torch"); return 1
class Empty:
    __slots__ = ("never",)
def endless():
    while True: ran.append("next"); yield 1
odd = [Lazy(), Items(a=block()), torch.ones(3).as_subclass(Own), Empty(), endless(), Lazy]
table = {odd[0]: 1}
odd.append(odd)
ran.clear()
"""


def test_no_code_of_an_object_is_run(fresh: Kernel) -> None:
    """No property, no __getattr__, no iteration: yet what lies in them is found."""
    assert fresh.run(LAZY).status == "ok"
    rows, _ = ask(fresh)
    assert printed(fresh.run("print(ran)")) == "[]\n"
    assert rows[0]["path"] == "odd[1]['a']"


def test_it_keeps_nothing_alive(fresh: Kernel) -> None:
    """What was looked at goes when its name goes: without a collection, at once."""
    fresh.run("gc.disable(); kept = block(); seen = weakref.ref(kept)")
    fresh.run("def batches(batch):\n    yield 1\n    batch = None\n    yield 2")
    fresh.run("first = block(); of_generator = weakref.ref(first)")
    fresh.run("it = batches(first); del first; next(it);")
    fresh.run("%memholders")
    result = fresh.run("del kept; next(it); print(seen() is None, of_generator() is None)")
    assert printed(result) == "True True\n"


def test_one_name_is_blamed_and_the_others_are_told(fresh: Kernel) -> None:
    fresh.run("model = torch.nn.Linear(1024, 1024, bias=False)")
    fresh.run("first = {'w': model.weight}; run = types.SimpleNamespace(m=model)")
    rows, _ = ask(fresh)
    assert rows[0]["path"] == "model"
    assert set(rows[0]["also"]) == {"first['w']", "run.m"}


def test_the_table_is_plain_text_and_escaped_html(fresh: Kernel) -> None:
    fresh.run("cache = {'<b>': block(3), 'small': torch.zeros(1)}")
    bundle = told(fresh)
    assert set(bundle) == {"text/html", "text/plain"}
    device, first, *others = bundle["text/plain"].splitlines()
    assert device == "cpu"
    assert first.split("  ")[-2:] == ["cache['<b>']", "(3\u00d71048576 float32)"]
    assert "12.0 MiB" in first
    assert any("everything else in this process' heap" in line for line in others)
    assert "objects looked at in" in others[-1]
    assert "<b>" not in bundle["text/html"]
    assert "cache[&#x27;&lt;b&gt;&#x27;]" in bundle["text/html"]


def test_least_and_detail(fresh: Kernel) -> None:
    fresh.run("model = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.Linear(1024, 8))")
    assert "\n          model" not in told(fresh, "%memholders --least 1GiB")["text/plain"]
    assert "[0].weight" not in told(fresh)["text/plain"]
    assert "4.00 MiB  [0].weight" in told(fresh, "%memholders --detail")["text/plain"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("%memholders --device cuda:7", "no device 'cuda:7'; there is cpu"),
        ("%memholders --least much", "--least is a size such as 1MiB, 500KiB or 2GiB, not 'much'"),
        ("%memholders model", "unrecognized arguments: model"),
    ],
)
def test_what_it_cannot_do_is_refused_in_a_sentence(fresh: Kernel, line: str, said: str) -> None:
    result = fresh.run(line)
    assert said in printed(result)
    assert "Traceback" not in printed(result)
    assert not result.displays


def test_its_manual_and_its_completion_are_there(fresh: Kernel) -> None:
    manual = fresh.run("%memholders?").reply["payload"][0]["data"]["text/plain"]
    assert "biggest first" in manual
    assert "--least" in manual
    completed = fresh.run("print(get_ipython().complete('', '%memholders ', 12)[1])")
    assert "--detail" in printed(completed)


def test_without_torch_it_says_that_nothing_is_held(kernel: Kernel) -> None:
    """And it does not import torch."""
    kernel.run("%load_ext hfmem_widget")
    assert "everything else" in told(kernel)["text/plain"]
    assert printed(kernel.run("import sys; print('torch' in sys.modules)")) == "False\n"
