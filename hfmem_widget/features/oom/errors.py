"""Which errors are about memory, decided strictly, and what they say; no error is kept."""

from __future__ import annotations

import errno
from collections.abc import Iterator

from hfmem_widget.features.oom.texts import OutOfMemoryText, read_text

MOST_ERRORS = 16
"""Of a chain of errors, so many are looked at."""


def out_of_memory(error: BaseException | None) -> OutOfMemoryText | None:
    """Return what an error says of memory, or one that it came from; None if memory is not its reason.

    By its type, where the type is that of such errors: ``torch.OutOfMemoryError`` and ``MemoryError``. Of
    a ``RuntimeError`` (cuBLAS, NCCL and the CPU allocator raise none but that) and an ``OSError``, by how
    its text begins.
    """
    about = about_memory(error)
    return None if about is None else _read(about)


def about_memory(error: BaseException | None) -> BaseException | None:
    """Return which error of those that one came from is about memory; it must not be kept."""
    return next((one for one in _chain(error) if _read(one) is not None), None)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and those it came from, each once."""
    waiting = [error]
    seen: set[int] = set()
    while waiting and len(seen) < MOST_ERRORS:
        one = waiting.pop(0)
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting.append(one.__cause__)
        if not one.__suppress_context__:
            waiting.append(one.__context__)
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions[:MOST_ERRORS]


def _read(error: BaseException) -> OutOfMemoryText | None:
    kinds = [(kind.__module__.partition(".")[0], kind.__name__) for kind in type(error).__mro__]
    if isinstance(error, MemoryError):
        return read_text(_text(error)) or OutOfMemoryText("python", "cpu")
    if ("torch", "OutOfMemoryError") in kinds:
        return read_text(_text(error)) or OutOfMemoryText("cuda")
    if isinstance(error, RuntimeError):
        return read_text(_text(error))
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return OutOfMemoryText("python", "cpu")
    return None


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  (an error of the user's may not be able to say what it is)
        return ""
