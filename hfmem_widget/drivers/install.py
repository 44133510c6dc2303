"""Following optimizers, ranks, Trainers, ``generate``, pipelines and ``from_pretrained`` in unchanged code.

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
PIPELINES = "diffusers.pipelines.pipeline_utils"
LOOPS = tuple(
    f"{home}.{loop}_loop"
    for home in ("lightning.pytorch.loops", "pytorch_lightning.loops")
    for loop in ("fit", "evaluation")
)
CALLS = ("transformers.modeling_utils", "peft.peft_model", GENERATION, *LOOPS)

_waiting: WhenImported | None = None
_for_good = False


def begin() -> None:
    """Follow all of them while something is watched, and all optimizers: a watch begins."""
    from hfmem_widget.drivers.optimizers import follow_optimizers

    harmless(_attach)
    harmless(follow_optimizers)


def end() -> None:
    """Follow what is only followed while something is watched no longer, if nothing is: a watch has ended."""
    from hfmem_widget.drivers.optimizers import leave_optimizers
    from hfmem_widget.monitor.shared import shared_monitor

    if shared_monitor().watches:
        return
    harmless(leave_optimizers)
    if not _for_good:
        detach(entirely=False)


def attach() -> WhenImported:
    """Follow all of them from now on, and return what waits for them; attaching again does nothing."""
    global _for_good  # noqa: PLW0603
    _for_good = True
    return _attach()


def _attach() -> WhenImported:
    global _waiting  # noqa: PLW0603  (a class is surrounded once per process)
    if _waiting is None:
        followed = ("torch", GROUPS, "transformers.trainer", PIPELINES, *CALLS)
        _waiting = WhenImported(dict.fromkeys(followed, _follow))
        _waiting.begin()
    return _waiting


def detach(*, entirely: bool = True) -> None:
    """Put the original methods back; what cannot be put back keeps nothing else from it.

    If not `entirely`, a Trainer stays followed that a `MemoryCallback` was made for.
    """
    global _waiting, _for_good
    (waiting, _waiting), _for_good = (_waiting, None), False
    if waiting is not None:
        harmless(waiting.end)
    # Only what was imported to follow something: importing the rest now would import transformers.
    optimizers, groups, trainer, loading, diffusion = (
        sys.modules.get(f"hfmem_widget.{name}")
        for name in (
            "drivers.optimizers",
            "ranks.process_group",
            "drivers.trainer",
            "drivers.loading",
            "drivers.diffusion",
        )
    )
    if optimizers is not None:
        harmless(optimizers.leave_optimizers)
    if groups is not None:
        harmless(groups.leave_groups)
    if trainer is not None:
        harmless(trainer.leave_trainers, entirely=entirely)
    if diffusion is not None and PIPELINES in sys.modules:
        harmless(diffusion.leave_pipelines, sys.modules[PIPELINES])
    for module in map(sys.modules.get, CALLS):
        if loading is not None and module is not None:
            harmless(loading.leave_loading, module)


def _follow(module: ModuleType) -> None:
    if module.__name__ == "torch":
        from hfmem_widget.drivers.optimizers import follow_optimizers
        from hfmem_widget.monitor.shared import running_monitor

        if running_monitor() is not None:
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
    elif module.__name__ == PIPELINES:
        from hfmem_widget.drivers.diffusion import follow_pipelines

        follow_pipelines(module)
    else:
        from hfmem_widget.drivers.loading import follow_loading

        follow_loading(module)
