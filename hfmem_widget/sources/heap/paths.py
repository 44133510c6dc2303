"""The segments of a path, and the objects at which every path ends."""

from __future__ import annotations

from types import CodeType
from typing import Any, Final

ARROW = " \u2192 "

Segment = str | tuple[int] | tuple[str, int]
"""Text; or the index, or the key as text and number, of an item of a container whose items share a row."""

Held = tuple[Segment, Any]
"""The next segment of a path, and the object it leads to."""

OPEN_FIGURES = "pyplot's open figures"
UNNAMED = "objects that no name leads to"
LIBRARY = "the library "
"""With the name of one, and of its module, the beginning of a path: ``the library torch → torch._dynamo``."""

GRAPH: Final = "<graph>"
"""This very object is the step from a tensor to the graph that made it, within which there is no path."""

TEXTS = frozenset({str, bytes, bytearray})
BIG = 2**16
"""The characters or bytes from which on a text is looked at like any object."""

ATOMS = frozenset(
    {
        *TEXTS,
        *(int, float, complex, bool, range, slice, CodeType),
        *(type(None), type(...), type(NotImplemented)),
    }
)
"""Types whose objects hold no other object, or none that a person would call memory."""


def is_big(value: Any) -> bool:
    """Return whether an object is a text of so many characters or bytes that it has a row of its own."""
    return type(value) in TEXTS and len(value) >= BIG


_OF_JUPYTER = frozenset({"IPython", "asyncio", "ipykernel", "hfmem_widget"})


def is_of_jupyter(module: object) -> bool:
    """Return whether a module runs the notebook, its event loop among it, or is ours, by its name."""
    return type(module) is str and module.partition(".")[0] in _OF_JUPYTER
