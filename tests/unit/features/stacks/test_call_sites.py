"""The places of allocations, by stacks as torch records them."""

import json
import linecache
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hfmem_widget.features.stacks.call_sites import place_of, qualified
from hfmem_widget.features.stacks.live_at_peak import live_peak, replay
from hfmem_widget.session.stacks import BACKWARD, BEFORE, MOVED, OPERATOR, OUTSIDE, TORCHS_OWN, Site
from tests.data.torch_snapshots import Allocations

CELL = "/tmp/ipykernel_12/345.py"
PACKAGES = "/somewhere/.venv/lib/python3.12/site-packages"
LINEAR = (f"{PACKAGES}/torch/nn/modules/linear.py", 134, "forward")
CALL = (f"{PACKAGES}/torch/nn/modules/module.py", 1780, "_call_impl")
BERT = (f"{PACKAGES}/transformers/models/bert/modeling_bert.py", 300, "BertLayer.forward")
TRAINER = (f"{PACKAGES}/transformers/trainer.py", 2000, "Trainer.train")
STEP = (f"{PACKAGES}/torch/optim/adamw.py", 200, "AdamW.step")
IN_CELL = (CELL, 2, "<module>")
INIT = (f"{PACKAGES}/torch/optim/adam.py", 182, "_init_group")
APPLY = (f"{PACKAGES}/torch/nn/modules/module.py", 934, "_apply")
MOVE = (f"{PACKAGES}/torch/nn/modules/module.py", 934, "to")
BACKWARD_CALL = (f"{PACKAGES}/torch/autograd/graph.py", 800, "_engine_run_backward")

Frame = tuple[str, int, str]


def named(*frames: Frame) -> list[dict[str, Any]]:
    return [{"filename": file, "line": line, "name": name} for file, line, name in frames]


def site(*frames: Frame, known: bool = True) -> Site:
    return place_of(named(*frames) if known else None, {CELL: 3})


@pytest.fixture(autouse=True)
def _sources() -> Iterator[None]:
    text = ["import torch\n", "y = model(x)\n"]
    linecache.cache[CELL] = (len(text), None, text, CELL)
    yield
    linecache.cache.pop(CELL, None)


def test_the_line_is_the_users_innermost() -> None:
    """No line of a library below it is named; the line has its text, and its cell a number."""
    place = site(LINEAR, CALL, BERT, CALL, TRAINER, IN_CELL)
    assert (place.line, place.source) == ("cell [3] line 2", "y = model(x)")


@pytest.mark.parametrize(
    ("frames", "module", "kind"),
    [
        # Says more than the `Linear` in it, which is the operator.
        ((LINEAR, CALL, BERT, CALL), "BertLayer \u00b7 modeling_bert.py", "forward"),
        (
            (("/nowhere/site-packages/torch/nn/modules/linear.py", 1, "Linear.forward"), CALL),
            "Linear \u00b7 linear.py",
            "forward",
        ),
        ((INIT, STEP), "AdamW (optimizer step)", "optimizer"),
        (((OPERATOR, 0, "aten::mm"), BACKWARD_CALL), BACKWARD, "backward"),
        # As gradient checkpointing does.
        ((BERT, CALL, BACKWARD_CALL), "BertLayer \u00b7 modeling_bert.py, run again", "backward"),
        ((APPLY,), MOVED, "elsewhere"),
        ((MOVE,), OUTSIDE, "elsewhere"),
        ((("/somewhere/mine.py", 9, "my_apply"),), OUTSIDE, "elsewhere"),
        ((), OUTSIDE, "elsewhere"),
    ],
)
def test_the_innermost_module_is_named(frames: tuple[Frame, ...], module: str, kind: str) -> None:
    """A class outside torch comes before torch's own; else the optimizer or the pass is named."""
    place = site(*frames, IN_CELL)
    assert (place.module, place.kind) == (module, kind)


@pytest.mark.parametrize(
    ("frame", "operator"), [((OPERATOR, 0, "aten::mm"), "aten::mm"), (LINEAR, "forward")]
)
def test_an_operator_is_named_where_one_was_recorded(frame: Frame, operator: str) -> None:
    """Only the tracker knows operators; otherwise it is the innermost function, or the text of the line."""
    assert site(frame, IN_CELL).operator == operator
    assert site(IN_CELL).operator == "y = model(x)"


@pytest.mark.parametrize(
    ("source", "module"),
    [
        ("class Net:\n    def forward(self, x):\n        return x + 1\n", "Net \u00b7 mine.py"),
        ("this is (not python\n\n\n", "forward \u00b7 mine.py"),
    ],
)
def test_a_class_is_found_in_its_file(source: str, module: str, tmp_path: Path) -> None:
    """The allocator's frames have only `forward`; the name stays as recorded if the file is not Python."""
    file = tmp_path / "mine.py"
    file.write_text(source)
    assert site((str(file), 3, "forward"), CALL, IN_CELL).module == module


def test_a_line_has_the_function_that_it_is_in(tmp_path: Path) -> None:
    """Both ways of recording give the same name, with its class; without a stack there is none."""
    source = tmp_path / "mine.py"
    code = "class A:\n    def f(self):\n        def g():\n            return torch.ones(3)\n"
    source.write_text(code)
    functions = [site((str(source), 4, name)).function for name in ("A.f.<locals>.g", "g")]
    assert functions == ["A.f.g", "A.f.g"]
    assert [site(IN_CELL).function, site(known=False).function] == ["<module>", ""]


def test_allocations_without_a_python_stack_have_placeholders() -> None:
    """They are from before the recording, or from a GPU's backward pass on autograd's thread."""
    before, backward = site(known=False), site()
    assert (before.line, before.kind) == (BEFORE, "before")
    assert (backward.module, backward.kind) == (BACKWARD, "backward")


def test_equal_places_are_merged_and_the_largest_comes_first() -> None:
    """The sites add up to the blocks, whatever their order."""
    memory = Allocations()
    memory.alloc(9, IN_CELL)
    memory.forget()
    for size, stack in ((5, (LINEAR, IN_CELL)), (7, (IN_CELL,)), (6, (LINEAR, IN_CELL))):
        memory.alloc(size, *stack)
    places = live_peak(replay(memory.snapshot(), 0), "cpu").sites

    assert [(place.bytes, place.blocks) for place in places] == [(11, 2), (9, 1), (7, 1)]


TRAINS = (f"{PACKAGES}/transformers/trainer.py", 9, "train")
OWN = (f"{PACKAGES}/torch/nn/functional.py", 5, "linear")
SCRIPT = ("/somewhere/work/train.py", 9, "main")
STDLIB = (json.__file__, 4, "loads")


@pytest.mark.parametrize(
    ("frames", "line"),
    [
        ((LINEAR, SCRIPT), "work/train.py:9"),
        # Only the installed package is torch, not every path with that word in it.
        ((("/somewhere/torch/train.py", 9, "main"),), "torch/train.py:9"),
        ((OWN, BACKWARD_CALL), BACKWARD),
        ((OWN, CALL), TORCHS_OWN),
        ((OWN, TRAINS), "transformers/trainer.py:9"),
        ((OWN, ("<frozen runpy>", 3, "run"), IN_CELL), "cell [3] line 2"),
        ((OWN, ("<ipython-input-7-abc>", 4, "<module>")), "cell [7] line 4"),
        ((OWN, ("/tmp/ipykernel_12/999.py", 4, "<module>")), "a cell's line 4"),
        ((OWN, STDLIB, IN_CELL), "cell [3] line 2"),
        ((OWN, STDLIB), "json/__init__.py:4"),
        ((OWN, STDLIB, SCRIPT), "work/train.py:9"),
    ],
)
def test_the_line_is_the_nearest_that_a_person_knows(frames: tuple[Frame, ...], line: str) -> None:
    """It is the user's own, else that of a library other than torch, else what torch was doing."""
    assert site(*frames).line == line


CODE = """
if True:
    class A:
        def f(self):
            def g():
                return 1
            return g
try:
    async def h():
        return 2
except ValueError:
    pass
with open("x"):
    def i(): return 3
x = 4
"""


@pytest.mark.parametrize(
    ("line", "name", "known"),
    [
        (4, "f", "A.f"),
        (5, "g", "A.f.g"),
        (6, "g", "A.f.g"),
        (7, "f", "A.f"),
        (9, "h", "h"),
        (14, "i", "i"),
        (15, "<module>", "<module>"),
        (15, "x", "x"),
        (6, "B.g", "B.g"),
        (6, "<lambda>", "<lambda>"),
    ],
)
def test_functions_have_qualified_names(tmp_path: Path, line: int, name: str, known: str) -> None:
    """A name that has a class already, or a placeholder, stays as it is."""
    path = tmp_path / "code.py"
    path.write_text(CODE, encoding="utf-8")

    assert qualified({"filename": str(path), "line": line, "name": name}) == known
