"""The tensors that a thread's operators make and free on the CPU, in the form of the allocator's history.

A `TorchDispatchMode` sees every operator below autograd, also those of a backward pass, which the CPU runs on
the thread that asked for it. A storage that an operator returns for the first time is an allocation; it is
free when the storage goes. A storage that an operator takes, and none has returned, was there before. What an
operator allocates and frees within itself is not seen.
"""

# ruff: noqa: SLF001  (frames, storages' identities and the stack of modes are offered there only)

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from types import CodeType, ModuleType
from typing import Any

from hfmem_widget.errors import chain_of
from hfmem_widget.features.stacks import operator_mode
from hfmem_widget.features.stacks.events import ACTIONS, NOWHERE, EventRing, Stack
from hfmem_widget.features.stacks.operator_mode import (
    ProfilerWatch,
    mode_class,
    put_back,
    remove,
    seconds_of_the_way,
)
from hfmem_widget.guard import raised_by_handler, warn

MOST_EVENTS = 400_000
DEEPEST = 64  # the innermost Python frames of a stack
OUR_FILES = (__file__, operator_mode.__file__)
ALLOC, FREE_REQUESTED, FREE_COMPLETED = range(len(ACTIONS))
_LIFTED = "aten::lift_fresh"  # how `torch.tensor` brings in tensors that were made out of sight


class _Storage(weakref.ref[Any]):
    """A live storage, by the address of its C++ object, which no other has meanwhile."""

    __slots__ = ("address", "place", "size")

    address: int
    size: int
    place: int  # in the events: the operator that made it, and the stack


@dataclass(frozen=True, slots=True)
class Tracked:
    """What was seen."""

    snapshot: dict[str, Any]  # as `torch.cuda.memory._snapshot` returns it, of one device
    # The least that following cost, of this thread's own time. With gradients, torch's way to us and back is
    # longer than the one that was tried.
    seconds: float
    operators: int
    wrapped: bool  # whether the oldest events had to make room
    aside: float = 0.0  # seconds for which nothing was followed, because torch's profiler ran


class OperatorTracker:
    """Follows the storages that the calling thread's operators make; `most` events of them are kept."""

    def __init__(
        self, modules: Mapping[str, ModuleType] = sys.modules, *, most: int = MOST_EVENTS
    ) -> None:
        self._modules = modules
        self._mode: Any = None
        self._thread = 0
        self._following = False
        self._events = EventRing(most)
        self._live: dict[int, _Storage] = {}
        self._gone: deque[_Storage] = deque()
        self._seconds = 0.0
        self._operators = 0
        self._profilers = ProfilerWatch(self._stand_aside, self._come_back)
        self._depth = 0
        self._left_at: float | None = None
        self._aside = 0.0

    def begin(self) -> bool:
        """Follow the calling thread's operators; False if torch is not there."""
        torch: Any = self._modules.get("torch")
        if getattr(getattr(torch, "__spec__", None), "_initializing", False):
            return False
        dispatch = getattr(getattr(torch, "utils", None), "_python_dispatch", None)
        if not hasattr(dispatch, "TorchDispatchMode"):
            return False
        self._mode = mode_class(torch)(self.before, self.after)
        self._thread = threading.get_ident()
        self._following = True
        self._mode.__enter__()
        if self._profilers.begin(torch):
            self._stand_aside()
        return True

    def pause(self) -> None:
        """See nothing from now on; on any thread. The mode stays until the end."""
        self._following = False

    def end(self) -> Tracked | None:
        """Follow no longer, and return what was seen; None if nothing was followed."""
        mode, self._mode = self._mode, None
        if mode is None:
            return None
        self._profilers.end()
        self._note_gone()
        self._following = False
        per_operator = 0.0
        if self._left_at is not None:
            self._aside += time.perf_counter() - self._left_at
        if threading.get_ident() == self._thread:
            remove(mode)
            per_operator = seconds_of_the_way(self._modules["torch"])
        live = [(at, storage.size, storage.place) for at, storage in list(self._live.items())]
        tracked = Tracked(
            snapshot=self._events.snapshot(live),
            seconds=self._seconds + self._operators * per_operator,
            operators=self._operators,
            wrapped=self._events.seen > len(self._events),
            aside=self._aside,
        )
        self._live.clear()
        return tracked

    def _stand_aside(self) -> None:
        """Leave the operators to torch's profiler, which would count each twice: before us and after."""
        if threading.get_ident() == self._thread and self._left_at is None:
            self._depth = remove(self._mode)
            self._left_at = time.perf_counter() if self._depth >= 0 else None

    def _come_back(self) -> None:
        if threading.get_ident() == self._thread and self._left_at is not None:
            self._aside += time.perf_counter() - self._left_at
            self._left_at = None
            put_back(self._mode, self._depth)

    def before(self, func: Any, args: Any, kwargs: Any) -> str:
        """Note what an operator takes that was never made; return its name, empty if nothing is followed."""
        if not self._following:
            return ""
        began = time.thread_time()
        name = ""
        try:
            self._note_gone()
            name = _name_of(func)
            if name != _LIFTED:
                self._look((*args, *(kwargs or {}).values()), None)
        except RecursionError:
            pass  # the user's own frames leave no room for ours here
        except Exception as error:  # noqa: BLE001  (a fault of ours must not reach the user's operator)
            self._give_up(error)
        self._seconds += time.thread_time() - began
        return name

    def after(self, name: str, result: Any) -> None:
        """Note what an operator made."""
        if not name or not self._following:
            return
        began = time.thread_time()
        try:
            self._operators += 1
            self._note_gone()
            self._look((result,), name)
        except RecursionError:
            pass
        except Exception as error:  # noqa: BLE001
            self._give_up(error)
        self._seconds += time.thread_time() - began

    def _give_up(self, error: Exception) -> None:
        if raised_by_handler(error):
            raise error
        self._following = False
        warn(f"stacks are no longer recorded ({type(error).__name__}: {error})")

    def _look(self, values: Any, made_by: str | None) -> None:
        """Note the storages among some values that are new: made by an operator, or there before."""
        tensor = self._modules["torch"].Tensor
        for value in values:
            if isinstance(value, tensor):
                self._note(value, made_by)
            elif isinstance(value, (list, tuple)):
                self._look(value, made_by)

    def _note(self, tensor: Any, made_by: str | None) -> None:
        try:
            storage = tensor.untyped_storage()
            address, size = storage._cdata, storage.nbytes()
            tracked = self._live.get(address)
            is_known = tracked is not None and tracked.size == size
            if is_known or storage.device.type != "cpu" or not size:
                return
        except (RuntimeError, NotImplementedError, AttributeError):
            return  # sparse, fake, functional: a tensor without a storage of its own
        if tracked is not None:  # resized: its bytes lie elsewhere now
            self._free(tracked)
        # No Python of ours may run where a storage goes: an interrupt that came there would be lost.
        noted = self._live[address] = _Storage(storage, self._gone.append)
        noted.address, noted.size, noted.place = address, size, NOWHERE
        if made_by is not None:
            noted.place = self._events.place(made_by, self._stack())
            self._events.add(ALLOC, address, size, time.time(), noted.place)

    def _note_gone(self) -> None:
        """Note which storages are gone since the last operator."""
        while self._gone:
            self._free(self._gone.popleft())

    def _free(self, storage: _Storage) -> None:
        if self._live.get(storage.address) is storage:
            del self._live[storage.address]
            if self._following:
                now = time.time()
                self._events.add(FREE_REQUESTED, storage.address, storage.size, now)
                self._events.add(FREE_COMPLETED, storage.address, storage.size, now)

    def _stack(self) -> Stack:
        """Return the Python frames that lead here, innermost first, without IPython's."""
        frames: list[tuple[CodeType, int]] = []
        frame: Any = sys._getframe(1)
        while frame is not None and len(frames) < DEEPEST:
            code = frame.f_code
            if code.co_name in {"run_code", "run_ast_nodes"} and "IPython" in code.co_filename:
                break
            if code.co_filename not in OUR_FILES:
                frames.append((code, frame.f_lineno))
            frame = frame.f_back
        return tuple(frames)


def _name_of(func: Any) -> str:
    """Return an operator's name, such as ``aten::mm``."""
    try:
        return str(func._schema.name)
    except AttributeError:
        return str(func)


def without_frames_of_ours(error: BaseException) -> None:
    """Take our frames out of the tracebacks of an error and of those it came from: we called no operator."""
    for cause in chain_of(error):
        before, entry = None, cause.__traceback__
        while entry is not None:
            if entry.tb_frame.f_code.co_filename not in OUR_FILES:
                before = entry
            elif before is None:
                cause.__traceback__ = entry.tb_next
            else:
                before.tb_next = entry.tb_next
            entry = entry.tb_next
