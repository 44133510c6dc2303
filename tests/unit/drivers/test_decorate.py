"""`watch` and `span` as decorators: open for as long as what they decorate runs."""

import asyncio
import functools
import inspect
import types
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import nullcontext
from typing import Any, Self

import pytest

import hfmem_widget
from hfmem_widget.drivers.decorate import Decorates, failure
from hfmem_widget.errors import OptionError
from hfmem_widget.monitor.shared import running_monitor


class Scope(Decorates):
    """Writes down when it begins and how it ends."""

    def __init__(self) -> None:
        self.seen: list[object] = []

    def __enter__(self) -> Self:
        self.seen.append("in")
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        self.seen.append("out" if failure(error) is None else type(error).__name__)

    def _another(self) -> Self:
        return self


@pytest.fixture
def scope() -> Scope:
    return Scope()


def test_it_is_open_while_a_function_runs(scope: Scope) -> None:
    """The scope is open while the function runs, whose value is returned."""

    @scope
    def double(number: int) -> int:
        scope.seen.append("runs")
        return 2 * number

    assert double(3) == 6
    assert scope.seen == ["in", "runs", "out"]


def test_it_is_open_across_all_that_a_coroutine_awaits(scope: Scope) -> None:
    """The scope opens when the coroutine runs, and stays open across all that it awaits."""

    @scope
    async def double(number: int) -> int:
        await asyncio.sleep(0)
        scope.seen.append("runs")
        return 2 * number

    coroutine = double(3)
    assert scope.seen == []
    assert asyncio.run(coroutine) == 6
    assert scope.seen == ["in", "runs", "out"]


def test_a_cancelled_coroutine_ends_it(scope: Scope) -> None:
    """The error that cancels a coroutine ends the scope, and passes."""

    @scope
    async def wait() -> None:
        await asyncio.Event().wait()

    async def cancel() -> None:
        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())

    assert scope.seen == ["in", "CancelledError"]


def test_it_is_open_from_a_generators_first_item_to_its_end(scope: Scope) -> None:
    """The scope is open from the first item to the end; sent and returned values pass."""

    @scope
    def echo() -> Generator[object, object, str]:
        scope.seen.append((yield 1))
        return "done"

    def outer() -> Iterator[object]:
        scope.seen.append((yield from generator))

    generator = echo()
    assert scope.seen == []
    running = outer()
    assert next(running) == 1
    with pytest.raises(StopIteration):
        running.send("sent")  # type: ignore[attr-defined]

    assert scope.seen == ["in", "sent", "out", "done"]


@pytest.mark.parametrize(("thrown", "ending"), [(ValueError, "ValueError"), (GeneratorExit, "out")])
def test_what_is_thrown_arrives(scope: Scope, thrown: type[BaseException], ending: str) -> None:
    """An error that is thrown in reaches the generator and ends the scope; closing is no failure."""

    @scope
    def count() -> Iterator[int]:
        try:
            yield 1
        finally:
            scope.seen.append("cleaned up")

    running: Any = count()
    next(running)
    with pytest.raises(thrown):
        running.throw(thrown())

    assert scope.seen == ["in", "cleaned up", ending]


def test_it_is_open_while_an_asynchronous_generator_runs(scope: Scope) -> None:
    """The scope is open from the first item to the end, with all that is sent and thrown in."""

    @scope
    async def echo() -> AsyncGenerator[object, object]:
        try:
            scope.seen.append((yield 1))
        except ValueError:
            scope.seen.append("never")
        try:
            yield 2
        except ValueError:
            scope.seen.append("caught")
        yield 3

    async def drive() -> list[object]:
        running = echo()
        items = [await anext(running), await running.asend("sent")]
        items.append(await running.athrow(ValueError()))
        return items + [one async for one in running]

    assert asyncio.run(drive()) == [1, 2, 3]
    assert scope.seen == ["in", "sent", "caught", "out"]


@pytest.mark.parametrize(("thrown", "ending"), [(ValueError, "ValueError"), (GeneratorExit, "out")])
def test_generators_clean_up_first(scope: Scope, thrown: type[BaseException], ending: str) -> None:
    """The generator's cleaning up is within the scope; an error passes, and closing is no failure."""

    @scope
    async def count() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await asyncio.sleep(0)
            scope.seen.append("cleaned up")

    async def drive() -> None:
        running: Any = count()
        await anext(running)
        await (running.aclose() if thrown is GeneratorExit else running.athrow(thrown()))

    with pytest.raises(ValueError) if thrown is ValueError else nullcontext():  # noqa: PT011  (without a text)
        asyncio.run(drive())

    assert scope.seen == ["in", "cleaned up", ending]


async def coroutine() -> int:
    await asyncio.sleep(0)
    return 1


class Later:
    """Its call is a coroutine."""

    async def __call__(self) -> int:
        """Return one, later."""
        return await coroutine()


def marked() -> Awaitable[int]:
    return coroutine()


@types.coroutine
def by_generator() -> Generator[Any, Any, int]:
    """Return one, as coroutines once did."""
    return (yield from coroutine().__await__())


@pytest.mark.parametrize(
    "function", [coroutine, functools.partial(coroutine), Later(), marked, by_generator]
)
def test_what_is_awaited_is_followed(scope: Scope, function: Callable[[], Awaitable[int]]) -> None:
    """A coroutine function is followed, however it was made."""
    if function is marked and hasattr(inspect, "markcoroutinefunction"):
        function = inspect.markcoroutinefunction(function)
    elif function is marked:
        pytest.skip("this Python marks no functions as coroutine functions")

    async def drive() -> int:
        result = scope(function)()
        assert scope.seen == []
        return await result

    assert asyncio.run(drive()) == 1
    assert scope.seen == ["in", "out"]


def test_what_is_decorated_is_still_what_it_was() -> None:
    """A decorated function is of the same kind for whoever inspects it, such as a web framework."""
    span = hfmem_widget.span("one")

    def items() -> Iterator[int]:
        yield 1

    async def later_items() -> AsyncIterator[int]:
        yield 1

    assert inspect.iscoroutinefunction(span(coroutine))
    assert inspect.isgeneratorfunction(span(items))
    assert inspect.isasyncgenfunction(span(later_items))
    assert span(coroutine).__wrapped__ is coroutine  # type: ignore[attr-defined]
    assert span(coroutine).__doc__ == coroutine.__doc__
    assert not inspect.iscoroutinefunction(span(print))


def test_static_methods_and_class_methods_stay_what_they_are(scope: Scope) -> None:
    """Static methods and class methods stay such under the decorator."""

    class Loads:
        @scope
        @staticmethod
        async def one() -> int:
            return await coroutine()

        @scope
        @classmethod
        def name(cls) -> str:
            return cls.__name__

    assert Loads.name() == "Loads"
    assert asyncio.run(Loads().one()) == 1
    assert scope.seen == ["in", "out", "in", "out"]


@pytest.mark.parametrize(("subject", "name"), [(Scope, "the class Scope"), (3, "int")])
@pytest.mark.parametrize("make", [hfmem_widget.watch, hfmem_widget.span])
def test_what_does_not_run_cannot_be_decorated(
    make: Callable[[str], Decorates], subject: Any, name: str
) -> None:
    """The error for a class or a value names what can be decorated."""
    allowed = "a function, a method, a coroutine function or a generator function"
    with pytest.raises(OptionError, match=f"can decorate {allowed}, not {name}$"):
        make("one")(subject)


def test_a_watched_coroutine_is_watched_to_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    """A decorated coroutine is watched until it ends, with all that it awaits."""

    @hfmem_widget.watch("load")
    async def load() -> None:
        assert running_monitor() is not None
        await asyncio.sleep(0)
        with hfmem_widget.span("within"):
            pass
        assert running_monitor() is not None

    asyncio.run(load())

    assert capsys.readouterr().out.count('memwatch "load"') == 1
    assert running_monitor() is None


def test_a_span_of_a_generator_lasts_until_it_is_closed() -> None:
    """The use of a generator's items is within its span, and leaving it early is no failure."""

    @hfmem_widget.span("batches")
    def batches() -> Iterator[int]:
        yield from range(3)

    with hfmem_widget.watch(quiet=True) as session:
        items: Any = batches()
        for _ in items:
            with hfmem_widget.span("use"):
                pass
            break
        items.close()

    assert [(one.label, one.parent, one.outcome) for one in session.spans[1:]] == [
        ("batches", 1, "done"),
        ("use", 2, "done"),
    ]
