"""Which models and optimizers there are: those that were named, and those in the notebook's variables."""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any

Namespace = Callable[[], Mapping[str, object]]

MOST_WITHIN = 256
"""Of a list, a dict or an object's own fields, so many are looked at."""

_SCALARS = (str, bytes, int, float, complex, bool, type(None), type, ModuleType)


def main_variables() -> Mapping[str, object]:
    """Return the variables of a notebook, or of the script that runs."""
    return vars(sys.modules["__main__"])


class Subjects:
    """The models and optimizers whose tensors are counted, none of which is kept alive by it.

    Parameters
    ----------
    namespace : callable, optional
        Returns the variables that are looked through.
    """

    def __init__(self, namespace: Namespace = main_variables) -> None:
        self._namespace = namespace
        self._named: dict[int, weakref.ref[Any]] = {}

    def add(self, subject: object) -> bool:
        """Count a model or an optimizer from now on; return whether it is one, and new."""
        if not _is_subject(subject) or self._named.get(id(subject), _nobody)() is subject:
            return False
        self._named[id(subject)] = weakref.ref(subject)
        return True

    def named(self) -> list[Any]:
        """Return what was named and is still there."""
        found = [(key, reference()) for key, reference in self._named.items()]
        for key, subject in found:
            if subject is None:
                del self._named[key]
        return [subject for _, subject in found if subject is not None]

    def all(self) -> tuple[list[Any], list[Any]]:
        """Return all models and all optimizers there are, each once."""
        found = map(
            _unwrapped, itertools.chain(self.named(), _search(dict(self._namespace()).values()))
        )
        each = {id(subject): subject for subject in found}.values()
        return (
            [one for one in each if _is_module(one)],
            [one for one in each if not _is_module(one)],
        )

    def optimizers(self) -> list[Any]:
        """Return the optimizers that were named."""
        return [one for one in self.named() if not _is_module(one)]

    def forget(self) -> None:
        """Count nothing that was named so far."""
        self._named.clear()


def _search(values: Iterable[object]) -> Iterator[object]:
    """Yield the models and optimizers among some objects, and one level within them.

    Neither a property nor a lazy attribute is touched: only what lies in lists, dicts and the fields of
    objects, such as a Trainer's, an Accelerator's, a pipeline's.
    """
    for value in values:
        if _is_subject(value):
            yield value
        elif not issubclass(type(value), _SCALARS):
            for inner in _within(value):
                if _is_subject(inner):
                    yield inner
                elif type(inner) is list:
                    yield from filter(_is_subject, inner[:MOST_WITHIN])


def _unwrapped(subject: Any) -> Any:
    """Return what an optimizer wraps, as accelerate's does, which has no states of its own."""
    inner = getattr(subject, "__dict__", {}).get("optimizer")
    return subject if _is_module(subject) or not _is_subject(inner) else inner


def _within(value: object) -> list[object]:
    if issubclass(type(value), (list, tuple)):
        return list(itertools.islice(value, MOST_WITHIN))  # type: ignore[call-overload]  # mypy: object
    if type(value) is dict:
        return list(value.values())[:MOST_WITHIN]
    try:
        fields = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return []
    return list(fields.values())[:MOST_WITHIN] if type(fields) is dict else []


def _is_subject(value: object) -> bool:
    # By its type alone: asking a lazy proxy for its class would make it load what it stands for.
    kinds = _kinds()
    return bool(kinds) and issubclass(type(value), kinds)


def _is_module(value: object) -> bool:
    return issubclass(type(value), _kinds()[:1])


def _kinds() -> tuple[type, ...]:
    torch: Any = sys.modules.get("torch")
    module = getattr(getattr(torch, "nn", None), "Module", None)
    optimizer = getattr(getattr(torch, "optim", None), "Optimizer", None)
    return () if module is None or optimizer is None else (module, optimizer)


def _nobody() -> None:
    """Nobody is there any more."""
