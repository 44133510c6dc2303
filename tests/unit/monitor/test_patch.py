"""A method of somebody else's class can be surrounded unseen, and put back."""

import functools
import inspect
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType, ModuleType
from typing import Any
from unittest.mock import Mock

import pytest

from hfmem_widget import follow, span, watch
from hfmem_widget.monitor.patch import restore, surround
from hfmem_widget.sources.torch_cuda import CudaAllocator
from tests.data.timeouts import TimeIsUpError, time_is_up
from tests.fakes.torch_cuda import FakeAllocator, FakeTorch
from tests.unit.sources.conftest import pass_on


class Owner:
    def work(self, number: int = 1) -> int:
        """Do it."""
        return 2 * number


@pytest.fixture
def owner() -> type[Owner]:
    return type("Owner", (), dict(vars(Owner)))


def _entered(calls: list[object]) -> Callable[[object], AbstractContextManager[object]]:
    def around(caller: object) -> AbstractContextManager[object]:
        calls.append(caller)
        return nullcontext()

    return around


def test_a_call_happens_in_the_context(owner: type[Owner]) -> None:
    """The context is entered before and left after, and the result is the method's."""
    log: list[str] = []

    @contextmanager
    def around(_owner: object) -> Iterator[None]:
        log.append("before")
        yield
        log.append("after")

    surround(owner, "work", around)

    assert owner().work(number=4) == 8
    assert log == ["before", "after"]


def test_an_error_passes_through(owner: type[Owner]) -> None:
    """The context sees it, and the caller gets the very same object."""
    error = KeyError("x")
    errors: list[BaseException] = []

    def broken(self: object) -> None:
        raise error

    @contextmanager
    def around(_owner: object) -> Iterator[None]:
        try:
            yield
        except KeyError as passing:
            errors.append(passing)
            raise

    owner.work = broken  # type: ignore[method-assign,assignment]  # a method that raises
    surround(owner, "work", around)
    with pytest.raises(KeyError) as raised:
        owner().work()

    assert raised.value is error
    assert errors == [error]


def test_name_signature_and_docstring_stay(owner: type[Owner]) -> None:
    """Inspection of the method shows the original."""
    original = owner.work
    surround(owner, "work", lambda _owner: pytest.fail("not called"))

    assert inspect.signature(owner.work) == inspect.signature(original)
    assert (owner.work.__name__, owner.work.__doc__) == ("work", "Do it.")


def test_restoring_puts_the_original_back(owner: type[Owner]) -> None:
    """Restoring puts the very same function back, and once more does nothing."""
    original = owner.work
    surround(owner, "work", lambda _owner: pytest.fail("not called"))
    restore(owner, "work")
    restore(owner, "work")

    assert owner.work is original


def test_a_missing_method_is_left_out(owner: type[Owner]) -> None:
    """A method that this release lacks is left out."""
    surround(owner, "play", lambda _owner: pytest.fail("not called"))

    assert not hasattr(owner, "play")


def test_our_fault_leaves_the_call(owner: type[Owner], capsys: pytest.CaptureFixture[str]) -> None:
    """It is reported in one line, and the method runs."""
    surround(owner, "work", Mock(side_effect=RuntimeError("broken")))
    assert owner().work(3) == 6
    assert capsys.readouterr().err.count("broken") == 1


@pytest.mark.usefixtures("timeout")
def test_a_timeout_of_the_users_is_not_a_fault_of_ours(owner: type[Owner]) -> None:
    """An exception of a signal handler during our code reaches the caller."""

    def around(_owner: object) -> AbstractContextManager[object]:
        time_is_up()
        return nullcontext()

    surround(owner, "work", around)
    with pytest.raises(TimeIsUpError):
        owner().work()


class Kinds:
    @classmethod
    def of_class(cls, number: int = 1) -> tuple[type, int]:
        return cls, number

    @staticmethod
    def of_nobody(number: int = 1) -> int:
        return number


class Derived(Kinds):
    pass


somebody_elses = ModuleType("somebody_elses")
somebody_elses.of_nobody = Kinds.of_nobody  # type: ignore[attr-defined]  # a module made here


@pytest.mark.parametrize(
    ("owner", "name", "whole_call", "results", "calls"),
    [
        (Kinds, "of_class", False, ((Derived, 2), (Kinds, 3)), [((Derived,), {}), ((Kinds,), {})]),
        (Kinds, "of_nobody", True, (2, 3), [((2,), {}), ((), {"number": 3})]),
        (somebody_elses, "of_nobody", True, (2, 3), [((2,), {}), ((), {"number": 3})]),
    ],
    ids=["class method", "static method", "function of a module"],
)
def test_what_is_no_method_is_surrounded_and_restored(
    owner: Any, name: str, whole_call: bool, results: object, calls: object
) -> None:
    """The context of a class method gets the class; on request it gets all arguments of a call."""
    contexts: list[object] = []
    original = vars(owner)[name]

    @contextmanager
    def around(*args: object, **kwargs: object) -> Iterator[None]:
        contexts.append((args, kwargs))
        yield

    surround(owner, name, around, whole_call=whole_call)
    derived, instance = (Derived, Kinds()) if owner is Kinds else (owner, owner)
    result = getattr(derived, name)(2), getattr(instance, name)(number=3)
    restore(owner, name)

    assert result == results
    assert contexts == calls
    assert vars(owner)[name] is original


def _around(ours: Callable[..., int]) -> Callable[..., int]:
    def theirs(self: object) -> int:
        return ours(self)

    return theirs


@pytest.mark.parametrize("is_restored", [False, True])
@pytest.mark.parametrize(
    "wrapped",
    [lambda ours: ours, lambda ours: functools.wraps(ours)(_around(ours)), _around],
    ids=["unwrapped", "by a wrapper that names ours", "by an unmarked wrapper"],
)
def test_a_call_is_followed_once(
    owner: type[Owner], wrapped: Callable[[Any], Any], *, is_restored: bool
) -> None:
    """That holds where another library has wrapped the method meanwhile, whose wrapper stays."""
    calls: list[object] = []
    surround(owner, "work", _entered(calls))
    ours = owner.work
    owner.work = theirs = wrapped(ours)  # type: ignore[method-assign]
    if is_restored:
        restore(owner, "work")
        assert theirs is ours or owner.work is theirs
    surround(owner, "work", _entered(calls))
    owner().work()

    assert len(calls) == 1


def test_ours_that_somebody_puts_back_does_nothing(owner: type[Owner]) -> None:
    """A wrapper of ours that is put back does nothing until the next watch, which uses it and removes it."""
    calls: list[object] = []
    original = owner.work
    surround(owner, "work", _entered(calls))
    ours = owner.work
    owner.work = _around(ours)  # type: ignore[method-assign]
    restore(owner, "work")
    owner.work = ours  # type: ignore[method-assign]
    owner().work()
    assert calls == []

    surround(owner, "work", _entered(calls))
    owner().work()
    restore(owner, "work")

    assert len(calls) == 1
    assert owner.work is original


def of_a_library(*_: object, fails: bool = False) -> tuple[set[str], str]:
    """Return what a library can tell of its caller: its file, in three ways, and its name."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn("old", DeprecationWarning, stacklevel=2)
    if fails:
        raise ValueError
    caller = sys._getframe(1).f_code
    files = {caught[0].filename, caller.co_filename, inspect.stack()[1].filename}
    return files, caller.co_name


class Library:
    method = of_a_library
    of_class: Any = classmethod(of_a_library)
    of_nobody = staticmethod(of_a_library)


library = ModuleType("library")
library.function = of_a_library  # type: ignore[attr-defined]  # made here


@contextmanager
def around(*_: object) -> Iterator[None]:
    yield


PLACES: dict[str, tuple[Any, Any]] = {
    "method": (Library, Library()),
    "of_class": (Library, Library),
    "of_nobody": (Library, Library),
    "function": (library, library),
}
"""Where each is surrounded, and on what it is called."""


@pytest.fixture(params=[True, False], ids=["watched", "let alone"])
def surrounded(request: pytest.FixtureRequest) -> Iterator[None]:
    for name, (owner, _) in PLACES.items():
        surround(owner, name, around, unless=lambda: not request.param)
    yield
    for name, (owner, _) in PLACES.items():
        restore(owner, name)


@pytest.mark.usefixtures("surrounded")
@pytest.mark.parametrize("name", PLACES)
def test_a_surrounded_function_is_called_by_the_user(name: str) -> None:
    """Warnings point to the user's line, and `inspect.stack` and `sys._getframe` have the user's frame."""
    callers = getattr(PLACES[name][1], name)()

    assert callers == ({__file__}, "test_a_surrounded_function_is_called_by_the_user")


@pytest.mark.usefixtures("surrounded")
@pytest.mark.parametrize("name", PLACES)
def test_an_error_has_the_users_frames_alone(name: str) -> None:
    """The traceback of an error has no frame of ours."""
    with pytest.raises(ValueError) as raised:  # noqa: PT011  (without a text)
        getattr(PLACES[name][1], name)(fails=True)

    frames = [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
    assert frames == ["test_an_error_has_the_users_frames_alone", "of_a_library"]


@pytest.mark.usefixtures("surrounded")
@pytest.mark.parametrize("fails", [True, False])
def test_a_profiler_hears_of_as_many_calls_as_returns(fails: bool) -> None:
    """A profiler gets as many returns as calls, so that it assigns the user's time to the right functions."""
    counts: Counter[tuple[str, str]] = Counter()

    def count_event(frame: FrameType, event: str, _argument: object) -> None:
        counts[frame.f_code.co_qualname, event] += 1

    library_object = Library()
    sys.setprofile(count_event)
    try:
        library_object.method(fails=fails)
    except ValueError:
        pass
    finally:
        sys.setprofile(None)

    names = {name for name, event in counts if event in {"call", "return"}}
    assert any("surrounded" in name for name in names)
    assert all(counts[name, "call"] == counts[name, "return"] for name in names)


@pytest.mark.parametrize("decorator", [span("mine"), watch(quiet=True), follow])
def test_what_is_decorated_is_called_by_the_user(decorator: Callable[..., Any]) -> None:
    """A function that warns of its caller's line goes on doing so."""
    callers = decorator(of_a_library)()

    assert callers == ({__file__}, "test_what_is_decorated_is_called_by_the_user")


def test_the_memory_counters_of_torch_are_called_by_the_user() -> None:
    """Where they are wrapped and the call is not for us, the original's caller is the user's."""
    torch: Any = FakeTorch(FakeAllocator())
    torch._C._cuda_memoryStats = of_a_library
    allocator = CudaAllocator({"torch": torch})
    allocator.install(pass_on, pass_on)
    callers = torch._C._cuda_memoryStats("none of ours")
    allocator.uninstall()

    assert callers[0] == {__file__}
