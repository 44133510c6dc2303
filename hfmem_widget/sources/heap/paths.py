"""The segments of paths through the heap, and the types of objects at which paths end."""

from __future__ import annotations

from types import CodeType
from typing import Any, Final

ARROW = " \u2192 "

Segment = str | tuple[int] | tuple[str, int]
"""Text; or the index, or the key as text and hash, of an item of a container whose items share a row."""

Held = tuple[Segment, Any]
"""The next segment of a path, and the object it leads to."""

OPEN_FIGURES = "pyplot's open figures"
UNNAMED = "objects that no name leads to"
LIBRARY = "the library "
"""Begins the path of memory that a library holds: ``the library torch → torch._dynamo``."""

GRAPH: Final = "<graph>"
"""The step from a tensor to the graph that made it, as this very object; a graph has one path only."""

TEXTS = frozenset({str, bytes, bytearray})
BIG = 2**16
"""The characters or bytes from which on a text has a row of its own."""

ATOMS = TEXTS | {int, float, complex, bool, range, slice, CodeType}
ATOMS |= {type(None), type(...), type(NotImplemented)}
"""Types whose objects hold no other object, or none that a person would call memory."""


def is_big(value: Any) -> bool:
    """Return whether an object is a text with a row of its own."""
    return type(value) in TEXTS and len(value) >= BIG


def is_of_jupyter(module: object) -> bool:
    """Return whether a module of this name runs the notebook and its event loop, or is ours."""
    ours = {"IPython", "asyncio", "ipykernel", "hfmem_widget"}
    return type(module) is str and module.partition(".")[0] in ours
