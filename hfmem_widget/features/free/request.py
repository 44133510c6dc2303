"""What is to be freed: words, outputs and variables, as the places that keep their objects.

And freeing, collecting, emptying: the one file that does so, because the user asked for it by name.
"""

from __future__ import annotations

import ctypes
import difflib
import gc
import re
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, cast

from hfmem_widget.errors import OptionError
from hfmem_widget.features.free.model import Release
from hfmem_widget.monitor.subjects import main_variables
from hfmem_widget.sources import loaded_allocator
from hfmem_widget.sources.allocator import Allocator
from hfmem_widget.sources.heap.kept import GONE, Slot, errors_kept, outputs_kept
from hfmem_widget.sources.heap.roots import Precedence, variables
from hfmem_widget.text import format_counted, plain

ERRORS, OUTPUTS, GARBAGE, CACHE, ALL = WORDS = ("errors", "outputs", "garbage", "cache", "all")
"""What can be named besides variables and single outputs."""

_OUTPUT = re.compile(r"Out\[(\d+)\]|_(\d+)")


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be freed, and what is to be done then."""

    items: Mapping[str, Sequence[Slot]]  # by name, where its objects are kept
    collect: bool = True  # collect garbage
    empty_cache: bool = True  # return the cache of CUDA's allocator
    trim: bool = False  # return malloc's free memory
    is_named: bool = True  # False if nothing was named, and so nothing is to be done
    notes: tuple[str, ...] = ()  # what somebody may have meant otherwise


def parse_request(
    what: Sequence[str],
    variables: Sequence[str] = (),
    *,
    shell: Any,
    collect: bool = True,
    empty_cache: bool = True,
    trim: bool = False,
) -> Request:
    """Return what some words ask for; errors and outputs, if there are none.

    Each word is one of `WORDS`, an output such as "Out[12]", or a variable; `variables` are variables,
    whatever they are called. An OptionError is raised if there is no such variable or output.
    """
    for name in (*what, *variables):
        if not isinstance(name, str):
            raise OptionError(
                "free() takes names, such as 'errors', 'Out[12]' or a variable's name, not "
                f"{plain(type(name).__name__)}"
            )
    is_named = bool(what or variables or trim)
    words = set(what) if is_named else {ALL}
    items: dict[str, Sequence[Slot]] = {}
    if words & {ERRORS, ALL}:
        items[ERRORS] = errors_kept(shell)
    if words & {OUTPUTS, ALL}:
        items[OUTPUTS] = outputs_kept(shell)
    for name in what:
        if name not in WORDS:
            items[plain(name)] = _output(name, shell) or _variable(name, shell)
    for name in variables:
        items[f"the variable {name}" if name in WORDS else plain(name)] = _variable(name, shell)
    return Request(
        items,
        collect=collect and words != {CACHE},
        empty_cache=empty_cache,
        trim=trim,
        is_named=is_named,
        notes=tuple(
            f"The variable {word} stays: %memholders --free -v {word} frees it."
            for word in dict.fromkeys(what)
            if word in WORDS and word not in variables and word in namespace_of(shell)
        ),
    )


def namespace_of(shell: Any) -> MutableMapping[str, Any]:
    """Return the variables of the notebook, or of the script."""
    user_variables = main_variables() if shell is None else shell.user_ns
    return cast("MutableMapping[str, Any]", user_variables)


def _output(name: str, shell: Any) -> Sequence[Slot]:
    """Return all places where one output is kept; none if a name is no output's."""
    match = _OUTPUT.fullmatch(name)
    kept = outputs_kept(shell)
    # Those that are wanted by name, and every other that has the same object.
    number = (match[1] or match[2]) if match is not None else ""
    names = {f"Out[{number}]", f"_{number}"} if number else {name}
    same = {id(slot.value()) for slot in kept if slot.name in names}
    return [slot for slot in kept if id(slot.value()) in same]


def _variable(name: str, shell: Any) -> Sequence[Slot]:
    namespace = namespace_of(shell)
    names = {root.name for root in variables(namespace) if root.precedence is not Precedence.OUTPUT}
    if name not in names:
        if issubclass(type(namespace.get(name)), ModuleType):
            raise OptionError(f"{plain(name)} is a module, not a variable, and cannot be freed")
        raise OptionError(_not_found(name, sorted(names), shell))
    slots = [Slot(name, cast("dict[Any, Any]", namespace), name)]
    hidden = getattr(shell, "user_ns_hidden", {})
    return [*slots, *([Slot(name, hidden, name)] if name in hidden else [])]


def _not_found(name: str, names: Sequence[str], shell: Any) -> str:
    whole = re.match(r"\w+", name)
    if whole is not None and whole[0] in names:
        return (
            f"{plain(name)} is a part of the variable {whole[0]}, and %memholders --free frees whole "
            f"variables: run del {plain(name)}, then %memholders --free garbage"
        )
    outputs = [slot.name for slot in outputs_kept(shell) if slot.name.startswith("Out[")]
    near = difflib.get_close_matches(name, dict.fromkeys([*names, *WORDS, *outputs]), n=3)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    return f"no variable {plain(name)!r}{hint}"


def carry_out(request: Request, plan: Release, allocator: Allocator | None = None) -> Release:
    """Free what was named, and then collect, empty and trim as requested; return the plan with what was done.

    The cache is by default that of the torch that is loaded.
    """
    allocator = allocator or loaded_allocator()
    steps: list[str] = []
    notes: tuple[str, ...] = ()
    interrupted = False
    try:
        for name, slots in request.items.items():
            for slot in slots:
                if slot.empty is GONE:
                    slot.fields.pop(slot.key, None)
                else:
                    slot.fields[slot.key] = slot.empty
            steps.append(f"{name} freed")
        if request.collect:
            # What lies in a cycle goes now, and what the allocator got back can be returned next.
            steps.append(f"{format_counted(gc.collect(), 'unreachable object')} collected")
        if request.empty_cache and allocator.devices():
            allocator.empty_cache()
            steps.append(f"{allocator.device_type.upper()}'s cache emptied")
        if request.trim:
            steps.append(_trimmed())
    except KeyboardInterrupt:
        items = request.items.items()
        left = [name for name, slots in items if not all(slot.is_empty() for slot in slots)]
        interrupted = True
        note = (
            f"Interrupted: {plain(', '.join(left))} was not freed, or only in part."
            if left
            else "Interrupted after everything named was freed."
        )
        notes = (note,)
    except Exception as error:  # noqa: BLE001  (such as a CUDA error, which every call repeats)
        notes = (plain(f"%memholders --free ended early ({type(error).__name__}: {error}).", 300),)
    notes = (*plan.notes, *notes)
    return replace(plan, done=True, steps=tuple(steps), notes=notes, interrupted=interrupted)


def _trimmed() -> str:
    # Missing where nobody has imported it, or is about to.
    if pool := getattr(sys.modules.get("pyarrow"), "default_memory_pool", None):
        pool().release_unused()
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return "heap not trimmed: this needs glibc"
    return "heap trimmed" if trim(0) else "heap trimmed, nothing to return"
