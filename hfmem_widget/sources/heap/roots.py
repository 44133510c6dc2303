"""The roots of a search: names that a person knows, and which of them are new since a moment."""

from __future__ import annotations

import gc
import os
import re
import site
import sys
import sysconfig
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from itertools import chain, compress
from operator import not_
from pathlib import Path
from types import ModuleType
from typing import Any

from hfmem_widget.sources.heap.kept import LAST_OUTPUTS, errors_kept, outputs_without_variable
from hfmem_widget.sources.heap.paths import ATOMS, OPEN_FIGURES, TEXTS, is_of_jupyter
from hfmem_widget.sources.heap.referents import fields_of, is_users_function, running_frames
from hfmem_widget.sources.heap.tensors import type_in


class Precedence(IntEnum):
    """The kinds of names; of several names that reach the same bytes, the lowest is shown."""

    MODEL = 0
    VARIABLE = 1
    OUTPUT = 2
    LAST_OUTPUT = 3
    ERROR = 4
    RUNNING = 5
    MODULE = 6
    LIBRARY = 7
    NOBODY = 8


@dataclass(frozen=True, slots=True)
class Root:
    """A name and its object, which is held only while the search lasts."""

    name: str
    value: Any
    precedence: Precedence


_OF_THE_SHELL = re.compile(
    r"In|_i{1,3}|_i\d+|_[ido]h|_exit_code|exit|quit|open|get_ipython|__\w+__"
)

_AT_A_TIME = 10_000


def variables(namespace: Mapping[str, object]) -> Iterator[Root]:
    """Yield a notebook's variables and outputs."""
    for name, value in list(namespace.items()):
        if type(name) is not str or issubclass(type(value), ModuleType):
            continue
        if name == "Out":
            yield Root(name, value, Precedence.OUTPUT)
        elif LAST_OUTPUTS.fullmatch(name):
            yield Root(name, value, Precedence.LAST_OUTPUT)
        elif not _OF_THE_SHELL.fullmatch(name):
            yield Root(name, value, Precedence.VARIABLE)


def kernel_roots(shell: Any = None) -> list[Root]:
    """Return the roots besides variables: errors, outputs, open figures, and functions that run."""
    cells = cells_of(shell)
    return [
        Root(error_name(value, cells) or slot.name, value, Precedence.ERROR)
        for slot in (*errors_kept(shell), *outputs_without_variable(shell))
        if (value := slot.value()) is not None
    ] + [*open_figures(), *running()]


def running() -> Iterator[Root]:
    """Yield the user's functions that run in any thread, which hold their variables."""
    for frame in running_frames():
        if is_users_function(frame) and not frame.f_code.co_filename.startswith(_installed()):
            yield Root(f"the running {frame.f_code.co_name}()", frame, Precedence.RUNNING)


def open_figures() -> Iterator[Root]:
    """Yield the figures that pyplot holds until they are closed."""
    manager = type_in("matplotlib._pylab_helpers", "Gcf")
    figures = None if manager is None else vars(manager).get("figs")
    if isinstance(figures, dict) and figures:
        yield Root(OPEN_FIGURES, list(figures.values()), Precedence.LIBRARY)


def modules_of_libraries() -> dict[str, ModuleType]:
    """Return all modules except the notebook itself, Jupyter's and ours."""
    return {
        name: module
        for name, module in list(sys.modules.items())
        if issubclass(type(module), ModuleType)
        and name not in {"__main__", "__mp_main__"}
        and not is_of_jupyter(name)
    }


def known_to_the_collector() -> Iterator[list[Any]]:
    """Yield the objects that the garbage collector knows, and their referents, many at a time.

    Modules are left out: their fields are known anyway, and up to CPython 3.12.5 asyncio's returns objects
    that it has freed, which ends the process or fills its memory (python/cpython#122695).
    """
    objects = [held for held in gc.get_objects() if not issubclass(type(held), ModuleType)]
    for start in range(0, len(objects), _AT_A_TIME):
        some = objects[start : start + _AT_A_TIME]
        yield some + gc.get_referents(*some)


def user_modules() -> dict[str, ModuleType]:
    """Return the modules that were imported from outside of the standard library and site-packages."""
    return {
        name: module
        for name, module in modules_of_libraries().items()
        if type(file := fields_of(module).get("__file__")) is str
        and not file.startswith(_installed())
    }


@lru_cache(1)
def _installed() -> tuple[str, ...]:
    """Return the paths of the standard library and of packages, also those of ``pip install --target``."""
    libraries = ("stdlib", "platstdlib", "purelib", "platlib")
    paths = [sysconfig.get_path(name) for name in libraries]
    paths += [*site.getsitepackages(), site.getusersitepackages(), f"{sys.base_prefix}/lib"]
    paths += [entry for entry in sys.path if entry and any(Path(entry).glob("*.dist-info"))]
    # With the separator: "env-of-mine" is not within "env".
    return tuple({f"{name}{os.sep}" for path in paths for name in (path, Path(path).resolve())})


def is_dunder(name: object) -> bool:
    """Return whether a name such as ``__builtins__`` is Python's; also true of what is not a text."""
    return type(name) is not str or (name.startswith("__") and name.endswith("__"))


def cells_of(shell: Any) -> Mapping[str, int]:
    """Return the numbers of cells by the file names of their code."""
    cells = getattr(getattr(shell, "compile", None), "_filename_map", None)
    return cells if type(cells) is dict else {}


def error_name(value: Any, cells: Mapping[str, int]) -> str:
    """Return "the error of cell [7]" where the error, or its traceback, went through a cell."""
    if issubclass(type(value), BaseException):
        value = vars(BaseException)["__traceback__"].__get__(value)
    while value is not None and hasattr(type(value), "tb_frame"):
        number = cells.get(value.tb_frame.f_code.co_filename)
        if number is not None:
            return f"the error of cell [{number}]"
        value = value.tb_next
    return ""


def lengths_of(namespace: Mapping[str, object]) -> dict[str, int]:
    """Return the length of each list and deque that a variable names."""
    # In C, as in `_bound`.
    are_lists = map({list, deque}.__contains__, map(type, namespace.values()))
    pairs: Iterator[tuple[str, Any]] = zip(namespace, namespace.values(), strict=False)
    return {name: len(items) for name, items in list(compress(pairs, are_lists))}


class NotedNames:
    """The names of a moment, each with the object it named, as a hash of 8 bytes.

    Names of numbers and the like are left out: in a notebook with 100,000 names these are most of them.
    """

    def __init__(self, namespace: Mapping[str, object], others: Iterable[Root] = ()) -> None:
        self._hashes = array("q", map(hash, _bindings(namespace, others)))

    def __len__(self) -> int:
        return len(self._hashes)

    def new(self, namespace: Mapping[str, object], others: Iterable[Root] = ()) -> set[str]:
        """Return the names that are new, or name another object, as far as an address can tell."""
        hashes = set(self._hashes)
        bindings = list(_bindings(namespace, others))
        return {binding[0] for binding in bindings if hash(binding) not in hashes}


def _bindings(namespace: Mapping[str, object], others: Iterable[Root]) -> Iterator[tuple[str, int]]:
    """Return the names that a path can begin with, each with the address of its object."""
    outputs = namespace.get("Out")
    numbered = list(_bound(outputs)) if type(outputs) is dict else []
    return chain(
        _bound(namespace),
        [(f"Out[{number}]", address) for number, address in numbered],
        [(root.name, id(root.value)) for root in others],
    )


def _bound(names: Mapping[Any, object]) -> Iterator[tuple[Any, int]]:
    # In C from end to end: nothing is copied, and no other thread comes in between.
    may_hold = map(not_, map((ATOMS - TEXTS).__contains__, map(type, names.values())))
    return compress(zip(names, map(id, names.values()), strict=False), may_hold)
