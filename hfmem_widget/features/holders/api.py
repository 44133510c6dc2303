"""``hfmem_widget.holders``: what still holds memory, in the notebook or the script that asks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hfmem_widget.errors import OptionError
from hfmem_widget.monitor.shared import read_once
from hfmem_widget.monitor.subjects import main_variables
from hfmem_widget.session import Session
from hfmem_widget.sources.heap import Holders, kernel_roots, scan
from hfmem_widget.text import plain
from hfmem_widget.view.front_end import running_shell


def holders(
    namespace: Mapping[str, object] | None = None,
    allocated: Mapping[str, float] | None = None,
    *,
    device: str = "",
) -> Holders:
    """Say which names still hold which memory, biggest first.

    The notebook's variables, its outputs, its last error and the user's own modules are followed to every
    tensor that they reach. No code of the objects is run, and nothing is kept alive.

    Parameters
    ----------
    namespace : mapping of str to object, optional
        Variables to begin with; those of the notebook, or of the script, by default.
    allocated : mapping of str to float, optional
        Bytes that are allocated, by device; read now by default.
    device : str, optional
        Only this one, such as "cuda:0".

    Returns
    -------
    Holders
        In a notebook, a table.

    Raises
    ------
    OptionError
        If there is no such device, or `namespace` or `allocated` is no mapping.

    Examples
    --------
    >>> losses = [step(batch) for batch in loader]
    >>> hfmem_widget.holders().rows[0].path
    'losses[0..99]'
    """
    _check(namespace, "namespace must map names to objects, as globals() does")
    _check(allocated, "allocated must map devices to bytes, such as {'cuda:0': 2**30}")
    shell: Any = running_shell()
    if namespace is None:
        namespace = main_variables() if shell is None else shell.user_ns
    if allocated is None:
        allocated = allocated_in(read_once())
    found = scan(namespace, allocated, kernel_roots(shell))
    if not device:
        return found
    there = sorted({*allocated, *found.explained()})
    if device not in there:
        message = f"no device {plain(device)!r}; available: {', '.join(there) or 'none'}"
        raise OptionError(message)
    return found.of(device)


def allocated_in(session: Session) -> dict[str, float]:
    """Return what was allocated on each device at a session's newest sample, in bytes."""
    keys = {one.key for one in session.series}
    devices = [one.key for one in session.devices if f"{one.key}/allocated" in keys]
    return {device: session.latest(f"{device}/allocated") for device in devices}


def _check(given: object, allowed: str) -> None:
    if given is None or isinstance(given, Mapping):
        return
    hint = "; pass a device as device=" if isinstance(given, str) else ""
    message = f"{allowed}, not be {plain(type(given).__name__)}{hint}"
    raise OptionError(message)
