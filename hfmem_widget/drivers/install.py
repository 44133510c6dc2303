"""Following optimizers, ``Trainer``, ``generate`` and ``from_pretrained`` with no change to the user's code.

The methods are surrounded on their classes, as soon as transformers' modules are imported, or now if they
are. So Trainers built before the extension was loaded are followed too, and nothing of ours stays in one
that was built. Where nothing is being watched, a surrounded method only asks whether something is.
"""

from __future__ import annotations

import sys
from types import ModuleType

from hfmem_widget.guard import harmless
from hfmem_widget.monitor.on_import import WhenImported
from hfmem_widget.monitor.patch import restore, surround

TORCH = "torch"
TRAINER = "transformers.trainer"
GENERATION = "transformers.generation.utils"
LOADING = ("transformers.modeling_utils", "peft.peft_model")

_waiting: WhenImported | None = None


def attach() -> None:
    """Follow all of them from now on; attaching again does nothing."""
    global _waiting  # noqa: PLW0603  (a class is surrounded once per process)
    if _waiting is None:
        followed = {
            TORCH: _follow_optimizers,
            TRAINER: _follow_trainers,
            GENERATION: _follow_generation,
        }
        _waiting = WhenImported(followed | dict.fromkeys(LOADING, _follow_loading))
        _waiting.begin()


def detach() -> None:
    """Put the original methods back; what cannot be put back keeps nothing else from it."""
    global _waiting
    waiting, _waiting = _waiting, None
    if waiting is not None:
        harmless(waiting.end)
    for leave in (_leave_optimizers, _leave_trainers, _leave_generation, _leave_loading):
        harmless(leave)


def _follow_optimizers(_module: ModuleType) -> None:
    from hfmem_widget.monitor.optimizers import follow_optimizers

    follow_optimizers()


def _leave_optimizers() -> None:
    if "hfmem_widget.monitor.optimizers" in sys.modules:
        from hfmem_widget.monitor.optimizers import leave_optimizers

        leave_optimizers()


def _follow_trainers(_module: ModuleType) -> None:
    from hfmem_widget.drivers.trainer import follow_trainers

    follow_trainers()


def _leave_trainers() -> None:
    if "hfmem_widget.drivers.trainer" in sys.modules:
        from hfmem_widget.drivers.trainer import leave_trainers

        leave_trainers()


def _follow_generation(module: ModuleType) -> None:
    from hfmem_widget.drivers.span import span

    surround(module.GenerationMixin, "generate", lambda _model: span("generate"))


def _leave_generation() -> None:
    generation = sys.modules.get(GENERATION)
    if generation is not None:
        restore(generation.GenerationMixin, "generate")


def _follow_loading(module: ModuleType) -> None:
    from hfmem_widget.drivers.loading import follow_loading

    follow_loading(module)


def _leave_loading() -> None:
    if "hfmem_widget.drivers.loading" in sys.modules:
        from hfmem_widget.drivers.loading import leave_loading

        for module in filter(None, map(sys.modules.get, LOADING)):
            leave_loading(module)
