"""Where allocations came from, told from stacks as torch records them."""

from __future__ import annotations

import json
import linecache
from collections.abc import Iterator
from pathlib import Path

import pytest

from hfmem_widget.features.stacks.call_sites import (
    BACKWARD,
    BEFORE,
    MOVED,
    OUTSIDE,
    TORCHS_OWN,
    sites_of,
)
from hfmem_widget.features.stacks.live_at_peak import LiveBlock
from hfmem_widget.session.stacks import OPERATOR, Site

CELL = "/tmp/ipykernel_12/345.py"
PACKAGES = "/somewhere/.venv/lib/python3.12/site-packages"
LINEAR = (f"{PACKAGES}/torch/nn/modules/linear.py", 134, "forward")
CALL = (f"{PACKAGES}/torch/nn/modules/module.py", 1780, "_call_impl")
BERT = (f"{PACKAGES}/transformers/models/bert/modeling_bert.py", 300, "BertLayer.forward")
TRAINER = (f"{PACKAGES}/transformers/trainer.py", 2000, "Trainer.train")
STEP = (f"{PACKAGES}/torch/optim/adamw.py", 200, "AdamW.step")
IN_CELL = (CELL, 2, "<module>")
BACKWARD_CALL = (f"{PACKAGES}/torch/autograd/graph.py", 800, "_engine_run_backward")

Frame = tuple[str, int, str]


def block(*frames: Frame, size: int = 8, seen: bool = True) -> LiveBlock:
    names = [{"filename": file, "line": line, "name": name} for file, line, name in frames]
    return LiveBlock(0, size, names, seen=seen)


def site(*frames: Frame, seen: bool = True) -> Site:
    (found,) = sites_of([block(*frames, seen=seen)], {CELL: 3})
    return found


@pytest.fixture(autouse=True)
def _sources() -> Iterator[None]:
    text = ["import torch\n", "y = model(x)\n"]
    linecache.cache[CELL] = (len(text), None, text, CELL)
    yield
    linecache.cache.pop(CELL, None)


def test_the_line_is_the_users_innermost() -> None:
    """Not the library's below it, and with its text; a cell has its number."""
    found = site(LINEAR, CALL, BERT, CALL, TRAINER, IN_CELL)
    assert (found.line, found.source) == ("cell [3] line 2", "y = model(x)")


def test_a_file_of_the_users_own_is_named_with_its_folder() -> None:
    """`train.py` alone may be many."""
    assert site(LINEAR, ("/somewhere/work/train.py", 9, "main")).line == "work/train.py:9"


def test_a_users_folder_called_torch_is_the_users() -> None:
    """Only the installed package is torch, not every path with that word in it."""
    assert site(("/somewhere/torch/train.py", 9, "main")).line == "torch/train.py:9"


def test_the_module_is_the_innermost_that_is_not_torchs_own() -> None:
    """`BertLayer` says more than the `Linear` in it, which is the operator."""
    found = site(LINEAR, CALL, BERT, CALL, IN_CELL)
    assert (found.module, found.kind) == ("BertLayer \u00b7 modeling_bert.py", "forward")
    assert found.operator == "forward"


def test_a_module_of_torch_alone_is_named() -> None:
    """Where the user builds of torch's modules only."""
    linear = ("/nowhere/site-packages/torch/nn/modules/linear.py", 1, "Linear.forward")
    assert site(linear, CALL, IN_CELL).module == "Linear \u00b7 linear.py"


def test_a_class_is_found_where_frames_leave_it_out(tmp_path: Path) -> None:
    """The allocator's frames have `forward` only; the file tells whose it is."""
    file = tmp_path / "mine.py"
    file.write_text(
        "class Net:\n    def forward(self, x):\n        return x + 1\n", encoding="utf-8"
    )
    assert site((str(file), 3, "forward"), CALL, IN_CELL).module == "Net \u00b7 mine.py"


def test_an_optimizers_step_is_told() -> None:
    """Its states are made there."""
    found = site((f"{PACKAGES}/torch/optim/adam.py", 182, "_init_group"), STEP, IN_CELL)
    assert (found.module, found.kind) == ("AdamW (optimizer step)", "optimizer")


def test_the_backward_pass_is_told_where_its_thread_has_no_python() -> None:
    """On a GPU it runs on a thread of autograd's."""
    found = site()
    assert (found.module, found.kind) == (BACKWARD, "backward")


def test_the_backward_pass_is_told_where_it_has() -> None:
    """On the CPU it runs on the thread that asked, so the user's line is known."""
    found = site((OPERATOR, 0, "aten::mm"), BACKWARD_CALL, IN_CELL)
    assert (found.line, found.module, found.kind) == ("cell [3] line 2", BACKWARD, "backward")


def test_a_forward_that_is_run_again_belongs_to_the_backward_pass() -> None:
    """As gradient checkpointing does."""
    found = site(BERT, CALL, BACKWARD_CALL, IN_CELL)
    assert (found.module, found.kind) == (
        "BertLayer \u00b7 modeling_bert.py, run again",
        "backward",
    )


def test_a_model_that_is_moved_is_told() -> None:
    """`model.cuda()` allocates in torch's own code, which names nothing that a person knows."""
    moved = (f"{PACKAGES}/torch/nn/modules/module.py", 934, "_apply")
    assert site(moved, IN_CELL).module == MOVED


def test_an_operator_is_named_where_one_was_recorded() -> None:
    """Only the tracker of operators knows them."""
    assert site((OPERATOR, 0, "aten::mm"), LINEAR, IN_CELL).operator == "aten::mm"


def test_the_operator_of_a_line_that_calls_none_by_name_is_its_text() -> None:
    """`x @ w` has no Python frame of its own."""
    assert site(IN_CELL).operator == "y = model(x)"
    assert site(IN_CELL).module == OUTSIDE


def test_what_was_there_before_is_said_to_be() -> None:
    """No stack is invented for it."""
    assert site(seen=False).line == BEFORE
    assert site(seen=False).kind == "before"


def test_nothing_is_lost_when_places_are_put_together() -> None:
    """The sum of the sites is the sum of the blocks."""
    blocks = [block(LINEAR, IN_CELL, size=5), block(LINEAR, IN_CELL, size=6), block(size=7)]
    found = sites_of(blocks, {})
    assert [(one.bytes, one.blocks) for one in found] == [(11, 2), (7, 1)]


def test_a_file_that_is_no_python_costs_nothing(tmp_path: Path) -> None:
    """The name stays as it was recorded."""
    file = tmp_path / "odd.py"
    file.write_text("this is (not python", encoding="utf-8")
    assert site((str(file), 1, "forward"), IN_CELL).module == "forward \u00b7 odd.py"


TRAINS = (f"{PACKAGES}/transformers/trainer.py", 9, "train")
OWN = (f"{PACKAGES}/torch/nn/functional.py", 5, "linear")


@pytest.mark.parametrize(
    ("frames", "line"),
    [
        ((OWN, BACKWARD_CALL), BACKWARD),
        ((OWN, CALL), TORCHS_OWN),
        ((OWN, TRAINS), "transformers/trainer.py:9"),
        ((OWN, ("<frozen runpy>", 3, "run"), IN_CELL), "cell [3] line 2"),
        ((OWN, ("<ipython-input-7-abc>", 4, "<module>")), "cell [7] line 4"),
        ((OWN, ("/tmp/ipykernel_12/999.py", 4, "<module>")), "a cell's line 4"),
        ((OWN, (json.__file__, 4, "loads"), IN_CELL), "cell [3] line 2"),
        ((OWN, (json.__file__, 4, "loads")), "json/__init__.py:4"),
        (
            (OWN, (json.__file__, 4, "loads"), ("/somewhere/work/train.py", 9, "main")),
            "work/train.py:9",
        ),
    ],
)
def test_the_line_is_the_nearest_that_a_person_knows(frames: tuple[Frame, ...], line: str) -> None:
    """The user's own, else a library's that is not torch, else what torch was doing."""
    assert site(*frames).line == line


@pytest.mark.parametrize(
    ("frames", "module"),
    [
        (((f"{PACKAGES}/torch/nn/modules/module.py", 934, "_apply"),), MOVED),
        (((f"{PACKAGES}/torch/nn/modules/module.py", 934, "to"),), OUTSIDE),
        ((("/somewhere/mine.py", 9, "my_apply"),), OUTSIDE),
    ],
)
def test_only_torchs_own_moving_is_a_model_that_moves(
    frames: tuple[Frame, ...], module: str
) -> None:
    """Not whatever function is called so."""
    assert site(*frames, IN_CELL).module == module


def test_the_biggest_place_comes_first() -> None:
    """Whatever the order of the blocks."""
    blocks = [block(IN_CELL, size=5), block(LINEAR, IN_CELL, size=7), block(seen=False, size=6)]

    assert [one.bytes for one in sites_of(blocks, {})] == [7, 6, 5]


def test_a_function_of_one_line_is_found_by_it(tmp_path: Path) -> None:
    """Its first line is its last."""
    file = tmp_path / "mine.py"
    file.write_text("class Net:\n    def forward(self, x): return x + 1\n", encoding="utf-8")

    assert site((str(file), 2, "forward"), CALL, IN_CELL).module == "Net \u00b7 mine.py"
