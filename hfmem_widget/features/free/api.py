"""``hfmem_widget.free``: let go of errors, outputs and variables, and measure what that frees."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hfmem_widget.features.free.act import carry_out
from hfmem_widget.features.free.model import Change, Release
from hfmem_widget.features.free.plan import planned
from hfmem_widget.features.free.request import Request, asked, namespace_of
from hfmem_widget.monitor.shared import read_once
from hfmem_widget.session import Session
from hfmem_widget.sources.heap import kernel_roots, scan
from hfmem_widget.sources.heap.model import Holder
from hfmem_widget.view.front_end import running_shell

__all__ = ["Release", "free", "release"]

MOST_STAYING = 3
"""Names told for each device of what still holds most."""

MOST_SECONDS_AFTER = 3.0
HANDLED = "An error is being handled; the memory it holds is freed when its except block ends."

_ON_A_GPU = ("allocated", "reserved", "device_used")
_ON_THE_HOST = ("allocated", "reserved")


def free(
    *what: str,
    variables: Sequence[str] = (),
    collect: bool = True,
    empty_cache: bool = True,
    trim: bool = False,
    dry_run: bool = False,
) -> Release:
    """Let go of what is named, collect garbage, empty CUDA's cache, and measure what that frees.

    Without a name nothing is done: what it returns tells what could be.

    Parameters
    ----------
    *what : str
        "errors": the last error, wherever Python and IPython keep it. "outputs": ``Out``, ``_``, ``__``,
        ``___``, ``_12``. "all": both. "garbage": nothing but the collection and the cache. "cache": the
        cache alone. Anything else is a single output, such as "Out[12]", or the name of a variable.
    variables : sequence of str, optional
        Variables, also such as are called like one of those words.
    collect : bool, optional
        Whether ``gc.collect()`` is called.
    empty_cache : bool, optional
        Whether ``torch.cuda.empty_cache()`` is called, if CUDA is in use.
    trim : bool, optional
        Whether malloc returns what it keeps to the system (glibc's ``malloc_trim``).
    dry_run : bool, optional
        Only say what would be freed.

    Returns
    -------
    Release
        In a notebook, a table.

    Raises
    ------
    OptionError
        If there is no such variable or output. Nothing has been released then.

    Examples
    --------
    >>> hfmem_widget.free("errors", "losses").freed("cuda:0")
    3435973836.0
    """
    shell = running_shell()
    request = asked(
        what, variables, shell=shell, collect=collect, empty_cache=empty_cache, trim=trim
    )
    released = release(request, shell, dry_run=dry_run)
    if released.interrupted:
        raise KeyboardInterrupt
    return released


def release(request: Request, shell: Any, *, dry_run: bool = False) -> Release:
    """Carry a request out and measure before and after, or only tell what that would free."""
    plan = replace(planned(request, shell), notes=request.notes)
    if sys.exc_info()[1] is not None:
        plan = replace(plan, notes=(*plan.notes, HANDLED))
    before = read_once()
    if dry_run or not request.is_named:
        return replace(plan, cached=_cached(before))
    done = carry_out(request)
    plan = replace(
        plan,
        done=True,
        steps=done.steps,
        notes=(*plan.notes, *done.notes),
        interrupted=done.interrupted,
    )
    try:
        plan = replace(plan, changes=_changes(before, read_once()))
        return replace(plan, stays=_staying(shell))
    except KeyboardInterrupt:  # what was done is told all the same
        return replace(plan, interrupted=True)


def _changes(before: Session, after: Session) -> tuple[Change, ...]:
    return tuple(
        Change(
            one.device,
            one.metric,
            one.label,
            before.value(before.last_sample, one.key),  # a device may have come meanwhile
            after.latest(one.key),
        )
        for one in after.series
        if one.metric in (_ON_A_GPU if ":" in one.device else _ON_THE_HOST)
    )


def _cached(session: Session) -> dict[str, float]:
    """Return what each GPU's allocator keeps and has not handed out."""
    cached = {}
    for device in session.devices:
        reserved = session.latest(f"{device.key}/reserved")
        kept = reserved - session.latest(f"{device.key}/allocated")
        if ":" in device.key and kept > 0:
            cached[device.key] = kept
    return cached


def _staying(shell: Any) -> tuple[Holder, ...]:
    """Return what holds most on each device, biggest first."""
    rows = scan(
        namespace_of(shell), others=kernel_roots(shell), most_seconds=MOST_SECONDS_AFTER
    ).rows
    told: dict[str, list[Holder]] = {}
    for row in rows:
        told.setdefault(row.device, []).append(row)
    return tuple(row for of_device in told.values() for row in of_device[:MOST_STAYING])
