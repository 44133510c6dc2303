"""Follows optimizers, ranks, Trainers, ``generate``, pipelines and ``from_pretrained`` in unchanged code.

Methods are surrounded on their classes once these are imported, which includes a Trainer that was built
before. Without a watch, a surrounded method only checks whether there is one.
"""

import os
import sys
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from types import ModuleType

from hfmem_widget.display import resolve
from hfmem_widget.guard import harmless
from hfmem_widget.monitor.on_import import WhenImported
from hfmem_widget.monitor.patch import restore_all, surround_all
from hfmem_widget.monitor.process import Installed, process_state

PIPELINES = "diffusers.pipelines.pipeline_utils"
TRAINER = "transformers.trainer"
LOADING = (
    *("transformers.core_model_loading", "transformers.generation.utils", "peft.peft_model"),
    *(f"lightning.pytorch.loops.{loop}_loop" for loop in ("fit", "evaluation")),
    *(f"pytorch_lightning.loops.{loop}_loop" for loop in ("fit", "evaluation")),
)

FOLLOWED: dict[str, tuple[str, str, str]] = {
    "torch": ("drivers.optimizers", "follow_torch", "leave_optimizers"),
    "torch.distributed": ("ranks.identity", "", ""),
    TRAINER: ("drivers.trainer", "", ""),
    PIPELINES: ("drivers.diffusion", "follow_pipelines", "leave_pipelines"),
    "torch._dynamo.convert_frame": ("drivers.training.model_hooks", "", ""),
    "transformers.modeling_utils": ("drivers.loading", "", "leave_steps"),
    **dict.fromkeys(LOADING, ("drivers.loading", "", "")),
}
"""By the followed module: our module, whose `PLACES` are surrounded once the followed one is imported, and
its functions, if any, that begin and stop following it."""


@dataclass(slots=True)
class Attachment(Installed):
    """What is followed, also without a watch."""

    imports: WhenImported | None = None  # of modules that are not imported yet
    for_good: bool = False  # everything is followed without a watch, too
    # As are Trainers, which may be given a `MemoryCallback` at any time
    trainers_for_good: bool = False


def begin() -> None:
    """Follow everything, optimizers included, because a watch begins."""
    from hfmem_widget.drivers.optimizers import follow_optimizers

    harmless(attach, for_good=False)
    harmless(follow_optimizers)


def end() -> None:
    """Stop following what is only followed during watches, if the last watch has ended."""
    from hfmem_widget.drivers.optimizers import leave_optimizers
    from hfmem_widget.monitor.shared import shared_monitor

    if shared_monitor().register.all():
        return
    harmless(leave_optimizers)
    if not process_state(Attachment).for_good:
        detach(entirely=False)


def attach(*, for_good: bool = True) -> WhenImported:
    """Follow everything from now on; until the last watch ends, unless `for_good`."""
    attachment = process_state(Attachment)
    attachment.for_good |= for_good
    if attachment.imports is None:
        attachment.imports = WhenImported({name: partial(_follow, name) for name in FOLLOWED})
        attachment.imports.begin()
    return attachment.imports


def detach(*, entirely: bool = True) -> None:
    """Restore the original methods; if not `entirely`, Trainers stay followed for each `MemoryCallback`."""
    attachment = process_state(Attachment)
    imports, attachment.imports = attachment.imports, None
    attachment.for_good = False
    attachment.trainers_for_good &= not entirely
    if imports is not None:
        harmless(imports.end)
    for name, (home, _, leave) in FOLLOWED.items():
        if name == TRAINER and attachment.trainers_for_good:
            continue
        # Only modules imported to follow something: importing the others now would import transformers.
        if (ours := sys.modules.get(f"hfmem_widget.{home}")) is not None:
            harmless(restore_all, getattr(ours, "PLACES", ()))
            if leave:
                harmless(getattr(ours, leave), sys.modules.get(name))


def _follow(name: str, module: ModuleType) -> None:
    home, follow, _ = FOLLOWED[name]
    ours = import_module(f"hfmem_widget.{home}")
    surround_all(getattr(ours, "PLACES", ()))
    if follow:
        getattr(ours, follow)(module)
    if name == "torch" and "HFMEM_SOLO" in os.environ:
        resolve("hfmem_widget.drivers.follow:begin_alone")()
