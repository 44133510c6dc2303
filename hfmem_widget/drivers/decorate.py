"""Context managers that decorate functions, coroutine functions and generator functions."""

import functools
import inspect
import types
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractContextManager
from typing import Any, TypeVar, cast

from hfmem_widget.errors import OptionError
from hfmem_widget.monitor.patch import is_traced
from hfmem_widget.text import plain
from hfmem_widget.unseen import OVER, unseen

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class Decorates(ABC):
    """A context manager that can also decorate, and is then open while a call runs.

    `contextlib.ContextDecorator` would close it as soon as a coroutine or a generator is created.
    """

    def __call__(self, function: Decorated) -> Decorated:
        """Surround every call of a function; raises `OptionError` for a class or an uncallable object."""
        if isinstance(function, (staticmethod, classmethod)):
            return cast("Decorated", type(function)(self(function.__func__)))
        if isinstance(function, type) or not callable(function):
            is_class = isinstance(function, type)
            given = f"the class {function.__name__}" if is_class else type(function).__name__
            message = (
                "a watch or a span can decorate a function, a method, a coroutine function or a generator "
                f"function, not {plain(given)}"
            )
            raise OptionError(message)
        surround = next((how for kind, how in _KINDS if _is(kind, function)), _function)
        return cast("Decorated", functools.wraps(function)(surround(self._another, function)))

    @abstractmethod
    def _another(self) -> AbstractContextManager[object]:
        """Return a new context manager for one call: calls may nest, or come from many threads."""


def failure(error: BaseException | None) -> BaseException | None:
    """Return the error of a ``with`` block; closing the generator around it is not an error."""
    # By `type()`: an exception may have a `__class__` that raises.
    return None if issubclass(type(error), GeneratorExit) else error


MakeScope = Callable[[], AbstractContextManager[object]]


def _function(scope: MakeScope, function: Callable[..., Any]) -> Callable[..., Any]:
    @unseen
    def surrounded(*args: Any, **kwargs: Any) -> Any:
        if is_traced():
            return function(*args, **kwargs)
        try:
            with scope():
                return function(*args, **kwargs)
        finally:
            OVER  # noqa: B018

    return surrounded


def _coroutine(
    scope: MakeScope, function: Callable[..., Awaitable[Any]]
) -> Callable[..., Awaitable[Any]]:
    async def surrounded(*args: Any, **kwargs: Any) -> Any:
        with scope():
            return await function(*args, **kwargs)

    return surrounded


def _generator(
    scope: MakeScope, function: Callable[..., Generator[Any, Any, Any]]
) -> Callable[..., Generator[Any, Any, Any]]:
    def surrounded(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        with scope():
            return (yield from function(*args, **kwargs))

    if _is(_may_be_awaited, function):
        return cast("Callable[..., Generator[Any, Any, Any]]", types.coroutine(surrounded))
    return surrounded


def _async_generator(
    scope: MakeScope, function: Callable[..., AsyncGenerator[Any, Any]]
) -> Callable[..., AsyncGenerator[Any, Any]]:
    async def surrounded(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        with scope():
            inner = function(*args, **kwargs)
            following = inner.asend(None)
            # What `yield from` does, which asynchronous generators do not have.
            while True:
                try:
                    item = await following
                except StopAsyncIteration:
                    return
                try:
                    sent = yield item
                except GeneratorExit:
                    await inner.aclose()
                    raise
                except BaseException as error:  # noqa: BLE001  (whatever is thrown in is the inner one's)
                    following = inner.athrow(error)
                else:
                    following = inner.asend(sent)

    return surrounded


_KINDS: tuple[tuple[Callable[[object], bool], Callable[[MakeScope, Any], Any]], ...] = (
    (inspect.iscoroutinefunction, _coroutine),
    (inspect.isasyncgenfunction, _async_generator),
    (inspect.isgeneratorfunction, _generator),
)


def _may_be_awaited(function: object) -> bool:
    """Return whether `types.coroutine` has marked a generator function: its generators can be awaited."""
    code = getattr(function, "__code__", None)
    return code is not None and bool(code.co_flags & inspect.CO_ITERABLE_COROUTINE)


def _is(kind: Callable[[object], bool], function: object) -> bool:
    """Return whether a function, or the ``__call__`` of an object, is of a kind."""
    return kind(function) or kind(getattr(type(function), "__call__", None))  # noqa: B004  (the method itself)
