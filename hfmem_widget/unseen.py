"""Wrappers whose frame nobody sees: what they call is called by the user's code, as if nothing stood between.

``warnings.warn(stacklevel=2)``, ``inspect.stack()[1]`` and ``sys._getframe(1)`` in a library mean its caller.
CPython shows a frame in none of them, and in no traceback, before its first RESUME instruction. With that a
function begins, and a tracer and a profiler hear of its call (`_PyFrame_IsIncomplete`; the same in 3.11 to
3.15). Here it comes only once what is wrapped is over, so that they hear of as many calls as returns.
"""

from __future__ import annotations

import dis
import functools
import itertools
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any, TypeVar

Wrapper = TypeVar("Wrapper", bound=Callable[..., Any])

UNTRIED = (3, 14)
"""The Python from which on instructions are left as they are: wrong ones would end the process."""

OVER = True
"""Stands by itself in the ``finally`` that ends a wrapper, which has one call of what it wraps, above it."""


def unseen(wrapper: Wrapper) -> Wrapper:
    """Have a wrapper's frame not be seen before its `OVER`, where that was tried, and return the wrapper."""
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
