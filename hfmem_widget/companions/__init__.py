"""What goes along with a watch besides the monitor: a budget, stacks, the reason of an error."""

from __future__ import annotations

from hfmem_widget.companions.model import Companion
from hfmem_widget.options import WatchOptions

__all__ = ["Companion", "companions_for"]


def companions_for(options: WatchOptions) -> tuple[Companion, ...]:
    """Return what goes along with a watch, by its options."""
    del options
    return ()
