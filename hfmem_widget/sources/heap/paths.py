"""How a path goes on, and where none does."""

from __future__ import annotations

from types import CodeType
from typing import Any

ARROW = " \u2192 "

Key = tuple[int] | tuple[str]
"""An index, or a key as text: one of many alike in a container, so that paths can be told together."""

Segment = str | Key
Held = tuple[Segment, Any]
"""How an object's path goes on, and what lies there."""

ATOMS = frozenset(
    {
        *(int, float, complex, bool, str, bytes, bytearray, range, slice, CodeType),
        *(type(None), type(...), type(NotImplemented)),
    }
)
"""The types of what holds nothing, or nothing that a person would call memory."""

_OF_JUPYTER = frozenset({"IPython", "asyncio", "ipykernel", "hfmem_widget"})


def is_of_jupyter(module: object) -> bool:
    """Tell the modules that run the notebook, its event loop among them, or are ours, by their names."""
    return type(module) is str and module.partition(".")[0] in _OF_JUPYTER
