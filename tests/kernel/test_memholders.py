"""`%memholders` in a real kernel: culprits of every kind are found, first in the list, to the byte."""

import re

import pytest

from hfmem_widget.view.card import MOST_TEXT
from tests.kernel.conftest import StartKernel
from tests.kernel.culprits import BLOCK, CASES, IN_C_PLUS_PLUS, Case, ask, printed, without_numbers
from tests.kernel.drive import Kernel
from tests.kernel.test_memfree import ONE_PERCENT, card

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


FAULTS = {
    ("losses", "graph"): """
# losses with their graphs
model, losses = network(), []
for batch in batches(3):
    losses.append(model(batch).pow(2).mean())
""",
    ("total", "graph"): """
# a sum of losses
model, total = network(), 0.0
for batch in batches(3):
    total = total + model(batch).pow(2).mean()
""",
    ("predictions",): """
# predictions of an evaluation
model, predictions = network(), []
with torch.no_grad():
    for batch in batches():
        predictions.append(model(batch))
""",
    ("seen",): """
# hidden states by step
model, seen = network(), {}
for step, batch in enumerate(batches(2)):
    hidden = batch
    for layer in model:
        hidden = layer(hidden)
        seen.setdefault(step, []).append(hidden.detach())
""",
    ("maps",): """
# what a hook collects
model, maps = network(), []
model[0].register_forward_hook(lambda layer, given, made: maps.append(made.detach()))
with torch.no_grad():
    for batch in batches():
        model(batch)
""",
    ("caches",): """
# caches of keys and values
from transformers import GPT2Config, GPT2LMHeadModel
config = GPT2Config(n_layer=8, n_embd=64, n_head=1, vocab_size=1000)
model, caches = GPT2LMHeadModel(config).eval(), []
with torch.no_grad():
    for batch in batches(8):
        rows = torch.randint(0, 1000, (64, 256))
        caches.append(model.transformer(rows, use_cache=True).past_key_values)
""",
    ("encoded[",): """
# a cached function
model = network()
@functools.lru_cache(maxsize=None)
def encoded(number):
    with torch.no_grad():
        return model(torch.randn(ROWS, WIDTH))
for number, _ in enumerate(batches()):
    encoded(number)
""",
    ("Tracked.made",): """
# models of a class
class Tracked(nn.Module):
    made = []
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4096, WIDTH)
        Tracked.made.append(self)
for batch in batches():
    score = Tracked().layer.weight.sum().item()
""",
    ("error of cell",): """
# an error that holds its frame
model = network()
def evaluate():
    outputs = [model(batch) for batch in batches(2)]
    return torch.stack(outputs).mean() / undefined
evaluate()
""",
    ("callbacks",): """
# functions that hold a batch
model, callbacks = network(), []
for batch in batches(3):
    output = model(batch)
    callbacks.append(lambda output=output: output.sum().item())
""",
    ("checkpoints",): """
# a checkpoint of each epoch
model, checkpoints = nn.Linear(4096, WIDTH), []
for batch in batches():
    checkpoints.append(copy.deepcopy(model.state_dict()))
""",
    ("logger.history",): """
# a history on an object
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
}
"""By words of what holds memory, and how: cells of a notebook."""


WITH_TORCH = True


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
    """Weak references and weak dicts are not blamed for a block that is gone."""
    for cell in cells:
        fresh.run(cell)
    rows, _ = ask(fresh)
    assert all(one["bytes"] < BLOCK for one in rows)


def test_tensors_held_by_c_plus_plus_are_not_explained(fresh: Kernel) -> None:
    """No name leads to a tensor in a C++ object."""
    fresh.run(IN_C_PLUS_PLUS)
    rows, _ = ask(fresh)
    assert rows[0]["path"] == "objects that no name leads to"
    assert rows[0]["bytes"] == 32 * BLOCK


def test_objects_of_torch_itself_are_not_blamed(fresh: Kernel) -> None:
    """In these tests they are hidden from the collector; in a user's kernel they are seen."""
    fresh.run("gc.unfreeze(); kept = block()")
    rows, _ = ask(fresh)
    fresh.run("gc.collect(); gc.freeze()")
    assert [one["path"] for one in rows if one["bytes"] >= BLOCK] == ["kept"]


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
    """No property, no __getattr__, no iteration; tensors inside are still found."""
    assert fresh.run(LAZY).status == "ok"
    rows, _ = ask(fresh)
    assert printed(fresh.run("print(ran)")) == "[]\n"
    assert rows[0]["path"] == "odd[1]['a']"


def test_options_choose_what_is_listed(fresh: Kernel) -> None:
    """`--least 1GiB` leaves a model of 4 MiB out, and only `--detail` lists its tensors one by one."""
    fresh.run("model = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.Linear(1024, 8))")
    text, least, detail = (
        fresh.run(f"%memholders {options}").shown["text/plain"]
        for options in ("", "--least 1GiB", "--detail")
    )
    assert re.search(r" model\b", text)
    assert not re.search(r" model\b", least)
    assert "[0].weight" not in text
    assert "4.00 MiB  [0].weight" in detail


def test_without_torch_it_says_that_nothing_is_held(start_kernel: StartKernel) -> None:
    """`%memholders` does not import torch."""
    kernel = start_kernel()
    kernel.run("%load_ext hfmem_widget")
    assert "everything else" in kernel.run("%memholders").shown["text/plain"]
    assert printed(kernel.run("import sys; print('torch' in sys.modules)")) == "False\n"


@pytest.mark.parametrize(("words", "cell"), FAULTS.items(), ids=map("-".join, FAULTS))
def test_the_text_of_a_cell_names_what_holds_memory(
    fresh: Kernel, words: tuple[str, ...], cell: str
) -> None:
    """The name and the path, in at most 1,500 characters."""
    assert fresh.run(PREPARE + ONE_PERCENT).status == "ok"
    status = "error" if "undefined" in cell else "ok"
    text = card(fresh, cell.strip(), status=status)["text/plain"]

    assert all(word in text for word in words), text
    assert len(text) <= MOST_TEXT
