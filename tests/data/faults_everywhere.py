"""Raises a fault at a line of ours, the first time that a thread runs it below an entry point."""

import dis
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import hfmem_widget

Place = tuple[CodeType, int]
"""A function, and the offset in it at which a line begins."""

OURS = str(Path(hfmem_widget.__file__).parent)

CANNOT_FAIL = {
    *("RESUME", "NOP", "CACHE", "POP_TOP", "PUSH_NULL", "COPY", "SWAP", "EXTENDED_ARG", "PRECALL"),
    *(
        "LOAD_FAST",
        "LOAD_FAST_CHECK",
        "LOAD_FAST_AND_CLEAR",
        "LOAD_CONST",
        "LOAD_DEREF",
        "LOAD_CLOSURE",
    ),
    *("LOAD_FAST_LOAD_FAST", "STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST", "RETURN_CONST"),
    *("STORE_FAST", "STORE_DEREF", "DELETE_FAST", "RETURN_VALUE", "COPY_FREE_VARS", "MAKE_CELL"),
    *("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "POP_JUMP_IF_NONE"),
    *("POP_JUMP_FORWARD_IF_NONE", "POP_JUMP_FORWARD_IF_NOT_NONE", "POP_JUMP_IF_NOT_NONE"),
    *(
        "POP_JUMP_FORWARD_IF_TRUE",
        "POP_JUMP_FORWARD_IF_FALSE",
        "POP_JUMP_IF_TRUE",
        "POP_JUMP_IF_FALSE",
    ),
    *(
        "IS_OP",
        "PUSH_EXC_INFO",
        "POP_EXCEPT",
        "RERAISE",
        "CHECK_EXC_MATCH",
        "END_FOR",
        "RETURN_GENERATOR",
    ),
    *("NOT_TAKEN", "TO_BOOL", "END_SEND", "LOAD_GLOBAL"),
}
"""Instructions that take no memory and call nothing: where these alone are done, nothing can go wrong."""


class InjectedError(MemoryError):
    """A fault of ours, such as one without memory."""


@functools.cache
def places_that_can_fail(code: CodeType) -> frozenset[int]:
    """Return where in a function a line begins in which something is made or called, as offsets.

    A line that is come back to is left out: it is the end of a ``with`` block, and a lock that is not given
    back, for a fault that this tracing alone can make, would hang whoever comes next.
    """
    first: dict[int, int] = {}
    can_fail = set()
    line = code.co_firstlineno
    for one in dis.get_instructions(code):
        position = one.positions.lineno if one.positions is not None else None
        line = position or line
        if one.opname not in {"RESUME", "COPY_FREE_VARS", "MAKE_CELL", "RETURN_GENERATOR"}:
            first.setdefault(line, one.offset)
        if one.opname not in CANNOT_FAIL:
            can_fail.add(line)
    return frozenset(offset for line, offset in first.items() if line in can_fail)


class Injection:
    """Raises once at a place of ours below an entry point; without a place, it notes those reached."""

    def __init__(self, at: Place | None = None) -> None:
        self.reached: dict[Place, None] = {}  # in the order in which they were first
        self.where = ""  # it raised
        self._code: CodeType | None
        self._code, self._offset = at or (None, 0)

    def __call__(self, act: Callable[[], Any]) -> Any:
        before = sys.gettrace()
        sys.settrace(self._note if self._code is None else self._aim)
        try:
            return act()
        finally:
            sys.settrace(before)

    def _aim(self, frame: FrameType, event: str, arg: Any) -> Any:
        # Of a run that has a fault this is most of the time: other functions' lines are not looked at.
        return self._raise if frame.f_code is self._code and _is_below_an_entry(frame) else None

    def _raise(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line" and frame.f_lasti == self._offset:
            self.where = f"{frame.f_code.co_filename[len(OURS) + 1 :]}:{frame.f_lineno}"
            raise InjectedError(self.where)  # Python ends the tracing with it
        return self._raise

    def _note(self, frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(OURS) or not _is_below_an_entry(frame):
            return None
        # Once a call: a code object is hashed anew, with all it has, at each look.
        places = places_that_can_fail(code)

        def line(frame: FrameType, event: str, arg: Any) -> Any:
            if event == "line" and frame.f_lasti in places:
                self.reached.setdefault((frame.f_code, frame.f_lasti))
            return line

        return line


def _is_below_an_entry(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name == "guarded" and frame.f_code.co_filename.endswith("guard.py"):
            return True
        frame = frame.f_back
    return False
