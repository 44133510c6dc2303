"""The referents of errors, tracebacks, generators and frames."""

from __future__ import annotations

import gc
import inspect
import sys
from collections.abc import Iterator
from itertools import chain, takewhile
from traceback import walk_tb
from types import AsyncGeneratorType, CoroutineType, FrameType, GeneratorType
from typing import Any

from hfmem_widget.sources.heap.paths import ARROW, ATOMS, Held, is_big, is_of_jupyter


def in_exception(error: Any) -> Iterator[Held]:
    """Yield the frames that an error keeps, the errors before it, and its arguments."""
    for name in ("__traceback__", "__context__", "__cause__", "args"):
        held = vars(BaseException)[name].__get__(error)
        if held is not None:
            yield ("" if name == "__traceback__" else f".{name}"), held
    if issubclass(type(error), BaseExceptionGroup):
        yield ".exceptions", vars(BaseExceptionGroup)["exceptions"].__get__(error)


def in_traceback(traceback: Any) -> Iterator[Held]:
    """Yield the frames of a traceback that no longer run, and those that had called them."""
    live = {id(frame) for frame in running_frames()}
    # What called the function that caught the error is kept by the error as well.
    frames = [*takewhile(lambda at: id(at) not in live, outwards(traceback.tb_frame.f_back))][::-1]
    frames += [frame for frame, _ in walk_tb(traceback)]
    path = ""
    for frame in frames:
        if is_users_function(frame):
            path += f"{ARROW}{frame.f_code.co_name}()"
        if id(frame) not in live:
            yield path, frame


def outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame and those that it was called from."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def running_frames() -> Iterator[FrameType]:
    """Yield the frames that run: the threads' current ones, and their callers'."""
    # No variable has the frames, among which is this function's own: it would keep itself.
    return chain.from_iterable(map(outwards, sys._current_frames().values()))  # noqa: SLF001


def is_users_function(frame: FrameType) -> bool:
    """Return whether a frame is a function's, not a module's with globals for variables, nor Jupyter's."""
    is_function = bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED)
    return is_function and not is_of_jupyter(frame.f_globals.get("__name__"))


def in_frame(frame: Any, owner: object = None) -> Iterator[Held]:
    """Yield the variables of a function's frame, which a generator may own."""
    if not is_users_function(frame):
        return
    # Until 3.12 the frame keeps the dict that it hands out, and with it each value, even one that the
    # function has let go since. One that was made for us is emptied again, but not while a debugger stands in
    # the function: Python then takes the variables back from that dict.
    has_own_dict = sys.version_info < (3, 13) and sys.gettrace() is None
    kept = {id(held) for held in gc.get_referents(frame, owner) if type(held) is dict}
    variables = frame.f_locals
    items = list(variables.items())
    if has_own_dict and id(variables) not in kept:
        variables.clear()
    for name, held in items:
        if type(held) not in ATOMS or is_big(held):
            yield f"{ARROW}{name}", held


def variables_of(error: BaseException) -> Iterator[Any]:
    """Yield the variables of the functions that an error came through, outermost first, and dicts' values."""
    for frame, _ in walk_tb(error.__traceback__):
        for _, held in in_frame(frame):
            yield held
            if type(held) is dict:
                yield from held.values()


def in_generator(generator: Any) -> Iterator[Held]:
    """Yield the variables of a suspended generator or coroutine, and what it waits for."""
    prefix = {GeneratorType: "gi", CoroutineType: "cr", AsyncGeneratorType: "ag"}[type(generator)]
    frame = getattr(generator, f"{prefix}_frame")
    if frame is not None and not getattr(generator, f"{prefix}_running"):
        yield from in_frame(frame, generator)
    waits_for = getattr(generator, f"{prefix}_{'yieldfrom' if prefix == 'gi' else 'await'}")
    if waits_for is not None:
        yield "", waits_for
