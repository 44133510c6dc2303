"""The models and optimizers of the process: registered ones, and those in the notebook's variables."""

import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, filterfalse, islice
from types import ModuleType
from typing import Any, cast

from hfmem_widget.sources.heap.referents import fields_of
from hfmem_widget.sources.storages import cache_kind, is_cache

Namespace = Callable[[], Mapping[str, object]]

MOST_WITHIN = 256
"""The most items of a list, a dict or an object's own fields that are searched."""

_SCALARS = (str, bytes, int, float, complex, bool, type(None), type, ModuleType)


def main_variables() -> Mapping[str, object]:
    """Return the variables of a notebook, or of the script that runs."""
    return vars(sys.modules["__main__"])


class Subjects:
    """The models and optimizers that are counted, named or among some variables; none is kept alive by it."""

    def __init__(self, namespace: Namespace = main_variables) -> None:
        self._namespace = namespace
        self._named: dict[int, weakref.ref[Any]] = {}
        self._threads: dict[int, int] = {}
        self._added: dict[int, int] = {}
        self.adds = 0
        """How many times one was named so far; an optimizer is named at each step that is not in a group."""

    def add(self, subject: object) -> bool:
        """Count a model or an optimizer from now on, as one of this thread; return whether it is new."""
        if not _is_subject(subject):
            return False
        self._threads[id(subject)] = threading.get_ident()
        self.adds += 1
        self._added[id(subject)] = self.adds
        reference = self._named.get(id(subject))
        if reference is not None and reference() is subject:
            return False
        self._named[id(subject)] = weakref.ref(subject)
        return True

    def named(self) -> list[Any]:
        """Return what was named and is still there."""
        # Another thread may name one meanwhile.
        entries = [(key, reference, reference()) for key, reference in list(self._named.items())]
        for key, reference, subject in entries:
            if subject is None and self._named.get(key) is reference:
                self._named.pop(key, None)
                self._threads.pop(key, None)
                self._added.pop(key, None)
        return [subject for _, _, subject in entries if subject is not None]

    def all(self) -> tuple[list[Any], list[Any]]:
        """Return all models and all optimizers there are, each once."""
        return self.with_caches()[:2]

    def with_caches(self) -> tuple[list[Any], list[Any], list[Any]]:
        """Return all models and all optimizers there are, each once, and the KV caches in variables."""
        candidates = [*self.named(), *_search(self._namespace().values())]
        caches = {id(cache): cache for cache in filter(is_cache, candidates)}
        wrapped = chain.from_iterable(map(_with_what_it_wraps, candidates))
        subjects = {id(subject): subject for subject in wrapped if id(subject) not in caches}
        optimizers = list(filterfalse(_is_module, subjects.values()))
        return list(filter(_is_module, subjects.values())), optimizers, list(caches.values())

    def optimizers(self) -> list[Any]:
        """Return the optimizers that were named."""
        return list(filterfalse(_is_module, self.named()))

    def optimizers_since(self, adds: int) -> list[Any]:
        """Return the optimizers that were named since there were so many `adds`."""
        return [each for each in self.optimizers() if self._added.get(id(each), 0) > adds]

    def by_thread(self) -> tuple[list[Any], list[Any]]:
        """Return the optimizers that were named: those of this thread, and those that step on another."""
        sides: tuple[list[Any], list[Any]] = [], []
        for optimizer in self.optimizers():
            sides[is_elsewhere(self._threads.get(id(optimizer)))].append(optimizer)
        return sides


def is_elsewhere(thread: int | None) -> bool:
    """Return whether a thread is another than this one, and alive."""
    if thread is None or thread == threading.get_ident():
        return False
    return any(alive.ident == thread for alive in threading.enumerate())


def _search(values: Iterable[object]) -> Iterator[object]:
    """Yield the models, optimizers and KV caches among some objects, and one level within them.

    No property or lazy attribute is touched: only lists, dicts and objects' fields, such as a Trainer's.
    """
    kinds = _sought()
    if not kinds:
        return
    # Of a hundred thousand names most are numbers or text: asked once for each type they cost a tenth.
    is_scalar: dict[type, bool] = {}
    for value in list(values):
        kind = type(value)
        if kind not in is_scalar:
            is_scalar[kind] = issubclass(kind, _SCALARS)
        if is_scalar[kind]:
            continue
        if issubclass(kind, kinds):
            yield value
        else:
            within = _within(value)
            yield from _subjects_among(within)
            for inner in within:
                if type(inner) is list:
                    yield from _subjects_among(inner[:MOST_WITHIN])


def _subjects_among(values: Sequence[object]) -> Iterator[object]:
    # A notebook has lists of lists by the thousand: of most, a look at what types there are is enough.
    kinds = _sought()
    if any(issubclass(kind, kinds) for kind in set(map(type, values))):
        yield from (value for value in values if issubclass(type(value), kinds))


def _with_what_it_wraps(subject: Any) -> tuple[Any, ...]:
    """Return what an optimizer wraps, as accelerate's does, which has no states of its own; else itself."""
    inner = getattr(subject, "__dict__", {}).get("optimizer")
    if _is_module(subject) or not _is_subject(inner):
        return (subject,)
    # One that has states, too, such as Lookahead's slow weights, counts besides.
    return (inner, subject) if subject.__dict__.get("state") else (inner,)


def _within(value: Any) -> Sequence[object]:
    # Not by a method of its own: an iteration may load something, or never end.
    for kind in (list, tuple):
        if issubclass(type(value), kind):
            return cast("Sequence[object]", kind.__getitem__(value, slice(MOST_WITHIN)))
    fields = value if type(value) is dict else fields_of(value)
    return list(islice(fields.values(), MOST_WITHIN))


def _is_subject(value: object) -> bool:
    # By its type alone: asking a lazy proxy for its class would make it load what it stands for.
    return issubclass(type(value), _kinds())


def _sought() -> tuple[type, ...]:
    caches = cache_kind()
    return _kinds() if caches is None else (*_kinds(), caches)


def _is_module(value: object) -> bool:
    return issubclass(type(value), _kinds()[:1])


def _kinds() -> tuple[type, ...]:
    torch: Any = sys.modules.get("torch")
    module = getattr(getattr(torch, "nn", None), "Module", None)
    optimizer = getattr(getattr(torch, "optim", None), "Optimizer", None)
    return () if module is None or optimizer is None else (module, optimizer)
