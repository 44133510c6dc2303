"""What goes along with a watch besides the monitor: a budget, stacks, the reason of an error."""

from __future__ import annotations

from hfmem_widget.companions.model import Companion
from hfmem_widget.companions.out_of_memory import OutOfMemory
from hfmem_widget.options import WatchOptions
from hfmem_widget.view.screen import Screen

__all__ = ["Companion", "companions_for"]


def companions_for(options: WatchOptions, screen: Screen | None = None) -> tuple[Companion, ...]:
    """Return what goes along with a watch, by its options; `screen` is where it shows itself, if anywhere."""
    found: list[Companion] = [OutOfMemory(shows=not options.quiet)]
    if options.stacks:
        from hfmem_widget.companions.stacks import StacksCompanion

        found.append(StacksCompanion(options))
    if options.memory_map and not options.quiet:
        from hfmem_widget.companions.memory_map import LiveMemoryMap

        found.append(LiveMemoryMap(options, screen))
    if options.budget is not None:
        from hfmem_widget.companions.budget import Budget

        found.append(Budget(options))
    if not options.quiet:
        from hfmem_widget.companions.leak import LeakHolder
        from hfmem_widget.companions.left_behind import LeftBehindHolders

        found += [LeakHolder(), LeftBehindHolders()]
    return tuple(found)
