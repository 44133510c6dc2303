"""In a real kernel: the owners of memory are found in the notebook, and the search keeps nothing alive."""

from __future__ import annotations

import pytest

from tests.kernel.drive import Kernel

WITH_TORCH = True
MODEL = """
import torch
def build():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Linear(256, 256))
def train(model, optimizer, steps=4):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(4, 256)).square().mean().backward()
        optimizer.step()
def size(tensors):
    return sum(tensor.nbytes for tensor in tensors)
def held(sample, session, names=("weights", "gradients", "optimizer")):
    return [session.value(sample, f"cpu/{name}") for name in names]
"""


@pytest.fixture
def notebook(reloaded: Kernel) -> Kernel:
    """Return the file's kernel with a training, without models of the test before."""
    reloaded.run(MODEL)
    reloaded.run("import gc; _ = gc.collect()")
    return reloaded


def test_torch_imported_in_the_cell_is_followed(kernel: Kernel) -> None:
    """The loop of a cell that imports torch itself is attributed by its optimizer's steps."""
    kernel.run("%load_ext hfmem_widget")
    kernel.run(
        "%%memwatch -q -o session\n"
        + MODEL
        + "import hfmem_widget\n"
        + "def run():\n"
        + "    model = build(); optimizer = torch.optim.AdamW(model.parameters())\n"
        + "    train(model, optimizer)\n"
        + "    with hfmem_widget.span('look'): pass\n"
        + "    return size(model.parameters())\n"
        + "expected = run()"
    )

    said = kernel.run(
        "look = [one for one in session.spans if one.label == 'look'][0]\n"
        "print(held(look.after, session)[:2] == [expected, expected])"
    )
    assert said.text() == "True\n"


def test_reloading_leaves_no_hook(notebook: Kernel) -> None:
    """After `%unload_ext` torch has none of our hooks, and `zero_grad` is its own."""
    notebook.run("%memwatch on")
    notebook.run(
        "model = build(); optimizer = torch.optim.AdamW(model.parameters()); train(model, optimizer)"
    )
    notebook.run("%reload_ext hfmem_widget")
    notebook.run("%unload_ext hfmem_widget")

    said = notebook.run(
        "import sys\n"
        "module = sys.modules['torch.optim.optimizer']\n"
        "print(len(module._global_optimizer_pre_hooks), len(module._global_optimizer_post_hooks),\n"
        "      'surround' in repr(torch.optim.Optimizer.zero_grad.__code__.co_filename))"
    )
    assert said.text() == "0 0 False\n"


def test_a_compiled_step_is_left_alone(notebook: Kernel) -> None:
    """`torch.compile` of a loop with an optimizer traces no code of ours."""
    said = notebook.run(
        "%%memwatch -q\n"
        "model = build(); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "train(model, optimizer, 1)\n"
        "step = torch.compile(optimizer.step, backend='eager')\n"
        "before = model[0].weight.detach().clone()\n"
        "step()\n"
        "print(bool((before != model[0].weight).any()))"
    )
    assert said.text() == "True\n"
