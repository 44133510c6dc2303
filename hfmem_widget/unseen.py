"""Wrappers without a visible frame: a wrapped function seems to be called by the user's code directly.

``warnings.warn(stacklevel=2)``, ``inspect.stack()[1]`` and ``sys._getframe(1)`` in a library mean its caller.
CPython hides a frame from them, and from tracebacks, until its first RESUME instruction. A function normally
begins with it, and tracers and profilers then see a call (`_PyFrame_IsIncomplete`; the same in 3.11 to 3.15).
Here it comes after the wrapped call, so that they see as many calls as returns.
"""

import dis
import functools
import itertools
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any, TypeVar

Wrapper = TypeVar("Wrapper", bound=Callable[..., Any])

UNTRIED = (3, 14)
"""The first Python whose instructions are not changed: wrong ones would crash the process."""

OVER = True
"""An expression statement in the ``finally`` at the end of a wrapper, below its calls of the wrapped."""


def unseen(wrapper: Wrapper) -> Wrapper:
    """Hide a wrapper's frame until its `OVER`, on Pythons where that was tested, and return the wrapper."""
    if sys.implementation.name == "cpython" and sys.version_info < UNTRIED:
        wrapper.__code__ = _without_its_frame(wrapper.__code__)
    return wrapper


@functools.cache
def _without_its_frame(code: CodeType) -> CodeType:
    steps = list(dis.get_instructions(code))
    instructions = bytearray(code.co_code)

    def put(name: str, begin: int, end: int) -> None:
        nothing = bytes((dis.opmap["NOP"], 0)) * ((end - begin) // 2 - 1)
        instructions[begin:end] = bytes((dis.opmap[name], 0)) + nothing

    for step, following in itertools.pairwise(steps):
        if step.opname == "RESUME":
            put("NOP", step.offset, following.offset)
        elif step.opname == "LOAD_GLOBAL" and step.argval == "OVER":
            # The value is loaded and thrown away again, in two instructions.
            put("RESUME", step.offset, following.offset + 2)
    return code.replace(co_code=bytes(instructions))
