"""``hfmem_widget.free``: free errors, outputs and variables, and measure what that returns.

Only this file frees, collects and empties, and only at the user's explicit request.
"""

from __future__ import annotations

import ctypes
import difflib
import gc
import re
import sys
import time
from collections.abc import Hashable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, cast

from hfmem_widget.analysis.others import kept_text
from hfmem_widget.errors import OptionError
from hfmem_widget.features.free.model import Change, Freeable, Release
from hfmem_widget.monitor.shared import read_once
from hfmem_widget.monitor.subjects import main_variables
from hfmem_widget.session import Session
from hfmem_widget.sources import loaded_allocator
from hfmem_widget.sources.allocator import Allocator
from hfmem_widget.sources.heap.retained import Group, Reach, reach
from hfmem_widget.sources.heap.roots import (
    GONE,
    Precedence,
    Slot,
    cells_of,
    error_name,
    errors_kept,
    kernel_roots,
    outputs_kept,
)
from hfmem_widget.sources.heap.roots import variables as variables_of
from hfmem_widget.sources.heap.scan import scan
from hfmem_widget.text import format_counted, plain
from hfmem_widget.view.front_end import running_shell

__all__ = ["Release", "free", "release"]

MOST_VARIABLES = 5
MOST_STAYING = 3  # names that still hold most, for each device
MOST_SECONDS_AFTER = 3.0  # of the search for what still holds memory
LEAST = 4096  # bytes of a page; smaller sizes, as of many outputs, count as nothing

HANDLED = "An error is being handled; the memory it holds is freed when its except block ends."

_TOGETHER = "together"


def free(
    *what: str,
    variables: Sequence[str] = (),
    collect: bool = True,
    empty_cache: bool = True,
    trim: bool = False,
    dry_run: bool = False,
) -> Release:
    """Free errors, outputs and variables, collect garbage, empty CUDA's cache, and measure the result.

    Without a name nothing is done: the result shows what could be freed.

    Parameters
    ----------
    *what : str
        "errors": the last error, wherever Python and IPython keep it. "outputs": ``Out``, ``_``, ``__``,
        ``___``, ``_12``. "all": both. "garbage": nothing but the collection and the cache. "cache": the
        cache alone. Anything else is a single output, such as "Out[12]", or the name of a variable.
    variables : sequence of str, optional
        Variables, also with names that equal one of those words.
    collect : bool, optional
        Whether ``gc.collect()`` is called.
    empty_cache : bool, optional
        Whether ``torch.cuda.empty_cache()`` is called, if CUDA is in use.
    trim : bool, optional
        Whether malloc returns its free memory to the system (glibc's ``malloc_trim``), and Arrow that of its
        pool.
    dry_run : bool, optional
        Only show what would be freed.

    Returns
    -------
    Release
        In a notebook, a table.

    Raises
    ------
    OptionError
        If there is no such variable or output. Nothing has been freed then.

    Examples
    --------
    >>> hfmem_widget.free("errors", "losses").freed("cuda:0")
    3435973836.0
    """
    shell = running_shell()
    request = parse_request(
        what, variables, shell=shell, collect=collect, empty_cache=empty_cache, trim=trim
    )
    released = release(request, shell, dry_run=dry_run)
    if released.interrupted:
        raise KeyboardInterrupt
    return released


def release(request: Request, shell: Any, *, dry_run: bool = False) -> Release:
    """Carry out a request and measure before and after, or only return what it would free."""
    plan = _planned(request, shell)
    handled = () if sys.exc_info()[1] is None else (HANDLED,)
    plan = replace(plan, notes=(*request.notes, *handled))
    before = read_once()
    if dry_run or not request.is_named:
        return replace(plan, cached=_cached(before))
    plan = carry_out(request, plan)
    try:
        after = read_once()
        newest = after.last_sample
        kept = kept_text(lambda metric: after.value(newest, f"cpu/{metric}"))
        notes = (*plan.notes, *([kept] if kept and not request.trim else []))
        plan = replace(plan, changes=_changes(before, after), notes=notes)
        holders = scan(
            namespace_of(shell), others=kernel_roots(shell), most_seconds=MOST_SECONDS_AFTER
        )
        devices = dict.fromkeys(row.device for row in holders.rows)
        stays = (row for device in devices for row in holders.of(device).rows[:MOST_STAYING])
        return replace(plan, stays=tuple(stays))
    except KeyboardInterrupt:  # the result is still shown
        return replace(plan, interrupted=True)


def _changes(before: Session, after: Session) -> tuple[Change, ...]:
    return tuple(
        Change(
            series.device,
            series.metric,
            series.label,
            before.value(before.last_sample, series.key),  # which lacks devices that came later
            after.latest(series.key),
        )
        for series in after.series
        if series.metric in {"allocated", "reserved"}
        or (series.metric == "device_used" and ":" in series.device)
    )


def _cached(session: Session) -> dict[str, float]:
    gpus = [device.key for device in session.devices if ":" in device.key]
    sizes = (session.latest(f"{gpu}/reserved") - session.latest(f"{gpu}/allocated") for gpu in gpus)
    return {gpu: size for gpu, size in zip(gpus, sizes, strict=True) if size > 0}


def _planned(request: Request, shell: Any) -> Release:
    began = time.perf_counter()
    reach = _search(request, shell)
    items = tuple(
        _freeable(reach, ("item", name), name, _parts_of(reach, name)) for name in request.items
    )
    keys = [key for key in reach.alone if isinstance(key, tuple) and key[0] == "variable"]
    holding = [_freeable(reach, key, plain(key[1]), ()) for key in keys]
    holding = [variable for variable in holding if variable.total]
    return Release(
        items,
        together=_worth(reach.alone[_TOGETHER]),
        is_at_most=_TOGETHER in reach.at_most,
        variables=tuple(sorted(holding, key=lambda variable: -variable.total)[:MOST_VARIABLES]),
        seconds=time.perf_counter() - began,
        objects=reach.objects,
        bound=reach.bound,
    )


def _freeable(reach: Reach, key: Hashable, name: str, what: tuple[str, ...]) -> Freeable:
    return Freeable(name, what, _worth(reach.alone[key]), key in reach.at_most)


def _worth(sizes: Mapping[str, int]) -> dict[str, int]:
    return {device: size for device, size in sizes.items() if size >= LEAST}


def _search(request: Request, shell: Any) -> Reach:
    """Find the bytes that only the request reaches; the objects are referenced only in this frame."""
    cells = cells_of(shell)
    groups = [Group(_TOGETHER)]
    for name, slots in request.items.items():
        groups.append(Group(("item", name), within=_TOGETHER))
        # The objects of an item by their shown names; an object that is kept twice has one name.
        parts: dict[Hashable, list[Any]] = {}
        first_name: dict[int, str] = {}
        for slot in slots:
            value = slot.value()
            part = first_name.setdefault(id(value), slot.name)
            if name == ERRORS:
                part = error_name(value, cells) or part
            parts.setdefault(part, []).append(value)
        for part_name, values in parts.items():
            groups.append(Group(("part", name, part_name), values, within=("item", name)))
    requested = {_place(slot) for slots in request.items.values() for slot in slots}
    outputs = outputs_kept(shell)
    kept = (*errors_kept(shell), *outputs)
    staying = [slot.value() for slot in kept if _place(slot) not in requested]
    # Outputs are also variables, but are handled above.
    handled = requested | {_place(slot) for slot in outputs}
    namespace = namespace_of(shell)
    for root in variables_of(namespace):
        if root.precedence is Precedence.OUTPUT or (id(namespace), root.name) in handled:
            continue
        if request.is_named:
            staying.append(root.value)
        else:
            groups.append(Group(("variable", root.name), (root.value,)))
    return reach(groups, staying)


def _place(slot: Slot) -> tuple[int, Any]:
    return id(slot.fields), slot.key


def _parts_of(reach: Reach, name: str) -> tuple[str, ...]:
    """Return the names of an item's parts that hold bytes, largest first; empty for a variable."""
    sizes = {
        key[2]: sum(_worth(alone).values())
        for key, alone in reach.alone.items()
        if isinstance(key, tuple) and key[:2] == ("part", name)
    }
    by_size = sorted(sizes, key=lambda part: -sizes[part])
    holding = [part for part in by_size if sizes[part]]
    # Several parts that hold the same bytes hold none of them alone.
    parts = holding or (by_size if _worth(reach.alone["item", name]) else [])
    return tuple(plain(part) for part in parts if part != name)


ERRORS, OUTPUTS, GARBAGE, CACHE, ALL = WORDS = ("errors", "outputs", "garbage", "cache", "all")
"""The words of a request, besides variables and single outputs."""

_OUTPUT = re.compile(r"Out\[(\d+)\]|_(\d+)")


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be freed, and the steps that follow."""

    items: Mapping[str, Sequence[Slot]]  # by name, the places that hold its objects
    collect: bool = True  # collect garbage
    empty_cache: bool = True  # return the cache of CUDA's allocator
    trim: bool = False  # return malloc's free memory
    is_named: bool = True  # False if nothing was named, so that nothing is done
    notes: tuple[str, ...] = ()  # hints where a word may have been meant otherwise


def parse_request(
    what: Sequence[str],
    variables: Sequence[str] = (),
    *,
    shell: Any,
    collect: bool = True,
    empty_cache: bool = True,
    trim: bool = False,
) -> Request:
    """Return the request of some words; errors and outputs without any.

    Each word is one of `WORDS`, an output such as "Out[12]", or a variable; `variables` are always variables.
    Raises `OptionError` for any other.
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
        collect=collect and (bool(items) or words != {CACHE}),
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
    match = _OUTPUT.fullmatch(name)
    kept = outputs_kept(shell)
    # The outputs with this name, and all others of the same object.
    number = (match[1] or match[2]) if match is not None else ""
    names = {f"Out[{number}]", f"_{number}"} if number else {name}
    same = {id(slot.value()) for slot in kept if slot.name in names}
    return [slot for slot in kept if id(slot.value()) in same]


def _variable(name: str, shell: Any) -> Sequence[Slot]:
    namespace = namespace_of(shell)
    names = {
        root.name for root in variables_of(namespace) if root.precedence is not Precedence.OUTPUT
    }
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
    """Free the items, then collect, empty and trim as requested; return the plan with the steps done."""
    allocator = allocator or loaded_allocator()
    steps: list[str] = []
    notes, interrupted = plan.notes, False
    try:
        for name, slots in request.items.items():
            for slot in slots:
                if slot.empty is GONE:
                    slot.fields.pop(slot.key, None)
                else:
                    slot.fields[slot.key] = slot.empty
            steps.append(f"{name} freed")
        if request.collect:
            # First, so that memory of cycles is in the allocator's cache when that is emptied.
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
        notes = (*notes, note)
    except Exception as error:  # noqa: BLE001  (such as a CUDA error, which every call repeats)
        note = f"%memholders --free ended early ({type(error).__name__}: {error})."
        notes = (*notes, plain(note, 300))
    return replace(plan, done=True, steps=tuple(steps), notes=notes, interrupted=interrupted)


def _trimmed() -> str:
    # Only if pyarrow is imported, and completely.
    if pool := getattr(sys.modules.get("pyarrow"), "default_memory_pool", None):
        pool().release_unused()
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return "heap not trimmed: this needs glibc"
    return "heap trimmed" if trim(0) else "heap trimmed, nothing to return"
