"""A method of somebody else's class can be surrounded, and put back."""

from __future__ import annotations

import functools
import inspect
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import ModuleType

import pytest

from hfmem_widget.monitor.patch import restore, surround


class Owner:
    def work(self, number: int = 1) -> int:
        """Do it."""
        return 2 * number


@pytest.fixture
def owner() -> type[Owner]:
    """Return a class of its own for each test."""
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
    seen: list[BaseException] = []

    def broken(self: object) -> None:
        raise error

    @contextmanager
    def around(_owner: object) -> Iterator[None]:
        try:
            yield
        except KeyError as passing:
            seen.append(passing)
            raise

    owner.work = broken  # type: ignore[method-assign,assignment]  # a method that raises
    surround(owner, "work", around)
    with pytest.raises(KeyError) as raised:
        owner().work()

    assert raised.value is error
    assert seen == [error]


def test_it_is_surrounded_once(owner: type[Owner]) -> None:
    """Doing it again changes nothing."""
    calls: list[object] = []

    surround(owner, "work", _entered(calls))
    surround(owner, "work", _entered(calls))
    owner().work()

    assert len(calls) == 1


def test_name_signature_and_docstring_stay(owner: type[Owner]) -> None:
    """Whoever inspects the method sees the original."""
    original = owner.work
    surround(owner, "work", lambda _owner: pytest.fail("not called"))

    assert inspect.signature(owner.work) == inspect.signature(original)
    assert (owner.work.__name__, owner.work.__doc__) == ("work", "Do it.")


def test_restoring_puts_the_original_back(owner: type[Owner]) -> None:
    """The very same function, and once more does nothing."""
    original = owner.work
    surround(owner, "work", lambda _owner: pytest.fail("not called"))
    restore(owner, "work")
    restore(owner, "work")

    assert owner.work is original


def test_what_somebody_put_over_ours_is_left(owner: type[Owner]) -> None:
    """Restoring does not throw away another's wrapper."""
    surround(owner, "work", lambda _owner: pytest.fail("not called"))

    def theirs(self: object, number: int = 1) -> int:
        return 7

    owner.work = theirs  # type: ignore[method-assign]  # as another library would
    restore(owner, "work")

    assert owner.work is theirs


def test_a_method_that_is_not_there_is_left_out(owner: type[Owner]) -> None:
    """Another release may lack it."""
    surround(owner, "play", lambda _owner: pytest.fail("not called"))

    assert not hasattr(owner, "play")


def test_a_fault_of_ours_leaves_the_call_as_it_is(
    owner: type[Owner], capsys: pytest.CaptureFixture[str]
) -> None:
    """It is said in one line, and the method runs."""

    def broken(_owner: object) -> pytest.MonkeyPatch:
        raise RuntimeError("broken")

    surround(owner, "work", broken)  # type: ignore[arg-type]  # never returns

    assert owner().work(3) == 6
    assert capsys.readouterr().err.count("broken") == 1


def test_a_timeout_of_the_users_is_no_fault_of_ours(owner: type[Owner]) -> None:
    """What the handler of a signal raises while we are asked reaches the caller."""

    class TimeIsUpError(Exception):
        pass

    def handler(_number: int, _frame: object) -> None:
        raise TimeIsUpError

    def around(_owner: object) -> AbstractContextManager[object]:
        signal.raise_signal(signal.SIGALRM)
        return nullcontext()

    surround(owner, "work", around)
    usual = signal.signal(signal.SIGALRM, handler)
    try:
        with pytest.raises(TimeIsUpError):
            owner().work()
    finally:
        signal.signal(signal.SIGALRM, usual)


class Kinds:
    @classmethod
    def of_class(cls, number: int = 1) -> tuple[type, int]:
        return cls, number

    @staticmethod
    def of_nobody(number: int = 1) -> int:
        return number


class Derived(Kinds):
    pass


@pytest.mark.parametrize(
    ("name", "whole_call", "results", "calls"),
    [
        ("of_class", False, ((Derived, 2), (Kinds, 3)), [((Derived,), {}), ((Kinds,), {})]),
        ("of_nobody", True, (2, 3), [((2,), {}), ((), {"number": 3})]),
    ],
)
def test_a_method_of_a_class_or_of_nobody_stays_one(
    name: str, whole_call: bool, results: object, calls: object
) -> None:
    """The context is given the class that it is called on, or all arguments if that is asked for."""
    seen: list[object] = []
    original = vars(Kinds)[name]

    @contextmanager
    def around(*args: object, **kwargs: object) -> Iterator[None]:
        seen.append((args, kwargs))
        yield

    surround(Kinds, name, around, whole_call=whole_call)
    result = getattr(Derived, name)(2), getattr(Kinds(), name)(number=3)
    restore(Kinds, name)

    assert result == results
    assert seen == calls
    assert vars(Kinds)[name] is original


def test_a_function_of_a_module_is_surrounded_and_restored() -> None:
    """Whoever looks it up in the module calls it in the context."""
    module = ModuleType("somebody_elses")
    seen: list[object] = []

    def work(number: int) -> int:
        return 2 * number

    @contextmanager
    def around(number: int) -> Iterator[None]:
        seen.append(number)
        yield

    module.work = work  # type: ignore[attr-defined]  # a module made here
    surround(module, "work", around)
    result = vars(module)["work"](4)
    restore(module, "work")

    assert (result, seen, vars(module)["work"]) == (8, [4], work)


def _around(ours: Callable[..., int]) -> Callable[..., int]:
    def theirs(self: object) -> int:
        return ours(self)

    return theirs


def test_ours_that_somebody_took_away_is_put_on_again(owner: type[Owner]) -> None:
    """A library that patches before us and undoes it later puts back what stood there, without ours."""
    calls: list[object] = []
    original = owner.work
    owner.work = lambda self, number=1: original(self, number)  # type: ignore[method-assign]  # theirs
    surround(owner, "work", _entered(calls))
    owner.work = original  # type: ignore[method-assign]  # undone: ours goes with it
    restore(owner, "work")
    surround(owner, "work", _entered(calls))
    owner().work()
    restore(owner, "work")

    assert len(calls) == 1
    assert owner.work is original


def test_a_wrapper_around_ours_that_says_so_leaves_ours_at_work(owner: type[Owner]) -> None:
    """It is not surrounded twice."""
    calls: list[object] = []
    surround(owner, "work", _entered(calls))
    ours = owner.work
    owner.work = functools.wraps(ours)(_around(ours))  # type: ignore[method-assign]
    restore(owner, "work")
    surround(owner, "work", _entered(calls))
    owner().work()

    assert len(calls) == 1
    assert owner.work is not ours


def test_a_wrapper_around_ours_that_does_not_say_so_is_followed_once(owner: type[Owner]) -> None:
    """Ours is put around it, and what it calls of ours does nothing any more."""
    calls: list[object] = []
    surround(owner, "work", _entered(calls))
    ours = owner.work
    owner.work = _around(ours)  # type: ignore[method-assign]
    surround(owner, "work", _entered(calls))
    owner().work()

    assert len(calls) == 1


def test_ours_that_somebody_puts_back_does_nothing(owner: type[Owner]) -> None:
    """It stays until the next watch, which uses it and takes it off."""
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
