"""How a path goes on, and where none does."""

from __future__ import annotations

from types import CodeType
from typing import Any, Final

ARROW = " \u2192 "

Segment = str | tuple[int] | tuple[str]
"""A piece of text; or, of many alike in a container, the index of one, or its key as text."""

Held = tuple[Segment, Any]
"""How an object's path goes on, and what lies there."""

GRAPH: Final = "<graph>"
"""This very object is the step from a tensor to the graph that made it, within which there is no path."""

ATOMS = frozenset(
    {
        *(int, float, complex, bool, str, bytes, bytearray, range, slice, CodeType),
        *(type(None), type(...), type(NotImplemented)),
    }
)
"""The types of what holds nothing, or nothing that a person would call memory."""

_OF_JUPYTER = frozenset({"IPython", "asyncio", "ipykernel", "hfmem_widget"})


def is_of_jupyter(module: object) -> bool:
    """Return whether a module runs the notebook, its event loop among it, or is ours, by its name."""
    return type(module) is str and module.partition(".")[0] in _OF_JUPYTER
