"""The tensors that a thread's operators allocate and free on the CPU, in the form of the allocator's history.

A `TorchDispatchMode` sees every operator below autograd, also those of a backward pass: on the CPU it runs on
the thread that started it. A storage counts as allocated when an operator first returns it, and as freed when
it is destroyed. The storage of an argument that no operator has returned existed before. Temporaries inside
an operator are not seen.
"""

# ruff: noqa: SLF001  (frames, storages' identities, modes and their stack are offered there only)

import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from struct import Struct
from types import CodeType
from typing import Any

from hfmem_widget.errors import chain_of
from hfmem_widget.guard import harmless, raised_by_handler, warn
from hfmem_widget.monitor.companion import begun
from hfmem_widget.monitor.patch import Place, restore_all, surround_all
from hfmem_widget.session.stacks import OPERATOR

ACTIONS = ("alloc", "free_requested", "free_completed")

Stack = tuple[tuple[CodeType, int], ...]
"""Code and line of each Python frame, innermost first."""

NOWHERE = 0  # the place of a block whose operator and stack are unknown

_EVENT = Struct("<BQQdI")

_HOME = "torch.autograd.profiler"

MOST_EVENTS = 400_000
DEEPEST = 64  # the innermost Python frames of a stack
ALLOC, FREE_REQUESTED, FREE_COMPLETED = range(len(ACTIONS))
_LIFTED = "aten::lift_fresh"  # by which `torch.tensor` hands over a tensor made elsewhere


class EventRing:
    """Keeps the newest `most` events.

    They are packed as bytes: so many tuples would make Python's garbage collector run far more often, and an
    interrupt during a collection can get lost.
    """

    def __init__(self, most: int) -> None:
        self.seen = 0  # number of events so far
        self._most = most
        self._packed = bytearray()
        # The numbers of the places: operators with their stacks, in order.
        self._places: dict[tuple[str, Stack], int] = {("", ()): NOWHERE}

    def __len__(self) -> int:
        return min(self.seen, self._most)

    def place(self, operator: str, stack: Stack) -> int:
        """Return the number of an operator with a stack; equal places have one number."""
        return self._places.setdefault((operator, stack), len(self._places))

    def add(self, action: int, address: int, size: int, time: float, place: int = NOWHERE) -> None:
        """Add an event, by the position of its action in `ACTIONS`."""
        at = self.seen % self._most * _EVENT.size
        if at == len(self._packed):
            self._packed += bytes(_EVENT.size)
        _EVENT.pack_into(self._packed, at, action, address, size, time, place)
        self.seen += 1

    def snapshot(self, live: Iterable[tuple[int, int, int]]) -> dict[str, Any]:
        """Return the kept events in the form of `torch.cuda.memory._snapshot`, of one device.

        `live` has the address, bytes and place of each block after them; each becomes a segment of its own.
        """
        # Events with the same stack share one list, as in the allocator's snapshot.
        frames = [_frames(operator, stack) for operator, stack in self._places]
        trace = []
        for number in range(self.seen - len(self), self.seen):
            at = number % self._most * _EVENT.size
            action, address, size, time, place = _EVENT.unpack_from(self._packed, at)
            event = {"action": ACTIONS[action], "addr": address, "size": size, "stream": 0}
            trace.append(event | {"time_us": int(time * 1e6), "frames": frames[place]})
        return {
            "segments": [_segment(address, size, frames[place]) for address, size, place in live],
            "device_traces": [trace],
            "allocator_settings": {},
            "external_annotations": [],
        }


def _frames(operator: str, stack: Stack) -> list[dict[str, Any]]:
    innermost = [{"filename": OPERATOR, "line": 0, "name": operator}] if operator else []
    return innermost + [
        {"filename": code.co_filename, "line": line, "name": code.co_qualname}
        for code, line in stack
    ]


def _segment(address: int, size: int, frames: list[dict[str, Any]]) -> dict[str, Any]:
    sizes = ("total_size", "allocated_size", "active_size", "requested_size")
    place = {"device": 0, "address": address, "stream": 0, "segment_pool_id": (0, 0)}
    block = {"address": address, "size": size, "requested_size": size, "frames": frames}
    blocks = [block | {"state": "active_allocated"}]
    kind = {"segment_type": "large", "is_expandable": False, "frames": []}
    return place | kind | dict.fromkeys(sizes, size) | {"blocks": blocks}


def mode_class(torch: Any) -> Any:
    """Return the class of the mode, which is derived from torch's own and exists only once torch does.

    A mode calls `seen` with the arguments and with the results of each operator.
    """
    base: Any = torch.utils._python_dispatch.TorchDispatchMode

    class FollowOperators(base):  # type: ignore[misc]  # torch is the user's own: no type to be had
        def __init__(self, seen: Callable[[Any, Any, str], str]) -> None:
            super().__init__()
            self.seen = seen

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            __tracebackhide__ = True  # IPython leaves out frames that have this
            name = self.seen(func, (*args, *(kwargs or {}).values()), "")
            try:
                result = func(*args, **(kwargs or {}))
            except BaseException as error:
                # A bare `raise` continues with this traceback, without this frame.
                without_frames_of_ours(error)
                raise
            if name:
                self.seen(func, (result,), name)
            return result

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            # If True, torch would import its whole compiler, which takes seconds, and go through it at every
            # operator. Compiled code does not trace into this function, as a test holds.
            return False

        @classmethod
        def ignore_compile_internals(cls) -> bool:
            # The user's compiled code stays compiled.
            return True

    return FollowOperators


def remove(mode: Any) -> int:
    """Remove our mode from the thread's stack; return the number of modes below it, or -1 if it is absent."""
    depth = next((at for at, other in enumerate(_modes()) if other is mode), -1)
    if depth >= 0:
        _without_those_above(depth + 1, lambda: mode.__exit__(None, None, None))
    return depth


def _without_those_above(depth: int, change: Callable[[], object]) -> None:
    dispatch: Any = sys.modules["torch.utils._python_dispatch"]
    above = _modes()[depth:]
    for _ in above:
        dispatch._pop_mode()
    change()
    for mode in above:
        dispatch._push_mode(mode)


def _modes() -> list[Any]:
    dispatch: Any = sys.modules["torch.utils._python_dispatch"]
    return list(dispatch._get_current_dispatch_mode_stack())


class _Storage(weakref.ref[Any]):
    """A live storage, by the address of its C++ object, which is unique while it lives."""

    __slots__ = ("address", "place", "size")

    address: int
    size: int
    place: int  # the number in the events of its operator with the stack


@dataclass(frozen=True, slots=True)
class Tracked:
    """The record of an `OperatorTracker`."""

    snapshot: dict[str, Any]  # in the form of `torch.cuda.memory._snapshot`, of one device
    seconds: float
    """CPU time of recording on this thread; a lower bound, without torch's own overhead of the mode."""
    wrapped: bool  # whether the oldest events were overwritten
    aside: float = 0.0  # seconds without a record, while torch's profiler ran


class OperatorTracker:
    """Follows the storages that the calling thread's operators allocate; keeps the newest `most` events."""

    def __init__(self, *, most: int = MOST_EVENTS) -> None:
        self._mode: Any = None
        self._thread = 0
        self._following = False
        self._events = EventRing(most)
        self._live: dict[int, _Storage] = {}
        self._gone: deque[_Storage] = deque()
        self._seconds = 0.0
        self._depth = 0
        self._left_at: float | None = None
        self._aside = 0.0

    def begin(self) -> bool:
        """Follow the calling thread's operators; return False if torch is not imported."""
        torch: Any = sys.modules.get("torch")
        if torch is None or getattr(getattr(torch, "__spec__", None), "_initializing", False):
            return False
        self._mode = mode_class(torch)(self.seen)
        self._thread = threading.get_ident()
        self._following = True
        self._mode.__enter__()
        begun(OperatorTracker).append(self)
        surround_all(PLACES)
        if getattr(sys.modules.get(_HOME), "_is_profiler_enabled", False):
            self.stand_aside()
        return True

    def pause(self) -> None:
        """Stop recording, from any thread; the mode stays until `end`."""
        self._following = False

    def end(self) -> Tracked | None:
        """Remove the mode, and return the record; None if none was begun."""
        mode, self._mode = self._mode, None
        if mode is None:
            return None
        trackers = begun(OperatorTracker)
        if self in trackers:
            trackers.remove(self)
            if not trackers:
                restore_all(PLACES)
        self._note_gone()
        self._following = False
        if self._left_at is not None:
            self._aside += time.perf_counter() - self._left_at
        if threading.get_ident() == self._thread:
            remove(mode)
        live = [(at, storage.size, storage.place) for at, storage in list(self._live.items())]
        tracked = Tracked(
            snapshot=self._events.snapshot(live),
            seconds=self._seconds,
            wrapped=self._events.seen > len(self._events),
            aside=self._aside,
        )
        self._live.clear()
        return tracked

    def stand_aside(self) -> None:
        """Remove the mode while torch's profiler runs, which would otherwise count each operator twice."""
        if threading.get_ident() == self._thread and self._left_at is None:
            self._depth = remove(self._mode)
            self._left_at = time.perf_counter() if self._depth >= 0 else None

    def come_back(self) -> None:
        """Restore the mode once the profiler has ended."""
        if threading.get_ident() == self._thread and self._left_at is not None:
            self._aside += time.perf_counter() - self._left_at
            self._left_at = None
            _without_those_above(self._depth, self._mode.__enter__)

    def seen(self, func: Any, values: Any, made_by: str) -> str:
        """Note new storages among an operator's arguments, or among its results if `made_by` is its name.

        Return the operator's name; empty if nothing is recorded.
        """
        if not self._following:
            return ""
        began = time.thread_time()
        name = made_by
        try:
            self._note_gone()
            name = name or _name_of(func)
            if made_by or name != _LIFTED:
                self._look(values, made_by)
        except RecursionError:
            pass  # the user's frames have used up the stack
        except Exception as error:
            if raised_by_handler(error):
                raise
            # A fault of ours must not reach the user's operator.
            self._following = False
            warn(f"stacks are no longer recorded ({type(error).__name__}: {error})")
        self._seconds += time.thread_time() - began
        return name

    def _look(self, values: Any, made_by: str) -> None:
        tensor = sys.modules["torch"].Tensor
        for value in values:
            if isinstance(value, tensor):
                self._note(value, made_by)
            elif isinstance(value, (list, tuple)):
                self._look(value, made_by)

    def _note(self, tensor: Any, made_by: str) -> None:
        try:
            storage = tensor.untyped_storage()
            address, size = storage._cdata, storage.nbytes()
            tracked = self._live.get(address)
            is_known = tracked is not None and tracked.size == size
            if is_known or storage.device.type != "cpu" or not size:
                return
        except (RuntimeError, NotImplementedError, AttributeError):
            return  # a tensor without a storage of its own: sparse, fake or functional
        if tracked is not None:  # it was resized, and has other bytes now
            self._free(tracked)
        # The callback is not Python code: an interrupt in one that runs as a storage is destroyed is lost.
        noted = self._live[address] = _Storage(storage, self._gone.append)
        noted.address, noted.size, noted.place = address, size, NOWHERE
        if made_by:
            noted.place = self._events.place(made_by, self._stack())
            self._events.add(ALLOC, address, size, time.time(), noted.place)

    def _note_gone(self) -> None:
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
        frames: list[tuple[CodeType, int]] = []
        frame: Any = sys._getframe(1)
        while frame is not None and len(frames) < DEEPEST:
            code = frame.f_code
            if code.co_name in {"run_code", "run_ast_nodes"} and "IPython" in code.co_filename:
                break
            if code.co_filename != __file__:
                frames.append((code, frame.f_lineno))
            frame = frame.f_back
        return tuple(frames)


@contextmanager
def _calling_back(called: Callable[[OperatorTracker], None]) -> Iterator[None]:
    for tracker in tuple(begun(OperatorTracker)):
        harmless(called, tracker)
    yield


PLACES = (
    Place(_HOME, "", "_run_on_profiler_start", partial(_calling_back, OperatorTracker.stand_aside)),
    Place(_HOME, "", "_run_on_profiler_stop", partial(_calling_back, OperatorTracker.come_back)),
)
"""The functions that torch (since 2.1) calls before a profiler of any kind begins and after it has ended, on
its thread. They are surrounded while operators are followed."""


def _name_of(func: Any) -> str:
    try:
        return str(func._schema.name)
    except AttributeError:
        return str(func)


def without_frames_of_ours(error: BaseException) -> None:
    """Remove our frames, and torch's of our calls, from the tracebacks of an error and of its causes."""
    for cause in chain_of(error):
        before, entry, is_hidden = None, cause.__traceback__, False
        while entry is not None:
            file = entry.tb_frame.f_code.co_filename
            is_hidden = file == __file__ or (is_hidden and file.endswith("_ops.py"))
            if not is_hidden:
                before = entry
            elif before is None:
                cause.__traceback__ = entry.tb_next
            else:
                before.tb_next = entry.tb_next
            entry = entry.tb_next
