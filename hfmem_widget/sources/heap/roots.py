"""The roots of a search: names that a person knows, in the order in which they are blamed."""

from __future__ import annotations

import os
import re
import site
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from types import ModuleType
from typing import Any

from hfmem_widget.sources.heap.kept import LAST_OUTPUTS, errors_kept, outputs_without_variable
from hfmem_widget.sources.heap.referents import fields_of


class Rank(IntEnum):
    """Who is named first of several that reach the same bytes."""

    MODEL = 0
    VARIABLE = 1
    OUTPUT = 2
    LAST_OUTPUT = 3
    ERROR = 4
    MODULE = 5


@dataclass(frozen=True, slots=True)
class Root:
    """A name and its object, which is held only while the search lasts."""

    name: str
    value: Any
    rank: Rank


_OF_THE_SHELL = re.compile(
    r"In|_i{1,3}|_i\d+|_[ido]h|_exit_code|exit|quit|open|get_ipython|__\w+__"
)

_NOT_THE_USERS = {"__main__", "__mp_main__", "hfmem_widget"}


def variables(namespace: Mapping[str, object]) -> Iterator[Root]:
    """Yield a notebook's variables and outputs."""
    for name, value in list(namespace.items()):
        if type(name) is not str or issubclass(type(value), ModuleType):
            continue
        if name == "Out":
            yield Root(name, value, Rank.OUTPUT)
        elif LAST_OUTPUTS.fullmatch(name):
            yield Root(name, value, Rank.LAST_OUTPUT)
        elif not _OF_THE_SHELL.fullmatch(name):
            yield Root(name, value, Rank.VARIABLE)


def kernel_roots(shell: Any = None) -> list[Root]:
    """Return the errors and outputs that Python and IPython keep without a variable."""
    cells = cells_of(shell)
    return [
        Root(error_name(value, cells) or slot.name, value, Rank.ERROR)
        for slot in (*errors_kept(shell), *outputs_without_variable(shell))
        if (value := slot.value()) is not None
    ]


def user_modules() -> dict[str, ModuleType]:
    """Return the modules that were imported from outside of the standard library and site-packages."""
    libraries = ("stdlib", "platstdlib", "purelib", "platlib")
    paths = [sysconfig.get_path(name) for name in libraries]
    paths += [*site.getsitepackages(), site.getusersitepackages(), f"{sys.base_prefix}/lib"]
    # With the separator: "env-of-mine" is not within "env".
    installed = tuple(
        {f"{name}{os.sep}" for path in paths for name in (path, Path(path).resolve())}
    )
    found = {}
    for name, module in list(sys.modules.items()):
        if not issubclass(type(module), ModuleType) or name.partition(".")[0] in _NOT_THE_USERS:
            continue
        file = fields_of(module).get("__file__")
        if type(file) is str and not file.startswith(installed):
            found[name] = module
    return found


def is_dunder(name: object) -> bool:
    """Return whether a name is one such as ``__builtins__``, which a module has of itself."""
    return type(name) is not str or (name.startswith("__") and name.endswith("__"))


def cells_of(shell: Any) -> Mapping[str, int]:
    """Return the numbers of cells by the file names that their code has."""
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
