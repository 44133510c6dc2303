"""The roots of a search: names that a person knows, which of them are new, and how to free what they keep."""

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
from typing import Any, NamedTuple

from hfmem_widget.sources.heap.model import NUMBERS, UNNAMED, Holder, first_name, is_of_jupyter
from hfmem_widget.sources.heap.referents import fields_of, is_users_function, running_frames
from hfmem_widget.sources.heap.tensors import type_in
from hfmem_widget.text import format_bytes


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


GONE = object()
"""Stands for a missing key."""

LAST_OUTPUTS = re.compile(r"_{1,3}|_\d+")

_LAST_ERROR = ("last_exc", "last_value", "last_traceback", "last_type")
_OF_THE_TRACEBACK = ("tb", "etb", "evalue", "etype")
_OF_THE_DEBUGGER = ("botframe", "curframe", "stack")
_LAST_RESULT = "IPython's last result"

_OF_THE_SHELL = re.compile(
    r"In|_i{1,3}|_i\d+|_[ido]h|_exit_code|exit|quit|open|get_ipython|__\w+__"
)


class Slot(NamedTuple):
    """A field of a namespace or an object that keeps one object, with a name for people."""

    name: str
    fields: dict[Any, Any]
    key: Any
    empty: object = GONE
    """The value of an empty slot; `GONE` if an empty slot has no key."""

    def value(self) -> Any:
        """Return the kept object, or None."""
        return self.fields.get(self.key)

    def is_empty(self) -> bool:
        """Return whether nothing is kept."""
        return self.value() is None or self.value() is self.empty


def errors_kept(shell: Any = None) -> list[Slot]:
    """Return the slots that keep the last error: Python's, the IPython shell's, and its debugger's."""
    traceback, syntax, result = (
        fields_of(getattr(shell, name, None))
        for name in ("InteractiveTB", "SyntaxTB", "last_execution_result")
    )
    debugger = fields_of(traceback.get("pdb"))
    slots = [
        *(Slot(f"sys.{key}", vars(sys), key) for key in _LAST_ERROR),
        *(Slot(f"IPython's {key}", traceback, key, None) for key in _OF_THE_TRACEBACK),
        Slot("IPython's last syntax error", syntax, "last_syntax_error", None),
        *(Slot("IPython's debugger", debugger, key, None) for key in _OF_THE_DEBUGGER),
        *(Slot(_LAST_RESULT, result, key, None) for key in ("error_in_exec", "error_before_exec")),
    ]
    return [slot for slot in slots if not slot.is_empty()]


def outputs_kept(shell: Any = None) -> list[Slot]:
    """Return the slots that keep outputs: ``Out``, ``_12``, ``_`` unless the user's, IPython's copies."""
    if shell is None:
        return []
    history = shell.user_ns.get("_oh")
    history = history if type(history) is dict else {}
    hook = fields_of(shell.displayhook)
    hidden = shell.user_ns_hidden
    slots = [Slot(f"Out[{number}]", history, number) for number in history]
    for fields, whose in ((shell.user_ns, ""), (hidden, "IPython's "), (hook, "IPython's ")):
        for key, value in list(fields.items()):
            if type(key) is str and LAST_OUTPUTS.fullmatch(key):
                number = int(key[1:]) if key[1:].isdecimal() else None
                copies = hidden.get(key, GONE), hook.get(key, GONE), history.get(number, GONE)
                if whose or any(copy is value for copy in copies):
                    slots.append(Slot(f"{whose}{key}", fields, key, "" if number is None else GONE))
    result = fields_of(getattr(shell, "last_execution_result", None))
    slots.append(Slot(_LAST_RESULT, result, "result", None))
    return [slot for slot in slots if not slot.is_empty()]


def outputs_without_variable(shell: Any = None) -> Iterator[Slot]:
    """Yield the slots of outputs that no variable of the same name holds."""
    for slot in outputs_kept(shell):
        is_variable = slot.fields is shell.user_ns or slot.name.startswith("Out[")
        namesake = "_" if slot.key == "result" else slot.key
        if not is_variable and shell.user_ns.get(namesake) is not slot.value():
            yield slot


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
    for start in range(0, len(objects), 10_000):
        some = objects[start : start + 10_000]
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
    """Return whether a name is Python's own, such as ``__builtins__``, or not a text."""
    return type(name) is not str or (name.startswith("__") and name.endswith("__"))


def cells_of(shell: Any) -> Mapping[str, int]:
    """Return the numbers of cells by the file names of their code."""
    cells = getattr(getattr(shell, "compile", None), "_filename_map", None)
    return cells if type(cells) is dict else {}


def error_name(value: Any, cells: Mapping[str, int]) -> str:
    """Return "the error of cell [7]" if the error, or its traceback, passed a cell; else ""."""
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
    may_hold = map(not_, map(NUMBERS.__contains__, map(type, names.values())))
    return compress(zip(names, map(id, names.values()), strict=False), may_hold)


OPEN_FIGURES = "pyplot's open figures"
OF_AN_ERROR = re.compile(
    r"the error of cell \[\d+\]|sys\.last_\w+|IPython's (?:tb|etb|evalue|etype|debugger|last syntax)"
)
_OUTPUT = re.compile(rf"Out\b|(?:IPython's )?(?:{LAST_OUTPUTS.pattern})(?!\w)")

_BEYOND_NAMES = {
    OPEN_FIGURES: "plt.close(figure) closes one of them, plt.close('all') all.",
    UNNAMED: "They may wait for the garbage collector: %memholders --free garbage collects them then.",
}


def beyond_names(row: Holder) -> str:
    """Return how to free memory that no name of the notebook leads to, as a sentence; else empty."""
    return next((remedy for path, remedy in _BEYOND_NAMES.items() if row.path.startswith(path)), "")


def remedy(row: Holder) -> str:
    """Return how to free a row's memory, as a sentence; empty if its name says enough."""
    if OF_AN_ERROR.match(row.path):
        return "%memholders --free errors frees the error and what it holds."
    if row.path.startswith("IPython's last result"):
        return "%memholders --free all frees the last result, whether error or output."
    if _OUTPUT.match(row.path):
        return "%memholders --free outputs frees it; a semicolon at the end of the line prevents the output."
    if row.kind == "gradients":
        return f"zero_grad() frees the gradients in {row.path}."
    if row.is_of_graphs:
        what = "a detached tensor" if row.graphs == 1 else "detached tensors"
        return (
            f"If only values are needed, store {what} in {row.path} (.detach(), or .item() for one number): "
            "a tensor with a graph holds everything that its backward pass needs."
        )
    return beyond_names(row) or of_views(row)


def of_views(row: Holder) -> str:
    """Return what copies of a variable's views would hold, as a sentence, if that is at most half as much."""
    is_named = row.views > 0 and first_name(row.path).isidentifier()
    if not is_named or row.graph_bytes or 2 * row.copied > row.bytes:
        return ""
    copies = f"Copies of the views in {row.path} (.clone() of tensors, .copy() of arrays)"
    return f"{copies} would hold {format_bytes(row.copied)} instead of {format_bytes(row.bytes)}."
