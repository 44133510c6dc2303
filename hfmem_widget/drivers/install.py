"""Following optimizers, ranks, Trainers, ``generate`` and ``from_pretrained``, the user's code unchanged.

The methods are surrounded on their classes, as soon as transformers' modules are imported, or now if they
are. So Trainers built before the extension was loaded are followed too, and nothing of ours stays in one
that was built. Where nothing is being watched, a surrounded method only asks whether something is.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType

from hfmem_widget.guard import harmless
from hfmem_widget.monitor.on_import import WhenImported

GROUPS = "torch.distributed"
GENERATION = "transformers.generation.utils"
CALLS = ("transformers.modeling_utils", "peft.peft_model", GENERATION)

_waiting: WhenImported | None = None


def attach() -> WhenImported:
    """Follow all of them from now on, and return what waits for them; attaching again does nothing."""
    global _waiting  # noqa: PLW0603  (a class is surrounded once per process)
    if _waiting is None:
        followed = ("torch", GROUPS, "transformers.trainer", *CALLS)
        _waiting = WhenImported(dict.fromkeys(followed, _follow))
        _waiting.begin()
    return _waiting


def detach() -> None:
    """Put the original methods back; what cannot be put back keeps nothing else from it."""
    global _waiting
    waiting, _waiting = _waiting, None
    if waiting is not None:
        harmless(waiting.end)
    # Only what was imported to follow something: importing the rest now would import transformers.
    optimizers, groups, trainer, loading = (
        sys.modules.get(f"hfmem_widget.{name}")
        for name in (
            "monitor.optimizers",
            "ranks.process_group",
            "drivers.trainer",
            "drivers.loading",
        )
    )
    if optimizers is not None:
        harmless(optimizers.leave_optimizers)
    if groups is not None:
        harmless(groups.leave_groups)
    if trainer is not None:
        harmless(trainer.leave_trainers)
    for module in map(sys.modules.get, CALLS):
        if loading is not None and module is not None:
            harmless(loading.leave_loading, module)


def _follow(module: ModuleType) -> None:
    if module.__name__ == "torch":
        from hfmem_widget.monitor.optimizers import follow_optimizers

        follow_optimizers()
        if "HFMEM_SOLO" in os.environ:
            from hfmem_widget.drivers.follow import begin_alone

            begin_alone()
    elif module.__name__ == GROUPS:
        from hfmem_widget.ranks.process_group import surround_groups

        surround_groups()
    elif module.__name__ == "transformers.trainer":
        from hfmem_widget.drivers.trainer import follow_trainers

        follow_trainers()
    else:
        from hfmem_widget.drivers.loading import follow_loading

        follow_loading(module)
