"""Every function of another library that a watch surrounds is called by the user's code, as without it."""

import inspect
import sys
import types
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import peft.peft_model  # noqa: F401
import pytest
import torch
import torch.distributed
import transformers.trainer  # noqa: F401
from transformers import core_model_loading as weights

from hfmem_widget import watch
from hfmem_widget.drivers import follow
from hfmem_widget.drivers.diffusion import follow_pipelines, leave_pipelines
from hfmem_widget.drivers.loading import PLACES
from hfmem_widget.drivers.training.model_hooks import ModelHooks
from hfmem_widget.features.stacks import dispatch_tracker
from hfmem_widget.monitor import patch
from hfmem_widget.monitor.process import process_state
from tests.trainer.tiny import tiny_model

HERE = Path(__file__).name

AMONG_THEM = {
    "Trainer.train",
    "PreTrainedModel.from_pretrained",
    "PeftModel.from_pretrained",
    "GenerationMixin.generate",
    "DiffusionPipeline.__call__",
    "Optimizer.zero_grad",
    "Module.eval",
    "torch.autograd.backward",
    "torch.distributed.init_process_group",
    "WeightRenaming.convert",
    "sys.exit",
    "PreTrainedModel.__call__",
}
"""Some of each kind; the test takes whatever there is."""


class DiffusionPipeline:
    """What pipelines of diffusers have."""

    def __call__(self) -> None: ...

    def register_modules(self) -> None: ...

    def progress_bar(self) -> None: ...


@pytest.fixture
def everything() -> Iterator[None]:
    pipelines: Any = types.SimpleNamespace(DiffusionPipeline=DiffusionPipeline)
    model = tiny_model()
    of_weights = [place for place in PLACES if place.module == weights.__name__]
    with watch(quiet=True):
        model.generate(torch.ones(1, 4, dtype=torch.long), max_new_tokens=2, pad_token_id=0)
        patch.surround_all(of_weights)
        follow_pipelines(pipelines)
        hooks = ModelHooks(model, before=lambda _counts: None, after=lambda _error: None)
        patch.surround_all(dispatch_tracker.PLACES)
        patch.surround(sys, "exit", follow._noting_exit)
        yield
        patch.restore(sys, "exit")
        patch.restore_all(dispatch_tracker.PLACES)
        hooks.remove()
        leave_pipelines(pipelines)
        patch.restore_all(of_weights)


def stand_ins() -> Iterator[tuple[str, Any]]:
    """Yield what stands in for others, by name."""
    for owner, names in process_state(patch.Patches).items():
        for name, known in names.items():
            if known.around is not None:
                yield f"{owner.__name__}.{name}", known


def asks_who_calls(*_: object, **__: object) -> tuple[str, ...]:
    """Return what a library can find out about its caller."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warnings.warn("old", DeprecationWarning, stacklevel=2)
    return seen[0].filename, inspect.stack()[1].filename, sys._getframe(1).f_code.co_filename


def instead_of_the_original(stand_in: types.FunctionType, function: Any) -> Any:
    """Put another function into the place of the one that is wrapped, and return that."""
    cell = stand_in.__closure__[stand_in.__code__.co_freevars.index("function")]  # type: ignore[index]
    before, cell.cell_contents = cell.cell_contents, function
    return before


@pytest.mark.usefixtures("everything")
@pytest.mark.parametrize("followed", [True, False])
def test_every_surrounded_function_sees_the_user_as_its_caller(followed: bool) -> None:
    """Warnings point to the user's line, and the frame above is the user's, followed or not."""
    found = {}
    for name, known in list(stand_ins()):
        stand_in = getattr(known.stand_in, "__func__", known.stand_in)
        around, before = known.around, instead_of_the_original(stand_in, asks_who_calls)
        try:
            known.around = (lambda *_, **__: nullcontext()) if followed else None
            with torch.set_grad_enabled(not followed):
                found[name] = stand_in(object())
        finally:
            instead_of_the_original(stand_in, before)
            known.around = around

    assert found.keys() >= AMONG_THEM
    assert {
        name for name, files in found.items() if {Path(file).name for file in files} != {HERE}
    } == set()
